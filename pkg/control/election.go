package control

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/imdhq/imd/pkg/im"
	"github.com/imdhq/imd/pkg/store"
)

// Errors of elections and locks.
var (
	// ErrElectionName says that a name is not 1 to 64 of a-z 0-9 . _ -.
	ErrElectionName = errors.New("control: the name is not 1 to 64 of a-z 0-9 . _ -")
	// ErrNoLeader says that the election has no leader now.
	ErrNoLeader = errors.New("control: there is no leader")
	// ErrLockLost says that a lock is not held any more.
	ErrLockLost = errors.New("control: the lock is lost")
)

// CheckName checks the name of an election or a lock. Errors: ErrElectionName.
func CheckName(name string) error {
	ok := name != "" && len(name) <= 64
	for _, r := range name {
		ok = ok && (r >= 'a' && r <= 'z' || r >= '0' && r <= '9' || r == '.' || r == '_' || r == '-')
	}
	if !ok {
		return fmt.Errorf("%q: %w", name, ErrElectionName)
	}
	return nil
}

// Leader is what is announced of the leader of one election. It is stored as
// JSON.
type Leader struct {
	Name    string    `json:"name"` // of the election
	Node    im.NodeID `json:"node"`
	BootID  string    `json:"boot_id"`
	Address string    `json:"address,omitempty"` // host:port of its ops listener; "" = none
	Host    string    `json:"host,omitempty"`    // the network that a loopback Address belongs to
	Token   int64     `json:"token"`             // 0 = elected, not acting yet
	Since   time.Time `json:"since"`             // when it was elected
	Gone    bool      `json:"-"`                 // it has left and nobody has followed yet
}

// Leaders are the announced leaders at one revision, by name. Immutable.
type Leaders struct {
	All      []Leader
	Revision int64
	Stale    bool // the registry cannot be reached; the copy may be old
}

// Of finds the leader of an election; false if there is none.
func (l *Leaders) Of(name string) (Leader, bool) {
	for _, one := range l.All {
		if one.Name == name {
			return one, true
		}
	}
	return Leader{}, false
}

// Term is one period of leadership. Its methods are safe for concurrent use.
type Term interface {
	// Proof is what each effect of the leader must prove in its transaction. A
	// store that answers store.ErrFenced says that the term is over: return that
	// error from Lead.
	Proof() store.Proof
	// Valid reports whether the lease still holds by this process's own clock.
	// It saves useless work; only the proof makes an effect safe.
	Valid() bool
}

// Candidacy is one candidate of one election.
type Candidacy struct {
	Name string // of the election, as CheckName wants it
	// Fences gives the store with the fence of this election. It is asked at each
	// claim and may fail; then the claim is tried again.
	Fences func() (store.Fences, error)
	// Lead does the leader's work until ctx is done, which it is as soon as the
	// term ends for any reason. It returns within half a second of that. Returning
	// earlier resigns, and leaves the place to others for 2 s; the error only tells
	// a term that was fenced (store.ErrFenced) from one that was given up. It is
	// never called twice at the same time.
	Lead func(ctx context.Context, t Term) error
}

// Elector runs elections. One per process.
type Elector interface {
	// Campaign takes part in an election until ctx is done: it stands by while
	// another process leads, and calls Lead each time it is elected itself. At
	// the end it resigns, so that another takes over at once, and returns nil,
	// within 2 s. Absence of the control plane does not end it. Errors:
	// ErrElectionName, or this process takes part already.
	Campaign(ctx context.Context, c Candidacy) error
	// Transfer asks the leader to resign, in favour of a node or of anyone else
	// (""). If that node is no candidate, the election is open to all 3 s later. It
	// returns when the leader has been asked, which it obeys at once if it lives:
	// who that is, or the node itself if it leads already. Errors: ErrNoLeader, ErrElectionName, or the control plane is away.
	Transfer(ctx context.Context, name string, to im.NodeID) (Leader, error)
}

// LockRequest is what a lock is wanted for.
type LockRequest struct {
	Name    string // as CheckName wants it
	Purpose string // one line for people, up to 256 bytes
}

// Lock is a lock that is held. A lock saves work from being done twice; it is no
// safety by itself, because its holder may be paused and wake up after another
// has it. What must not happen twice goes through Put or proves Fence.
type Lock interface {
	// Token rises with each holder of the name. It is of etcd, and goes back if
	// etcd is restored; the token of Fence does not.
	Token() int64
	// Valid reports whether the lock is still held by this process's own clock.
	Valid() bool
	// Done is closed when the lock is lost or given up.
	Done() <-chan struct{}
	// Put writes /imd/<cluster>/guarded/<key> in a transaction that also checks
	// that the lock is still held. Errors: ErrLockLost, then nothing was written;
	// others leave the outcome unknown, and the same call may be made again.
	Put(ctx context.Context, key, value string) error
	// Fence claims the fence "lock/" + name of the message store, for effects that
	// are transactions there. Errors: ErrLockLost, those of the store.
	Fence(ctx context.Context, f store.Fences) (store.Proof, error)
	// Unlock gives the lock up, within 2 s. If etcd does not answer, it ends by
	// itself 10 s later.
	Unlock(ctx context.Context) error
}

// LockInfo is one holder or waiter of a lock. It is stored as JSON.
type LockInfo struct {
	Name    string    `json:"name"`
	Node    im.NodeID `json:"node"`
	BootID  string    `json:"boot_id"`
	Purpose string    `json:"purpose,omitempty"`
	Asked   time.Time `json:"asked"`
	Token   int64     `json:"-"` // lower ones are served first
	Held    bool      `json:"-"` // false = it waits
}

// Locker hands out locks.
type Locker interface {
	// Lock waits until this process holds the lock; who asks first, gets it
	// first. Before it returns it has made sure that lease and key still exist.
	// Errors: ErrElectionName, ctx is done, or the control plane is away.
	Lock(ctx context.Context, r LockRequest) (Lock, error)
	// Locks lists holders and waiters, by name and token.
	Locks(ctx context.Context) ([]LockInfo, error)
}

// The reasons for which a term ends.
const (
	EndResigned = "resigned" // asked to, or the process stops
	EndDemoted  = "demoted"  // the lease was not renewed in time
	EndDeposed  = "deposed"  // the key or the lease vanished
	EndFenced   = "fenced"   // another process has claimed the fence
	EndReturned = "returned" // Lead returned by itself
)

// Ends lists all reasons.
func Ends() []string {
	return []string{EndResigned, EndDemoted, EndDeposed, EndFenced, EndReturned}
}

// ElectionStats is what one candidacy counts.
type ElectionStats struct {
	Leading bool
	Token   int64             // of the present term; 0 = none
	Terms   uint64            // begun
	Ends    map[string]uint64 // by reason
	Forced  uint64            // dead leaders whose lease was revoked from here
	Fenced  uint64            // claims that the store refused
}

// LockStats is what the locks of one process count.
type LockStats struct {
	Held    int    // now
	Waiting int    // now
	Lost    uint64 // ended without our doing
}

package store

import (
	"context"
	"errors"
	"time"

	"github.com/imdhq/imd/pkg/im"
	"github.com/imdhq/imd/sdk/go/gen/clientv1"
)

// ErrUnknownOutcome marks an error after which a change may have been made.
var ErrUnknownOutcome = errors.New("the outcome is unknown")

// BusyConversationError says that a call stored nothing because somebody else
// held conversations of it for longer than the driver waits. The other rows may
// be appended again at once; rows of these conversations should be appended
// later, and then with AppendRow.NoWait.
type BusyConversationError struct {
	// Conversations are those that were found held; never empty.
	Conversations []im.ConversationID
	// Err is the cause, for the log; may be nil.
	Err error
}

// Error names no conversation, so that the text is the same for all.
func (e *BusyConversationError) Error() string {
	if e.Err == nil {
		return "a conversation is held by somebody else"
	}
	return "a conversation is held by somebody else: " + e.Err.Error()
}

// Unwrap is the cause.
func (e *BusyConversationError) Unwrap() error { return e.Err }

// ErrNotFound says that there is no such user, key or mark.
var ErrNotFound = errors.New("not found")

// Limits that every driver enforces.
const (
	// MaxAppendRows is the most rows one Append takes.
	MaxAppendRows = 200
	// MaxPage is the most entries History returns.
	MaxPage = 500
	// MaxSyncPage is the most states a SyncPage holds.
	MaxSyncPage = 200
	// MaxSyncs is the most queries SyncMany takes.
	MaxSyncs = 64
	// MaxUnread is where counting unread entries stops.
	MaxUnread = 1000
	// MaxAddMembers is the most users one change may add or remove.
	MaxAddMembers = 500
	// MaxMembers is the most present members of a group.
	MaxMembers = 100_000
	// MaxMemberPage is the most members a MemberPage holds.
	MaxMemberPage = 1000
	// MaxExpire is the most rows of one kind that Expire removes.
	MaxExpire = 500
	// MaxCallers is the most users Callers takes.
	MaxCallers = 64
	// MaxHeadUsers is the most users Heads takes.
	MaxHeadUsers = 1000
)

// MessageStore is the durable truth. All methods are safe for concurrent use
// and honour ctx; what they return belongs to the caller.
type MessageStore interface {
	Log
	Membership
	Reader
	Positions
	Directory
	Presence
	Sessions
	Workers
	Fences
	Jobs
	Outbox
	Retention
	Schedules
	Announcements

	// DataEpoch names the history of the store. It changes when the store was
	// restored or wiped, because a seq may then mean another entry.
	DataEpoch() string
	// Newest is the server time of the newest entry; zero for an empty store.
	Newest(ctx context.Context) (time.Time, error)
	// Writers is how many Append calls may usefully run at once. At least 1.
	Writers() int
	// Ping makes one cheap round trip that also proves writability.
	Ping(ctx context.Context) error
	// Close waits for calls in flight and frees everything. No call may follow.
	Close() error
}

// Log appends sends.
type Log interface {
	// Append stores a batch of at most MaxAppendRows rows, all or nothing, and
	// answers each row in order. Per conversation, in one transaction and in
	// this order: lock it (making a direct one with its two members if Peer is
	// set and it does not exist), read what is already stored under (conversation,
	// sender, client message id): such a row is answered as at first with
	// Duplicate, whatever the sender may do now, or with id_reused if BodyHash
	// differs; check the permission of the rest: superseded or replaced (Proof is
	// below what ProveSession has noted), not_member, conversation_closed,
	// forbidden (blocked by the peer of a direct conversation); number the rest
	// densely in row order, insert, move the head. The first of equal keys in a
	// batch wins, the others are its duplicates.
	//
	// A row with a retryable error makes every later row of the same Run
	// retryable (behind). Row errors do not fail the call.
	//
	// A row whose conversation is held by somebody else may be answered busy
	// without having been looked at; rows with NoWait always are, at once.
	//
	// Errors: ErrUnknownOutcome: run the same batch again, in its place.
	// *BusyConversationError: nothing was stored, as somebody else held these
	// conversations for too long. Others: nothing was stored; a batch that cannot be stored for what one row contains
	// is found by splitting it. The rows and what they hold must stay as they are
	// for good: after an unknown outcome the store may still read them.
	Append(ctx context.Context, rows []AppendRow) ([]AppendResult, error)
}

// AppendRow is one send to store.
type AppendRow struct {
	Run             int // rows with the same number are one run, in order
	Conversation    im.ConversationID
	Peer            im.UserID // the other user of a direct conversation to be made if need be; "" = it must exist
	Sender          im.UserID // "" = the system, which needs no membership
	ClientMessageID im.ClientMessageID
	BodyHash        [32]byte
	MessageID       im.MessageID // given by the caller, unique; lost if the row is a duplicate
	Kind            clientv1.EntryKind
	Content         []byte // an encoded clientv1.Content
	TargetSeq       im.Seq
	Countable       bool
	// Proof is the rank of the session that sends; nil = it is not compared.
	Proof *SessionProof
	// NoWait asks not to wait for a conversation that somebody else holds: it was
	// held the last time. One row with it is enough for all of its conversation.
	NoWait bool
}

// AppendResult answers one row.
type AppendResult struct {
	Err           *im.Error // nil = stored; then the rest is set
	MessageID     im.MessageID
	Seq           im.Seq
	PrevSeq       im.Seq
	ServerTime    time.Time
	Duplicate     bool
	MemberVersion int64 // membership at the commit (of a duplicate: now)
}

// Membership changes conversations. Every change is an entry of the log.
type Membership interface {
	// Change applies c and writes its entry in one transaction. The same
	// (Actor, RequestID) gets the first answer with Duplicate and no new entry.
	//
	// Errors: not_member (no such group, or the actor is not in it), forbidden
	// (role; the only owner leaves or steps down; removing an owner; a direct
	// conversation), conversation_closed, not_found (SetRole of a non-member),
	// bad_request (nothing would change, e.g. all are members already; not
	// exactly one change), too_large (lists above MaxAddMembers, groups above
	// MaxMembers), id_reused (RequestID is the id of a message),
	// *BusyConversationError (somebody else holds it; nothing was changed),
	// ErrUnknownOutcome (run it again).
	Change(ctx context.Context, c Change) (ChangeResult, error)
	// ClearHistory moves the member's start up to seq, never down and never past
	// the head, and returns the start. Errors: not_member.
	ClearHistory(ctx context.Context, conv im.ConversationID, user im.UserID, seq im.Seq) (im.Seq, error)
	// Members returns present members with an id above after, by id, at most
	// limit (1 to MaxMemberPage). reader must be a member unless "". Errors: not_member.
	Members(ctx context.Context, conv im.ConversationID, reader, after im.UserID, limit int) (MemberPage, error)
	// Starts returns who of the users (at most MaxMemberPage) are present members
	// now, each with its start: all entries above it are for the member. Of others,
	// and of a conversation that does not exist, it has nothing.
	Starts(ctx context.Context, conv im.ConversationID, users []im.UserID) (map[im.UserID]im.Seq, error)
}

// Change is one change of a conversation; exactly one of the pointers is set.
type Change struct {
	Conversation im.ConversationID // with Create: the id to use if it is new
	Actor        im.UserID         // "" = the system, which may do everything
	RequestID    im.ClientMessageID
	MessageID    im.MessageID // of the entry, if one is written

	Create        *CreateGroup
	Rename        *string
	Close         bool
	AddMembers    []im.UserID // distinct
	RemoveMembers []im.UserID // distinct
	SetRole       *SetRole
	Leave         bool
}

// CreateGroup is a new group; its first entry has seq 1.
type CreateGroup struct {
	Name        string
	Owner       im.UserID
	Members     []im.UserID // distinct, without the owner
	OpenHistory bool        // newcomers see everything
}

// SetRole changes what one member may do.
type SetRole struct {
	User im.UserID
	Role clientv1.Role
}

// ChangeResult names the entry a change wrote.
type ChangeResult struct {
	Conversation  im.ConversationID
	Entry         im.Entry
	Duplicate     bool
	MemberVersion int64
	Removed       []im.UserID // who lost membership by this entry and should hear of it
}

// MemberPage is one page of present members.
type MemberPage struct {
	Members       []Member
	End           bool
	MemberVersion int64 // grows with each change of the membership
	Kind          clientv1.ConversationKind
	Count         int // of all present members
}

// Member is one present member.
type Member struct {
	User      im.UserID
	Role      clientv1.Role
	Start     im.Seq // of its newest stretch: new entries above it are for the member
	Delivered im.Seq
	Read      im.Seq
}

// Reader reads back.
type Reader interface {
	// History returns entries of (q.After, q.Before) that q.Reader may see now.
	// Errors: not_member (never was one, or no such conversation).
	History(ctx context.Context, q HistoryQuery) (HistoryPage, error)
	// Sync returns one page of the conversations of a user that changed since
	// the token or that a cursor asks for. Token "" or one that is void (another
	// data_epoch, not readable) = all, and Full is set on every page.
	Sync(ctx context.Context, q SyncQuery) (SyncPage, error)
	// SyncMany is Sync for many queries (at most MaxSyncs), which costs much less
	// than a call for each. It returns a page for each, in their order; an error
	// is that of all.
	SyncMany(ctx context.Context, qs []SyncQuery) ([]SyncPage, error)
	// Heads returns what changed for the users (at most MaxHeadUsers) since
	// version ("" or a void one = nothing, just a version to begin with), with an
	// overlap: some heads may come twice.
	Heads(ctx context.Context, users []im.UserID, version string) ([]UserHead, string, error)
	// Entry finds one entry by its seq, whoever may see it. Errors: ErrNotFound.
	Entry(ctx context.Context, conv im.ConversationID, seq im.Seq) (im.Entry, error)
}

// HistoryQuery asks for entries between After and Before, both excluded.
type HistoryQuery struct {
	Reader       im.UserID // "" = the system, which sees everything
	Conversation im.ConversationID
	After        im.Seq
	Before       im.Seq // 0 = to the head
	Limit        int    // 1 to MaxPage
	Backward     bool   // begin at the upper end
	MaxBytes     int    // stop before the encoded contents pass it, but return at least one entry; 0 = no bound
}

// HistoryPage is one page of entries, rising in seq also when read backward.
// Everything the reader may see in CompleteFrom..CompleteTo is in it; the range
// is empty if CompleteTo is the lower. Hidden and unused numbers are covered,
// up to the head of the log for a member, up to the own REMOVED or LEFT for a
// former one.
type HistoryPage struct {
	Entries      []im.Entry
	CompleteFrom im.Seq
	CompleteTo   im.Seq
	End          bool // the interval asked for is exhausted
}

// SyncQuery asks for changed conversations of one user.
type SyncQuery struct {
	User    im.UserID
	Token   string
	Cursors map[im.ConversationID]im.Seq // also list these if their head is above the value or the user is no member
	Limit   int                          // 1 to MaxSyncPage
	// Entries above 0 puts a page of at most so many on each state: what is above
	// the conversation's cursor or, without one, the newest. 0 = no pages.
	Entries int
	// MaxBytes bounds the contents read for all of these pages: from where it is
	// passed on, states have no page. 0 = no bound.
	MaxBytes int
	// Digest asks for the digest of all heads. It costs a look at each
	// conversation of the user.
	Digest bool
}

// SyncPage is one page of states in a fixed order. Token continues or, on the
// last page, is for the next sync.
type SyncPage struct {
	States []ConversationState
	Token  string
	More   bool
	Full   bool
	// Digest is the sum of protocol.DigestTerm over the conversations that the user
	// is a member of, as they were in the moment in which the page was read. It is
	// given if it was asked for and the page is a whole list, not the end of a
	// longer one; else it is 0, as it is for who has no conversation.
	Digest uint64
	// TokenAfter[i] is the token that continues behind States[i]: for a caller
	// that has room for fewer states than asked.
	TokenAfter []string
}

// ConversationState is what one user needs to list a conversation. Of one that
// the user has left it shows what was to be seen then. Of one that the user
// never was in, only Conversation is set.
type ConversationState struct {
	Conversation im.ConversationID
	Kind         clientv1.ConversationKind
	Name         string
	Peer         im.UserID     // direct: the other user
	Role         clientv1.Role // unspecified = not a member any more
	Start        im.Seq        // the first have: all the user may see is above it, of former stretches too
	Head         im.Seq        // newest entry the user may see, never below Start; 0 = none
	Read         im.Seq
	Delivered    im.Seq
	Unread       int       // at most MaxUnread
	Last         *im.Entry // newest visible MESSAGE; nil = none
	PeerMember   *Member   // direct: the other user's positions
	Closed       bool
	Members      int
	Page         *HistoryPage // as History reads it; nil = not asked for, no room, or nothing that the user may see
}

// UserHead is the head of one conversation as one user may see it.
type UserHead struct {
	User         im.UserID
	Conversation im.ConversationID
	Seq          im.Seq
}

// Positions keeps how far members have received and read.
type Positions interface {
	// Position returns where a member stands. Errors: not_member.
	Position(ctx context.Context, conv im.ConversationID, user im.UserID) (Position, error)
	// SavePositions moves delivered and read positions up, never down and never
	// past the head, in one transaction. It returns where each stands afterwards,
	// one for one and in order, with Unread counted for those with Read: counting
	// costs far more than moving. Positions of users that are
	// no members now are ignored; they come back with Kind unspecified and
	// nothing but Conversation and User. ErrUnknownOutcome: run it again.
	SavePositions(ctx context.Context, p []Position) ([]Position, error)
}

// Position is where one member stands in one conversation.
type Position struct {
	Conversation im.ConversationID
	User         im.UserID
	Delivered    im.Seq
	Read         im.Seq // includes Delivered: reading is receiving
	Start        im.Seq // set by the store; Delivered is never below it
	Head         im.Seq // set by the store: newest entry the user may see, never below Start
	Unread       int    // set by the store if it counts, at most MaxUnread
	Members      int    // set by the store: present members of the conversation
	Kind         clientv1.ConversationKind
	Peer         im.UserID // set by the store: direct, the other user
}

// Directory keeps users, blocks, logins and API keys.
type Directory interface {
	// User finds a user. Errors: ErrNotFound.
	User(ctx context.Context, id im.UserID) (User, error)
	// PutUser makes the user known if it is not and returns it.
	PutUser(ctx context.Context, id im.UserID) (User, error)
	// SetDisabled disables or enables a user, making it known.
	SetDisabled(ctx context.Context, id im.UserID, disabled bool) error
	// SetBlock sets or lifts a block. From then on direct sends of blocked to
	// user are forbidden. Errors: bad_request (oneself).
	SetBlock(ctx context.Context, user, blocked im.UserID, on bool) error
	// RevokeLogin refuses a login until the given time. A second one of the same
	// login never shortens the first; the newer reason holds.
	RevokeLogin(ctx context.Context, r Revocation) error
	// Revocations returns the revocations of a user that still hold: rows of
	// single logins and of all logins issued before a time.
	Revocations(ctx context.Context, user im.UserID) ([]Revocation, error)
	// Callers is User and Revocations for many users (at most MaxCallers) at once.
	// Who is not known is not in it.
	Callers(ctx context.Context, users []im.UserID) (map[im.UserID]Caller, error)
	// Expire removes what is over at now: revocations that no longer hold, notes of
	// sessions that can live no more, and mutes that have ended; at most MaxExpire
	// of each kind. It returns how many rows went; call it again while that is
	// MaxExpire or more.
	// Errors: ErrFenced if the proof does not hold in the same transaction.
	Expire(ctx context.Context, p Proof, now time.Time) (int, error)
	// PutKey stores an API key under its id, replacing the former.
	PutKey(ctx context.Context, k Key) error
	// Key finds a key. Errors: ErrNotFound.
	Key(ctx context.Context, id string) (Key, error)
	// Keys lists all keys by time of creation.
	Keys(ctx context.Context) ([]Key, error)
}

// User is an account.
type User struct {
	ID       im.UserID
	Created  time.Time
	Disabled bool
}

// Caller is what decides whether somebody may log in.
type Caller struct {
	User        User
	Revocations []Revocation // that still hold
}

// Revocation refuses one login of a user, or all that were issued before.
type Revocation struct {
	User         im.UserID
	Login        im.LoginID // "" = all logins issued before IssuedBefore
	IssuedBefore time.Time
	Reason       im.Reason // revoked, kicked or replaced
	Until        time.Time // after it no token of the login can be valid
}

// Key is an API key of the customer's backend; the secret is not kept.
type Key struct {
	ID         string
	Name       string
	Scopes     []string
	SecretHash [32]byte // SHA-256
	Created    time.Time
	Revoked    time.Time // zero = no
}

// FallbackWorkers is how many worker numbers, from 0 on, are leased from the
// message store. Higher ones are leased from etcd.
const FallbackWorkers = 64

// Workers keeps the high-water marks of the id generators, and leases worker
// numbers while etcd is away.
type Workers interface {
	// WorkerMark is a time that no id of this worker has passed; zero if it
	// never issued one.
	WorkerMark(ctx context.Context, worker int) (time.Time, error)
	// MoveWorkerMark changes it from what WorkerMark told or the caller wrote
	// (zero = there was none) to another time; false = it is not what it was, and
	// nothing was changed. Times are kept in whole microseconds; the caller's
	// must be whole ones. It may go down only at a clean stop of the holder.
	MoveWorkerMark(ctx context.Context, worker int, from, to time.Time) (bool, error)
	// TakeWorker leases a number below FallbackWorkers to holder, which names
	// this one lease, until ttl from now by the store's clock. False: another
	// holds it. Taking what one holds is renewing.
	TakeWorker(ctx context.Context, worker int, holder string, ttl time.Duration) (bool, error)
	// RenewWorker prolongs a lease, also one that has ended and that nobody else
	// has taken since. False: it is not the holder's any more.
	RenewWorker(ctx context.Context, worker int, holder string, ttl time.Duration) (bool, error)
	// FreeWorker ends a lease; one that is not the holder's stays.
	FreeWorker(ctx context.Context, worker int, holder string) error
}

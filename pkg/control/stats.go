package control

import (
	"errors"
	"fmt"
	"time"

	"github.com/imdhq/imd/pkg/im"
)

// BootHeader is the HTTP header in which a node answers /livez with its boot
// id. A node that finds a record under its own id asks for it, to tell a living
// rival from a dead predecessor.
const BootHeader = "Imd-Boot-Id"

// ErrNoWorker says that no worker number is free or acceptable now. Try again
// later.
var ErrNoWorker = errors.New("control: no free worker number")

// TakenError says that another living process has this node's id. The node
// must not serve; one of the two needs a data folder of its own.
type TakenError struct {
	Node   im.NodeID
	Ours   string // our address
	Theirs string // the address of the other process
}

// Error names both addresses.
func (e *TakenError) Error() string {
	return fmt.Sprintf("control: node id %s is in use by a running process at %s; this process is %s", e.Node, e.Theirs, e.Ours)
}

// AwayError says that the registry cannot be reached now. It is tried again for
// as long as it takes.
type AwayError struct {
	At    string // its addresses
	Known bool   // the last view of a former process was published
	Err   error
}

// Error names the addresses.
func (e *AwayError) Error() string {
	return fmt.Sprintf("control: etcd cannot be reached at %s: %v", e.At, e.Err)
}

// Unwrap gives the cause.
func (e *AwayError) Unwrap() error { return e.Err }

// RefusedError says that the registry does not want this user or certificate.
// Waiting does not heal that.
type RefusedError struct {
	At  string // its addresses
	Err error
}

// Error names the addresses.
func (e *RefusedError) Error() string {
	return fmt.Sprintf("control: etcd at %s refuses this node: %v", e.At, e.Err)
}

// Unwrap gives the cause.
func (e *RefusedError) Unwrap() error { return e.Err }

// The causes of a new full read of the cluster.
const (
	ResyncCompacted = "compacted" // the history that the watch needed is gone
	ResyncStale     = "stale"     // nothing was heard for too long
	ResyncBroken    = "broken"    // the watch ended with another error
	ResyncDrift     = "drift"     // a check found a difference
	ResyncRestored  = "restored"  // etcd has another or an older history
)

// ResyncCauses lists all causes.
func ResyncCauses() []string {
	return []string{ResyncCompacted, ResyncStale, ResyncBroken, ResyncDrift, ResyncRestored}
}

// Stats is what the control plane of one process knows about itself, for
// metrics and readiness. Counters begin at zero with the process.
type Stats struct {
	Registered bool              // the record is written and its lease holds by our own clock
	Stale      bool              // as in View
	Heard      time.Time         // last sign of life of the watch; zero = none yet
	Revision   int64             // what the view has
	Newest     int64             // newest revision seen in any answer; never below Revision
	Renewals   uint64            // of the node's lease that succeeded
	RenewFails uint64            // of the same that got no answer or an error
	LeaseLost  uint64            // leases that ended without our doing
	Repairs    uint64            // own records found missing or wrong and written again
	Drift      uint64            // records found wrong by the periodic check, of all areas
	Resyncs    map[string]uint64 // by cause, of all areas
	Watches    int               // that etcd serves this process: 3 at most, 0 if others hand on what they see
	Asking     int               // calls of other processes that wait here for changes
	Suspects   uint64            // nodes whose record vanished without a word
	Held       uint64            // of these, those kept in use because most of a role vanished at once
	Evicted    uint64            // of these, those that left the view
	Trouble    string            // why etcd cannot be reached, one clause; "" = it can

	Calls     []CallStats              // of a client with network endpoints
	Endpoints []EndpointStats          // of the same; or the embedded server alone
	Elections map[string]ElectionStats // that this process takes or took part in
	Locks     LockStats
}

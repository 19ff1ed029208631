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
	Registered bool      // the record is written and its lease holds by our own clock
	Stale      bool      // as in View
	Heard      time.Time // last sign of life of the watch; zero = none yet
	Revision   int64     // what the view has
	Newest     int64     // newest revision seen in any answer; never below Revision
	LeaseLost  uint64    // leases that ended without our doing
	Repairs    uint64    // own records found missing or wrong and written again
	Drift      uint64    // records of the view found wrong by the periodic check
	Resyncs    map[string]uint64
	Elections  map[string]ElectionStats // that this process takes or took part in
	Locks      LockStats
}

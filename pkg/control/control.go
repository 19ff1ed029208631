package control

import (
	"context"
	"slices"
	"sync/atomic"
	"time"

	"github.com/imdhq/imd/pkg/im"
)

// State is what a node says of itself.
type State string

// The states of a node, in the order of its life.
const (
	Starting State = "starting"
	Serving  State = "serving"
	Draining State = "draining"
)

// Node is the record of one running process. It is stored as JSON.
type Node struct {
	ID       im.NodeID `json:"id"`
	BootID   string    `json:"boot_id"` // random, new at each start
	Roles    []string  `json:"roles"`
	State    State     `json:"state"`
	Version  string    `json:"version"`
	Public   string    `json:"public,omitempty"`   // host:port; "" = none
	Ops      string    `json:"ops,omitempty"`      // host:port; "" = none
	Internal string    `json:"internal,omitempty"` // host:port; "" = none
	Zone     string    `json:"zone,omitempty"`
	Weight   int       `json:"weight"` // 1 to 100
	MaxConns int       `json:"max_conns,omitempty"`
	Started  time.Time `json:"started"`
	// Relay says that the node follows etcd itself and answers others that do
	// not; see Feed.
	Relay bool `json:"relay,omitempty"`
	// Cordoned is set in views if an operator keeps new work away from the node.
	// It is not part of the record.
	Cordoned bool `json:"-"`
	// Standing is set in views. It is not part of the record.
	Standing Standing `json:"-"`
}

// Standing says why a node is in a view.
type Standing string

// The standings.
const (
	// Listed: the registry lists the node.
	Listed Standing = ""
	// Held: its record vanished together with those of most of its kind, which
	// is more likely a fault of the registry. It is used while it is probed.
	Held Standing = "held"
	// Suspect: its record vanished and it has not answered a probe yet. It is a
	// last choice.
	Suspect Standing = "suspect"
	// Unregistered: its record vanished, but it answers.
	Unregistered Standing = "unregistered"
)

// Has reports whether the node has the role.
func (n Node) Has(role string) bool { return slices.Contains(n.Roles, role) }

// View is an immutable copy of all records at one revision.
type View struct {
	Nodes    []Node // by ID
	Revision int64  // 0 = nothing was read yet
	Stale    bool   // the registry cannot be reached; the copy may be old
}

// With lists the nodes for new work of a role: they serve, and no operator keeps
// work away from them. Suspect ones are listed only if there are no others.
func (v *View) With(role string) []Node {
	var out, suspect []Node
	for _, n := range v.Nodes {
		switch {
		case !n.Has(role) || n.State != Serving || n.Cordoned:
		case n.Standing == Suspect:
			suspect = append(suspect, n)
		default:
			out = append(out, n)
		}
	}
	if len(out) == 0 {
		return suspect
	}
	return out
}

// Node finds a node by its id.
func (v *View) Node(id im.NodeID) (Node, bool) {
	for _, n := range v.Nodes {
		if n.ID == id {
			return n, true
		}
	}
	return Node{}, false
}

// Registry registers this process and follows the others. One per process.
type Registry interface {
	// Announce sets what the record of this node says. The record is written
	// now if ctx allows, also before Run, and kept written for as long as Run
	// runs. It returns nil once it is written. Errors: a *TakenError if another
	// living process has the same id (do not serve), else the registry is away:
	// the record follows when it is back.
	Announce(ctx context.Context, n Node) error
	// Run keeps the lease, repairs the record and follows the others until ctx
	// is done; then it revokes the lease, within 2 s, and returns nil. Absence
	// of the registry does not end it; an error means that it can never come
	// back within this process.
	Run(ctx context.Context) error
}

// WorkerLease is the right to make ids with one worker number.
type WorkerLease interface {
	// Worker is the number, 0 to 1,023.
	Worker() int
	// Valid reports whether the lease still holds by this process's own clock.
	// Ids must not be made while it is false.
	Valid() bool
	// Release gives the number back, within 2 s.
	Release(ctx context.Context) error
}

// WorkerLeaser leases worker numbers.
type WorkerLeaser interface {
	// Lease takes a free number that usable accepts, keeping the lease until
	// ctx ends or Release. usable is asked for one candidate after the other (it
	// looks at the number's high-water mark); its error ends the search. Errors:
	// ErrNoWorker if none is free and usable, that of usable, or the control
	// plane is away.
	Lease(ctx context.Context, usable func(ctx context.Context, worker int) (bool, error)) (WorkerLease, error)
}

// Handle gives modules the running control plane of this process.
type Handle struct {
	view    atomic.Pointer[View]
	workers atomic.Pointer[WorkerLeaser]
}

// View is the latest copy of the cluster; never nil. Before the control plane
// has started it is empty.
func (h *Handle) View() *View {
	if v := h.view.Load(); v != nil {
		return v
	}
	return &View{}
}

// SetView publishes a copy. The registry calls it.
func (h *Handle) SetView(v *View) { h.view.Store(v) }

// Workers leases worker numbers; nil before the control plane has started.
func (h *Handle) Workers() WorkerLeaser {
	if w := h.workers.Load(); w != nil {
		return *w
	}
	return nil
}

// SetWorkers publishes the leaser. The control plane module calls it.
func (h *Handle) SetWorkers(w WorkerLeaser) { h.workers.Store(&w) }

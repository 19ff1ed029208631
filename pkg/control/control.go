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
}

// Has reports whether the node has the role.
func (n Node) Has(role string) bool { return slices.Contains(n.Roles, role) }

// View is an immutable copy of all records at one revision.
type View struct {
	Nodes    []Node // by ID
	Revision int64  // 0 = nothing was read yet
	Stale    bool   // the registry cannot be reached; the copy may be old
}

// With lists the nodes that have the role and are serving.
func (v *View) With(role string) []Node {
	var out []Node
	for _, n := range v.Nodes {
		if n.Has(role) && n.State == Serving {
			out = append(out, n)
		}
	}
	return out
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
	// Until is when Valid turns false unless the lease is renewed meanwhile.
	Until() time.Time
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
	elector atomic.Pointer[Elector]
	locker  atomic.Pointer[Locker]
	leaders atomic.Pointer[Leaders]
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

// Elector runs elections; nil before the control plane has started.
func (h *Handle) Elector() Elector {
	if e := h.elector.Load(); e != nil {
		return *e
	}
	return nil
}

// SetElector publishes the elector. The control plane module calls it.
func (h *Handle) SetElector(e Elector) { h.elector.Store(&e) }

// Locker hands out locks; nil before the control plane has started.
func (h *Handle) Locker() Locker {
	if l := h.locker.Load(); l != nil {
		return *l
	}
	return nil
}

// SetLocker publishes the locker. The control plane module calls it.
func (h *Handle) SetLocker(l Locker) { h.locker.Store(&l) }

// Leaders is the latest copy of the announced leaders; never nil. A leader that
// has left stays for 10 s, marked as gone, unless another follows.
func (h *Handle) Leaders() *Leaders {
	if l := h.leaders.Load(); l != nil {
		return l
	}
	return &Leaders{}
}

// SetLeaders publishes a copy. The control plane calls it.
func (h *Handle) SetLeaders(l *Leaders) { h.leaders.Store(l) }

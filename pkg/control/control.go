package control

import (
	"context"
	"slices"
	"sync"
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
	ID      im.NodeID `json:"id"`
	BootID  string    `json:"boot_id"` // random, new at each start
	Roles   []string  `json:"roles"`
	State   State     `json:"state"`
	Version string    `json:"version"`
	Public  string    `json:"public,omitempty"` // host:port; "" = none
	// PublicTLS says that Public is spoken to through TLS.
	PublicTLS bool      `json:"public_tls,omitempty"`
	Ops       string    `json:"ops,omitempty"`      // host:port; "" = none
	Internal  string    `json:"internal,omitempty"` // host:port; "" = none
	Zone      string    `json:"zone,omitempty"`
	Weight    int       `json:"weight"` // 1 to 100
	MaxConns  int       `json:"max_conns,omitempty"`
	Started   time.Time `json:"started"`
	// Relay says that the node follows etcd itself and answers others that do
	// not; see Feed.
	Relay bool `json:"relay,omitempty"`
	// Cordon is set in views: why an operator keeps new work away from the node;
	// "" = nobody does. It is not part of the record.
	Cordon string `json:"-"`
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
	Cluster  uint64 // the etcd cluster that Revision is of
	Serial   uint64 // number of the view in this process, from 1; 0 = none was published
	Stale    bool   // the registry cannot be reached; the copy may be old
}

// With lists the nodes for new work of a role: they serve, and no operator keeps
// work away from them. Suspect ones are listed only if there are no others.
func (v *View) With(role string) []Node {
	var out, suspect []Node
	for _, n := range v.Nodes {
		switch {
		case !n.Has(role) || n.State != Serving || n.Cordon != "":
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

// Others reports whether a node beside this one takes new work of a role.
func (v *View) Others(role string, self im.NodeID) bool {
	return slices.ContainsFunc(v.With(role), func(n Node) bool { return n.ID != self })
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

// Operator changes what the cluster does with a node. Orders go through the
// registry, so any process gives them for any node. Every call takes 2 s at most;
// after an error an order may have been given and may be repeated.
type Operator interface {
	// Cordon keeps new work away from a node until Uncordon, also when it starts
	// again; the node need not run. reason must not be empty.
	Cordon(ctx context.Context, id im.NodeID, reason string) error
	// Uncordon lets new work go to the node again.
	Uncordon(ctx context.Context, id im.NodeID) error
	// Drain makes the process of the node with this boot id stop in order. The
	// order lapses after a minute.
	Drain(ctx context.Context, id im.NodeID, bootID, reason string) error
	// Leases asks how long the leases of all registered nodes have left. Nodes
	// about which nothing could be learned are missing.
	Leases(ctx context.Context) map[im.NodeID]LeaseLeft
}

// LeaseLeft is how long a registration lasts without another renewal.
type LeaseLeft struct {
	Left time.Duration
	TTL  time.Duration
}

// Area is a part of the registry that is followed by itself.
type Area string

// The areas that every process follows. Each is the name of its prefix.
const (
	AreaNodes    Area = "nodes"
	AreaLeaders  Area = "leader"
	AreaSettings Area = "config"
)

// Areas lists all areas.
func Areas() []Area { return []Area{AreaNodes, AreaLeaders, AreaSettings} }

// Feed hands out the records of the registry and their changes.
type Feed interface {
	// Changes gives what changed in an area after the cursor, at once if something
	// did, else when it does or wait is over. A cursor that is too old, of another
	// etcd, or ahead of the feed gets all records. Errors: this feed has nothing to
	// give now; ask another one.
	Changes(ctx context.Context, area Area, at Cursor, wait time.Duration) (Batch, error)
}

// Cursor is how far a subscriber of a Feed is in one area. The zero Cursor gets
// everything.
type Cursor struct {
	Revision int64
	Cluster  uint64 // the etcd cluster that the revision is of
}

// Batch is an answer of a Feed.
type Batch struct {
	Cursor      // what the subscriber has once it took this in
	Full   bool // all records are here, and what is not here is gone
	// Records are by rising revision: of nodes and leaders the newest change of
	// each key, of settings every change.
	Records []Record
}

// Record is one key of the registry.
type Record struct {
	Key      string // below the prefix of its area
	Value    []byte
	Revision int64 // of its last change
	Created  int64 // revision of its creation
	Version  int64 // 1 at its creation, then one more with each change
	Lease    int64 // that it hangs on; 0 = none
	Gone     bool  // it was deleted at Revision; there is no value
}

// Handle gives modules the running control plane of this process.
type Handle struct {
	view     atomic.Pointer[View]
	workers  atomic.Pointer[WorkerLeaser]
	operator atomic.Pointer[Operator]
	elector  atomic.Pointer[Elector]
	locker   atomic.Pointer[Locker]
	leaders  atomic.Pointer[Leaders]
	secret   atomic.Pointer[func() string]

	mu      sync.Mutex    // of SetView
	changed chan struct{} // closed at the next view; nil = nobody waits
}

// View is the latest copy of the cluster; never nil. Before the control plane
// has started it is empty.
func (h *Handle) View() *View {
	if v := h.view.Load(); v != nil {
		return v
	}
	return &View{}
}

// SetView publishes a copy and gives it its Serial. The registry calls it.
func (h *Handle) SetView(v *View) {
	h.mu.Lock()
	defer h.mu.Unlock()
	v.Serial = h.View().Serial + 1
	h.view.Store(v)
	if h.changed != nil {
		close(h.changed)
		h.changed = nil
	}
}

// Next waits for a view with another serial, until ctx ends; then it gives the
// latest one.
func (h *Handle) Next(ctx context.Context, serial uint64) *View {
	for {
		h.mu.Lock()
		v := h.View()
		if h.changed == nil {
			h.changed = make(chan struct{})
		}
		changed := h.changed
		h.mu.Unlock()
		if v.Serial != serial {
			return v
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return v
		}
	}
}

// Operator gives orders to nodes; nil before the control plane has started.
func (h *Handle) Operator() Operator {
	if o := h.operator.Load(); o != nil {
		return *o
	}
	return nil
}

// SetOperator publishes the operator. The control plane module calls it.
func (h *Handle) SetOperator(o Operator) { h.operator.Store(&o) }

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

// Secret is what the nodes of the cluster share through the control plane; "" =
// not known yet.
func (h *Handle) Secret() string {
	if f := h.secret.Load(); f != nil {
		return (*f)()
	}
	return ""
}

// SetSecret publishes where the secret is. The control plane module calls it.
func (h *Handle) SetSecret(f func() string) { h.secret.Store(&f) }

// SetLeaders publishes a copy. The control plane calls it.
func (h *Handle) SetLeaders(l *Leaders) { h.leaders.Store(l) }

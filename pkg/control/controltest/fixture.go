package controltest

import (
	"context"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/imdhq/imd/pkg/control"
	"github.com/imdhq/imd/pkg/im"
)

// Plane is the control plane of one process, as the suite sees it.
type Plane interface {
	control.Registry
	control.WorkerLeaser
	control.Elector
	control.Locker
	// TermEnded is closed when this process's term in the election ends; nil if it
	// does not lead.
	TermEnded(name string) <-chan struct{}
	// Load reads the cluster once, before Run.
	Load(ctx context.Context) error
	// Stats is a copy of the counters.
	Stats() control.Stats
	// Close gives up what Run has not.
	Close() error
}

// Process says which process a Plane is opened for.
type Process struct {
	Cluster string
	Node    im.NodeID
	Handle  *control.Handle // gets the views
	// LeaderTTL is the lease of a leader, whole seconds; 0 = that of the fixture.
	LeaderTTL time.Duration
}

// Fixture is one server and the driver under test. Periods should be short: a
// node's lease of 2 s, a worker's of 30 s renewed every half second, a leader's of
// 2 s renewed every half second, checks every half second, a dead watch found in
// 2 s. Views and leaders go into the process's Handle.
type Fixture struct {
	// Open opens the control plane of one process. The suite closes it.
	Open func(t testing.TB, p Process) Plane
	// Store reaches into the server behind the driver's back.
	Store Store
	// Stop stops the server and Start brings it back with its data, at the same
	// address. nil = the server cannot be restarted within this process.
	Stop, Start func(t testing.TB)
}

// Store reads and changes keys behind the driver's back.
type Store interface {
	// Read gives the value of a key and whether it exists.
	Read(t testing.TB, key string) (string, bool)
	// Keys lists the keys below a prefix.
	Keys(t testing.TB, prefix string) []Key
	// Write sets a key, without a lease.
	Write(t testing.TB, key, value string)
	// Delete removes a key.
	Delete(t testing.TB, key string)
	// Revoke ends the lease of a key.
	Revoke(t testing.TB, key string)
	// Compact forgets all old revisions, at the newest one.
	Compact(t testing.TB)
}

// Key is a key and the revision at which it was created.
type Key struct {
	Key     string
	Created int64
}

// limit bounds every wait of the suite.
const limit = 15 * time.Second

// process is a running Plane and what it publishes.
type process struct {
	Plane
	t      testing.TB
	node   control.Node
	handle *control.Handle
	began  time.Time
	key    string
	once   sync.Once
	cancel context.CancelFunc
	done   chan error // gets what Run returned
}

// open opens and runs the control plane of a node in a cluster of the test's
// own.
func open(t testing.TB, f Fixture, n control.Node) *process {
	t.Helper()
	return openWith(t, f, n, 0)
}

// openWith does that with a lease of leaders of its own.
func openWith(t testing.TB, f Fixture, n control.Node, leaderTTL time.Duration) *process {
	t.Helper()
	cluster := strings.ReplaceAll(t.Name(), "/", ".")
	p := &process{
		t: t, node: n, handle: &control.Handle{}, began: time.Now(), done: make(chan error, 1),
		key: "/imd/" + cluster + "/nodes/" + string(n.ID),
	}
	p.Plane = f.Open(t, Process{Cluster: cluster, Node: n.ID, Handle: p.handle, LeaderTTL: leaderTTL})
	t.Cleanup(p.stop)
	if err := p.Load(t.Context()); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	p.cancel = cancel
	go func() { p.done <- p.Run(ctx) }()
	return p
}

// announce writes the record in a state.
func (p *process) announce(s control.State) error {
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	p.node.State = s
	return p.Announce(ctx, p.node)
}

// stop ends the process in order.
func (p *process) stop() {
	p.once.Do(func() {
		start := time.Now()
		if p.cancel != nil {
			p.cancel()
			if err := <-p.done; err != nil {
				p.t.Errorf("Run: %v", err)
			}
		}
		if took := time.Since(start); took > 2*time.Second {
			p.t.Errorf("Run took %v to end, want 2s at most", took)
		}
		if err := p.Close(); err != nil {
			p.t.Errorf("Close: %v", err)
		}
	})
}

// node is the record of a test node; address may be "".
func node(id, boot, address string) control.Node {
	return control.Node{
		ID: im.NodeID(id), BootID: boot, Roles: []string{"gateway"}, State: control.Starting,
		Version: "test", Ops: address, Weight: 100, Started: time.Now().UTC().Truncate(time.Second),
	}
}

// eventually waits until cond holds.
func eventually(t testing.TB, what string, cond func() bool) {
	t.Helper()
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	end := time.NewTimer(limit)
	defer end.Stop()
	for !cond() {
		select {
		case <-tick.C:
		case <-end.C:
			t.Fatalf("waited %v in vain: %s", limit, what)
		}
	}
}

// find looks a node up in a view.
func find(v *control.View, id im.NodeID) (control.Node, bool) {
	for _, n := range v.Nodes {
		if n.ID == id {
			return n, true
		}
	}
	return control.Node{}, false
}

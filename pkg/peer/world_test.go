package peer

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"os"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"connectrpc.com/connect/v2"
	"connectrpc.com/connect/v2/connecthttp"
	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/goleak"
	"go.uber.org/zap"

	"github.com/imdhq/imd/pkg/control"
	"github.com/imdhq/imd/pkg/im"
	"github.com/imdhq/imd/pkg/peer/pipe"
	v1 "github.com/imdhq/imd/proto/gen/internalv1"
	"github.com/imdhq/imd/proto/gen/internalv1/internalv1connect"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// stateNode is a process with the state role, as far as tests need one.
type stateNode struct {
	internalv1connect.StateServiceHandler
	name     string
	set      *Set
	calls    atomic.Int64
	answered atomic.Int64
	slow     atomic.Int64 // nanoseconds before an answer
	fail     atomic.Pointer[im.Error]
	sick     atomic.Bool // its health check fails
	ln       net.Listener
	srv      *http.Server
	pipes    *pipe.Server
	done     chan struct{}
}

func (n *stateNode) work(ctx context.Context) error {
	n.calls.Add(1)
	if d := time.Duration(n.slow.Load()); d > 0 {
		select {
		case <-time.After(d):
		case <-ctx.Done():
			return im.ToConnect(ctx.Err())
		}
	}
	n.answered.Add(1)
	if e := n.fail.Load(); e != nil {
		return im.ToConnect(e)
	}
	return nil
}

func (n *stateNode) Submit(ctx context.Context, r *v1.SubmitRequest) (*v1.SubmitResponse, error) {
	if err := n.work(ctx); err != nil {
		return nil, err
	}
	return &v1.SubmitResponse{Runs: make([]*v1.RunResult, len(r.Runs))}, nil
}

// Members names who answered as the only member.
func (n *stateNode) Members(ctx context.Context, _ *v1.MembersRequest) (*v1.MembersResponse, error) {
	if err := n.work(ctx); err != nil {
		return nil, err
	}
	return &v1.MembersResponse{Members: []*v1.Member{{UserId: n.name}}}, nil
}

func (n *stateNode) Mark(ctx context.Context, r *v1.MarkRequest) (*v1.MarkResponse, error) {
	if err := n.work(ctx); err != nil {
		return nil, err
	}
	res := &v1.MarkResponse{}
	for _, m := range r.Marks {
		res.Results = append(res.Results, &v1.MarkResult{Receipt: markReceipt(m)})
	}
	return res, nil
}

func (n *stateNode) Health(context.Context, *v1.HealthRequest) (*v1.HealthResponse, error) {
	if n.sick.Load() {
		return nil, im.ToConnect(absent("test", "state"))
	}
	return &v1.HealthResponse{}, nil
}

// start opens the internal listener; addr "" = a free port.
func (n *stateNode) start(t testing.TB, addr string) {
	t.Helper()
	if addr == "" { // one that no other program's connections leave from, so that its port stays free
		addr = fmt.Sprintf("127.11.%d.1:0", os.Getpid()&255)
	}
	var err error
	if n.ln, err = net.Listen("tcp", addr); err != nil {
		t.Fatal(err)
	}
	n.set = NewSet(im.NodeID(n.name), zap.NewNop())
	n.set.ServeState(n)
	c, mux := connect.NewServer(), http.NewServeMux()
	n.set.Register(c)
	connecthttp.Mount(mux, c)
	n.pipes = pipe.NewServer(pipe.Config{Calls: c, Boot: "b-" + n.name, Max: MaxFrame})
	mux.Handle(pipe.Path, n.pipes)
	p := &http.Protocols{}
	p.SetUnencryptedHTTP2(true)
	p.SetHTTP1(true)
	n.srv, n.done = &http.Server{Handler: mux, Protocols: p}, make(chan struct{})
	go func() { defer close(n.done); _ = n.srv.Serve(n.ln) }()
}

// stop ends the process at once.
func (n *stateNode) stop() {
	_ = n.srv.Close()
	gone, cancel := context.WithCancel(context.Background())
	cancel()
	n.pipes.Shutdown(gone)
	<-n.done
}

func (n *stateNode) record() control.Node {
	addr := "127.0.0.1:1" // of a still world
	if n.ln != nil {
		addr = n.ln.Addr().String()
	}
	return control.Node{ID: im.NodeID(n.name), BootID: "b-" + n.name, Roles: []string{"state"}, State: control.Serving, Weight: 1, Internal: addr}
}

func view(nodes ...*stateNode) *control.View {
	v := &control.View{Revision: 1}
	for _, n := range nodes {
		v.Nodes = append(v.Nodes, n.record())
	}
	return v
}

// world is nodes and one process that calls them.
type world struct {
	nodes  []*stateNode
	caller *Set
}

func newWorld(t testing.TB, names ...string) *world { return newWorldOver(t, Security{}, names...) }

func newWorldOver(t testing.TB, sec Security, names ...string) *world {
	t.Helper()
	// Over a real network a machine that stands still makes nothing late; what calls
	// do in time is tested without one.
	w := &world{caller: NewSet("caller", zap.NewNop(), WithPatience(10*time.Second))}
	for _, name := range names {
		n := &stateNode{name: name}
		n.start(t, "")
		w.nodes = append(w.nodes, n)
		t.Cleanup(n.stop)
	}
	w.caller.Link(Link{BootID: "b", Security: sec, Reg: prometheus.NewRegistry()})
	w.caller.Update(view(w.nodes...))
	t.Cleanup(w.caller.Close)
	return w
}

// still runs a test in a world without a network, where time passes only while
// everybody waits: calls reach the nodes directly, and a busy machine makes
// nothing late.
func still(t *testing.T, names []string, test func(t *testing.T, w *world)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		w := &world{caller: NewSet("caller", zap.NewNop())}
		for _, name := range names {
			n := &stateNode{name: name, set: NewSet(im.NodeID(name), zap.NewNop())}
			n.set.ServeState(n)
			w.nodes = append(w.nodes, n)
		}
		w.caller.Link(Link{BootID: "b", Reg: prometheus.NewRegistry()})
		w.caller.Update(view(w.nodes...))
		w.caller.state.at = func(r *remote) internalv1connect.StateServiceHandler { return w.node(string(r.id())) }
		for _, n := range w.nodes {
			w.caller.reach(im.NodeID(n.name)).remote.peer = checker{n.set}
		}
		test(t, w)
	})
}

func (w *world) node(name string) *stateNode {
	for _, n := range w.nodes {
		if n.name == name {
			return n
		}
	}
	return nil
}

// home is the node of a conversation.
func (w *world) home(conv string) *stateNode { return w.node(string(w.caller.StateHome(conv))) }

// probing runs the probes until the test ends.
func (w *world) probing(t *testing.T) {
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() { defer close(done); w.caller.Run(ctx) }()
	t.Cleanup(func() { cancel(); <-done })
}

func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for end := time.Now().Add(10 * time.Second); !ok(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("never: " + what)
		}
	}
}

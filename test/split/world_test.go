package split

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/zap"

	"github.com/imdhq/imd/modules"
	"github.com/imdhq/imd/modules/controlplane"
	"github.com/imdhq/imd/modules/gateway"
	"github.com/imdhq/imd/modules/peers"
	"github.com/imdhq/imd/modules/storage"
	"github.com/imdhq/imd/pkg/auth"
	"github.com/imdhq/imd/pkg/control"
	"github.com/imdhq/imd/pkg/control/embedded"
	"github.com/imdhq/imd/pkg/control/etcd"
	"github.com/imdhq/imd/pkg/dedup"
	dedupmemory "github.com/imdhq/imd/pkg/dedup/memory"
	"github.com/imdhq/imd/pkg/im"
	"github.com/imdhq/imd/pkg/module"
	"github.com/imdhq/imd/pkg/peer"
	"github.com/imdhq/imd/pkg/settings"
	"github.com/imdhq/imd/pkg/store"
	"github.com/imdhq/imd/pkg/store/memory"
	"github.com/imdhq/imd/pkg/store/postgres"
	"github.com/imdhq/imd/pkg/store/sqlite"
	"github.com/imdhq/imd/pkg/testenv"
	"github.com/imdhq/imd/pkg/verify"
	imd "github.com/imdhq/imd/sdk/go"
	"github.com/imdhq/imd/sdk/go/gen/clientv1"
	"github.com/imdhq/imd/sdk/go/protocol"
)

// shared is stores that all nodes of a test use as if they stood on a machine of
// their own.
type shared struct {
	store.MessageStore
	routes store.RouteStore
}

func (shared) Close() error { return nil } // the test closes them

type sharedRoutes struct{ store.RouteStore }

func (sharedRoutes) Close() error { return nil }

// world is a cluster whose nodes are in this process but call each other over
// sockets: it needs no route store that processes share.
type world struct {
	etcd   string
	stores shared
	nodes  map[string]*part
	// dsn is a Postgres to which each node connects in place of the shared store;
	// "" = none.
	dsn   string
	grace time.Duration
	// gateway takes the place of the gateway role; nil = nothing does.
	gateway func() module.Spec

	mu    sync.Mutex // of nodes, for tests that start some anew
	boots int
}

// part is a node as it is now.
func (w *world) part(id string) *part {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.nodes[id]
}

// stopAll stops all nodes at once.
func (w *world) stopAll() {
	var wg sync.WaitGroup
	for _, p := range w.nodes {
		wg.Go(p.stop)
	}
	wg.Wait()
}

// part is one node.
type part struct {
	public, internal string
	peers            *peer.Set
	handle           *control.Handle
	node             *module.Node
	ops              *httptest.Server
	stop             func()
}

// tokens signs the tokens of all nodes.
type tokens struct{}

var key = module.TokenKey{ID: "k", Secret: []byte("a secret of at least thirty-two bytes")}

func (tokens) TokenKeys() []module.TokenKey { return []module.TokenKey{key} }
func (tokens) AdminKey() string             { return "admin" }

func (w *world) token(t *testing.T, user string) string {
	t.Helper()
	now := time.Now()
	token, err := auth.Mint(auth.Key{ID: key.ID, Secret: key.Secret},
		auth.Claims{User: im.UserID(user), Login: im.LoginID(uuid.NewString()), IssuedAt: now, Expires: now.Add(time.Hour)}, auth.DefaultConfig().Audience)
	if err != nil {
		t.Fatal(err)
	}
	return token
}

func newWorld(t *testing.T, nodes map[string][]string) *world {
	t.Helper()
	messages, err := sqlite.OpenURL(context.Background(), &url.URL{Scheme: "sqlite", Path: t.TempDir() + "/imd.db"}, zap.NewNop())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = messages.Close() })
	w := &world{etcd: startEtcd(t), stores: shared{messages, memory.New()}, nodes: map[string]*part{}, grace: 10 * time.Second}
	w.begin(t, nodes)
	return w
}

// begin starts the nodes and waits until they know each other.
func (w *world) begin(t testing.TB, nodes map[string][]string) {
	t.Helper()
	for id, roles := range nodes {
		w.nodes[id] = w.launch(t, id, roles)
	}
	w.settle(t)
}

// settle waits until all nodes serve and know each other.
func (w *world) settle(t testing.TB) {
	t.Helper()
	for id, p := range w.nodes {
		until(t, id+" serves and knows all", func() bool {
			return p.node.Record().State == control.Serving && len(p.handle.View().Nodes) == len(w.nodes) && !slices.ContainsFunc(p.handle.View().Nodes, func(n control.Node) bool { return n.State != control.Serving })
		})
	}
	time.Sleep(2 * control.Quiet) // for the rings to follow the views
}

// openMessages opens the message store of one node.
func (w *world) openMessages(ctx context.Context, _ *url.URL, log *zap.Logger) (store.MessageStore, error) {
	if w.dsn == "" {
		return w.stores, nil
	}
	u, err := url.Parse(w.dsn)
	if err != nil {
		return nil, err
	}
	return postgres.OpenURL(ctx, u, log)
}

// startEtcd starts a server that lasts as long as the test, and gives its URL.
func startEtcd(t *testing.T) string {
	t.Helper()
	addr := testenv.FreeAddress(t, "127.0.0.1")
	srv, err := embedded.Start(context.Background(), t.TempDir(), zap.NewNop(), embedded.Listen(addr))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = srv.Close() })
	return "http://" + addr
}

func until(t testing.TB, what string, ok func() bool) {
	t.Helper()
	for l := testenv.NewLimit(testenv.ReadyIn); !ok(); time.Sleep(10 * time.Millisecond) {
		if l.Over() {
			t.Fatal("never: " + what)
		}
	}
}

// pace tells how many times slower than usual the machine has been since it was made.
type pace struct {
	clock *testenv.Clock
	began time.Time
}

func newPace(t testing.TB) pace { return pace{testenv.NewClock(t), time.Now()} }

func (p pace) slowness() float64 {
	return max(float64(time.Since(p.began))/float64(max(p.clock.Now(), 1)), 1)
}

// judge judges a history. How soon sends are acknowledged counts only where the machine
// was not so much slower than usual that nothing promises it.
func (p pace) judge(h *verify.History) *verify.Report {
	o := verify.Options{}
	if p.slowness() >= 3 {
		o.Share = 0.001
	}
	return verify.Judge(h, o)
}

// launch starts a node with the roles.
func (w *world) launch(t testing.TB, id string, roles []string) *part {
	t.Helper()
	p := &part{peers: peer.NewSet(im.NodeID(id), zap.NewNop()), handle: &control.Handle{}}
	specs := modules.Specs(modules.Drivers{
		Control: w.openControl,
		Names:   func(*module.Env) peers.NamesOpener { return nil },
		Stores: storage.Drivers{
			Messages: store.Drivers[store.MessageStore]{"sqlite": w.openMessages},
			Routes: map[string]storage.RouteOpener{"memory": func(context.Context, storage.RouteOptions, *zap.Logger) (store.RouteStore, error) {
				return sharedRoutes{w.stores.routes}, nil
			}},
			Dedup: map[string]storage.DedupOpener{"memory": func(_ storage.RedisConfig, o dedup.Options, _ *zap.Logger) (dedup.Cache, error) {
				return dedupmemory.New(o), nil
			}},
		},
	})
	if w.gateway != nil {
		i := slices.IndexFunc(specs, func(s module.Spec) bool { return s.Name == "gateway" })
		specs[i] = w.gateway()
	}
	chosen, err := module.Order(specs, roles)
	if err != nil {
		t.Fatal(err)
	}
	var all []settings.Schema
	for _, s := range specs {
		all = append(all, s.Settings)
	}
	hot, err := settings.NewRegistry(module.Roles(specs), all...)
	if err != nil {
		t.Fatal(err)
	}
	public, ops, boot := http.NewServeMux(), http.NewServeMux(), fmt.Sprint("boot-", id, w.boots)
	w.boots++
	ops.HandleFunc("GET /livez", func(rw http.ResponseWriter, _ *http.Request) { rw.Header().Set(control.BootHeader, boot) })
	p.ops = httptest.NewServer(ops)
	base := module.Env{
		Node: im.NodeID(id), BootID: boot, Version: "test", DataDir: t.TempDir(), Roles: roles, Joined: true, Cluster: "imd",
		Log: zap.NewNop(), Reg: prometheus.NewRegistry(), Config: w.config,
		Settings: settings.NewLive(hot, settings.Identity{Node: id, Roles: roles}, zap.NewNop()),
		Control:  p.handle, Store: &store.Handle{}, Peers: p.peers, Ready: module.NewReady(), Keys: tokens{},
		MountPublic: public.Handle, MountOps: ops.Handle, PublicHandler: func() http.Handler { return public }, Stop: func(string) {},
	}
	p.node, err = module.New(chosen, module.Options{
		Record: control.Node{ID: im.NodeID(id), BootID: boot, Roles: roles, Version: "test", Weight: 1, Started: time.Now()},
		Grace:  w.grace, Ready: base.Ready, Log: zap.NewNop(), Changed: func(n control.Node) { p.public, p.internal = n.Public, n.Internal },
		Env: func(module.Spec) *module.Env { env := base; return &env },
	})
	if err != nil {
		t.Fatal(err)
	}
	p.node.Bound("ops", p.ops.Listener.Addr().String())
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- p.node.Run(ctx) }()
	stopped := false
	p.stop = func() {
		if stopped {
			return
		}
		stopped = true
		cancel()
		if err := <-ended; err != nil {
			t.Errorf("%s: %v", id, err)
		}
		p.ops.CloseClientConnections()
		p.ops.Close()
	}
	t.Cleanup(p.stop)
	return p
}

// config gives the sections that differ from their defaults.
func (w *world) config(_ string, into any) error {
	switch c := into.(type) {
	case *controlplane.Config:
		c.Endpoints = []string{w.etcd}
	case *gateway.Config:
		c.Listen = "127.0.0.1:0"
		c.Drain.Delay, c.Drain.MinSpread = 100*time.Millisecond, 700*time.Millisecond
	case *peers.Config:
		c.Listen = "127.0.0.1:0"
	}
	return nil
}

func (w *world) openControl(_ context.Context, o controlplane.OpenOptions) (controlplane.Plane, error) {
	opts := etcd.Options{
		Cluster: o.Config.Cluster, Node: o.Node, Publish: o.Publish, PublishLeaders: o.PublishLeaders, Settings: o.Settings,
		Drain: o.Drain, Upstream: o.Upstream, Health: etcd.NewHealth(), Log: o.Log,
	}
	client, err := etcd.Dial(etcd.Endpoints{URLs: []string{w.etcd}, Health: opts.Health}, o.Log)
	if err != nil {
		return nil, err
	}
	return etcd.New(client, opts), nil
}

func (p *part) login(t *testing.T, w *world, user, device string) *testenv.Client {
	t.Helper()
	return testenv.Login(t, "http://"+p.public, protocol.Proto, w.token(t, user), device)
}

// Two of each: messages go from one gateway over state and push to the other,
// live and in order, and kicks find their way too.
func TestTwoOfEachRole(t *testing.T) {
	w := newWorld(t, map[string][]string{
		"g1": {"gateway"}, "g2": {"gateway"}, "s1": {"state"}, "s2": {"state"}, "p1": {"push"}, "p2": {"push"}, "c1": {"scheduler"},
	})
	const pairs, each = 8, 25
	type pair struct{ from, to *testenv.Client }
	all, state, push := make([]pair, pairs), map[im.NodeID]bool{}, map[im.NodeID]bool{}
	for i := range all {
		all[i] = pair{w.nodes["g1"].login(t, w, fmt.Sprint("ann", i), "d"), w.nodes["g2"].login(t, w, fmt.Sprint("bob", i), "d")}
		conv := all[i].from.MustSend(testenv.ToUser(fmt.Sprint("bob", i), "hi")).ConversationId
		state[w.nodes["g1"].peers.StateHome(conv)] = true
		push[w.nodes["s1"].peers.PushHome(conv)] = true
		for j := range each {
			all[i].from.MustSend(testenv.To(conv, fmt.Sprint(j)))
		}
	}
	if len(state) != 2 || len(push) != 2 {
		t.Errorf("%d conversations are on %d state and %d push nodes", pairs, len(state), len(push))
	}
	for i, p := range all {
		last := int64(0)
		for n := 0; n < each+1; {
			f := p.to.Take("a deliver", func(f *clientv1.ServerFrame) bool { return f.GetDeliver() != nil })
			for _, e := range f.GetDeliver().GetEntries() {
				if e.Seq <= last {
					continue // delivered again: nothing is acknowledged here
				}
				if e.PrevSeq != last {
					t.Errorf("pair %d: %d follows %d live, but %d is before it", i, e.Seq, last, e.PrevSeq)
				}
				last = e.Seq
				n++
			}
		}
	}
}

// A session that is replaced on another gateway ends there; what is sent while a
// state node and a push node leave is stored once and in order; and clients of a
// gateway that leaves go on at the other one.
func TestSessionsAndNodesMove(t *testing.T) {
	w := newWorld(t, map[string][]string{
		"g1": {"gateway"}, "g2": {"gateway"}, "s1": {"state"}, "s2": {"state"}, "p1": {"push"}, "p2": {"push"},
	})
	token := w.token(t, "eve")
	old := testenv.Login(t, "http://"+w.nodes["g1"].public, protocol.Proto, token, "d")
	testenv.Login(t, "http://"+w.nodes["g2"].public, protocol.Proto, token, "d")
	if bye := old.Take("a bye", func(f *clientv1.ServerFrame) bool { return f.GetBye() != nil }).GetBye(); bye.Reason != "superseded" {
		t.Errorf("the session on the other gateway ended with %v", bye)
	}
	const senders, each = 6, 120
	done := make(chan struct{}, senders)
	convs := make([]string, senders)
	for i := range senders {
		c := w.nodes["g1"].login(t, w, fmt.Sprint("cid", i), "d")
		convs[i] = c.MustSend(testenv.ToUser(fmt.Sprint("dan", i), "0")).ConversationId
		go func() {
			for j := 1; j < each; j++ {
				c.SendAll([]*clientv1.Send{testenv.To(convs[i], fmt.Sprint(j))})
				time.Sleep(10 * time.Millisecond) // for the load to last as long as the nodes take to leave
			}
			done <- struct{}{}
		}()
	}
	w.nodes["s2"].stop()
	w.nodes["p2"].stop()
	for range senders {
		<-done
	}
	for i, conv := range convs {
		entries, _ := w.nodes["g2"].login(t, w, fmt.Sprint("dan", i), "d").Walk(conv, 500, false)
		if len(entries) != each {
			t.Errorf("conversation %d has %d of %d messages", i, len(entries), each)
			continue
		}
		for j, e := range entries {
			if e.Content.GetText() != fmt.Sprint(j) {
				t.Errorf("conversation %d: message %d is %q", i, j, e.Content.GetText())
			}
		}
	}
	clientsMove(t, w)
}

// clientsMove stops a gateway while programs built on the SDK write to each other
// through it: all of them move to the other one without having been without a
// connection, and everything is shown once and in order.
func clientsMove(t *testing.T, w *world) {
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	var away atomic.Bool // the balancer knows that g1 stops
	transport := &http.Transport{DisableKeepAlives: true, DialContext: func(ctx context.Context, network, _ string) (net.Conn, error) {
		to := w.nodes["g1"]
		if away.Load() {
			to = w.nodes["g2"]
		}
		return new(net.Dialer).DialContext(ctx, network, to.public)
	}}
	connect := func(user string) *imd.Client {
		c, err := imd.Connect(ctx, "ws://cluster", imd.Options{
			Token: w.token(t, user), Device: "d", HTTPClient: &http.Client{Transport: transport},
			OnState: func(s imd.StateChange) {
				if s.To == imd.Waiting {
					t.Errorf("%s has no connection: %+v", user, s)
				}
			},
		})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = c.Close() })
		return c
	}
	const pairs = 12
	left, sent := make(chan struct{}), make(chan int, 2*pairs)
	var wg sync.WaitGroup
	for i := range pairs {
		from, to := connect(fmt.Sprint("from", i)), connect(fmt.Sprint("to", i))
		wg.Go(func() { // writes until the gateway has left, and a little more
			n := 0
			for more := 5; more > 0; n++ {
				from.SendTo(ctx, fmt.Sprint("to", i), imd.Text(fmt.Sprint(n)))
				select {
				case <-left:
					more--
				case <-time.After(20 * time.Millisecond):
				}
			}
			end := from.SendTo(ctx, fmt.Sprint("to", i), imd.Text("end"))
			if _, err := end.Acked(ctx); err != nil {
				t.Errorf("pair %d: %v", i, err)
			}
			sent <- n
		})
		events := to.Conversation(protocol.DirectID(fmt.Sprint("from", i), fmt.Sprint("to", i))).Events(ctx, imd.After(0))
		wg.Go(func() {
			n := 0
			for ev, err := range events {
				e, ok := ev.(*imd.EntryEvent)
				switch {
				case err != nil:
					t.Errorf("pair %d: %v", i, err)
					return
				case ok && e.Text() == "end":
					sent <- -n
					return
				case ok:
					if e.Text() != fmt.Sprint(n) {
						t.Errorf("pair %d: shown %q, want %d", i, e.Text(), n)
					}
					n++
				}
			}
		})
	}
	away.Store(true)
	w.nodes["g1"].stop()
	close(left)
	wg.Wait()
	unshown := 0
	for range len(sent) {
		unshown += <-sent
	}
	if unshown != 0 {
		t.Errorf("%d more messages were sent than shown", unshown)
	}
}

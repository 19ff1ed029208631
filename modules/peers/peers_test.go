package peers

import (
	"context"
	"errors"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"go.uber.org/goleak"
	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"

	"github.com/imdhq/imd/pkg/control"
	"github.com/imdhq/imd/pkg/im"
	"github.com/imdhq/imd/pkg/module"
	"github.com/imdhq/imd/pkg/peer"
	"github.com/imdhq/imd/pkg/peer/seal"
	"github.com/imdhq/imd/pkg/testenv"
	v1 "github.com/imdhq/imd/proto/gen/internalv1"
	"github.com/imdhq/imd/proto/gen/internalv1/internalv1connect"
	"github.com/imdhq/imd/sdk/go/gen/clientv1"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// pusher is a push role that counts what it is handed.
type pusher struct {
	internalv1connect.PushServiceHandler
	items int
}

func (p *pusher) Fanout(_ context.Context, r *v1.FanoutRequest) (*v1.FanoutResponse, error) {
	p.items += len(r.Items)
	return &v1.FanoutResponse{}, nil
}

// node is a process with the module and nothing else.
type node struct {
	*Peers
	set    *peer.Set
	handle *control.Handle
	addr   string
	stop   func() error
}

// launch starts a node; secret is that of its control plane.
func launch(t *testing.T, id, secret string, cfg Config, change func(*Deps)) *node {
	t.Helper()
	n := &node{set: peer.NewSet(im.NodeID(id), zap.NewNop(), peer.WithPatience(testenv.Patience)), handle: &control.Handle{}}
	n.handle.SetSecret(func() string { return secret })
	if cfg.Listen == "" {
		cfg.Listen = "127.0.0.1:0"
	}
	d := Deps{
		Log: zap.NewNop(), Reg: prometheus.NewRegistry(), BootID: "boot-" + id, Node: im.NodeID(id), Roles: []string{"push"}, Set: n.set, Control: n.handle,
		Announce: func(_, addr string) { n.addr = addr }, Cluster: "imd",
	}
	if change != nil {
		change(&d)
	}
	n.set.ServePush(&pusher{})
	n.Peers = New(cfg, d)
	if err := n.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	n.stop = testenv.Run(t, n)
	return n
}

func (n *node) record() control.Node {
	return control.Node{ID: n.Node, BootID: n.BootID, Roles: n.Roles, State: control.Serving, Weight: 1, Internal: n.addr}
}

// call makes one call from a process without roles to n.
func call(t *testing.T, n *node, secret string, cfg Config) error {
	t.Helper()
	caller := launch(t, "caller", secret, cfg, func(d *Deps) { d.Roles = []string{"state"} })
	caller.set.Update(&control.View{Nodes: []control.Node{n.record()}})
	_, err := caller.set.Push().Fanout(t.Context(), &v1.FanoutRequest{Items: []*v1.FanoutItem{{}}})
	return errors.Join(err, caller.stop())
}

const secretA, secretB = "the secret that a cluster shares: A", "the secret that a cluster shares: B"

func TestOnlyNodesOfTheClusterAreAnswered(t *testing.T) {
	n := launch(t, "n1", secretA, DefaultConfig(), nil)
	if err := call(t, n, secretA, DefaultConfig()); err != nil {
		t.Error(err)
	}
	if err := call(t, n, secretB, DefaultConfig()); !distrusted(err, "not made with a key of this cluster") {
		t.Errorf("another cluster: %v", err)
	}
	other := *n // another process has come to the address since
	deps := n.Deps
	deps.BootID = "boot-before"
	other.Peers = &Peers{Deps: deps}
	if err := call(t, &other, secretA, DefaultConfig()); !distrusted(err, "another process is at this address") {
		t.Errorf("another process: %v", err)
	}
	for _, reason := range []string{"key", "process"} {
		counter := n.refused.WithLabelValues(reason)
		for until := time.Now().Add(5 * time.Second); testutil.ToFloat64(counter) == 0 && time.Now().Before(until); {
			time.Sleep(time.Millisecond) // a caller is told before it is counted
		}
		if got := testutil.ToFloat64(counter); got != 1 {
			t.Errorf("refused for %s: %v", reason, got)
		}
	}
	if err := call(t, n, "", DefaultConfig()); im.ReasonOf(err) != clientv1.Reason_REASON_UNAVAILABLE {
		t.Errorf("before the secret is known: %v", err)
	}
}

// distrusted reports whether err is what callers get of nodes that do not believe
// each other: a reason to try again, whose cause has the words.
func distrusted(err error, words string) bool {
	var cause seal.ErrPeer
	return im.ReasonOf(err) == clientv1.Reason_REASON_UNAVAILABLE && errors.As(err, &cause) && strings.Contains(cause.Error(), words)
}

// Who is not let in is told so, and who asks for readiness too.
func TestAWrongKeyIsNamed(t *testing.T) {
	n := launch(t, "s1", secretA, DefaultConfig(), func(d *Deps) { d.Roles = []string{"state"} })
	g := launch(t, "g1", secretB, DefaultConfig(), func(d *Deps) { d.Roles = []string{"gateway"} })
	g.set.Update(&control.View{Nodes: []control.Node{n.record()}})
	for end := time.Now().Add(testenv.Patience); ; time.Sleep(10 * time.Millisecond) { // probes run every 50 ms
		s := g.ready(t.Context())
		if !s.Ready && strings.Contains(s.Reason, "s1: the node refuses this one: the proof is not made with a key of this cluster") {
			return
		}
		if time.Now().After(end) {
			t.Fatalf("%+v", s)
		}
	}
}

// A stranger cannot take all connections.
func TestConnectionsAreBounded(t *testing.T) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	l := limit(ln, newRefused(prometheus.NewRegistry())).(*limited)
	defer l.Close()
	l.from["127.0.0.1"], l.open = maxFromAddress-1, maxFromAddress-1
	accepted := make(chan net.Conn)
	go func() {
		defer close(accepted)
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			accepted <- c
		}
	}()
	dial := func() net.Conn {
		c, err := net.Dial("tcp", ln.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = c.Close() })
		return c
	}
	dial()
	first := <-accepted
	second := dial()
	_ = second.SetReadDeadline(time.Now().Add(testenv.Patience))
	if _, err := second.Read(make([]byte, 1)); err == nil || isTimeout(err) {
		t.Errorf("one too many is not closed: %v", err)
	}
	_ = first.Close()
	_ = first.Close()
	dial()
	_ = (<-accepted).Close()
	_ = l.Close()
	if <-accepted != nil || l.open != maxFromAddress-1 || l.from["127.0.0.1"] != maxFromAddress-1 {
		t.Errorf("%d are counted, %v", l.open, l.from)
	}
	if got := testutil.ToFloat64(l.refused.WithLabelValues("connections")); got != 1 {
		t.Errorf("%v were refused", got)
	}
}

func isTimeout(err error) bool {
	var e net.Error
	return errors.As(err, &e) && e.Timeout()
}

func keyFile(t *testing.T, keys ...string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "key")
	if err := os.WriteFile(path, []byte(strings.Join(keys, "\n")), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// A key is changed without a stop: for a while both are good.
func TestKeysAreChangedInSteps(t *testing.T) {
	with := func(keys ...string) Config {
		c := DefaultConfig()
		c.KeyFile = keyFile(t, keys...)
		return c
	}
	n := launch(t, "n1", "", with(secretA, secretB), nil)
	for name, cfg := range map[string]Config{"old": with(secretA), "new": with(secretB, secretA), "only new": with(secretB)} {
		if err := call(t, n, "", cfg); err != nil {
			t.Errorf("%s key: %v", name, err)
		}
	}
	bad := with("short")
	p := New(Config{Listen: "127.0.0.1:0", KeyFile: bad.KeyFile}, Deps{Log: zap.NewNop(), Control: &control.Handle{}})
	var wrong *module.ConfigError
	if err := p.Start(t.Context()); !errors.As(err, &wrong) {
		t.Errorf("a short key: %v", err)
	}
}

func withTLS(f seal.Files) Config {
	c := DefaultConfig()
	c.TLS = TLSConfig{CAFile: f.CA, CertFile: f.Cert, KeyFile: f.Key}
	return c
}

// With certificates the caller's roles decide, and both sides must be of the
// cluster.
func TestCertificates(t *testing.T) {
	ca := testenv.NewAuthority(t)
	n := launch(t, "n1", "", withTLS(ca.Issue(t, "imd", "push")), nil)
	if err := call(t, n, "", withTLS(ca.Issue(t, "imd", "state"))); err != nil {
		t.Errorf("state calls push: %v", err)
	}
	both := withTLS(ca.Issue(t, "imd", "state", "gateway"))
	if err := call(t, n, "", both); err != nil {
		t.Errorf("a node with two roles calls push: %v", err)
	}
	if err := call(t, n, "", withTLS(testenv.NewAuthority(t).Issue(t, "imd", "state"))); im.ReasonOf(err) != clientv1.Reason_REASON_UNAVAILABLE {
		t.Errorf("another authority: %v", err)
	}
	if err := call(t, n, secretA, DefaultConfig()); im.ReasonOf(err) != clientv1.Reason_REASON_UNAVAILABLE {
		t.Errorf("in the clear: %v", err)
	}
	caller := launch(t, "g", "", withTLS(ca.Issue(t, "imd", "gateway")), func(d *Deps) { d.Roles = []string{"gateway"} })
	caller.set.Update(&control.View{Nodes: []control.Node{n.record()}})
	if _, err := caller.set.Push().Fanout(t.Context(), &v1.FanoutRequest{}); !distrusted(err, "may not call this") {
		t.Errorf("a gateway calls push: %v", err)
	}
	p := New(withTLS(ca.Issue(t, "imd", "push")), Deps{Log: zap.NewNop(), Roles: []string{"push", "gateway"}, Cluster: "imd", Control: &control.Handle{}})
	p.cfg.Listen = "127.0.0.1:0"
	if err := p.Start(t.Context()); err == nil || !strings.Contains(err.Error(), "does not name the role gateway") {
		t.Errorf("a certificate without a role of the node: %v", err)
	}
}

// Calls in the clear go to this machine only.
func TestOtherMachinesAreNotCalledInTheClear(t *testing.T) {
	n := launch(t, "n1", secretA, DefaultConfig(), nil)
	far := control.Node{ID: "far", BootID: "b", Roles: []string{"state"}, State: control.Serving, Internal: "192.0.2.1:8422"}
	n.set.Update(&control.View{Nodes: []control.Node{far}})
	var err error
	took := testenv.Took(func() { _, err = n.set.State().History(t.Context(), &v1.HistoryRequest{}) })
	if im.ReasonOf(err) != clientv1.Reason_REASON_UNAVAILABLE || took > 100*time.Millisecond {
		t.Errorf("after %v: %v", took, err)
	}
}

// A node with all roles opens nothing.
func TestWholeNodesOpenNothing(t *testing.T) {
	p := New(DefaultConfig(), Deps{Log: zap.NewNop(), Reg: prometheus.NewRegistry(), Set: peer.NewSet("n", zap.NewNop()), Control: &control.Handle{}})
	if err := p.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	if s := p.ready(t.Context()); !s.Ready {
		t.Errorf("%+v", s)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := errors.Join(p.Run(ctx), p.Close()); err != nil {
		t.Error(err)
	}
}

func TestAGatewayWaitsForState(t *testing.T) {
	n := launch(t, "n1", secretA, DefaultConfig(), func(d *Deps) { d.Roles = []string{"gateway"} })
	if s := n.ready(t.Context()); s.Ready {
		t.Errorf("alone: %+v", s)
	}
	n.set.Update(&control.View{Nodes: []control.Node{{ID: "n1", Roles: []string{"state"}, State: control.Serving}}})
	if s := n.ready(t.Context()); !s.Ready || s.Degraded {
		t.Errorf("with state: %+v", s)
	}
	n.set.Update(&control.View{})
	if s := n.ready(t.Context()); !s.Ready || !s.Degraded {
		t.Errorf("without it again: %+v", s)
	}
}

// Of two nodes that keep something for themselves, a newcomer is refused, and of
// two that started together the younger one goes.
func TestOneOwner(t *testing.T) {
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.Header().Set(control.BootHeader, "boot-other") }))
	defer srv.Close()
	began := time.Unix(1_700_000_000, 0)
	other := control.Node{ID: "other", BootID: "boot-other", Roles: []string{"state"}, State: control.Serving, Internal: "127.0.0.1:1", Ops: srv.Listener.Addr().String(), Started: began}
	for name, tt := range map[string]struct {
		change func(*control.Node)
		began  time.Time // of this node; zero = it starts
		fine   bool
	}{
		"newcomer":         {func(*control.Node) {}, time.Time{}, false},
		"younger":          {func(*control.Node) {}, began.Add(time.Second), false},
		"older":            {func(*control.Node) {}, began.Add(-time.Second), true},
		"same moment":      {func(n *control.Node) { n.ID = "a" }, began, false},
		"another role":     {func(n *control.Node) { n.Roles = []string{"push"} }, time.Time{}, true},
		"draining":         {func(n *control.Node) { n.State = control.Draining }, time.Time{}, true},
		"by itself":        {func(n *control.Node) { n.Internal = "" }, time.Time{}, true},
		"another process":  {func(n *control.Node) { n.BootID = "dead" }, time.Time{}, true},
		"nobody there":     {func(n *control.Node) { n.Ops = "127.0.0.1:1" }, time.Time{}, true},
		"this node itself": {func(n *control.Node) { n.ID = "n1" }, time.Time{}, true},
	} {
		p := New(DefaultConfig(), Deps{Log: zap.NewNop(), Node: "n1", Roles: []string{"state", "push"}, Unshared: map[string]string{"state": "messages in SQLite"}})
		n := other
		tt.change(&n)
		err := p.alone(t.Context(), &control.View{Nodes: []control.Node{n}}, tt.began)
		var wrong *module.ConfigError
		if (err == nil) != tt.fine || err != nil && !errors.As(err, &wrong) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// A node with all roles tells of each other node like it once: what they keep is apart.
func TestNodesThatStandByThemselvesAreToldOf(t *testing.T) {
	core, logs := observer.New(zap.WarnLevel)
	p := New(DefaultConfig(), Deps{Log: zap.New(core), Node: "n1", Roles: []string{"state", "push", "gateway"},
		Unshared: map[string]string{"push": "routes in memory", "gateway": "routes in memory"}})
	all := []string{"state", "push", "gateway"}
	told := map[im.NodeID]bool{}
	for range 2 {
		p.tellOfOthers(&control.View{Nodes: []control.Node{
			{ID: "n1", Roles: all, State: control.Serving},
			{ID: "n2", Roles: all, State: control.Serving},
			{ID: "n3", Roles: []string{"state"}, State: control.Serving},
			{ID: "n4", Roles: all, State: control.Draining},
		}}, told)
	}
	if logs.Len() != 1 || logs.All()[0].ContextMap()["peer"] != "n2" {
		t.Errorf("told: %v", logs.All())
	}
}

func TestEveryPickerSettingNamesAMethod(t *testing.T) {
	if len(declared().Keys) != len(pickers)+2 || len(pickers) < 10 {
		t.Errorf("%d settings of %d methods", len(declared().Keys), len(pickers))
	}
	if _, ok := pickers["push.Fanout"]; ok {
		t.Error("the picker of the fan-out may be changed")
	}
}

package controlplane_test

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/goleak"
	"go.uber.org/zap"

	"github.com/imdhq/imd/modules/controlplane"
	"github.com/imdhq/imd/pkg/config"
	"github.com/imdhq/imd/pkg/control"
	"github.com/imdhq/imd/pkg/control/embedded"
	"github.com/imdhq/imd/pkg/control/etcd"
	"github.com/imdhq/imd/pkg/im"
	"github.com/imdhq/imd/pkg/module"
	"github.com/imdhq/imd/pkg/store"
	"github.com/imdhq/imd/pkg/testenv"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// open is the composition of the drivers, as the command makes it.
func open(ctx context.Context, o controlplane.OpenOptions) (controlplane.Plane, error) {
	opts := etcd.Options{
		Cluster: o.Config.Cluster, Node: o.Node, Publish: o.Publish, PublishLeaders: o.PublishLeaders, Settings: o.Settings,
		Drain: o.Drain, Upstream: o.Upstream, Log: o.Log, Patience: time.Second,
		TTL: 2 * time.Second, Renew: 300 * time.Millisecond, Progress: 200 * time.Millisecond, Stale: time.Second,
	}
	if len(o.Config.Endpoints) == 0 {
		s, err := embedded.Start(ctx, filepath.Join(o.DataDir, "etcd"), o.Log)
		if err != nil {
			return nil, err
		}
		opts.Close, opts.Failed = s.Close, s.Failed()
		return etcd.New(s.Client(), opts), nil
	}
	opts.LastKnown, opts.Health = filepath.Join(o.DataDir, "nodes.json"), etcd.NewHealth()
	c, err := etcd.Dial(etcd.Endpoints{URLs: o.Config.Endpoints, Health: opts.Health}, o.Log)
	if err != nil {
		return nil, err
	}
	return etcd.New(c, opts), nil
}

// running is a started module and the node around it.
type running struct {
	module.Module
	module.Announcer
	handle *control.Handle
	ready  *module.Ready
	reg    *prometheus.Registry
	ops    *http.ServeMux
	at     string      // where its ops listener is
	told   chan string // why it was told to stop
	stop   func() error
}

func start(t *testing.T, id im.NodeID, set func(*controlplane.Config)) *running {
	t.Helper()
	return startIn(t, id, t.TempDir(), set)
}

// startIn starts the module on a data folder.
func startIn(t *testing.T, id im.NodeID, dir string, set func(*controlplane.Config)) *running {
	t.Helper()
	mux := http.NewServeMux()
	srv := httptest.NewServer(mux)
	t.Cleanup(srv.Close)
	r := &running{handle: &control.Handle{}, ready: module.NewReady(), reg: prometheus.NewPedanticRegistry(), ops: mux, at: srv.Listener.Addr().String(), told: make(chan string, 2)}
	m, err := controlplane.Spec(open).New(&module.Env{
		Node: id, DataDir: dir, Log: zap.NewNop(), Reg: r.reg, Control: r.handle, Ready: r.ready, BootID: "boot",
		Config:   func(_ string, into any) error { set(into.(*controlplane.Config)); return nil },
		MountOps: mux.Handle, Stop: func(reason string) { r.told <- reason },
	})
	if err != nil {
		t.Fatal(err)
	}
	r.Module, r.Announcer = m, m.(module.Announcer)
	if err := m.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	r.stop = testenv.Run(t, m)
	return r
}

func (r *running) serve(t *testing.T, n control.Node) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
	defer cancel()
	if err := r.Announce(ctx, n); err != nil {
		t.Fatal(err)
	}
}

// status is the readiness.
func (r *running) status(t *testing.T) module.Status {
	t.Helper()
	all, _ := r.ready.Check(t.Context())
	if len(all) != 1 {
		t.Fatalf("checks: %+v", all)
	}
	return all[0]
}

// metrics are all samples as text.
func (r *running) metrics(t *testing.T) string {
	t.Helper()
	fams, err := r.reg.Gather()
	if err != nil {
		t.Fatal(err)
	}
	var b strings.Builder
	for _, f := range fams {
		for _, m := range f.Metric {
			fmt.Fprintf(&b, "%s%v %v\n", f.GetName(), m.GetLabel(), m.GetCounter().GetValue()+m.GetGauge().GetValue())
		}
	}
	return b.String()
}

func eventually(t *testing.T, what string, cond func() bool) {
	t.Helper()
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	end := time.NewTimer(15 * time.Second)
	defer end.Stop()
	for !cond() {
		select {
		case <-tick.C:
		case <-end.C:
			t.Fatalf("waited in vain: %s", what)
		}
	}
}

func TestEmbedded(t *testing.T) {
	r := start(t, "n1", func(c *controlplane.Config) { c.Zone, c.Weight = "rack1", 7 })
	r.serve(t, control.Node{ID: "n1", BootID: "b1", Roles: []string{"state", "push"}, State: control.Serving, Version: "v9", Ops: "127.0.0.1:1"})
	eventually(t, "the node sees itself", func() bool { return len(r.handle.View().With("state")) == 1 })
	if n := r.handle.View().Nodes[0]; n.Zone != "rack1" || n.Weight != 7 {
		t.Errorf("the record is %+v", n)
	}
	if s := r.status(t); !s.Ready || s.Degraded {
		t.Errorf("ready is %+v", s)
	}
	w, err := r.handle.Workers().Lease(t.Context(), func(context.Context, int) (bool, error) { return true, nil })
	if err != nil || !w.Valid() {
		t.Errorf("a worker number: %v", err)
	}
	text := r.metrics(t)
	for _, want := range []string{
		"imd_etcd_lease_lost_total[] 0", "imd_etcd_registered[] 1", "imd_discovery_drift_total[] 0", "imd_etcd_revision_lag[] ",
		`imd_etcd_watch_resyncs_total[name:"cause" value:"compacted"] 0`, `imd_discovery_nodes[name:"state" value:"serving"] 1`,
		`imd_node_info[name:"node" value:"n1" name:"roles" value:"state,push" name:"version" value:"v9" name:"zone" value:"rack1"] 1`,
	} {
		if !strings.Contains(strings.ReplaceAll(text, "  ", " "), want) {
			t.Errorf("the metrics lack %s:\n%s", want, text)
		}
	}
	if err := r.stop(); err != nil {
		t.Error(err)
	}
	if s := r.status(t); s.Ready {
		t.Error("ready although closed")
	}
	if err := r.Announce(t.Context(), control.Node{}); err == nil {
		t.Error("a closed control plane takes records")
	}
	_ = r.metrics(t)
}

// A standby waits at the ops listener for the end of a term.
func TestElection(t *testing.T) {
	r := start(t, "n1", func(*controlplane.Config) {})
	r.serve(t, control.Node{ID: "n1", BootID: "boot", Roles: []string{"scheduler"}, State: control.Serving})
	ask := func() *httptest.ResponseRecorder {
		w := httptest.NewRecorder()
		r.ops.ServeHTTP(w, httptest.NewRequestWithContext(t.Context(), http.MethodGet, control.AwaitPath+"job", nil))
		return w
	}
	if w := ask(); w.Code != http.StatusNotFound || w.Header().Get(control.BootHeader) != "boot" {
		t.Errorf("before anybody leads: %d %v", w.Code, w.Header())
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() {
		done <- r.handle.Elector().Campaign(ctx, control.Candidacy{Name: "job",
			Fences: func() (store.Fences, error) { return oneFence{}, nil },
			Lead:   func(ctx context.Context, _ control.Term) error { <-ctx.Done(); return nil }})
	}()
	eventually(t, "the node leads", func() bool { l, ok := r.handle.Leaders().Of("job"); return ok && l.Token == 1 })
	answer := make(chan *httptest.ResponseRecorder, 1)
	go func() { answer <- ask() }()
	for _, want := range []string{`imd_election_leading[name:"election" value:"job"] 1`, `imd_election_token[name:"election" value:"job"] 1`} {
		if m := strings.ReplaceAll(r.metrics(t), "  ", " "); !strings.Contains(m, want) { // protobuf varies its spaces
			t.Errorf("no %s in\n%s", want, m)
		}
	}
	lock, err := r.handle.Locker().Lock(t.Context(), control.LockRequest{Name: "x"})
	if err != nil {
		t.Fatal(err)
	}
	if m := strings.ReplaceAll(r.metrics(t), "  ", " "); !strings.Contains(m, `imd_locks[name:"state" value:"held"] 1`) {
		t.Errorf("no lock in\n%s", m)
	}
	if err := lock.Unlock(t.Context()); err != nil {
		t.Error(err)
	}
	cancel()
	if err := <-done; err != nil {
		t.Error(err)
	}
	if w := <-answer; w.Code != http.StatusNoContent && w.Code != http.StatusNotFound {
		t.Errorf("at the end of the term: %d", w.Code)
	}
	eventually(t, "it is seen to have left", func() bool { l, ok := r.handle.Leaders().Of("job"); return ok && l.Gone })
}

// oneFence gives the first token.
type oneFence struct{ store.Fences }

func (oneFence) ClaimFence(_ context.Context, c store.FenceClaim) (store.Fence, error) {
	return store.Fence{Name: c.Name, Holder: c.Holder, Token: 1}, nil
}

func TestEndpoints(t *testing.T) {
	address := testenv.FreeAddress(t, "127.0.0.1")
	dir := t.TempDir()
	serve := func() *embedded.Server {
		s, err := embedded.Start(context.Background(), dir, zap.NewNop(), embedded.Listen(address))
		if err != nil {
			t.Fatal(err)
		}
		return s
	}
	s := serve()
	t.Cleanup(func() { s.Close() })
	external := func(c *controlplane.Config) { c.Endpoints = []string{"http://" + address} }
	a, b := start(t, "a", external), start(t, "b", external)
	a.serve(t, control.Node{ID: "a", BootID: "a1", Roles: []string{"state"}, State: control.Serving})
	b.serve(t, control.Node{ID: "b", BootID: "b1", Roles: []string{"state"}, State: control.Serving})
	eventually(t, "both see both", func() bool {
		return len(a.handle.View().With("state")) == 2 && len(b.handle.View().With("state")) == 2
	})
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	eventually(t, "a is degraded", func() bool { st := a.status(t); return st.Ready && st.Degraded })
	s = serve()
	eventually(t, "a is fine again", func() bool { st := a.status(t); return st.Ready && !st.Degraded })
	if err := b.stop(); err != nil {
		t.Error(err)
	}
	eventually(t, "b is gone", func() bool { return len(a.handle.View().With("state")) == 1 })
}

// A node whose endpoints are dead starts, says so, and becomes ready within
// seconds of their return; the next start without them begins with what it knew.
func TestStartWithoutEtcd(t *testing.T) {
	address := testenv.FreeAddress(t, "127.0.0.1")
	dir, etcdDir := t.TempDir(), t.TempDir()
	external := func(c *controlplane.Config) { c.Endpoints = []string{"http://" + address} }
	a := startIn(t, "a", dir, external)
	s := a.status(t)
	if s.Ready || !strings.Contains(s.Reason, address) || !strings.Contains(s.Reason, "no nodes are known") {
		t.Errorf("without etcd: %+v", s)
	}
	srv, err := embedded.Start(context.Background(), etcdDir, zap.NewNop(), embedded.Listen(address))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { srv.Close() })
	took := testenv.Took(func() { eventually(t, "the node is ready", func() bool { return a.status(t).Ready }) })
	if took > 5*time.Second {
		t.Errorf("ready %v after the return of etcd", took)
	}
	a.serve(t, control.Node{ID: "a", BootID: "a1", Roles: []string{"state"}, State: control.Serving})
	b := start(t, "b", external)
	b.serve(t, control.Node{ID: "b", BootID: "b1", Roles: []string{"state"}, State: control.Serving})
	eventually(t, "a sees b", func() bool { _, ok := a.handle.View().Node("b"); return ok })
	if err := a.stop(); err != nil {
		t.Fatal(err)
	}
	if err := srv.Close(); err != nil {
		t.Fatal(err)
	}
	a = startIn(t, "a", dir, external)
	if s := a.status(t); !s.Ready || !s.Degraded || !strings.Contains(s.Reason, "known before") {
		t.Errorf("with a list from before: %+v", s)
	}
	if n, ok := a.handle.View().Node("b"); !ok || n.State != control.Serving || !a.handle.View().Stale {
		t.Errorf("b is not in %+v", a.handle.View())
	}
	if srv, err = embedded.Start(context.Background(), etcdDir, zap.NewNop(), embedded.Listen(address)); err != nil {
		t.Fatal(err)
	}
	eventually(t, "a is fine again", func() bool { s := a.status(t); return s.Ready && !s.Degraded })
}

// Orders reach any node through the registry: a cordoned one is not ready, one
// that is told to stop does, and only the process that was meant.
func TestOrders(t *testing.T) {
	r := start(t, "n1", func(*controlplane.Config) {})
	r.serve(t, control.Node{ID: "n1", BootID: "b1", Roles: []string{"state"}, State: control.Serving})
	op := r.handle.Operator()
	if err := op.Cordon(t.Context(), "n1", "broken disk"); err != nil {
		t.Fatal(err)
	}
	eventually(t, "n1 is not ready", func() bool { s := r.status(t); return !s.Ready && strings.Contains(s.Reason, "broken disk") })
	if n := r.handle.View().With("state"); len(n) != 0 {
		t.Errorf("new work goes to %+v", n)
	}
	if err := op.Uncordon(t.Context(), "n1"); err != nil {
		t.Fatal(err)
	}
	eventually(t, "n1 is ready again", func() bool { return r.status(t).Ready && len(r.handle.View().With("state")) == 1 })
	if l := op.Leases(t.Context())["n1"]; l.TTL != 2*time.Second || l.Left > l.TTL {
		t.Errorf("its lease has %+v", l)
	}
	for _, boot := range []string{"b0", "b1"} {
		if err := op.Drain(t.Context(), "n1", boot, "for "+boot); err != nil {
			t.Fatal(err)
		}
	}
	if got := <-r.told; got != "for b1" {
		t.Errorf("told to stop %s", got)
	}
}

// A node that gets the records from another one sees what a watcher sees, goes
// to etcd when that one is gone, and comes back to the next one.
func TestRelayed(t *testing.T) {
	address := testenv.FreeAddress(t, "127.0.0.1")
	s, err := embedded.Start(context.Background(), t.TempDir(), zap.NewNop(), embedded.Listen(address))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	direct := func(c *controlplane.Config) { c.Endpoints = []string{"http://" + address} }
	relayed := func(c *controlplane.Config) { direct(c); c.Watch = controlplane.Relayed }
	serve := func(r *running, id string) {
		r.serve(t, control.Node{ID: im.NodeID(id), BootID: id + "1", Roles: []string{"state"}, State: control.Serving, Ops: r.at})
	}
	a := start(t, "a", direct)
	serve(a, "a")
	b := start(t, "b", relayed)
	serve(b, "b")
	eventually(t, "b sees both", func() bool { return len(b.handle.View().With("state")) == 2 })
	if n, _ := b.handle.View().Node("a"); !n.Relay {
		t.Error("a does not say that it hands the registry on")
	}
	c := start(t, "c", direct)
	serve(c, "c")
	eventually(t, "b learns of c", func() bool { _, ok := b.handle.View().Node("c"); return ok })
	// Without the secret nobody is answered.
	res, err := http.Post("http://"+a.at+"/imd.internal.v1.RelayService/Changes", "application/json", strings.NewReader("{}"))
	if err != nil {
		t.Fatal(err)
	}
	res.Body.Close()
	if res.StatusCode != http.StatusUnauthorized {
		t.Errorf("a stranger is answered with %d", res.StatusCode)
	}
	for _, r := range []*running{a, c} {
		if err := r.stop(); err != nil {
			t.Fatal(err)
		}
	}
	d := start(t, "d", relayed) // nobody hands the registry on now
	serve(d, "d")
	eventually(t, "b and d find each other in etcd", func() bool { _, ok := b.handle.View().Node("d"); return ok })
	if b.handle.View().Stale || d.handle.View().Stale {
		t.Error("stale although etcd answers")
	}
}

func TestValidate(t *testing.T) {
	tests := []struct {
		name string
		set  func(*controlplane.Config)
		want string // part of the error; "" = good
	}{
		{name: "the defaults are good", set: func(*controlplane.Config) {}},
		{name: "endpoints with TLS are good", set: func(c *controlplane.Config) {
			c.Endpoints, c.TLS.CAFile = []string{"https://etcd1:2379", "https://etcd2:2379/"}, "ca.pem"
		}},
		{name: "an endpoint without a scheme", set: func(c *controlplane.Config) { c.Endpoints = []string{"etcd1:2379"} }, want: "controlplane.endpoints"},
		{name: "an endpoint without a port", set: func(c *controlplane.Config) { c.Endpoints = []string{"http://etcd1"} }, want: "controlplane.endpoints"},
		{name: "mixed endpoints", set: func(c *controlplane.Config) { c.Endpoints = []string{"http://a:1", "https://b:1"} }, want: "some are https"},
		{name: "a cluster with a slash", set: func(c *controlplane.Config) { c.Cluster = "a/b" }, want: "controlplane.cluster"},
		{name: "no cluster", set: func(c *controlplane.Config) { c.Cluster = "" }, want: "controlplane.cluster"},
		{name: "a zone with a space", set: func(c *controlplane.Config) { c.Zone = "a b" }, want: "controlplane.zone"},
		{name: "no weight", set: func(c *controlplane.Config) { c.Weight = 0 }, want: "controlplane.weight"},
		{name: "a password alone", set: func(c *controlplane.Config) { c.Password = config.Secret("x") }, want: "controlplane.username"},
		{name: "a key alone", set: func(c *controlplane.Config) {
			c.Endpoints, c.TLS.KeyFile = []string{"https://a:1"}, "key.pem"
		}, want: "controlplane.tls.cert_file"},
		{name: "an unknown way to watch", set: func(c *controlplane.Config) { c.Watch = "no" }, want: "controlplane.watch"},
		{name: "relays of nothing", set: func(c *controlplane.Config) { c.Watch = controlplane.Relayed }, want: "controlplane.watch"},
		{name: "members of nothing", set: func(c *controlplane.Config) { c.FollowMembers = true }, want: "controlplane.follow_members"},
		{name: "TLS without https", set: func(c *controlplane.Config) { c.TLS.CAFile = "ca.pem" }, want: "controlplane.tls"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			c := controlplane.DefaultConfig()
			tt.set(&c)
			err := c.Validate()
			if (err == nil) != (tt.want == "") || err != nil && !strings.Contains(err.Error(), tt.want) {
				t.Errorf("Validate = %v, want %q", err, tt.want)
			}
		})
	}
}

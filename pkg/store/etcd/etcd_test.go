package etcd

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/goleak"
	"go.uber.org/zap"

	"github.com/imdhq/imd/pkg/control/embedded"
	"github.com/imdhq/imd/pkg/im"
	"github.com/imdhq/imd/pkg/store"
	"github.com/imdhq/imd/pkg/store/storetest"
	"github.com/imdhq/imd/sdk/go/gen/clientv1"
)

func TestMain(m *testing.M) {
	goleak.VerifyTestMain(m, goleak.IgnoreTopFunction("github.com/golang/glog.(*fileSink).flushDaemon"))
}

// begin starts a server that ends with the test.
func begin(t testing.TB) *clientv3.Client {
	t.Helper()
	srv, err := embedded.Start(t.Context(), t.TempDir(), zap.NewNop())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := srv.Close(); err != nil {
			t.Error(err)
		}
	})
	return srv.Client()
}

// open makes a store and waits until it has read its table.
func open(t testing.TB, client *clientv3.Client, prefix string) *Routes {
	t.Helper()
	r := Open(client, Options{Prefix: prefix, Log: zap.NewNop(), Reg: prometheus.NewRegistry()})
	await(t, "the table is read", r.table.ready)
	return r
}

func closing(t testing.TB, r *Routes) *Routes {
	t.Cleanup(func() {
		if err := r.Close(); err != nil {
			t.Error(err)
		}
	})
	return r
}

func await(t testing.TB, what string, ok func() bool) {
	t.Helper()
	for end := time.Now().Add(10 * time.Second); !ok(); time.Sleep(2 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("%s: it does not happen", what)
		}
	}
}

func TestRoutes(t *testing.T) {
	client := begin(t)
	n, prefix := 0, ""
	storetest.TestRoutes(t, storetest.Routes{
		Open: func(t testing.TB) store.RouteStore {
			n++
			prefix = fmt.Sprintf("/imd/t%d/routes/", n)
			return open(t, client, prefix)
		},
		Other: func(t testing.TB) store.RouteStore { return closing(t, open(t, client, prefix)) },
		Forget: func(t testing.TB) {
			if _, err := client.Delete(t.Context(), prefix, clientv3.WithPrefix()); err != nil {
				t.Fatal(err)
			}
		},
		Soon: 5 * time.Second,
	})
}

func routeOf(n int) store.Route {
	return store.Route{User: im.UserID(fmt.Sprint("u", n)), Session: im.SessionID(fmt.Sprint("s", n)), Login: "l", Device: "d", Class: im.Phone,
		Node: "n1", Boot: "b1", Since: time.UnixMicro(int64(n))}
}

// Sessions share leases, a thousand each, and their places are used again.
func TestLeases(t *testing.T) {
	l := leases{of: map[im.SessionID]share{}}
	l.add(1)
	for i := range perLease {
		if id := l.take(im.SessionID(fmt.Sprint(i))); id != 1 {
			t.Fatalf("session %d has lease %d", i, id)
		}
	}
	if id := l.take("x"); id != 0 {
		t.Errorf("one too many has lease %d", id)
	}
	if id := l.take("7"); id != 1 {
		t.Errorf("a session that had one has lease %d", id)
	}
	l.free("7")
	l.free("7")
	if id := l.take("x"); id != 1 || l.take("y") != 0 {
		t.Errorf("the free place: lease %d", id)
	}
}

// A lease that ends takes its routes along, which is noticed and put back.
func TestALeaseThatEnds(t *testing.T) {
	client := begin(t)
	r := closing(t, open(t, client, "/imd/a/routes/"))
	var routes []store.Route
	for i := range 120 {
		x := routeOf(i)
		c, err := r.Claim(t.Context(), x, store.Policy{Mode: store.PolicyMode(i % 2)}) // every second one is remembered for longer
		if err != nil {
			t.Fatal(err)
		}
		x.Epoch = c.Epoch
		routes = append(routes, x)
	}
	await(t, "the table has them", func() bool { return r.table.size() == len(routes) })
	before, err := r.Memory(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for _, id := range append(r.leases.all(), r.leases.forLong(time.Time{})) {
		if _, err := client.Revoke(t.Context(), id); err != nil {
			t.Fatal(err)
		}
	}
	await(t, "the loss is noticed", func() bool { m, err := r.Memory(t.Context()); return err == nil && m != before })
	standings, err := r.Refresh(t.Context(), routes)
	if err != nil {
		t.Fatal(err)
	}
	for i, s := range standings {
		if s != store.Restored {
			t.Fatalf("route %d is %v", i, s)
		}
	}
	await(t, "all are back", func() bool { return r.table.size() == len(routes) })
}

// Beyond the ceiling a newcomer is refused with a reason, and who is there is
// not.
func TestTheCeiling(t *testing.T) {
	r := closing(t, open(t, begin(t), "/imd/a/routes/"))
	x := routeOf(1)
	if _, err := r.Claim(t.Context(), x, store.Policy{}); err != nil {
		t.Fatal(err)
	}
	r.table.mu.Lock()
	r.table.count += Ceiling
	r.table.mu.Unlock()
	if _, err := r.Claim(t.Context(), routeOf(2), store.Policy{}); im.ReasonOf(err) != clientv1.Reason_REASON_BUSY {
		t.Errorf("one too many: %v", err)
	}
	if _, err := r.Claim(t.Context(), x, store.Policy{}); err != nil {
		t.Errorf("a session that is there: %v", err)
	}
}

func TestKeys(t *testing.T) {
	r := &Routes{prefix: "/imd/a/routes/"}
	for _, u := range []im.UserID{"u", "a@b+c", "x.y"} {
		if got, s, ok := r.split(r.routeKey(u, "s/1")); !ok || got != u || s != "s/1" {
			t.Errorf("%s: %q, %q, %v", u, got, s, ok)
		}
		if got, s, ok := r.split(r.guardKey(u)); !ok || got != u || s != "" {
			t.Errorf("%s: %q, %q, %v", u, got, s, ok)
		}
	}
	if _, _, ok := r.split("/imd/a/routes/x/y/z/w"); ok {
		t.Error("a foreign key")
	}
}

// What is remembered of logins outlives the process that wrote it; its routes do not.
func TestLoginsOutliveTheProcess(t *testing.T) {
	client, kick := begin(t), store.Policy{Mode: store.KickOld}
	r := open(t, client, "/imd/a/routes/")
	if _, err := r.Claim(t.Context(), routeOf(1), kick); err != nil {
		t.Fatal(err)
	}
	if err := r.Close(); err != nil {
		t.Fatal(err)
	}
	r = closing(t, open(t, client, "/imd/a/routes/"))
	x := routeOf(1)
	x.Session, x.Login = "s2", "l2"
	if c, err := r.Claim(t.Context(), x, kick); err != nil || len(c.Replaced) != 0 || !slices.Equal(c.Away, []im.LoginID{"l"}) {
		t.Errorf("%+v, %v", c, err)
	}
	if _, err := client.Revoke(t.Context(), r.leases.forLong(time.Time{})); err != nil {
		t.Fatal(err)
	}
	x.Session = "s3"
	if _, err := r.Claim(t.Context(), x, kick); err != nil {
		t.Errorf("after the lease for long has ended: %v", err)
	}
}

// BenchmarkClaim is claims of many users at once.
func BenchmarkClaim(b *testing.B) {
	r := closing(b, open(b, begin(b), "/imd/b/routes/"))
	b.SetParallelism(32)
	next := make(chan int)
	ctx, cancel := context.WithCancel(b.Context())
	defer cancel()
	go func() {
		for i := 0; ; i++ {
			select {
			case next <- i:
			case <-ctx.Done():
				return
			}
		}
	}()
	b.RunParallel(func(pb *testing.PB) {
		for pb.Next() {
			if _, err := r.Claim(b.Context(), routeOf(<-next%9000), store.Policy{}); err != nil {
				b.Error(err)
				return
			}
		}
	})
	b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "claims/s")
}

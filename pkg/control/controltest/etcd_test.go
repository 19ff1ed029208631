package controltest_test

import (
	"context"
	"crypto/rand"
	"errors"
	"path/filepath"
	"testing"
	"time"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/goleak"
	"go.uber.org/zap"

	"github.com/imdhq/imd/pkg/control"
	"github.com/imdhq/imd/pkg/control/controltest"
	"github.com/imdhq/imd/pkg/control/embedded"
	"github.com/imdhq/imd/pkg/control/etcd"
	"github.com/imdhq/imd/pkg/testenv"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestEtcdInProcess(t *testing.T) {
	t.Parallel()
	controltest.Run(t, func(t testing.TB) controltest.Fixture {
		s, err := embedded.Start(t.Context(), t.TempDir(), zap.NewNop())
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { s.Close() })
		return controltest.Fixture{
			Store: store{s.Client()},
			Open: func(t testing.TB, p controltest.Process) controltest.Plane {
				o := fast(p)
				o.Close = func() error { return nil } // the processes of a test share the client
				return etcd.New(s.Client(), o)
			},
		}
	})
}

func TestEtcdOverNetwork(t *testing.T) {
	t.Parallel()
	controltest.Run(t, func(t testing.TB) controltest.Fixture {
		dir, addr := t.TempDir(), testenv.FreeAddress(t, "127.0.0.1")
		var s *embedded.Server
		start := func(t testing.TB) {
			var err error
			if s, err = embedded.Start(context.Background(), dir, zap.NewNop(), embedded.Listen(addr)); err != nil {
				t.Fatal(err)
			}
		}
		stop := func(t testing.TB) {
			if err := s.Close(); err != nil {
				t.Error(err)
			}
		}
		start(t)
		t.Cleanup(func() { stop(t) })
		dial := func(t testing.TB) *clientv3.Client {
			c, err := etcd.Dial(etcd.Endpoints{URLs: []string{"http://" + addr}}, zap.NewNop())
			if err != nil {
				t.Fatal(err)
			}
			return c
		}
		admin := dial(t)
		t.Cleanup(func() { admin.Close() })
		return controltest.Fixture{
			Store: store{admin}, Stop: stop, Start: start,
			Open: func(t testing.TB, p controltest.Process) controltest.Plane { return etcd.New(dial(t), fast(p)) },
		}
	})
}

// The end of the embedded server ends Run, so that the node stops.
func TestRunEndsWithTheServer(t *testing.T) {
	t.Parallel()
	s, err := embedded.Start(t.Context(), t.TempDir(), zap.NewNop())
	if err != nil {
		t.Fatal(err)
	}
	full, failed := errors.New("the disk is full"), make(chan error, 1)
	o := fast(controltest.Process{Cluster: "c", Node: "a", Handle: &control.Handle{}})
	o.Close, o.Failed = s.Close, failed
	d := etcd.New(s.Client(), o)
	failed <- full
	if err := d.Run(t.Context()); !errors.Is(err, full) {
		t.Errorf("Run = %v", err)
	}
	if err := d.Close(); err != nil {
		t.Error(err)
	}
}

// lease is that of leaders and nodes. It outlasts a machine that stands still for two
// seconds.
const lease = 5 * time.Second

// fast makes everything happen within seconds.
func fast(p controltest.Process) etcd.Options {
	if p.LeaderTTL == 0 {
		p.LeaderTTL = lease
	}
	return etcd.Options{
		Cluster: p.Cluster, Node: p.Node, Publish: p.Handle.SetView, PublishLeaders: p.Handle.SetLeaders, Log: zap.NewNop(),
		LeaderTTL: p.LeaderTTL, LeaderRenew: 500 * time.Millisecond,
		TTL: lease, Renew: 300 * time.Millisecond, Check: 500 * time.Millisecond,
		WorkerTTL: 30 * time.Second, WorkerRenew: 500 * time.Millisecond, Progress: 200 * time.Millisecond, Stale: 3 * time.Second,
		Reconcile: 300 * time.Millisecond,
	}
}

// store changes keys behind the driver's back.
type store struct{ c *clientv3.Client }

func (s store) Read(t testing.TB, key string) (string, bool) {
	t.Helper()
	kv := s.get(t, key)
	if len(kv.Kvs) == 0 {
		return "", false
	}
	return string(kv.Kvs[0].Value), true
}

func (s store) get(t testing.TB, key string) *clientv3.GetResponse {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	resp, err := s.c.Get(ctx, key)
	if err != nil {
		t.Fatal(err)
	}
	return resp
}

func (s store) Keys(t testing.TB, prefix string) []controltest.Key {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	resp, err := s.c.Get(ctx, prefix, clientv3.WithPrefix())
	if err != nil {
		t.Fatal(err)
	}
	var out []controltest.Key
	for _, kv := range resp.Kvs {
		out = append(out, controltest.Key{Key: string(kv.Key), Created: kv.CreateRevision})
	}
	return out
}

func (s store) Write(t testing.TB, key, value string) {
	t.Helper()
	s.do(t, clientv3.OpPut(key, value))
}

func (s store) Delete(t testing.TB, key string) {
	t.Helper()
	s.do(t, clientv3.OpDelete(key))
}

func (s store) do(t testing.TB, op clientv3.Op) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	if _, err := s.c.Do(ctx, op); err != nil {
		t.Fatal(err)
	}
}

func (s store) Revoke(t testing.TB, key string) {
	t.Helper()
	resp := s.get(t, key)
	if len(resp.Kvs) == 0 {
		t.Fatalf("there is no %s", key)
	}
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	if _, err := s.c.Revoke(ctx, clientv3.LeaseID(resp.Kvs[0].Lease)); err != nil {
		t.Fatal(err)
	}
}

func (s store) Compact(t testing.TB) {
	t.Helper()
	rev := s.get(t, "/").Header.Revision
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	_, err := s.c.Compact(ctx, rev, clientv3.WithCompactPhysical())
	if err != nil && !errors.Is(err, rpctypes.ErrCompacted) { // nothing has changed since the last time
		t.Fatal(err)
	}
}

// An etcd that has lost the secret of the nodes gets it back, from those that run and
// from those that start again. Where another one is there, all take that.
func TestTheSecretComesBack(t *testing.T) {
	t.Parallel()
	s, err := embedded.Start(t.Context(), t.TempDir(), zap.NewNop())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	const key = "/imd/c/secret"
	etcdOf := store{s.Client()}
	file := filepath.Join(t.TempDir(), "nodes.json")
	until := func(what string, ok func() bool) {
		t.Helper()
		for end := time.Now().Add(15 * time.Second); !ok(); time.Sleep(10 * time.Millisecond) {
			if time.Now().After(end) {
				t.Fatal("never: " + what)
			}
		}
	}
	begin := func() (d *etcd.Driver, end func()) {
		o := fast(controltest.Process{Cluster: "c", Node: "a", Handle: &control.Handle{}})
		o.Close, o.LastKnown = func() error { return nil }, file
		d = etcd.New(s.Client(), o)
		ctx, cancel := context.WithCancel(t.Context())
		if err := errors.Join(d.Load(ctx), d.Announce(ctx, control.Node{ID: "a", BootID: rand.Text(), State: control.Serving})); err != nil {
			t.Fatal(err)
		}
		done := make(chan error, 1)
		go func() { done <- d.Run(ctx) }()
		return d, func() {
			cancel()
			if err := errors.Join(<-done, d.Close()); err != nil {
				t.Error(err)
			}
		}
	}
	is := func(want string) func() bool {
		return func() bool { got, _ := etcdOf.Read(t, key); return got == want }
	}
	d, end := begin()
	until("it is known", func() bool { return d.Secret() != "" })
	first := d.Secret()
	until("it is in etcd", is(first))
	etcdOf.Delete(t, key)
	until("a node that runs gives it back", is(first))
	end()
	etcdOf.Delete(t, key)
	d, end = begin()
	until("a node that starts again gives it back", is(first))
	etcdOf.Write(t, key, "another")
	until("another one is taken", func() bool { return d.Secret() == "another" })
	end()
}

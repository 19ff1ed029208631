package controltest_test

import (
	"context"
	"fmt"
	"net/http/httptest"
	"testing"
	"time"

	"go.uber.org/zap"

	"github.com/imdhq/imd/pkg/control"
	"github.com/imdhq/imd/pkg/control/controltest"
	"github.com/imdhq/imd/pkg/control/embedded"
	"github.com/imdhq/imd/pkg/control/etcd"
	"github.com/imdhq/imd/pkg/im"
	storeport "github.com/imdhq/imd/pkg/store"
	"github.com/imdhq/imd/pkg/testenv"
)

// The credentials of etcd expire between any two calls: stand-bys log in again,
// stay in the race, and follow a leader that dies.
func TestCredentialsExpire(t *testing.T) { // not in parallel: it measures a time
	addr := testenv.FreeAddress(t, "127.0.0.1")
	s, err := embedded.Start(t.Context(), t.TempDir(), zap.NewNop(), embedded.Listen(addr), embedded.Tokens(time.Second, 4))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	admin := s.Client()
	if _, err := admin.UserAdd(t.Context(), "root", "right"); err != nil {
		t.Fatal(err)
	}
	if _, err := admin.UserGrantRole(t.Context(), "root", "root"); err != nil {
		t.Fatal(err)
	}
	if _, err := admin.AuthEnable(t.Context()); err != nil {
		t.Fatal(err)
	}
	fences, led := controltest.NewFences(), make(chan string, 10)
	var all []*etcd.Driver
	var kill []func()
	for i := range 3 {
		id := fmt.Sprint("n", i)
		health := etcd.NewHealth()
		c, err := etcd.Dial(etcd.Endpoints{URLs: []string{"http://" + addr}, Username: "root", Password: "right", Health: health}, zap.NewNop())
		if err != nil {
			t.Fatal(err)
		}
		// The usual periods: some seconds between two calls, in which tokens expire.
		d := etcd.New(c, etcd.Options{Cluster: "x", Node: im.NodeID(id), Publish: (&control.Handle{}).SetView, Log: zap.NewNop(), Health: health})
		if err := d.Load(t.Context()); err != nil {
			t.Fatal(err)
		}
		ops := httptest.NewServer(control.Await(id, d.TermEnded))
		kill = append(kill, func() { ops.CloseClientConnections(); ops.Close() })
		t.Cleanup(kill[i])
		ctx, cancel := context.WithCancel(context.Background())
		done, gone := make(chan error, 1), make(chan struct{})
		go func() { done <- d.Run(ctx) }()
		go func() {
			defer close(gone)
			_ = d.Campaign(ctx, control.Candidacy{Name: "job", Fences: func() (storeport.Fences, error) { return fences, nil },
				Lead: func(ctx context.Context, _ control.Term) error { led <- id; <-ctx.Done(); return nil }})
		}()
		t.Cleanup(func() {
			cancel()
			<-gone
			if err := <-done; err != nil {
				t.Error(err)
			}
			if err := d.Close(); err != nil {
				t.Error(err)
			}
		})
		if err := d.Announce(t.Context(), control.Node{ID: im.NodeID(id), BootID: id, State: control.Serving, Weight: 1, Ops: ops.Listener.Addr().String()}); err != nil {
			t.Fatal(err)
		}
		all = append(all, d)
		if i == 0 {
			if first := <-led; first != "n0" {
				t.Fatal(first)
			}
		}
	}
	time.Sleep(8 * time.Second) // every token has expired several times
	began := time.Now()
	kill[0]() // as far as anybody can tell, the process is gone
	select {
	case next := <-led:
		t.Logf("%s followed after %v", next, time.Since(began))
	case <-time.After(5 * time.Second):
		t.Error("nobody followed within 5 s")
	}
	for i, d := range all {
		if st := d.Stats(); !st.Registered || st.LeaseLost != 0 || st.Stale {
			t.Errorf("node %d: %+v", i, st)
		}
	}
	c, err := etcd.Dial(etcd.Endpoints{URLs: []string{"http://" + addr}, Username: "root", Password: "right"}, zap.NewNop())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	if keys := (store{c}).Keys(t, "/imd/x/leader/"); len(keys) != 1 {
		t.Errorf("keys below the election: %v", keys)
	}
}

package controltest_test

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/zap"

	"github.com/imdhq/imd/pkg/control"
	"github.com/imdhq/imd/pkg/control/controltest"
	"github.com/imdhq/imd/pkg/control/etcd"
	"github.com/imdhq/imd/pkg/control/relay"
	"github.com/imdhq/imd/pkg/im"
	"github.com/imdhq/imd/pkg/settings"
	storeport "github.com/imdhq/imd/pkg/store"
)

// link is a process that follows everything, from etcd or from others.
type link struct {
	follower
	handle *control.Handle
	node   control.Node
	ops    *httptest.Server
}

// join runs such a process and registers it.
func join(t *testing.T, addr, cluster, id string, relayed bool) *link {
	t.Helper()
	l := &link{handle: &control.Handle{}}
	var running atomic.Pointer[etcd.Driver] // it asks for the secret before followAs returns
	secret := func() string {
		if d := running.Load(); d != nil {
			return d.Secret()
		}
		return ""
	}
	l.follower = followAs(t, addr, cluster, id, l.handle, func(o *etcd.Options) {
		o.PublishLeaders, o.Patience, o.Detour = l.handle.SetLeaders, time.Second, 2*time.Second
		if relayed {
			c := relay.NewClient(im.NodeID(id), l.handle.View, secret)
			t.Cleanup(c.Close)
			o.Upstream = c
		}
	})
	running.Store(l.Driver)
	l.node = control.Node{ID: im.NodeID(id), BootID: id, Roles: []string{"gateway"}, State: control.Serving, Weight: 1, Relay: !relayed}
	l.listen(t)
	if err := l.Announce(t.Context(), l.node); err != nil {
		t.Fatal(err)
	}
	return l
}

// listen answers probes and subscribers.
func (l *link) listen(t *testing.T) {
	mux := http.NewServeMux()
	mux.HandleFunc("/livez", func(w http.ResponseWriter, _ *http.Request) { w.Header().Set(control.BootHeader, l.node.BootID) })
	relay.NewServer(func() (relay.Source, bool) { return l, true }, zap.NewNop()).Mount(mux.Handle, prometheus.NewRegistry())
	l.ops = httptest.NewServer(mux)
	l.node.Ops = l.ops.Listener.Addr().String()
	srv := l.ops
	t.Cleanup(func() { srv.CloseClientConnections(); srv.Close() })
}

// watches waits until the process has so many watches of etcd.
func (l *link) watches(t *testing.T, n int) {
	t.Helper()
	wait(t, fmt.Sprintf("%s has %d watches", l.node.ID, n), func() bool { return l.Driver.Stats().Watches == n })
}

func wait(t *testing.T, what string, cond func() bool) {
	t.Helper()
	for end := time.Now().Add(15 * time.Second); !cond(); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("waited in vain: %s", what)
		}
	}
}

// A process that follows through others has no watch of etcd, and learns of
// nodes, leaders and settings all the same; without anybody to ask it follows
// etcd, and ends that when somebody is there again.
func TestRelayCarriesEverything(t *testing.T) {
	t.Parallel()
	addr, c := server(t)
	direct := join(t, addr, "r", "direct", false)
	far := join(t, addr, "r", "far", true)
	direct.watches(t, 3)
	far.watches(t, 0)
	wait(t, "both nodes are seen", func() bool { return len(far.handle.View().With("gateway")) == 2 })

	// A leader, which is no candidate at the far process.
	stop := standFor(t, direct, "job")
	wait(t, "the leader is seen", func() bool {
		l, ok := far.handle.Leaders().Of("job")
		return ok && l.Node == "direct" && l.Token == 1 && !l.Gone
	})
	far.watches(t, 0)

	// Settings, judged one by one: what is too large a step or wrong is refused there
	// as everywhere, and what follows is taken.
	far.reach(t, direct.change(t, "beat.wait", "8s", "count.n", "7"))
	if got := hotCount.In(far.Current()); got != 7 {
		t.Errorf("the far process has %d", got)
	}
	store{c}.Write(t, "/imd/r/config/count", `{"all":{"count.n":"many"}}`)
	wait(t, "the refusal is the same", func() bool {
		a, _ := direct.State().Refused()
		b, _ := far.State().Refused()
		return a != 0 && a == b
	})
	far.reach(t, direct.change(t, "count.n", "8"))
	// Many at once, of one key: none is missed.
	for i := range 20 {
		rev := direct.change(t, "count.n", fmt.Sprint(100+i))
		direct.reach(t, rev)
		far.reach(t, rev)
	}
	if s := far.Live.Stats(); s.Gaps != 0 || s.Drift != 0 || hotCount.In(far.Current()) != 119 {
		t.Errorf("settings of the far process: %+v, value %d", s, hotCount.In(far.Current()))
	}

	// A candidate looks itself, and only at the leaders.
	standing := standFor(t, far, "other")
	far.watches(t, 1)
	wait(t, "the direct process sees it lead", func() bool { l, ok := direct.handle.Leaders().Of("other"); return ok && l.Node == "far" })
	standing()
	far.watches(t, 0)

	// Nobody answers: etcd is followed, and nothing is missed.
	direct.ops.CloseClientConnections()
	direct.ops.Close()
	far.watches(t, 3)
	far.reach(t, direct.change(t, "count.n", "9"))
	stop()
	wait(t, "the leader is seen to leave", func() bool { l, ok := far.handle.Leaders().Of("job"); return !ok || l.Gone })

	// Somebody is there again.
	direct.listen(t)
	if err := direct.Announce(t.Context(), direct.node); err != nil {
		t.Fatal(err)
	}
	far.watches(t, 0)
	far.reach(t, direct.change(t, "count.n", "10"))
	wait(t, "the far process hears of etcd", func() bool { return !far.handle.View().Stale })
	if s := far.Driver.Stats(); s.Drift != 0 {
		t.Errorf("the far process at the end: %+v", s)
	}
}

// standFor takes part in an election until the returned function is called.
func standFor(t *testing.T, l *link, name string) (stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	fences := controltest.NewFences()
	go func() {
		defer close(done)
		_ = l.Campaign(ctx, control.Candidacy{
			Name: name, Fences: func() (storeport.Fences, error) { return fences, nil },
			Lead: func(ctx context.Context, _ control.Term) error { <-ctx.Done(); return nil },
		})
	}()
	stop = func() { cancel(); <-done }
	t.Cleanup(stop)
	return stop
}

// What is too large a step is refused by a process that follows through others
// as by those that do not.
func TestRelayedStepsAreJudged(t *testing.T) {
	t.Parallel()
	addr, c := server(t)
	direct, far := join(t, addr, "st", "direct", false), join(t, addr, "st", "far", true)
	far.watches(t, 0)
	far.reach(t, direct.change(t, "step.wait", "8s"))
	store{c}.Write(t, "/imd/st/config/step", `{"all":{"step.wait":"1s"}}`)
	for _, l := range []*link{direct, far} {
		wait(t, "the step is refused", func() bool { rev, _ := l.State().Refused(); return rev != 0 })
		if got := hotStep.In(l.Current()); got != 8*time.Second {
			t.Errorf("%s has %v", l.node.ID, got)
		}
	}
}

var hotStep = settings.Duration("step.wait", 10*time.Second, time.Millisecond, time.Hour, "A wait that moves in steps.", settings.Shrink(2))

package controltest

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/imdhq/imd/pkg/control"
)

// Run runs the whole suite. open makes a fresh fixture for each test that needs
// a server for itself.
func Run(t *testing.T, open func(t testing.TB) Fixture) {
	f := open(t)
	t.Run("shared server", func(t *testing.T) {
		for _, c := range []struct {
			name string
			test func(*testing.T, Fixture)
		}{
			{"nodes see each other come, change and go", comeAndGo},
			{"the record is written before Run", announceBeforeRun},
			{"a revoked lease is replaced", leaseRevoked},
			{"a deleted record is written again", recordDeleted},
			{"a garbled record is written again", recordGarbled},
			{"the record of a living node is not taken", rivalAlive},
			{"the record of a dead node is taken over", rivalDead},
			{"the record at our own address is taken over", rivalAtOurAddress},
			{"another process at a dead node's address does not keep its record", rivalReplaced},
			{"the lease is given up at the end", leaseGivenUp},
			{"unreadable records are left out", unreadableRecords},
			{"a quiet cluster shows no drift", noDrift},
			{"fifty leasers get fifty worker numbers", workersUnique},
			{"a worker number comes free when it is released", workerReleased},
			{"a worker number is lost with its lease", workerLost},
			{"worker numbers that are not usable are passed over", workersUnusable},
			{"one leads, and another when it stops", electOne},
			{"elections of different names do not touch", electMany},
			{"a process takes part in an election once", electOnce},
			{"a deposed leader's effects are refused", electDeposed},
			{"a Lead that returns gives the place up", electReturned},
			{"a leader is transferred", electTransfer},
			{"a leader that is asked resigns for anybody", electResign},
			{"a wish for nobody opens the election again", electNobody},
			{"a dead process is followed before its lease ends", electDead},
			{"a living process is not followed however long it waits", electAlive},
			{"a store that is away keeps the place open", electNoStore},
			{"a fence that is ahead does not lock everybody out", electRewound},
			{"one holds a lock, who asked first gets it first", lockOrder},
			{"a waiter that gives up leaves the queue", lockGivenUp},
			{"a lock that was lost while waiting is asked for anew", lockLostWaiting},
			{"a lost lock writes nothing", lockLost},
			{"a lock hands out a fence", lockFence},
		} {
			t.Run(c.name, func(t *testing.T) {
				t.Parallel()
				c.test(t, f)
			})
		}
	})
	t.Run("the view survives a compaction", func(t *testing.T) { compaction(t, open(t)) })
	t.Run("the server restarts", func(t *testing.T) {
		f := open(t)
		if f.Stop == nil {
			return // a server inside this process cannot come back within it
		}
		restart(t, f)
	})
}

func comeAndGo(t *testing.T, f Fixture) {
	a, b := open(t, f, node("a", "a1", "127.0.0.1:1")), open(t, f, node("b", "b1", "127.0.0.1:2"))
	for _, p := range []*process{a, b} {
		if err := p.announce(control.Serving); err != nil {
			t.Fatal(err)
		}
	}
	eventually(t, "both see both", func() bool {
		return len(a.handle.View().With("gateway")) == 2 && len(b.handle.View().With("gateway")) == 2
	})
	got, _ := find(b.handle.View(), "a")
	if fmt.Sprint(got) != fmt.Sprint(a.node) {
		t.Errorf("the record came as\n%v, was\n%v", got, a.node)
	}
	before := b.handle.View().Revision
	if err := a.announce(control.Draining); err != nil {
		t.Fatal(err)
	}
	eventually(t, "a drains", func() bool { return len(b.handle.View().With("gateway")) == 1 })
	if n, ok := find(b.handle.View(), "a"); !ok || n.State != control.Draining {
		t.Errorf("a draining node is %v, %v", n, ok)
	}
	a.stop()
	eventually(t, "a is gone", func() bool { _, ok := find(b.handle.View(), "a"); return !ok })
	if now := b.handle.View().Revision; now <= before {
		t.Errorf("the view went from revision %d to %d", before, now)
	}
}

func announceBeforeRun(t *testing.T, f Fixture) {
	cluster := strings.ReplaceAll(t.Name(), "/", ".")
	p := f.Open(t, Process{Cluster: cluster, Node: "a", Handle: &control.Handle{}})
	ctx, cancel := context.WithTimeout(t.Context(), limit)
	defer cancel()
	if err := p.Announce(ctx, node("a", "a1", "")); err != nil {
		t.Fatal(err)
	}
	key := "/imd/" + cluster + "/nodes/a"
	if _, ok := f.Store.Read(t, key); !ok {
		t.Error("the record is not there")
	}
	if err := p.Close(); err != nil {
		t.Fatal(err)
	}
	if v, ok := f.Store.Read(t, key); ok {
		t.Errorf("Close left the record %s", v)
	}
}

func leaseRevoked(t *testing.T, f Fixture) {
	a := open(t, f, node("a", "a1", ""))
	if err := a.announce(control.Serving); err != nil {
		t.Fatal(err)
	}
	f.Store.Revoke(t, a.key)
	eventually(t, "the record is back under a new lease", func() bool {
		_, ok := f.Store.Read(t, a.key)
		s := a.Stats()
		return ok && s.LeaseLost == 1 && s.Registered
	})
}

func recordDeleted(t *testing.T, f Fixture) {
	a := open(t, f, node("a", "a1", ""))
	if err := a.announce(control.Serving); err != nil {
		t.Fatal(err)
	}
	f.Store.Delete(t, a.key)
	eventually(t, "the record is back", func() bool {
		_, ok := f.Store.Read(t, a.key)
		return ok && a.Stats().Repairs > 0
	})
	if s := a.Stats(); s.LeaseLost != 0 {
		t.Errorf("the lease was given up: %+v", s)
	}
}

func recordGarbled(t *testing.T, f Fixture) {
	a := open(t, f, node("a", "a1", ""))
	if err := a.announce(control.Serving); err != nil {
		t.Fatal(err)
	}
	want, _ := f.Store.Read(t, a.key)
	f.Store.Write(t, a.key, "{not json")
	eventually(t, "the record is repaired", func() bool {
		got, _ := f.Store.Read(t, a.key)
		return got == want && a.Stats().Repairs > 0
	})
	f.Store.Write(t, a.key, strings.Replace(want, `"serving"`, `"draining"`, 1))
	eventually(t, "a changed record is repaired", func() bool {
		got, _ := f.Store.Read(t, a.key)
		return got == want
	})
}

// livez is an ops listener of a node with the boot id.
func livez(t *testing.T, boot string) string {
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set(control.BootHeader, boot)
	}))
	t.Cleanup(s.Close)
	return s.Listener.Addr().String()
}

func rivalAlive(t *testing.T, f Fixture) {
	first := open(t, f, node("a", "a1", livez(t, "a1")))
	if err := first.announce(control.Serving); err != nil {
		t.Fatal(err)
	}
	want, _ := f.Store.Read(t, first.key)
	second := open(t, f, node("a", "a2", livez(t, "a2")))
	err := second.announce(control.Serving)
	var taken *control.TakenError
	if !errors.As(err, &taken) || taken.Theirs != first.node.Ops || taken.Ours != second.node.Ops {
		t.Errorf("the second process was told %v", err)
	}
	if got, _ := f.Store.Read(t, first.key); got != want {
		t.Errorf("the record changed to %s", got)
	}
	if second.Stats().Registered {
		t.Error("the second process thinks that it is registered")
	}
	first.stop()
	eventually(t, "the second takes its place", func() bool { return second.Stats().Registered })
}

// dead leaves the record of a process that was killed.
func dead(t *testing.T, f Fixture, n control.Node, p *process) {
	f.Store.Write(t, p.key, fmt.Sprintf(`{"id":%q,"boot_id":%q,"ops":%q,"state":"serving"}`, n.ID, n.BootID, n.Ops))
}

// takesOver expects that the process p registers over the record of old.
func takesOver(t *testing.T, f Fixture, p *process, old control.Node) {
	dead(t, f, old, p)
	if err := p.announce(control.Serving); err != nil {
		t.Fatal(err)
	}
	if got, _ := f.Store.Read(t, p.key); !strings.Contains(got, p.node.BootID) {
		t.Errorf("the record is %s", got)
	}
}

func rivalDead(t *testing.T, f Fixture) {
	takesOver(t, f, open(t, f, node("a", "a2", "127.0.0.1:1")), node("a", "a1", "127.0.0.1:9"))
}

func rivalAtOurAddress(t *testing.T, f Fixture) {
	address := livez(t, "a2")
	takesOver(t, f, open(t, f, node("a", "a2", address)), node("a", "a1", address))
}

func rivalReplaced(t *testing.T, f Fixture) {
	takesOver(t, f, open(t, f, node("a", "a2", "127.0.0.1:1")), node("a", "a1", livez(t, "somebody")))
}

func leaseGivenUp(t *testing.T, f Fixture) {
	a := open(t, f, node("a", "a1", ""))
	if err := a.announce(control.Serving); err != nil {
		t.Fatal(err)
	}
	a.stop()
	if v, ok := f.Store.Read(t, a.key); ok {
		t.Errorf("the record outlives its process: %s", v)
	}
	if err := a.announce(control.Serving); err == nil {
		t.Error("a registry that has ended takes records")
	}
}

func unreadableRecords(t *testing.T, f Fixture) {
	a := open(t, f, node("a", "a1", ""))
	if err := a.announce(control.Serving); err != nil {
		t.Fatal(err)
	}
	f.Store.Write(t, a.key+"-other", "garbage")
	f.Store.Write(t, a.key+"-good", `{"id":"a-good"}`)
	eventually(t, "the good one is seen", func() bool { _, ok := find(a.handle.View(), "a-good"); return ok })
	ids := []string{}
	for _, n := range a.handle.View().Nodes {
		ids = append(ids, string(n.ID))
	}
	if !slices.Equal(ids, []string{"a", "a-good"}) {
		t.Errorf("the view has %v", ids)
	}
}

func noDrift(t *testing.T, f Fixture) {
	a, b := open(t, f, node("a", "a1", "")), open(t, f, node("b", "b1", ""))
	if err := a.announce(control.Serving); err != nil {
		t.Fatal(err)
	}
	for i := range 200 { // with checks of the view in between
		b.node.Weight = 1 + i%100
		if err := b.announce(control.Serving); err != nil {
			t.Fatal(err)
		}
	}
	eventually(t, "a has the last weight", func() bool {
		n, _ := find(a.handle.View(), "b")
		return n.Weight == b.node.Weight
	})
	heard := a.Stats().Heard
	eventually(t, "progress is heard", func() bool { return a.Stats().Heard.After(heard) })
	for _, p := range []*process{a, b} {
		s := p.Stats()
		if s.Drift != 0 || s.Repairs != 0 || s.LeaseLost != 0 || s.Stale {
			t.Errorf("a healthy cluster shows %+v", s)
		}
	}
}

func compaction(t *testing.T, f Fixture) {
	a := open(t, f, node("a", "a1", ""))
	fences, led, ledB := newFences(), make(chan control.Term, 8), make(chan control.Term, 8)
	b := serving(t, f, node("b", "b1", ""))
	for i := range 5 {
		if err := a.announce(control.Serving); err != nil {
			t.Fatal(err)
		}
		f.Store.Write(t, fmt.Sprintf("%s-%d", a.key, i), fmt.Sprintf(`{"id":"a-%d"}`, i))
		f.Store.Compact(t)
		if i == 0 {
			stop := campaign(t, a, "job", fences, led)
			next(t, led)
			campaign(t, b, "job", fences, ledB)
			defer func() { // whose leader was elected before four compactions
				stop()
				next(t, ledB)
				leads(t, "job", "b", 2, a, b)
			}()
		}
	}
	// A process that read before the compaction watches from a revision that is
	// no more.
	late := open(t, f, node("late", "l1", ""))
	for _, p := range []*process{a, late} {
		eventually(t, "all are seen", func() bool { return len(p.handle.View().Nodes) == 7 })
		if s := p.Stats(); s.Drift != 0 || s.Stale {
			t.Errorf("after a compaction: %+v", s)
		}
	}
}

func restart(t *testing.T, f Fixture) {
	a, b := open(t, f, node("a", "a1", "")), open(t, f, node("b", "b1", ""))
	for _, p := range []*process{a, b} {
		if err := p.announce(control.Serving); err != nil {
			t.Fatal(err)
		}
	}
	eventually(t, "both see both", func() bool { return len(a.handle.View().Nodes) == 2 && len(b.handle.View().Nodes) == 2 })
	w, err := a.Lease(t.Context(), anyWorker)
	if err != nil {
		t.Fatal(err)
	}
	fences, ledA, ledB := newFences(), make(chan control.Term, 8), make(chan control.Term, 8)
	stopA := campaign(t, a, "job", fences, ledA)
	term := next(t, ledA)
	stopB := campaign(t, b, "job", fences, ledB)
	lock, err := a.Lock(t.Context(), control.LockRequest{Name: "job"})
	if err != nil {
		t.Fatal(err)
	}
	f.Stop(t)
	eventually(t, "the leader stops by itself", func() bool { return !term.Valid() && a.TermEnded("job") == nil })
	eventually(t, "the lock counts as lost", func() bool { return !lock.Valid() })
	eventually(t, "the view is stale", func() bool { return a.handle.View().Stale && b.handle.View().Stale })
	if n := len(a.handle.View().Nodes); n != 2 {
		t.Errorf("the stale view has %d nodes, want 2", n)
	}
	eventually(t, "the lease does not count any more", func() bool { return !a.Stats().Registered && a.Stats().Stale })
	if !w.Valid() {
		t.Error("the worker lease, which is long, does not outlast a short outage")
	}
	// What is announced meanwhile follows.
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	a.node.State = control.Draining
	if err := a.Announce(ctx, a.node); err == nil {
		t.Error("a record is written without a server")
	}
	f.Start(t)
	eventually(t, "the view is fresh", func() bool { return !a.handle.View().Stale && !b.handle.View().Stale })
	eventually(t, "both are registered", func() bool { return a.Stats().Registered && b.Stats().Registered })
	eventually(t, "what was announced meanwhile is seen", func() bool {
		n, ok := find(b.handle.View(), "a")
		return ok && n.State == control.Draining && len(b.handle.View().Nodes) == 2
	})
	if s := a.Stats(); s.Drift != 0 {
		t.Errorf("after a restart: %+v", s)
	}
	// Who stood by before the outage stands by after it.
	stop, other := stopA, ledB
	select {
	case again := <-ledA:
		term = newer(t, term, again)
	case again := <-ledB:
		term, stop, other = newer(t, term, again), stopB, ledA
	case <-time.After(limit):
		t.Fatal("nobody leads after the restart")
	}
	stop()
	term = newer(t, term, next(t, other))
	for _, p := range []*process{a, b} {
		eventually(t, "the leader is announced", func() bool {
			l, ok := p.handle.Leaders().Of("job")
			return ok && l.Token == term.Proof().Token && !p.handle.Leaders().Stale
		})
	}
	if keys := f.Store.Keys(t, electionKey(a, "")); len(keys) != 1 {
		t.Errorf("keys of the election: %v", keys)
	}
}

// newer expects that the token of a term rises, and returns the later one.
func newer(t *testing.T, before, after control.Term) control.Term {
	t.Helper()
	if after.Proof().Token <= before.Proof().Token {
		t.Errorf("token %d follows %d", after.Proof().Token, before.Proof().Token)
	}
	return after
}

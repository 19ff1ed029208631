package peer

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"go.uber.org/zap"

	"github.com/imdhq/imd/pkg/balance"
	"github.com/imdhq/imd/pkg/im"
	v1 "github.com/imdhq/imd/proto/gen/internalv1"
	"github.com/imdhq/imd/sdk/go/gen/clientv1"
)

func markReceipt(m *v1.Mark) *clientv1.Receipt {
	return &clientv1.Receipt{ConversationId: m.ConversationId, DeliveredSeq: m.Seq}
}

func submit(conv string) *v1.SubmitRequest {
	return &v1.SubmitRequest{Runs: []*v1.Run{{ConversationId: conv}}}
}

func TestCallsOfAConversationStayTogether(t *testing.T) {
	still(t, []string{"a", "b", "c"}, func(t *testing.T, w *world) {
		seen := map[string]int{}
		if w.caller.Reaches("state") {
			t.Error("nodes are reached before one has answered")
		}
		defer func() {
			if !w.caller.Reaches("state") {
				t.Error("no node is reached")
			}
		}()
		for i := range 60 {
			conv := fmt.Sprint("g_", i)
			home := w.home(conv)
			before := home.answered.Load()
			for range 3 {
				if _, err := w.caller.State().Submit(t.Context(), submit(conv)); err != nil {
					t.Fatal(err)
				}
			}
			if got := home.answered.Load() - before; got != 3 {
				t.Errorf("%s: its node got %d of 3 calls", conv, got)
			}
			seen[home.name]++
		}
		if len(seen) != 3 {
			t.Errorf("60 conversations are on %d nodes", len(seen))
		}
	})
}

// A caller sees the same error from another process as from its own, however
// calls travel.
func TestErrorsAreTheSameFromFarAndNear(t *testing.T) {
	for name, sec := range map[string]Security{"pipe": {}, "http": {HTTP: true}} {
		t.Run(name, func(t *testing.T) { sameErrors(t, newWorldOver(t, sec, "a")) })
	}
}

func sameErrors(t *testing.T, w *world) {
	near := NewSet("near", zap.NewNop())
	near.ServeState(w.nodes[0])
	for _, want := range []*im.Error{
		{Reason: clientv1.Reason_REASON_BUSY, Msg: "the lane is full", RetryAfter: 70 * time.Millisecond, Err: errors.New("secret")},
		{Reason: clientv1.Reason_REASON_NOT_MEMBER, Err: errors.New("secret")},
		{Reason: clientv1.Reason_REASON_INTERNAL, Err: errors.New("secret")},
	} {
		w.nodes[0].fail.Store(want)
		_, a := w.caller.State().Submit(t.Context(), submit("g"))
		_, b := near.State().Submit(t.Context(), submit("g"))
		x, y := im.Wire(a), im.Wire(b)
		if x.Reason != y.Reason || x.Message != y.Message || x.RetryAfterMs != y.RetryAfterMs || x.Reason != im.ReasonName(want.Reason) {
			t.Errorf("far %v, near %v", x, y)
		}
	}
}

func TestNobodyThere(t *testing.T) {
	w := newWorld(t)
	if w.caller.Reaches("state") || w.caller.Reaches("x") {
		t.Error("somebody is reached")
	}
	for name, err := range map[string]error{
		"state":   func() error { _, err := w.caller.State().Submit(t.Context(), submit("g")); return err }(),
		"gateway": func() error { _, err := w.caller.Gateway("x").Kick(t.Context(), &v1.KickRequest{}); return err }(),
		"push":    func() error { _, err := w.caller.Push().Fanout(t.Context(), &v1.FanoutRequest{}); return err }(),
	} {
		if im.ReasonOf(err) != clientv1.Reason_REASON_UNAVAILABLE {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// A dead node costs one attempt: the call goes to the next node of the ring, and
// later calls go there at once, until the node is back.
func TestDeadNodes(t *testing.T) {
	w := newWorld(t, "a", "b", "c")
	w.probing(t)
	dead := w.home("g_1")
	addr := dead.ln.Addr().String()
	dead.stop()
	for range 5 {
		if _, err := w.caller.State().Submit(t.Context(), submit("g_1")); err != nil {
			t.Fatal(err)
		}
	}
	w.caller.state.group.mu.Lock()
	usable := w.caller.state.group.eject.Usable(dead.name)
	w.caller.state.group.mu.Unlock()
	if usable {
		t.Error("a node that refuses connections still gets calls")
	}
	dead.start(t, addr)
	before := dead.answered.Load()
	eventually(t, "the node is back", func() bool {
		if _, err := w.caller.State().Submit(t.Context(), submit("g_1")); err != nil {
			t.Fatal(err)
		}
		return dead.answered.Load() > before
	})
}

// Two of three nodes die. Not both are left out, but what finds nobody there goes
// on to the third, however many calls do.
func TestMostNodesAreDead(t *testing.T) {
	w := newWorld(t, "a", "b", "c")
	w.nodes[0].stop()
	w.nodes[1].stop()
	for i := range 500 {
		if _, err := w.caller.State().Submit(t.Context(), submit(fmt.Sprint("g_", i))); err != nil {
			t.Fatalf("call %d: %v", i, err)
		}
	}
}

// A process whose socket is open but whose lanes hang does not come back.
func TestSickNodesStayOut(t *testing.T) {
	still(t, []string{"a", "b", "c"}, func(t *testing.T, w *world) {
		w.probing(t)
		sick := w.home("g_1")
		sick.sick.Store(true)
		sick.fail.Store(&im.Error{Reason: clientv1.Reason_REASON_UNAVAILABLE})
		for range 6 {
			if _, err := w.caller.State().Submit(t.Context(), submit("g_1")); err != nil {
				t.Fatal(err)
			}
		}
		g := w.caller.state.group
		out := func() balance.Standing {
			g.mu.Lock()
			defer g.mu.Unlock()
			return g.eject.Standing(sick.name)
		}
		if out() == balance.Used {
			t.Fatal("a node whose calls all fail still gets calls")
		}
		for end := time.Now().Add(700 * time.Millisecond); time.Now().Before(end); time.Sleep(20 * time.Millisecond) {
			if out() == balance.Used {
				t.Fatal("a node that fails its probes came back")
			}
		}
		sick.sick.Store(false)
		sick.fail.Store(nil)
		eventually(t, "the node is back", func() bool { return out() == balance.Used })
	})
}

// Refusals of a node that is well do not count against it.
func TestBusyNodesAreNotEjected(t *testing.T) {
	still(t, []string{"a", "b"}, func(t *testing.T, w *world) {
		home := w.home("g_1")
		home.fail.Store(&im.Error{Reason: clientv1.Reason_REASON_BUSY})
		for range 10 {
			if _, err := w.caller.State().Submit(t.Context(), submit("g_1")); im.ReasonOf(err) != clientv1.Reason_REASON_BUSY {
				t.Fatal(err)
			}
		}
		if home.calls.Load() != 10 {
			t.Errorf("%d calls: a busy node was asked again, or another one was", home.calls.Load())
		}
		if w.caller.state.group.eject.Out() != 0 {
			t.Error("a busy node is left out")
		}
	})
}

// Methods whose caller repeats them are made once here.
func TestOnlyMarkedMethodsAreRepeated(t *testing.T) {
	for _, m := range Methods() {
		err := absent("x", "state")
		want := m.Repeat == v1.Repeat_REPEAT_ANYWHERE || m.Repeat == v1.Repeat_REPEAT_BACKUP
		if repeatable(&m, err) != want {
			t.Errorf("%s: repeated is %v", m.Name, !want)
		}
		if repeatable(&m, &im.Error{Reason: clientv1.Reason_REASON_BUSY}) || repeatable(&m, &im.Error{Reason: clientv1.Reason_REASON_INTERNAL}) {
			t.Errorf("%s is repeated after a refusal", m.Name)
		}
	}
	if repeatable(&Method{}, absent("x", "state")) {
		t.Error("a method that says nothing is repeated")
	}
}

// A call ends after 1.2 s in all, and each attempt after 500 ms.
func TestTimesOfACall(t *testing.T) {
	still(t, []string{"a", "b", "c"}, func(t *testing.T, w *world) {
		for _, n := range w.nodes {
			n.slow.Store(int64(time.Minute))
		}
		begin := time.Now()
		_, err := w.caller.State().Submit(t.Context(), submit("g_1"))
		if took := time.Since(begin); im.ReasonOf(err) != clientv1.Reason_REASON_UNAVAILABLE || took != CallTimeout {
			t.Errorf("after %v: %v", took, err)
		}
		calls := 0
		for _, n := range w.nodes {
			calls += int(n.calls.Load())
		}
		if calls != 3 {
			t.Errorf("%d attempts, want 3", calls)
		}
	})
}

// A slow node is answered for by another one, and its call is given up.
func TestBackupRequests(t *testing.T) {
	still(t, []string{"a", "b", "c"}, func(t *testing.T, w *world) {
		read := func() time.Duration {
			begin := time.Now()
			res, err := w.caller.State().Members(t.Context(), &v1.MembersRequest{ConversationId: "g_1"})
			if err != nil || len(res.Members) != 1 {
				t.Fatal(err)
			}
			return time.Since(begin)
		}
		for range 200 {
			read()
		}
		slow := w.home("g_1")
		slow.slow.Store(int64(450 * time.Millisecond))
		for i := range 5 {
			if took := read(); took > balance.MinHedgeDelay {
				t.Errorf("read %d took %v although another node is quick", i, took)
			}
		}
		calls := int64(0)
		for _, n := range w.nodes {
			calls += n.calls.Load()
		}
		if calls > 215 {
			t.Errorf("%d calls for 205 reads", calls)
		}
	})
}

// One slow node of three: readers hardly notice, at the price of few extra
// calls.
func TestOneSlowNodeOfThree(t *testing.T) {
	const reads, usual, added = 300, time.Millisecond, 200 * time.Millisecond
	p99 := func(repeat v1.Repeat) (p99 time.Duration, extra int64) {
		still(t, []string{"a", "b", "c"}, func(t *testing.T, w *world) {
			for _, n := range w.nodes {
				n.slow.Store(int64(usual))
			}
			w.nodes[0].slow.Store(int64(usual + added))
			m := *stateMembers
			m.Repeat = repeat
			took := make([]time.Duration, reads)
			var wg sync.WaitGroup
			for i := range 6 {
				wg.Go(func() {
					for j := i; j < reads; j += 6 {
						begin := time.Now()
						if _, err := invoke(t.Context(), w.caller, &w.caller.state, &m, fmt.Sprint("g_", j), stateHandler.Members, &v1.MembersRequest{}); err != nil {
							t.Error(err)
						}
						took[j] = time.Since(begin)
					}
				})
			}
			wg.Wait()
			for _, n := range w.nodes {
				extra += n.calls.Load()
			}
			took, extra = took[reads/4:], extra-reads // what is slow must be seen first
			slices.Sort(took)
			p99 = took[len(took)*99/100]
		})
		return p99, extra
	}
	without, _ := p99(v1.Repeat_REPEAT_ANYWHERE)
	with, extra := p99(v1.Repeat_REPEAT_BACKUP)
	t.Logf("p99 %v with backup requests, %v without; %d extra calls for %d reads", with, without, extra, reads)
	if with > without*3/10 || extra > reads/20 {
		t.Error("readers notice a slow node, or too many calls were made")
	}
}

// With a single node there is nobody else to ask: the call waits.
func TestASingleNodeIsWaitedFor(t *testing.T) {
	still(t, []string{"a"}, func(t *testing.T, w *world) {
		w.nodes[0].slow.Store(int64(300 * time.Millisecond))
		if _, err := w.caller.State().Members(t.Context(), &v1.MembersRequest{ConversationId: "g"}); err != nil {
			t.Fatal(err)
		}
		if n := w.nodes[0].calls.Load(); n != 1 {
			t.Errorf("%d calls", n)
		}
	})
}

// A node that vanishes gets no new calls; what it has in hand ends well, and
// then its connections are closed.
func TestVanishedNodesAreDrained(t *testing.T) {
	w := newWorld(t, "a", "b")
	gone := w.home("g_1")
	gone.slow.Store(int64(300 * time.Millisecond))
	ended := make(chan error, 1)
	go func() {
		_, err := w.caller.State().Submit(context.Background(), submit("g_1"))
		ended <- err
	}()
	eventually(t, "the call is in flight", func() bool { return gone.calls.Load() == 1 })
	r := w.caller.reach(im.NodeID(gone.name)).remote
	left := slices.DeleteFunc(slices.Clone(w.nodes), func(n *stateNode) bool { return n == gone })
	w.caller.Update(view(left...))
	if w.home("g_1") == gone || w.caller.reach(im.NodeID(gone.name)) != nil {
		t.Error("the node is still called")
	}
	if err := <-ended; err != nil || gone.answered.Load() != 1 {
		t.Errorf("the call in flight: %v", err)
	}
	eventually(t, "the connections are closed", func() bool { return r.open.Load() == 0 })
}

func TestANewStartIsANewPeer(t *testing.T) {
	w := newWorld(t, "a")
	before := w.caller.reach("a").remote
	w.caller.Update(view(w.nodes...))
	if w.caller.reach("a").remote != before {
		t.Error("an unchanged node got new connections")
	}
	v := view(w.nodes...)
	v.Nodes[0].BootID = "another"
	w.caller.Update(v)
	if w.caller.reach("a").remote == before {
		t.Error("a new start is called through old connections")
	}
}

func TestMarksGoToTheNodesOfTheirConversations(t *testing.T) {
	still(t, []string{"a", "b", "c"}, func(t *testing.T, w *world) {
		req := &v1.MarkRequest{}
		for i := range 40 {
			req.Marks = append(req.Marks, &v1.Mark{ConversationId: fmt.Sprint("g_", i), Seq: int64(i)})
		}
		w.nodes[1].fail.Store(&im.Error{Reason: clientv1.Reason_REASON_BUSY})
		res, err := w.caller.State().Mark(t.Context(), req)
		if err != nil || len(res.Results) != 40 {
			t.Fatal(err, len(res.GetResults()))
		}
		for i, r := range res.Results {
			far := w.home(fmt.Sprint("g_", i)) == w.nodes[1]
			if far != (r.Error.GetReason() == "busy") || !far && r.Receipt.GetDeliveredSeq() != int64(i) {
				t.Errorf("mark %d: %v", i, r)
			}
		}
		for _, n := range w.nodes {
			if n.calls.Load() != 1 {
				t.Errorf("%s got %d calls", n.name, n.calls.Load())
			}
		}
	})
}

// Pickers may be changed while calls are made.
func TestUsePicker(t *testing.T) {
	still(t, []string{"a", "b", "c"}, func(t *testing.T, w *world) {
		w.caller.UsePicker("state.Members", balance.NameRoundRobin)
		for range 9 {
			if _, err := w.caller.State().Members(t.Context(), &v1.MembersRequest{ConversationId: "g"}); err != nil {
				t.Fatal(err)
			}
		}
		for _, n := range w.nodes {
			if n.calls.Load() != 3 {
				t.Errorf("%s got %d of 9 calls", n.name, n.calls.Load())
			}
		}
	})
}

// Calls stay in the zone of the caller while a healthy node is there, unless they go
// by hash: then all zones must agree.
func TestTheOwnZoneFirst(t *testing.T) {
	still(t, []string{"a", "b", "c"}, func(t *testing.T, w *world) {
		v := view(w.nodes...)
		for i, zone := range []string{"here", "there", "there"} {
			v.Nodes[i].Zone = zone
		}
		g := w.caller.state.group
		g.zone = "here"
		w.caller.Update(v)
		call := func(method string) map[string]int64 {
			t.Helper()
			for _, n := range w.nodes {
				n.calls.Store(0)
			}
			w.caller.UsePicker("state.Members", method)
			for i := range 60 {
				if _, err := w.caller.State().Members(t.Context(), &v1.MembersRequest{ConversationId: fmt.Sprint("g", i)}); err != nil {
					t.Fatal(err)
				}
			}
			got := map[string]int64{}
			for _, n := range w.nodes {
				got[n.name] = n.calls.Load()
			}
			return got
		}
		for _, picker := range []string{balance.NameRoundRobin, balance.NameWeighted, balance.NameRandom, balance.NameLeastRequest} {
			if got := call(picker); got["a"] != 60 {
				t.Errorf("%s: %v", picker, got)
			}
		}
		if got := call(balance.NameConsistentHash); got["b"] == 0 || got["c"] == 0 {
			t.Errorf("by hash: %v", got)
		}
		w.node("a").fail.Store(&im.Error{Reason: clientv1.Reason_REASON_UNAVAILABLE})
		call(balance.NameRoundRobin) // finds out
		if got := call(balance.NameRoundRobin); got["a"] != 0 || got["b"] != 30 || got["c"] != 30 {
			t.Errorf("without a healthy node in the own zone: %v", got)
		}
	})
}

// A process that has the role itself is one node among others.
func TestThisProcessIsOneOfTheNodes(t *testing.T) {
	w := newWorld(t, "a", "b")
	own := &stateNode{name: "caller"}
	w.caller.ServeState(own)
	v := view(w.nodes...)
	self := w.nodes[0].record()
	self.ID, self.Internal = "caller", ""
	v.Nodes = append(v.Nodes, self)
	w.caller.Update(v)
	for i := range 90 {
		if _, err := w.caller.State().Submit(t.Context(), submit(fmt.Sprint("g_", i))); err != nil {
			t.Fatal(err)
		}
	}
	for _, n := range append(w.nodes, own) {
		if n.calls.Load() < 10 {
			t.Errorf("%s got %d of 90 calls", n.name, n.calls.Load())
		}
	}
	w.caller.Update(view())
	if w.caller.StateHome("g") != "" {
		t.Error("with nobody else conversations have another home")
	}
	if _, err := w.caller.State().Submit(t.Context(), submit("g")); err != nil {
		t.Errorf("with nobody else: %v", err)
	}
}

// plain is a handler that does nothing, for the price of a local call.
type plain struct{ stateNode }

func (p *plain) Submit(context.Context, *v1.SubmitRequest) (*v1.SubmitResponse, error) {
	return &v1.SubmitResponse{}, nil
}

func TestALocalCallIsCheap(t *testing.T) {
	s := NewSet("n", zap.NewNop())
	s.ServeState(&plain{})
	req, client, ctx := submit("g"), s.State(), t.Context()
	allocs := testing.AllocsPerRun(1000, func() {
		if _, err := client.Submit(ctx, req); err != nil {
			t.Fatal(err)
		}
	})
	if allocs > 8 {
		t.Errorf("%v allocations", allocs)
	}
}

func BenchmarkLocalCall(b *testing.B) {
	s := NewSet("n", zap.NewNop())
	s.ServeState(&plain{})
	req, client, ctx := submit("g"), s.State(), b.Context()
	b.ReportAllocs()
	for b.Loop() {
		if _, err := client.Submit(ctx, req); err != nil {
			b.Fatal(err)
		}
	}
}

// What a call to another process costs over pipes, and as a request of HTTP/2.
func BenchmarkRemoteCall(b *testing.B) {
	for name, sec := range map[string]Security{"pipe": {}, "http": {HTTP: true}} {
		b.Run(name, func(b *testing.B) {
			w := newWorldOver(b, sec, "a", "c")
			req, client, ctx := submit("g"), w.caller.State(), b.Context()
			b.ReportAllocs()
			for b.Loop() {
				if _, err := client.Submit(ctx, req); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

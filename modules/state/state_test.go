package state

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/uuid"
	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/goleak"
	"go.uber.org/zap"

	"github.com/imdhq/imd/pkg/control"
	"github.com/imdhq/imd/pkg/dedup"
	"github.com/imdhq/imd/pkg/dedup/memory"
	"github.com/imdhq/imd/pkg/im"
	"github.com/imdhq/imd/pkg/peer"
	"github.com/imdhq/imd/pkg/store"
	v1 "github.com/imdhq/imd/proto/gen/internalv1"
	"github.com/imdhq/imd/proto/gen/internalv1/internalv1connect"
	"github.com/imdhq/imd/sdk/go/gen/clientv1"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// counter makes ids.
type counter struct {
	mu   sync.Mutex
	last im.MessageID
	err  error
	done bool

	closing error // of Close
}

func (c *counter) Next() (im.MessageID, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.last++
	return c.last, c.err
}
func (c *counter) Run(ctx context.Context) error { <-ctx.Done(); return nil }
func (c *counter) Close(context.Context) error   { c.done = true; return c.closing }

// recorder takes the calls to push and to the gateways.
type recorder struct {
	mu    sync.Mutex
	err   error
	calls int
	items []*v1.FanoutItem
	kicks []*v1.KickRequest
	nodes []im.NodeID
	deaf  int // kicks that no gateway hears
}

func (r *recorder) Fanout(_ context.Context, req *v1.FanoutRequest) (*v1.FanoutResponse, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.calls++; r.err != nil {
		return nil, r.err
	}
	r.items = append(r.items, req.Items...)
	return &v1.FanoutResponse{}, nil
}

func (r *recorder) take() []*v1.FanoutItem {
	synctest.Wait()
	r.mu.Lock()
	defer r.mu.Unlock()
	items := r.items
	r.items = nil
	return items
}

type gateway struct {
	node im.NodeID
	r    *recorder
}

func (g gateway) Kick(_ context.Context, req *v1.KickRequest) (*v1.KickResponse, error) {
	g.r.mu.Lock()
	defer g.r.mu.Unlock()
	if g.r.deaf > 0 {
		g.r.deaf--
		return nil, im.Errorf(clientv1.Reason_REASON_UNAVAILABLE, "kick", "connection refused")
	}
	g.r.kicks, g.r.nodes = append(g.r.kicks, req), append(g.r.nodes, g.node)
	return &v1.KickResponse{Ended: 1}, nil
}

// node is a running state role for a test.
type node struct {
	*State
	st    *memStore
	cache dedup.Cache
	ids   *counter
	out   *recorder
	view  *control.View
	peers *peer.Set
	ctx   context.Context
	calls internalv1connect.StateServiceClient
	dir   internalv1connect.DirectoryServiceClient
	stop  func()
}

// serve runs f with a state role that works on fake time.
func serve(t *testing.T, f func(t *testing.T, n *node)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		n := &node{st: newMemStore(), cache: memory.New(dedup.Options{}), ids: &counter{}, out: &recorder{}, view: &control.View{}, ctx: t.Context()}
		n.State = New(DefaultConfig(), Deps{
			Log: zap.NewNop(), Reg: prometheus.NewRegistry(), Node: "n1",
			Store:   func() (store.MessageStore, error) { return n.st, nil },
			Dedup:   func() (dedup.Cache, error) { return n.cache, nil },
			IDs:     func(context.Context, store.Workers) (ids, error) { return n.ids, nil },
			Push:    n.out,
			Gateway: func(id im.NodeID) gatewayClient { return gateway{id, n.out} },
			View:    func() *control.View { return n.view },
		})
		n.peers = peer.NewSet("n1", zap.NewNop(), peer.WithParity())
		n.peers.ServeState(n.State)
		n.peers.ServeDirectory(n.Directory())
		n.calls, n.dir = n.peers.State(), n.peers.Directory()
		if _, err := n.calls.Health(t.Context(), &v1.HealthRequest{}); im.ReasonOf(err) != clientv1.Reason_REASON_UNAVAILABLE {
			t.Fatalf("before the start: %v", err)
		}
		if err := n.Start(t.Context()); err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(context.Background())
		done := make(chan error)
		go func() { done <- n.Run(ctx) }()
		n.stop = sync.OnceFunc(func() {
			cancel()
			if err := <-done; err != nil {
				t.Errorf("run: %v", err)
			}
			if err := n.Close(); err != nil {
				t.Errorf("close: %v", err)
			}
		})
		defer n.stop()
		f(t, n)
	})
}

func text(s string) *clientv1.Content {
	return &clientv1.Content{Value: &clientv1.Content_Text{Text: s}}
}

// send makes a send; the same key gives the same id.
func send(key string) *v1.RunSend {
	id := uuid.NewSHA1(uuid.Nil, []byte(key))
	id[6] = id[6]&0x0f | 0x40
	hash := sha256.Sum256([]byte(key))
	return &v1.RunSend{ClientMessageId: id.String(), Content: text(key), BodyHash: hash[:]}
}

func run(conv string, keys ...string) *v1.Run {
	r := &v1.Run{ConversationId: conv, UserId: "alice", SessionId: "s1"}
	for _, k := range keys {
		r.Sends = append(r.Sends, send(k))
	}
	return r
}

// mark moves a delivered position in g_1.
func (n *node) mark(t *testing.T, user string, after, seq int64) *v1.MarkResult {
	t.Helper()
	res, err := n.calls.Mark(n.ctx, &v1.MarkRequest{Marks: []*v1.Mark{{ConversationId: "g_1", UserId: user, AfterSeq: after, Seq: seq}}})
	if err != nil {
		t.Fatal(err)
	}
	return res.Results[0]
}

// submit sends one run and describes its answers.
func (n *node) submit(t *testing.T, r *v1.Run) []string {
	t.Helper()
	res, err := n.calls.Submit(n.ctx, &v1.SubmitRequest{Runs: []*v1.Run{r}})
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for i, a := range res.Runs[0].Acks {
		if a.ClientMessageId != r.Sends[i].ClientMessageId {
			t.Fatalf("answer %d is of another send", i)
		}
		switch {
		case a.Status == clientv1.Ack_ACK_OK && a.Duplicate:
			got = append(got, fmt.Sprintf("dup %d", a.Seq))
		case a.Status == clientv1.Ack_ACK_OK:
			got = append(got, fmt.Sprintf("ok %d", a.Seq))
		default:
			got = append(got, strings.ToLower(strings.TrimPrefix(a.Status.String(), "ACK_"))+" "+a.Error.Reason)
		}
	}
	return got
}

func want(t *testing.T, got []string, want ...string) {
	t.Helper()
	if fmt.Sprint(got) != fmt.Sprint(want) {
		t.Fatalf("got %q, want %q", got, want)
	}
}

func TestSubmitStoresAnswersAndFansOut(t *testing.T) {
	serve(t, func(t *testing.T, n *node) {
		n.st.group("g_1", "alice", "bob")
		want(t, n.submit(t, run("g_1", "a", "b")), "ok 1", "ok 2")
		items := n.out.take()
		if len(items) != 2 {
			t.Fatalf("%d items", len(items))
		}
		e := items[1].GetEntry()
		if items[1].ExcludeSession != "s1" || items[1].MemberVersion != 1 || items[1].CommitNs == 0 || items[1].ConversationId != "g_1" {
			t.Errorf("item %v", items[1])
		}
		if e.Seq != 2 || e.PrevSeq != 1 || e.Sender != "alice" || e.Content.GetText() != "b" || !e.Countable ||
			e.Kind != clientv1.EntryKind_ENTRY_KIND_MESSAGE || e.ClientMessageId != send("b").ClientMessageId || e.MessageId == 0 {
			t.Errorf("entry %v", e)
		}
	})
}

func TestSubmitMakesADirectConversation(t *testing.T) {
	serve(t, func(t *testing.T, n *node) {
		r := run("d_1", "a")
		want(t, n.submit(t, r), "fail not_member")
		r.PeerId = "bob"
		want(t, n.submit(t, r), "ok 1")
	})
}

func TestARepeatedSendHintsAtMostOnceInFiveSeconds(t *testing.T) {
	serve(t, func(t *testing.T, n *node) {
		n.st.group("g_1", "alice", "bob")
		n.submit(t, run("g_1", "a"))
		n.out.take()
		hints := func() int {
			want(t, n.submit(t, run("g_1", "a")), "dup 1")
			items := n.out.take()
			for _, it := range items {
				if it.GetHead().GetSeq() != 1 || it.ExcludeSession != "s1" {
					t.Errorf("item %v", it)
				}
			}
			return len(items)
		}
		if got := hints() + hints(); got != 1 {
			t.Errorf("%d hints at once", got)
		}
		time.Sleep(hintEvery)
		if got := hints(); got != 1 {
			t.Errorf("%d hints after five seconds", got)
		}
		time.Sleep(hintWithin)
		if got := hints(); got != 0 {
			t.Errorf("%d hints ten minutes later", got)
		}
	})
}

func TestSubmitChecksEachSend(t *testing.T) {
	for name, tt := range map[string]struct {
		change func(*v1.Run, *v1.RunSend)
		want   string
	}{
		"uuid":       {func(_ *v1.Run, s *v1.RunSend) { s.ClientMessageId = strings.ToUpper(s.ClientMessageId) }, "fail bad_request"},
		"version 7":  {func(_ *v1.Run, s *v1.RunSend) { s.ClientMessageId = "019ad5f0-6f0e-7c1e-9d27-3b1f6a2e7c01" }, "ok 1"},
		"version 8":  {func(_ *v1.Run, s *v1.RunSend) { s.ClientMessageId = "019ad5f0-6f0e-8c1e-9d27-3b1f6a2e7c01" }, "fail bad_request"},
		"edit":       {func(_ *v1.Run, s *v1.RunSend) { s.Kind = clientv1.EntryKind_ENTRY_KIND_EDIT }, "fail unsupported"},
		"kind":       {func(_ *v1.Run, s *v1.RunSend) { s.Kind = clientv1.EntryKind_ENTRY_KIND_MEMBER_CHANGE }, "fail bad_request"},
		"content":    {func(_ *v1.Run, s *v1.RunSend) { s.Content = nil }, "fail bad_request"},
		"size":       {func(_ *v1.Run, s *v1.RunSend) { s.Content = text(strings.Repeat("x", 16385)) }, "fail too_large"},
		"hash":       {func(_ *v1.Run, s *v1.RunSend) { s.BodyHash = nil }, "fail bad_request"},
		"target":     {func(_ *v1.Run, s *v1.RunSend) { s.TargetSeq = 1 }, "fail bad_request"},
		"peer":       {func(r *v1.Run, _ *v1.RunSend) { r.PeerId = "a b" }, "fail invalid_id"},
		"nowhere":    {func(r *v1.Run, _ *v1.RunSend) { r.ConversationId = "" }, "fail bad_request"},
		"not member": {func(r *v1.Run, _ *v1.RunSend) { r.UserId = "eve" }, "fail not_member"},
	} {
		t.Run(name, func(t *testing.T) {
			serve(t, func(t *testing.T, n *node) {
				n.st.group("g_1", "alice")
				r := run("g_1", "a")
				tt.change(r, r.Sends[0])
				want(t, n.submit(t, r), tt.want)
			})
		})
	}
}

func TestAFailedSendHoldsNothingBack(t *testing.T) {
	serve(t, func(t *testing.T, n *node) {
		n.st.group("g_1", "alice")
		r := run("g_1", "a", "b", "c")
		r.Sends[1].TargetSeq = 1
		want(t, n.submit(t, r), "ok 1", "fail bad_request", "ok 2")
	})
}

func TestWithoutIDsSendsAreRetried(t *testing.T) {
	serve(t, func(t *testing.T, n *node) {
		n.st.group("g_1", "alice")
		n.ids.err = errors.New("the clock is behind")
		want(t, n.submit(t, run("g_1", "a", "b")), "retry unavailable", "retry behind")
		_, err := n.calls.Change(n.ctx, changeRequest("r", &v1.ChangeRequest_Rename{Rename: &v1.Rename{Name: "x"}}))
		if im.ReasonOf(err) != clientv1.Reason_REASON_UNAVAILABLE {
			t.Errorf("change: %v", err)
		}
	})
}

func TestTooManySendsInACall(t *testing.T) {
	serve(t, func(t *testing.T, n *node) {
		_, err := n.calls.Submit(n.ctx, &v1.SubmitRequest{Runs: []*v1.Run{{Sends: make([]*v1.RunSend, maxCallSends+1)}}})
		if im.ReasonOf(err) != clientv1.Reason_REASON_BAD_REQUEST {
			t.Fatal(err)
		}
		if res, err := n.calls.Submit(n.ctx, &v1.SubmitRequest{}); err != nil || len(res.Runs) != 0 {
			t.Fatal(res, err)
		}
	})
}

func TestAStalledStoreNeverDelaysAnAnswerPastItsTime(t *testing.T) {
	serve(t, func(t *testing.T, n *node) {
		n.st.group("g_1", "alice", "bob")
		stalled := make(chan struct{})
		n.st.setFault(func(op string, after bool) error {
			if op == "Append" && !after {
				<-stalled
			}
			return nil
		})
		begin := time.Now()
		want(t, n.submit(t, run("g_1", "a", "b")), "retry unavailable", "retry behind")
		if took := time.Since(begin); took > patience || took < patience-2*headroom {
			t.Errorf("answered after %v", took)
		}
		if _, err := n.calls.Health(n.ctx, &v1.HealthRequest{}); im.ReasonOf(err) != clientv1.Reason_REASON_UNAVAILABLE {
			t.Errorf("health of a stuck lane: %v", err)
		}
		if s := n.ready(n.ctx); s.Ready || s.Reason == "" {
			t.Errorf("ready %+v", s)
		}
		close(stalled)
		synctest.Wait()
		want(t, n.submit(t, run("g_1", "a", "b", "c")), "dup 1", "dup 2", "ok 3")
		if _, err := n.calls.Health(n.ctx, &v1.HealthRequest{}); err != nil {
			t.Errorf("health: %v", err)
		}
	})
}

func TestAnUnknownOutcomeIsFoundOut(t *testing.T) {
	serve(t, func(t *testing.T, n *node) {
		n.st.group("g_1", "alice", "bob")
		for _, stored := range []bool{false, true} {
			left := 3
			n.st.setFault(func(op string, after bool) error {
				if op == "Append" && after == stored && left > 0 {
					left--
					return fmt.Errorf("reset: %w", store.ErrUnknownOutcome)
				}
				return nil
			})
			n.out.take()
			want(t, n.submit(t, run("g_1", fmt.Sprint(stored))), map[bool]string{false: "ok 1", true: "ok 2"}[stored])
			if items := n.out.take(); len(items) != 1 || items[0].GetEntry() == nil {
				t.Errorf("items %v", items)
			}
		}
	})
}

// Somebody else holds the row of one conversation: the others of its lane go on
// without it.
func TestAHeldConversationStopsNoOther(t *testing.T) {
	serve(t, func(t *testing.T, n *node) {
		for i := range 4 { // some share a lane
			n.st.group(im.ConversationID(fmt.Sprint("g_", i)), "alice", "bob")
		}
		n.st.hold("g_0", true)
		want(t, n.submit(t, run("g_0", "a", "b")), "retry busy", "retry behind")
		began := time.Now()
		for i := range 3 {
			want(t, n.submit(t, run(fmt.Sprint("g_", i+1), "a")), "ok 1")
		}
		calls := n.st.count("Append")
		res, err := n.calls.Submit(n.ctx, &v1.SubmitRequest{Runs: []*v1.Run{run("g_0", "a")}})
		if err != nil {
			t.Fatal(err)
		}
		if a := res.Runs[0].Acks[0]; a.Error.GetReason() != "busy" || a.Error.RetryAfterMs == 0 {
			t.Errorf("answer %v", a)
		}
		if time.Since(began) > 0 || n.st.count("Append") != calls {
			t.Error("a held conversation was waited for")
		}
		n.st.hold("g_0", false)
		time.Sleep(time.Duration(res.Runs[0].Acks[0].Error.RetryAfterMs) * time.Millisecond)
		want(t, n.submit(t, run("g_0", "a", "b")), "ok 1", "ok 2")
		if n.st.noWaits != 2 {
			t.Errorf("%d rows did not want to wait, want 2", n.st.noWaits)
		}
	})
}

// A batch of unknown outcome meets a held conversation: whether it is stored is
// found out later, by itself, and then told to the members once.
func TestAnUnknownOutcomeInAHeldConversationIsFoundOut(t *testing.T) {
	serve(t, func(t *testing.T, n *node) {
		n.st.group("g_1", "alice", "bob")
		n.st.setFault(func(op string, after bool) error {
			if !after {
				return nil
			}
			n.st.hold("g_1", true)
			n.st.setFault(nil)
			return store.ErrUnknownOutcome
		})
		want(t, n.submit(t, run("g_1", "a")), "retry unavailable") // at the end of its patience
		if items := n.out.take(); len(items) != 0 {
			t.Fatalf("told %v before it was known", items)
		}
		n.st.hold("g_1", false)
		time.Sleep(5 * time.Second)
		if items := n.out.take(); len(items) != 1 || items[0].GetEntry().GetSeq() != 1 || items[0].ExcludeSession != "" {
			t.Fatalf("items %v", items)
		}
		want(t, n.submit(t, run("g_1", "a")), "dup 1")
	})
}

func TestAnIDWithOtherContentIsRefused(t *testing.T) {
	serve(t, func(t *testing.T, n *node) {
		n.st.group("g_1", "alice")
		want(t, n.submit(t, run("g_1", "a")), "ok 1")
		other := run("g_1", "b")
		other.Sends[0].ClientMessageId, other.Sends[0].Resend = send("a").ClientMessageId, true
		want(t, n.submit(t, other), "fail id_reused")
		want(t, n.submit(t, run("g_1", "a")), "dup 1")
	})
}

func TestAPanicInTheStoreIsAnUnknownOutcome(t *testing.T) {
	serve(t, func(t *testing.T, n *node) {
		n.st.group("g_1", "alice")
		left := 2
		n.st.setFault(func(string, bool) error {
			if left--; left >= 0 {
				panic("driver")
			}
			return nil
		})
		want(t, n.submit(t, run("g_1", "a")), "ok 1")
	})
}

func TestACallerWhoGoesAwayLeavesNothing(t *testing.T) {
	serve(t, func(t *testing.T, n *node) {
		n.st.group("g_1", "alice")
		stalled := make(chan struct{})
		n.st.setFault(func(string, bool) error { <-stalled; return nil })
		ctx, cancel := context.WithCancel(n.ctx)
		var wg sync.WaitGroup
		for _, k := range []string{"a", "b"} {
			wg.Go(func() { n.State.Submit(ctx, &v1.SubmitRequest{Runs: []*v1.Run{run("g_1", k)}}) })
			synctest.Wait()
		}
		cancel()
		wg.Wait()
		close(stalled)
		synctest.Wait()
		if got := len(n.st.convs["g_1"].log); got != 1 {
			t.Errorf("%d stored: what was queued behind the call that was out is dropped", got)
		}
	})
}

func TestFanoutKeepsTheOrderOfSendsAndChanges(t *testing.T) {
	serve(t, func(t *testing.T, n *node) {
		n.st.group("g_1", "alice", "bob")
		var wg sync.WaitGroup
		for i := range 20 {
			wg.Go(func() { n.submit(t, run("g_1", fmt.Sprint("m", i))) })
			wg.Go(func() {
				req := changeRequest(fmt.Sprint("c", i), &v1.ChangeRequest_Rename{Rename: &v1.Rename{Name: "x"}})
				if _, err := n.calls.Change(n.ctx, req); err != nil {
					t.Error(err)
				}
			})
		}
		wg.Wait()
		items := n.out.take()
		if len(items) != 40 {
			t.Fatalf("%d items", len(items))
		}
		for i, it := range items {
			if it.GetEntry().Seq != int64(i+1) {
				t.Fatalf("item %d has seq %d", i, it.GetEntry().Seq)
			}
		}
	})
}

func TestDrainRefusesFinishesAndSaves(t *testing.T) {
	serve(t, func(t *testing.T, n *node) {
		n.st.group("g_1", "alice", "bob")
		n.view.Nodes = []control.Node{{ID: "n1"}, {ID: "n2"}}
		n.submit(t, run("g_1", "a"))
		n.mark(t, "bob", 0, 1)
		drained := make(chan time.Time)
		begin := time.Now()
		go func() {
			n.Drain(n.ctx)
			drained <- time.Now()
		}()
		time.Sleep(drainNews / 2)
		want(t, n.submit(t, run("g_1", "b")), "ok 2") // others do not know yet
		time.Sleep(drainNews)
		want(t, n.submit(t, run("g_1", "c")), "retry unavailable")
		if took := (<-drained).Sub(begin); took > drainNews+drainLanes {
			t.Errorf("drained after %v", took)
		}
		if got := n.st.convs["g_1"].members["bob"].Delivered; got != 1 {
			t.Errorf("delivered %d after the drain", got)
		}
	})
}

// A node that leaves others behind refuses calls as a whole, so that they are made
// there; their answers are not the clients' business.
func TestADrainingNodeSendsCallsToTheOthers(t *testing.T) {
	serve(t, func(t *testing.T, n *node) {
		n.st.group("g_1", "alice", "bob")
		n.view.Nodes = []control.Node{{ID: n.Node, Roles: []string{"state"}}, {ID: "other", Roles: []string{"state"}, State: control.Serving}}
		n.submit(t, run("g_1", "a"))
		n.Drain(n.ctx)
		_, err := n.calls.Submit(n.ctx, &v1.SubmitRequest{Runs: []*v1.Run{run("g_1", "b")}})
		if im.ReasonOf(err) != clientv1.Reason_REASON_UNAVAILABLE {
			t.Errorf("a call after the drain: %v", err)
		}
	})
}

func TestStopAnswersWhoWaits(t *testing.T) {
	serve(t, func(t *testing.T, n *node) {
		n.st.group("g_1", "alice", "bob")
		n.st.setFault(func(op string, _ bool) error { time.Sleep(50 * time.Millisecond); return store.ErrUnknownOutcome })
		got := make(chan []string)
		go func() { got <- n.submit(t, run("g_1", "a", "b")) }()
		time.Sleep(300 * time.Millisecond)
		n.stop()
		want(t, <-got, "retry unavailable", "retry behind")
		if !n.ids.done {
			t.Error("the ids were not given back")
		}
		if _, err := n.calls.Health(n.ctx, &v1.HealthRequest{}); im.ReasonOf(err) != clientv1.Reason_REASON_UNAVAILABLE {
			t.Errorf("after close: %v", err)
		}
	})
}

// Without etcd a worker number cannot be given back; the node stops in order all
// the same, and the number expires.
func TestStopsInOrderWhenIDsCannotBeGivenBack(t *testing.T) {
	serve(t, func(t *testing.T, n *node) {
		n.ids.closing = errors.New("away")
		n.stop() // fails the test on an error
		if !n.ids.done {
			t.Error("it was not tried")
		}
	})
}

func TestStartFailsWithoutAStoreOrIDs(t *testing.T) {
	away := errors.New("away")
	d := Deps{
		Log: zap.NewNop(), Reg: prometheus.NewRegistry(),
		Store: func() (store.MessageStore, error) { return nil, away },
	}
	if err := New(DefaultConfig(), d).Start(t.Context()); !errors.Is(err, away) {
		t.Errorf("store: %v", err)
	}
	d.Reg = prometheus.NewRegistry()
	d.Store = func() (store.MessageStore, error) { return newMemStore(), nil }
	d.Dedup = func() (dedup.Cache, error) { return memory.New(dedup.Options{}), nil }
	d.IDs = func(context.Context, store.Workers) (ids, error) { return nil, away }
	if err := New(DefaultConfig(), d).Start(t.Context()); !errors.Is(err, away) {
		t.Errorf("ids: %v", err)
	}
}

func TestConfigBounds(t *testing.T) {
	for lanes, ok := range map[int]bool{-1: false, 0: true, 16: true, 17: false} {
		if err := (Config{Lanes: lanes}).Validate(); (err == nil) != ok {
			t.Errorf("%d lanes: %v", lanes, err)
		}
	}
}

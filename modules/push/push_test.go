package push

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cespare/xxhash/v2"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"go.uber.org/goleak"
	"go.uber.org/zap"
	"google.golang.org/protobuf/proto"

	"github.com/imdhq/imd/pkg/control"
	"github.com/imdhq/imd/pkg/im"
	"github.com/imdhq/imd/pkg/store"
	v1 "github.com/imdhq/imd/proto/gen/internalv1"
	"github.com/imdhq/imd/sdk/go/gen/clientv1"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// world answers for state, the route store and the gateways.
type world struct {
	mu      sync.Mutex
	members map[string]*v1.MembersResponse
	loads   int
	routes  map[im.UserID][]store.Route
	got     map[im.NodeID][]*v1.Delivery
	calls   int
	hang    map[im.NodeID]chan struct{}
	failing int             // Members calls that still fail
	gone    map[string]bool // sessions that their gateway does not have
	view    *control.View   // nil = this process is all
	raw     map[im.NodeID][]*v1.Delivery
	bulk    chan struct{} // calls about large groups wait for it; nil = none does

	audience int // sessions of each gateway that an audience has

	onDeliver func(im.NodeID, *v1.Delivery) // nil = nobody wants to know
}

func (w *world) Members(_ context.Context, r *v1.MembersRequest) (*v1.MembersResponse, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.loads++
	if w.failing > 0 {
		w.failing--
		return nil, im.Errorf(clientv1.Reason_REASON_UNAVAILABLE, "t", "away")
	}
	all := w.members[r.ConversationId]
	page := proto.Clone(all).(*v1.MembersResponse)
	page.Members = slices.DeleteFunc(page.Members, func(m *v1.Member) bool { return m.UserId <= r.AfterUserId })
	page.End = len(page.Members) <= int(r.Limit)
	page.Members = page.Members[:min(len(page.Members), int(r.Limit))]
	return page, nil
}

func (w *world) Recent(_ context.Context, users []im.UserID) (out []store.Route, _ error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, u := range users {
		out = append(out, w.routes[u]...)
	}
	return out, nil
}

func (w *world) Release(_ context.Context, user im.UserID, session im.SessionID, epoch uint64) (bool, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	before := len(w.routes[user])
	w.routes[user] = slices.DeleteFunc(w.routes[user], func(r store.Route) bool { return r.Session == session && r.Epoch == epoch })
	return len(w.routes[user]) < before, nil
}

type gate struct {
	w    *world
	node im.NodeID
}

func (g gate) Deliver(_ context.Context, r *v1.DeliverRequest) (*v1.DeliverResponse, error) {
	if c := g.w.hang[g.node]; c != nil {
		<-c
	}
	if g.w.bulk != nil && r.Deliveries[0].Audience != nil {
		<-g.w.bulk
	}
	g.w.mu.Lock()
	defer g.w.mu.Unlock()
	g.w.calls++
	g.w.raw[g.node] = append(g.w.raw[g.node], r.Deliveries...)
	res := &v1.DeliverResponse{}
	for _, d := range r.Deliveries {
		res.Sessions = append(res.Sessions, int32(g.w.audience))
		if g.w.onDeliver != nil {
			g.w.onDeliver(g.node, d)
		}
		g.w.got[g.node] = append(g.w.got[g.node], single(d)...)
		for _, id := range d.SessionIds {
			if g.w.gone[id] {
				res.NotHere = append(res.NotHere, id)
			}
		}
	}
	return res, nil
}

// single takes a delivery apart into one for each frame.
func single(d *v1.Delivery) (out []*v1.Delivery) {
	for _, f := range append([]*v1.Delivery{d}, d.Following...) {
		ids := slices.DeleteFunc(slices.Clone(d.SessionIds), func(id string) bool { return id == f.ExcludeSessionId })
		out = append(out, &v1.Delivery{ConversationId: d.ConversationId, Seq: f.Seq, Frame: f.Frame, SessionIds: ids, Acked: f.Acked, CommitNs: f.CommitNs})
	}
	return out
}

func newWorld() *world {
	return &world{members: map[string]*v1.MembersResponse{}, routes: map[im.UserID][]store.Route{},
		got: map[im.NodeID][]*v1.Delivery{}, raw: map[im.NodeID][]*v1.Delivery{}, hang: map[im.NodeID]chan struct{}{}}
}

func (w *world) join(conv string, version int64, users ...string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	r := &v1.MembersResponse{MemberVersion: version, MemberCount: int32(len(users))}
	slices.Sort(users)
	for _, u := range users {
		r.Members = append(r.Members, &v1.Member{UserId: u})
	}
	w.members[conv] = r
}

func (w *world) online(user string, node im.NodeID, session string) {
	w.routes[im.UserID(user)] = append(w.routes[im.UserID(user)], store.Route{User: im.UserID(user), Node: node, Session: im.SessionID(session)})
}

// run fans items out inside a bubble of time and stops when all has left.
func (w *world) run(t *testing.T, cfg Config, do func(p *Push)) {
	t.Helper()
	var view func() *control.View
	if w.view != nil {
		view = func() *control.View { return w.view }
	}
	p := New(cfg, Deps{Log: zap.NewNop(), Reg: prometheus.NewRegistry(), State: w, View: view,
		Gateway: func(n nodeID) gatewayClient { return gate{w, n} },
		Routes:  func() (routes, error) { return w, nil }})
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	wg.Go(func() { _ = p.Run(ctx) })
	do(p)
	dctx, dcancel := context.WithTimeout(context.Background(), time.Minute)
	_ = p.Drain(dctx)
	dcancel()
	cancel()
	wg.Wait()
}

func entry(conv string, seq int64) *v1.FanoutItem {
	return &v1.FanoutItem{ConversationId: conv, MemberVersion: 1,
		What: &v1.FanoutItem_Entry{Entry: &clientv1.Entry{Seq: seq, PrevSeq: seq - 1}}}
}

func put(t *testing.T, p *Push, items ...*v1.FanoutItem) {
	t.Helper()
	if _, err := p.Fanout(context.Background(), &v1.FanoutRequest{Items: items}); err != nil {
		t.Error(err)
	}
}

func TestEveryConversationLeavesInOrder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld()
		for c := range 20 {
			w.join(fmt.Sprint("g_", c), 1, "ann", "bob")
		}
		w.online("ann", "n1", "s1")
		w.online("bob", "n2", "s2")
		w.run(t, DefaultConfig(), func(p *Push) {
			for seq := range int64(300) {
				for c := range 20 {
					put(t, p, entry(fmt.Sprint("g_", c), seq+1))
				}
			}
		})
		for _, n := range []im.NodeID{"n1", "n2"} {
			last := map[string]int64{}
			for _, d := range w.got[n] {
				if d.Seq != last[d.ConversationId]+1 {
					t.Fatalf("%s: %s has %d after %d", n, d.ConversationId, d.Seq, last[d.ConversationId])
				}
				last[d.ConversationId] = d.Seq
			}
			if len(w.got[n]) != 6000 {
				t.Errorf("%s got %d deliveries, want 6000", n, len(w.got[n]))
			}
		}
		if w.loads != 20 {
			t.Errorf("%d member loads, want one a conversation", w.loads)
		}
	})
}

func TestWhoGetsAnItem(t *testing.T) {
	newcomer := func(w *world) { w.members["g_1"].Members[1].Start = 10 }
	tests := []struct {
		name  string
		setup func(*world)
		item  *v1.FanoutItem
		want  []string
	}{
		{name: "all members, the sender's other session too", item: &v1.FanoutItem{ExcludeSession: "a1"}, want: []string{"a2", "b1", "c1"}},
		{name: "a newcomer gets nothing from before", setup: newcomer, want: []string{"a1", "a2", "c1"}},
		{name: "who was removed by it", item: &v1.FanoutItem{AlsoUserIds: []string{"dan"}}, want: []string{"a1", "a2", "b1", "c1", "d1"}},
		{name: "only the named", item: &v1.FanoutItem{OnlyUserIds: []string{"ann"}, ExcludeSession: "a2"}, want: []string{"a1"}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWorld()
				w.join("g_1", 1, "ann", "bob", "carl")
				for s, u := range map[string]string{"a1": "ann", "a2": "ann", "b1": "bob", "c1": "carl", "d1": "dan"} {
					w.online(u, "n1", s)
				}
				if tt.setup != nil {
					tt.setup(w)
				}
				it := entry("g_1", 5)
				if tt.item != nil {
					it.ExcludeSession, it.AlsoUserIds, it.OnlyUserIds = tt.item.ExcludeSession, tt.item.AlsoUserIds, tt.item.OnlyUserIds
				}
				w.run(t, DefaultConfig(), func(p *Push) { put(t, p, it) })
				var got []string
				for _, d := range w.got["n1"] {
					got = append(got, d.SessionIds...)
				}
				slices.Sort(got)
				if !slices.Equal(got, tt.want) {
					t.Errorf("went to %v, want %v", got, tt.want)
				}
			})
		})
	}
}

// What comes together goes out together, and everyone gets what one alone would.
func TestEntriesThatCameTogetherGoToTheRightSessions(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld()
		w.join("g_1", 7, "ann", "bob", "carl", "dan")
		w.members["g_1"].Members[3].Start = 6 // dan came with the entry 6
		for s, u := range map[string]string{"a1": "ann", "a2": "ann", "b1": "bob", "c1": "carl", "d1": "dan"} {
			w.online(u, "n1", s)
		}
		var items []*v1.FanoutItem
		for seq := range int64(20) {
			it := entry("g_1", seq+1)
			it.MemberVersion = 7
			it.ExcludeSession = []string{"a1", "b1", "a1", "d1"}[seq%4]
			items = append(items, it)
		}
		items[10].AlsoUserIds = []string{"eve"} // goes alone
		w.online("eve", "n1", "e1")
		items = slices.Insert(items, 15, &v1.FanoutItem{ConversationId: "g_1", MemberVersion: 7, OnlyUserIds: []string{"bob"},
			What: &v1.FanoutItem_Receipt{Receipt: &clientv1.Receipt{}}})
		w.run(t, DefaultConfig(), func(p *Push) {
			put(t, p, items[0]) // holds the conversation while the others gather
			put(t, p, items[1:]...)
		})
		got := map[string][]int64{}
		for _, d := range w.got["n1"] {
			for _, id := range d.SessionIds {
				got[id] = append(got[id], d.Seq)
			}
		}
		for _, id := range []string{"a1", "a2", "b1", "c1", "d1", "e1"} {
			var want []int64
			for _, it := range items {
				e := it.GetEntry()
				switch {
				case e == nil && id == "b1":
					want = append(want, 0)
				case e == nil, it.ExcludeSession == id, id == "d1" && e.Seq <= 6, id == "e1" && e.Seq != 11:
				default:
					want = append(want, e.Seq)
				}
			}
			if !slices.Equal(got[id], want) {
				t.Errorf("%s got %v, want %v", id, got[id], want)
			}
		}
		if w.calls > 6 { // two items go alone
			t.Errorf("%d calls for 21 items", w.calls)
		}
	})
}

func TestAChangedMembershipIsReadAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld()
		w.join("g_1", 1, "ann")
		w.online("ann", "n1", "a1")
		w.online("bob", "n1", "b1")
		w.run(t, DefaultConfig(), func(p *Push) {
			put(t, p, entry("g_1", 1))
			synctest.Wait()
			w.join("g_1", 2, "ann", "bob")
			it := entry("g_1", 2)
			it.MemberVersion = 2
			put(t, p, it)
		})
		if last := w.got["n1"][len(w.got["n1"])-1]; len(last.SessionIds) != 2 {
			t.Errorf("the second entry went to %v, want both", last.SessionIds)
		}
	})
}

func TestAGroupOfThousandsIsReadInPagesAndLeavesInChunks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld()
		var users []string
		for i := range 2500 {
			u := fmt.Sprintf("u%05d", i)
			users = append(users, u)
			w.online(u, "n1", "s-"+u)
		}
		w.join("g_1", 1, users...)
		w.run(t, DefaultConfig(), func(p *Push) { put(t, p, entry("g_1", 1)) })
		total := 0
		for _, d := range w.got["n1"] {
			if len(d.SessionIds) > chunk {
				t.Errorf("a delivery names %d sessions", len(d.SessionIds))
			}
			total += len(d.SessionIds)
		}
		if total != 2500 || w.loads != 3 {
			t.Errorf("%d sessions in %d loads, want 2500 in 3", total, w.loads)
		}
	})
}

func TestAHungGatewayDelaysNobodyElse(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld()
		w.join("g_1", 1, "ann", "bob")
		w.online("ann", "n1", "a1")
		w.online("bob", "n2", "b1")
		w.hang["n1"] = make(chan struct{})
		w.run(t, DefaultConfig(), func(p *Push) {
			for seq := range int64(50) {
				put(t, p, entry("g_1", seq+1))
			}
			synctest.Wait()
			w.mu.Lock()
			n := len(w.got["n2"])
			w.mu.Unlock()
			if n != 50 {
				t.Errorf("bob got %d of 50 while ann's gateway hangs", n)
			}
			close(w.hang["n1"])
		})
		if len(w.got["n1"]) != 50 {
			t.Errorf("ann got %d of 50 after it", len(w.got["n1"]))
		}
	})
}

func TestAShortOutageOfStateLosesNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld()
		w.join("g_1", 1, "ann")
		w.online("ann", "n1", "a1")
		w.failing = 2
		w.run(t, DefaultConfig(), func(p *Push) { put(t, p, entry("g_1", 1)) })
		if len(w.got["n1"]) != 1 {
			t.Errorf("%d deliveries, want 1", len(w.got["n1"]))
		}
	})
}

// What does not fit is answered busy, counted by items and by bytes, while lists of
// members are waited for; there is room again once it has left.
func TestAFullQueueIsAnswered(t *testing.T) {
	large := entry("g_1", 1)
	large.GetEntry().Content = &clientv1.Content{Value: &clientv1.Content_Text{Text: strings.Repeat("x", 16<<10)}}
	for why, one := range map[full]*v1.FanoutItem{tooManyItems: entry("g_1", 1), tooManyBytes: large} {
		t.Run(string(why), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWorld()
				w.join("g_1", 1, "ann")
				w.online("ann", "n1", "a1")
				w.failing = 1 // the first one waits for its members meanwhile
				cfg := Config{Workers: 1, Queue: 2000, QueueBytes: 4 << 20}
				w.run(t, cfg, func(p *Push) {
					busy := func() bool {
						_, err := p.Fanout(t.Context(), &v1.FanoutRequest{Items: []*v1.FanoutItem{one}})
						if err != nil && im.ReasonOf(err) != clientv1.Reason_REASON_BUSY {
							t.Fatalf("got %v, want busy", err)
						}
						return err != nil
					}
					n := 0
					for !busy() {
						n++
					}
					bytes := n * (itemBytes + len(one.GetEntry().GetContent().GetText()))
					if held := p.queue.held(); held != bytes || held > cfg.QueueBytes || n > cfg.Queue || n < 200 {
						t.Errorf("%d items take %d bytes, %d are counted", n, bytes, held)
					}
					if got := testutil.ToFloat64(p.m.refused.WithLabelValues(string(why))); got != 1 {
						t.Errorf("%v refusals are counted", got)
					}
					time.Sleep(2 * pause)
					if busy() || p.queue.held() > cfg.QueueBytes/2 {
						t.Errorf("%d bytes wait after it has left", p.queue.held())
					}
				})
			})
		})
	}
}

// What waits for a gateway that hangs is bounded in bytes; the oldest make room.
func TestWhatWaitsForAGatewayIsBounded(t *testing.T) {
	m := newMetrics(prometheus.NewRegistry(), func() int { return 0 })
	s := newSenders(Deps{}, m, nil)
	s.outlets[outletKey{"n1", 0, false}] = &outlet{busy: true}
	conv := ""
	for i := 0; xxhash.Sum64String(conv)%shards != 0; i++ {
		conv = fmt.Sprint("g_", i)
	}
	const size, most = 1 << 20, maxWaitingBytes >> 20
	for seq := range int64(most + 10) {
		s.add(t.Context(), "n1", newParcel(&v1.Delivery{ConversationId: conv, Seq: seq, Frame: make([]byte, size)}, nil, nil))
	}
	o := s.outlets[outletKey{"n1", 0, false}]
	if len(o.waiting) != most || o.waiting[0].Seq != 10 || o.bytes != most*size || s.pending() != most {
		t.Errorf("%d wait with %d bytes, the first is %d", len(o.waiting), o.bytes, o.waiting[0].Seq)
	}
	if got := testutil.ToFloat64(m.dropped.WithLabelValues("gateway")); got != 10 {
		t.Errorf("%v are counted as dropped", got)
	}
}

// A node that drains beside another one takes what comes until the news of it
// has travelled, then refuses it, and nothing that it took is lost.
func TestADrainingNodeLosesNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld()
		w.join("g_1", 1, "ann")
		w.online("ann", "g1", "s1")
		view := &control.View{Nodes: []control.Node{
			{ID: "p1", Roles: []string{"push"}, State: control.Serving}, {ID: "p2", Roles: []string{"push"}, State: control.Serving}}}
		p := New(DefaultConfig(), Deps{Log: zap.NewNop(), Reg: prometheus.NewRegistry(), State: w,
			Node: "p1", View: func() *control.View { return view },
			Gateway: func(n nodeID) gatewayClient { return gate{w, n} },
			Routes:  func() (routes, error) { return w, nil }})
		ctx, cancel := context.WithCancel(context.Background())
		var wg sync.WaitGroup
		wg.Go(func() { _ = p.Run(ctx) })
		drained := make(chan struct{})
		go func() { defer close(drained); _ = p.Drain(ctx) }()
		time.Sleep(drainNews / 2)
		put(t, p, entry("g_1", 1))
		time.Sleep(drainNews)
		if _, err := p.Fanout(ctx, &v1.FanoutRequest{Items: []*v1.FanoutItem{entry("g_1", 2)}}); im.ReasonOf(err) != clientv1.Reason_REASON_UNAVAILABLE {
			t.Errorf("after the news have travelled: %v", err)
		}
		<-drained
		cancel()
		wg.Wait()
		if got := len(w.got["g1"]); got != 1 {
			t.Errorf("%d deliveries; want the 1 that was taken", got)
		}
	})
}

// A route to a session that its gateway does not have is removed, and no other.
func TestStaleRoutesAreRemoved(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld()
		w.join("g_1", 1, "a", "b")
		w.online("a", "n1", "s1")
		w.online("a", "n1", "s2")
		w.online("b", "n1", "s3")
		w.gone = map[string]bool{"s2": true}
		w.run(t, DefaultConfig(), func(p *Push) { put(t, p, entry("g_1", 1)) })
		if len(w.routes["a"]) != 1 || w.routes["a"][0].Session != "s1" || len(w.routes["b"]) != 1 {
			t.Errorf("routes left: %v", w.routes)
		}
	})
}

package gateway

import (
	"context"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"
	"google.golang.org/protobuf/proto"

	"github.com/imdhq/imd/pkg/im"
	"github.com/imdhq/imd/pkg/testenv"
	v1 "github.com/imdhq/imd/proto/gen/internalv1"
	"github.com/imdhq/imd/sdk/go/gen/clientv1"
	"github.com/imdhq/imd/sdk/go/protocol"
)

// roster answers for state what the members of a group are.
type roster struct {
	mu      sync.Mutex
	version int64
	starts  map[string]int64
	asked   int
	failing int           // calls that still fail
	gate    chan struct{} // calls wait for it; nil = none does
}

func (r *roster) Members(ctx context.Context, q *v1.MembersRequest) (*v1.MembersResponse, error) {
	r.mu.Lock()
	gate := r.gate
	r.mu.Unlock()
	if gate != nil {
		select {
		case <-gate:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.asked++
	if r.failing > 0 {
		r.failing--
		return nil, im.Errorf(clientv1.Reason_REASON_UNAVAILABLE, "test", "away")
	}
	res := &v1.MembersResponse{MemberVersion: r.version, MemberCount: int32(len(r.starts)), End: true}
	var users []string
	for u := range r.starts {
		users = append(users, u)
	}
	slices.Sort(users)
	for _, u := range users {
		if u > q.AfterUserId {
			if len(res.Members) == 2 { // pages are small here
				res.End = false
				break
			}
			res.Members = append(res.Members, &v1.Member{UserId: u, Start: r.starts[u]})
		}
	}
	return res, nil
}

func (r *roster) set(version int64, starts map[string]int64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.version, r.starts = version, starts
}

func (r *roster) calls() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.asked
}

// beginGroup is a gateway whose state has one group, of alice, bob and carol.
func beginGroup(t *testing.T) (*world, *roster) {
	t.Helper()
	r := &roster{}
	r.set(1, map[string]int64{"alice": 0, "bob": 0, "carol": 0})
	return beginTuned(t, func(g *Gateway) { g.groups.state = r }), r
}

// toGroup is an entry for the members of the group as of a version.
func toGroup(seq int64, to *v1.Audience) *v1.Delivery {
	frame, _ := proto.Marshal(&clientv1.ServerFrame{Kind: &clientv1.ServerFrame_Deliver{Deliver: &clientv1.Deliver{
		ConversationId: "g_1", Entries: []*clientv1.Entry{{Seq: seq, Kind: clientv1.EntryKind_ENTRY_KIND_MESSAGE, Content: testenv.Text(fmt.Sprint(seq))}}}}})
	return &v1.Delivery{ConversationId: "g_1", Seq: seq, Frame: frame, Acked: true, Audience: to}
}

func asOf(v int64) *v1.Audience { return &v1.Audience{MemberVersion: v} }

func (w *world) deliver(t *testing.T, ds ...*v1.Delivery) []int32 {
	t.Helper()
	res, err := w.peers.Gateway(testNode).Deliver(context.Background(), &v1.DeliverRequest{Deliveries: ds})
	if err != nil {
		t.Fatal(err)
	}
	return res.Sessions
}

// gets fails unless the next entries of a client are these.
func gets(t *testing.T, c *testenv.Client, seqs ...int64) {
	t.Helper()
	for _, want := range seqs {
		if f := c.Take("a deliver", isDeliver); textOf(f) != fmt.Sprint(want) {
			t.Fatalf("got %v, want %d", f, want)
		}
	}
}

// The list of a group is read once, whoever joins, leaves, comes and goes; and who
// is removed gets what removed it and nothing behind.
func TestAGroupsMembersAreFoundHere(t *testing.T) {
	w, r := beginGroup(t)
	alice, bob := w.session(t, protocol.Proto, "alice", "d"), w.session(t, protocol.JSON, "bob", "d")
	dave := w.session(t, protocol.Proto, "dave", "d")
	w.deliver(t, toGroup(1, asOf(1)))
	gets(t, alice, 1)
	gets(t, bob, 1)
	read := r.calls()
	if n := w.deliver(t, toGroup(2, asOf(1)), toGroup(3, asOf(1))); !slices.Equal(n, []int32{2, 2}) {
		t.Errorf("2 and 3 went to %v sessions, want 2 each", n)
	}
	removed := &v1.Audience{MemberVersion: 2, Change: true, RemovedUserIds: []string{"bob"}}
	if n := w.deliver(t, toGroup(4, removed), toGroup(5, asOf(2))); !slices.Equal(n, []int32{2, 1}) {
		t.Errorf("4 and 5 went to %v sessions, want 2 and 1", n)
	}
	added := &v1.Audience{MemberVersion: 3, Change: true, AddedUserIds: []string{"dave"}, Start: 5}
	w.deliver(t, toGroup(6, added), toGroup(7, asOf(3)))
	gets(t, dave, 6, 7)
	second := w.session(t, protocol.Proto, "alice", "d2", login("l2"))
	w.deliver(t, toGroup(8, asOf(3)))
	gets(t, second, 8)
	alice.Close()
	eventually(t, "alice's first session has gone", func() bool { return len(w.g.hub.of("alice")) == 1 })
	if n := w.deliver(t, toGroup(9, asOf(3))); n[0] != 2 {
		t.Errorf("9 went to %d sessions, want alice's second and dave's", n[0])
	}
	again := &v1.Audience{MemberVersion: 4, Change: true, AddedUserIds: []string{"bob"}, Start: 9}
	w.deliver(t, toGroup(10, again))
	gets(t, bob, 2, 3, 4, 10)
	gets(t, second, 9, 10)
	if n := r.calls(); n != read {
		t.Errorf("%d calls for the list, %d of them after the first delivery", n, n-read)
	}
}

// A list that a change is missing from is read again, and one newer than a
// delivery serves it but for those who came later.
func TestAMissedChangeIsReadAgain(t *testing.T) {
	w, r := beginGroup(t)
	alice, bob, dave := w.session(t, protocol.Proto, "alice", "d"), w.session(t, protocol.Proto, "bob", "d"), w.session(t, protocol.Proto, "dave", "d")
	w.deliver(t, toGroup(1, asOf(1)))
	gets(t, alice, 1)
	gets(t, bob, 1)
	r.set(4, map[string]int64{"alice": 0, "carol": 0, "dave": 8})
	w.deliver(t, toGroup(5, asOf(3)), toGroup(9, asOf(4)))
	gets(t, alice, 5, 9)
	gets(t, dave, 9)
	w.deliver(t, toGroup(10, asOf(4)))
	gets(t, alice, 10)
	if f := bob.TakeWithin(20*time.Millisecond, isDeliver); f != nil {
		t.Errorf("bob, who is no member, got %v", f)
	}
}

// What comes while a list is read waits, in order and bounded; what had to make
// room becomes a hint.
func TestDeliveriesWaitForTheList(t *testing.T) {
	w, r := beginGroup(t)
	alice := w.session(t, protocol.Proto, "alice", "d")
	r.gate = make(chan struct{})
	for seq := range int64(maxGroupWaiting + 10) {
		w.deliver(t, toGroup(seq+1, asOf(1)))
	}
	close(r.gate)
	f := alice.Take("a hint", func(f *clientv1.ServerFrame) bool { return f.GetHead() != nil })
	if f.GetHead().Seq != 10 {
		t.Errorf("the first hint is %v, want 10", f)
	}
	gets(t, alice, 11, 12, 13)
	if n := testutil.ToFloat64(w.g.m.groupDropped); n != 10 {
		t.Errorf("%v frames are counted as given up, want 10", n)
	}
}

// What waits for a list went to nobody yet, and the answer says that it waits.
func TestTheAnswerSaysWhatWaitsForAList(t *testing.T) {
	w, r := beginGroup(t)
	alice := w.session(t, protocol.Proto, "alice", "d")
	r.gate = make(chan struct{})
	direct := toGroup(3, nil)
	direct.ConversationId, direct.SessionIds = "d_1", []string{string(w.g.hub.of("alice")[0].id)}
	for i, want := range []struct {
		sessions []int32
		waiting  []bool
	}{{[]int32{0, 0, 1}, []bool{true, true, false}}, {[]int32{1, 1, 1}, []bool{false, false, false}}} {
		n := int64(10 * i)
		res, err := w.peers.Gateway(testNode).Deliver(t.Context(), &v1.DeliverRequest{Deliveries: []*v1.Delivery{toGroup(n+1, asOf(1)), toGroup(n+2, asOf(1)), direct}})
		if err != nil || !slices.Equal(res.Sessions, want.sessions) || !slices.Equal(res.Waiting, want.waiting) {
			t.Fatalf("call %d is answered %v, %v; want %v", i, res, err, want)
		}
		if i == 0 {
			close(r.gate)
			gets(t, alice, 3, 1, 2)
		}
	}
}

// State that fails for a moment costs nothing; one that goes on failing costs what
// waited, and the next delivery asks again.
func TestAListThatCannotBeRead(t *testing.T) {
	w, r := beginGroup(t)
	alice := w.session(t, protocol.Proto, "alice", "d")
	r.failing = groupTries - 1
	w.deliver(t, toGroup(1, asOf(1)))
	gets(t, alice, 1)
	w.g.groups.forget(w.g.groups.get("g_1"))
	r.mu.Lock()
	r.failing = groupTries
	r.mu.Unlock()
	w.deliver(t, toGroup(2, asOf(1)))
	eventually(t, "it is given up", func() bool { return testutil.ToFloat64(w.g.m.groupDropped) == 1 })
	eventually(t, "it is forgotten", func() bool { return testutil.ToFloat64(w.g.m.groups) == 0 })
	w.deliver(t, toGroup(3, asOf(1)))
	gets(t, alice, 3)
}

// Lists go when nothing comes for long, and the oldest when they are too many.
func TestGroupsAreForgotten(t *testing.T) {
	w, _ := beginGroup(t)
	gs := w.g.groups
	for i := range 6 {
		gs.sized(gs.get(fmt.Sprint(i)), maxGroupMembers/4)
	}
	if n := len(gs.byConv); n != 4 || gs.total != maxGroupMembers {
		t.Errorf("%d groups with %d members are kept", n, gs.total)
	}
	gs.expire(time.Now().Add(groupIdle / 2))
	if len(gs.byConv) != 4 {
		t.Error("groups in use are forgotten")
	}
	gs.expire(time.Now().Add(2 * groupIdle))
	if len(gs.byConv) != 0 || gs.total != 0 {
		t.Errorf("%d groups are kept for nothing", len(gs.byConv))
	}
}

// Who follows the hub from too long ago looks at all of it.
func TestTheHubRemembersItsNews(t *testing.T) {
	h := newHub()
	s := &session{id: "s0", user: "u"}
	h.register(s)
	from := h.news.now()
	h.remove(s)
	var got []hubChange
	now, ok := h.news.since(from, func(c hubChange) { got = append(got, c) })
	if want := []hubChange{{"s0", "u", false}}; !ok || now != from+1 || !slices.Equal(got, want) {
		t.Errorf("since then %v, %v", got, ok)
	}
	for range hubNews + 1 {
		h.register(s)
	}
	if _, ok := h.news.since(from, func(hubChange) { t.Error("a change of a list that is not whole") }); ok {
		t.Error("too much has happened to be remembered")
	}
}

// What goes to a few does not wait behind what goes to a large group, nor one group
// behind another shard's sessions; and a shard that is behind is seen to be.
func TestLargeGroupsHoldUpNobody(t *testing.T) {
	w, _ := beginGroup(t)
	alice, bob := w.session(t, protocol.Proto, "alice", "d"), w.session(t, protocol.Proto, "bob", "d")
	w.deliver(t, toGroup(1, asOf(1)))
	gets(t, alice, 1)
	gets(t, bob, 1)
	slow := w.g.hub.of("alice")[0]
	slow.mu.Lock() // whoever delivers to it stands still
	served := make(chan struct{})
	go func() {
		defer close(served)
		w.deliver(t, toGroup(2, asOf(1)))
	}()
	shard := w.g.engine.shards[w.g.engine.of(slow)]
	eventually(t, "the shard is behind", func() bool {
		late, _ := shard.late(time.Now().Add(time.Minute))
		return late > time.Minute
	})
	direct := toGroup(7, nil)
	direct.ConversationId, direct.SessionIds = "d_1", []string{string(w.g.hub.of("bob")[0].id)}
	w.deliver(t, direct)
	bob.Take("the direct message", func(f *clientv1.ServerFrame) bool { return f.GetDeliver() != nil && textOf(f) == "7" })
	slow.mu.Mutex.Unlock()
	<-served
	slow.q.flush()
	gets(t, alice, 2)
	eventually(t, "the shard is idle", func() bool {
		late, spent := shard.late(time.Now())
		return late == 0 && spent > 0
	})
}

// Whatever is read while the membership changes, is lost, or comes late at one of two
// gateways: nobody gets an entry of a time in which it was no member, but for the one
// that removed it, and whoever is a member in the end gets what comes then.
func TestNobodyGetsWhatIsBehindItsBorder(t *testing.T) {
	p, r := beginPair(t), &roster{}
	users := []string{"u0", "u1", "u2", "u3", "u4", "u5", "u6"}
	clients, starts, allowed := map[string]*testenv.Client{}, map[string]int64{}, map[string]map[int64]bool{}
	for i, u := range users {
		clients[u], _ = p.login(i%2, u, "l-"+u, "d", im.Phone)
		starts[u], allowed[u] = 0, map[int64]bool{}
	}
	for _, g := range p.gateways {
		g.groups.state = r
	}
	rng := rand.New(rand.NewPCG(7, 7))
	var version, seq int64 = 1, 0
	var late [2][]*v1.Delivery
	next := func(to *v1.Audience) {
		for u := range starts {
			allowed[u][seq] = true
		}
		r.set(version, maps.Clone(starts))
		for i := range late {
			if rng.IntN(15) > 0 || seq > 150 {
				late[i] = append(late[i], toGroup(seq, to))
			}
		}
	}
	arrive := func(i, n int) {
		n = min(n, len(late[i]))
		if _, err := (service{p.gateways[i]}).Deliver(t.Context(), &v1.DeliverRequest{Deliveries: late[i][:n]}); err != nil {
			t.Fatal(err)
		}
		late[i] = late[i][n:]
	}
	for range 150 {
		seq++
		to := asOf(version)
		if rng.IntN(3) == 0 {
			version++
			to = &v1.Audience{MemberVersion: version, Change: true}
			u := users[rng.IntN(len(users))]
			if _, member := starts[u]; member {
				delete(starts, u)
				allowed[u][seq], to.RemovedUserIds = true, []string{u}
			} else {
				starts[u], to.AddedUserIds, to.Start = seq-1, []string{u}, seq-1
			}
		}
		next(to)
		for i := range late {
			switch rng.IntN(6) {
			case 0, 1:
				arrive(i, 1+rng.IntN(3))
			case 2:
				if gs := p.gateways[i].groups; rng.IntN(3) == 0 {
					gs.forget(gs.get("g_1"))
				}
			}
		}
	}
	seq++
	next(asOf(version))
	for i := range late {
		arrive(i, len(late[i]))
	}
	for u, c := range clients {
		_, member := starts[u]
		for {
			wait := 10 * time.Millisecond
			if member {
				wait = testenv.Patience
			}
			f := c.TakeWithin(wait, isDeliver)
			if f == nil {
				if member {
					t.Errorf("%s, a member, did not get the last one", u)
				}
				break
			}
			at := f.GetDeliver().Entries[0].Seq
			if !allowed[u][at] {
				t.Errorf("%s got %d, which is not of its time", u, at)
			}
			if at == seq {
				break
			}
		}
	}
}

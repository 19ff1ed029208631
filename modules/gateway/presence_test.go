package gateway

import (
	"fmt"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"
	"google.golang.org/protobuf/proto"

	"github.com/imdhq/imd/pkg/im"
	"github.com/imdhq/imd/pkg/testenv"
	v1 "github.com/imdhq/imd/proto/gen/internalv1"
	"github.com/imdhq/imd/sdk/go/gen/clientv1"
	"github.com/imdhq/imd/sdk/go/protocol"
)

func watchFrame(users []string, convs ...string) *clientv1.ClientFrame {
	return &clientv1.ClientFrame{Kind: &clientv1.ClientFrame_WatchPresence{WatchPresence: &clientv1.WatchPresence{UserIds: users, ConversationIds: convs}}}
}

// chief leads the schedulers, as far as one gateway sees it.
type chief struct {
	t     *testing.T
	s     service
	after uint64
	token int64
}

func (w *world) chief(t *testing.T) *chief { return &chief{t: t, s: service{w.g}, token: 7} }

func (c *chief) proof() *v1.LeaderProof {
	return &v1.LeaderProof{Election: "scheduler", Token: c.token}
}

// hear asks once, and returns what changed in short.
func (c *chief) hear() []string {
	c.t.Helper()
	res, err := c.s.Follow(c.t.Context(), &v1.FollowRequest{Leader: c.proof(), After: c.after, WaitMs: 400})
	if err != nil {
		c.t.Fatal(err)
	}
	c.after = res.After
	var out []string
	if res.Snapshot {
		out = append(out, "all:")
	}
	for _, x := range res.Changes {
		switch k := x.What.(type) {
		case *v1.SessionChange_Began:
			out = append(out, fmt.Sprintf("+%s/%s %v", k.Began.UserId, k.Began.Class, k.Began.RouteEpoch > 0))
		case *v1.SessionChange_Ended:
			out = append(out, fmt.Sprintf("-%s %v", k.Ended.UserId, k.Ended.Returns))
		case *v1.SessionChange_Watch:
			out = append(out, "watch "+k.Watch)
		case *v1.SessionChange_Unwatch:
			out = append(out, "unwatch "+k.Unwatch)
		}
	}
	return out
}

func (c *chief) want(want ...string) {
	c.t.Helper()
	var got []string
	for end := time.Now().Add(5 * time.Second); len(got) < len(want) && time.Now().Before(end); {
		got = append(got, c.hear()...)
	}
	if !slices.Equal(got, want) {
		c.t.Errorf("heard %q, want %q", got, want)
	}
}

func (c *chief) show(users ...*clientv1.UserPresence) {
	c.t.Helper()
	if _, err := c.s.Show(c.t.Context(), &v1.ShowRequest{Leader: c.proof(), Users: users}); err != nil {
		c.t.Fatal(err)
	}
}

func on(user string) *clientv1.UserPresence {
	return &clientv1.UserPresence{UserId: user, Online: true, Classes: []string{"web"}}
}

func off(user string) *clientv1.UserPresence {
	return &clientv1.UserPresence{UserId: user, LastSeenMs: 5}
}

func isPresence(f *clientv1.ServerFrame) bool { return f.GetPresence() != nil && f.Id == 0 }

func isTyping(f *clientv1.ServerFrame) bool { return f.GetTyping() != nil }

// users are the states of a frame, in short.
func statesOf(f *clientv1.ServerFrame) string {
	out := ""
	for _, u := range f.GetPresence().GetUsers() {
		out += fmt.Sprintf("%s:%v:%d ", u.UserId, u.Online, u.LastSeenMs)
	}
	return out
}

func TestTheLeaderHearsOfSessionsAndWatchers(t *testing.T) {
	w := begin(t)
	w.state.post("g_1", "ann", "hi", "ann", "bob")
	ann := w.session(t, protocol.JSON, "ann", "d1")
	c := w.chief(t)
	c.want("all:", "+ann/bot true")
	bob := w.session(t, protocol.Proto, "bob", "d2")
	c.want("+bob/bot true")
	go func() { ann.Request(watchFrame([]string{"bob"})) }()
	c.want("watch bob")
	c.show(on("bob"))
	bob.Close()
	c.want("-bob false")
	if c.after == 0 {
		t.Error("changes have no number")
	}
	other := w.chief(t)
	other.want("all:", "-bob false", "+ann/bot true", "watch bob")
	w.g.watchers.mu.Lock()
	w.g.watchers.last += 2 * changesKept // so many came that some are gone
	w.g.watchers.mu.Unlock()
	c.want("all:", "-bob false", "+ann/bot true", "watch bob")
	ann.Close()
	c.want("-ann false", "unwatch bob")
	eventually(t, "nothing is watched", func() bool { return testutil.ToFloat64(w.g.m.watched) == 0 })
}

// A snapshot comes in pages, and what changes meanwhile behind it.
func TestASnapshotHasPages(t *testing.T) {
	w := begin(t)
	p := w.g.watchers
	for i := range changesPage {
		p.users[im.UserID(fmt.Sprint("u", i))] = &watched{}
	}
	w.session(t, protocol.JSON, "ann", "d1")
	ask := func(after, offset uint64) *v1.FollowResponse {
		t.Helper()
		res, err := service{w.g}.Follow(t.Context(), &v1.FollowRequest{Leader: w.chief(t).proof(), After: after, Offset: offset})
		if err != nil {
			t.Fatal(err)
		}
		return res
	}
	one := ask(0, 0)
	w.session(t, protocol.JSON, "bob", "d1")
	two := ask(one.After, one.Offset)
	if !one.Snapshot || !one.More || len(one.Changes) != changesPage || !two.Snapshot || two.More || len(two.Changes) != 1 {
		t.Errorf("pages of %d and %d", len(one.Changes), len(two.Changes))
	}
	if three := ask(two.After, 0); three.Snapshot || len(three.Changes) != 1 || three.Changes[0].GetBegan().GetUserId() != "bob" {
		t.Errorf("behind the snapshot: %v", three)
	}
	if again := ask(one.After, one.Offset); again.Offset != changesPage { // another leader came between
		t.Errorf("a snapshot that is gone begins anew: %d", again.Offset)
	}
}

func TestOnlyTheLeaderIsHeard(t *testing.T) {
	w := begin(t)
	c := w.chief(t)
	c.hear()
	for _, p := range []*v1.LeaderProof{nil, {Election: "scheduler", Token: 6}} {
		_, err := c.s.Show(t.Context(), &v1.ShowRequest{Leader: p})
		_, err2 := c.s.Follow(t.Context(), &v1.FollowRequest{Leader: p})
		for _, err := range []error{err, err2} {
			if im.ReasonOf(err) != clientv1.Reason_REASON_FORBIDDEN {
				t.Errorf("%v: %v", p, err)
			}
		}
	}
}

func TestWatchersHearOfChanges(t *testing.T) {
	both(t, func(t *testing.T, enc protocol.Encoding) {
		w := begin(t)
		w.state.post("g_1", "ann", "hi", "ann", "bob", "carl")
		ann := w.session(t, enc, "ann", "d1")
		c := w.chief(t)
		c.hear()
		done := make(chan string, 1)
		go func() { done <- statesOf(ann.Request(watchFrame([]string{"bob", "zoe", "ann"}, "g_1"))) }()
		c.want("watch ann", "watch bob", "watch carl")
		c.show(on("ann"), on("bob"))
		c.show(off("carl"))
		if got := <-done; got != "ann:true:0 bob:true:0 carl:false:5 " {
			t.Errorf("answered %s", got)
		}
		c.show(on("bob"), off("bob"), off("zoe"))
		if f := ann.Take("presence", isPresence); statesOf(f) != "bob:false:5 " || f.Id != 0 {
			t.Errorf("an event says %v", f)
		}
		// What is known already is answered at once, and replaces the list.
		if got := statesOf(ann.Request(watchFrame([]string{"carl"}))); got != "carl:false:5 " {
			t.Errorf("answered %s", got)
		}
		c.want("unwatch ann", "unwatch bob")
		c.show(on("bob"), on("carl"))
		if f := ann.Take("presence", isPresence); statesOf(f) != "carl:true:0 " {
			t.Errorf("an event says %v", f)
		}
		if f := ann.Request(watchFrame(nil)); f.GetPresence() == nil || len(f.GetPresence().Users) != 0 {
			t.Errorf("nobody any more: %v", f)
		}
		c.want("unwatch carl")
	})
}

// Without a leader the route store answers.
func TestWatchingWithoutALeader(t *testing.T) {
	w := begin(t)
	w.state.post("g_1", "ann", "hi", "ann", "bob", "carl")
	w.session(t, protocol.JSON, "bob", "d1")
	ann := w.session(t, protocol.JSON, "ann", "d1")
	if got := statesOf(ann.Request(watchFrame([]string{"bob", "carl"}))); got != "bob:true:0 carl:false:77 " {
		t.Errorf("answered %s", got)
	}
	w.state.set(func(s *fakeState) { s.noRoute = true })
	ben := w.session(t, protocol.JSON, "carl", "d1")
	if got := statesOf(ben.Request(watchFrame([]string{"ann"}))); got != "" {
		t.Errorf("answered %s, though nothing is known", got)
	}
	c := w.chief(t)
	c.show(off("ann")) // a leader is back, and its answer becomes an event
	if f := ben.Take("presence", isPresence); statesOf(f) != "ann:false:5 " {
		t.Errorf("an event says %v", f)
	}
}

// Who may not be seen any more is not watched any more.
func TestWatchingIsRenewed(t *testing.T) {
	w := begin(t)
	w.state.post("g_1", "ann", "hi", "ann", "bob", "carl")
	ann := w.session(t, protocol.JSON, "ann", "d1")
	c := w.chief(t)
	c.hear()
	go func() {
		c.want("watch ann", "watch bob", "watch carl")
		c.show(on("ann"), on("bob"), on("carl"))
	}()
	ann.Request(watchFrame(nil, "g_1"))
	lease := w.g.tuned.Get().presenceLease
	due := func() {
		p := w.g.watchers
		p.mu.Lock()
		for _, l := range p.lists {
			if left := time.Until(l.renewAt); left < lease*7/10 || left > lease*12/10 {
				t.Errorf("renewed in %v, with a lease of %v", left, lease)
			}
			l.renewAt = time.Now()
		}
		p.mu.Unlock()
	}
	w.state.set(func(s *fakeState) { s.blocked = map[string]bool{"bob": true}; s.convs["g_1"].members["dora"] = true })
	due()
	c.want("watch dora", "unwatch bob")
	c.show(on("bob"), on("dora"))
	if f := ann.Take("presence", isPresence); statesOf(f) != "dora:true:0 " {
		t.Errorf("an event says %v", f)
	}
	w.state.set(func(s *fakeState) {
		for i := range 200 {
			s.convs["g_1"].members[fmt.Sprint("m", i)] = true
		}
	})
	due()
	c.want("unwatch ann", "unwatch carl", "unwatch dora")
	if f := ann.Request(watchFrame(nil, "g_1")); f.GetError().GetReason() != "too_large" {
		t.Errorf("a large group: %v", f)
	}
}

// A session that does not read is not told each change, but in the end what is.
func TestWhoIsBehindHearsTheLast(t *testing.T) {
	w := begin(t)
	w.state.post("g_1", "ann", "hi", "ann", "bob")
	ann := w.session(t, protocol.JSON, "ann", "d1")
	c := w.chief(t)
	c.hear()
	go func() { c.want("watch bob"); c.show(on("bob")) }()
	ann.Request(watchFrame([]string{"bob"}))
	s := w.g.hub.of("ann")[0]
	s.q.mu.Lock()
	s.q.n += s.q.cfg.frames // as if so much waited
	s.q.mu.Unlock()
	c.show(off("bob"))
	c.show(on("bob"))
	c.show(off("bob"))
	w.g.watchers.payOwed()
	s.q.mu.Lock()
	s.q.n -= s.q.cfg.frames
	s.q.mu.Unlock()
	if f := ann.Take("presence", isPresence); statesOf(f) != "bob:false:5 " {
		t.Errorf("an event says %v", f)
	}
	if got := testutil.ToFloat64(w.g.m.presence.WithLabelValues("sent")); got != 1 {
		t.Errorf("%v events were sent", got)
	}
}

// An older list of a client never replaces a newer one.
func TestTheNewestListCounts(t *testing.T) {
	w := begin(t)
	w.session(t, protocol.JSON, "ann", "d1")
	s := w.g.hub.of("ann")[0]
	p := w.g.watchers
	p.set(s, &watchList{order: 2, seen: []im.UserID{"b"}})
	p.set(s, &watchList{order: 1, seen: []im.UserID{"a"}})
	if p.users["a"] != nil || p.users["b"] == nil {
		t.Errorf("watched: %v", p.users)
	}
}

func TestSupersededSessionsAreDropped(t *testing.T) {
	w := begin(t)
	ann := w.session(t, protocol.JSON, "ann", "d1")
	id := string(w.g.hub.of("ann")[0].id)
	c := w.chief(t)
	if _, err := c.s.Show(t.Context(), &v1.ShowRequest{Leader: c.proof(), SupersededSessionIds: []string{"other", id}}); err != nil {
		t.Fatal(err)
	}
	if f := ann.Take("bye", func(f *clientv1.ServerFrame) bool { return f.GetBye() != nil }); f.GetBye().Reason != "superseded" {
		t.Errorf("%v", f)
	}
}

// A session without a route is told of again when it has one.
func TestALateClaimIsTold(t *testing.T) {
	w := beginTuned(t, func(g *Gateway) { g.keeper.asking = 50 * time.Millisecond })
	w.state.set(func(s *fakeState) { s.noRoute = true })
	w.session(t, protocol.JSON, "ann", "d1")
	c := w.chief(t)
	c.want("all:", "+ann/bot false")
	w.state.set(func(s *fakeState) { s.noRoute = false })
	c.want("+ann/bot true")
}

func typingFrame(conv string) *clientv1.ClientFrame {
	return &clientv1.ClientFrame{Kind: &clientv1.ClientFrame_Typing{Typing: &clientv1.Typing{ConversationId: conv, UserId: "mallory"}}}
}

func TestTyping(t *testing.T) {
	both(t, func(t *testing.T, enc protocol.Encoding) {
		w := begin(t)
		w.state.post("g_1", "ann", "hi", "ann", "bob", "carl")
		ann, ann2, bob := w.session(t, enc, "ann", "d1"), w.session(t, enc, "ann", "d2", login("l2")), w.session(t, enc, "bob", "d1")
		ann.Write(typingFrame("g_1"), typingFrame("g_1"))
		f := bob.Take("typing", isTyping)
		if !proto.Equal(f.GetTyping(), &clientv1.Typing{ConversationId: "g_1", UserId: "ann"}) {
			t.Errorf("bob hears %v", f)
		}
		bob.Write(typingFrame("g_1"))
		if f := ann2.Take("typing", isTyping); f.GetTyping().UserId != "bob" {
			t.Errorf("ann's other device hears %v", f)
		}
		eventually(t, "one is limited", func() bool { return testutil.ToFloat64(w.g.m.typing.WithLabelValues("limited")) == 1 })
		ann.MustSend(testenv.To("g_1", "what was typed"))
		ann.Write(typingFrame("g_1"))
		bob.Take("typing after a message", isTyping)
	})
}

func TestTypingHasItsBounds(t *testing.T) {
	w := begin(t)
	w.state.post("d_1", "ann", "hi", "ann", "bob")
	w.state.post("g_1", "ann", "hi", "ann")
	w.state.set(func(s *fakeState) {
		s.blocked = map[string]bool{"bob": true}
		for i := range 100 {
			s.convs["g_1"].members[fmt.Sprint("m", i)] = true
		}
	})
	ann := w.session(t, protocol.JSON, "ann", "d1")
	if f := ann.Request(typingFrame("d_1")); f.GetError().GetReason() != "forbidden" {
		t.Errorf("to somebody who has blocked: %v", f)
	}
	ann.Write(typingFrame("g_1"))
	eventually(t, "the group is too large", func() bool { return testutil.ToFloat64(w.g.m.typing.WithLabelValues("large")) == 1 })
	synctest.Test(t, func(t *testing.T) {
		ty, passed := newTyping(nil), 0
		for i := range 30 {
			if ty.take(time.Now(), "g_2", im.UserID(fmt.Sprint("u", i))) {
				passed++
			}
		}
		if passed != typingRate.Burst {
			t.Errorf("%d of a conversation pass at once, want %d", passed, typingRate.Burst)
		}
		for i := range maxTyping + 1 {
			if ok := ty.take(time.Now(), fmt.Sprint("g_", i+10), "u"); ok != (i < maxTyping-1) {
				t.Fatalf("conversation %d: %v", i, ok)
			}
		}
		ty.forget(time.Now())
		if len(ty.convs) != maxTyping {
			t.Errorf("%d are remembered", len(ty.convs))
		}
		time.Sleep(typingKept + time.Second)
		ty.forget(time.Now())
		if len(ty.convs) != 0 {
			t.Errorf("%d are remembered for good", len(ty.convs))
		}
	})
}

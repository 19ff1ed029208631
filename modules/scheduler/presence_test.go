package scheduler

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/imdhq/imd/pkg/control"
	"github.com/imdhq/imd/pkg/im"
	"github.com/imdhq/imd/pkg/presence"
	"github.com/imdhq/imd/pkg/store"
	v1 "github.com/imdhq/imd/proto/gen/internalv1"
	"github.com/imdhq/imd/sdk/go/gen/clientv1"
)

func (c *counting) SaveSeen(_ context.Context, _ store.Proof, list []store.Seen) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.seenErr != nil {
		return c.seenErr
	}
	for _, x := range list {
		c.seen[x.User] = x.At
	}
	return nil
}

func (c *counting) Seen(_ context.Context, users []im.UserID) (out []store.Seen, _ error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, u := range users {
		if at, ok := c.seen[u]; ok {
			out = append(out, store.Seen{User: u, At: at})
		}
	}
	return out, c.seenErr
}

func (c *counting) seenAt(u im.UserID) time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.seen[u]
}

// fakeGateway tells what a test says, and keeps what it is told.
type fakeGateway struct {
	boot string

	mu   sync.Mutex
	all  []*v1.SessionChange // of its snapshot
	log  []*v1.SessionChange // behind it
	news chan struct{}       // made inside the test's bubble
	err  error
	told []string
	// proclaimed is what it was handed of announcements, each time.
	proclaimed []string
	tokens     []int64
}

func newGateway(all ...*v1.SessionChange) *fakeGateway {
	return &fakeGateway{boot: "b", all: all}
}

func (g *fakeGateway) Follow(ctx context.Context, r *v1.FollowRequest) (*v1.FollowResponse, error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.tokens = append(g.tokens, r.Leader.Token)
	if g.err != nil {
		return nil, g.err
	}
	if r.After == 0 { // two changes a page
		rest := g.all[r.Offset:]
		n := min(len(rest), 2)
		res := &v1.FollowResponse{BootId: g.boot, Snapshot: true, Changes: rest[:n], Offset: r.Offset + uint64(n), More: n < len(rest)}
		if !res.More {
			res.After = 1
		}
		return res, nil
	}
	if g.news == nil {
		g.news = make(chan struct{}, 1)
	}
	if r.After > uint64(len(g.log)) {
		g.mu.Unlock()
		select {
		case <-g.news:
		case <-time.After(time.Duration(r.WaitMs) * time.Millisecond):
		case <-ctx.Done():
		}
		g.mu.Lock()
	}
	return &v1.FollowResponse{BootId: g.boot, Changes: slices.Clone(g.log[r.After-1:]), After: uint64(len(g.log)) + 1}, nil
}

func (g *fakeGateway) Proclaim(_ context.Context, r *v1.ProclaimRequest) (*v1.ProclaimResponse, error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.err != nil {
		return nil, g.err
	}
	text := fmt.Sprint(r.Leader.Token, "/", r.Version)
	for _, a := range r.Announcements {
		text += " " + a.Text
	}
	for _, a := range r.Withdrawn {
		text += fmt.Sprintf(" -%d@%d", a.Seq, a.WithdrawalSeq)
	}
	g.proclaimed = append(g.proclaimed, text)
	return &v1.ProclaimResponse{BootId: g.boot}, nil
}

func (g *fakeGateway) Show(_ context.Context, r *v1.ShowRequest) (*v1.ShowResponse, error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.err != nil {
		return nil, g.err
	}
	for _, u := range r.Users {
		g.told = append(g.told, fmt.Sprintf("%s %v", u.UserId, u.Online))
	}
	for _, s := range r.SupersededSessionIds {
		g.told = append(g.told, "drop "+s)
	}
	return &v1.ShowResponse{}, nil
}

func (g *fakeGateway) happens(list ...*v1.SessionChange) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.log = append(g.log, list...)
	select {
	case g.news <- struct{}{}:
	default:
	}
}

func (g *fakeGateway) fail(err error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.err = err
}

// check compares what was told since the last check, in any order.
func (g *fakeGateway) check(t *testing.T, want ...string) {
	t.Helper()
	synctest.Wait()
	g.mu.Lock()
	defer g.mu.Unlock()
	slices.Sort(g.told)
	if !slices.Equal(g.told, want) {
		t.Errorf("told %q, want %q", g.told, want)
	}
	g.told = nil
}

func beganAt(user, session string, epoch uint64) *v1.SessionChange {
	return &v1.SessionChange{What: &v1.SessionChange_Began{Began: &v1.SessionBegan{UserId: user, SessionId: session, Class: "web", Place: 5, RouteEpoch: epoch}}}
}

func endedNow(user, session string) *v1.SessionChange {
	return &v1.SessionChange{What: &v1.SessionChange_Ended{Ended: &v1.SessionEnded{UserId: user, SessionId: session, AtMs: time.Now().UnixMilli()}}}
}

// What waits to be saved is known already.
func TestATimeThatIsNotSavedYetIsKnown(t *testing.T) {
	left := time.UnixMilli(1234)
	c := &counting{seen: map[im.UserID]time.Time{"anna": time.UnixMilli(7), "bob": time.UnixMilli(7)}}
	f := &following{s: &Scheduler{Deps: Deps{Store: func() (Messages, error) { return c, nil }}}, inbox: make(chan presence.Event, 1)}
	b := newBook(f)
	b.saves["anna"] = left
	b.add(presence.Effects{Load: []im.UserID{"anna", "bob"}})
	b.load(t.Context())
	want := []presence.Seen{{User: "anna", At: left}, {User: "bob", At: time.UnixMilli(7)}}
	if got := (<-f.inbox).(presence.Loaded).Users; !slices.Equal(got, want) {
		t.Errorf("loaded %v, want %v", got, want)
	}
}

func watchOf(user string) *v1.SessionChange {
	return &v1.SessionChange{What: &v1.SessionChange_Watch{Watch: user}}
}

func (c *counting) nodes(serial uint64, ids ...im.NodeID) {
	c.set(func(c *counting) {
		c.view = control.View{Revision: 1, Serial: serial}
		for _, id := range ids {
			c.view.Nodes = append(c.view.Nodes, control.Node{ID: id, BootID: "b", Roles: []string{"gateway"}, State: control.Serving})
		}
	})
}

func TestTheLeaderShowsWhoIsOnline(t *testing.T) {
	g1 := newGateway(watchOf("anna"), watchOf("bob"), beganAt("dora", "s0", 1), watchOf("dora"))
	g2 := newGateway(beganAt("anna", "s1", 1), beganAt("carl", "s2", 1))
	c := &counting{leads: 1, gateways: map[im.NodeID]*fakeGateway{"g1": g1, "g2": g2}, seen: map[im.UserID]time.Time{}}
	c.nodes(1, "g1", "g2")
	running(t, c, func(s *Scheduler, e *sole) {
		time.Sleep(500 * time.Millisecond)
		g1.check(t, "anna true", "bob false", "dora true")
		left := time.Now()
		g2.happens(endedNow("anna", "s1"), beganAt("bob", "s3", 7))
		g1.happens(beganAt("bob", "s4", 9))
		time.Sleep(time.Second)
		g1.check(t, "anna false", "bob true")
		g2.check(t, "drop s3")
		time.Sleep(2 * time.Second)
		if at := c.seenAt("anna"); at.UnixMilli() != left.UnixMilli() {
			t.Errorf("anna was seen %v, want %v", at, left)
		}
		g1.fail(errors.New("away")) // what it has to hear waits
		g2.happens(beganAt("anna", "s5", 10))
		time.Sleep(time.Second)
		g1.fail(nil)
		time.Sleep(time.Second)
		g1.check(t, "anna true")
		time.Sleep(statsEvery)
		if users, n := testutil.ToFloat64(s.presence.users), testutil.ToFloat64(s.presence.gateways.WithLabelValues("followed")); users != 4 || n != 2 {
			t.Errorf("%v users at %v gateways", users, n)
		}
		c.nodes(2, "g1") // g2 has gone
		time.Sleep(time.Second)
		g1.check(t, "anna false")
		g2.check(t)
		if e.terms != 1 {
			t.Errorf("%d terms", e.terms)
		}
	})
	if at := c.seenAt("dora"); at.IsZero() {
		t.Error("who was online when the leader resigned has no time")
	}
}

// A store that is away is asked again, and what is not saved waits.
func TestTimesAreSavedLater(t *testing.T) {
	g1 := newGateway(watchOf("anna"), beganAt("bob", "s1", 1))
	c := &counting{leads: 1, gateways: map[im.NodeID]*fakeGateway{"g1": g1}, seen: map[im.UserID]time.Time{}, seenErr: errors.New("away")}
	c.nodes(1, "g1")
	running(t, c, func(s *Scheduler, _ *sole) {
		time.Sleep(time.Second)
		g1.happens(endedNow("bob", "s1"))
		time.Sleep(5 * time.Second)
		g1.check(t)
		c.set(func(c *counting) { c.seenErr = nil })
		time.Sleep(2 * time.Second)
		g1.check(t, "anna false")
		if c.seenAt("bob").IsZero() {
			t.Error("bob has no time")
		}
		b := newBook(&following{s: s})
		for i := range maxBook {
			b.saves[im.UserID(fmt.Sprint(i))] = time.Time{}
		}
		b.note(presence.Seen{User: "one more", At: time.Now()})
		if got := testutil.ToFloat64(s.presence.saved.WithLabelValues("dropped")); got != 1 {
			t.Errorf("%v were dropped", got)
		}
	})
}

func (c *counting) PutEvents(_ context.Context, _ store.Proof, events []store.Event) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, e := range events {
		if there := e.Kind == store.UserOnline; c.online[e.User] != there && c.putErr == nil {
			c.online[e.User] = there
			c.events = append(c.events, fmt.Sprintf("%s %v", e.User, there))
		}
	}
	return c.putErr
}

func (c *counting) OnlineUsers(_ context.Context, after im.UserID, limit int) (out []im.UserID, _ error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, u := range slices.Sorted(maps.Keys(c.online)) {
		if c.online[u] && u > after && len(out) < limit {
			out = append(out, u)
		}
	}
	return out, c.putErr
}

// told compares the events since the last check, in any order.
func (c *counting) told(t *testing.T, want ...string) {
	t.Helper()
	synctest.Wait()
	c.mu.Lock()
	defer c.mu.Unlock()
	slices.Sort(c.events)
	if !slices.Equal(c.events, want) {
		t.Errorf("events %q, want %q", c.events, want)
	}
	c.events = nil
}

// Who comes and goes becomes events, each once, over leaders that change and a
// store that is away; and none is written if no receiver names them.
func TestUsersBecomeEvents(t *testing.T) {
	g1 := newGateway(beganAt("anna", "s1", 1), beganAt("bob", "s2", 1))
	c := &counting{leads: 1, gateways: map[im.NodeID]*fakeGateway{"g1": g1}, seen: map[im.UserID]time.Time{},
		online: map[im.UserID]bool{"anna": true, "zoe": true}}
	for i := range turnBatch + 100 { // more than are read at once
		c.online[im.UserID(fmt.Sprint("gone", i))] = true
	}
	c.nodes(1, "g1")
	synctest.Test(t, func(t *testing.T) {
		s := c.scheduler(&sole{})
		f := &following{s: s}
		for _, events := range [][]string{nil, {"message.committed"}} {
			s.receivers = []receiver{{ReceiverConfig: ReceiverConfig{Events: events}}}
			if turnedFor(f) != nil {
				t.Errorf("a receiver of %v is told of users", events)
			}
		}
		lead := func(during func()) {
			s.receivers = []receiver{{ReceiverConfig: ReceiverConfig{Events: []string{"user.offline"}}}}
			ctx, cancel := context.WithCancel(t.Context())
			over := make(chan error, 1)
			go func() { over <- s.showPresence(ctx, term(1)) }()
			during()
			cancel()
			if err := <-over; err != nil {
				t.Error(err)
			}
		}
		lead(func() {
			time.Sleep(time.Second)
			c.mu.Lock()
			n := len(c.events)
			c.events = c.events[:0]
			c.mu.Unlock()
			if n != turnBatch+102 { // all who have gone, zoe and bob
				t.Errorf("%d events", n)
			}
			g1.happens(endedNow("anna", "s1"), beganAt("carl", "s3", 1))
			time.Sleep(time.Second)
			c.told(t, "anna false", "carl true")
			c.set(func(c *counting) { c.putErr = errors.New("away") })
			g1.happens(endedNow("bob", "s2"), beganAt("dora", "s4", 1))
			time.Sleep(5 * time.Second)
			c.set(func(c *counting) { c.putErr = nil })
			time.Sleep(time.Second)
			c.told(t, "bob false", "dora true")
		})
		g1.all, g1.log = []*v1.SessionChange{beganAt("bob", "s5", 3), beganAt("dora", "s4", 1)}, nil
		lead(func() {
			time.Sleep(time.Second)
			c.told(t, "bob true", "carl false")
		})
	})
}

// When more come and go than may wait, all are compared again.
func TestTurnsAreBounded(t *testing.T) {
	c := &counting{online: map[im.UserID]bool{}}
	s := c.scheduler(&sole{})
	s.receivers = []receiver{{ReceiverConfig: ReceiverConfig{Events: []string{"user.online"}}}}
	f := &following{s: s, t: term(1), inbox: make(chan presence.Event, 1)}
	w := turnedFor(f)
	for i := range maxTurns + 1 {
		w.add([]presence.Turn{{User: im.UserID(fmt.Sprint(i))}})
	}
	if len(w.waits) != maxTurns {
		t.Errorf("%d wait", len(w.waits))
	}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	over := make(chan struct{})
	go func() { defer close(over); w.run(ctx) }()
	for range 2 { // at first, and again
		told, ok := (<-f.inbox).(presence.Told)
		for ; ok && !told.Last; told, ok = (<-f.inbox).(presence.Told) {
		}
		if !ok {
			t.Error("the core was told something else")
		}
	}
	cancel()
	<-over
	if n := testutil.ToFloat64(s.presence.turns.WithLabelValues("ok")); n != maxTurns {
		t.Errorf("%v were stored", n)
	}
}

func TestALeaderThatWasFollowedShowsNothing(t *testing.T) {
	for name, fence := range map[string]func(*counting, *fakeGateway){
		"a gateway says so": func(_ *counting, g *fakeGateway) {
			g.fail(im.Errorf(clientv1.Reason_REASON_FORBIDDEN, "gateway.Follow", "another node leads"))
		},
		"the store says so": func(c *counting, g *fakeGateway) {
			c.set(func(c *counting) { c.seenErr = fmt.Errorf("token 1: %w", store.ErrFenced) })
			g.happens(endedNow("bob", "s1"))
		},
	} {
		t.Run(strings.ReplaceAll(name, " ", "_"), func(t *testing.T) {
			g1 := newGateway(beganAt("bob", "s1", 1))
			c := &counting{leads: 1, gateways: map[im.NodeID]*fakeGateway{"g1": g1}, seen: map[im.UserID]time.Time{}}
			c.nodes(1, "g1")
			running(t, c, func(_ *Scheduler, e *sole) {
				time.Sleep(time.Second)
				fence(c, g1)
				time.Sleep(3 * time.Second)
				g1.fail(nil)
				c.set(func(c *counting) { c.seenErr = nil })
				time.Sleep(2 * time.Second)
				synctest.Wait()
				g1.mu.Lock()
				defer g1.mu.Unlock()
				if e.terms < 2 || slices.Max(g1.tokens) != int64(e.terms) {
					t.Errorf("%d terms, of which the gateway heard %v", e.terms, slices.Compact(g1.tokens))
				}
			})
		})
	}
}

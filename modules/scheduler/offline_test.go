package scheduler

import (
	"context"
	"errors"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/zap"

	"github.com/imdhq/imd/pkg/control"
	"github.com/imdhq/imd/pkg/im"
	"github.com/imdhq/imd/pkg/outbox"
	"github.com/imdhq/imd/pkg/store"
	"github.com/imdhq/imd/pkg/webhook"
	v1 "github.com/imdhq/imd/proto/gen/internalv1"
	"github.com/imdhq/imd/sdk/go/gen/clientv1"
)

// history is a message store with messages to one user each, as far as notifying
// needs one, a state node with what it knows, routes, and a provider.
type history struct {
	counting

	marks     []store.Event // not gathered yet
	events    []store.Event
	to        []im.UserID // of each event
	receivers map[string]store.Receiver
	due       map[im.UserID]store.Push
	stored    map[im.UserID]im.Seq // acknowledged, in the store
	known     map[im.UserID]im.Seq // the same, in the memory of the state node
	live      map[im.UserID]bool
	away      bool // the state node
	questions int
	notices   []notice
}

type notice struct {
	user im.UserID
	at   time.Time
}

func newHistory() *history {
	return &history{receivers: map[string]store.Receiver{}, due: map[im.UserID]store.Push{}, stored: map[im.UserID]im.Seq{},
		known: map[im.UserID]im.Seq{}, live: map[im.UserID]bool{}}
}

// send commits a message to a user, in a conversation of its own.
func (h *history) send(to im.UserID) {
	h.mu.Lock()
	defer h.mu.Unlock()
	n := int64(len(h.to) + 1)
	h.to = append(h.to, to)
	h.marks = append(h.marks, store.Event{Position: n, Kind: 1, At: time.Now().Truncate(time.Millisecond), Conversation: im.ConversationID(to), Seq: im.Seq(n)})
}

func (h *history) change(f func()) {
	h.mu.Lock()
	defer h.mu.Unlock()
	f()
}

func (h *history) OutboxState(context.Context) (store.OutboxState, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	return store.OutboxState{On: true, First: 1, Last: int64(len(h.events)), Marks: len(h.marks) > 0}, nil
}

func (h *history) Gather(context.Context, store.Proof, int) (int, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	n := len(h.marks)
	h.events, h.marks = append(h.events, h.marks...), nil
	return n, nil
}

func (h *history) Events(_ context.Context, after int64, limit int) ([]store.Event, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	return slices.Clone(h.events[after:min(int(after)+limit, len(h.events))]), nil
}

func (h *history) Receivers(context.Context) (out []store.Receiver, _ error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, r := range h.receivers {
		out = append(out, r)
	}
	return out, nil
}

func (h *history) SaveReceiver(_ context.Context, _ store.Proof, r store.Receiver, s store.Settled) (bool, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	r.Generation = 1
	h.receivers[r.Name] = r
	for _, p := range s.Pushes {
		if h.due[p.User].Seq < p.Seq {
			p.State, p.At = store.PushDue, time.Now()
			h.due[p.User] = p
		}
	}
	return true, nil
}

func (h *history) Unacked(_ context.Context, after, upto int64, _ int) (out []store.Push, _ error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, e := range h.events[after:upto] {
		if to := h.to[e.Position-1]; h.stored[to] < e.Seq {
			out = append(out, store.Push{User: to, Conversation: e.Conversation, Seq: e.Seq})
		}
	}
	return out, nil
}

func (h *history) DuePushes(context.Context, time.Time, int) (out []store.Push, _ error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, p := range h.due {
		if p.State == store.PushDue {
			out = append(out, p)
		}
	}
	return out, nil
}

func (h *history) SettlePushes(_ context.Context, _ store.Proof, done []store.PushResult) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, d := range done {
		p := d.Push
		p.State = d.Next
		h.due[p.User] = p
	}
	return nil
}

func (h *history) Badges(context.Context, []im.UserID) (map[im.UserID]int, error) { return nil, nil }

// Mark is StateClient's.
func (h *history) Mark(_ context.Context, req *v1.MarkRequest) (*v1.MarkResponse, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.questions += len(req.Marks)
	if h.away {
		return nil, errors.New("no state node can be reached")
	}
	res := &v1.MarkResponse{}
	for _, m := range req.Marks {
		if m.Seq != 0 || m.AfterSeq != 0 || m.Read {
			return nil, errors.New("a question moves a position")
		}
		u := im.UserID(m.UserId)
		if u == "left" {
			res.Results = append(res.Results, &v1.MarkResult{Error: im.Wire(im.Errorf(clientv1.Reason_REASON_NOT_MEMBER, "state.Mark", ""))})
			continue
		}
		res.Results = append(res.Results, &v1.MarkResult{Receipt: &clientv1.Receipt{DeliveredSeq: int64(max(h.known[u], h.stored[u]))}})
	}
	return res, nil
}

// Push is outbox.Provider's.
func (h *history) Push(_ context.Context, n outbox.Notice) webhook.Result {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.notices = append(h.notices, notice{im.UserID(n.UserID), time.Now()})
	return webhook.Result{Outcome: webhook.Taken}
}

func (h *history) lookup(_ context.Context, users []im.UserID) (out []store.Route, _ error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, u := range users {
		if h.live[u] {
			out = append(out, store.Route{User: u})
		}
	}
	return out, nil
}

// told is how long after a time each user was notified, once.
func (h *history) told(t *testing.T, from time.Time) map[im.UserID]time.Duration {
	t.Helper()
	h.mu.Lock()
	defer h.mu.Unlock()
	out := map[im.UserID]time.Duration{}
	for _, n := range h.notices {
		if _, twice := out[n.user]; twice {
			t.Errorf("%s is notified twice", n.user)
		}
		out[n.user] = n.at.Sub(from)
	}
	return out
}

// notifying runs a leader over h in a bubble of time.
func notifying(t *testing.T, h *history, test func()) {
	synctest.Test(t, func(t *testing.T) {
		e := &sole{}
		s := New(Deps{Log: zap.NewNop(), Reg: prometheus.NewRegistry(), Elector: func() Elector { return e },
			Store: func() (Messages, error) { return h, nil }, Routes: func() (store.Sweeper, error) { return h, nil },
			View: func() *control.View { return &control.View{} }, Live: h.lookup, State: h,
			Webhooks: DefaultWebhookConfig(), Push: DefaultPushConfig()})
		s.provider = h
		ctx, cancel := context.WithCancel(t.Context())
		var wg sync.WaitGroup
		wg.Go(func() {
			if err := s.Run(ctx); err != nil {
				t.Error(err)
			}
		})
		time.Sleep(20 * time.Second) // the walks begin
		test()
		cancel()
		wg.Wait()
	})
}

// within fails unless d is at least least, and at most a moment more.
func within(t *testing.T, who im.UserID, told map[im.UserID]time.Duration, least time.Duration) {
	t.Helper()
	if d, ok := told[who]; !ok || d < least || d > least+400*time.Millisecond {
		t.Errorf("%s was notified after %v (%v), want %v", who, d, ok, least)
	}
}

// Whose devices are silent is notified ten seconds after the message, not when
// the store may have heard of them; what devices have acknowledged meanwhile
// counts though the store does not know it yet.
func TestSilentDevicesAreNotWaitedForLonger(t *testing.T) {
	h := newHistory()
	notifying(t, h, func() {
		h.change(func() {
			for _, u := range []im.UserID{"silent", "acks", "stored", "left"} {
				h.live[u] = true
			}
		})
		from := time.Now()
		for _, u := range []im.UserID{"offline", "silent", "acks", "stored", "left"} {
			h.send(u)
		}
		time.Sleep(9500 * time.Millisecond)
		h.change(func() { h.known["acks"], h.stored["stored"] = 100, 100 })
		time.Sleep(20 * time.Second)
		told := h.told(t, from)
		within(t, "offline", told, offlineGrace)
		within(t, "silent", told, 10*time.Second)
		if len(told) != 2 {
			t.Errorf("notified: %v", told)
		}
		h.change(func() {
			if h.questions != 3 {
				t.Errorf("state nodes were asked of %d members, want those with a route that the store knows nothing of", h.questions)
			}
		})
	})
}

// While no state node answers, users are notified when the store must have heard
// of their devices; those without a device are not delayed by that.
func TestStateNodesThatCannotBeAsked(t *testing.T) {
	h := newHistory()
	notifying(t, h, func() {
		h.change(func() { h.live["silent"], h.live["acks"], h.live["again"], h.away = true, true, true, true })
		from := time.Now()
		for _, u := range []im.UserID{"offline", "silent", "acks"} {
			h.send(u)
		}
		time.Sleep(12 * time.Second)
		h.change(func() { h.stored["acks"] = 100 })
		h.send("again")
		second := time.Now()
		time.Sleep(8 * time.Second)
		told := h.told(t, from)
		within(t, "offline", told, offlineGrace)
		if d := told["silent"]; d < 16*time.Second || d > 16*time.Second+offlineAgain+400*time.Millisecond || len(told) != 2 {
			t.Errorf("notified: %v", told)
		}
		h.change(func() { h.away = false })
		time.Sleep(10 * time.Second)
		within(t, "again", h.told(t, second), 10*time.Second)
	})
}

// Each of many messages is looked at when it is due, whatever the pace of others.
func TestEachMessageHasItsTime(t *testing.T) {
	h := newHistory()
	notifying(t, h, func() {
		at := map[im.UserID]time.Time{}
		for i := range 300 {
			u := im.UserID(string(rune('a'+i%26)) + string(rune('a'+i/26)))
			h.change(func() { h.live[u] = true })
			at[u] = time.Now()
			h.send(u)
			time.Sleep(time.Duration(i%7) * 10 * time.Millisecond)
		}
		time.Sleep(11 * time.Second)
		h.mu.Lock()
		defer h.mu.Unlock()
		if len(h.notices) != len(at) {
			t.Errorf("%d of %d are notified", len(h.notices), len(at))
		}
		for _, n := range h.notices {
			if d := n.at.Sub(at[n.user]); d < 10*time.Second-time.Millisecond || d > 10*time.Second+500*time.Millisecond {
				t.Errorf("%s was notified after %v", n.user, d)
			}
		}
	})
}

// Events are old enough once they have the age, and at once if they were stamped by a
// clock that was ahead and has been set back: else nobody was notified of them, nor
// of what came after them, until that time comes once more.
func TestAClockThatWasAhead(t *testing.T) {
	now := time.UnixMilli(1_800_000_000_000)
	at := func(position int64, ago time.Duration) store.Event {
		return store.Event{Position: position, At: now.Add(-ago)}
	}
	for _, tt := range []struct {
		name   string
		events []store.Event
		upto   int64
		due    time.Time
	}{
		{"old ones", []store.Event{at(5, time.Minute), at(6, 10*time.Second)}, 6, time.Time{}},
		{"a young one", []store.Event{at(5, time.Minute), at(6, 4*time.Second), at(7, time.Minute)}, 5, now.Add(6*time.Second + offlinePause)},
		{"clocks that differ a little", []store.Event{at(5, -2*time.Second)}, 4, now.Add(12*time.Second + offlinePause)},
		{"an hour ahead, then set back", []store.Event{at(5, -time.Hour), at(6, -59*time.Minute), at(7, time.Second)}, 6, now.Add(9*time.Second + offlinePause)},
	} {
		if r := reach(tt.events, 4, 10*time.Second, now); r.upto != tt.upto || !r.due.Equal(tt.due) {
			t.Errorf("%s: %+v", tt.name, r)
		}
	}
}

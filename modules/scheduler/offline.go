package scheduler

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"time"

	"go.uber.org/zap"
	"google.golang.org/protobuf/encoding/protojson"

	"github.com/imdhq/imd/pkg/backoff"
	"github.com/imdhq/imd/pkg/control"
	"github.com/imdhq/imd/pkg/failpoint"
	"github.com/imdhq/imd/pkg/im"
	"github.com/imdhq/imd/pkg/obs"
	"github.com/imdhq/imd/pkg/outbox"
	"github.com/imdhq/imd/pkg/store"
	"github.com/imdhq/imd/pkg/webhook"
)

// The rows that remember how far the log was looked through for users who have to
// be notified. No receiver of the configuration can have such a name.
const (
	offlineNow  = "offline/now"  // for users without a connected device
	offlineLate = "offline/late" // for users whose devices acknowledge nothing
)

const (
	// offlineEvery is how often is looked for them.
	offlineEvery = 500 * time.Millisecond
	// offlineGrace is the age of a message before users without a connected device
	// are notified: a device that changes its gateway is back by then.
	offlineGrace = time.Second
	// offlineSettle is how much later than acknowledgements are made they can be
	// seen in the message store: state nodes write them at most once in 5 s a member.
	offlineSettle = 6 * time.Second
	// offlinePage is how many events are looked at in one step.
	offlinePage = 200
	// routeUsers is how many users are looked up at once.
	routeUsers = 500
)

// handover is one look for users who have to be notified.
func (s *Scheduler) handover(ctx context.Context, t control.Term) error {
	if s.provider == nil {
		return nil
	}
	return errors.Join(
		s.handOver(ctx, t, offlineNow, offlineGrace, s.unreachable),
		s.handOver(ctx, t, offlineLate, s.Push.After+offlineSettle, func(_ context.Context, list []store.Push) ([]store.Push, error) { return list, nil }),
	)
}

// handOver makes pushes due for messages of an age, of users whom choose names.
func (s *Scheduler) handOver(ctx context.Context, t control.Term, name string, age time.Duration, choose func(context.Context, []store.Push) ([]store.Push, error)) error {
	st, err := s.Store()
	if err != nil {
		return err
	}
	row, err := s.place(ctx, t, st, name)
	if err != nil {
		return err
	}
	for {
		upto, more, err := reach(ctx, st, row.Cursor, time.Now().Add(-age))
		if err != nil || upto == row.Cursor {
			return err
		}
		list, err := st.Unacked(ctx, row.Cursor, upto, s.Push.Members)
		if err != nil {
			return err
		}
		if list, err = choose(ctx, list); err != nil {
			return err
		}
		row.Cursor, row.Reached = upto, upto
		failpoint.Hit(failpoint.BeforeEffect)
		ok, err := st.SaveReceiver(ctx, t.Proof(), row, store.Settled{Pushes: list})
		if err != nil || !ok {
			return err
		}
		s.handed.Add(float64(len(list)))
		if len(list) > 0 {
			s.pokePush()
		}
		if !more {
			return nil
		}
	}
}

// place is the row of a walk; a new one begins with what comes from now on.
func (s *Scheduler) place(ctx context.Context, t control.Term, st Messages, name string) (store.Receiver, error) {
	for {
		all, err := st.Receivers(ctx)
		if err != nil {
			return store.Receiver{}, err
		}
		for _, r := range all {
			if r.Name == name {
				return r, nil
			}
		}
		state, err := st.OutboxState(ctx)
		if err != nil {
			return store.Receiver{}, err
		}
		if _, err := st.SaveReceiver(ctx, t.Proof(), store.Receiver{Name: name, Cursor: state.Last}, store.Settled{}); err != nil {
			return store.Receiver{}, err
		}
	}
}

// reach is the last event of a page behind after that happened before a time;
// after itself if there is none. more: the next page may have some too.
func reach(ctx context.Context, st Messages, after int64, before time.Time) (upto int64, more bool, err error) {
	events, err := st.Events(ctx, after, offlinePage)
	upto, more = after, len(events) == offlinePage
	for _, e := range events {
		if e.At.After(before) {
			return upto, false, err
		}
		upto = e.Position
	}
	return upto, more, err
}

// unreachable are the pushes of users without a route. Where routes cannot be
// asked for, nobody counts as unreachable: the other walk finds them.
func (s *Scheduler) unreachable(ctx context.Context, list []store.Push) ([]store.Push, error) {
	if len(list) == 0 || s.Live == nil {
		return nil, nil
	}
	live := map[im.UserID]bool{}
	for from := 0; from < len(list); from += routeUsers {
		var users []im.UserID
		for _, p := range list[from:min(from+routeUsers, len(list))] {
			users = append(users, p.User)
		}
		routes, err := s.Live(ctx, users)
		if err != nil {
			return nil, nil
		}
		for _, r := range routes {
			live[r.User] = true
		}
	}
	var out []store.Push
	for _, p := range list {
		if !live[p.User] {
			out = append(out, p)
		}
	}
	return out, nil
}

const (
	pushPoll     = 250 * time.Millisecond // pause between looks for pushes that are due
	pushSettle   = 200 * time.Millisecond // pause between writes of what became of them
	pushTries    = 10                     // then a push is given up
	pushRefusals = 3                      // the same if it is refused
	pushDown     = 5                      // failures in a row after which one is tried at a time
)

// pushAgain are the pauses between tries.
var pushAgain = backoff.Policy{Base: time.Second, Max: 5 * time.Minute}

func (s *Scheduler) pokePush() {
	select {
	case s.poke <- struct{}{}:
	default:
	}
}

// pusher notifies users during one term. It belongs to one goroutine.
type pusher struct {
	*Scheduler
	busy    map[pushKey]bool
	results chan pushed // capacity = concurrency: a try never waits to tell its end
	done    []store.PushResult
	settled time.Time
	fails   int       // in a row
	probe   time.Time // with too many: no try before it
}

type pushKey struct {
	user im.UserID
	conv im.ConversationID
}

type pushed struct {
	store.Push
	webhook.Result
}

// pushes notifies users as long as the term lasts.
func (s *Scheduler) pushes(ctx context.Context, t control.Term) error {
	if s.provider == nil {
		<-ctx.Done()
		return nil
	}
	p := &pusher{Scheduler: s, busy: map[pushKey]bool{}, results: make(chan pushed, s.Push.Concurrency)}
	tries, cancel := context.WithCancel(context.WithoutCancel(ctx))
	defer func() {
		for range p.busy {
			<-p.results
		}
	}()
	defer cancel()
	for ctx.Err() == nil {
		if err := p.step(ctx, tries, t); err != nil && ctx.Err() == nil {
			return err
		}
		p.await(ctx)
	}
	return p.last(ctx, t)
}

// last stores at the end of a term what became of pushes, after a moment for those
// under way.
func (p *pusher) last(ctx context.Context, t control.Term) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 300*time.Millisecond)
	defer cancel()
	moment := time.NewTimer(150 * time.Millisecond)
	defer moment.Stop()
	for over := false; len(p.busy) > 0 && !over; {
		select {
		case one := <-p.results:
			p.ended(one)
		case <-moment.C:
			over = true
		}
	}
	return p.settle(ctx, t)
}

func (p *pusher) await(ctx context.Context) {
	timer := time.NewTimer(pushPoll)
	defer timer.Stop()
	select {
	case <-ctx.Done():
	case one := <-p.results:
		p.ended(one)
	case <-p.poke:
	case <-timer.C:
	}
}

// step does what can be done now.
func (p *pusher) step(ctx, tries context.Context, t control.Term) error {
	ctx, cancel := context.WithTimeout(ctx, outboxCall)
	defer cancel()
	for more := true; more; {
		select {
		case one := <-p.results:
			p.ended(one)
		default:
			more = false
		}
	}
	if len(p.done) > 0 && time.Since(p.settled) >= pushSettle {
		if err := p.settle(ctx, t); err != nil {
			return err
		}
	}
	free := p.Push.Concurrency - len(p.busy)
	if p.fails >= pushDown {
		if free = 0; len(p.busy) == 0 && !time.Now().Before(p.probe) {
			free = 1
		}
	}
	if free <= 0 {
		return nil
	}
	return p.begin(ctx, tries, free)
}

// begin begins tries of what is due, at most n.
func (p *pusher) begin(ctx, tries context.Context, n int) error {
	st, err := p.Store()
	if err != nil {
		return err
	}
	due, err := st.DuePushes(ctx, time.Now(), n+len(p.busy)+len(p.done))
	if err != nil {
		return err
	}
	waiting := map[pushKey]bool{}
	for _, d := range p.done {
		waiting[pushKey{d.User, d.Conversation}] = true
	}
	var list []store.Push
	var users []im.UserID
	for _, one := range due {
		if k := (pushKey{one.User, one.Conversation}); len(list) < n && !p.busy[k] && !waiting[k] {
			list, users = append(list, one), append(users, one.User)
		}
	}
	if len(list) == 0 {
		return nil
	}
	badges, err := st.Badges(ctx, users)
	if err != nil {
		return err
	}
	failpoint.Hit(failpoint.BeforeEffect)
	for _, one := range list {
		notice := noticeOf(one, badges[one.User])
		if p.Push.Content && one.State == store.PushDue {
			notice.Content = p.content(ctx, st, one)
		}
		p.busy[pushKey{one.User, one.Conversation}] = true
		go func() { p.results <- pushed{one, p.provider.Push(tries, notice)} }()
	}
	return nil
}

// noticeOf is what the provider is told of a push.
func noticeOf(p store.Push, badge int) outbox.Notice {
	n := outbox.Notice{
		Type: "push", UserID: string(p.User), ConversationID: string(p.Conversation), CollapseKey: string(p.Conversation), Badge: badge,
		MessageID: strconv.FormatInt(int64(p.MessageID), 10), Seq: strconv.FormatInt(int64(p.Seq), 10), Sender: string(p.Sender), Time: p.At.UTC(),
	}
	if p.State == store.PushWithdraw {
		n.Type = "withdraw"
	}
	n.ID = fmt.Sprintf("%s_%s_%s", n.Type, n.MessageID, n.UserID)
	return n
}

var contentJSON = protojson.MarshalOptions{UseProtoNames: true}

// content is what was written, as it is now; nil if it is not there any more.
func (p *pusher) content(ctx context.Context, st Messages, one store.Push) json.RawMessage {
	e, err := st.Entry(ctx, one.Conversation, one.Seq)
	if err != nil {
		return nil // the notice says that there is something, which is what matters
	}
	w := im.WireEntry(&e)
	if w.Content == nil {
		return nil
	}
	b, err := contentJSON.Marshal(w.Content)
	if err != nil {
		return nil
	}
	return b
}

// ended decides what becomes of a push after a try.
func (p *pusher) ended(one pushed) {
	delete(p.busy, pushKey{one.User, one.Conversation})
	now := time.Now()
	out := store.PushResult{Push: one.Push, Next: one.State, Again: now.Add(max(pushAgain.Pause(one.Tries), time.Second/2, one.After))}
	if one.Outcome != webhook.Failed {
		p.fails = 0
	} else if p.fails++; p.fails >= pushDown {
		p.probe = now.Add(max(backoff.Policy{Base: time.Second, Max: time.Minute}.Pause(p.fails-pushDown), time.Second/2, one.After))
	}
	tries := one.Tries + 1
	result := "failed"
	switch {
	case one.Outcome == webhook.Taken:
		result = "taken"
		out.Next, out.Gone = store.PushSent, one.State == store.PushWithdraw
	case one.Outcome == webhook.Refused && tries >= pushRefusals, one.Outcome == webhook.Failed && tries >= pushTries && p.fails < pushDown:
		result = "given_up"
		out.Next, out.Gone = store.PushGivenUp, one.State == store.PushWithdraw
		p.Log.Error("a user was not notified; the push is given up", obs.User(one.User), zap.Int("tries", tries), zap.String("reason", one.Reason))
	}
	p.pushed.WithLabelValues(result).Inc()
	p.done = append(p.done, out)
}

// settle stores what became of pushes.
func (p *pusher) settle(ctx context.Context, t control.Term) error {
	if len(p.done) == 0 {
		return nil
	}
	st, err := p.Store()
	if err != nil {
		return err
	}
	if err := st.SettlePushes(ctx, t.Proof(), p.done); err != nil {
		return err
	}
	p.done, p.settled = nil, time.Now()
	return nil
}

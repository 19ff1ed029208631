package scheduler

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
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
	v1 "github.com/imdhq/imd/proto/gen/internalv1"
	"github.com/imdhq/imd/sdk/go/gen/clientv1"
)

// The rows that remember how far the log was looked through for users who have to
// be notified. No receiver of the configuration can have such a name.
const (
	offlineNow  = "offline/now"  // for users without a connected device
	offlineLate = "offline/late" // for users whose devices acknowledge nothing
)

const (
	// offlinePause is how much later than the oldest message is old enough it is looked
	// for, so that what is written in one breath is taken together.
	offlinePause = 100 * time.Millisecond
	// offlinePoll is how often is looked when nobody tells of events.
	offlinePoll = 5 * time.Second
	// offlineGrace is the age of a message before users without a connected device
	// are notified: a device that changes its gateway is back by then.
	offlineGrace = time.Second
	// offlineSettle is how much later than acknowledgements are made they can be
	// seen in the message store: state nodes write them at most once in 5 s a member.
	// So long is waited if they cannot be asked, which is tried every offlineAgain.
	offlineSettle = 6 * time.Second
	offlineAgain  = time.Second
	// offlinePage is how many events are looked at in one step.
	offlinePage = 200
	// routeUsers is how many users are looked up at once, and askMarks of how many
	// members state nodes are asked at once, within askLimit.
	routeUsers = 500
	askMarks   = 1000
	askLimit   = 2 * time.Second
)

// walk goes through the log once, each event when it is old enough.
type walk struct {
	name string
	age  time.Duration // of the messages that are looked at
	// choose names those of the users who have not got a message that are to be
	// notified. If it fails, the walk goes on with messages of the age late, and
	// notifies all.
	choose func(context.Context, []store.Push) ([]store.Push, error)
	late   time.Duration

	due time.Time // when to look for the next event; zero = there is none
}

// handovers makes pushes due, each when its message is old enough, as long as the
// term lasts.
func (s *Scheduler) handovers(ctx context.Context, t control.Term) error {
	if s.provider == nil {
		<-ctx.Done()
		return nil
	}
	walks := []*walk{
		{name: offlineNow, age: offlineGrace, choose: s.unreachable, late: offlineGrace},
		{name: offlineLate, age: s.Push.After, choose: s.silent, late: s.Push.After + offlineSettle},
	}
	var news <-chan struct{}
	for poll := time.Now(); ; {
		told := !time.Now().Before(poll) || closed(news)
		if told {
			news, poll = s.news.next(), time.Now().Add(offlinePoll)
		}
		next := poll
		for _, w := range walks {
			if w.due.IsZero() && told || !w.due.IsZero() && !time.Now().Before(w.due) {
				if err := s.handOver(ctx, t, w); err != nil {
					return err
				}
			}
			if !w.due.IsZero() && w.due.Before(next) {
				next = w.due
			}
		}
		if !awaitNews(ctx, news, max(time.Until(next), offlinePause)) {
			return nil
		}
	}
}

// awaitNews waits for news or for a time; false if ctx is done.
func awaitNews(ctx context.Context, news <-chan struct{}, wait time.Duration) bool {
	timer := time.NewTimer(wait)
	defer timer.Stop()
	select {
	case <-ctx.Done():
	case <-timer.C:
	case <-news:
	}
	return ctx.Err() == nil
}

func closed(news <-chan struct{}) bool {
	select {
	case <-news:
		return true
	default:
		return false
	}
}

// handOver makes pushes due for messages that are old enough.
func (s *Scheduler) handOver(ctx context.Context, t control.Term, w *walk) error {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	st, err := s.Store()
	if err != nil {
		return err
	}
	row, err := s.place(ctx, t, st, w.name)
	if err != nil {
		return err
	}
	for more := true; more; {
		p, list, err := s.look(ctx, st, w, row.Cursor)
		w.due, more = p.due, p.more
		if err != nil || p.upto == row.Cursor {
			return err
		}
		row.Cursor, row.Reached = p.upto, p.upto
		failpoint.HitJob("handover")
		ok, err := st.SaveReceiver(ctx, t.Proof(), row, store.Settled{Pushes: list})
		if err != nil || !ok {
			w.due = time.Now() // somebody has moved the walk
			return err
		}
		s.handed.Add(float64(len(list)))
		if len(list) > 0 {
			s.pokePush()
		}
	}
	return nil
}

// reached is how far a page of events is old enough.
type reached struct {
	upto int64     // the last one that is
	due  time.Time // when to look for the next one; zero = the page has no younger one
	more bool      // the next page may have some that are
}

// aheadMost is how far the clock that stamps events may be ahead of this one.
// Those that are further ahead are from before a clock was set back, and old enough:
// whoever waited until they are would notify nobody for as long.
const aheadMost = time.Minute

// reach tells how far events behind a position have an age at a time.
func reach(events []store.Event, after int64, age time.Duration, now time.Time) reached {
	r := reached{upto: after, more: len(events) == offlinePage}
	for _, e := range events {
		if due := e.At.Add(age); due.After(now) && !e.At.After(now.Add(aheadMost)) {
			r.due, r.more = due.Add(offlinePause), false
			break
		}
		r.upto = e.Position
	}
	return r
}

// look takes one page of events behind a position, and names who is to be
// notified.
func (s *Scheduler) look(ctx context.Context, st Messages, w *walk, after int64) (reached, []store.Push, error) {
	events, err := st.Events(ctx, after, offlinePage)
	if err != nil {
		return reached{upto: after}, nil, err
	}
	now := time.Now()
	r := reach(events, after, w.age, now)
	if r.upto == after {
		return r, nil, nil
	}
	list, err := st.Unacked(ctx, after, r.upto, s.Push.Members)
	if err != nil {
		return r, nil, err
	}
	chosen, err := w.choose(ctx, list)
	if err == nil {
		return r, chosen, nil
	}
	s.asked.WithLabelValues("failed").Inc()
	r = reach(events, after, w.late, now)
	if !r.more {
		r.due = now.Add(offlineAgain)
	}
	if r.upto == after {
		return r, nil, nil
	}
	list, err = st.Unacked(ctx, after, r.upto, s.Push.Members)
	return r, list, err
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

// unreachable are the pushes of users without a route. Where routes cannot be
// asked for, nobody counts as unreachable: the other walk finds them.
func (s *Scheduler) unreachable(ctx context.Context, list []store.Push) ([]store.Push, error) {
	away, _, err := s.byRoute(ctx, list)
	if err != nil {
		return nil, nil
	}
	return away, nil
}

// byRoute parts pushes of users without a route from those of users with one.
func (s *Scheduler) byRoute(ctx context.Context, list []store.Push) (away, here []store.Push, err error) {
	if s.Live == nil {
		return nil, list, nil
	}
	live := map[im.UserID]bool{}
	for part := range slices.Chunk(list, routeUsers) {
		users := make([]im.UserID, len(part))
		for i, p := range part {
			users[i] = p.User
		}
		routes, err := s.Live(ctx, users)
		if err != nil {
			return nil, list, err
		}
		for _, r := range routes {
			live[r.User] = true
		}
	}
	for _, p := range list {
		if live[p.User] {
			here = append(here, p)
		} else {
			away = append(away, p)
		}
	}
	return away, here, nil
}

// silent are the pushes of users none of whose devices has acknowledged, as the
// state nodes know it, which are ahead of the store. Users without a route have no
// device that could have. An error means that one of them could not be asked.
func (s *Scheduler) silent(ctx context.Context, list []store.Push) ([]store.Push, error) {
	out, ask, err := s.byRoute(ctx, list)
	if err != nil {
		out, ask = nil, list
	}
	if len(ask) == 0 {
		return out, nil
	}
	if s.State == nil {
		return nil, errors.New("no state node can be asked")
	}
	ctx, cancel := context.WithTimeout(ctx, askLimit)
	defer cancel()
	for part := range slices.Chunk(ask, askMarks) {
		quiet, err := s.ask(ctx, part)
		if err != nil {
			return nil, err
		}
		out = append(out, quiet...)
	}
	return out, nil
}

// ask asks state nodes where members stand, by marks that move nothing, and
// returns the pushes of those who stand before what they are to be told of.
func (s *Scheduler) ask(ctx context.Context, list []store.Push) (out []store.Push, err error) {
	req := &v1.MarkRequest{Marks: make([]*v1.Mark, len(list))}
	for i, p := range list {
		req.Marks[i] = &v1.Mark{ConversationId: string(p.Conversation), UserId: string(p.User)}
	}
	res, err := s.State.Mark(ctx, req)
	if err != nil {
		return nil, err
	}
	if len(res.GetResults()) != len(list) {
		return nil, fmt.Errorf("%d answers for %d members", len(res.GetResults()), len(list))
	}
	for i, r := range res.GetResults() {
		at := max(r.GetReceipt().GetDeliveredSeq(), r.GetReceipt().GetReadSeq())
		switch reason := r.GetError().GetReason(); {
		case reason == im.ReasonName(clientv1.Reason_REASON_NOT_MEMBER):
			s.asked.WithLabelValues("not_member").Inc()
		case r.GetError() != nil:
			return nil, fmt.Errorf("a state node: %s", reason)
		case at >= int64(list[i].Seq):
			s.asked.WithLabelValues("acknowledged").Inc()
		default:
			s.asked.WithLabelValues("silent").Inc()
			out = append(out, list[i])
		}
	}
	return out, nil
}

const (
	pushPoll     = 250 * time.Millisecond // pause between looks for pushes that are due
	pushSettle   = 200 * time.Millisecond // pause between writes of what became of them
	pushQuiet    = time.Second            // after a notice, before the next one of its conversation
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
	failpoint.HitJob("push")
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
	out := store.PushResult{Push: one.Push, Next: one.State, Told: one.Outcome != webhook.Refused, Again: now.Add(max(pushAgain.Pause(one.Tries), time.Second/2, one.After))}
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
		out.Next, out.Gone, out.Again = store.PushSent, one.State == store.PushWithdraw, now.Add(pushQuiet)
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

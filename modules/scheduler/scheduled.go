package scheduler

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/zap"
	"google.golang.org/protobuf/proto"

	"github.com/imdhq/imd/pkg/backoff"
	"github.com/imdhq/imd/pkg/control"
	"github.com/imdhq/imd/pkg/failpoint"
	"github.com/imdhq/imd/pkg/im"
	"github.com/imdhq/imd/pkg/obs"
	"github.com/imdhq/imd/pkg/settings"
	"github.com/imdhq/imd/pkg/store"
	v1 "github.com/imdhq/imd/proto/gen/internalv1"
	"github.com/imdhq/imd/sdk/go/gen/clientv1"
)

const (
	// dueEvery is how often is looked for messages whose time has come.
	dueEvery = 200 * time.Millisecond
	// dueClaim is for how long a claim keeps a message from being claimed again by
	// the same leader. It is above what a round may take.
	dueClaim = 30 * time.Second
	// dueCalls is how many calls of the state role are made at once, and dueSends and
	// dueBytes bound each.
	dueCalls = 4
	dueSends = 200
	dueBytes = 256 << 10
	// dueSettle bounds the store call after messages were sent.
	dueSettle = 3 * time.Second
	// forgetEvery is how often what has ended is removed and what is open counted,
	// and forgetMost how many go at once.
	forgetEvery = 10 * time.Second
	forgetMost  = 1000
	// openShare is how many times as long as counting took nothing is counted again,
	// and openOld the longest time that nothing is.
	openShare = 50
	openOld   = time.Minute
)

// dueAgain are the pauses between tries to send a message.
var dueAgain = backoff.Policy{Base: 500 * time.Millisecond, Max: 30 * time.Second}

// scheduleKeep is how long it can be seen what has become of scheduled messages.
var scheduleKeep = settings.Duration("schedule.keep", 7*24*time.Hour, time.Minute, 366*24*time.Hour,
	"How long scheduled messages that were sent, dropped or cancelled stay in the list.")

// Submitter is what the leader asks of the state role. Safe for concurrent use.
type Submitter interface {
	Submit(context.Context, *v1.SubmitRequest) (*v1.SubmitResponse, error)
}

// scheduleMetrics count what becomes of scheduled messages.
type scheduleMetrics struct {
	next  atomic.Int64           // when what is open is counted again, in Unix nanoseconds
	ended *prometheus.CounterVec // label: result (sent, dropped, again)
	late  prometheus.Histogram
	open  prometheus.Gauge
	over  prometheus.Gauge
}

func newScheduleMetrics(reg prometheus.Registerer) *scheduleMetrics {
	const ns, sub = "imd", "schedule"
	m := &scheduleMetrics{
		ended: prometheus.NewCounterVec(prometheus.CounterOpts{Namespace: ns, Subsystem: sub, Name: "messages_total",
			Help: "Tries to send scheduled messages: sent, dropped because their sender may not send them any more, or again later."}, []string{"result"}),
		late: prometheus.NewHistogram(prometheus.HistogramOpts{Namespace: ns, Subsystem: sub, Name: "late_seconds",
			Help: "How long after its time a scheduled message was sent.", Buckets: []float64{.25, .5, 1, 2, 5, 10, 30, 60, 300, 3600}}),
		open: prometheus.NewGauge(prometheus.GaugeOpts{Namespace: ns, Subsystem: sub, Name: "open",
			Help: "Scheduled messages that were neither sent nor dropped nor cancelled; counted by the leader, 0 elsewhere."}),
		over: prometheus.NewGauge(prometheus.GaugeOpts{Namespace: ns, Subsystem: sub, Name: "overdue_seconds",
			Help: "For how long the first scheduled message has been waiting for its turn; counted by the leader, 0 elsewhere."}),
	}
	reg.MustRegister(m.ended, m.late, m.open, m.over)
	return m
}

// due are the rounds of one term that send messages whose time has come. The first
// claim, and the first one after an error, also takes what was claimed before and
// not settled: that error may have been the loss of an answer.
func (s *Scheduler) due() round {
	first := true
	return func(ctx context.Context, t control.Term) error {
		for {
			n, err := s.sendDue(ctx, t, first)
			if first = err != nil; first {
				return err
			}
			if n < store.MaxScheduledClaim {
				return nil
			}
		}
	}
}

// sendDue sends messages whose time has come, and returns how many it took.
func (s *Scheduler) sendDue(ctx context.Context, t control.Term, first bool) (int, error) {
	st, err := s.Store()
	if err != nil {
		return 0, err
	}
	failpoint.HitJob("scheduled")
	now := time.Now()
	list, err := st.ClaimScheduled(ctx, t.Proof(), store.ScheduledClaim{Now: now, Until: now.Add(dueClaim), Limit: store.MaxScheduledClaim, First: first})
	if err != nil || len(list) == 0 {
		return 0, err
	}
	done := s.submitDue(ctx, list)
	// What was sent is told the store even if the term has just ended: a leader
	// that was followed is refused.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), dueSettle)
	defer cancel()
	if err := st.SettleScheduled(ctx, t.Proof(), done); err != nil {
		return 0, fmt.Errorf("tell what became of scheduled messages: %w", err)
	}
	s.countDue(list, done)
	return len(list), nil
}

func (s *Scheduler) countDue(list []store.Scheduled, done []store.ScheduledResult) {
	for i, d := range done {
		switch d.State {
		case store.ScheduledSent:
			s.schedule.ended.WithLabelValues("sent").Inc()
			s.schedule.late.Observe(max(0, d.At.Sub(list[i].Due).Seconds()))
		case store.ScheduledDropped:
			s.schedule.ended.WithLabelValues("dropped").Inc()
			s.Log.Info("a scheduled message was dropped", zap.Int64("scheduled", d.ID), obs.User(list[i].Sender), zap.String("reason", im.ReasonName(d.Reason)))
		default:
			s.schedule.ended.WithLabelValues("again").Inc()
		}
	}
}

// submitDue sends messages and tells what became of each, in order.
func (s *Scheduler) submitDue(ctx context.Context, list []store.Scheduled) []store.ScheduledResult {
	done := make([]store.ScheduledResult, len(list))
	gate := make(chan struct{}, dueCalls)
	var wg sync.WaitGroup
	for _, batch := range s.dueBatches(list) {
		gate <- struct{}{}
		wg.Go(func() {
			defer func() { <-gate }()
			acks := s.submitBatch(ctx, list, batch)
			now := time.Now()
			for i, at := range batch {
				done[at] = settled(&list[at], acks[i], now)
			}
		})
	}
	for i := range list {
		if list[i].Disabled {
			done[i] = store.ScheduledResult{ID: list[i].ID, State: store.ScheduledDropped, Reason: clientv1.Reason_REASON_FORBIDDEN, At: time.Now()}
		}
	}
	wg.Wait()
	return done
}

// dueBatches are the messages that go in one call each, as places in list: those
// of one conversation follow each other, and one node orders all of a batch.
func (s *Scheduler) dueBatches(list []store.Scheduled) [][]int {
	home := func(im.ConversationID) im.NodeID { return "" }
	if s.StateHome != nil {
		home = func(c im.ConversationID) im.NodeID { return s.StateHome(string(c)) }
	}
	byConv, convs := map[im.ConversationID][]int{}, []im.ConversationID{}
	for i := range list {
		if list[i].Disabled {
			continue
		}
		c := list[i].Conversation
		if byConv[c] == nil {
			convs = append(convs, c)
		}
		byConv[c] = append(byConv[c], i)
	}
	type open struct{ at, bytes int } // the last batch of a node
	last := map[im.NodeID]open{}
	var out [][]int
	for _, c := range convs {
		node := home(c)
		for _, i := range byConv[c] {
			o, ok := last[node]
			if !ok || len(out[o.at]) == dueSends || o.bytes+len(list[i].Content) > dueBytes {
				out = append(out, nil)
				o = open{at: len(out) - 1}
			}
			out[o.at] = append(out[o.at], i)
			o.bytes += len(list[i].Content)
			last[node] = o
		}
	}
	return out
}

// submitBatch makes one call, and returns the answer for each message; nil = none.
func (s *Scheduler) submitBatch(ctx context.Context, list []store.Scheduled, batch []int) []*clientv1.SendAck {
	acks := make([]*clientv1.SendAck, len(batch))
	req := &v1.SubmitRequest{}
	for _, at := range batch {
		req.Runs = append(req.Runs, dueRun(&list[at]))
	}
	failpoint.HitJob("scheduled")
	res, err := s.Submitter.Submit(ctx, req)
	if err != nil || len(res.Runs) != len(batch) {
		if ctx.Err() == nil {
			s.Log.Warn("scheduled messages could not be sent now; it is tried again", zap.Int("messages", len(batch)), obs.Err(err))
		}
		return acks
	}
	for i, r := range res.Runs {
		if len(r.GetAcks()) == 1 {
			acks[i] = r.Acks[0]
		}
	}
	return acks
}

// dueRun is one message as the state role takes it. That it may have been sent
// before is looked up: a leader before this one may have done so.
func dueRun(m *store.Scheduled) *v1.Run {
	content := &clientv1.Content{}
	if proto.Unmarshal(m.Content, content) != nil { // only of a row that is damaged
		content = nil
	}
	return &v1.Run{ConversationId: string(m.Conversation), UserId: string(m.Sender), PeerId: string(m.Peer), Sends: []*v1.RunSend{{
		ClientMessageId: string(m.ClientMessageID), Resend: true, Kind: clientv1.EntryKind_ENTRY_KIND_MESSAGE, Content: content, BodyHash: m.BodyHash[:],
	}}}
}

// settled is what an answer means for a message.
func settled(m *store.Scheduled, a *clientv1.SendAck, now time.Time) store.ScheduledResult {
	d := store.ScheduledResult{ID: m.ID, At: now}
	switch a.GetStatus() {
	case clientv1.Ack_ACK_OK:
		d.State, d.MessageID, d.Seq = store.ScheduledSent, im.MessageID(a.MessageId), im.Seq(a.Seq)
	case clientv1.Ack_ACK_FAIL:
		d.State, d.Reason = store.ScheduledDropped, im.ReasonByName(a.Error.GetReason())
	default:
		wait := time.Duration(a.GetError().GetRetryAfterMs()) * time.Millisecond
		d.State, d.Again = store.ScheduledSending, now.Add(max(dueAgain.Pause(m.Tries), dueAgain.Base/2, wait))
	}
	return d
}

// forget removes scheduled messages and announcements that ended long ago, and
// counts what is open.
func (s *Scheduler) forget(ctx context.Context, t control.Term) error {
	st, err := s.Store()
	if err != nil {
		return err
	}
	keep := scheduleKeep.In(s.current())
	for n := forgetMost; n == forgetMost; {
		failpoint.HitJob("forget")
		if n, err = st.TrimScheduled(ctx, t.Proof(), time.Now().Add(-keep), forgetMost); err != nil {
			return err
		}
	}
	if _, err := st.TrimAnnouncements(ctx, t.Proof(), time.Now().Add(-announcementKept)); err != nil {
		return err
	}
	return s.countOpen(ctx, st)
}

// countOpen shows what is open. Of very many it counts more rarely.
func (s *Scheduler) countOpen(ctx context.Context, st Messages) error {
	now := time.Now()
	if now.UnixNano() < s.schedule.next.Load() {
		return nil
	}
	n, err := st.ScheduledCounts(ctx)
	if err != nil {
		return err
	}
	s.schedule.next.Store(now.Add(min(openShare*time.Since(now), openOld)).UnixNano())
	s.schedule.open.Set(float64(n.Open))
	over := 0.0
	if !n.Next.IsZero() {
		over = max(0, time.Since(n.Next).Seconds())
	}
	s.schedule.over.Set(over)
	return nil
}

// current is the settings in force.
func (s *Scheduler) current() *settings.Snapshot {
	if s.Settings == nil {
		return nil
	}
	return s.Settings.Current()
}

// noneOpen is what the gauges show where nobody leads.
func (m *scheduleMetrics) noneOpen() {
	m.next.Store(0)
	m.open.Set(0)
	m.over.Set(0)
}

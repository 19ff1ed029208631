package gateway

import (
	"time"

	"github.com/imdhq/imd/pkg/delivery"
	"github.com/imdhq/imd/pkg/obs"
	"github.com/imdhq/imd/pkg/run"
	"github.com/imdhq/imd/sdk/go/gen/clientv1"
	"github.com/imdhq/imd/sdk/go/protocol"
)

// deliver queues frames of one conversation from push on the session, but for
// those that it has written itself; here false = it has ended. After due the
// caller flushes, which it may put off until it has delivered more.
func (s *session) deliver(frames []*shared) (here, due bool) {
	turns := s.q.turns.Load()
	here = s.take(frames)
	return here, s.q.turns.Load() != turns // else somebody else is going to
}

// take is deliver without flushing.
func (s *session) take(frames []*shared) (here bool) {
	s.mu.Lock()
	defer s.mu.Mutex.Unlock()
	if s.phase != online && s.phase != joining {
		return false
	}
	now := time.Now()
	for _, f := range frames {
		switch {
		case f.author == s.id:
		case s.phase == online:
			s.deliverLocked(now, f)
		case s.phase == joining:
			s.keepLocked(f)
		}
	}
	return true
}

// keepLocked keeps a frame until the welcome.
func (s *session) keepLocked(f *shared) {
	if len(s.early) < maxEarly {
		s.early = append(s.early, f.kept(s.enc))
		return
	}
	s.early = append(s.early[:0], headsOf(s.early)...)
	if len(s.early) >= maxEarly {
		s.endLocked("busy", "too much happened while the session began", minWait)
		return
	}
	s.early = append(s.early, &shared{conv: f.conv, seq: f.seq})
}

// kept returns a copy that outlives the call that brought f.
func (f *shared) kept(enc protocol.Encoding) *shared {
	data, err := f.in(enc)
	if err != nil {
		return &shared{conv: f.conv, seq: f.seq} // no frame: the log has it
	}
	c := &shared{conv: f.conv, seq: f.seq, acked: f.acked, commitNS: f.commitNS, author: f.author, trace: f.trace}
	c.made[enc].Store(&data)
	return c
}

// headsOf turns deliveries into one head a conversation.
func headsOf(list []*shared) []*shared {
	newest := map[string]int64{}
	for _, f := range list {
		if f.seq > 0 {
			newest[f.conv] = max(newest[f.conv], f.seq)
		}
	}
	out := make([]*shared, 0, len(newest))
	for conv, seq := range newest {
		out = append(out, &shared{conv: conv, seq: seq})
	}
	return out
}

// deliverLocked queues a frame, or a head in its place.
func (s *session) deliverLocked(now time.Time, f *shared) {
	switch {
	case f.head():
		s.headLocked(f.conv, f.seq)
	case s.pullingLocked(now):
		if f.acked {
			s.headLocked(f.conv, f.seq) // receipts are dropped: newer ones come
		}
	default:
		s.pushLocked(now, f)
	}
}

func (s *session) pushLocked(now time.Time, f *shared) {
	data, err := f.in(s.enc)
	if err != nil {
		s.g.Log.Error("a delivery is no frame", obs.Session(s.id), obs.Err(err))
		return
	}
	if f.acked && !s.seen.Delivered(f.conv, f.seq) {
		return // late or repeated: the client reads it where it belongs
	}
	if f.acked && (len(s.held.list) > 0 || !s.roomLocked()) {
		s.held.add(now, f.kept(s.enc), len(data))
		s.wakeLocked(s.held.until())
		return
	}
	s.sendLocked(now, f, data)
}

// sendLocked queues a delivery and notes that it waits for an ack.
func (s *session) sendLocked(now time.Time, f *shared, data []byte) {
	k := kindReceipt
	if f.acked {
		k = kindDeliver
	}
	if s.q.deliver(outFrame{data: data, kind: k, commitNS: f.commitNS}) {
		s.endLocked("slow", "too much waits to be read", 0)
		return
	}
	if f.acked {
		s.unacked.Add(now, f.conv, f.seq, data)
		s.wakeLocked(s.unacked.Next())
	}
}

// headLocked queues a hint, unless the client knows.
func (s *session) headLocked(conv string, seq int64) {
	s.seen.Knows(conv, seq)
	if s.q.head(conv, seq) {
		s.endLocked("slow", "too much waits to be read", 0)
	}
}

// pullingLocked decides whether deliveries become heads now.
func (s *session) pullingLocked(now time.Time) bool {
	fill, window := s.fillLocked(), s.g.cfg.WindowEntries
	switch {
	case !s.pull && (fill > fullFill || s.held.over(now)):
		s.pull = true
		s.headsLocked()
		s.g.m.pullMode.WithLabelValues("enter").Inc()
	case s.pull && fill < calmFill && s.unacked.Len() < window/2 && s.unacked.Bytes() < protocol.DeliveryWindowBytes/2:
		s.pull = false
		s.g.m.pullMode.WithLabelValues("leave").Inc()
	}
	return s.pull
}

// compare tells the client of a head that state knows of, if nothing that was
// written lately covers it.
func (s *session) compare(conv string, seq int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.phase == online && s.seen.Get(conv).Any < seq {
		s.g.m.heads.Inc()
		s.headLocked(conv, seq)
	}
}

// ack takes a device's acknowledgement.
func (s *session) ack(now time.Time, id uint32, a *clientv1.DeliveryAck) {
	for _, r := range a.Ranges {
		if !validConversation(r.ConversationId) || r.AfterSeq < 0 || r.Seq <= r.AfterSeq {
			s.reply(errorFrame(id, protocol.NewError("bad_request", "an ack needs a conversation and 0 <= after_seq < seq", 0)))
			return
		}
	}
	s.acknowledged(now, a.Ranges)
	s.mu.Lock()
	for _, r := range a.Ranges {
		s.unacked.Ack(now, r.ConversationId, r.AfterSeq, r.Seq)
	}
	s.releaseLocked(now)
	s.mu.Unlock()
	for _, r := range a.Ranges {
		s.g.marks.add(mark{r.ConversationId, string(s.user)}, span{r.AfterSeq, r.Seq})
	}
}

// wake does what is due. It is called by the wheel and never blocks.
func (s *session) wake(now time.Time) {
	s.q.uncork()
	s.mu.Lock()
	s.wakeAt = time.Time{}
	var out []run.Out
	switch {
	case s.phase == waiting && !now.Before(s.helloBy):
		s.endLocked("auth_timeout", "no hello in time", 0)
	case s.phase == online:
		out = s.wakeOnline(now)
	case s.phase == waiting:
		s.wakeLocked(s.helloBy)
	}
	s.mu.Unlock()
	s.submit(out)
}

func (s *session) wakeOnline(now time.Time) []run.Out {
	if !now.Before(s.expires) {
		s.endLocked("token_expired", "the token expired", 0)
		return nil
	}
	var e run.Effects
	s.runs.Expire(now, &e)
	s.answerLocked(now, &e)
	hot := s.g.tuned.Get()
	s.unacked.First, s.unacked.Most = hot.redeliverAfter, hot.redeliverCount
	s.redeliver(now)
	if s.releaseLocked(now); s.held.over(now) {
		s.pullingLocked(now)
	}
	s.beat.interval, s.beat.timeout = hot.pingInterval, hot.pongTimeout // holds from the next ping on
	ping, dead := s.beat.step(now, time.Unix(0, s.wire.lastByte.Load()), s.g.wheel.resumed(), s.stalled.Load())
	if dead {
		s.endLocked("idle", "no sign of life", 0)
		return nil
	}
	if ping {
		s.replyLocked(&clientv1.ServerFrame{Kind: &clientv1.ServerFrame_Ping{
			Ping: &clientv1.Ping{IntervalMs: millis(s.beat.interval)}}})
	}
	if s.phase == ended {
		return nil
	}
	s.wakeLocked(s.expires)
	s.wakeLocked(s.beat.next())
	s.wakeLocked(s.runs.Next())
	s.wakeLocked(s.unacked.Next())
	s.wakeLocked(s.quiet(now))
	s.wakeLocked(s.held.until())
	return e.Submit
}

// redeliver sends what was not acknowledged again, if the client has read what
// waits for it.
func (s *session) redeliver(now time.Time) {
	if s.unacked.Len() == 0 {
		return
	}
	s.unacked.Due(now, s.q.fill() > calmFill, func(_ string, d *delivery.Delivery) {
		s.g.m.redelivered.Inc()
		if s.q.deliver(outFrame{data: d.Data, kind: kindDeliver}) {
			s.endLocked("slow", "too much waits to be read", 0)
		}
	})
}

// wakeLocked asks the wheel for a call of wake at the time at or earlier; a
// zero time asks for nothing.
func (s *session) wakeLocked(at time.Time) {
	if at.IsZero() || s.phase == ended || !s.wakeAt.IsZero() && !at.Before(s.wakeAt) {
		return
	}
	s.wakeAt = at
	s.g.wheel.wakeBy(&s.timer, at)
}

// millis is a duration as frames carry it.
func millis(d time.Duration) uint32 { return uint32(d / time.Millisecond) }

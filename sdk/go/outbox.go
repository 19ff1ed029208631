package imd

import (
	"slices"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/imdhq/imd/sdk/go/gen/clientv1"
	"github.com/imdhq/imd/sdk/go/protocol"
)

// outbox holds what is not known to be stored, in order of writing. It is pure:
// it says what to write and when, and is told what was answered.
//
// Messages of one conversation are a lane. In a lane those that were written
// and not answered are a prefix, so nothing overtakes what was refused: after a
// refusal the lane goes on from the refused message, in order.
type outbox struct {
	limit      int
	lanes      map[string]*lane
	byID       map[string]*outMsg
	byFrame    map[uint32]*outMsg
	unanswered int
	order      uint64
}

type lane struct {
	msgs      []*outMsg
	inflight  int       // written and not answered: msgs[:inflight]
	holdUntil time.Time // nothing is written before
	attempts  int       // refusals in a row
	refused   bool      // msgs[inflight] was refused and not written since
	runStart  bool      // the next one written gives up what was refused
}

type outMsg struct {
	id      string // client message id
	lane    string // conversation id
	order   uint64
	send    *clientv1.Send
	out     *Outgoing
	frameID uint32 // of the copy that waits for an answer; 0 = none
	sentAt  time.Time
	written bool // at least once
}

func newOutbox(limit int) *outbox {
	return &outbox{
		limit:   limit,
		lanes:   make(map[string]*lane),
		byID:    make(map[string]*outMsg),
		byFrame: make(map[uint32]*outMsg),
	}
}

func (o *outbox) len() int { return len(o.byID) }

// add takes a message, or returns false if there are too many.
func (o *outbox) add(m *outMsg) bool {
	if len(o.byID) >= o.limit {
		return false
	}
	o.order++
	m.order = o.order
	l := o.lanes[m.lane]
	if l == nil {
		l = &lane{}
		o.lanes[m.lane] = l
	}
	l.msgs = append(l.msgs, m)
	o.byID[m.id] = m
	return true
}

// next returns the oldest message that may be written now, nil if there is
// none.
func (o *outbox) next(now time.Time) *outMsg {
	if o.unanswered >= protocol.ClientSendWindow {
		return nil
	}
	var best *outMsg
	for _, l := range o.lanes {
		if l.inflight == len(l.msgs) || now.Before(l.holdUntil) {
			continue
		}
		if m := l.msgs[l.inflight]; best == nil || m.order < best.order {
			best = m
		}
	}
	return best
}

// write marks what next returned as written in a frame and returns the frame's
// content.
func (o *outbox) write(m *outMsg, frameID uint32, now time.Time) *clientv1.Send {
	l := o.lanes[m.lane]
	s := proto.CloneOf(m.send)
	s.Resend = m.written
	s.RunStart = l.runStart
	l.runStart, l.refused = false, false
	l.inflight++
	o.unanswered++
	m.written, m.frameID, m.sentAt = true, frameID, now
	o.byFrame[frameID] = m
	return s
}

// stored removes a message that is in the log; nil if it is not here.
func (o *outbox) stored(id string) *outMsg {
	m := o.byID[id]
	if m != nil {
		o.lanes[m.lane].attempts = 0
		o.remove(m)
	}
	return m
}

// failed removes the message of a frame that got ACK_FAIL; nil if the frame is
// not the last copy.
func (o *outbox) failed(frameID uint32) *outMsg {
	m := o.byFrame[frameID]
	if m != nil {
		o.remove(m)
	}
	return m
}

// retry takes the lane of a refused frame back to its message and holds it.
// Answers to copies of before are ignored, which the frame's id tells.
func (o *outbox) retry(frameID uint32, e *clientv1.Error, now time.Time) {
	m := o.byFrame[frameID]
	if m == nil {
		return
	}
	l := o.lanes[m.lane]
	at := slices.Index(l.msgs, m)
	for _, later := range l.msgs[at:l.inflight] {
		o.forget(later)
	}
	l.inflight, l.refused = at, true
	if m.out != nil && e != nil {
		m.out.refusal.Store(fromWire(e))
	}
	if e.GetReason() == protocol.ReasonBehind {
		// What holds the run is not here any more: give it up.
		l.runStart = at == 0
		l.holdUntil = now.Add(min(time.Duration(l.attempts)*backoffBase/4, backoffMax))
	} else {
		l.holdUntil = now.Add(retryPause(e, l.attempts))
	}
	l.attempts++
}

// retryPause is what the server told, doubled with each refusal in a row where
// the store or a node is out of reach.
func retryPause(e *clientv1.Error, attempts int) time.Duration {
	told := time.Duration(e.GetRetryAfterMs()) * time.Millisecond
	switch e.GetReason() {
	case protocol.ReasonBusy, protocol.ReasonRateLimited:
		if told == 0 {
			info, _ := protocol.Lookup(e.GetReason())
			told = info.RetryAfter
		}
		return told
	}
	return min(max(told, backoffBase)<<min(attempts, 6), backoffMax)
}

// withdraw removes a message; nil if it is not here. If it was refused, the
// next one of its lane tells the server not to wait for it.
func (o *outbox) withdraw(id string) *outMsg {
	m := o.byID[id]
	if m == nil {
		return nil
	}
	l := o.lanes[m.lane]
	if at := slices.Index(l.msgs, m); l.refused && at == l.inflight {
		l.runStart, l.refused, l.attempts, l.holdUntil = true, false, 0, time.Time{}
	}
	o.remove(m)
	return m
}

func (o *outbox) remove(m *outMsg) {
	l := o.lanes[m.lane]
	at := slices.Index(l.msgs, m)
	if at < l.inflight {
		l.inflight--
	}
	o.forget(m)
	l.msgs = slices.Delete(l.msgs, at, at+1)
	delete(o.byID, m.id)
	if len(l.msgs) == 0 && !l.runStart {
		delete(o.lanes, m.lane)
	}
}

// forget stops waiting for the answer to a message's last copy.
func (o *outbox) forget(m *outMsg) {
	if m.frameID != 0 {
		delete(o.byFrame, m.frameID)
		m.frameID = 0
		o.unanswered--
	}
}

// reconnected takes everything back, to be written again in order.
func (o *outbox) reconnected() {
	for key, l := range o.lanes {
		for _, m := range l.msgs {
			o.forget(m)
		}
		*l = lane{msgs: l.msgs}
		if len(l.msgs) == 0 {
			delete(o.lanes, key)
		}
	}
}

// all returns every message that match accepts, in order of writing.
func (o *outbox) all(match func(*outMsg) bool) []*outMsg {
	var found []*outMsg
	for _, m := range o.byID {
		if match(m) {
			found = append(found, m)
		}
	}
	slices.SortFunc(found, func(a, b *outMsg) int { return int(a.order) - int(b.order) })
	return found
}

// wakeAt returns when a hold ends or an answer is overdue; ok is false if
// neither will be.
func (o *outbox) wakeAt() (at time.Time, ok bool) {
	consider := func(t time.Time) {
		if !ok || t.Before(at) {
			at, ok = t, true
		}
	}
	for _, l := range o.lanes {
		if l.inflight > 0 {
			consider(l.msgs[0].sentAt.Add(protocol.ClientTimeout))
		}
		if l.inflight < len(l.msgs) && !l.holdUntil.IsZero() {
			consider(l.holdUntil)
		}
	}
	return at, ok
}

// overdue reports whether a written message is without an answer for too long.
func (o *outbox) overdue(now time.Time) bool {
	for _, m := range o.byFrame {
		if now.Sub(m.sentAt) >= protocol.ClientTimeout {
			return true
		}
	}
	return false
}

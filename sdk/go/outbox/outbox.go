package outbox

import (
	"slices"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/imdhq/imd/sdk/go/gen/clientv1"
	"github.com/imdhq/imd/sdk/go/protocol"
)

// Bounds of the pause before a refused message is written again, where the
// server did not tell one that counts.
const (
	minPause = 500 * time.Millisecond
	maxPause = 30 * time.Second
)

// Outbox holds what is not known to be stored, in order of writing. It says what
// to write and when, and is told what was answered. T is whatever the caller
// keeps with a message. The zero value is not usable; see New. Not safe for
// concurrent use.
//
// Messages of one conversation are a lane. In a lane those that were written
// and not answered are a prefix, so nothing overtakes what was refused: after a
// refusal the lane goes on from the refused message, in order.
type Outbox[T any] struct {
	limit      int
	lanes      map[string]*lane[T]
	byID       map[string]*Message[T]
	byFrame    map[uint32]*Message[T]
	unanswered int
	order      uint64
}

type lane[T any] struct {
	msgs      []*Message[T]
	inflight  int       // written and not answered: msgs[:inflight]
	holdUntil time.Time // nothing is written before
	attempts  int       // refusals in a row
	refused   bool      // msgs[inflight] was refused and not written since
	runStart  bool      // the next one written gives up what was refused
}

// Message is one message on its way. The caller sets the exported fields before
// Add and leaves them.
type Message[T any] struct {
	ID           string // client message id
	Conversation string // conversation id; its messages stay in order
	Send         *clientv1.Send
	Value        T

	order   uint64
	frameID uint32 // of the copy that waits for an answer; 0 = none
	sentAt  time.Time
	written bool // at least once
}

// New returns an empty outbox for at most limit messages.
func New[T any](limit int) *Outbox[T] {
	return &Outbox[T]{
		limit:   limit,
		lanes:   make(map[string]*lane[T]),
		byID:    make(map[string]*Message[T]),
		byFrame: make(map[uint32]*Message[T]),
	}
}

// Len is how many messages there are.
func (o *Outbox[T]) Len() int { return len(o.byID) }

// Get finds a message by its client message id; nil if it is not here.
func (o *Outbox[T]) Get(id string) *Message[T] { return o.byID[id] }

// Busy reports whether something of a conversation is here, or was given up
// without the server having been told.
func (o *Outbox[T]) Busy(conversation string) bool { return o.lanes[conversation] != nil }

// Add takes a message, or returns false if there are too many.
func (o *Outbox[T]) Add(m *Message[T]) bool {
	if len(o.byID) >= o.limit {
		return false
	}
	o.order++
	m.order = o.order
	l := o.lanes[m.Conversation]
	if l == nil {
		l = &lane[T]{}
		o.lanes[m.Conversation] = l
	}
	l.msgs = append(l.msgs, m)
	o.byID[m.ID] = m
	return true
}

// Next returns the oldest message that may be written now, nil if there is
// none.
func (o *Outbox[T]) Next(now time.Time) *Message[T] {
	if o.unanswered >= protocol.ClientSendWindow {
		return nil
	}
	var best *Message[T]
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

// Write marks what Next returned as written in a frame and returns the frame's
// content.
func (o *Outbox[T]) Write(m *Message[T], frameID uint32, now time.Time) *clientv1.Send {
	l := o.lanes[m.Conversation]
	s := proto.CloneOf(m.Send)
	s.Resend = m.written
	s.RunStart = l.runStart
	l.runStart, l.refused = false, false
	l.inflight++
	o.unanswered++
	m.written, m.frameID, m.sentAt = true, frameID, now
	o.byFrame[frameID] = m
	return s
}

// Stored removes a message that is in the log; nil if it is not here.
func (o *Outbox[T]) Stored(id string) *Message[T] {
	m := o.byID[id]
	if m != nil {
		o.lanes[m.Conversation].attempts = 0
		o.Remove(m)
	}
	return m
}

// Failed removes the message of a frame that got ACK_FAIL; nil if the frame is
// not the last copy.
func (o *Outbox[T]) Failed(frameID uint32) *Message[T] {
	m := o.byFrame[frameID]
	if m != nil {
		o.Remove(m)
	}
	return m
}

// Retry takes the lane of a refused frame back to its message, which it returns,
// and holds it. Answers to copies of before are ignored, which the frame's id
// tells: nil.
func (o *Outbox[T]) Retry(frameID uint32, e *clientv1.Error, now time.Time) *Message[T] {
	m := o.byFrame[frameID]
	if m == nil {
		return nil
	}
	l := o.lanes[m.Conversation]
	at := slices.Index(l.msgs, m)
	for _, later := range l.msgs[at:l.inflight] {
		o.forget(later)
	}
	l.inflight, l.refused = at, true
	if e.GetReason() == protocol.ReasonBehind {
		// What holds the run is not here any more: give it up.
		l.runStart = at == 0
		l.holdUntil = now.Add(min(time.Duration(l.attempts)*minPause/4, maxPause))
	} else {
		l.holdUntil = now.Add(retryPause(e, l.attempts))
	}
	l.attempts++
	return m
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
	return min(max(told, minPause)<<min(attempts, 6), maxPause)
}

// Withdraw removes a message; nil if it is not here. If it was refused, the
// Next one of its lane tells the server not to wait for it.
func (o *Outbox[T]) Withdraw(id string) *Message[T] {
	m := o.byID[id]
	if m == nil {
		return nil
	}
	l := o.lanes[m.Conversation]
	if at := slices.Index(l.msgs, m); l.refused && at == l.inflight {
		l.runStart, l.refused, l.attempts, l.holdUntil = true, false, 0, time.Time{}
	}
	o.Remove(m)
	return m
}

// Remove takes a message out, whatever its state. It must be in the outbox.
func (o *Outbox[T]) Remove(m *Message[T]) {
	l := o.lanes[m.Conversation]
	at := slices.Index(l.msgs, m)
	if at < l.inflight {
		l.inflight--
	}
	o.forget(m)
	l.msgs = slices.Delete(l.msgs, at, at+1)
	delete(o.byID, m.ID)
	if len(l.msgs) == 0 && !l.runStart {
		delete(o.lanes, m.Conversation)
	}
}

// forget stops waiting for the answer to a message's last copy.
func (o *Outbox[T]) forget(m *Message[T]) {
	if m.frameID != 0 {
		delete(o.byFrame, m.frameID)
		m.frameID = 0
		o.unanswered--
	}
}

// Reconnected takes everything back, to be written again in order.
func (o *Outbox[T]) Reconnected() {
	for key, l := range o.lanes {
		for _, m := range l.msgs {
			o.forget(m)
		}
		*l = lane[T]{msgs: l.msgs}
		if len(l.msgs) == 0 {
			delete(o.lanes, key)
		}
	}
}

// All returns every message that match accepts, in order of writing.
func (o *Outbox[T]) All(match func(*Message[T]) bool) []*Message[T] {
	var found []*Message[T]
	for _, m := range o.byID {
		if match(m) {
			found = append(found, m)
		}
	}
	slices.SortFunc(found, func(a, b *Message[T]) int { return int(a.order) - int(b.order) })
	return found
}

// WakeAt returns when a hold ends or an answer is overdue; ok is false if
// neither will be.
func (o *Outbox[T]) WakeAt() (at time.Time, ok bool) {
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

// Overdue reports whether a written message is without an answer for too long.
func (o *Outbox[T]) Overdue(now time.Time) bool {
	for _, m := range o.byFrame {
		if now.Sub(m.sentAt) >= protocol.ClientTimeout {
			return true
		}
	}
	return false
}

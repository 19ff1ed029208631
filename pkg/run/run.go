// Package run keeps the sends of a connection in order. A run is the ordered
// sends of one connection in one conversation, from the oldest unacknowledged
// one; one of them is with state at a time, and nothing that was written after
// a refused send overtakes it. A Queue decides what may go and touches nothing,
// so that the gateway, tests and the simulator drive the same one.
package run

import (
	"time"

	v1 "github.com/imdhq/imd/proto/gen/internalv1"
	"github.com/imdhq/imd/sdk/go/gen/clientv1"
	"github.com/imdhq/imd/sdk/go/protocol"
)

const (
	// AnswerWithin is when a send without an answer from state is answered
	// ACK_RETRY; with the wheel's tick it stays below two seconds.
	AnswerWithin = 1700 * time.Millisecond
	// maxRunBytes bounds one run.
	maxRunBytes = 128 << 10
	// sweepRuns is how many conversations are remembered before those that
	// hold nothing back any more are forgotten.
	sweepRuns = 64
)

// Send is one send that has no answer yet.
type Send struct {
	ID      uint32      // of its frame
	Send    *v1.RunSend // what goes to state
	Start   bool        // run_start
	Size    int         // bytes that count against the bound of a run
	Arrived time.Time
	Verdict *clientv1.Error // decided by the gateway: retryable = ACK_RETRY, else ACK_FAIL; nil = state decides
}

// Answer is a send and what to tell the device about it.
type Answer struct {
	Send Send
	Ack  *clientv1.SendAck
}

// Token tells apart the runs of a connection, so that the result of one that
// was given up is recognised.
type Token uint64

// Out is a run to submit.
type Out struct {
	Token Token
	Run   *v1.Run
	Size  int // bytes
}

// Effects is what a step of a Queue asks for, in order. The zero value asks for
// nothing; a step appends to it.
type Effects struct {
	Answers []Answer
	Submit  []Out
}

// Queue keeps the sends of one connection in order. It is a state machine
// without clock and locks. User and Session say whose sends they are and must
// be set before the first Add; otherwise the zero value is ready.
//
// Per conversation: sends wait in order of arrival; a prefix of them is in
// flight, and nothing else is submitted meanwhile. When a send is answered
// ACK_RETRY it holds the conversation: every later send is answered ACK_RETRY
// (behind) until that client_message_id comes again, a send with run_start
// comes, or protocol.HoldTimeout has passed. Answers of one conversation leave
// in order of arrival.
type Queue struct {
	User, Session string
	Proof         *v1.SessionProof

	convs      map[string]*conversation
	unanswered int
	token      Token
}

// conversation is the sends of one connection in one conversation.
type conversation struct {
	id, peer string
	waiting  []Send
	inFlight int // of waiting
	token    Token
	heldBy   string // client_message_id of the refused send; "" = nothing is held back
	heldAt   time.Time
}

// Add takes a send that just arrived. peer is set if the send named a user.
func (q *Queue) Add(now time.Time, conv, peer string, it Send, e *Effects) {
	c := q.convs[conv]
	if c == nil {
		q.sweep(now)
		if q.convs == nil {
			q.convs = make(map[string]*conversation)
		}
		c = &conversation{id: conv}
		q.convs[conv] = c
	}
	if peer != "" {
		c.peer = peer
	}
	q.unanswered++
	c.waiting = append(c.waiting, it)
	q.settle(now, c, e)
}

// Done takes the result of a run: the acks of its sends in order, or the error
// of the call. It returns false for a run that was given up.
func (q *Queue) Done(now time.Time, conv string, token Token, acks []*clientv1.SendAck, failed *clientv1.Error, e *Effects) bool {
	c := q.convs[conv]
	if c == nil || c.token != token || c.inFlight == 0 {
		return false
	}
	if failed == nil && !c.answeredBy(acks) {
		failed = protocol.NewError("internal", "", 0)
	}
	if failed != nil {
		q.giveUp(now, c, failed, e)
	} else {
		n := c.inFlight
		c.inFlight = 0
		for i := range n {
			q.answer(now, c, sound(acks[i]), e)
		}
	}
	q.settle(now, c, e)
	return true
}

// answeredBy reports whether acks are those of the run in flight. One of another send makes
// all of them doubtful.
func (c *conversation) answeredBy(acks []*clientv1.SendAck) bool {
	if len(acks) != c.inFlight {
		return false
	}
	for i, a := range acks {
		if id := a.GetClientMessageId(); id != "" && id != c.waiting[i].Send.ClientMessageId {
			return false
		}
		if conv := a.GetConversationId(); conv != "" && conv != c.id {
			return false
		}
	}
	return true
}

// Expire answers the sends of runs that have been in flight for too long.
func (q *Queue) Expire(now time.Time, e *Effects) {
	for _, c := range q.convs {
		if c.inFlight > 0 && now.Sub(c.waiting[0].Arrived) >= AnswerWithin {
			q.giveUp(now, c, protocol.NewError("unavailable", "no answer from the store in time", 0), e)
			q.settle(now, c, e)
		}
	}
}

// Next is when Expire has something to do; zero = nothing is in flight.
func (q *Queue) Next() (at time.Time) {
	if q.unanswered == 0 {
		return at
	}
	for _, c := range q.convs {
		if c.inFlight > 0 {
			if t := c.waiting[0].Arrived.Add(AnswerWithin); at.IsZero() || t.Before(at) {
				at = t
			}
		}
	}
	return at
}

// Unanswered is how many sends have no answer yet.
func (q *Queue) Unanswered() int { return q.unanswered }

// Clear forgets everything, because the connection has ended.
func (q *Queue) Clear() { q.convs, q.unanswered = nil, 0 }

// giveUp answers a whole run whose outcome is not known: the first send with
// the error, the others behind it.
func (q *Queue) giveUp(now time.Time, c *conversation, err *clientv1.Error, e *Effects) {
	n := c.inFlight
	c.inFlight, c.token = 0, 0
	if !err.Retryable {
		err = protocol.NewError("unavailable", "", 0) // a call never decides about a send
	}
	for range n {
		q.answer(now, c, retry(err), e)
		err = protocol.NewError("behind", "", 0)
	}
}

// settle answers what needs no store and starts the next run.
func (q *Queue) settle(now time.Time, c *conversation, e *Effects) {
	if c.inFlight > 0 {
		return
	}
	for len(c.waiting) > 0 {
		it := &c.waiting[0]
		switch {
		case !c.passes(now, it):
			q.answer(now, c, retry(protocol.NewError("behind", "", 0)), e)
		case it.Verdict != nil && it.Verdict.Retryable:
			q.answer(now, c, retry(it.Verdict), e)
		case it.Verdict != nil:
			q.answer(now, c, &clientv1.SendAck{Status: clientv1.Ack_ACK_FAIL, Error: it.Verdict}, e)
		default:
			q.start(c, e)
			return
		}
	}
	c.waiting = nil
	if c.heldBy == "" {
		delete(q.convs, c.id)
	}
}

// passes reports whether the oldest waiting send may go, and lets go of the
// conversation if it is the one that was waited for.
func (c *conversation) passes(now time.Time, it *Send) bool {
	if c.heldBy == "" {
		return true
	}
	if it.Send.ClientMessageId == c.heldBy || it.Start || now.Sub(c.heldAt) >= protocol.HoldTimeout {
		c.heldBy = ""
		return true
	}
	return false
}

// answer answers the oldest send.
func (q *Queue) answer(now time.Time, c *conversation, ack *clientv1.SendAck, e *Effects) {
	it := c.waiting[0]
	c.waiting[0] = Send{}
	c.waiting = c.waiting[1:]
	q.unanswered--
	ack.ClientMessageId = it.Send.ClientMessageId
	if ack.Status == clientv1.Ack_ACK_RETRY && c.heldBy == "" {
		c.heldBy, c.heldAt = it.Send.ClientMessageId, now
	}
	e.Answers = append(e.Answers, Answer{it, ack})
}

// start makes a run of the sends at the head that state must decide about.
func (q *Queue) start(c *conversation, e *Effects) {
	q.token++
	c.token = q.token
	run := &v1.Run{ConversationId: c.id, UserId: q.User, PeerId: c.peer, SessionId: q.Session, Proof: q.Proof}
	size := 0
	for i := range c.waiting {
		it := &c.waiting[i]
		if it.Verdict != nil || i > 0 && size+it.Size > maxRunBytes || i == protocol.ServerSendWindow {
			break
		}
		run.Sends = append(run.Sends, it.Send)
		size += it.Size
	}
	c.inFlight = len(run.Sends)
	e.Submit = append(e.Submit, Out{c.token, run, size})
}

// sweep forgets conversations whose hold is over, once there are many.
func (q *Queue) sweep(now time.Time) {
	if len(q.convs) < sweepRuns {
		return
	}
	for id, c := range q.convs {
		if len(c.waiting) == 0 && now.Sub(c.heldAt) >= protocol.HoldTimeout {
			delete(q.convs, id)
		}
	}
}

func retry(err *clientv1.Error) *clientv1.SendAck {
	return &clientv1.SendAck{Status: clientv1.Ack_ACK_RETRY, Error: err}
}

// sound makes an answer of state safe to pass on: what is not clearly stored
// or refused may be sent again.
func sound(ack *clientv1.SendAck) *clientv1.SendAck {
	switch {
	case ack == nil:
		return retry(protocol.NewError("unavailable", "", 0))
	case ack.Status == clientv1.Ack_ACK_OK && ack.Seq > 0:
	case ack.Status == clientv1.Ack_ACK_FAIL && ack.Error != nil:
	case ack.Status == clientv1.Ack_ACK_RETRY && ack.Error != nil:
	default:
		return retry(protocol.NewError("unavailable", "", 0))
	}
	return ack
}

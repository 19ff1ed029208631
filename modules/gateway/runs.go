package gateway

import (
	"time"

	v1 "github.com/imdhq/imd/proto/gen/internalv1"
	"github.com/imdhq/imd/sdk/go/gen/clientv1"
	"github.com/imdhq/imd/sdk/go/protocol"
)

const (
	// answerWithin is when a send without an answer from state is answered
	// ACK_RETRY; with the wheel's tick it stays below two seconds.
	answerWithin = 1700 * time.Millisecond
	// maxRunBytes bounds one run.
	maxRunBytes = 128 << 10
	// sweepRuns is how many conversations are remembered before those that
	// hold nothing back any more are forgotten.
	sweepRuns = 64
)

// sendItem is one send that has no answer yet.
type sendItem struct {
	id      uint32 // of its frame
	send    *v1.RunSend
	start   bool // run_start
	size    int
	arrived time.Time
	verdict *clientv1.Error // decided here: retryable = ACK_RETRY, else ACK_FAIL; nil = state decides
}

// answer is a send and what to tell the device about it.
type answer struct {
	item sendItem
	ack  *clientv1.SendAck
}

// runToken tells apart the runs of a connection, so that the result of one that
// was given up is recognised.
type runToken uint64

// outRun is a run to submit.
type outRun struct {
	token runToken
	run   *v1.Run
	size  int
}

// effects is what a step of runs asks for, in order.
type effects struct {
	answers []answer
	submit  []outRun
}

// runs keeps the sends of one connection in order. It is a state machine
// without clock and locks.
//
// Per conversation: sends wait in order of arrival; a prefix of them is in
// flight, and nothing else is submitted meanwhile. When a send is answered
// ACK_RETRY it holds the conversation: every later send is answered ACK_RETRY
// (behind) until that client_message_id comes again, a send with run_start
// comes, or protocol.HoldTimeout has passed. Answers of one conversation leave
// in order of arrival.
type runs struct {
	user, session string
	convs         map[string]*conversation
	unanswered    int
	token         runToken
}

// conversation is the sends of one connection in one conversation.
type conversation struct {
	id, peer string
	waiting  []sendItem
	inFlight int // of waiting
	token    runToken
	heldBy   string // client_message_id of the refused send; "" = nothing is held back
	heldAt   time.Time
}

// add takes a send that just arrived. peer is set if the send named a user.
func (r *runs) add(now time.Time, conv, peer string, it sendItem, e *effects) {
	c := r.convs[conv]
	if c == nil {
		r.sweep(now)
		if r.convs == nil {
			r.convs = make(map[string]*conversation)
		}
		c = &conversation{id: conv}
		r.convs[conv] = c
	}
	if peer != "" {
		c.peer = peer
	}
	r.unanswered++
	c.waiting = append(c.waiting, it)
	r.settle(now, c, e)
}

// done takes the result of a run: the acks of its sends in order, or the error
// of the call. It returns false for a run that was given up.
func (r *runs) done(now time.Time, conv string, token runToken, acks []*clientv1.SendAck, failed *clientv1.Error, e *effects) bool {
	c := r.convs[conv]
	if c == nil || c.token != token || c.inFlight == 0 {
		return false
	}
	if failed == nil && len(acks) != c.inFlight {
		failed = protocol.NewError("internal", "", 0)
	}
	if failed != nil {
		r.giveUp(now, c, failed, e)
	} else {
		n := c.inFlight
		c.inFlight = 0
		for i := range n {
			r.answer(now, c, sound(acks[i]), e)
		}
	}
	r.settle(now, c, e)
	return true
}

// expire answers the sends of runs that have been in flight for too long.
func (r *runs) expire(now time.Time, e *effects) {
	for _, c := range r.convs {
		if c.inFlight > 0 && now.Sub(c.waiting[0].arrived) >= answerWithin {
			r.giveUp(now, c, protocol.NewError("unavailable", "no answer from the store in time", 0), e)
			r.settle(now, c, e)
		}
	}
}

// next is when expire has something to do; zero = nothing is in flight.
func (r *runs) next() (at time.Time) {
	if r.unanswered == 0 {
		return at
	}
	for _, c := range r.convs {
		if c.inFlight > 0 {
			if t := c.waiting[0].arrived.Add(answerWithin); at.IsZero() || t.Before(at) {
				at = t
			}
		}
	}
	return at
}

// giveUp answers a whole run whose outcome is not known: the first send with
// the error, the others behind it.
func (r *runs) giveUp(now time.Time, c *conversation, err *clientv1.Error, e *effects) {
	n := c.inFlight
	c.inFlight, c.token = 0, 0
	if !err.Retryable {
		err = protocol.NewError("unavailable", "", 0) // a call never decides about a send
	}
	for range n {
		r.answer(now, c, retry(err), e)
		err = protocol.NewError("behind", "", 0)
	}
}

// settle answers what needs no store and starts the next run.
func (r *runs) settle(now time.Time, c *conversation, e *effects) {
	if c.inFlight > 0 {
		return
	}
	for len(c.waiting) > 0 {
		it := &c.waiting[0]
		switch {
		case !c.passes(now, it):
			r.answer(now, c, retry(protocol.NewError("behind", "", 0)), e)
		case it.verdict != nil && it.verdict.Retryable:
			r.answer(now, c, retry(it.verdict), e)
		case it.verdict != nil:
			r.answer(now, c, &clientv1.SendAck{Status: clientv1.Ack_ACK_FAIL, Error: it.verdict}, e)
		default:
			r.start(c, e)
			return
		}
	}
	c.waiting = nil
	if c.heldBy == "" {
		delete(r.convs, c.id)
	}
}

// passes reports whether the oldest waiting send may go, and lets go of the
// conversation if it is the one that was waited for.
func (c *conversation) passes(now time.Time, it *sendItem) bool {
	if c.heldBy == "" {
		return true
	}
	if it.send.ClientMessageId == c.heldBy || it.start || now.Sub(c.heldAt) >= protocol.HoldTimeout {
		c.heldBy = ""
		return true
	}
	return false
}

// answer answers the oldest send.
func (r *runs) answer(now time.Time, c *conversation, ack *clientv1.SendAck, e *effects) {
	it := c.waiting[0]
	c.waiting[0] = sendItem{}
	c.waiting = c.waiting[1:]
	r.unanswered--
	ack.ClientMessageId = it.send.ClientMessageId
	if ack.Status == clientv1.Ack_ACK_RETRY && c.heldBy == "" {
		c.heldBy, c.heldAt = it.send.ClientMessageId, now
	}
	e.answers = append(e.answers, answer{it, ack})
}

// start makes a run of the sends at the head that state must decide about.
func (r *runs) start(c *conversation, e *effects) {
	r.token++
	c.token = r.token
	run := &v1.Run{ConversationId: c.id, UserId: r.user, PeerId: c.peer, SessionId: r.session}
	size := 0
	for i := range c.waiting {
		it := &c.waiting[i]
		if it.verdict != nil || i > 0 && size+it.size > maxRunBytes || i == protocol.ServerSendWindow {
			break
		}
		run.Sends = append(run.Sends, it.send)
		size += it.size
	}
	c.inFlight = len(run.Sends)
	e.submit = append(e.submit, outRun{c.token, run, size})
}

// sweep forgets conversations whose hold is over, once there are many.
func (r *runs) sweep(now time.Time) {
	if len(r.convs) < sweepRuns {
		return
	}
	for id, c := range r.convs {
		if len(c.waiting) == 0 && now.Sub(c.heldAt) >= protocol.HoldTimeout {
			delete(r.convs, id)
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

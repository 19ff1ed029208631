package bench

import (
	"slices"
	"time"

	"github.com/imdhq/imd/sdk/go/gen/clientv1"
	"github.com/imdhq/imd/sdk/go/protocol"
)

// outbox holds the sends of a device that have no final answer. The sends into
// one conversation are a lane; those of a lane that are written and wait for an
// answer are a prefix of it, so that nothing overtakes what was refused.
type outbox struct {
	d      *device
	lanes  map[string]*lane // by conversation
	backed []*lane          // lanes with something to write
	flying []*send          // written, no answer yet; by frame id
	count  int              // sends in all lanes
	order  uint64
	late   []lateAnswer // still to come on this connection, for the record alone; at most protocol.ClientSendWindow
}

// lateAnswer is an answer that no longer decides anything, as its send was found in the
// log before. It is recorded all the same, so that it can be judged.
type lateAnswer struct {
	frameID uint32
	p       *send
}

// lane is the sends of one device into one conversation.
type lane struct {
	conv     string // id, computed if the other user is named
	user     string // the other user, or ""
	sends    []*send
	inflight int           // sends[:inflight] wait for an answer
	hold     time.Duration // nothing is written before
	attempts int           // refusals in a row
	runStart bool          // the next one written gives up what was refused
	backed   bool          // it is in outbox.backed
	n        int64         // sends so far
	rec      *recorder     // of what has no answer at the end
}

// send is one message that has no final answer.
type send struct {
	lane     *lane
	order    uint64
	n        int64 // its number in the lane, from 1
	cmid     [36]byte
	frameID  uint32        // of the copy that waits for an answer; 0 = none
	intended time.Duration // when it should have left
	stamp    time.Duration // in the text
	sentAt   time.Duration
	place    uint32 // of its filler
	written  bool   // a copy was; the next one is marked as a resend
	id, hash string // cmid, and the hash of the text; only while recording
	done     func(p *send, a *ackIn)
}

// lane finds the lane of a conversation; user is set for a direct one.
func (o *outbox) lane(conv, user string) *lane {
	if user != "" {
		conv = protocol.DirectID(o.d.user, user)
	}
	l := o.lanes[conv]
	if l == nil {
		if o.lanes == nil {
			o.lanes = map[string]*lane{}
		}
		l = &lane{conv: conv, user: user, rec: o.d.h.acks}
		o.lanes[conv] = l
	}
	return l
}

// send puts a message into a lane and writes it if it may. done is called once,
// with ACK_OK or ACK_FAIL.
func (o *outbox) send(l *lane, intended time.Duration, done func(*send, *ackIn)) {
	o.add(&send{lane: l, cmid: o.d.h.ids.next(), intended: intended, stamp: intended, place: uint32(o.d.i)*7919 + uint32(o.order+1), done: done})
}

// again sends once more what has its answer already, as a device does that lost
// it; marked says whether it tells so.
func (o *outbox) again(p *send, marked bool, intended time.Duration, done func(*send, *ackIn)) {
	o.add(&send{lane: p.lane, cmid: p.cmid, intended: intended, stamp: p.stamp, place: p.place, written: marked, done: done})
}

func (o *outbox) add(p *send) {
	l := p.lane
	l.n++
	o.order++
	p.order, p.n = o.order, l.n
	l.sends = append(l.sends, p)
	o.count++
	if o.d.h.rec != nil {
		p.hash, p.id = hashText(o.text(p)), string(p.cmid[:])
	}
	o.await(l)
	o.pump()
}

func (o *outbox) text(p *send) []byte {
	h := o.d.h
	h.scratch = appendBody(h.scratch[:0], p.stamp, p.place, h.size)
	return h.scratch
}

func (o *outbox) await(l *lane) {
	if !l.backed && l.inflight < len(l.sends) {
		l.backed = true
		o.backed = append(o.backed, l)
	}
}

// pump writes what may be written, oldest first.
func (o *outbox) pump() {
	d := o.d
	for d.cur != nil && len(o.flying) < protocol.ClientSendWindow {
		var best *lane
		for _, l := range o.backed {
			if l.hold <= d.h.l.now && (best == nil || l.sends[l.inflight].order < best.sends[best.inflight].order) {
				best = l
			}
		}
		if best == nil {
			return
		}
		o.write(best)
		if best.inflight == len(best.sends) {
			o.unback(best)
		}
	}
}

func (o *outbox) unback(l *lane) {
	if l.backed {
		l.backed = false
		at := slices.Index(o.backed, l)
		o.backed = slices.Delete(o.backed, at, at+1)
	}
}

// write writes the next send of a lane.
func (o *outbox) write(l *lane) {
	d := o.d
	p := l.sends[l.inflight]
	l.inflight++
	p.frameID, p.sentAt = d.nextID(), d.h.l.now
	o.flying = append(o.flying, p)
	out := sendOut{conv: l.conv, cmid: p.cmid, text: o.text(p), resend: p.written, runStart: l.runStart}
	if l.user != "" {
		out.conv, out.user = "", l.user
	}
	p.written, l.runStart = true, false
	d.h.rec.invoke(d, p)
	if d.h.enc == protocol.JSON {
		d.cur.write(out.message(p.frameID))
		return
	}
	d.cur.c.put(out.append(d.cur.c.envelope(), p.frameID))
}

// answered takes a send_ack.
func (o *outbox) answered(id uint32, a *ackIn) {
	at := -1
	for i, p := range o.flying {
		if p.frameID == id {
			at = i
			break
		}
	}
	switch {
	case at < 0 && o.tooLate(id, a):
	case a.status == clientv1.Ack_ACK_OK:
		p := o.find(at, a.cmid)
		if p == nil {
			return
		}
		o.finish(p, a)
	case at < 0:
		// Of a copy that was written again since.
	case a.status == clientv1.Ack_ACK_FAIL:
		o.finish(o.flying[at], a)
	default:
		o.refused(o.flying[at], a)
	}
	o.pump()
}

// find is the send that an ACK_OK is about: of the frame or, if that copy is
// not waited for any more, of the client message id.
func (o *outbox) find(at int, cmid []byte) *send {
	if at >= 0 {
		return o.flying[at]
	}
	for _, l := range o.lanes {
		for _, p := range l.sends {
			if string(p.cmid[:]) == string(cmid) {
				return p
			}
		}
	}
	return nil
}

// stored takes note that a send of this device turned out to be in the log.
func (o *outbox) stored(cv *conv, e *entryIn) {
	if o.count == 0 || string(e.sender) != o.d.user || len(e.cmid) == 0 {
		return
	}
	l := o.lanes[cv.id]
	if l == nil {
		return
	}
	for _, p := range l.sends {
		if string(p.cmid[:]) == string(e.cmid) {
			if o.d.h.rec != nil && p.frameID != 0 && len(o.late) < protocol.ClientSendWindow {
				o.late = append(o.late, lateAnswer{p.frameID, p})
			}
			o.finish(p, &ackIn{status: clientv1.Ack_ACK_OK, cmid: p.cmid[:], mid: e.mid, seq: e.seq, prev: e.prev})
			o.pump()
			return
		}
	}
}

// tooLate records an answer to a send that was found in the log before; false if it is
// none.
func (o *outbox) tooLate(id uint32, a *ackIn) bool {
	at := slices.IndexFunc(o.late, func(l lateAnswer) bool { return l.frameID == id })
	if at < 0 {
		return false
	}
	o.d.h.rec.answer(o.d, o.late[at].p, a)
	o.late = slices.Delete(o.late, at, at+1)
	return true
}

// finish takes a send out for good.
func (o *outbox) finish(p *send, a *ackIn) {
	l := p.lane
	l.attempts = 0
	at := slices.Index(l.sends, p)
	if at < l.inflight {
		l.inflight--
	}
	l.sends = slices.Delete(l.sends, at, at+1)
	if len(l.sends) == l.inflight {
		o.unback(l)
	}
	o.land(p)
	o.count--
	o.d.h.rec.answer(o.d, p, a)
	if a.status == clientv1.Ack_ACK_OK {
		o.d.in.acked(l.conv, p, a)
	}
	p.done(p, a)
}

// land stops waiting for the answer to a send's last copy.
func (o *outbox) land(p *send) {
	if p.frameID == 0 {
		return
	}
	p.frameID = 0
	at := slices.Index(o.flying, p)
	o.flying = slices.Delete(o.flying, at, at+1)
}

// refused takes a lane back to the send that was refused and holds it.
func (o *outbox) refused(p *send, a *ackIn) {
	d, l := o.d, p.lane
	d.h.rec.answer(d, p, a)
	at := slices.Index(l.sends, p)
	for _, later := range l.sends[at:l.inflight] {
		o.land(later)
	}
	l.inflight = at
	pause := retryPause(a, l.attempts)
	if string(a.reason) == protocol.ReasonBehind {
		// What holds the run is not here any more: give it up.
		l.runStart = at == 0
		pause = min(time.Duration(l.attempts)*backoffBase/4, backoffMax)
	}
	if reason := string(a.reason); reason != protocol.ReasonBehind {
		d.h.refused(reason)
	}
	l.attempts++
	l.hold = d.h.l.now + pause
	o.await(l)
	d.h.l.at(l.hold, o.pump)
}

// retryPause is what the server told, doubled with each refusal in a row where
// the store or a node is out of reach.
func retryPause(a *ackIn, attempts int) time.Duration {
	told := time.Duration(a.retryMs) * time.Millisecond
	switch reason := string(a.reason); reason {
	case protocol.ReasonBusy, protocol.ReasonRateLimited:
		if told == 0 {
			info, _ := protocol.Lookup(reason)
			told = info.RetryAfter
		}
		return told
	}
	return min(max(told, backoffBase)<<min(attempts, 6), backoffMax)
}

// lost takes note that the connection is gone, and with it the answers.
func (o *outbox) lost() {
	for _, p := range o.flying {
		p.frameID = 0
		o.d.h.rec.unknown(o.d, p)
	}
	o.flying, o.late = nil, nil
	for _, l := range o.lanes {
		l.inflight, l.hold, l.attempts, l.runStart = 0, 0, 0, false
		o.await(l)
	}
}

// reconnected writes everything again, in order, on the session that now is
// the device's.
func (o *outbox) reconnected() {
	o.late = nil
	if len(o.flying) > 0 {
		o.lost()
	}
	o.pump()
}

// overdue reports whether the oldest answer is out for too long.
func (o *outbox) overdue(now time.Duration) bool {
	return len(o.flying) > 0 && now-o.flying[0].sentAt > protocol.ClientTimeout
}

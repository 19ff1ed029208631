package sim

import (
	"time"

	"github.com/imdhq/imd/sdk/go/gen/clientv1"
	"github.com/imdhq/imd/sdk/go/protocol"
)

// received takes the frames of one message.
func (d *device) received(l *link, frames []*clientv1.ServerFrame) {
	for _, f := range frames {
		if d.link != l {
			return
		}
		d.heard = d.w.now
		d.handle(f)
	}
	d.tick()
}

func (d *device) handle(f *clientv1.ServerFrame) {
	if d.w.trace != nil && f.GetSendAck() == nil {
		d.w.tracef("%s gets %v", d, f)
	}
	switch k := f.Kind.(type) {
	case *clientv1.ServerFrame_Welcome:
		d.welcome(k.Welcome)
	case *clientv1.ServerFrame_SendAck:
		d.sendAck(f.Id, k.SendAck)
	case *clientv1.ServerFrame_Deliver:
		v := d.view(k.Deliver.ConversationId)
		d.takeStored(v, k.Deliver.Entries)
		d.effects(v, v.tl.Deliver(d.w.ms(), k.Deliver.Entries))
	case *clientv1.ServerFrame_Head:
		v := d.view(k.Head.ConversationId)
		d.effects(v, v.tl.Head(d.w.ms(), k.Head.Seq))
	case *clientv1.ServerFrame_Ping:
		d.out = append(d.out, &clientv1.ClientFrame{Kind: &clientv1.ClientFrame_Pong{Pong: &clientv1.Pong{}}})
	case *clientv1.ServerFrame_Bye:

	case *clientv1.ServerFrame_SyncResult, *clientv1.ServerFrame_HistoryResult, *clientv1.ServerFrame_Error:
		if r := d.requests[f.Id]; r != nil {
			delete(d.requests, f.Id)
			r.done(f)
		}
	}
}

// welcome makes the connection the one that is written to.
func (d *device) welcome(wl *clientv1.Welcome) {
	d.w.tracef("%s is welcome as %s", d.id, wl.SessionId)
	d.online, d.since = true, d.w.now
	if d.epoch != "" && d.epoch != wl.DataEpoch {
		d.token, d.full, d.listing, d.rest = "", nil, false, false
		d.repair, d.doubt = false, false
		clear(d.cursors)
		for _, v := range d.views {
			v.tl.Resync()
			v.newest, v.have, v.term = 0, 0, 0
		}
	}
	d.epoch = wl.DataEpoch
	d.history, d.reading = nil, 0
	for _, v := range d.views {
		v.tl.Connected()
	}
	d.box.Reconnected()
}

func (d *device) sendAck(frame uint32, a *clientv1.SendAck) {
	m := d.w.judge.byID[a.ClientMessageId]
	d.w.tracef("%s: %s for %s, frame %d: %v seq %d %s", d.id, a.Status, m.id, frame, m.conv, a.Seq, a.GetError().GetReason())
	if d.answered[frame] {
		d.w.fail("%s got two answers to one frame about %s", d.id, m.id)
	}
	d.answered[frame] = true
	switch a.Status {
	case clientv1.Ack_ACK_OK:
		d.w.judge.acked(m, a)
		d.box.Stored(m.id)
		v := d.view(m.conv)
		d.effects(v, v.tl.SendAck(d.w.ms(), a))
	case clientv1.Ack_ACK_FAIL:
		d.w.judge.refused(m, a)
		if d.box.Failed(frame) != nil {
			m.failed = true
			d.view(m.conv).tl.Fail(m.id, a.Error.Reason)
		}
	default:
		d.box.Retry(frame, a.Error, d.w.time())
	}
}

// takeStored takes out of the outbox what turns out to be in the log.
func (d *device) takeStored(v *view, entries []*clientv1.Entry) {
	for _, e := range entries {
		if e.Sender == string(d.user) {
			if m := d.box.Get(e.ClientMessageId); m != nil && m.Conversation == v.id {
				d.box.Stored(m.ID)
			}
		}
	}
}

// tick does what is due, writes, and sets the next timer.
func (d *device) tick() {
	if d.link == nil || !d.online {
		d.flush()
		return
	}
	next := forever
	due := func(at time.Duration) bool {
		if at > d.w.now {
			next = min(next, at)
			return false
		}
		return true
	}
	if d.overdue(due) {
		return
	}
	for _, v := range d.views {
		for range 2 {
			if at, ok := v.tl.WakeAt(); ok && due(time.Duration(at)*time.Millisecond) {
				d.effects(v, v.tl.Tick(d.w.ms()))
			}
		}
	}
	d.acks(due)
	if d.again && !d.syncing && due(d.syncAt) {
		d.again = false
		d.sync()
	}
	now := d.w.time()
	for m := d.box.Next(now); m != nil; m = d.box.Next(now) {
		f := &clientv1.ClientFrame{}
		id := d.ask(f, nil)
		f.Kind = &clientv1.ClientFrame_Send{Send: d.box.Write(m, id, now)}
		d.w.tracef("%s sends %s in frame %d", d.id, m.ID, id)
	}
	if at, ok := d.box.WakeAt(); ok && at.After(now) {
		due(at.Sub(began))
	}
	d.flush()
	if d.wakeAt == 0 || next < d.wakeAt {
		d.wakeAt = next
		d.w.after(next-d.w.now, func() {
			if d.wakeAt == next {
				d.wakeAt = 0
				d.tick()
			}
		})
	}
}

// overdue drops a connection that shows no life.
func (d *device) overdue(due func(time.Duration) bool) bool {
	why := ""
	if due(d.heard + protocol.PingInterval + protocol.PongTimeout) {
		why = "no sign of life"
	}
	for _, r := range d.requests {
		if due(r.deadline) {
			why = "a request was not answered"
		}
	}
	if d.box.Overdue(d.w.time()) {
		why = "a send was not answered"
	}
	if why != "" {
		d.drop(why)
	}
	return why != ""
}

// acks acknowledges what is due.
func (d *device) acks(due func(time.Duration) bool) {
	now := false
	for _, v := range d.views {
		now = v.ackAt != 0 && (due(v.ackAt) || v.unack >= protocol.AckEntries) || now
	}
	if !now {
		return
	}
	var ranges []*clientv1.AckRange
	for _, v := range d.views {
		if v.ackAt == 0 {
			continue
		}
		for _, r := range v.tl.TakeAcks() {
			ranges = append(ranges, &clientv1.AckRange{ConversationId: v.id, AfterSeq: r.After, Seq: r.Seq})
		}
		v.ackAt, v.unack = 0, 0
	}
	if len(ranges) > 0 {
		d.out = append(d.out, &clientv1.ClientFrame{Kind: &clientv1.ClientFrame_Ack{Ack: &clientv1.DeliveryAck{Ranges: ranges}}})
	}
}

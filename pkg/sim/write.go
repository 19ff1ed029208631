package sim

import (
	"slices"
	"time"

	"github.com/imdhq/imd/pkg/delivery"
	"github.com/imdhq/imd/pkg/run"
	"github.com/imdhq/imd/sdk/go/gen/clientv1"
	"github.com/imdhq/imd/sdk/go/protocol"
)

// deliver takes a frame of push.
func (s *session) deliver(d *shipment) {
	switch s.phase {
	case joining:
		s.before(d)
	case online:
		switch {
		case d.entry == nil, s.pulling():
			s.head(d.conv, d.seq)
		case s.seen.Delivered(d.conv, d.seq):
			f := &clientv1.ServerFrame{Kind: &clientv1.ServerFrame_Deliver{Deliver: &clientv1.Deliver{
				ConversationId: d.conv, Entries: []*clientv1.Entry{d.entry},
			}}}
			if len(s.out) >= s.w.plan.queue {
				s.end("slow")
				return
			}
			s.unacked.Add(s.w.time(), d.conv, d.seq, nil)
			s.kept(d)
			s.write(f)
			s.arm()
		}
	}
}

// before keeps what comes before the welcome: if it is much, as heads.
func (s *session) before(d *shipment) {
	if len(s.early) < maxEarly {
		s.early = append(s.early, d)
		return
	}
	newest := map[string]int64{}
	var convs []string
	for _, e := range append(s.early, d) {
		if newest[e.conv] == 0 {
			convs = append(convs, e.conv)
		}
		newest[e.conv] = max(newest[e.conv], e.seq)
	}
	s.early = nil
	for _, c := range convs {
		s.early = append(s.early, &shipment{conv: c, seq: newest[c]})
	}
}

// sentKey finds the entry to deliver again.
type sentKey struct {
	conv string
	seq  int64
}

func (s *session) kept(d *shipment) {
	if s.sent == nil {
		s.sent = map[sentKey]*clientv1.Entry{}
	}
	s.sent[sentKey{d.conv, d.seq}] = d.entry
}

// redeliver writes again what the device has not acknowledged.
func (s *session) redeliver() {
	var again []sentKey
	s.unacked.Due(s.w.time(), len(s.out)*4 > s.w.plan.queue, func(conv string, d *delivery.Delivery) {
		again = append(again, sentKey{conv, d.Seq})
	})
	slices.SortStableFunc(again, func(a, b sentKey) int {
		switch {
		case a.conv < b.conv:
			return -1
		case a.conv > b.conv:
			return 1
		}
		return int(a.seq - b.seq)
	})
	for _, k := range again {
		s.write(&clientv1.ServerFrame{Kind: &clientv1.ServerFrame_Deliver{Deliver: &clientv1.Deliver{
			ConversationId: k.conv, Entries: []*clientv1.Entry{s.sent[k]},
		}}})
	}
}

// pulling decides whether deliveries become heads now.
func (s *session) pulling() bool {
	p := &s.w.plan
	switch {
	case !s.pull && (len(s.out)*4 > p.queue*3 || s.unacked.Len() >= p.window):
		s.pull = true
	case s.pull && len(s.out)*4 < p.queue && s.unacked.Len() < max(1, p.window/2):
		s.pull = false
	}
	return s.pull
}

// head tells of an entry that the device may pull.
func (s *session) head(conv string, seq int64) {
	s.seen.Knows(conv, seq)
	if s.heads[conv] == 0 {
		s.order = append(s.order, conv)
	}
	s.heads[conv] = max(s.heads[conv], seq)
	s.pump()
}

// write queues a frame.
func (s *session) write(f *clientv1.ServerFrame) {
	if s.phase == online || s.phase == joining {
		s.out = append(s.out, f)
		s.pump()
	}
}

// pump writes one message if none is being written: what waits, and behind all
// of it the heads.
func (s *session) pump() {
	if s.writing {
		return
	}
	n := min(len(s.out), messageFrames)
	frames := slices.Clone(s.out[:n])
	s.out = s.out[n:]
	if len(s.out) == 0 {
		for _, c := range s.order {
			frames = append(frames, &clientv1.ServerFrame{Kind: &clientv1.ServerFrame_Head{Head: &clientv1.Head{ConversationId: c, Seq: s.heads[c]}}})
			delete(s.heads, c)
		}
		s.order = s.order[:0]
	}
	if len(frames) == 0 {
		return
	}
	s.writing = true
	life := s.g.life
	s.link.toDevice(frames, func() {
		s.g.exec(life, func() {
			s.writing = false
			s.pump()
		})
	})
}

// arm sees to it that wake comes when something is due.
func (s *session) arm() {
	if s.phase != online {
		return
	}
	due := s.heard + protocol.PingInterval
	if s.pinged >= 0 {
		due = s.pinged + protocol.PongTimeout
	}
	for _, t := range []time.Time{s.queue.Next(), s.unacked.Next()} {
		if !t.IsZero() {
			due = min(due, t.Sub(began))
		}
	}
	due = max(due, s.w.now)
	if s.wakeAt != 0 && s.wakeAt <= due {
		return
	}
	s.wakeAt = due
	s.g.later(due-s.w.now, func() {
		if s.wakeAt == due {
			s.wakeAt = 0
			s.wake()
		}
	})
}

// wake does what is due.
func (s *session) wake() {
	if s.phase != online {
		return
	}
	var e run.Effects
	s.queue.Expire(s.w.time(), &e)
	s.effects(&e)
	s.redeliver()
	switch {
	case s.pinged >= 0 && s.w.now >= s.pinged+protocol.PongTimeout:
		s.end("idle")
	case s.pinged < 0 && s.w.now >= s.heard+protocol.PingInterval:
		s.pinged = s.w.now
		s.write(&clientv1.ServerFrame{Kind: &clientv1.ServerFrame_Ping{Ping: &clientv1.Ping{}}})
	}
	s.arm()
}

// end closes the connection with a reason.
func (s *session) end(reason string) {
	if s.phase == gone {
		return
	}
	out := s.out
	s.ended(reason)
	s.link.toDevice(append(out, &clientv1.ServerFrame{Kind: &clientv1.ServerFrame_Bye{Bye: &clientv1.Bye{Reason: reason}}}), func() {})
	s.out = nil
	s.link.close()
}

// ended frees everything.
func (s *session) ended(reason string) {
	if s.phase == gone {
		return
	}
	s.w.tracef("%s of %s at %s ends: %s", s.id, s.device, s.g.name, reason)
	s.phase = gone
	s.queue.Clear()
	s.unacked.Clear()
	s.early, s.inbox = nil, nil
	s.g.sessions = slices.DeleteFunc(s.g.sessions, func(o *session) bool { return o == s })
	s.release()
}

func (s *session) release() {
	s.w.call(call{
		from: &s.g.process, to: &s.w.routes.process, timeout: time.Second,
		serve: func(reply func(any)) { s.w.routes.release(s.id) },
		done:  func(any, bool) {},
	})
}

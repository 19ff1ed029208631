package bench

import (
	"errors"
	"fmt"
	"time"

	"github.com/imdhq/imd/sdk/go/gen/clientv1"
	"github.com/imdhq/imd/sdk/go/protocol"
)

// connectOnly opens all connections and keeps them idle for the duration; an
// operation is one connection. Devices with conversations sync with their hello, as
// any client does, and so have nothing to read later, when heads are compared.
func (r *runner) connectOnly() error {
	if err := r.crowd(); err != nil {
		return err
	}
	r.primary = r.connecting
	r.begin()
	r.end = time.Duration(1<<63 - 1)
	if err := r.connectAll(r.o.Conns, func(d *device) { d.syncs = r.o.Record != nil || r.o.Conversations > 0 }); err != nil {
		return err
	}
	r.ops = r.connecting.all.TotalCount()
	r.look()
	r.onlineAfter, r.onlineCPU = max((r.l.now-r.began).Seconds(), 1e-9), r.serverCPU()
	_, err := r.wait("hold", r.o.Duration, func() bool { return false })
	r.finish()
	return err
}

// crowd puts users into groups before they connect, each into Conversations of
// them.
func (r *runner) crowd() error {
	if r.o.Conversations == 0 {
		return nil
	}
	if r.o.Group == nil || r.o.Users < 2 {
		return errors.New("conversations want at least 2 users and a way to make groups")
	}
	for range r.o.Conversations {
		if _, err := r.makeGroups(r.o.Users); err != nil {
			return err
		}
	}
	return nil
}

// sendTo makes the operation of sending into a lane; it ends with the answer.
func (r *runner) sendTo(rec *recorder, pick func(s *source) *lane) func(*source, time.Duration) {
	return func(s *source, at time.Duration) {
		to := pick(s)
		to.rec = rec
		s.d.out.send(to, at, func(p *send, a *ackIn) {
			if a.status == clientv1.Ack_ACK_OK {
				r.done(rec, p.intended)
			} else {
				r.fail(string(a.reason))
			}
			s.ended()
		})
	}
}

// ask makes a request of a device; it fails the operation unless got says that
// the answer is what was asked for.
func (r *runner) ask(s *source, at time.Duration, rec *recorder, f *clientv1.ClientFrame, got func(*clientv1.ServerFrame) bool) {
	s.d.cur.request(f, func(a *clientv1.ServerFrame) {
		switch {
		case a == nil:
			r.late("unanswered", rec, at)
			r.open--
		case got(a):
			r.done(rec, at)
		default:
			r.fail(reasonOf(a))
		}
		s.ended()
	})
}

func reasonOf(f *clientv1.ServerFrame) string {
	if reason := f.GetError().GetReason(); reason != "" {
		return reason
	}
	return "another answer"
}

// sendPairs lets the first half of the users write to the second half, each to
// its own partner; an operation is one acknowledged message.
func (r *runner) sendPairs() error {
	n := r.o.Users / 2
	if n < 1 {
		return errors.New("send wants at least 2 users")
	}
	for i := range n {
		r.pair(r.user(i), r.user(n+i))
	}
	if err := r.connectAll(r.o.Conns, nil); err != nil {
		return err
	}
	var senders []*device
	for _, d := range r.devices {
		if d.i%r.o.Users < n {
			senders = append(senders, d)
		}
	}
	for _, d := range senders {
		to := d.out.lane("", r.user(n+d.i%r.o.Users))
		r.drive(d, len(senders), sendWindow, r.primary, r.sendTo(r.primary, func(*source) *lane { return to }))
	}
	return r.measure()
}

// fanout lets the first device write to a group in which all are online; an
// operation is one acknowledged message, or one that all members have.
func (r *runner) fanout() error {
	if r.o.Users < 2 || r.o.Group == nil {
		return errors.New("fanout wants at least 2 users and a way to make a group")
	}
	var users []string
	for i := range r.o.Users {
		users = append(users, r.user(i))
	}
	members := users
	for i := len(users); i < r.o.Members; i++ {
		members = append(members, r.user(i)) // never here
	}
	conv, err := r.o.Group(r.ctx, members[0], members[1:])
	if err != nil {
		return fmt.Errorf("make the group: %w", err)
	}
	r.join(conv, users...)
	if err := r.connectAll(r.o.Conns, func(d *device) { d.in.joined(len(members)) }); err != nil {
		return err
	}
	d := r.devices[0]
	to := d.out.lane(conv, "")
	begin := r.sendTo(r.primary, func(*source) *lane { return to })
	if r.o.Whole {
		begin = r.sendToAll(to)
	}
	r.drive(d, 1, sendWindow, r.primary, begin)
	return r.measure()
}

// sendToAll makes the operation of sending a message and waiting until every
// other device has been given it.
func (r *runner) sendToAll(to *lane) func(*source, time.Duration) {
	whole := r.recorder("whole")
	r.primary = whole
	return func(s *source, at time.Duration) {
		left := len(r.devices) // the others, and the answer
		one := func() {
			if left--; left == 0 {
				r.onReceived = nil
				r.done(whole, at)
				s.ended()
			}
		}
		r.onReceived = one
		to.rec = r.recorder("ack")
		s.d.out.send(to, at, func(p *send, a *ackIn) {
			if a.status != clientv1.Ack_ACK_OK {
				r.onReceived = nil
				r.fail(string(a.reason))
				s.ended()
				return
			}
			r.record(to.rec, p.intended)
			one()
		})
	}
}

// fill writes messages and waits until all are stored and delivered: each
// device n into each of its lanes.
func (r *runner) fill(n int, lanes func(d *device) []*lane) error {
	left := 0
	done := func(*send, *ackIn) { left-- }
	total := 0
	for _, d := range r.devices {
		for _, l := range lanes(d) {
			left += n
			for range n {
				d.out.send(l, r.l.now, done)
			}
		}
	}
	total = max(left, 1)
	r.toFill = func() float64 { return float64(total-left) / float64(total) }
	ok, err := r.wait("fill", fillLimit, func() bool { return left == 0 && r.l.now-r.lastSeen > quiet })
	r.toFill = nil
	if err == nil && !ok {
		err = fmt.Errorf("%d of %d messages are stored after %v%s", total-left, total, fillLimit, r.why())
	}
	return err
}

// fillLimit is how long writing what a scenario reads may take.
const fillLimit = 10 * time.Minute

// readHistory reads pages of conversations, at places chosen at random, half of
// them backward; an operation is one page.
func (r *runner) readHistory() error {
	if r.o.Reader != "" {
		return r.readLarge()
	}
	n := r.o.Users / 2
	if n < 1 {
		return errors.New("history wants at least 2 users")
	}
	entries := max(r.o.Entries, 1)
	for i := range n {
		r.pair(r.user(i), r.user(n+i))
	}
	if err := r.connectAll(r.o.Conns, nil); err != nil {
		return err
	}
	partner := func(d *device) string { return r.user((d.i%r.o.Users + n) % (2 * n)) }
	err := r.fill(entries, func(d *device) []*lane {
		if d.i >= n {
			return nil
		}
		return []*lane{d.out.lane("", partner(d))}
	})
	if err != nil {
		return err
	}
	r.primary = r.recorder("page")
	for _, d := range r.devices {
		if d.i%r.o.Users >= 2*n {
			continue // an odd one without a partner
		}
		conv := protocol.DirectID(d.user, partner(d))
		r.readPages(d, conv, int64(entries))
	}
	return r.measure()
}

// readPages lets a device read pages of a conversation that has n entries.
func (r *runner) readPages(d *device, conv string, n int64) {
	r.drive(d, len(r.devices), requestWindow, r.primary, func(s *source, at time.Duration) {
		r.ask(s, at, r.primary, r.randomPage(conv, n), func(a *clientv1.ServerFrame) bool {
			p := a.GetHistoryResult().GetPage()
			r.entries += int64(len(p.GetEntries()))
			return p != nil
		})
	})
}

// randomPage asks for a page of a conversation that has n entries.
func (r *runner) randomPage(conv string, n int64) *clientv1.ClientFrame {
	at := r.rng.Int64N(max(n, 1))
	if r.rng.IntN(2) == 0 {
		return historyFrame(conv, at, 0, false, r.o.Page)
	}
	return historyFrame(conv, 0, at+2, true, r.o.Page)
}

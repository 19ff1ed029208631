package bench

import (
	"errors"
	"fmt"
	"time"

	"github.com/imdhq/imd/sdk/go/gen/clientv1"
)

// hot measures what one conversation that is written to as fast as it goes does
// to the others. The first devices are the members of a group, all others are
// pairs that write at the rate: first alone, which is the latency calm, then
// while the group writes, which is beside. An operation is an acknowledged
// message into the group.
func (r *runner) hot() error {
	senders, pairs := r.o.Senders, (r.o.Conns-r.o.Senders)/2
	switch {
	case senders < 2 || pairs < 1 || r.o.Group == nil:
		return errors.New("hot wants at least 2 senders, 2 other devices and a way to make a group")
	case r.o.Users < r.o.Conns:
		return errors.New("hot wants a user for each device")
	case r.o.Rate <= 0:
		return errors.New("hot wants a rate for the other conversations")
	}
	var users []string
	for i := range senders {
		users = append(users, r.user(i))
	}
	conv, err := r.o.Group(r.ctx, users[0], users[1:])
	if err != nil {
		return fmt.Errorf("make the group: %w", err)
	}
	r.join(conv, users...)
	for i := range pairs {
		r.pair(r.user(senders+i), r.user(senders+pairs+i))
	}
	if err := r.connectAll(r.o.Conns, nil); err != nil {
		return err
	}
	calm, beside := newRecorder(), r.recorder("beside")
	now := calm
	for i, d := range r.devices[senders : senders+pairs] {
		to := d.out.lane("", r.user(senders+pairs+i))
		r.pace(d, r.o.Rate/float64(pairs), sendWindow, beside, func(s *source, at time.Duration) { r.sendAside(s, to, now, at) })
	}
	if _, err := r.wait("warm up", r.o.Warmup, func() bool { return false }); err != nil {
		return err
	}
	r.begin()
	if _, err := r.wait("calm", r.o.Duration, func() bool { return false }); err != nil {
		r.finish()
		return err
	}
	now = beside
	for _, d := range r.devices[:senders] {
		to := d.out.lane(conv, "")
		r.push(d, r.primary, r.sendTo(r.primary, func(*source) *lane { return to }))
	}
	err = r.measure()
	r.latencies["calm"] = calm
	return err
}

// sendAside sends into a lane, which does not count as an operation.
func (r *runner) sendAside(s *source, to *lane, rec *recorder, at time.Duration) {
	to.rec = rec
	s.d.out.send(to, at, func(p *send, a *ackIn) {
		if a.status == clientv1.Ack_ACK_OK {
			r.aside(rec, at)
		} else {
			r.fail(string(a.reason))
		}
		s.ended()
	})
}

// repeat sends each message three times: once, then marked as a resend, which a
// cache in front of the store may answer, and then unmarked, which the store
// does. An operation is one acknowledged message with both of its repeats.
func (r *runner) repeat() error {
	n := r.o.Users / 2
	if n < 1 {
		return errors.New("repeat wants at least 2 users")
	}
	if err := r.connectAll(r.o.Conns, nil); err != nil {
		return err
	}
	cached, stored := r.recorder("repeat_marked"), r.recorder("repeat_unmarked")
	for _, d := range r.devices {
		if d.i%r.o.Users >= n {
			continue
		}
		to := d.out.lane("", r.user(n+d.i%r.o.Users))
		r.drive(d, len(r.devices)/2, sendWindow, r.primary, func(s *source, at time.Duration) {
			to.rec = r.primary
			s.d.out.send(to, at, func(p *send, a *ackIn) {
				if a.status != clientv1.Ack_ACK_OK {
					r.fail(string(a.reason))
					s.ended()
					return
				}
				r.record(r.primary, at)
				r.sendAgain(s, p, cached, true, func() { r.sendAgain(s, p, stored, false, func() { r.done(nil, at); s.ended() }) })
			})
		})
	}
	return r.measure()
}

// sendAgain repeats a message and goes on if the answer is that of a duplicate.
func (r *runner) sendAgain(s *source, p *send, rec *recorder, marked bool, next func()) {
	at := r.l.now
	s.d.out.again(p, marked, at, func(_ *send, a *ackIn) {
		switch {
		case a.status == clientv1.Ack_ACK_OK && a.duplicate:
			r.record(rec, at)
			next()
			return
		case a.status == clientv1.Ack_ACK_OK:
			r.fail("stored twice")
		default:
			r.fail(string(a.reason))
		}
		s.ended()
	})
}

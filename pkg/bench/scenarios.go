package bench

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/imdhq/imd/sdk/go/gen/clientv1"
)

// connectOnly opens all connections and keeps them idle for the duration; an
// operation is one connection.
func (r *runner) connectOnly() error {
	r.begin()
	if err := r.connectAll(r.o.Conns, func(*device, int) {}); err != nil {
		return err
	}
	r.ops = int64(r.o.Conns)
	err := r.l.run(time.Now().Add(r.o.Duration))
	r.finish()
	return err
}

// pairs lets the first half of the devices write to the second half, each to
// its own partner; an operation is one acknowledged message.
func (r *runner) pairs() error {
	n := r.o.Conns / 2
	if n < 1 {
		return errors.New("send wants at least 2 devices")
	}
	err := r.connectAll(2*n, func(d *device, i int) {
		if i >= n {
			d.onEntry = r.received
		}
	})
	if err != nil {
		return err
	}
	for i := range n {
		d, to := r.devices[i], r.user(n+i)
		r.drive(d, float64(n), func(at time.Time) *clientv1.Send {
			return &clientv1.Send{To: &clientv1.Send_ToUser{ToUser: to}, Content: textOf(at, r.o.Size)}
		})
	}
	if err := r.measure(); err != nil {
		return err
	}
	return r.l.run(time.Now().Add(min(settle, r.o.Duration)))
}

// fanout lets the first device write to a group in which all are online; an
// operation is one acknowledged message.
func (r *runner) fanout(ctx context.Context) error {
	if r.o.Conns < 2 || r.o.Group == nil {
		return errors.New("fanout wants at least 2 devices and a way to make a group")
	}
	var members []string
	for i := range r.o.Conns {
		members = append(members, r.user(i))
	}
	conv, err := r.o.Group(ctx, members[0], members[1:])
	if err != nil {
		return fmt.Errorf("make the group: %w", err)
	}
	if err := r.connectAll(r.o.Conns, func(d *device, _ int) { d.onEntry = r.received }); err != nil {
		return err
	}
	r.drive(r.devices[0], 1, func(at time.Time) *clientv1.Send {
		return &clientv1.Send{To: &clientv1.Send_ConversationId{ConversationId: conv}, Content: textOf(at, r.o.Size)}
	})
	if err := r.measure(); err != nil {
		return err
	}
	return r.l.run(time.Now().Add(min(settle, r.o.Duration)))
}

// received counts a delivery and how long it took from the intended send time.
func (r *runner) received(_ string, e *clientv1.Entry) {
	if at, ok := stampOf(e.Content); ok && r.measuring && at.After(r.began) {
		r.deliveries++
		r.deliver.add(r.l.now.Sub(at))
	}
}

// drive makes d send: as fast as its answers come with Outstanding in flight,
// or at its part of the rate, counted from the time each message should have
// left, however late the client or the server was.
func (r *runner) drive(d *device, senders float64, make func(at time.Time) *clientv1.Send) {
	done := func(p *pending, a *clientv1.SendAck) {
		if a.Status != clientv1.Ack_ACK_OK {
			r.errors[a.GetError().GetReason()]++
			return
		}
		if r.measuring {
			r.ops++
			r.ack.add(r.l.now.Sub(p.intended))
		}
	}
	if r.o.Rate <= 0 {
		var next func(p *pending, a *clientv1.SendAck)
		next = func(p *pending, a *clientv1.SendAck) {
			done(p, a)
			if r.measuring || r.began.IsZero() {
				now := time.Now()
				d.send(make(now), now, next)
			}
		}
		for range max(r.o.Outstanding, 1) {
			now := time.Now()
			d.send(make(now), now, next)
		}
		return
	}
	gap := time.Duration(senders / r.o.Rate * float64(time.Second))
	due := time.Now().Add(time.Duration(r.rng.Float64() * float64(gap)))
	var fire func()
	fire = func() {
		if !r.measuring && !r.began.IsZero() {
			return
		}
		d.send(make(due), due, done)
		due = due.Add(gap)
		r.l.at(due, fire)
	}
	r.l.at(due, fire)
}

package bench

import (
	"errors"
	"fmt"
	"time"

	"golang.org/x/sys/unix"

	"github.com/imdhq/imd/sdk/go/gen/clientv1"
)

// feedEvery is how many messages of the pairs there are to one for the device
// that stalls.
const feedEvery = 10

// stallBuffer is how much the kernel takes for a device that stalls, in bytes:
// little, so that the server notices soon.
const stallBuffer = 4096

// slow measures what a client that does not read costs others. Pairs of devices
// write at the rate, and one device writes to another one that by turns reads
// and, for as long, does not. The latencies of the pairs are calm while it
// reads and stalled while it does not; stretches of both follow each other
// Pairs times. An operation is an acknowledged message of a pair.
func (r *runner) slow() error {
	pairs := (r.o.Conns - 2) / 2
	switch {
	case pairs < 1 || r.o.Users < r.o.Conns:
		return errors.New("slow wants at least 4 devices, each of a user of its own")
	case r.o.Rate <= 0 || r.o.Pairs < 1:
		return errors.New("slow wants a rate and at least one pair of stretches")
	}
	if err := r.connectAll(r.o.Conns, nil); err != nil {
		return err
	}
	feeder, stalled := r.devices[0], r.devices[1]
	stalled.aside, stalled.comesBack, stalled.atOnce = true, true, true
	var now stretch
	fed := feeder.out.lane("", stalled.user)
	r.pace(feeder, r.o.Rate/feedEvery, sendWindow, nil, func(s *source, at time.Duration) { r.sendAside(s, fed, nil, at) })
	for i, d := range r.devices[2 : 2+pairs] {
		to := d.out.lane("", r.user(2+pairs+i))
		r.pace(d, r.o.Rate/float64(pairs), sendWindow, nil, func(s *source, at time.Duration) { r.sendIn(s, to, now.ack, at) })
	}
	if _, err := r.wait("warm up", r.o.Warmup, func() bool { return false }); err != nil {
		return err
	}
	calm, rough := r.stretch("calm"), r.stretch("stalled")
	r.primary = rough.ack
	r.begin()
	r.end = time.Duration(1<<63 - 1)
	for i := range 2 * r.o.Pairs {
		now = calm
		if i%2 == 1 {
			now = rough
			stalled.stall()
		}
		r.delivering = now.deliver
		_, err := r.wait(fmt.Sprintf("stretch %d of %d", i+1, 2*r.o.Pairs), r.o.Duration, func() bool { return false })
		if err != nil {
			r.finish()
			return err
		}
		r.dropping = true
		stalled.goOn()
		r.dropping = false
	}
	r.finish()
	return r.settle()
}

// stretch is where the latencies of one kind of stretch go.
type stretch struct{ ack, deliver *recorder }

func (r *runner) stretch(name string) stretch {
	return stretch{r.recorder(name), r.recorder(name + "_deliver")}
}

// sendIn sends into a lane as an operation of a stretch.
func (r *runner) sendIn(s *source, to *lane, rec *recorder, at time.Duration) {
	to.rec = rec
	s.d.out.send(to, at, func(p *send, a *ackIn) {
		if a.status == clientv1.Ack_ACK_OK {
			r.done(rec, at)
		} else {
			r.fail(string(a.reason))
		}
		s.ended()
	})
}

// stall makes the device read no more, until goOn.
func (d *device) stall() {
	d.stalled = true
	if d.cur != nil {
		d.cur.c.stall()
	}
}

// goOn makes a device that has stalled come back.
func (d *device) goOn() {
	d.stalled = false
	if d.cur != nil {
		d.cur.c.drop(errDropped)
	}
}

// stall takes the connection out of the loop; what comes stays in the kernel.
func (c *conn) stall() {
	_ = unix.SetsockoptInt(c.fd, unix.SOL_SOCKET, unix.SO_RCVBUF, stallBuffer)
	_ = unix.EpollCtl(c.l.epfd, unix.EPOLL_CTL_DEL, c.fd, nil)
}

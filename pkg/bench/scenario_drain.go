package bench

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/imdhq/imd/sdk/go/gen/clientv1"
	"github.com/imdhq/imd/sdk/go/protocol"
)

// drainLimit is how long a node may take to send its devices away. A run that is longer
// than that gives it a second more than it lasts.
const drainLimit = 90 * time.Second

// Handover is what became of the messages of a run in which a node stopped.
type Handover struct {
	Messages int64   `json:"messages"` // stored, from the beginning of the warm-up on
	Lost     int64   `json:"lost"`     // of those: not shown to whom they were for
	Repeated int64   `json:"repeated"` // shown twice, or out of order
	Seconds  float64 `json:"seconds"`  // from the order to stop until the last device was elsewhere
}

// drain measures what clients notice of a node that stops. All devices but Others
// are at the first of the addresses and the others at the rest, and each writes to
// one other device, at Rate in all. Then the node of the first address is told to
// drain. An operation is a device that has moved; gap is how long such a one had
// no connection to write on.
func (r *runner) drain() error {
	n := r.o.Conns
	switch {
	case len(r.o.Addresses) < 2 || r.o.Drain == nil:
		return errors.New("drain wants the addresses of two gateways and a way to tell the first one to stop")
	case n < 2 || r.o.Users < n || r.o.Others < 0 || r.o.Others >= n || r.o.Rate <= 0:
		return errors.New("drain wants a rate and at least 2 devices, each of a user of its own, not all of which are others")
	}
	h := &handover{r: r, devices: make([]handed, n), left: n - r.o.Others, gap: r.recorder("gap"), move: r.recorder("move")}
	for i := range n {
		r.pair(r.user(i), r.user(h.partner(i)))
	}
	if err := r.connectAll(n, h.prepare); err != nil {
		return err
	}
	for _, d := range r.devices {
		h.write(d)
	}
	if _, err := r.wait("warm up", r.o.Warmup, func() bool { return false }); err != nil {
		return err
	}
	r.primary = h.gap
	r.begin()
	r.end = time.Duration(1<<63 - 1)
	h.began = r.began
	r.side(func(ctx context.Context) func() {
		err := r.o.Drain(ctx)
		return func() {
			if err != nil {
				r.stop(fmt.Errorf("the node was not told to stop: %w", err))
			}
		}
	})
	limit := max(r.o.drainLimit, r.o.Duration+time.Second)
	ok, err := r.wait("drain", limit, func() bool { return h.left == 0 && r.l.now >= r.began+r.o.Duration })
	var unmoved error
	if err == nil && !ok {
		unmoved = fmt.Errorf("%d of %d devices have moved after %v%s", n-r.o.Others-h.left, n-r.o.Others, limit, r.why())
	}
	r.finish()
	err = errors.Join(err, r.settle())
	if err == nil {
		_, err = r.wait("settle", r.o.Settle, func() bool { return h.lost() == 0 })
	}
	if err == nil { // of a run that was stopped nobody knows what was lost and what on its way
		r.handover = h.result()
	}
	return errors.Join(unmoved, err)
}

// handover follows the devices of a node that stops, and the messages of all.
type handover struct {
	r         *runner
	devices   []handed // by number
	left      int      // devices that have not moved yet
	began     time.Duration
	ended     time.Duration // when the last one had
	repeated  int64
	gap, move *recorder
}

// handed is what is known of one device.
type handed struct {
	moved  bool
	down   time.Duration              // since when it has no connection; 0 = it has one
	gap    time.Duration              // in all, until it had moved
	stored int64                      // of its messages
	shown  int64                      // of those of the one device that writes to it, each once
	last   time.Duration              // when the last one shown was made
	seen   map[time.Duration]struct{} // when each one shown was made
}

// partner is whom the i-th device writes to.
func (h *handover) partner(i int) int { return (i + len(h.devices)/2) % len(h.devices) }

// writer is who writes to the i-th device.
func (h *handover) writer(i int) int {
	n := len(h.devices)
	return (i + n - n/2) % n
}

// home is the number of the address at which the i-th device is.
func (h *handover) home(i int) int {
	if first := len(h.devices) - h.r.o.Others; i >= first {
		return 1 + (i-first)%(len(h.r.o.Addresses)-1)
	}
	return 0
}

// prepare makes a device one that is followed.
func (h *handover) prepare(d *device) {
	d.home = h.home(d.i)
	for _, peer := range []int{h.partner(d.i), h.writer(d.i)} {
		d.in.expect(protocol.DirectID(d.user, h.r.user(peer)))
	}
	at, up, down := &h.devices[d.i], d.onUp, d.onDown
	d.onUp = func(joined time.Duration) {
		up(joined)
		h.up(d, at)
	}
	d.onDown = func(reason string, err error) {
		down(reason, err)
		if h.began > 0 && at.down == 0 && !d.online() {
			at.down = h.r.l.now
		}
	}
	d.onShown = func(text []byte) {
		if made, ok := stampOf(text); ok && !at.show(made) {
			h.repeated++
		}
	}
}

// show takes note of a message that is shown; false = it was already, or a later one
// was. A repeated one makes up for none that is lost.
func (at *handed) show(made time.Duration) bool {
	behind := at.shown > 0 && made <= at.last
	if _, again := at.seen[made]; !again {
		at.shown++
	}
	if at.seen == nil {
		at.seen = map[time.Duration]struct{}{}
	}
	at.seen[made], at.last = struct{}{}, made
	return !behind
}

// up takes note of a new connection of a device.
func (h *handover) up(d *device, at *handed) {
	now := h.r.l.now
	if at.down > 0 {
		at.gap += now - at.down
		at.down = 0
	}
	if h.began == 0 || at.moved || h.home(d.i) != 0 || d.cur.at == h.r.o.Addresses[0] {
		return
	}
	at.moved = true
	if h.left--; h.left == 0 {
		h.ended = now
	}
	h.gap.add(at.gap)
	h.move.add(now - h.began)
	h.r.open++
	h.r.done(nil, now)
}

// write lets a device write to its partner.
func (h *handover) write(d *device) {
	r, acks := h.r, h.r.recorder("ack")
	to := d.out.lane("", r.user(h.partner(d.i)))
	to.rec = acks
	r.pace(d, r.o.Rate/float64(len(h.devices)), sendWindow, acks, func(s *source, at time.Duration) {
		d.out.send(to, at, func(p *send, a *ackIn) {
			if a.status == clientv1.Ack_ACK_OK {
				h.devices[d.i].stored++
				r.aside(acks, at)
			} else {
				r.fail(string(a.reason))
			}
			s.ended()
		})
	})
}

// lost is how many stored messages are not shown to whom they are for.
func (h *handover) lost() (n int64) {
	for i := range h.devices {
		n += max(h.devices[i].stored-h.devices[h.partner(i)].shown, 0)
	}
	return n
}

func (h *handover) result() *Handover {
	out := &Handover{Lost: h.lost(), Repeated: h.repeated}
	for i := range h.devices {
		out.Messages += h.devices[i].stored
	}
	if h.left == 0 {
		out.Seconds = (h.ended - h.began).Seconds()
	}
	return out
}

package sim

import (
	"time"

	"github.com/imdhq/imd/sdk/go/gen/clientv1"
)

// link is one connection of a device to a gateway. What is written on it
// arrives in order, or not at all once it is cut. A silent link swallows
// everything, and neither end hears of it.
type link struct {
	w       *world
	dev     *device
	gate    *gateway
	sess    *session // at the gateway; nil before it was accepted
	silent  bool
	isCut   bool
	stalled time.Duration // the device reads nothing before
	up      time.Duration // when the last bytes to the gateway arrive
	down    time.Duration // and to the device
}

// toGateway carries frames of a device.
func (l *link) toGateway(frames []*clientv1.ClientFrame) {
	if l.w.trace != nil {
		for _, f := range frames {
			l.w.tracef("%s writes %v", l.dev, f)
		}
	}
	l.up = max(l.up, l.w.now+l.w.delay())
	life := l.gate.life
	l.w.after(l.up-l.w.now, func() {
		if !l.isCut && !l.silent {
			l.gate.exec(life, func() { l.sess.received(frames) })
		}
	})
}

// toDevice carries frames of a gateway and tells it when they are written.
func (l *link) toDevice(frames []*clientv1.ServerFrame, written func()) {
	l.down = max(l.down, l.w.now+l.w.delay(), l.stalled)
	l.w.after(l.down-l.w.now, func() {
		if l.isCut {
			return
		}
		if !l.silent {
			l.dev.received(l, frames)
		}
		written()
	})
}

func (l *link) stall(d time.Duration) { l.stalled = max(l.stalled, l.w.now+d) }

// cut breaks the connection. Each end hears of it in its time.
func (l *link) cut() {
	if l.isCut {
		return
	}
	l.isCut = true
	l.w.after(l.w.delay(), func() { l.dev.lost(l, "the connection broke") })
	if s := l.sess; s != nil && !l.silent {
		life := l.gate.life
		l.w.after(l.w.delay(), func() { l.gate.exec(life, func() { s.ended("gone") }) })
	}
}

// close is an orderly end by the gateway: what was written before arrives.
func (l *link) close() {
	l.down = max(l.down, l.w.now+l.w.delay(), l.stalled)
	l.w.after(l.down-l.w.now, func() {
		if !l.isCut && !l.silent {
			l.isCut = true
			l.dev.lost(l, "the gateway closed")
		}
	})
}

// heal ends stalls. A connection that went silent stays so: that its ends find
// out is part of what must settle.
func (l *link) heal() { l.stalled = 0 }

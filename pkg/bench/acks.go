package bench

import (
	"math"
	"slices"
	"time"

	"github.com/imdhq/imd/sdk/go/protocol"
)

// joined makes the device behave as in a group of so many members, before it
// connects.
func (b *inbox) joined(members int) {
	if members > protocol.LargeGroup {
		b.large, b.pace = true, min(time.Duration(members)*protocol.PullSpread, protocol.MaxPullSpread)
	}
	for _, cv := range b.convs {
		if cv.tl != nil {
			cv.tl.Pace(b.wait().Milliseconds())
		}
	}
}

// ackLater counts toward the next ack frame.
func (b *inbox) ackLater(cv *conv) {
	if !cv.queued {
		cv.queued = true
		b.toAck = append(b.toAck, cv)
	}
	b.due++
	switch {
	case b.due >= b.most():
		b.ack()
	case !b.ackSet:
		b.ackSet = true
		s, delay := b.d.cur, protocol.AckDelay
		if b.large {
			delay = b.spread(protocol.AckDelayLarge)
		}
		b.d.h.l.after(delay, func() {
			if b.d.cur == s && s != nil {
				b.ack()
			}
		})
	}
}

// most is how many entries the next ack has at most: for the first one in a large
// group each device has its own number, as with the SDKs.
func (b *inbox) most() int {
	if !b.large || b.acks > 0 {
		return protocol.AckEntries
	}
	return 1 + int(b.place()*protocol.AckEntries)
}

// place is where among all devices this one stands, 0 to below 1.
func (b *inbox) place() float64 {
	const golden = 0.6180339887
	_, place := math.Modf(float64(b.d.i) * golden)
	return place
}

// spread gives each device its own place in the second half of a delay, as the
// SDKs do, so that not all acknowledge at once.
func (b *inbox) spread(delay time.Duration) time.Duration {
	return delay/2 + time.Duration(b.place()*float64(delay/2))
}

// maxRanges is how many ranges one ack frame holds.
const maxRanges = 256

// ack acknowledges everything held so far, in one frame.
func (b *inbox) ack() {
	b.due, b.ackSet = 0, false
	b.acks++
	h, ranges := b.d.h, b.d.h.ranges[:0]
	if b.d.cur == nil {
		return
	}
	for _, cv := range b.toAck {
		cv.queued = false
		switch {
		case cv.tl != nil:
			for _, r := range cv.tl.TakeAcks() {
				ranges = append(ranges, ackRange{cv.id, r.After, r.Seq})
			}
		case cv.have > cv.acked:
			ranges = append(ranges, ackRange{cv.id, cv.acked, cv.have})
			cv.acked = cv.have
		}
	}
	b.toAck = b.toAck[:0]
	h.ranges = ranges
	for part := range slices.Chunk(ranges, maxRanges) {
		if h.enc == protocol.JSON {
			b.d.cur.write(ackMessage(part))
		} else {
			b.d.cur.c.put(appendAck(b.d.cur.c.envelope(), part))
		}
	}
}

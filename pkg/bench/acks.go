package bench

import (
	"slices"

	"github.com/imdhq/imd/sdk/go/protocol"
)

// ackLater counts toward the next ack frame.
func (b *inbox) ackLater(cv *conv) {
	if !cv.queued {
		cv.queued = true
		b.toAck = append(b.toAck, cv)
	}
	b.due++
	switch {
	case b.due >= protocol.AckEntries:
		b.ack()
	case !b.ackSet:
		b.ackSet = true
		s, delay := b.d.cur, protocol.AckDelay
		if b.large {
			delay = protocol.AckDelayLarge
		}
		b.d.h.l.after(delay, func() {
			if b.d.cur == s && s != nil {
				b.ack()
			}
		})
	}
}

// maxRanges is how many ranges one ack frame holds.
const maxRanges = 256

// ack acknowledges everything held so far, in one frame.
func (b *inbox) ack() {
	b.due, b.ackSet = 0, false
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

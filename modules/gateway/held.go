package gateway

import (
	"time"

	"github.com/imdhq/imd/sdk/go/protocol"
)

// holdFor is how long deliveries wait for an ack that makes room in the window
// before they become heads. A device owes one long before the window is full.
const holdFor = 500 * time.Millisecond

// held is deliveries that wait until the device has acknowledged earlier ones.
// Reading the log costs a device and the store much more than what is here
// already, so a short burst is kept for it. The zero value is empty.
type held struct {
	list  []*shared
	bytes int
	since time.Time // the first came, or the last ack made room
}

// add puts a delivery behind those that wait. The frame is encoded already.
func (h *held) add(now time.Time, f *shared, bytes int) {
	if len(h.list) == 0 {
		h.since = now
	}
	h.list = append(h.list, f)
	h.bytes += bytes
}

// next takes the oldest away.
func (h *held) next(now time.Time, bytes int) {
	h.list[0] = nil
	if h.list = h.list[1:]; len(h.list) == 0 {
		h.list = nil
	}
	h.bytes -= bytes
	h.since = now
}

// until is when the wait is over; zero = nothing waits.
func (h *held) until() time.Time {
	if len(h.list) == 0 {
		return time.Time{}
	}
	return h.since.Add(holdFor)
}

// over reports whether what is held has waited for too long.
func (h *held) over(now time.Time) bool { return len(h.list) > 0 && !now.Before(h.until()) }

// roomLocked reports whether the window has room for a delivery.
func (s *session) roomLocked() bool {
	return s.unacked.Len() < s.g.cfg.WindowEntries && s.unacked.Bytes() < protocol.DeliveryWindowBytes
}

// fillLocked is how full the way out is with what is held, 0 to above 1.
func (s *session) fillLocked() float64 {
	return s.q.fill() + max(float64(len(s.held.list))/float64(s.g.cfg.QueueFrames), float64(s.held.bytes)/float64(s.g.cfg.QueueBytes))
}

// releaseLocked delivers what is held, as far as the window has room.
func (s *session) releaseLocked(now time.Time) {
	for len(s.held.list) > 0 && s.roomLocked() && s.phase == online {
		f := s.held.list[0]
		data, _ := f.in(s.enc) // made before
		s.held.next(now, len(data))
		s.sendLocked(now, f, data)
	}
}

// headsLocked makes heads of what is held.
func (s *session) headsLocked() {
	list := s.held.list
	s.held = held{}
	for _, f := range headsOf(list) {
		s.headLocked(f.conv, f.seq)
	}
}

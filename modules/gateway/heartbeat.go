package gateway

import "time"

// heartbeat decides when to ping and when a connection is dead. It has no
// clock and no lock.
type heartbeat struct {
	interval, timeout time.Duration

	nextPing time.Time
	asked    time.Time // the time of the oldest ping without a byte since; zero = none
}

// begin starts the heartbeat of a session.
func (h *heartbeat) begin(now time.Time) { h.nextPing = now.Add(h.interval) }

// step looks at the clock. lastByte is when the last byte came. While the
// server itself does not read, because it is stalled or its whole process stood
// still until resumed, silence proves nothing and the wait begins anew. What came
// before that is a sign of life.
func (h *heartbeat) step(now, lastByte, resumed time.Time, stalled bool) (ping, dead bool) {
	if !h.asked.IsZero() {
		switch {
		case lastByte.After(h.asked):
			h.asked = time.Time{}
		case stalled:
			h.asked = now
		case h.asked.Before(resumed):
			h.asked = resumed
		case now.Sub(h.asked) >= h.timeout:
			return false, true
		}
	}
	if now.Before(h.nextPing) {
		return false, false
	}
	h.nextPing = now.Add(h.interval)
	if h.asked.IsZero() {
		h.asked = now
	}
	return true, false
}

// next is when step has something to do.
func (h *heartbeat) next() time.Time {
	if h.asked.IsZero() {
		return h.nextPing
	}
	if t := h.asked.Add(h.timeout); t.Before(h.nextPing) {
		return t
	}
	return h.nextPing
}

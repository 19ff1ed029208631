package sim

import "time"

// began is when each schedule begins, by the clocks of its world.
var began = time.Unix(1_800_000_000, 0)

// event is what happens at a time. Events of the same time happen in the order
// in which they were made.
type event struct {
	at time.Duration
	n  uint64
	do func()
}

func (e *event) before(o *event) bool { return e.at < o.at || e.at == o.at && e.n < o.n }

// clock is virtual time: it jumps from one event to the next.
type clock struct {
	now    time.Duration // since the schedule began
	events []event       // a heap, earliest first
	n      uint64        // events made
	done   uint64        // events that happened
}

// time is now as the cores are told.
func (c *clock) time() time.Time { return began.Add(c.now) }

// ms is now as timelines are told.
func (c *clock) ms() int64 { return c.now.Milliseconds() }

// after makes something happen d from now.
func (c *clock) after(d time.Duration, do func()) {
	c.n++
	c.events = append(c.events, event{c.now + max(d, 0), c.n, do})
	h := c.events
	for i := len(h) - 1; i > 0; {
		up := (i - 1) / 2
		if !h[i].before(&h[up]) {
			break
		}
		h[i], h[up] = h[up], h[i]
		i = up
	}
}

// next lets the earliest event happen; false = there is none up to until.
func (c *clock) next(until time.Duration) bool {
	if len(c.events) == 0 || c.events[0].at > until {
		return false
	}
	e := c.events[0]
	h := c.events
	last := len(h) - 1
	h[0], h[last] = h[last], event{}
	h = h[:last]
	c.events = h
	for i := 0; ; {
		l, least := 2*i+1, i
		if l < last && h[l].before(&h[least]) {
			least = l
		}
		if l+1 < last && h[l+1].before(&h[least]) {
			least = l + 1
		}
		if least == i {
			break
		}
		h[i], h[least] = h[least], h[i]
		i = least
	}
	c.now = e.at
	c.done++
	e.do()
	return true
}

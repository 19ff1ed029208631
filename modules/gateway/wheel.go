package gateway

import (
	"context"
	"sync"
	"sync/atomic"
	"time"
)

const (
	// tick is the wheel's grain.
	tick = 100 * time.Millisecond
	// slots is how many ticks a turn has; what is due later goes round again.
	slots = 512
	// standstill is the time between two turns from which on the process is taken to
	// have stood still: what came meanwhile is not read yet.
	standstill = 5 * tick
)

// wheel is the timer of all sessions: one lock and one ticker for any number
// of them. It may wake early and never later than a tick.
type wheel struct {
	base time.Time

	mu    sync.Mutex
	at    int64 // the tick that advance has done
	heads [slots]*timer

	back atomic.Pointer[time.Time] // the end of the last standstill; nil = there was none
}

// timer is a place in the wheel. It belongs to one session.
type timer struct {
	session    *session
	tick       int64
	queued     bool
	next, prev *timer
}

func newWheel(now time.Time) *wheel { return &wheel{base: now} }

// wakeBy makes sure that t fires at the time at or earlier. It never moves a
// timer to a later time: a session that wakes early looks at the clock and
// asks again.
func (w *wheel) wakeBy(t *timer, at time.Time) {
	w.mu.Lock()
	defer w.mu.Unlock()
	n := max(w.at+1, int64((at.Sub(w.base)+tick-1)/tick))
	if t.queued {
		if t.tick <= n {
			return
		}
		w.unlink(t)
	}
	t.tick, t.queued = n, true
	head := &w.heads[n%slots]
	t.prev, t.next = nil, *head
	if *head != nil {
		(*head).prev = t
	}
	*head = t
}

// remove takes t out.
func (w *wheel) remove(t *timer) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if t.queued {
		w.unlink(t)
	}
}

func (w *wheel) unlink(t *timer) {
	if t.prev != nil {
		t.prev.next = t.next
	} else {
		w.heads[t.tick%slots] = t.next
	}
	if t.next != nil {
		t.next.prev = t.prev
	}
	t.next, t.prev, t.queued = nil, nil, false
}

// advance takes out all timers due by now and adds their sessions to due.
func (w *wheel) advance(now time.Time, due []*session) []*session {
	w.mu.Lock()
	defer w.mu.Unlock()
	to := int64(now.Sub(w.base) / tick)
	for ; w.at < to; w.at++ {
		n := w.at + 1
		for t := w.heads[n%slots]; t != nil; {
			next := t.next
			if t.tick <= n {
				w.unlink(t)
				due = append(due, t.session)
			}
			t = next
		}
	}
	return due
}

// came notes that a turn begins, and when the one before ended.
func (w *wheel) came(now, last time.Time) {
	if now.Sub(last) > standstill {
		w.back.Store(&now)
	}
}

// resumed is when the process last went on after it had stood still; zero = it
// never did.
func (w *wheel) resumed() time.Time {
	if at := w.back.Load(); at != nil {
		return *at
	}
	return time.Time{}
}

// run wakes sessions until ctx is done.
func (w *wheel) run(ctx context.Context, wake func(*session, time.Time)) {
	t := time.NewTicker(tick)
	defer t.Stop()
	var due []*session
	last := time.Now()
	for {
		select {
		case <-ctx.Done():
			return
		case <-t.C:
		}
		now := time.Now()
		w.came(now, last)
		due = w.advance(now, due[:0])
		for _, s := range due {
			wake(s, now)
		}
		last = time.Now() // what waking takes is no standstill
		clear(due)
	}
}

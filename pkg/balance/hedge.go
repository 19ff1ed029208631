package balance

import (
	"math/bits"
	"time"
)

// Bounds of backup requests.
const (
	// MinHedgeDelay and MaxHedgeDelay bound how long an answer may take before a
	// backup request is due.
	MinHedgeDelay = 20 * time.Millisecond
	MaxHedgeDelay = 200 * time.Millisecond
	// HedgeShare is the part of all calls that may have one, unless another is set.
	HedgeShare = 0.05

	hedgeWindow = 10 * time.Second
	relearn     = 64 // samples after which the percentile is computed anew
)

// HedgeLimits bound backup requests. They may change from call to call.
type HedgeLimits struct {
	Delay time.Duration // the longest wait before one; it is never below MinHedgeDelay
	Share float64       // the part of all calls that may have one, 0 to 1; 0 = none
}

// DefaultHedgeLimits are those that hold unless others are set.
func DefaultHedgeLimits() HedgeLimits { return HedgeLimits{Delay: MaxHedgeDelay, Share: HedgeShare} }

// Hedge says when a call that has no answer yet is made a second time: after
// the time in which 95 % of the recent calls were answered, and for at most a share
// of the calls. The zero value is ready. Not safe for concurrent use.
type Hedge struct {
	now, before hedgeCounts
	since       time.Time     // when now began
	delay       time.Duration // 0 = to be computed
	learned     int           // samples since delay was computed
}

// hedgeCounts is what happened in one window. Bucket i counts the latencies of
// i eighths of a power of two of microseconds.
type hedgeCounts struct {
	calls, hedges int
	latency       [26 * 8]uint32
}

// roll begins a new window when the one that runs is over.
func (h *Hedge) roll(now time.Time) {
	switch age := now.Sub(h.since); {
	case h.since.IsZero() || age >= 2*hedgeWindow:
		h.now, h.before, h.since, h.delay = hedgeCounts{}, hedgeCounts{}, now, 0
	case age >= hedgeWindow:
		h.before, h.now, h.since, h.delay = h.now, hedgeCounts{}, h.since.Add(hedgeWindow), 0
	}
}

// Called counts a call that begins.
func (h *Hedge) Called(now time.Time) {
	h.roll(now)
	h.now.calls++
}

// Answered takes in how long a call took.
func (h *Hedge) Answered(took time.Duration, now time.Time) {
	h.roll(now)
	h.now.latency[bucket(took)]++
	h.learned++
}

// Delay is how long to wait before the backup request: the 95th percentile
// within MinHedgeDelay and the limit, and the limit while nothing is known.
func (h *Hedge) Delay(now time.Time, l HedgeLimits) time.Duration {
	h.roll(now)
	if h.delay == 0 || h.learned >= relearn {
		h.delay, h.learned = h.p95(), 0
	}
	return max(min(h.delay, l.Delay), MinHedgeDelay)
}

// Take counts a backup request; false = there were too many already.
func (h *Hedge) Take(now time.Time, l HedgeLimits) bool {
	h.roll(now)
	if float64(h.now.hedges+h.before.hedges+1) > l.Share*float64(h.now.calls+h.before.calls) {
		return false
	}
	h.now.hedges++
	return true
}

func (h *Hedge) p95() time.Duration {
	total := uint32(0)
	for i := range h.now.latency {
		total += h.now.latency[i] + h.before.latency[i]
	}
	if total == 0 {
		return time.Hour // the limit decides
	}
	left := total - total*95/100
	for i := len(h.now.latency) - 1; i > 0; i-- {
		n := h.now.latency[i] + h.before.latency[i]
		if n >= left {
			return upper(i)
		}
		left -= n
	}
	return upper(0)
}

// bucket is where a latency is counted.
func bucket(d time.Duration) int {
	us := uint64(max(d.Microseconds(), 0))
	if us < 8 {
		return int(us)
	}
	e := bits.Len64(us) - 4 // us >> e is within 8 and 15
	return min((e+1)*8+int(us>>e)-8, 26*8-1)
}

// upper is the longest latency of a bucket.
func upper(i int) time.Duration {
	if i < 8 {
		return time.Duration(i) * time.Microsecond
	}
	e := i/8 - 1
	return time.Duration((uint64(8+i%8+1)<<e)-1) * time.Microsecond
}

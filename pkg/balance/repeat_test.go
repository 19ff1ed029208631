package balance

import (
	"math"
	"testing"
	"time"
)

var begin = time.Unix(1_700_000_000, 0)

func TestBudgetStopsAtHalf(t *testing.T) {
	var b Budget
	b.Tokens(begin)
	n := 0
	for b.Take(begin) {
		n++
	}
	if n != 50 {
		t.Errorf("%d repeats at once, want 50", n)
	}
	for range 20 {
		b.Succeeded(begin)
	}
	if !b.Take(begin) || !b.Take(begin) || b.Take(begin) {
		t.Error("20 successes earn two repeats")
	}
}

// Whatever happens: repeats are at most a tenth of the successes, three a
// second, and what the full budget holds.
func TestBudgetBoundsRepeats(t *testing.T) {
	for seed := range uint64(20) {
		rng, b, now, won, repeats := seeded(seed), &Budget{}, begin, 0, 0
		b.Tokens(now)
		for range 20_000 {
			now = now.Add(time.Duration(rng.IntN(3)) * time.Millisecond)
			if rng.IntN(10) < 3 {
				won++
				b.Succeeded(now)
			} else if b.Take(now) {
				repeats++
			}
		}
		if most := 0.1*float64(won) + 3*now.Sub(begin).Seconds() + budgetFull/2; float64(repeats) > most+1 {
			t.Errorf("seed %d: %d repeats, at most %.0f", seed, repeats, most)
		}
	}
}

func TestHedgeDelayIsTheNinetyFifthPercentile(t *testing.T) {
	var h Hedge
	if d := h.Delay(begin, DefaultHedgeLimits()); d != MaxHedgeDelay {
		t.Errorf("before anything is known: %v", d)
	}
	for name, tt := range map[string]struct {
		usual, slow time.Duration
		low, high   time.Duration
	}{
		"quick":  {time.Millisecond, 5 * time.Millisecond, MinHedgeDelay, MinHedgeDelay},
		"medium": {10 * time.Millisecond, 60 * time.Millisecond, 60 * time.Millisecond, 70 * time.Millisecond},
		"slow":   {300 * time.Millisecond, time.Second, MaxHedgeDelay, MaxHedgeDelay},
	} {
		h := Hedge{}
		for i := range 1000 {
			d := tt.usual
			if i%16 == 0 {
				d = tt.slow
			}
			h.Answered(d, begin.Add(time.Duration(i)*time.Millisecond))
		}
		if d := h.Delay(begin.Add(time.Second), DefaultHedgeLimits()); d < tt.low || d > tt.high {
			t.Errorf("%s: %v", name, d)
		}
	}
}

// In any 10 s at most one call of twenty gets a backup request.
func TestHedgesStayBelowTheirShare(t *testing.T) {
	for seed := range uint64(10) {
		rng, h, now, calls, hedges := seeded(seed), &Hedge{}, begin, 0, 0
		for range 30_000 {
			now = now.Add(time.Duration(rng.IntN(5)) * time.Millisecond)
			h.Called(now)
			calls++
			if h.Take(now, DefaultHedgeLimits()) {
				hedges++
			}
		}
		if share := float64(hedges) / float64(calls); share > HedgeShare || share < 0.03 {
			t.Errorf("seed %d: %.4f of the calls", seed, share)
		}
	}
}

func TestHedgeForgets(t *testing.T) {
	var h Hedge
	for range 1000 {
		h.Called(begin)
		h.Answered(150*time.Millisecond, begin)
	}
	later := begin.Add(25 * time.Second)
	if d := h.Delay(later, DefaultHedgeLimits()); d != MaxHedgeDelay {
		t.Errorf("after a pause: %v", d)
	}
	if h.Take(later, DefaultHedgeLimits()) {
		t.Error("calls of long ago pay for a backup request")
	}
	for range 100 {
		h.Answered(time.Millisecond, later)
	}
	if d := h.Delay(later.Add(time.Second), DefaultHedgeLimits()); d != MinHedgeDelay {
		t.Errorf("with new samples: %v", d)
	}
}

func TestBucketsHoldWhatTheySay(t *testing.T) {
	for us := range 100_000 {
		d := time.Duration(us) * time.Microsecond
		if u := upper(bucket(d)); u < d || float64(u) > float64(d)*1.13+float64(time.Microsecond) {
			t.Fatalf("%v is counted as up to %v", d, u)
		}
	}
	if bucket(time.Hour) != 26*8-1 || bucket(-1) != 0 {
		t.Error("extremes leave the buckets")
	}
	if math.IsNaN(upper(26*8 - 1).Seconds()) {
		t.Error("the last bucket has no bound")
	}
}

// The limits of backup requests may change while calls are made.
func TestHedgeLimitsMayChange(t *testing.T) {
	var h Hedge
	for range 100 {
		h.Called(begin)
		h.Answered(150*time.Millisecond, begin)
	}
	if d := h.Delay(begin, HedgeLimits{Delay: 50 * time.Millisecond}); d != 50*time.Millisecond {
		t.Errorf("with 50 ms at the most the delay is %v", d)
	}
	if d := h.Delay(begin, DefaultHedgeLimits()); d < 150*time.Millisecond || d > 200*time.Millisecond {
		t.Errorf("with the usual limits the delay is %v", d)
	}
	if h.Take(begin, HedgeLimits{}) {
		t.Error("a share of 0 allows one")
	}
	n := 0
	for h.Take(begin, HedgeLimits{Share: 0.1}) {
		n++
	}
	if n != 10 {
		t.Errorf("a share of 0.1 allows %d of 100", n)
	}
}

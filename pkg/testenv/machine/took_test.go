package machine

import (
	"testing"
	"testing/synctest"
	"time"
)

// alone is a machine that has nothing else to do.
func alone() float64 { return 0.5 }

func TestTookIsTheTimeOfTheClock(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for _, want := range []time.Duration{0, time.Millisecond, 1234 * time.Millisecond, time.Minute} {
			if got := tookAmong(alone, func() { time.Sleep(want) }); got != want {
				t.Errorf("took %v, want %v", got, want)
			}
			four := func() float64 { return 4 }
			if got := tookAmong(four, func() { time.Sleep(want) }); (got - want/4).Abs() > time.Duration(want/time.Millisecond) {
				t.Errorf("with four times as much to do it took %v, want %v", got, want/4)
			}
		}
	})
}

func TestAStopHardlyCounts(t *testing.T) {
	now := time.Now()
	w := watch{last: now, crowd: alone}
	for _, at := range []time.Duration{5, 10, 2010, 2015, 2018} {
		w.look(now.Add(at * time.Millisecond))
	}
	if want := (5 + 5 + 10 + 5 + 3) * time.Millisecond; w.counted != want {
		t.Errorf("counted %v, want %v", w.counted, want)
	}
}

func TestWhatWantsToRun(t *testing.T) {
	for text, want := range map[string]float64{"0.5 0.4 0.3 9/260 24763\n": 4.5, "0.5 0.4": 1, "": 1, "a b c d": 1} {
		if got := crowdOf(text, 2); got != want {
			t.Errorf("%q: %v, want %v", text, got, want)
		}
	}
}

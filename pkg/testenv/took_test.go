package testenv

import (
	"testing"
	"testing/synctest"
	"time"
)

func TestTookIsTheTimeOfTheClock(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for _, want := range []time.Duration{0, time.Millisecond, 1234 * time.Millisecond, time.Minute} {
			if got := Took(func() { time.Sleep(want) }); got != want {
				t.Errorf("took %v, want %v", got, want)
			}
		}
	})
}

func TestAStopHardlyCounts(t *testing.T) {
	now := time.Now()
	w := watch{last: now}
	for _, at := range []time.Duration{5, 10, 2010, 2015, 2018} {
		w.look(now.Add(at * time.Millisecond))
	}
	if want := (5 + 5 + 10 + 5 + 3) * time.Millisecond; w.counted != want {
		t.Errorf("counted %v, want %v", w.counted, want)
	}
}

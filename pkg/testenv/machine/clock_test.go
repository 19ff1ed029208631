package machine

import (
	"testing"
	"testing/synctest"
	"time"
)

// alone is a machine that has nothing else to do.
func alone() float64 { return 0.5 }

func TestAClockCountsWhatTheMachineGives(t *testing.T) {
	for crowd, want := range map[float64]time.Duration{0.5: time.Second, 4: time.Second / 4, 1000: time.Second / Slowest} {
		synctest.Test(t, func(t *testing.T) {
			c := newClock(func() float64 { return crowd })
			defer c.stop()
			time.Sleep(time.Second)
			if got := c.Now(); (got - want).Abs() > time.Millisecond {
				t.Errorf("%v of a second were counted where %v times as much as usual runs, want %v", got, crowd, want)
			}
		})
	}
}

func TestAClockStandsWithItsProcess(t *testing.T) {
	now := time.Now()
	c := &Clock{last: now}
	for _, at := range []time.Duration{5, 10, 2010, 2015, 2018} {
		c.stepLocked(now.Add(at*time.Millisecond), 1)
	}
	if want := (5 + 5 + 10 + 5 + 3) * time.Millisecond; c.told != want {
		t.Errorf("counted %v, want %v", c.told, want)
	}
	if want := 1995 * time.Millisecond; c.Stood() != want {
		t.Errorf("it stood %v, want %v", c.Stood(), want)
	}
}

func TestTookIsTheTimeOfTheClock(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for _, want := range []time.Duration{0, time.Millisecond, 1234 * time.Millisecond, time.Minute} {
			if got := tookAmong(alone, func() { time.Sleep(want) }); got != want {
				t.Errorf("took %v, want %v", got, want)
			}
		}
	})
}

func TestAClockGoes(t *testing.T) {
	c := NewClock(t)
	began := c.Now()
	for end := time.Now().Add(time.Minute); c.Since(began) < 20*time.Millisecond; time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("it stands")
		}
	}
}

func TestWhatWantsToRun(t *testing.T) {
	for text, want := range map[string]float64{"0.5 0.4 0.3 9/260 24763\n": 4.5, "0.5 0.4": 1, "": 1, "a b c d": 1} {
		if got := crowdOf(text, 2); got != want {
			t.Errorf("%q: %v, want %v", text, got, want)
		}
	}
}

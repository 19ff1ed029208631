package testenv

import (
	"testing"
	"time"
)

func TestAClockCountsWhatTheMachineGives(t *testing.T) {
	began := time.Unix(1000, 0)
	c := &Clock{last: began}
	now := began
	go100 := func(crowd float64) time.Duration { // 100 ms in steps of the ticks
		before := c.told
		for range 20 {
			now = now.Add(clockTick)
			c.step(now, crowd)
		}
		return c.told - before
	}
	if got := go100(0.5); got != 100*time.Millisecond {
		t.Errorf("nothing else runs: %v of 100 ms", got)
	}
	if got := go100(4); got != 25*time.Millisecond {
		t.Errorf("four times as much as there are processors: %v of 100 ms", got)
	}
	if got := go100(1000); got != 10*time.Millisecond {
		t.Errorf("the machine is lost: %v of 100 ms", got)
	}
	before := c.told
	now = now.Add(time.Minute)
	if got := c.step(now, 1) - before; got != longestStep {
		t.Errorf("the process stood still for a minute: %v", got)
	}
	if got := c.Stood(); got != time.Minute {
		t.Errorf("it stood still for a minute: %v", got)
	}
}

func TestAClockGoes(t *testing.T) {
	c := NewClock(t)
	began := c.Now()
	for l := NewLimit(Patience); c.Since(began) < 20*time.Millisecond; time.Sleep(time.Millisecond) {
		if l.Over() {
			t.Fatal("it stands")
		}
	}
}

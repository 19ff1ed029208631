package testenv

import (
	"testing"
	"testing/synctest"
	"time"
)

func TestAClockWaitsForABusyMachine(t *testing.T) {
	for crowd, want := range map[float64]time.Duration{0.5: time.Second, 4: time.Second / 4, 1000: time.Second / slowest} {
		synctest.Test(t, func(t *testing.T) {
			c, stop := &Clock{crowd: func() float64 { return crowd }}, make(chan struct{})
			go c.run(stop)
			time.Sleep(time.Second)
			synctest.Wait()
			if got := c.Since(0); (got - want).Abs() > 20*time.Millisecond {
				t.Errorf("%v of a second were counted where %v times as much as usual runs, want %v", got, crowd, want)
			}
			close(stop)
		})
	}
}

func TestAClockStandsWithItsProcess(t *testing.T) {
	if got := counted(2*time.Second, 1); got != 2*clockTick {
		t.Errorf("%v of two seconds without a look are counted", got)
	}
}

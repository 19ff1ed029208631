package gateway

import (
	"runtime/debug"
	"testing"
	"time"
)

func TestHaste(t *testing.T) {
	begin := time.Unix(1000, 0)
	for _, tt := range []struct {
		name   string
		before int
		waves  []time.Duration
		steps  map[time.Duration]int // what is in force after them
	}{
		{"a wave", 100, []time.Duration{0, 500 * time.Millisecond}, map[time.Duration]int{400 * time.Millisecond: 200, 1400 * time.Millisecond: 200, 1500 * time.Millisecond: 100}},
		{"another one later", 100, []time.Duration{0, 3 * time.Second}, map[time.Duration]int{time.Second: 100, 3500 * time.Millisecond: 200, 4 * time.Second: 100}},
		{"the operator's share", 50, []time.Duration{0}, map[time.Duration]int{100 * time.Millisecond: 50, 2 * time.Second: 50}},
		{"no collector", -1, []time.Duration{0}, map[time.Duration]int{100 * time.Millisecond: -1, 2 * time.Second: -1}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			force := tt.before
			h := &haste{
				get: func() uint64 { return uint64(force) },
				set: func(percent int) (before int) {
					if tt.before != usualGarbage {
						t.Errorf("%d was set", percent)
					}
					before, force = force, percent
					return before
				},
			}
			for at := time.Duration(0); at <= 5*time.Second; at += 100 * time.Millisecond {
				for _, w := range tt.waves {
					if w == at {
						h.wave(begin.Add(at))
					}
				}
				h.step(begin.Add(at))
				if want, ok := tt.steps[at]; ok && force != want {
					t.Errorf("after %v: %d, want %d", at, force, want)
				}
			}
			if force != tt.before {
				t.Errorf("at the end: %d", force)
			}
		})
	}
}

func TestTheShareOfGarbageIsRead(t *testing.T) {
	for _, want := range []int{75, 100} {
		before := debug.SetGCPercent(want)
		got := gcPercent()
		debug.SetGCPercent(before)
		if got != uint64(want) {
			t.Errorf("%d is read as %d", want, got)
		}
	}
}

package gateway

import (
	"testing"
	"time"
)

func TestTidy(t *testing.T) {
	const mib = 1 << 20
	type look struct {
		after         time.Duration
		conns, parked int
		resident      uint64
		want          bool
	}
	for name, looks := range map[string][]look{
		"after a wave": {
			{0, 0, 0, 30 * mib, false},
			{time.Second, 5000, 0, 300 * mib, false},
			{time.Second, 10_000, 0, 500 * mib, false},
			{time.Second, 10_000, 7000, 500 * mib, false}, // too many are busy
			{time.Second, 10_000, 8000, 500 * mib, true},
		},
		"not again at once": {
			{time.Minute, 1000, 0, 100 * mib, false},
			{time.Minute, 1000, 1000, 100 * mib, true},
			{19 * time.Second, 1000, 1000, 200 * mib, false},
			{time.Second, 1000, 1000, 200 * mib, true},
			{time.Minute, 1000, 1000, 210 * mib, false}, // it is not worth it
			{time.Minute, 1000, 1000, 230 * mib, true},
		},
		"when most have left": {
			{time.Minute, 10_000, 0, 300 * mib, false},
			{time.Second, 10_000, 10_000, 300 * mib, true},
			{time.Minute, 6000, 6000, 300 * mib, false},
			{time.Second, 4000, 4000, 300 * mib, true},
			{time.Minute, 3000, 3000, 300 * mib, false},
		},
		"not while they come": {
			{time.Minute, 10_000, 10_000, 300 * mib, false},
			{time.Second, 10_000, 10_000, 300 * mib, true},
			{time.Minute, 10_200, 10_000, 600 * mib, false},
		},
		"few connections": {{time.Minute, 999, 0, 100 * mib, false}, {time.Minute, 999, 999, 300 * mib, false}},
		"a small heap":    {{time.Minute, 1000, 0, 30 * mib, false}, {time.Minute, 1000, 1000, 60 * mib, false}},
	} {
		t.Run(name, func(t *testing.T) {
			var td tidy
			now := time.Unix(1e9, 0)
			for i, l := range looks {
				now = now.Add(l.after)
				got := td.step(now, l.conns, l.parked, l.resident)
				if got != l.want {
					t.Fatalf("look %d: %v", i, got)
				}
				if got {
					td.done(now, l.resident)
				}
			}
		})
	}
}

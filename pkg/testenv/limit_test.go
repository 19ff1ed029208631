package testenv

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/imdhq/imd/pkg/testenv/machine"
)

func TestALimitWaitsForABusyMachine(t *testing.T) {
	tests := []struct {
		name  string
		crowd float64
		after time.Duration // when a limit of 1 s is over
	}{
		{"nothing else runs", 0.5, time.Second},
		{"four times as much as there are processors", 4, 4 * time.Second},
		{"it stands still", 1000, machine.Slowest * time.Second},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				l := NewLimit(time.Second)
				l.crowd = func() float64 { return tt.crowd }
				began := time.Now()
				for !l.Over() {
					time.Sleep(time.Millisecond)
				}
				if took := time.Since(began); (took - tt.after).Abs() > 20*time.Millisecond {
					t.Errorf("over after %v, want %v", took, tt.after)
				}
				if want := float64(tt.after) / float64(time.Second); l.Slowness() < 0.99*want || l.Slowness() > 1.01*want {
					t.Errorf("%.2f times slower, want %.0f", l.Slowness(), want)
				}
			})
		})
	}
}

func TestALimitDoesNotCountAStandstill(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := NewLimit(2 * time.Second)
		l.crowd = func() float64 { return 1 }
		time.Sleep(time.Minute)
		if l.Over() {
			t.Error("over after one look")
		}
		time.Sleep(time.Second)
		if !l.Over() {
			t.Error("not over after a second one")
		}
	})
}

package backoff_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"pgregory.net/rapid"

	"github.com/imdhq/imd/pkg/backoff"
)

func TestBound(t *testing.T) {
	tests := []struct {
		name    string
		policy  backoff.Policy
		attempt int
		want    time.Duration
	}{
		{name: "the zero policy does not pause", attempt: 3},
		{name: "the first pause is bounded by the base", policy: backoff.Policy{Base: time.Second, Max: time.Minute}, want: time.Second},
		{name: "the bound doubles", policy: backoff.Policy{Base: time.Second, Max: time.Minute}, attempt: 3, want: 8 * time.Second},
		{name: "the bound stops at the maximum", policy: backoff.Policy{Base: time.Second, Max: time.Minute}, attempt: 1 << 20, want: time.Minute},
		{name: "without a maximum the base is the maximum", policy: backoff.Policy{Base: time.Second}, attempt: 9, want: time.Second},
		{name: "another factor", policy: backoff.Policy{Base: 1000, Max: time.Minute, Factor: 1.5}, attempt: 2, want: 2250},
		{name: "a factor of one stays", policy: backoff.Policy{Base: 1000, Max: time.Minute, Factor: 1}, attempt: 1 << 40, want: 1000},
		{name: "a negative attempt is the first", policy: backoff.Policy{Base: 1000, Max: time.Minute}, attempt: -4, want: 1000},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			if got := tt.policy.Bound(tt.attempt); got != tt.want {
				t.Errorf("Bound(%d) = %v, want %v", tt.attempt, got, tt.want)
			}
		})
	}
}

func TestPauseStaysBelowTheBound(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		r := rapid.Float64Range(0, 0.999999).Draw(t, "r")
		p := backoff.Policy{
			Base: time.Duration(rapid.Int64Range(0, int64(time.Hour)).Draw(t, "base")),
			Max:  time.Duration(rapid.Int64Range(0, int64(24*time.Hour)).Draw(t, "max")),
			Rand: func() float64 { return r },
		}
		attempt := rapid.IntRange(-5, 200).Draw(t, "attempt")
		got, bound := p.Pause(attempt), p.Bound(attempt)
		if got < 0 || got > bound || bound > max(p.Base, p.Max) {
			t.Fatalf("Pause(%d) = %v, bound %v, policy %+v", attempt, got, bound, p)
		}
	})
}

func TestSleep(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := backoff.Policy{Base: 4 * time.Second, Rand: func() float64 { return 0.5 }}
		start := time.Now()
		if err := p.Sleep(t.Context(), 0); err != nil || time.Since(start) != 2*time.Second {
			t.Errorf("Sleep = %v after %v, want nil after 2s", err, time.Since(start))
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		start = time.Now()
		if err := p.Sleep(ctx, 0); !errors.Is(err, context.DeadlineExceeded) || time.Since(start) != time.Second {
			t.Errorf("Sleep = %v after %v, want the deadline after 1s", err, time.Since(start))
		}
		if err := backoff.Sleep(ctx, 0); err == nil {
			t.Error("a sleep of nothing hides that the context has ended")
		}
	})
}

func TestSpread(t *testing.T) {
	for r, want := range map[float64]time.Duration{0: 48 * time.Second, 0.5: time.Minute, 1: 72 * time.Second} {
		if got := backoff.Spread(time.Minute, 0.2, r); got != want {
			t.Errorf("Spread(1m, 0.2, %v) = %v, want %v", r, got, want)
		}
	}
}

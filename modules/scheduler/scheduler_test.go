package scheduler

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"go.uber.org/zap"
)

type counting struct {
	calls []time.Time
	fails atomic.Bool
}

func (c *counting) Expire(_ context.Context, now time.Time) (int, error) {
	c.calls = append(c.calls, now)
	if c.fails.Load() {
		return 0, errors.New("away")
	}
	return 3, nil
}

func TestExpiredRevocationsGoEveryHour(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := &counting{}
		s := New(zap.NewNop(), prometheus.NewRegistry(), func() (expirer, error) { return c, nil })
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- s.Run(ctx) }()
		time.Sleep(first + 2*every + time.Second)
		c.fails.Store(true)
		time.Sleep(every)
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
		if len(c.calls) != 4 {
			t.Errorf("%d rounds, want 4", len(c.calls))
		}
		if got := testutil.ToFloat64(s.expired); got != 9 {
			t.Errorf("%v counted, want 9: a failed round counts nothing", got)
		}
	})
}

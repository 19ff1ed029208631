package scheduler

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"go.uber.org/goleak"
	"go.uber.org/zap"

	"github.com/imdhq/imd/pkg/control"
	"github.com/imdhq/imd/pkg/store"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// counting is a store that expires three revocations at a time.
type counting struct {
	store.Fences // what a test does not need panics

	mu    sync.Mutex
	calls []store.Proof
	err   error
}

func (c *counting) Expire(_ context.Context, p store.Proof, _ time.Time) (int, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.calls = append(c.calls, p)
	if c.err != nil {
		return 0, c.err
	}
	return 3, nil
}

func (c *counting) fail(err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.err = err
}

// term is a term with a token.
type term int64

func (t term) Proof() store.Proof { return store.Proof{Name: Election, Token: int64(t), Holder: "n/b"} }
func (t term) Valid() bool        { return true }

// sole elects its only candidate again and again, two seconds apart.
type sole struct{ terms term }

func (e *sole) Campaign(ctx context.Context, c control.Candidacy) error {
	for c.Name == Election && ctx.Err() == nil {
		e.terms++
		_ = c.Lead(ctx, e.terms)
		select {
		case <-time.After(2 * time.Second):
		case <-ctx.Done():
		}
	}
	return nil
}

// running runs a scheduler around a test of its work.
func running(t *testing.T, c *counting, test func(s *Scheduler, e *sole)) {
	synctest.Test(t, func(t *testing.T) {
		e := &sole{}
		s := New(Deps{Log: zap.NewNop(), Reg: prometheus.NewRegistry(), Elector: func() elector { return e },
			Store: func() (messages, error) { return c, nil }})
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- s.Run(ctx) }()
		test(s, e)
		if err := s.Drain(t.Context()); err != nil {
			t.Errorf("Drain: %v", err)
		}
		synctest.Wait()
		select {
		case err := <-done:
			t.Errorf("Run ended with the drain: %v", err)
		default:
		}
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
}

func TestTheLeaderExpiresRevocationsEveryHour(t *testing.T) {
	c := &counting{}
	running(t, c, func(s *Scheduler, _ *sole) {
		time.Sleep(first + 2*every + time.Second)
		c.fail(errors.New("away"))
		time.Sleep(every)
		synctest.Wait()
		if len(c.calls) != 4 || c.calls[3] != term(1).Proof() {
			t.Errorf("rounds %v, want 4 of the first term: a failure does not end it", c.calls)
		}
		if got := testutil.ToFloat64(s.expired); got != 9 {
			t.Errorf("%v counted, want 9: a failed round counts nothing", got)
		}
	})
}

func TestAFencedLeaderStandsDown(t *testing.T) {
	c := &counting{err: fmt.Errorf("token 1: %w", store.ErrFenced)}
	running(t, c, func(s *Scheduler, e *sole) {
		time.Sleep(first + time.Second)
		c.fail(nil)
		time.Sleep(first + 2*time.Second)
		synctest.Wait()
		if len(c.calls) != 2 || c.calls[1] != term(2).Proof() || e.terms != 2 {
			t.Errorf("rounds %v in %d terms", c.calls, e.terms)
		}
		if got := testutil.ToFloat64(s.runs.WithLabelValues("expire", "fenced")); got != 1 {
			t.Errorf("%v fenced rounds counted", got)
		}
	})
}

func TestWithoutAControlPlane(t *testing.T) {
	s := New(Deps{Log: zap.NewNop(), Reg: prometheus.NewRegistry(), Elector: func() elector { return nil }})
	if err := s.Run(t.Context()); err == nil {
		t.Error("Run without an elector works")
	}
}

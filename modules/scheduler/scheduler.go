package scheduler

import (
	"context"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/zap"

	"github.com/imdhq/imd/pkg/module"
	"github.com/imdhq/imd/pkg/obs"
)

const (
	// every is how often expired revocations are removed.
	every = time.Hour
	// first is how long after the start the first round comes.
	first = time.Minute
	// limit is how long one round may take.
	limit = 10 * time.Second
)

// expirer is what the scheduler asks of the message store.
type expirer interface {
	Expire(ctx context.Context, now time.Time) (int, error)
}

// Scheduler is the scheduler role of one node.
type Scheduler struct {
	log     *zap.Logger
	store   func() (expirer, error)
	runs    *prometheus.CounterVec
	expired prometheus.Counter
}

// Spec declares the scheduler role.
func Spec() module.Spec {
	return module.Spec{
		Name:  "scheduler",
		Role:  true,
		Needs: []string{"controlplane", "storage"},
		New: func(env *module.Env) (module.Module, error) {
			return New(env.Log, env.Reg, func() (expirer, error) { return env.Store.Messages() }), nil
		},
	}
}

// New makes the role; nothing runs yet.
func New(log *zap.Logger, reg prometheus.Registerer, store func() (expirer, error)) *Scheduler {
	s := &Scheduler{log: log, store: store,
		runs: prometheus.NewCounterVec(prometheus.CounterOpts{Namespace: "imd", Subsystem: "scheduler", Name: "runs_total",
			Help: "Rounds of a job."}, []string{"job", "result"}),
		expired: prometheus.NewCounter(prometheus.CounterOpts{Namespace: "imd", Subsystem: "scheduler", Name: "expired_total",
			Help: "Revocations removed because no token can need them any more."}),
	}
	reg.MustRegister(s.runs, s.expired)
	return s
}

// Start has nothing to open.
func (s *Scheduler) Start(context.Context) error { return nil }

// Run works until ctx is done.
func (s *Scheduler) Run(ctx context.Context) error {
	next := time.NewTimer(first)
	defer next.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-next.C:
			s.expire(ctx)
			next.Reset(every)
		}
	}
}

func (s *Scheduler) expire(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	n := 0
	st, err := s.store()
	if err == nil {
		n, err = st.Expire(ctx, time.Now())
	}
	if err != nil {
		s.runs.WithLabelValues("expire", "failed").Inc()
		s.log.Warn("expired revocations stay until the next round", obs.Err(err))
		return
	}
	s.runs.WithLabelValues("expire", "ok").Inc()
	s.expired.Add(float64(n))
}

// Drain has nothing to hand over.
func (s *Scheduler) Drain(context.Context) error { return nil }

// Close has nothing to free.
func (s *Scheduler) Close() error { return nil }

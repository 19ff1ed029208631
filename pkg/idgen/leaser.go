package idgen

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	mathrand "math/rand/v2"
	"sync"
	"time"

	"go.uber.org/zap"

	"github.com/imdhq/imd/pkg/backoff"
	"github.com/imdhq/imd/pkg/control"
	"github.com/imdhq/imd/pkg/im"
	"github.com/imdhq/imd/pkg/store"
)

const (
	storeTTL    = time.Minute
	storeRenew  = 20 * time.Second
	storeRetry  = time.Second      // between renewals that failed
	storeMargin = 10 * time.Second // a lease counts as lost this long before its end
)

// Fallback leases worker numbers from First, and from Then while First cannot
// be reached. The numbers of the two must be different ones.
type Fallback struct {
	First, Then control.WorkerLeaser
	Log         *zap.Logger
}

var _ control.WorkerLeaser = Fallback{}

// Lease is control.WorkerLeaser's. It asks Then only if First failed by itself,
// not because no number is free or usable failed.
func (f Fallback) Lease(ctx context.Context, usable func(context.Context, int) (bool, error)) (control.WorkerLease, error) {
	var asked error
	l, err := f.First.Lease(ctx, func(ctx context.Context, worker int) (ok bool, err error) {
		ok, asked = usable(ctx, worker)
		return ok, asked
	})
	if err == nil || asked != nil || errors.Is(err, control.ErrNoWorker) || ctx.Err() != nil {
		return l, err
	}
	f.Log.Warn("worker numbers cannot be leased from etcd; taking one of the message store", zap.Error(err))
	l, then := f.Then.Lease(ctx, usable)
	if then != nil {
		return nil, errors.Join(then, err)
	}
	return l, nil
}

// StoreLeaser leases the worker numbers below store.FallbackWorkers from the
// message store.
type StoreLeaser struct {
	Numbers store.Workers
	Node    im.NodeID // for people who look into the store
	Log     *zap.Logger
}

var _ control.WorkerLeaser = StoreLeaser{}

// Lease is control.WorkerLeaser's. It begins at a random number, so that many
// nodes that lost etcd together rarely meet.
func (s StoreLeaser) Lease(ctx context.Context, usable func(context.Context, int) (bool, error)) (control.WorkerLease, error) {
	l := &storeLease{leaser: s, holder: string(s.Node) + " " + rand.Text(), done: make(chan struct{})}
	begin := mathrand.IntN(store.FallbackWorkers)
	for i := range store.FallbackWorkers {
		l.worker = (begin + i) % store.FallbackWorkers
		ok, err := usable(ctx, l.worker)
		if err == nil && ok {
			ok, err = l.call(ctx, s.Numbers.TakeWorker)
		}
		if err != nil {
			return nil, fmt.Errorf("idgen: lease worker number %d from the store: %w", l.worker, err)
		}
		if ok {
			ctx, l.stop = context.WithCancel(ctx)
			go l.keep(ctx)
			return l, nil
		}
	}
	return nil, control.ErrNoWorker
}

// storeLease is one number that is held.
type storeLease struct {
	leaser StoreLeaser
	holder string // tells it from every other lease
	worker int
	stop   context.CancelFunc
	done   chan struct{} // closed when keep has ended

	mu   sync.Mutex
	sent time.Time // of the last good call
	lost bool
}

// call takes or renews the number and notes when that was asked for.
func (l *storeLease) call(ctx context.Context, do func(context.Context, int, string, time.Duration) (bool, error)) (bool, error) {
	ctx, cancel := context.WithTimeout(ctx, storeLimit)
	defer cancel()
	sent := time.Now()
	ok, err := do(ctx, l.worker, l.holder, storeTTL)
	l.mu.Lock()
	defer l.mu.Unlock()
	if err == nil && ok {
		l.sent = sent
	}
	return ok, err
}

// keep renews until ctx is done or the lease is lost.
func (l *storeLease) keep(ctx context.Context) {
	defer close(l.done)
	pause := storeRenew
	for backoff.Sleep(ctx, pause) == nil {
		ok, err := l.call(ctx, l.leaser.Numbers.RenewWorker)
		switch {
		case err != nil:
			l.leaser.Log.Debug("the store's lease of a worker number could not be renewed", zap.Error(err))
			pause = storeRetry
		case !ok:
			l.lose()
			l.leaser.Log.Warn("the store's lease of a worker number ended", zap.Int("worker", l.worker))
			return
		default:
			pause = storeRenew
		}
	}
}

func (l *storeLease) lose() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.lost = true
}

// Worker is the number.
func (l *storeLease) Worker() int { return l.worker }

// Valid compares with the monotonic clock.
func (l *storeLease) Valid() bool { return time.Now().Before(l.Until()) }

// Until is counted from the sending of the last good renewal; it is in the past
// once the lease is lost.
func (l *storeLease) Until() time.Time {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.lost {
		return time.Time{}
	}
	return l.sent.Add(storeTTL - storeMargin)
}

// Release ends the keeper and frees the number. If the store does not answer,
// the lease ends by itself.
func (l *storeLease) Release(ctx context.Context) error {
	l.stop()
	<-l.done
	l.lose()
	ctx, cancel := context.WithTimeout(ctx, storeLimit)
	defer cancel()
	if err := l.leaser.Numbers.FreeWorker(ctx, l.worker, l.holder); err != nil {
		return fmt.Errorf("idgen: free worker number %d: %w", l.worker, err)
	}
	return nil
}

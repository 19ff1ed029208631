package etcd

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	mathrand "math/rand/v2"
	"strconv"
	"strings"
	"sync"
	"time"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"

	"github.com/imdhq/imd/pkg/backoff"
	"github.com/imdhq/imd/pkg/control"
	"github.com/imdhq/imd/pkg/im"
)

// Worker numbers that are leased here. Lower ones are kept for leases of the
// message store.
const (
	firstWorker = 64
	lastWorker  = 1023
)

// leaser hands out worker numbers.
type leaser struct {
	client *clientv3.Client
	prefix string
	node   im.NodeID
	timing timing
	log    *zap.Logger

	ctx    context.Context // ends with the driver; the keepers live by it
	cancel context.CancelFunc
	wg     sync.WaitGroup // keepers
}

func newLeaser(c *clientv3.Client, prefix string, node im.NodeID, t timing, log *zap.Logger) *leaser {
	ctx, cancel := context.WithCancel(context.Background())
	return &leaser{client: c, prefix: prefix, node: node, timing: t, log: log, ctx: ctx, cancel: cancel}
}

// close ends all keepers. Leases that were not released expire.
func (l *leaser) close() {
	l.cancel()
	l.wg.Wait()
}

// lease takes a number that nobody holds and that usable accepts. It begins at
// a random place, so that many nodes starting together rarely meet.
func (l *leaser) lease(ctx context.Context, usable func(context.Context, int) (bool, error)) (control.WorkerLease, error) {
	if err := l.ctx.Err(); err != nil {
		return nil, errEnded
	}
	taken, err := l.taken(ctx)
	if err != nil {
		return nil, err
	}
	w := &workerLease{leaser: l, token: rand.Text()}
	const all = lastWorker - firstWorker + 1
	begin := mathrand.IntN(all)
	for i := range all {
		n := firstWorker + (begin+i)%all
		if taken[n] {
			continue
		}
		ok, err := usable(ctx, n)
		if err == nil && ok {
			ok, err = w.take(ctx, n)
		}
		if err != nil {
			w.drop(ctx)
			return nil, err
		}
		if ok {
			w.keep(ctx)
			return w, nil
		}
	}
	w.drop(ctx)
	return nil, control.ErrNoWorker
}

// taken lists the numbers that are held.
func (l *leaser) taken(ctx context.Context) (map[int]bool, error) {
	ctx, cancel := context.WithTimeout(ctx, callLimit)
	defer cancel()
	resp, err := l.client.Get(ctx, l.prefix, clientv3.WithPrefix(), clientv3.WithKeysOnly())
	if err != nil {
		return nil, fmt.Errorf("control: read the worker numbers: %w", err)
	}
	m := make(map[int]bool, len(resp.Kvs))
	for _, kv := range resp.Kvs {
		if n, err := strconv.Atoi(strings.TrimPrefix(string(kv.Key), l.prefix)); err == nil {
			m[n] = true
		}
	}
	return m, nil
}

// workerLease is one number that is held. The token in its key tells it from
// every other holder.
type workerLease struct {
	leaser *leaser
	token  string
	worker int
	id     clientv3.LeaseID
	stop   context.CancelFunc
	done   chan struct{} // closed when the keeper has ended

	mu   sync.Mutex
	sent time.Time // of the last good renewal
	ttl  time.Duration
	lost bool
}

// take writes the key of number n if it is absent, under a lease that the
// first try grants.
func (w *workerLease) take(ctx context.Context, n int) (bool, error) {
	l := w.leaser
	ctx, cancel := context.WithTimeout(ctx, callLimit)
	defer cancel()
	if w.id == 0 {
		sent := time.Now()
		g, err := l.client.Grant(ctx, seconds(l.timing.workerTTL))
		if err != nil {
			return false, fmt.Errorf("control: grant a worker lease: %w", err)
		}
		w.id, w.sent, w.ttl = g.ID, sent, time.Duration(g.TTL)*time.Second
	}
	key := l.prefix + strconv.Itoa(n)
	resp, err := l.client.Txn(ctx).
		If(clientv3.Compare(clientv3.CreateRevision(key), "=", 0)).
		Then(clientv3.OpPut(key, w.value(), clientv3.WithLease(w.id))).
		Commit()
	if err != nil {
		return false, fmt.Errorf("control: take worker number %d: %w", n, err) // if it was taken, drop frees it
	}
	w.worker = n
	return resp.Succeeded, nil
}

func (w *workerLease) value() string { return string(w.leaser.node) + " " + w.token }

// drop gives up what take has granted, for a lease that was not used.
func (w *workerLease) drop(ctx context.Context) {
	if w.id == 0 {
		return
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), revokeLimit)
	defer cancel()
	if _, err := w.leaser.client.Revoke(ctx, w.id); err != nil {
		w.leaser.log.Debug("a worker lease could not be revoked and will expire", zap.Error(err))
	}
}

// keep starts the keeper: it renews until ctx, the driver or the lease ends.
func (w *workerLease) keep(ctx context.Context) {
	ctx, w.stop = context.WithCancel(ctx)
	undo := context.AfterFunc(w.leaser.ctx, w.stop)
	w.done = make(chan struct{})
	w.leaser.wg.Go(func() {
		defer close(w.done)
		defer undo()
		w.run(ctx)
	})
}

// run renews three times a TTL. While etcd is away it tries the same lease
// again and again: if etcd comes back in time, nothing was lost.
func (w *workerLease) run(ctx context.Context) {
	w.mu.Lock()
	ttl, looked := w.ttl, w.sent
	w.mu.Unlock()
	pause := min(w.leaser.timing.workerRenew, ttl/3)
	for backoff.Sleep(ctx, pause) == nil {
		sent, ttl, err := renew(ctx, w.leaser.client, int64(w.id))
		if err == nil && time.Since(looked) >= w.leaser.timing.check {
			if err = w.look(ctx); err == nil {
				looked = time.Now()
			}
		}
		switch {
		case ctx.Err() != nil:
			return
		case errors.Is(err, rpctypes.ErrLeaseNotFound):
			w.mu.Lock()
			w.lost = true
			w.mu.Unlock()
			w.leaser.log.Warn("the lease of a worker number ended", zap.Int("worker", w.worker))
			return
		case err != nil:
			w.leaser.log.Debug("the lease of a worker number could not be renewed", zap.Error(err))
			pause = w.leaser.timing.retry
		default:
			w.mu.Lock()
			w.sent, w.ttl = sent, ttl
			w.mu.Unlock()
			pause = min(w.leaser.timing.workerRenew, ttl/3)
		}
	}
}

// look reads the key. If it is gone or another's, the lease is as good as gone.
func (w *workerLease) look(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, callLimit)
	defer cancel()
	resp, err := w.leaser.client.Get(ctx, w.leaser.prefix+strconv.Itoa(w.worker))
	if err != nil {
		return fmt.Errorf("read the key of worker %d: %w", w.worker, err)
	}
	if len(resp.Kvs) == 0 || string(resp.Kvs[0].Value) != w.value() {
		return fmt.Errorf("the key of worker %d is not ours: %w", w.worker, rpctypes.ErrLeaseNotFound)
	}
	return nil
}

// Worker is the number.
func (w *workerLease) Worker() int { return w.worker }

// Valid compares with the monotonic clock.
func (w *workerLease) Valid() bool { return time.Now().Before(w.Until()) }

// Until is counted from the sending of the last good renewal; it is in the past
// once the lease is lost.
func (w *workerLease) Until() time.Time {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.lost {
		return time.Time{}
	}
	return w.sent.Add(w.ttl - w.leaser.timing.workerSafe)
}

// Release ends the keeper and revokes the lease. If etcd does not answer, the
// lease ends by itself.
func (w *workerLease) Release(ctx context.Context) error {
	w.stop()
	<-w.done
	w.mu.Lock()
	w.lost = true
	w.mu.Unlock()
	ctx, cancel := context.WithTimeout(ctx, callLimit)
	defer cancel()
	_, err := w.leaser.client.Revoke(ctx, w.id)
	if err != nil && !errors.Is(err, rpctypes.ErrLeaseNotFound) {
		return fmt.Errorf("control: release worker number %d: %w", w.worker, err)
	}
	return nil
}

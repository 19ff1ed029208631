package etcd

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"go.etcd.io/etcd/api/v3/mvccpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"

	"github.com/imdhq/imd/pkg/backoff"
	"github.com/imdhq/imd/pkg/control"
	"github.com/imdhq/imd/pkg/store"
)

const (
	purposeLimit = 256              // bytes
	watchLimit   = 15 * time.Second // then the queue is read again: a watch may be dead without a sign
)

// locker hands out locks. Each holder or waiter of a lock has a key of its own
// under a lease of its own; who has the lowest create revision, holds it.
type locker struct {
	client *clientv3.Client
	root   string
	timing timing
	who    *elector // knows what this process says of itself
	log    *zap.Logger

	ctx    context.Context // ends with the driver; the keepers live by it
	cancel context.CancelFunc
	wg     sync.WaitGroup // keepers

	mu    sync.Mutex
	count control.LockStats
}

func newLocker(c *clientv3.Client, root string, t timing, who *elector, log *zap.Logger) *locker {
	ctx, cancel := context.WithCancel(context.Background())
	return &locker{client: c, root: root, timing: t, who: who, log: log, ctx: ctx, cancel: cancel}
}

// close ends all keepers. Locks that were not given up end with their leases.
func (l *locker) close() {
	l.cancel()
	l.wg.Wait()
}

func (l *locker) counted(f func(*control.LockStats)) {
	l.mu.Lock()
	defer l.mu.Unlock()
	f(&l.count)
}

func (l *locker) stats(s *control.Stats) { l.counted(func(c *control.LockStats) { s.Locks = *c }) }

// lock waits for a lock. A place in the queue that was lost while waiting is
// taken anew, at the end.
func (l *locker) lock(ctx context.Context, r control.LockRequest) (control.Lock, error) {
	if err := control.CheckName(r.Name); err != nil {
		return nil, err
	}
	if len(r.Purpose) > purposeLimit {
		return nil, fmt.Errorf("control: the purpose of lock %q has %d bytes, more than %d", r.Name, len(r.Purpose), purposeLimit)
	}
	select {
	case <-l.who.known: // who we are belongs into the key
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	l.counted(func(c *control.LockStats) { c.Waiting++ })
	defer l.counted(func(c *control.LockStats) { c.Waiting-- })
	for {
		h, err := l.enqueue(ctx, r)
		if err != nil {
			return nil, err
		}
		if err = h.await(ctx); err == nil {
			h.count()
			return h, nil
		}
		_ = h.Unlock(context.WithoutCancel(ctx)) // it ends by itself otherwise
		if !errors.Is(err, control.ErrLockLost) || ctx.Err() != nil {
			return nil, err
		}
		l.log.Warn("a place in the queue of a lock was lost; waiting anew", zap.String("lock", r.Name))
	}
}

// enqueue makes a key under a fresh lease, and keeps the lease.
func (l *locker) enqueue(ctx context.Context, r control.LockRequest) (*held, error) {
	ctx, cancel := context.WithTimeout(ctx, callLimit)
	defer cancel()
	sent := time.Now()
	g, err := l.client.Grant(ctx, seconds(l.timing.ttl))
	if err != nil {
		return nil, fmt.Errorf("control: ask for lock %q: %w", r.Name, err)
	}
	me := l.who.record(r.Name)
	b, err := json.Marshal(control.LockInfo{Name: r.Name, Node: me.Node, BootID: me.BootID, Purpose: r.Purpose, Asked: me.Since})
	if err != nil {
		return nil, err
	}
	h := &held{
		locker: l, name: r.Name, queue: l.root + "locks/" + r.Name + "/", id: g.ID,
		sent: sent, ttl: time.Duration(g.TTL) * time.Second, done: make(chan struct{}), kept: make(chan struct{}),
	}
	h.key = h.queue + strconv.FormatInt(int64(g.ID), 16)
	h.keep()
	resp, err := l.client.Put(ctx, h.key, string(b), clientv3.WithLease(g.ID))
	if err != nil {
		_ = h.Unlock(context.WithoutCancel(ctx)) // the key goes with the lease
		return nil, fmt.Errorf("control: ask for lock %q: %w", r.Name, err)
	}
	h.create, h.cluster = resp.Header.Revision, clusterID(resp.Header.ClusterId)
	return h, nil
}

// list is control.Locker's Locks.
func (l *locker) list(ctx context.Context) ([]control.LockInfo, error) {
	ctx, cancel := context.WithTimeout(ctx, callLimit)
	defer cancel()
	resp, err := l.client.Get(ctx, l.root+"locks/", clientv3.WithPrefix())
	if err != nil {
		return nil, fmt.Errorf("control: read the locks: %w", err)
	}
	return locksOf(resp.Kvs), nil
}

// locksOf reads all queues. The first of each holds the lock.
func locksOf(kvs []*mvccpb.KeyValue) []control.LockInfo {
	out := make([]control.LockInfo, 0, len(kvs))
	for _, kv := range kvs {
		var i control.LockInfo
		if json.Unmarshal(kv.Value, &i) == nil {
			i.Token = kv.CreateRevision
			out = append(out, i)
		}
	}
	slices.SortFunc(out, func(a, b control.LockInfo) int {
		if c := strings.Compare(a.Name, b.Name); c != 0 {
			return c
		}
		return int(a.Token - b.Token)
	})
	for i := range out {
		out[i].Held = i == 0 || out[i-1].Name != out[i].Name
	}
	return out
}

// held is a place in the queue of a lock, and the lock itself once it is the
// first.
type held struct {
	locker  *locker
	name    string
	queue   string // prefix of the keys of this lock
	key     string
	id      clientv3.LeaseID
	create  int64
	cluster string
	stop    context.CancelFunc
	kept    chan struct{} // closed when the keeper has ended
	done    chan struct{} // closed when the lock is lost or given up

	mu      sync.Mutex
	sent    time.Time // of the last good renewal
	ttl     time.Duration
	over    bool
	counted bool // as held
}

// keep starts the keeper: it renews until the lock is given up or lost.
func (h *held) keep() {
	ctx, stop := context.WithCancel(h.locker.ctx)
	h.stop = stop
	first := min(h.locker.timing.renew, h.ttl/3)
	h.locker.wg.Go(func() {
		defer close(h.kept)
		h.run(ctx, first)
	})
}

func (h *held) run(ctx context.Context, pause time.Duration) {
	t := h.locker.timing
	for backoff.Sleep(ctx, pause) == nil {
		sent, ttl, err := renew(ctx, h.locker.client, int64(h.id))
		switch {
		case ctx.Err() != nil:
			return
		case err == nil:
			h.renewed(sent, ttl)
			pause = min(t.renew, ttl/3)
		case errors.Is(err, rpctypes.ErrLeaseNotFound), !h.Valid():
			h.lose(true)
			return
		default:
			h.locker.log.Debug("the lease of a lock could not be renewed", zap.Error(err))
			pause = t.retry
		}
	}
}

func (h *held) renewed(sent time.Time, ttl time.Duration) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.sent, h.ttl = sent, ttl
}

// lose ends the lock. It counts as lost if it was held and not given up.
func (h *held) lose(lost bool) {
	h.mu.Lock()
	was, counted := h.over, h.counted
	h.over = true
	if !was {
		close(h.done)
	}
	h.counted = false
	h.mu.Unlock()
	if !counted {
		return
	}
	h.locker.counted(func(c *control.LockStats) {
		c.Held--
		if lost {
			c.Lost++
		}
	})
	if lost {
		h.locker.log.Warn("a lock was lost", zap.String("lock", h.name))
	}
}

// count counts the lock as held, unless it was lost in this moment.
func (h *held) count() {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.counted = !h.over; h.counted {
		h.locker.counted(func(c *control.LockStats) { c.Held++ })
	}
}

// await waits until this place is the first, and makes sure that it still
// exists then: the lease may have ended during the wait.
func (h *held) await(ctx context.Context) error {
	for attempt := 0; ; attempt++ {
		before, rev, err := h.predecessor(ctx)
		if err == nil && before == "" {
			return h.verify(ctx)
		}
		if err == nil {
			attempt = 0
			h.gone(ctx, before, rev)
		} else {
			_ = pauses.Sleep(ctx, attempt) // ctx is looked at below
		}
		select {
		case <-h.done:
			return fmt.Errorf("lock %q: %w", h.name, control.ErrLockLost)
		case <-ctx.Done():
			return fmt.Errorf("control: wait for lock %q: %w", h.name, errors.Join(ctx.Err(), err))
		default:
		}
	}
}

// predecessor is the key just before ours in the queue; "" = ours is the first.
func (h *held) predecessor(ctx context.Context) (key string, rev int64, err error) {
	ctx, cancel := context.WithTimeout(ctx, callLimit)
	defer cancel()
	opts := append(clientv3.WithLastCreate(), clientv3.WithMaxCreateRev(h.create-1), clientv3.WithKeysOnly())
	resp, err := h.locker.client.Get(ctx, h.queue, opts...)
	if err != nil {
		return "", 0, fmt.Errorf("read the queue: %w", err)
	}
	if len(resp.Kvs) == 0 {
		return "", resp.Header.Revision, nil
	}
	return string(resp.Kvs[0].Key), resp.Header.Revision, nil
}

// gone waits until the key, which was there at rev, is deleted, the watch breaks,
// or some time is over; the caller reads the queue again in each case. Like
// follower.follow it watches from a revision that is reached.
func (h *held) gone(ctx context.Context, key string, rev int64) {
	ctx, cancel := context.WithTimeout(clientv3.WithRequireLeader(ctx), watchLimit)
	defer cancel()
	events := h.locker.client.Watch(ctx, key, clientv3.WithRev(rev), clientv3.WithFilterPut())
	for {
		select {
		case resp, ok := <-events:
			if !ok || resp.Err() != nil {
				_ = backoff.Sleep(ctx, h.locker.timing.retry) // or a broken watch would be opened without end
				return
			}
			if len(resp.Events) > 0 {
				return
			}
		case <-h.done:
			return
		}
	}
}

// verify renews the lease and reads the key, in this order, so that both existed
// when the lock was ours.
func (h *held) verify(ctx context.Context) error {
	sent, ttl, err := renew(ctx, h.locker.client, int64(h.id))
	if err == nil {
		h.renewed(sent, ttl)
		return h.confirm(ctx)
	}
	if errors.Is(err, rpctypes.ErrLeaseNotFound) {
		err = control.ErrLockLost
	}
	return fmt.Errorf("lock %q: %w", h.name, err)
}

// confirm reads the key. Errors: ErrLockLost.
func (h *held) confirm(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, callLimit)
	defer cancel()
	resp, err := h.locker.client.Get(ctx, h.key)
	if err != nil {
		return fmt.Errorf("control: read lock %q: %w", h.name, err)
	}
	if len(resp.Kvs) == 0 || resp.Kvs[0].CreateRevision != h.create {
		h.lose(true)
		return fmt.Errorf("lock %q: %w", h.name, control.ErrLockLost)
	}
	return nil
}

// Token is the create revision of the key.
func (h *held) Token() int64 { return h.create }

// Valid compares with the monotonic clock.
func (h *held) Valid() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return !h.over && time.Since(h.sent) < h.ttl-h.locker.timing.margin
}

// Done is closed when the lock is lost or given up.
func (h *held) Done() <-chan struct{} { return h.done }

// Put is control.Lock's; the key stands below /imd/<cluster>/guarded/.
func (h *held) Put(ctx context.Context, key, value string) error {
	ctx, cancel := context.WithTimeout(ctx, callLimit)
	defer cancel()
	resp, err := h.locker.client.Txn(ctx).
		If(clientv3.Compare(clientv3.CreateRevision(h.key), "=", h.create)).
		Then(clientv3.OpPut(h.locker.root+"guarded/"+key, value)).
		Commit()
	if err != nil {
		return fmt.Errorf("control: write %q under lock %q: %w", key, h.name, err)
	}
	if !resp.Succeeded {
		h.lose(true)
		return fmt.Errorf("lock %q: %w", h.name, control.ErrLockLost)
	}
	return nil
}

// Fence is control.Lock's.
func (h *held) Fence(ctx context.Context, fences store.Fences) (store.Proof, error) {
	claim := store.FenceClaim{Name: "lock/" + h.name, Holder: h.locker.who.holder(), Cluster: h.cluster, Revision: h.create}
	for range 3 {
		f, err := fences.ClaimFence(ctx, claim)
		if err != nil && !errors.Is(err, store.ErrFenced) {
			return store.Proof{}, fmt.Errorf("control: fence lock %q: %w", h.name, err)
		}
		if lost := h.confirm(ctx); lost != nil {
			return store.Proof{}, lost
		}
		if err == nil {
			return f.Proof(), nil
		}
		claim.Over = f.Token // the lock is ours all the same: etcd went back
	}
	return store.Proof{}, fmt.Errorf("control: fence lock %q: %w", h.name, store.ErrFenced)
}

// Unlock is control.Lock's.
func (h *held) Unlock(ctx context.Context) error {
	h.stop()
	<-h.kept
	h.lose(false)
	ctx, cancel := context.WithTimeout(ctx, callLimit)
	defer cancel()
	_, err := h.locker.client.Revoke(ctx, h.id)
	if err != nil && !errors.Is(err, rpctypes.ErrLeaseNotFound) {
		return fmt.Errorf("control: give up lock %q: %w", h.name, err)
	}
	return nil
}

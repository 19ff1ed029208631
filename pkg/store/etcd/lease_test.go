package etcd

import (
	"context"
	"errors"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/imdhq/imd/pkg/im"
)

// hanging grants leases when it is let go, and counts how often it is asked.
type hanging struct {
	clientv3.Lease
	let   chan struct{}
	mu    sync.Mutex
	calls int
	fails error
}

func (h *hanging) Grant(ctx context.Context, _ int64) (*clientv3.LeaseGrantResponse, error) {
	h.mu.Lock()
	h.calls++
	n, fails := h.calls, h.fails
	h.mu.Unlock()
	select {
	case <-h.let:
		return &clientv3.LeaseGrantResponse{ID: clientv3.LeaseID(n)}, fails
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

func hangingRoutes() (*Routes, *hanging) {
	h := &hanging{let: make(chan struct{})}
	r := &Routes{client: &clientv3.Client{Lease: h}, now: time.Now}
	r.leases.of = map[im.SessionID]share{}
	return r, h
}

// While etcd hangs, who waits for a lease of either kind leaves when its own time is
// over, and nobody's look-ups of leases wait.
func TestALeaseThatHangs(t *testing.T) {
	for name, get := range map[string]func(*Routes, context.Context) error{
		"routes": func(r *Routes, ctx context.Context) error { _, err := r.lease(ctx, "s"); return err },
		"guards": func(r *Routes, ctx context.Context) error { _, err := r.longLease(ctx); return err },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r, h := hangingRoutes()
				var all sync.WaitGroup
				begun := time.Now()
				for i := range 50 {
					wait := 2 * callTime
					if i > 0 {
						wait = time.Duration(i) * 10 * time.Millisecond
					}
					all.Go(func() {
						ctx, cancel := context.WithTimeout(t.Context(), wait)
						defer cancel()
						err := get(r, ctx)
						if took := time.Since(begun); err == nil || took > min(wait, callTime) {
							t.Errorf("who had %v got %v after %v", wait, err, took)
						}
					})
					synctest.Wait()
				}
				r.leases.drop(77)
				if id := r.leases.forLong(time.Time{}); id != 0 || time.Since(begun) != 0 {
					t.Errorf("a look at the leases gave %d after %v", id, time.Since(begun))
				}
				all.Wait()
				if h.calls != 1 {
					t.Errorf("%d calls for one lease", h.calls)
				}
			})
		})
	}
}

// All who wait share one lease, as many as it has room for, and one failure; and when
// the one who asks gives up, the next one asks.
func TestALeaseIsShared(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r, h := hangingRoutes()
		var all sync.WaitGroup
		hasty, cancel := context.WithCancel(t.Context())
		all.Go(func() {
			if _, err := r.lease(hasty, "hasty"); !errors.Is(err, context.Canceled) {
				t.Errorf("who gave up got %v", err)
			}
		})
		synctest.Wait()
		ids := make([]clientv3.LeaseID, perLease+1)
		for i := range ids {
			all.Go(func() {
				var err error
				if ids[i], err = r.lease(t.Context(), im.SessionID(rune('a'+i))); err != nil {
					t.Error(err)
				}
			})
		}
		synctest.Wait()
		cancel()
		synctest.Wait()
		close(h.let)
		all.Wait()
		have := map[clientv3.LeaseID]int{}
		for _, id := range ids {
			have[id]++
		}
		if have[2] != perLease || have[3] != 1 || h.calls != 3 {
			t.Errorf("the sessions have the leases %v after %d calls", have, h.calls)
		}
		h.fails = errors.New("no")
		if _, err := r.longLease(t.Context()); !errors.Is(err, h.fails) {
			t.Errorf("a failed grant gave %v", err)
		}
		h.fails = nil
		if id, err := r.longLease(t.Context()); err != nil || id != 5 {
			t.Errorf("the one for long is %d, %v", id, err)
		}
		time.Sleep(longTime + time.Second)
		if id, err := r.longLease(t.Context()); err != nil || id != 6 {
			t.Errorf("an hour later it is %d, %v", id, err)
		}
	})
}

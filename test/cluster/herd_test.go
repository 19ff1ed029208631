package cluster

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/imdhq/imd/pkg/control"
	"github.com/imdhq/imd/pkg/control/etcd"
	"github.com/imdhq/imd/pkg/testenv"
)

// A hundred nodes with five keys each (record, report of settings, worker number,
// two locks) register at the same moment, with and without jitter: all
// come through, and etcd goes on taking writes. Their leases are long, so that none
// ends because the machine has other work.
func TestHundredNodesRegisterAtOnce(t *testing.T) {
	for name, jitter := range map[string]time.Duration{"all at once": 0, "spread over 2 s": 2 * time.Second} {
		t.Run(name, func(t *testing.T) {
			const nodes, keys = 100, 5
			c := testenv.StartEtcd(t, 3)
			ctx, cancel := context.WithCancel(context.Background())
			all := make([]*process, nodes)
			t.Cleanup(func() { // together, as they began
				cancel()
				var wg sync.WaitGroup
				for _, p := range all {
					if p != nil {
						wg.Go(p.stop)
					}
				}
				wg.Wait()
			})
			var refused atomic.Int32
			began := time.Now()
			var wg sync.WaitGroup
			for i := range nodes {
				wg.Go(func() {
					id := fmt.Sprintf("n%02d", i)
					p, err := launch(options{id: id, urls: c.URLs(), change: func(o *etcd.Options) { o.StartJitter, o.TTL = jitter, time.Minute }})
					if err == nil {
						all[i] = p
						err = take(ctx, &refused, p, id)
					}
					if err != nil {
						t.Error(err)
					}
				})
			}
			writes := make(chan []time.Duration)
			probing, stop := context.WithCancel(ctx)
			go func() { defer close(writes); writes <- probe(probing, c) }()
			wg.Wait()
			if t.Failed() {
				stop()
				<-writes
				t.FailNow()
			}
			written := func() int {
				n := 0
				for _, what := range []string{"nodes", "workers", "locks", "config_status"} {
					n += len(c.Keys("/imd/c/" + what + "/"))
				}
				return n
			}
			eventually(t, "all keys are there", 30*time.Second, func() bool { return written() == nodes*keys })
			eventually(t, "all see all", 30*time.Second, func() bool {
				return !slices.ContainsFunc(all, func(p *process) bool { return len(p.handle.View().With("gateway")) != nodes })
			})
			stop()
			t.Logf("%d nodes with %d keys each were there after %v; %d calls were made again", nodes, keys, time.Since(began).Round(time.Millisecond), refused.Load())
			report(t, "a write of another client meanwhile", <-writes)
			for _, p := range all {
				if s := p.Stats(); s.Evicted != 0 || s.Drift != 0 || s.LeaseLost != 0 {
					t.Errorf("%s: %+v", p.node.ID, s)
				}
			}
		})
	}
}

// take takes a worker number and two locks, again and again if a call finds
// etcd too busy.
func take(ctx context.Context, refused *atomic.Int32, p *process, id string) error {
	for _, take := range []func() error{
		func() error { _, err := p.Lease(ctx, anyNumber); return err },
		func() error { _, err := p.Lock(ctx, control.LockRequest{Name: "one-" + id}); return err },
		func() error { _, err := p.Lock(ctx, control.LockRequest{Name: "two-" + id}); return err },
	} {
		l := testenv.NewLimit(time.Minute)
		for err := take(); err != nil; err = take() {
			if refused.Add(1); ctx.Err() != nil || l.Over() {
				return err
			}
		}
	}
	return nil
}

// probe writes a key of its own every 20 ms and tells how long that took, until
// ctx is done.
func probe(ctx context.Context, c *testenv.Etcd) []time.Duration {
	var took []time.Duration
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
			began := time.Now()
			c.Put("/probe", fmt.Sprint(len(took)))
			took = append(took, time.Since(began))
		case <-ctx.Done():
			return took
		}
	}
}

package etcd

import (
	"context"
	"encoding/json"
	"fmt"
	"sync"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/imdhq/imd/pkg/control"
	"github.com/imdhq/imd/pkg/im"
)

const (
	drainLife    = time.Minute // of an order to drain
	leasesAtOnce = 16          // questions about leases under way
)

// Cordon keeps new work away from a node; see control.Operator.
func (d *Driver) Cordon(ctx context.Context, id im.NodeID, reason string) error {
	return d.order(ctx, string(id)+cordonSuffix, order{Node: id, Reason: reason}, 0)
}

// Uncordon lets new work go to a node again.
func (d *Driver) Uncordon(ctx context.Context, id im.NodeID) error {
	ctx, cancel := context.WithTimeout(ctx, callLimit)
	defer cancel()
	if _, err := d.client.Delete(ctx, d.follower.prefix+string(id)+cordonSuffix); err != nil {
		return fmt.Errorf("control: uncordon %s: %w", id, err)
	}
	return nil
}

// Drain makes a process stop in order; see control.Operator.
func (d *Driver) Drain(ctx context.Context, id im.NodeID, bootID, reason string) error {
	return d.order(ctx, string(id)+drainSuffix, order{Node: id, BootID: bootID, Reason: reason}, drainLife)
}

// order writes what an operator wants; life 0 = until it is deleted. Writing it
// twice is as good as once.
func (d *Driver) order(ctx context.Context, key string, o order, life time.Duration) error {
	ctx, cancel := context.WithTimeout(ctx, callLimit)
	defer cancel()
	o.At = time.Now().UTC()
	value, err := json.Marshal(o)
	if err != nil {
		return err
	}
	var opts []clientv3.OpOption
	if life > 0 {
		g, err := d.client.Grant(ctx, seconds(life))
		if err != nil {
			return fmt.Errorf("control: order for %s: %w", o.Node, err)
		}
		opts = append(opts, clientv3.WithLease(g.ID))
	}
	if _, err := d.client.Put(ctx, d.follower.prefix+key, string(value), opts...); err != nil {
		return fmt.Errorf("control: order for %s: %w", o.Node, err)
	}
	return nil
}

// obey stops this process if an operator wants it to.
func (d *Driver) obey(r replica) {
	o, ok := r.drain(d.follower.prefix, d.opts.Node)
	if ok && d.opts.Drain != nil && o.BootID == d.registrar.boot() {
		d.drain.Do(func() { d.opts.Drain(o.Reason) })
	}
}

// Leases asks how long the leases of the registered nodes have left.
func (d *Driver) Leases(ctx context.Context) map[im.NodeID]control.LeaseLeft {
	ctx, cancel := context.WithTimeout(ctx, callLimit)
	defer cancel()
	out := map[im.NodeID]control.LeaseLeft{}
	var mu sync.Mutex
	var wg sync.WaitGroup
	slots := make(chan struct{}, leasesAtOnce)
	for _, rec := range d.copied().records {
		if !rec.ok || rec.kind != recordNode || rec.lease == 0 {
			continue
		}
		slots <- struct{}{}
		wg.Go(func() {
			defer func() { <-slots }()
			resp, err := d.client.TimeToLive(ctx, clientv3.LeaseID(rec.lease))
			if err != nil || resp.TTL < 0 {
				return
			}
			mu.Lock()
			defer mu.Unlock()
			out[rec.node.ID] = control.LeaseLeft{Left: time.Duration(resp.TTL) * time.Second, TTL: time.Duration(resp.GrantedTTL) * time.Second}
		})
	}
	wg.Wait()
	return out
}

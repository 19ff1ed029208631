package drill

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/imdhq/imd/pkg/faultproxy"
	"github.com/imdhq/imd/proto/gen/adminv1"
	"github.com/imdhq/imd/proto/gen/adminv1/adminv1connect"
)

// Ports of the roles' network, ten apart, on the address of the drill.
const firstInternal, firstAdvertised = 8422, 18422

const (
	churnEvery = 2 * time.Second
	hotWriters = 4 // of a conversation while the ring changes
	hotReaders = 4
)

// network is the mesh between nodes that do not have all roles.
type network struct {
	*mesh
	nodes []*node // as the mesh numbers them
}

// newNetwork makes the network; nodes are those that it joins.
func newNetwork(nodes []*node) (w *network, err error) {
	w = &network{nodes: nodes}
	var fronts, targets []string
	for i := range nodes {
		fronts, targets = append(fronts, advertised(i)), append(targets, internal(i))
	}
	w.mesh, err = newMesh(fronts, targets, func(i int) int { return nodes[i].pid() })
	return w, err
}

// internal is where a node listens for others, advertised what others are told.
func internal(i int) string   { return fmt.Sprintf("%s:%d", loopback(), firstInternal+10*i) }
func advertised(i int) string { return fmt.Sprintf("%s:%d", loopback(), firstAdvertised+10*i) }

// cut separates a node from all others, or heals that.
func (w *network) cut(n *node, cut bool) {
	if i := slices.Index(w.nodes, n); i >= 0 {
		w.isolate(i, cut)
	}
}

// rolePartition lets nothing through between one node and the others.
func (f *fault) rolePartition(ctx context.Context) error {
	err := f.b.cutOff(ctx, f.n, true)
	hold(ctx, f.For)
	return errors.Join(err, f.b.cutOff(ctx, f.n, false))
}

// roleBlackhole takes the others and all stores from a node. Only etcd stays, and
// clients, if it has any.
func (f *fault) roleBlackhole(ctx context.Context) error {
	var errs []error
	for _, cut := range []bool{true, false} {
		errs = append(errs, f.b.cutOff(ctx, f.n, cut))
		if f.b.db != nil {
			f.b.db.cut(f.n.spec.Name, cut)
		}
		if f.b.cache != nil {
			f.b.cache.cut(f.n.spec.Name, cut)
		}
		if cut {
			hold(ctx, f.For)
		}
	}
	return errors.Join(errs...)
}

// roleSlow makes all that a node and the others say to each other later.
func (f *fault) roleSlow(ctx context.Context) error {
	late, err := time.ParseDuration(f.Level)
	if err != nil {
		return err
	}
	i := slices.Index(f.b.network.nodes, f.n)
	f.b.network.set(i, faultproxy.Mode{Delay: late})
	hold(ctx, f.For)
	f.b.network.set(i, faultproxy.Mode{})
	return nil
}

// rollingRestart restarts every node in order, one after the other.
func (f *fault) rollingRestart(ctx context.Context) error {
	var errs []error
	for _, n := range f.b.nodes {
		f.b.stop(n, n.terminate)
		errs = append(errs, n.begin())
		if ctx.Err() != nil {
			break
		}
	}
	return errors.Join(errs...)
}

// drain has another node tell one to stop. If that cannot be told, a signal does.
func (f *fault) drain(ctx context.Context) error {
	by := f.b.nodes[(slices.Index(f.b.nodes, f.n)+1)%len(f.b.nodes)]
	var told error
	f.b.stop(f.n, func() error {
		told = f.b.world.nodeCall(ctx, by, func(ctx context.Context, c adminv1connect.NodeServiceClient) error {
			_, err := c.Drain(ctx, &adminv1.DrainRequest{NodeId: f.n.spec.Name, Reason: "drill"})
			return err
		})
		if told != nil {
			return f.n.terminate()
		}
		return nil
	})
	hold(ctx, f.For)
	return errors.Join(told, f.n.begin())
}

// ringChurn takes a state node off the ring and puts it back, every two seconds,
// while a conversation is written as fast as it takes messages.
func (f *fault) ringChurn(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, f.For)
	defer cancel()
	hot, err := f.b.world.aside(ctx, f.rng, hotReaders)
	if err != nil {
		return err
	}
	var writers sync.WaitGroup
	for range hotWriters {
		writers.Go(func() {
			for ctx.Err() == nil {
				_ = f.b.world.write(ctx, hot) // what is refused under faults is written again by the next
			}
		})
	}
	var errs []error
	for on := true; hold(ctx, churnEvery); on = !on {
		errs = append(errs, f.b.cordon(ctx, f.n, on))
	}
	writers.Wait()
	heal, done := healing(ctx)
	defer done()
	return errors.Join(append(errs, f.b.cordon(heal, f.n, false))...)
}

// alive is the first node that runs, or the first.
func alive(all []*node) *node {
	for _, n := range all {
		if n.alive() {
			return n
		}
	}
	return all[0]
}

// cordon takes a node off the ring, or puts it back.
func (b *breaker) cordon(ctx context.Context, n *node, on bool) error {
	return b.world.nodeCall(ctx, alive(b.nodes), func(ctx context.Context, c adminv1connect.NodeServiceClient) error {
		var err error
		if on {
			_, err = c.Cordon(ctx, &adminv1.CordonRequest{NodeId: n.spec.Name, Reason: "drill"})
		} else {
			_, err = c.Uncordon(ctx, &adminv1.UncordonRequest{NodeId: n.spec.Name})
		}
		return err
	})
}

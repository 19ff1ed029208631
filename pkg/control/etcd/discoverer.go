package etcd

import (
	"context"
	"errors"
	"io/fs"
	"strings"
	"sync"
	"time"

	"go.uber.org/zap"

	"github.com/imdhq/imd/pkg/control"
	"github.com/imdhq/imd/pkg/im"
	"github.com/imdhq/imd/pkg/obs"
)

// probesAtOnce bounds the probes of nodes that are under way.
const probesAtOnce = 64

// discoverer carries out what discovery.step decides: it publishes views, probes
// nodes and keeps the last good list on disk. Until run it only publishes.
type discoverer struct {
	publish func(*control.View)
	ask     func(context.Context, control.Node) bool
	file    *snapshotFile // nil = not kept on disk
	log     *zap.Logger
	wake    chan struct{} // capacity 1: todo or until changed

	mu       sync.Mutex
	state    discovery
	revision int64
	stale    bool
	cluster  uint64
	todo     []control.Node // to be probed
	until    time.Time
	dirty    bool   // the file is older than the list
	secret   string // kept in the file
}

func newDiscoverer(self im.NodeID, publish func(*control.View), file *snapshotFile, log *zap.Logger) *discoverer {
	return &discoverer{
		publish: publish, ask: alive, file: file, log: log, wake: make(chan struct{}, 1),
		state: discovery{self: self},
	}
}

// listed takes in all records of the registry at a revision.
func (d *discoverer) listed(nodes []control.Node, revision int64, cluster uint64) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.revision, d.stale, d.cluster = revision, false, cluster
	if d.take(discoveryEvent{at: time.Now(), listed: &nodes}) {
		d.dirty = true
	}
	d.show()
}

// away takes in that the registry cannot be reached.
func (d *discoverer) away() {
	d.mu.Lock()
	defer d.mu.Unlock()
	yes := true
	d.stale = true
	d.take(discoveryEvent{at: time.Now(), away: &yes})
	d.show()
}

// recall publishes what a former process knew, if the file can be read. It
// returns the revision and the cluster of that.
func (d *discoverer) recall() (revision int64, cluster uint64, ok bool) {
	if d.file == nil {
		return 0, 0, false
	}
	s, err := d.file.read()
	if err != nil {
		d.log.Info("there is no usable list of nodes from before", zap.Error(err))
		return 0, 0, false
	}
	nodes := s.nodes()
	d.mu.Lock()
	defer d.mu.Unlock()
	d.revision, d.cluster, d.stale, d.secret = s.Revision, s.EtcdCluster, true, s.Secret
	d.take(discoveryEvent{at: time.Now(), known: &nodes})
	d.show()
	d.log.Warn("etcd cannot be reached; beginning with the nodes known before", zap.Int("nodes", len(nodes)),
		zap.Int64("rev", s.Revision), zap.Time("saved", s.Saved))
	return s.Revision, s.EtcdCluster, true
}

// learned keeps the secret of the cluster with the list.
func (d *discoverer) learned(secret string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.dirty = d.dirty || secret != d.secret
	d.secret = secret
}

// learnedBefore is the secret that a former process knew; "" = none is known.
func (d *discoverer) learnedBefore() string {
	d.mu.Lock()
	known := d.secret
	d.mu.Unlock()
	if known != "" || d.file == nil {
		return known
	}
	s, err := d.file.read()
	if err != nil { // the same as no file
		if !errors.Is(err, fs.ErrNotExist) {
			d.log.Warn("the secret that this node knew before cannot be read", obs.Err(err))
		}
		return ""
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.secret == "" {
		d.secret = s.Secret
	}
	return d.secret
}

// take feeds the state machine and tells whether the list changed. The caller
// holds mu.
func (d *discoverer) take(ev discoveryEvent) bool {
	var eff discoveryEffect
	d.state, eff = d.state.step(ev)
	for _, n := range eff.evicted {
		d.log.Warn("a node left without a word and does not answer", zap.String("peer", string(n.ID)), zap.String("address", addresses(n)))
	}
	if len(eff.guarded) > 0 {
		ids := make([]string, 0, len(eff.guarded))
		for _, n := range eff.guarded {
			ids = append(ids, string(n.ID))
		}
		d.log.Error("most nodes of a role vanished from the registry at once; keeping those that answer", zap.String("peers", strings.Join(ids, " ")))
	}
	d.todo = append(d.todo, eff.probe...)
	d.until = eff.until
	select {
	case d.wake <- struct{}{}:
	default:
	}
	return eff.changed
}

// show publishes. The caller holds mu, so that views come in order.
func (d *discoverer) show() {
	d.publish(&control.View{Nodes: d.state.view(), Revision: d.revision, Cluster: d.cluster, Stale: d.stale})
}

// run probes and saves until ctx is done.
func (d *discoverer) run(ctx context.Context) {
	var wg sync.WaitGroup
	defer wg.Wait()
	slots := make(chan struct{}, probesAtOnce)
	save := time.NewTicker(saveEvery)
	defer save.Stop()
	for ctx.Err() == nil {
		todo, until := d.work()
		for _, n := range todo {
			wg.Go(func() { d.probe(ctx, n, slots) })
		}
		d.await(ctx, until, save.C)
	}
	d.save()
}

// await waits for something to do.
func (d *discoverer) await(ctx context.Context, until time.Time, save <-chan time.Time) {
	var due <-chan time.Time
	if !until.IsZero() {
		t := time.NewTimer(time.Until(until))
		defer t.Stop()
		due = t.C
	}
	select {
	case <-d.wake:
	case <-save:
		d.save()
	case <-due:
		d.mu.Lock()
		defer d.mu.Unlock()
		if d.take(discoveryEvent{at: time.Now()}) {
			d.show()
		}
	case <-ctx.Done():
	}
}

func (d *discoverer) work() ([]control.Node, time.Time) {
	d.mu.Lock()
	defer d.mu.Unlock()
	todo := d.todo
	d.todo = nil
	return todo, d.until
}

func (d *discoverer) probe(ctx context.Context, n control.Node, slots chan struct{}) {
	select {
	case slots <- struct{}{}:
	case <-ctx.Done():
		return
	}
	began := time.Now()
	r := probeResult{id: n.ID, boot: n.BootID, alive: d.ask(ctx, n)}
	r.silent = !r.alive && time.Since(began) >= probeGap+probeLimit // a refusal comes sooner
	<-slots
	if ctx.Err() != nil {
		return
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.take(discoveryEvent{at: time.Now(), probed: &r}) {
		d.dirty = true
		d.show()
	}
}

// save writes the list if it is newer than the file. A list that the registry
// did not confirm is not written.
func (d *discoverer) save() {
	if d.file == nil {
		return
	}
	d.mu.Lock()
	if !d.dirty || d.stale {
		d.mu.Unlock()
		return
	}
	d.dirty = false
	s := snapshotOf(d.state.view(), d.revision, d.cluster)
	s.Secret = d.secret
	d.mu.Unlock()
	if err := d.file.write(s); err != nil {
		d.log.Warn("the list of nodes could not be written to disk; a start without etcd would not know it", zap.Error(err))
	}
}

// stats adds what discovery knows.
func (d *discoverer) stats(s *control.Stats) {
	d.mu.Lock()
	defer d.mu.Unlock()
	s.Suspects, s.Held, s.Evicted = d.state.suspects, d.state.held, d.state.evicted
}

package cluster

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/imdhq/imd/pkg/control"
	"github.com/imdhq/imd/pkg/im"
	"github.com/imdhq/imd/pkg/testenv"
)

// An old copy of the data of etcd is put back, so that revisions go back and
// what came later is gone; then an empty cluster of another id takes its place.
// Each time all nodes are listed again as they are now, nobody was evicted, the
// leader is one again, and changes are followed.
func TestRestoredEtcd(t *testing.T) {
	t.Parallel()
	c := testenv.StartEtcd(t, 3)
	journals := make([]journal, 4)
	var nodes []*process
	var ids []im.NodeID
	join := func() {
		i := len(nodes)
		ids = append(ids, im.NodeID(fmt.Sprintf("n%d", i)))
		nodes = append(nodes, start(t, options{id: string(ids[i]), urls: c.URLs(), change: kept(&journals[i], quick)}))
	}
	for range 3 {
		join()
	}
	busy(t, nodes[0], "job")
	parts := newPhases(t)
	unharmed := func() { // in the part that ends here
		t.Helper()
		slow := parts.next()
		for i := range nodes {
			journals[i].always(t, slow, string(ids[i]), ids...)
		}
	}
	set := func(value int) { c.Put("/imd/c/config/count", fmt.Sprintf(`{"all":{"count.n":"%d"}}`, value)) }
	weight, value := 1, 3
	reweigh := func() {
		t.Helper()
		weight++
		nodes[1].node.Weight = weight
		if err := nodes[1].announce(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	current := func(when string, limit time.Duration) {
		t.Helper()
		defer func() {
			if t.Failed() {
				for i, p := range nodes {
					t.Logf("%s: %+v; leaders %+v; count.n %d; %+v", ids[i], p.handle.View(), p.handle.Leaders(), count.In(p.live.Current()), p.Stats())
				}
			}
		}()
		eventually(t, "all see all as they are "+when, limit, func() bool {
			if slices.ContainsFunc(nodes, func(p *process) bool { return count.In(p.live.Current()) != value }) {
				return false
			}
			return !slices.ContainsFunc(nodes, func(p *process) bool {
				v := p.handle.View()
				n, _ := v.Node("n1")
				l, ok := p.handle.Leaders().Of("job")
				return v.Stale || len(v.With("gateway")) != len(nodes) || n.Weight != weight || !p.Stats().Registered || !ok || l.Gone || l.Token == 0
			})
		})
	}
	set(5)
	value = 5
	current("at first", 10*time.Second)
	backup := c.Backup()
	current("after the copy was made", 20*time.Second)

	reweigh()
	join() // the copy does not know it
	set(7)
	value = 7
	w := newChurn(c, "c")
	for range 40 {
		w.step()
	}
	w.seen(t, nodes[0], "n0", 5*time.Second)
	current("before the restore", 10*time.Second)
	unharmed()
	high, id := c.Revision(), c.ID()
	c.Restore(backup)
	began := time.Now()
	if rev := c.Revision(); rev >= high || c.ID() != id {
		t.Fatalf("the restored cluster %s is at %d, the old one %s was at %d", c.ID(), rev, id, high)
	}
	w.alive, value = map[im.NodeID]int{}, 5
	current("after the restore", 30*time.Second)
	t.Logf("all were current %v after the restore, at revision %d; before it was %d", time.Since(began).Round(time.Millisecond), c.Revision(), high)
	for _, p := range nodes {
		w.seen(t, p, string(p.node.ID), 20*time.Second) // what the copy did not have is gone
	}
	reweigh()
	set(6)
	value = 6
	current("with a change after the restore", 5*time.Second)

	unharmed()
	c.Replace("other")
	began = time.Now()
	if c.ID() == id {
		t.Fatal("the cluster has the old id")
	}
	value = 3 // nothing is set there
	current("in the other cluster", 30*time.Second)
	t.Logf("all were current %v after the other cluster began", time.Since(began).Round(time.Millisecond))
	reweigh()
	set(8)
	value = 8
	current("with a change in the other cluster", 5*time.Second)
	unharmed()
	for i, p := range nodes {
		if s := p.Stats(); s.Drift != 0 || s.Resyncs[control.ResyncRestored] == 0 {
			t.Errorf("%s: drift %d, read anew: %v", ids[i], s.Drift, s.Resyncs)
		}
	}
}

package cluster

import (
	"encoding/json"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/imdhq/imd/pkg/control"
	"github.com/imdhq/imd/pkg/control/etcd"
	"github.com/imdhq/imd/pkg/im"
	"github.com/imdhq/imd/pkg/testenv"
)

// journal keeps all views that a process was shown, in order.
type journal struct {
	mu      sync.Mutex
	views   []*control.View
	checked int // so many of them were checked by always
}

// kept makes a process write a journal, beside what change does.
func kept(j *journal, change func(*etcd.Options)) func(*etcd.Options) {
	return func(o *etcd.Options) {
		change(o)
		publish := o.Publish
		o.Publish = func(v *control.View) {
			j.mu.Lock()
			j.views = append(j.views, v)
			j.mu.Unlock()
			publish(v)
		}
	}
}

// all is what was written so far.
func (j *journal) all() []*control.View {
	j.mu.Lock()
	defer j.mu.Unlock()
	return slices.Clone(j.views)
}

// ordered checks that nothing was shown that is older than what was shown
// before: revisions rise, and so do the weights of the nodes that churn writes.
func (j *journal) ordered(t testing.TB, who string) {
	t.Helper()
	rev, weights := int64(0), map[im.NodeID]int{}
	views := j.all()
	for i, v := range views {
		if v.Revision < rev {
			t.Errorf("%s: view %d of %d goes back from revision %d to %d", who, i, len(views), rev, v.Revision)
		}
		rev = v.Revision
		for _, n := range v.Nodes {
			if !n.Has(churned) {
				continue
			}
			if n.Weight < weights[n.ID] {
				t.Errorf("%s: view %d shows %s with %d after %d", who, i, n.ID, n.Weight, weights[n.ID])
			}
			weights[n.ID] = n.Weight
		}
	}
}

// always checks that the nodes are in every view since the last check, each from the
// first one that has it on. On a machine that was so much slower than usual one may have
// answered late.
func (j *journal) always(t testing.TB, slow float64, who string, ids ...im.NodeID) {
	t.Helper()
	views := j.all()
	for _, id := range ids {
		seen := false
		for i, v := range views {
			_, ok := v.Node(id)
			if seen && !ok && i >= j.checked {
				doubt(t, slow, "%s: %s is not in view %d", who, id, i)
				break
			}
			seen = seen || ok
		}
	}
	j.checked = len(views)
}

// churned is the role of the records that churn writes.
const churned = "churned"

// churn changes records in etcd, as nodes that come, change and go would.
type churn struct {
	c      *testenv.Etcd
	prefix string
	count  int
	alive  map[im.NodeID]int // weight of each record that is there
	took   []time.Duration   // of each write
}

func newChurn(c *testenv.Etcd, cluster string) *churn {
	return &churn{c: c, prefix: "/imd/" + cluster + "/nodes/", alive: map[im.NodeID]int{}}
}

// step makes one change. Of eight records each is written with a weight that
// rises, and every seventh change takes one away, after it said goodbye.
func (w *churn) step() {
	w.count++
	id := im.NodeID(fmt.Sprintf("x%d", w.count%8))
	key := w.prefix + string(id)
	began := time.Now()
	if _, ok := w.alive[id]; ok && w.count%7 == 0 {
		w.put(id, key, control.Draining)
		w.c.Delete(key)
		delete(w.alive, id)
	} else {
		w.put(id, key, control.Serving)
		w.alive[id] = w.count
	}
	w.took = append(w.took, time.Since(began))
}

func (w *churn) put(id im.NodeID, key string, s control.State) {
	raw, err := json.Marshal(control.Node{ID: id, BootID: "b", Roles: []string{churned}, State: s, Weight: w.count})
	if err != nil {
		panic(err) // it has strings and numbers
	}
	w.c.Put(key, string(raw))
}

// seen waits until a process sees exactly the records that are there.
func (w *churn) seen(t testing.TB, p *process, who string, limit time.Duration) {
	t.Helper()
	eventually(t, who+" sees what is there", limit, func() bool {
		now := map[im.NodeID]int{}
		for _, n := range p.handle.View().Nodes {
			if n.Has(churned) {
				now[n.ID] = n.Weight
			}
		}
		return fmt.Sprint(now) == fmt.Sprint(w.alive) // maps print in the order of their keys
	})
}

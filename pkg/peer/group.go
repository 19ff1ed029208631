package peer

import (
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/imdhq/imd/pkg/balance"
	"github.com/imdhq/imd/pkg/control"
	"github.com/imdhq/imd/pkg/ring"
	v1 "github.com/imdhq/imd/proto/gen/internalv1"
)

// place is a node that has a role, as one process sees it.
type place struct {
	node   control.Node
	remote *remote // nil = this process
}

func (p *place) id() string { return string(p.node.ID) }

// group is the nodes of one role, and what this process knows of them. Safe for
// concurrent use.
type group struct {
	role string
	zone string
	// alone is set while calls can only go to this process.
	alone atomic.Bool
	ring  ring.Current

	mu      sync.Mutex
	places  []*place // by id
	pickers map[string]balance.Picker
	names   map[string]string // of the pickers in use, by method
	eject   balance.Ejector
	budget  balance.Budget
	steer   balance.Steer
	hedges  map[string]*balance.Hedge
	backups balance.HedgeLimits
	latency map[string]*balance.EWMA
	heard   map[string]time.Time // last answer or probe, by node
	rng     *rand.Rand
}

func newGroup(role string) *group {
	g := &group{
		role: role, pickers: map[string]balance.Picker{}, names: map[string]string{}, hedges: map[string]*balance.Hedge{}, backups: balance.DefaultHedgeLimits(),
		latency: map[string]*balance.EWMA{}, heard: map[string]time.Time{}, rng: rand.New(rand.NewPCG(rand.Uint64(), rand.Uint64())),
	}
	g.alone.Store(true)
	return g
}

// set replaces the nodes.
func (g *group) set(places []*place, points int) {
	slices.SortFunc(places, func(a, b *place) int { return strings.Compare(a.id(), b.id()) })
	ids, nodes := make([]string, len(places)), make([]ring.Node, len(places))
	for i, p := range places {
		ids[i], nodes[i] = p.id(), ring.Node{ID: p.id(), Weight: p.node.Weight}
	}
	if r, err := ring.New(nodes, points); err == nil { // points were checked with the configuration
		g.ring.Store(r)
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	g.places = places
	g.eject.Set(ids)
	for id := range g.latency {
		if !slices.Contains(ids, id) {
			delete(g.latency, id)
			delete(g.heard, id)
		}
	}
	g.alone.Store(len(places) == 0 || len(places) == 1 && places[0].remote == nil)
}

// use sets the picker of a method by name.
func (g *group) use(method, picker string) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.names[method] == picker {
		return
	}
	g.names[method] = picker
	g.pickers[method] = balance.New(picker, g.rng, &g.ring)
}

// home is the node that the ring names for a key now; "" = none.
func (g *group) home(key string) string { return g.ring.Load().Get(key) }

// pick chooses a node for one attempt: one that is not ejected and was not
// tried, else one that was not tried, else any. nil = there are no nodes.
func (g *group) pick(m *Method, key string, tried []string) *place {
	g.mu.Lock()
	defer g.mu.Unlock()
	picker := g.pickers[m.Name]
	if picker == nil {
		g.names[m.Name] = m.Picker()
		picker = balance.New(m.Picker(), g.rng, &g.ring)
		g.pickers[m.Name] = picker
	}
	for _, fits := range []func(id string) bool{
		func(id string) bool { return g.eject.Usable(id) && !slices.Contains(tried, id) },
		func(id string) bool { return !slices.Contains(tried, id) },
		func(string) bool { return true },
	} {
		ts := g.targets(fits)
		if g.names[m.Name] != balance.NameConsistentHash {
			ts = balance.Local(ts, g.zone)
		}
		if i := picker.Pick(ts, key); i >= 0 {
			return g.find(g.steered(m, picker, ts, key, i))
		}
	}
	return nil
}

// steered is the target at i, or, for reads that go by hash, the one that would
// follow it if that one is much quicker.
func (g *group) steered(m *Method, picker balance.Picker, ts []balance.Target, key string, i int) string {
	first := ts[i]
	if m.Repeat != v1.Repeat_REPEAT_BACKUP || g.names[m.Name] != balance.NameConsistentHash || len(ts) < 2 {
		return first.ID
	}
	rest := slices.Delete(ts, i, i+1)
	next := rest[picker.Pick(rest, key)]
	if g.steer.Past(first.Latency, next.Latency) {
		return next.ID
	}
	return first.ID
}

// other is a node for a backup request beside that of the first: nil = none.
func (g *group) other(m *Method, key string, first *place) *place {
	g.mu.Lock()
	one := len(g.places) < 2
	g.mu.Unlock()
	if one {
		return nil
	}
	if p := g.pick(m, key, []string{first.id()}); p != nil && p.id() != first.id() {
		return p
	}
	return nil
}

func (g *group) targets(fits func(id string) bool) []balance.Target {
	out, now := make([]balance.Target, 0, len(g.places)), time.Now()
	for _, p := range g.places {
		if !fits(p.id()) {
			continue
		}
		t := balance.Target{ID: p.id(), Zone: p.node.Zone, Weight: p.node.Weight}
		if p.remote != nil {
			t.InFlight = int(p.remote.inFlight.Load())
		}
		if e := g.latency[t.ID]; e != nil {
			t.Latency = e.Value(now)
		}
		out = append(out, t)
	}
	return out
}

func (g *group) find(id string) *place {
	for _, p := range g.places {
		if p.id() == id {
			return p
		}
	}
	return nil
}

// report takes in how an attempt ended; true = the node is left out from now on.
func (g *group) report(p *place, m *Method, o balance.Outcome, took time.Duration, now time.Time) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	if o == balance.OK {
		g.budget.Succeeded(now)
		p.remote.answered.Store(true)
		if m != peerCheck { // a probe is no measure for other calls
			g.sample(p, took, now)
		}
		g.heard[p.id()] = now
		if m.Repeat == v1.Repeat_REPEAT_BACKUP {
			g.hedge(m).Answered(took, now)
		}
	}
	return g.eject.Report(p.id(), o, now)
}

func (g *group) sample(p *place, took time.Duration, now time.Time) {
	e := g.latency[p.id()]
	if e == nil {
		e = &balance.EWMA{}
		g.latency[p.id()] = e
	}
	e.Add(took, now)
}

// hedge is the backup policy of a method. The lock is held.
func (g *group) hedge(m *Method) *balance.Hedge {
	h := g.hedges[m.Name]
	if h == nil {
		h = &balance.Hedge{}
		g.hedges[m.Name] = h
	}
	return h
}

// bound replaces the limits of backup requests.
func (g *group) bound(l balance.HedgeLimits) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.backups = l
}

// hedgeDelay counts a call and says when its backup request is due.
func (g *group) hedgeDelay(m *Method, now time.Time) time.Duration {
	g.mu.Lock()
	defer g.mu.Unlock()
	h := g.hedge(m)
	h.Called(now)
	return h.Delay(now, g.backups)
}

// mayHedge takes what a backup request costs.
func (g *group) mayHedge(m *Method, now time.Time) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.hedge(m).Take(now, g.backups) && g.budget.Take(now)
}

// mayRetry takes what a retry costs.
func (g *group) mayRetry(now time.Time) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.budget.Take(now)
}

// due lists the nodes to probe now: those whose pause is over, and those of
// which nothing was heard for a while.
func (g *group) due(now time.Time) []*place {
	g.mu.Lock()
	defer g.mu.Unlock()
	var out []*place
	back := g.eject.Due(now)
	for _, p := range g.places {
		if p.remote == nil {
			continue
		}
		quiet := g.eject.Usable(p.id()) && now.Sub(g.heard[p.id()]) >= probeEvery
		if quiet || slices.Contains(back, p.id()) {
			g.heard[p.id()] = now
			out = append(out, p)
		}
	}
	return out
}

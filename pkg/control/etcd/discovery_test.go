package etcd

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/imdhq/imd/pkg/control"
	"github.com/imdhq/imd/pkg/im"
)

// play feeds events and keeps what came of them.
type play struct {
	d    discovery
	now  time.Time
	eff  discoveryEffect
	todo []control.Node // probes that were asked for
}

func newPlay() *play { return &play{now: epoch, d: discovery{self: "self"}} }

func (p *play) do(ev discoveryEvent) discoveryEffect {
	ev.at = p.now
	p.d, p.eff = p.d.step(ev)
	p.todo = append(p.todo, p.eff.probe...)
	return p.eff
}

func (p *play) list(ids ...string) discoveryEffect {
	nodes := make([]control.Node, 0, len(ids))
	for _, id := range ids {
		nodes = append(nodes, serving(id))
	}
	return p.do(discoveryEvent{listed: &nodes})
}

func (p *play) away(yes bool) discoveryEffect { return p.do(discoveryEvent{away: &yes}) }

func (p *play) probed(id string, alive bool) discoveryEffect {
	return p.do(discoveryEvent{probed: &probeResult{id: im.NodeID(id), boot: "boot-" + id, alive: alive}})
}

func (p *play) after(d time.Duration) discoveryEffect {
	p.now = p.now.Add(d)
	return p.do(discoveryEvent{})
}

// shows is the list as others see it, such as "a b? c!": suspect and held ones
// are marked, those that only answer have a +.
func (p *play) shows() string {
	marks := map[control.Standing]string{control.Listed: "", control.Suspect: "?", control.Held: "!", control.Unregistered: "+"}
	var out []string
	for _, n := range p.d.view() {
		out = append(out, string(n.ID)+marks[n.Standing])
	}
	return strings.Join(out, " ")
}

func (p *play) want(t *testing.T, list string) {
	t.Helper()
	if got := p.shows(); got != list {
		t.Fatalf("the list is %q, want %q", got, list)
	}
}

func serving(id string) control.Node {
	return control.Node{ID: im.NodeID(id), BootID: "boot-" + id, Roles: []string{"gateway"}, State: control.Serving}
}

func probes(e discoveryEffect) string {
	var out []string
	for _, n := range e.probe {
		out = append(out, string(n.ID))
	}
	return strings.Join(out, " ")
}

func TestADeadNodeGoesAfterAProbe(t *testing.T) {
	p := newPlay()
	p.list("a", "b", "c", "d")
	if e := p.list("a", "b", "c"); probes(e) != "d" || !e.changed {
		t.Fatalf("effects %+v", e)
	}
	p.want(t, "a b c d?")
	if e := p.probed("d", false); len(e.evicted) != 1 || !e.changed {
		t.Errorf("effects %+v", e)
	}
	p.want(t, "a b c")
}

func TestALivingNodeIsKeptForAMinute(t *testing.T) {
	p := newPlay()
	p.list("a", "b", "c", "d")
	p.list("a", "b", "c")
	if e := p.probed("d", true); e.until != p.now.Add(reprobe) {
		t.Errorf("the next look is at %v", e.until)
	}
	for p.now.Before(epoch.Add(58 * time.Second)) {
		p.want(t, "a b c d+")
		if e := p.after(reprobe); probes(e) != "d" {
			t.Fatalf("after %v: %+v", p.now.Sub(epoch), e)
		}
		p.probed("d", true)
	}
	p.after(reprobe)
	p.want(t, "a b c")
}

func TestADrainingNodeLeavesAtOnce(t *testing.T) {
	p := newPlay()
	n := serving("d")
	n.State = control.Draining
	nodes := []control.Node{serving("a"), n}
	p.do(discoveryEvent{listed: &nodes})
	if e := p.list("a"); len(e.probe) != 0 || len(e.evicted) != 0 || !e.changed {
		t.Errorf("effects %+v", e)
	}
	p.want(t, "a")
}

func TestANodeThatReturnsIsListed(t *testing.T) {
	p := newPlay()
	p.list("a", "b", "c", "d")
	p.list("a", "b", "c")
	p.list("a", "b", "c", "d")
	p.want(t, "a b c d")
	if e := p.probed("d", false); len(e.evicted) != 0 {
		t.Errorf("a late answer evicts: %+v", e)
	}
	p.want(t, "a b c d")
}

func TestMassRemovalIsHeldBack(t *testing.T) {
	p := newPlay()
	p.list("a", "b", "c", "d", "e")
	p.list("a", "b", "c", "d")
	p.want(t, "a b c d e?")
	p.list("a", "b", "c")
	p.want(t, "a b c d? e?")
	e := p.list("a", "b")
	if len(e.guarded) != 3 {
		t.Errorf("guarded %+v", e.guarded)
	}
	p.want(t, "a b c! d! e!")
	p.probed("c", true)
	p.probed("d", false)
	p.want(t, "a b c+ e!")
	p.probed("e", true)
	p.list("a", "b", "c", "e")
	p.want(t, "a b c e")
}

// When all probe all, silence alone proves little: a held node may be silent
// twice. A refusal is proof at once.
func TestHeldNodesMayBeSlow(t *testing.T) {
	p := newPlay()
	p.list("a", "b", "c", "d", "e")
	p.list("a", "b")
	silent := func(id string) {
		p.do(discoveryEvent{probed: &probeResult{id: im.NodeID(id), boot: "boot-" + id, silent: true}})
	}
	again := func(want string) {
		t.Helper()
		if e := p.after(heldReprobe); probes(e) != want {
			t.Errorf("probed are %q, want %q", probes(e), want)
		}
	}
	silent("c")
	p.probed("d", false)
	silent("e")
	p.want(t, "a b c! e!")
	again("c e")
	silent("c")
	p.probed("e", true)
	p.want(t, "a b c! e+")
	again("c")
	silent("c")
	p.want(t, "a b e+")
}

func TestSlowLossesAreNoMass(t *testing.T) {
	p := newPlay()
	p.list("a", "b", "c", "d", "e", "f")
	for _, left := range [][]string{{"a", "b", "c", "d", "e"}, {"a", "b", "c", "d"}, {"a", "b", "c"}} {
		p.list(left...)
		p.now = p.now.Add(4 * time.Second)
	}
	if e := p.list("a", "b"); len(e.guarded) != 0 {
		t.Errorf("guarded %+v", e.guarded)
	}
}

func TestAllOfARoleIsAMass(t *testing.T) {
	p := newPlay()
	s := serving("s")
	s.Roles = []string{"scheduler"}
	nodes := []control.Node{serving("a"), serving("b"), s}
	p.do(discoveryEvent{listed: &nodes})
	p.list("a", "b")
	p.want(t, "a b s!")
	p.probed("s", false)
	p.want(t, "a b")
}

func TestNobodyGoesWhileTheRegistryIsAway(t *testing.T) {
	p := newPlay()
	p.list("a", "b", "c", "d")
	p.list("a", "b", "c")
	p.away(true)
	p.probed("d", false)
	p.want(t, "a b c d?")
	for range 100 {
		if e := p.after(reprobe); probes(e) != "d" {
			t.Fatalf("effects %+v", e)
		}
		p.probed("d", false)
	}
	p.want(t, "a b c d?")
	p.list("a", "b", "c") // back: the next probe decides
	p.after(reprobe)
	p.probed("d", false)
	p.want(t, "a b c")
}

func TestTheOwnNodeNeverGoes(t *testing.T) {
	p := newPlay()
	p.list("a", "self")
	p.list("a")
	p.want(t, "a self+")
	if e := p.after(2 * keepAlive); len(e.probe) != 0 {
		t.Errorf("effects %+v", e)
	}
	p.want(t, "a self+")
}

func TestBeginningWithWhatWasKnown(t *testing.T) {
	p := newPlay()
	known := []control.Node{serving("a"), serving("b"), serving("self")}
	if e := p.do(discoveryEvent{known: &known}); probes(e) != "a b" || !e.changed {
		t.Fatalf("effects %+v", e)
	}
	p.want(t, "a+ b+")
	p.probed("a", true)
	p.probed("b", false)
	p.want(t, "a+ b?")
	p.now = p.now.Add(time.Hour)
	p.list("a")
	p.want(t, "a b?")
	p.after(reprobe)
	p.probed("b", false)
	p.want(t, "a")
}

// sim is a cluster whose nodes live, die, lose their records and come back,
// seen through one discovery.
type sim struct {
	*play
	rnd      *rand.Rand
	alive    map[string]bool
	lived    map[string]time.Time // since when a node has been alive without a break
	died     map[string]time.Time
	recorded map[string]bool
	since    map[string]time.Time // since when its record has been there or away
	out      bool                 // etcd is away
	outage   time.Time            // when it last came or went
	pending  map[string]time.Time // probes under way and when they end
}

const simNodes = 7

func (s *sim) records() []string {
	var ids []string
	for id, ok := range s.recorded {
		if ok {
			ids = append(ids, id)
		}
	}
	slices.Sort(ids)
	return ids
}

// happen changes the world at random.
func (s *sim) happen() {
	id := fmt.Sprintf("n%d", s.rnd.IntN(simNodes))
	switch s.rnd.IntN(10) {
	case 0: // a node dies; its record stays until its lease ends
		if s.alive[id] {
			s.alive[id], s.died[id] = false, s.now
		}
	case 1, 2:
		if !s.alive[id] {
			s.alive[id], s.lived[id] = true, s.now
		}
	case 3: // all leases end at once
		if !s.out && s.rnd.IntN(8) == 0 {
			for id := range s.recorded {
				s.set(id, false)
			}
		}
	case 4:
		if s.rnd.IntN(4) == 0 {
			s.out, s.outage = !s.out, s.now
			s.away(s.out)
		}
	case 5: // a record goes although its node lives
		if !s.out {
			s.set(id, false)
		}
	}
	if s.out {
		return
	}
	for i := range simNodes { // leases end, nodes register
		id := fmt.Sprintf("n%d", i)
		switch {
		case !s.alive[id] && s.recorded[id] && s.now.Sub(s.died[id]) > 10*time.Second:
			s.set(id, false)
		case s.alive[id] && !s.recorded[id] && s.rnd.IntN(10) == 0:
			s.set(id, true)
		}
	}
	s.list(s.records()...)
}

func (s *sim) set(id string, there bool) {
	if s.recorded[id] != there {
		s.recorded[id], s.since[id] = there, s.now
	}
}

// probe starts what was asked for and ends what is due.
func (s *sim) probe() {
	for _, n := range s.todo {
		s.pending[string(n.ID)] = s.now.Add(time.Duration(s.rnd.IntN(800)) * time.Millisecond)
	}
	s.todo = nil
	for i := range simNodes {
		id := fmt.Sprintf("n%d", i)
		if end, ok := s.pending[id]; ok && !s.now.Before(end) {
			delete(s.pending, id)
			s.do(discoveryEvent{probed: &probeResult{
				id: im.NodeID(id), boot: string(serving(id).BootID), alive: s.alive[id], silent: !s.alive[id] && s.rnd.IntN(3) == 0,
			}})
		}
	}
}

// check holds what must always be true.
func (s *sim) check(t *testing.T, seed uint64) {
	seen := map[string]control.Standing{}
	for _, n := range s.d.view() {
		seen[string(n.ID)] = n.Standing
	}
	settled := func(at time.Time, d time.Duration) bool { return s.now.Sub(at) > d && s.now.Sub(s.outage) > d }
	for i := range simNodes {
		id := fmt.Sprintf("n%d", i)
		_, there := seen[id]
		switch {
		case s.alive[id] && s.recorded[id] && !there && !s.out:
			t.Fatalf("seed %d, %v: %s lives and is registered, and is not in %q", seed, s.now.Sub(epoch), id, s.shows())
		case s.alive[id] && s.recorded[id] && !s.out && seen[id] != control.Listed:
			t.Fatalf("seed %d, %v: %s is %s although it is registered", seed, s.now.Sub(epoch), id, seen[id])
		case s.alive[id] && !there && s.now.Sub(s.lived[id]) > 20*time.Second && s.out && s.since[id].Before(s.lived[id]) && s.recorded[id]:
			t.Fatalf("seed %d, %v: %s was lost while etcd was away", seed, s.now.Sub(epoch), id)
		case !s.alive[id] && there && !s.out && !s.recorded[id] && settled(s.died[id], 7*time.Second) && settled(s.since[id], 7*time.Second):
			t.Fatalf("seed %d, %v: %s died %v ago and is in %q", seed, s.now.Sub(epoch), id, s.now.Sub(s.died[id]), s.shows())
		}
	}
}

// Seeded schedules, thousands a minute, keep the invariants: a living node with a record
// is always in the list, a dead one without goes within seconds, and nobody goes
// while etcd is away.
func TestDiscoverySimulated(t *testing.T) {
	for seed := range uint64(300) {
		s := &sim{
			play: newPlay(), rnd: rand.New(rand.NewPCG(seed, 1)), alive: map[string]bool{}, lived: map[string]time.Time{}, died: map[string]time.Time{},
			recorded: map[string]bool{}, since: map[string]time.Time{}, pending: map[string]time.Time{},
		}
		for range 400 {
			before := len(s.d.nodes)
			out := s.out
			s.now = s.now.Add(time.Duration(s.rnd.IntN(500)) * time.Millisecond)
			s.happen()
			s.probe()
			s.after(0)
			s.probe()
			s.check(t, seed)
			if out && s.out && len(s.d.nodes) < before {
				t.Fatalf("seed %d, %v: somebody went while etcd was away", seed, s.now.Sub(epoch))
			}
		}
	}
}

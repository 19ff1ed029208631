package etcd

import (
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/imdhq/imd/pkg/control"
	"github.com/imdhq/imd/pkg/failpoint"
	"github.com/imdhq/imd/pkg/im"
)

const (
	reprobe     = 2 * time.Second // between probes of a node that answers but is not registered
	keepAlive   = time.Minute     // how long such a node is kept
	guardWindow = 5 * time.Second // absences this close together are judged together
	guardLeast  = 3               // fewer are no mass, unless they are all of a role
	heldProbes  = 3               // silent ones that end a held node: everybody probes everybody then
	heldReprobe = time.Second     // between those
)

// peerNode is one node as discovery knows it.
type peerNode struct {
	node    control.Node // Standing says how it stands
	since   time.Time    // when it was found absent; zero while it is listed
	probeAt time.Time    // when it is to be probed; zero = not
	probing bool         // a probe is under way
	silent  int          // probes of a held node that got neither an answer nor a refusal
}

// absence is a node that vanished from the registry without having said so.
type absence struct {
	at    time.Time
	id    im.NodeID
	roles []string
}

// discovery decides which nodes others see. The registry's word alone adds
// nodes but never removes one that has not said goodbye:
//
//	listed       -> gone          the record vanished and said draining
//	listed       -> suspect       the record vanished
//	listed       -> held          so did most of the same role within 5 s
//	suspect,held -> unregistered  a probe was answered
//	suspect      -> gone          no probe was answered, and the registry can be reached
//	held         -> gone          a probe was refused, or three got nothing at all
//	unregistered -> gone          the same, or 60 s have passed
//	any          -> listed        the record is there
//
// Invariants: while the registry is away nobody goes; the own node never goes; a
// node that answers probes goes only after 60 s with the registry there.
type discovery struct {
	self   im.NodeID
	nodes  map[im.NodeID]peerNode
	away   bool // the registry cannot be reached
	recent []absence

	suspects, held, evicted uint64
}

// discoveryEvent is what happened. Exactly one of the pointers is set, or none
// if time passed.
type discoveryEvent struct {
	at     time.Time
	listed *[]control.Node // all records of the registry, which can be reached
	away   *bool           // whether the registry is away
	known  *[]control.Node // what a former process knew, while the registry is away
	probed *probeResult
}

// probeResult is the end of a probe.
type probeResult struct {
	id     im.NodeID
	boot   string
	alive  bool
	silent bool // not alive, but not refused either: it may be slow, and so may we
}

// discoveryEffect is what is to be done.
type discoveryEffect struct {
	changed bool           // the nodes that others see are not as before
	probe   []control.Node // ask whether they live
	until   time.Time      // when time matters next; zero = never
	evicted []control.Node // gone without a word
	guarded []control.Node // kept although their records vanished together
}

// step takes in what happened and says what to do.
func (d discovery) step(ev discoveryEvent) (discovery, discoveryEffect) {
	d.nodes = maps.Clone(d.nodes)
	if d.nodes == nil {
		d.nodes = map[im.NodeID]peerNode{}
	}
	var eff discoveryEffect
	switch {
	case ev.listed != nil:
		d.list(*ev.listed, ev.at, &eff)
	case ev.away != nil:
		d.away = *ev.away
		if d.away && failpoint.Bad(failpoint.AbsenceWhileAway) {
			d.forget(&eff)
		}
	case ev.known != nil:
		d.recall(*ev.known, ev.at, &eff)
	case ev.probed != nil:
		d.answered(*ev.probed, ev.at, &eff)
	}
	d.expire(ev.at, &eff)
	d.plan(ev.at, &eff)
	return d, eff
}

// list takes in all records.
func (d *discovery) list(records []control.Node, at time.Time, eff *discoveryEffect) {
	if d.away {
		d.away = false
		for id, p := range d.nodes { // the time that it was away does not count
			if !p.since.IsZero() {
				p.since = at
				d.nodes[id] = p
			}
		}
	}
	present := make(map[im.NodeID]bool, len(records))
	for _, n := range records {
		present[n.ID] = true
		old, known := d.nodes[n.ID]
		n.Standing = control.Listed
		if !known || !sameNode(old.node, n) {
			eff.changed = true
		}
		d.nodes[n.ID] = peerNode{node: n}
	}
	var lost []im.NodeID
	for id, p := range d.nodes {
		if !present[id] && p.node.Standing == control.Listed {
			lost = append(lost, id)
		}
	}
	slices.Sort(lost) // the order must not depend on that of a map
	d.lose(lost, at, eff)
}

// lose handles records that vanished.
func (d *discovery) lose(lost []im.NodeID, at time.Time, eff *discoveryEffect) {
	d.recent = slices.DeleteFunc(slices.Clone(d.recent), func(a absence) bool { return at.Sub(a.at) > guardWindow })
	for _, id := range lost {
		eff.changed = true
		p := d.nodes[id]
		switch {
		case p.node.State == control.Draining:
			delete(d.nodes, id)
			continue
		case id == d.self:
			p.node.Standing = control.Unregistered
		default:
			p.node.Standing = control.Suspect
			p.probeAt = at
			d.suspects++
			d.recent = append(d.recent, absence{at, id, p.node.Roles})
		}
		p.since = at
		d.nodes[id] = p
	}
	if len(lost) > 0 {
		d.guard(eff)
	}
}

// guard keeps nodes in use whose role has lost too many at once.
func (d *discovery) guard(eff *discoveryEffect) {
	for role := range d.masses() {
		for _, a := range d.recent {
			p, ok := d.nodes[a.id]
			if !ok || p.node.Standing != control.Suspect || !slices.Contains(a.roles, role) {
				continue
			}
			p.node.Standing = control.Held
			d.nodes[a.id] = p
			d.held++
			eff.guarded = append(eff.guarded, p.node)
		}
	}
	byID(eff.guarded)
}

// masses are the roles that lost all of their nodes, or at least three and more
// than half, within the window.
func (d *discovery) masses() map[string]bool {
	gone, all := map[string]map[im.NodeID]bool{}, map[string]map[im.NodeID]bool{}
	add := func(m map[string]map[im.NodeID]bool, role string, id im.NodeID) {
		if m[role] == nil {
			m[role] = map[im.NodeID]bool{}
		}
		m[role][id] = true
	}
	for _, a := range d.recent {
		if p, ok := d.nodes[a.id]; ok && p.node.Standing == control.Listed {
			continue // it came back
		}
		for _, r := range a.roles {
			add(gone, r, a.id)
			add(all, r, a.id)
		}
	}
	for id, p := range d.nodes {
		for _, r := range p.node.Roles {
			add(all, r, id)
		}
	}
	out := map[string]bool{}
	for role, g := range gone {
		if n := len(g); n == len(all[role]) || n >= guardLeast && 2*n > len(all[role]) {
			out[role] = true
		}
	}
	return out
}

// recall takes in what a former process of this node knew.
func (d *discovery) recall(known []control.Node, at time.Time, eff *discoveryEffect) {
	d.away = true
	for _, n := range known {
		if n.ID == d.self {
			continue // this process is another one
		}
		n.Standing = control.Unregistered
		d.nodes[n.ID] = peerNode{node: n, since: at, probeAt: at}
		eff.changed = true
	}
}

// answered takes in the end of a probe.
func (d *discovery) answered(r probeResult, at time.Time, eff *discoveryEffect) {
	p, ok := d.nodes[r.id]
	if !ok || !p.probing || p.node.BootID != r.boot {
		return // the record came back meanwhile
	}
	p.probing = false
	before := p.node.Standing
	again := reprobe
	if before == control.Held && r.silent {
		p.silent++
	}
	switch {
	case r.alive:
		p.node.Standing = control.Unregistered
	case before == control.Held && r.silent && p.silent < heldProbes: // it stays in use
		again = heldReprobe
	case d.away:
		p.node.Standing = control.Suspect
	default:
		d.evict(r.id, eff)
		return
	}
	p.probeAt = at.Add(again)
	d.nodes[r.id] = p
	eff.changed = eff.changed || p.node.Standing != before
}

// expire evicts nodes that have answered without a record for too long.
func (d *discovery) expire(at time.Time, eff *discoveryEffect) {
	if d.away {
		return
	}
	for _, id := range slices.Sorted(maps.Keys(d.nodes)) {
		if p := d.nodes[id]; id != d.self && !p.since.IsZero() && at.Sub(p.since) >= keepAlive {
			d.evict(id, eff)
		}
	}
}

func (d *discovery) evict(id im.NodeID, eff *discoveryEffect) {
	eff.evicted = append(eff.evicted, d.nodes[id].node)
	delete(d.nodes, id)
	d.evicted++
	eff.changed = true
}

// forget evicts all nodes but the own one. It is what a defect does.
func (d *discovery) forget(eff *discoveryEffect) {
	for _, id := range slices.Sorted(maps.Keys(d.nodes)) {
		if id != d.self {
			d.evict(id, eff)
		}
	}
}

// plan starts the probes that are due and finds when time matters next.
func (d *discovery) plan(at time.Time, eff *discoveryEffect) {
	for _, id := range slices.Sorted(maps.Keys(d.nodes)) {
		p := d.nodes[id]
		if p.since.IsZero() || id == d.self {
			continue
		}
		if !p.probing && !p.probeAt.IsZero() && !at.Before(p.probeAt) {
			p.probing, p.probeAt = true, time.Time{}
			d.nodes[id] = p
			eff.probe = append(eff.probe, p.node)
		}
		if !p.probeAt.IsZero() {
			eff.until = soonest(eff.until, p.probeAt)
		}
		if !d.away {
			eff.until = soonest(eff.until, p.since.Add(keepAlive))
		}
	}
}

// list of what others see, by id.
func (d *discovery) view() []control.Node {
	out := make([]control.Node, 0, len(d.nodes))
	for _, p := range d.nodes {
		out = append(out, p.node)
	}
	return byID(out)
}

func byID(nodes []control.Node) []control.Node {
	slices.SortFunc(nodes, func(a, b control.Node) int { return strings.Compare(string(a.ID), string(b.ID)) })
	return nodes
}

// sameNode reports whether others see no difference.
func sameNode(a, b control.Node) bool {
	return slices.Equal(a.Roles, b.Roles) && a.Started.Equal(b.Started) && flat(a) == flat(b)
}

// flatNode is the part of a node that can be compared.
type flatNode struct {
	id                    im.NodeID
	boot, version, zone   string
	public, ops, internal string
	state                 control.State
	standing              control.Standing
	weight, conns         int
	relay                 bool
	cordon                string
}

func flat(n control.Node) flatNode {
	return flatNode{n.ID, n.BootID, n.Version, n.Zone, n.Public, n.Ops, n.Internal, n.State, n.Standing, n.Weight, n.MaxConns, n.Relay, n.Cordon}
}

// soonest is the earlier of two times; zero = never.
func soonest(a, b time.Time) time.Time {
	if a.IsZero() || !b.IsZero() && b.Before(a) {
		return b
	}
	return a
}

package etcd

import (
	"flag"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/imdhq/imd/pkg/control"
)

var (
	simSeed = flag.Uint64("election.seed", 0, "run only this schedule of the election simulator; 0 = many")
	simRuns = flag.Int("election.runs", 300, "schedules of the election simulator")
)

const simTick = 5 * time.Millisecond

// simFence is the row of the message store.
type simFence struct {
	token   int64
	holder  int
	cluster string
	rev     int64
}

// simClaim is store.Fences.ClaimFence.
func (f *simFence) claim(holder int, cluster string, rev, over int64) (int64, bool) {
	switch {
	case f.token != 0 && f.cluster == cluster && f.rev == rev && f.holder == holder:
		return f.token, true
	case f.token != 0 && f.token != over && f.cluster == cluster && f.rev >= rev:
		return f.token, false
	}
	*f = simFence{token: f.token + 1, holder: holder, cluster: cluster, rev: rev}
	return f.token, true
}

// simWorld is etcd with one key, the store, and a few candidates that may be
// slow, paused, cut off or killed.
type simWorld struct {
	t       *testing.T
	rnd     *rand.Rand
	now     time.Time
	rev     int64
	cluster string
	history int
	create  int64
	lease   leaseID
	wishTo  int // who is to lead; -1 = anybody
	wishFor int64
	wishEnd time.Time
	leases  map[leaseID]time.Time
	lastID  leaseID
	fence   simFence
	nodes   []*simNode
	calm    bool // no more faults
	wild    bool // a lease was revoked from outside, or a process paused, or etcd went back: terms may overlap
	effects int
	highest int64
	holders map[int64]int
	log     []string
}

// simNode is one process.
type simNode struct {
	id      int
	state   election
	act     electionAction
	ready   time.Time // when the action's outcome arrives
	outcome *electionEvent
	seen    []electionEvent // copies of the key on their way, with the time of arrival
	history int
	paused  time.Time // until
	cut     time.Time // from etcd, until
	leadEnd time.Time // when Lead returns after the end of the term; zero = not ended
	leading bool      // Lead runs
	token   int64     // of Lead
	effect  *simEffect
}

// simEffect is an effect on its way to the store.
type simEffect struct {
	token  int64
	holder int
	at     time.Time
}

func (w *simWorld) say(format string, args ...any) {
	w.log = append(w.log, fmt.Sprintf("%7.3f ", w.now.Sub(epoch).Seconds())+fmt.Sprintf(format, args...))
}

func (w *simWorld) fail(format string, args ...any) {
	w.t.Helper()
	w.t.Fatalf(format+"\n%s", append(args, lastLines(w.log, 60))...)
}

func lastLines(log []string, n int) string {
	out := ""
	for _, l := range log[max(0, len(log)-n):] {
		out += l + "\n"
	}
	return out
}

// seenNow is the key as it stands, for node n.
func (w *simWorld) seenNow(n *simNode) electionEvent {
	ev := electionEvent{kind: evSeen, rev: w.rev, create: w.create, cluster: w.cluster, anew: n.history != w.history}
	n.history = w.history
	if w.create != 0 {
		ev.lease = w.lease
	}
	if w.now.Before(w.wishEnd) {
		ev.wishFor = w.wishFor
		switch w.wishTo {
		case -1:
			ev.wish = wishAny
		case n.id:
			ev.wish = wishMe
		default:
			ev.wish = wishElse
		}
	}
	return ev
}

// changed tells all watchers, each with a delay; order is kept.
func (w *simWorld) changed() {
	for _, n := range w.nodes {
		ev := w.seenNow(n)
		at := w.now.Add(time.Duration(1+w.rnd.IntN(40)) * time.Millisecond)
		if len(n.seen) > 0 && n.seen[len(n.seen)-1].at.After(at) {
			at = n.seen[len(n.seen)-1].at
		}
		ev.at = at
		n.seen = append(n.seen, ev)
	}
}

func (w *simWorld) drop(id leaseID) {
	delete(w.leases, id)
	if w.create != 0 && w.lease == id {
		w.rev++
		w.create, w.lease = 0, 0
		w.changed()
	}
}

// serve carries out a call at the moment it reaches the server.
func (w *simWorld) serve(n *simNode, act electionAction) electionEvent {
	_, leased := w.leases[act.lease]
	switch act.kind {
	case actGrant:
		w.lastID++
		w.leases[w.lastID] = w.now.Add(3 * time.Second)
		return electionEvent{kind: evGranted, lease: w.lastID, ttl: 3 * time.Second}
	case actCreate:
		if w.create != 0 {
			return w.seenNow(n)
		}
		if !leased {
			return electionEvent{kind: evLeaseGone}
		}
		w.rev++
		w.create, w.lease = w.rev, act.lease
		w.changed()
		return electionEvent{kind: evWon, create: w.create, rev: w.rev, cluster: w.cluster}
	case actClaim:
		token, ok := w.fence.claim(n.id, n.state.cluster, act.create, act.token)
		w.say("n%d claims at %d over %d: token %d %v", n.id, act.create, act.token, token, ok)
		if !ok {
			return electionEvent{kind: evFenced, token: token}
		}
		return electionEvent{kind: evClaimed, token: token}
	case actConfirm:
		return electionEvent{kind: evConfirmed, ours: w.create == act.create}
	case actAnnounce:
		if w.create != act.create {
			return electionEvent{kind: evProclaimed}
		}
		w.rev++
		w.wishEnd = time.Time{}
		w.changed()
		return electionEvent{kind: evProclaimed, ours: true, rev: w.rev}
	case actRenew:
		if !leased {
			return electionEvent{kind: evLeaseGone}
		}
		w.leases[act.lease] = w.now.Add(3 * time.Second)
		return electionEvent{kind: evRenewed, ttl: 3 * time.Second}
	case actLook:
		return w.seenNow(n)
	case actForce:
		w.drop(act.lease)
		return electionEvent{kind: evForced, ours: true}
	case actResign:
		ev := electionEvent{kind: evResigned, ours: act.create == 0}
		if act.create != 0 && w.create == act.create {
			w.rev++
			w.create, w.lease, ev.ours = 0, 0, true
			w.changed()
		}
		ev.rev = w.rev
		w.drop(act.lease)
		return ev
	}
	panic(act.kind)
}

// begin sends the node's next action. It may be lost on the way, or its answer
// may be.
func (w *simWorld) begin(n *simNode, act electionAction) {
	n.act, n.outcome = act, nil
	if act.kind == actWait || act.kind == actEnd {
		return
	}
	sent := w.now
	failed := electionEvent{kind: evFailed, did: act.kind}
	switch act.kind {
	case actResign:
		failed = electionEvent{kind: evResigned}
	}
	limit := time.Second
	if act.kind == actRenew {
		limit = min(limit, max(act.until.Sub(w.now), time.Millisecond))
	}
	lose := 0.0
	if !w.calm {
		lose = 0.05
	}
	if w.now.Before(n.cut) && act.kind != actClaim || w.rnd.Float64() < lose/2 {
		n.outcome, n.ready = &failed, w.now.Add(limit) // never arrived
		return
	}
	ev := w.serve(n, act)
	ev.sent = sent
	n.outcome, n.ready = &ev, w.now.Add(time.Duration(1+w.rnd.IntN(30))*time.Millisecond)
	if w.rnd.Float64() < lose/2 {
		n.outcome, n.ready = &failed, w.now.Add(limit) // the answer is lost
	}
}

// feed gives the node an event.
func (w *simWorld) feed(n *simNode, ev electionEvent) {
	ev.at, ev.rnd = w.now, w.rnd.Float64()
	before := n.state
	s, act := n.state.step(ev)
	n.state = s
	if s.acting && s.create == 0 || s.token != 0 && s.create == 0 {
		w.fail("n%d: broken state %+v", n.id, s)
	}
	if s.terms != before.terms {
		if n.leading {
			w.fail("n%d leads twice at the same time", n.id)
		}
		n.leading, n.token, n.leadEnd = true, s.token, time.Time{}
		w.say("n%d leads with token %d", n.id, s.token)
	}
	if !s.acting && n.leading && n.leadEnd.IsZero() {
		n.leadEnd = w.now.Add(time.Duration(w.rnd.IntN(900)) * time.Millisecond)
		w.say("n%d leads no more: %s", n.id, s.quit)
	}
	w.begin(n, act)
}

// turn lets the node go on.
func (w *simWorld) turn(n *simNode) {
	w.effectOf(n)
	if w.now.Before(n.paused) {
		return
	}
	if n.leading && !n.leadEnd.IsZero() && !w.now.Before(n.leadEnd) {
		n.leading = false
	}
	if n.outcome != nil {
		if w.now.Before(n.ready) {
			return
		}
		w.feed(n, *n.outcome)
		return
	}
	switch {
	case n.state.busy && !n.leading:
		w.feed(n, electionEvent{kind: evIdle, fenced: w.rnd.IntN(2) == 0})
	case len(n.seen) > 0 && !w.now.Before(n.seen[0].at) && !w.now.Before(n.cut):
		ev := n.seen[0]
		n.seen = n.seen[1:]
		w.feed(n, ev)
	case n.act.kind == actWait && !n.act.until.IsZero() && !w.now.Before(n.act.until):
		w.feed(n, electionEvent{kind: evWake})
	}
}

// effectOf lets Lead have effects. An effect that was on its way when the
// process was paused arrives all the same.
func (w *simWorld) effectOf(n *simNode) {
	if e := n.effect; e != nil && !w.now.Before(e.at) {
		n.effect = nil
		accepted := w.fence.token == e.token && w.fence.holder == e.holder
		if accepted {
			w.accept(e)
		} else if n.leading && n.leadEnd.IsZero() && n.token == e.token {
			w.say("n%d: an effect with token %d is refused", n.id, e.token)
			n.leadEnd = w.now // Lead returns
		}
	}
	if n.effect == nil && n.leading && n.leadEnd.IsZero() && w.now.After(n.paused) && w.rnd.IntN(10) == 0 {
		n.effect = &simEffect{token: n.token, holder: n.id, at: w.now.Add(time.Duration(1+w.rnd.IntN(200)) * time.Millisecond)}
	}
}

// accept checks what must hold of all effects that take place.
func (w *simWorld) accept(e *simEffect) {
	w.effects++
	if e.token < w.highest {
		w.fail("an effect with token %d takes place after one with %d", e.token, w.highest)
	}
	w.highest = e.token
	if h, ok := w.holders[e.token]; ok && h != e.holder {
		w.fail("token %d has two holders, n%d and n%d", e.token, h, e.holder)
	}
	w.holders[e.token] = e.holder
}

// fault lets something go wrong.
func (w *simWorld) fault() {
	n := w.nodes[w.rnd.IntN(len(w.nodes))]
	long := func() time.Time { return w.now.Add(time.Duration(w.rnd.IntN(8000)) * time.Millisecond) }
	switch w.rnd.IntN(8) {
	case 0:
		n.paused, w.wild = long(), true
		w.say("n%d is paused for %v", n.id, n.paused.Sub(w.now))
	case 1:
		n.cut = long()
		w.say("n%d is cut off for %v", n.id, n.cut.Sub(w.now))
	case 2:
		if w.create != 0 {
			w.wild = true
			w.say("the leader's lease is revoked")
			w.drop(w.lease)
		}
	case 3:
		w.wild = true
		w.rev, w.create, w.lease = w.rnd.Int64N(w.rev+1), 0, 0
		clear(w.leases)
		w.history++
		if w.rnd.IntN(2) == 0 {
			w.cluster = fmt.Sprintf("c%d", w.history)
		}
		w.say("etcd is restored at %d, cluster %s", w.rev, w.cluster)
		for _, n := range w.nodes {
			n.seen = nil
		}
		w.changed()
	case 4:
		if w.create != 0 {
			w.wishFor, w.wishTo, w.wishEnd = w.create, w.rnd.IntN(len(w.nodes)+1)-1, w.now.Add(5*time.Second)
			w.rev++
			w.say("a wish for n%d", w.wishTo)
			w.changed()
		}
	case 5:
		w.wild = true
		w.say("n%d believes the leader dead", n.id)
		if n.outcome == nil && !w.now.Before(n.paused) {
			w.feed(n, electionEvent{kind: evRefused, create: n.state.other})
		}
	case 6: // kill -9 and a fresh start
		w.say("n%d is killed", n.id)
		*n = simNode{id: n.id, state: election{timing: electionDefaults}, effect: n.effect, history: w.history}
		n.seen = append(n.seen, w.seenNow(n))
		w.begin(n, electionAction{kind: actWait, until: long()})
	case 7:
		if n.leading && n.leadEnd.IsZero() {
			w.say("Lead of n%d returns", n.id)
			n.leadEnd = w.now
		}
	}
}

// pass lets d go by.
func (w *simWorld) pass(d time.Duration) {
	for end := w.now.Add(d); w.now.Before(end); w.now = w.now.Add(simTick) {
		for id, until := range w.leases {
			if w.now.After(until) {
				w.drop(id)
			}
		}
		if !w.wishEnd.IsZero() && w.now.After(w.wishEnd) {
			w.wishEnd = time.Time{}
			w.rev++
			w.changed()
		}
		if !w.calm && w.rnd.IntN(300) == 0 {
			w.fault()
		}
		acting := 0
		for _, n := range w.nodes {
			w.turn(n)
			if n.state.acting {
				acting++
			}
		}
		if acting > 1 && !w.wild {
			w.fail("%d lead by their own clocks", acting)
		}
	}
}

func simulate(t *testing.T, seed uint64) (effects int, terms uint64) {
	w := &simWorld{
		t: t, rnd: rand.New(rand.NewPCG(seed, 1)), now: epoch, rev: 10, cluster: "c0",
		leases: map[leaseID]time.Time{}, holders: map[int64]int{},
	}
	w.say("schedule %d", seed)
	for i := range 2 + w.rnd.IntN(3) {
		n := &simNode{id: i, state: election{timing: electionDefaults}}
		w.nodes = append(w.nodes, n)
		w.begin(n, electionAction{kind: actWait, until: w.now.Add(time.Duration(w.rnd.IntN(1000)) * time.Millisecond)})
	}
	w.pass(20 * time.Second)
	w.calm = true
	// A wish of 5 s, a pause of 8 s and a lease of 3 s may still be ahead.
	w.pass(20 * time.Second)
	before := w.effects
	w.pass(3 * time.Second)
	acting := slices.DeleteFunc(slices.Clone(w.nodes), func(n *simNode) bool { return !n.state.acting })
	if len(acting) != 1 || w.effects == before {
		w.fail("schedule %d: after the faults %d lead, with %d effects in 3 s", seed, len(acting), w.effects-before)
	}
	for _, n := range w.nodes {
		terms += n.state.terms
		for reason := range n.state.ends {
			if !slices.Contains(control.Ends(), reason) {
				w.fail("a term ended for %q", reason)
			}
		}
	}
	return w.effects, terms
}

// Whatever is lost, paused, killed, revoked and restored: effects take place in
// the order of their tokens, a token has one holder, and when the faults stop,
// exactly one leads.
func TestElectionSimulated(t *testing.T) {
	if *simSeed != 0 {
		simulate(t, *simSeed)
		return
	}
	began := time.Now()
	var effects int
	var terms uint64
	for seed := range uint64(*simRuns) {
		e, n := simulate(t, seed+1)
		effects, terms = effects+e, terms+n
	}
	t.Logf("%d schedules in %v: %d terms, %d effects", *simRuns, time.Since(began).Round(time.Millisecond), terms, effects)
}

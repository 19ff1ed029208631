package sim

import (
	"time"

	"github.com/imdhq/imd/pkg/im"
	"github.com/imdhq/imd/pkg/lane"
	"github.com/imdhq/imd/pkg/store"
)

// breakThings plans what people do and what breaks, and lets it happen.
func (w *world) breakThings() {
	p := &w.plan
	for left := p.sends; left > 0; {
		n := min(left, 1+w.rng.IntN(p.burst))
		left -= n
		d := w.devices[w.rng.IntN(len(w.devices))]
		conv := w.store.convs[w.rng.IntN(len(w.store.convs))].id
		w.after(w.between(0, p.span), func() { d.write(conv, n) })
	}
	w.times(p.resets, func() { w.someLink(func(l *link) { l.cut() }) })
	w.times(p.silences, func() { w.someLink(func(l *link) { l.silent = true }) })
	w.times(p.stalls, func() { w.someLink(func(l *link) { l.stall(w.between(100*time.Millisecond, 8*time.Second)) }) })
	w.times(p.stateCrashes, func() { w.kill(&w.states[w.rng.IntN(len(w.states))].process) })
	w.times(p.statePauses, func() {
		w.states[w.rng.IntN(len(w.states))].pause(w.between(50*time.Millisecond, 6*time.Second))
	})
	w.times(p.gatewayCrashes, func() { w.killGateway(w.gates[w.rng.IntN(len(w.gates))]) })
	w.times(p.gatewayHangs, func() {
		w.gates[w.rng.IntN(len(w.gates))].pause(w.between(50*time.Millisecond, 4*time.Second))
	})
	w.times(p.pushCrashes, func() { w.kill(&w.push.process) })
	w.times(p.ringChanges, func() { w.gates[w.rng.IntN(len(w.gates))].ring++ })
	w.times(p.memberChanges, w.changeMember)
	if p.locked > 0 {
		w.times(4, w.lock)
	}
	if p.restores > 0 {
		at := w.between(p.span/4, p.span)
		w.after(at/2, w.store.keep)
		w.after(at, w.restore)
		w.run(max(p.span, at+restoring))
	}
	w.run(max(p.span, w.now))
}

// times plans n faults.
func (w *world) times(n int, do func()) {
	for range n {
		w.after(w.between(0, w.plan.span), func() {
			w.faults++
			do()
		})
	}
}

func (w *world) someLink(do func(*link)) {
	d := w.devices[w.rng.IntN(len(w.devices))]
	if d.link != nil {
		do(d.link)
	}
}

// kill crashes a process and starts it again later.
func (w *world) kill(p *process) {
	if p.down {
		return
	}
	p.crash()
	w.after(w.between(50*time.Millisecond, 3*time.Second), func() { w.restart(p) })
}

// killGateway also cuts its connections.
func (w *world) killGateway(g *gateway) {
	if g.down {
		return
	}
	links := g.links
	w.kill(&g.process)
	for _, l := range links {
		l.cut()
	}
}

// lock lets a stranger hold the row of a conversation.
func (w *world) lock() {
	if w.chance(w.plan.locked) {
		c := w.store.convs[w.rng.IntN(len(w.store.convs))]
		c.locked = w.now + w.between(10*time.Millisecond, 2*time.Second)
	}
}

// changeMember adds or removes somebody, as a call to a state node does.
func (w *world) changeMember() {
	c := w.store.convs[len(w.store.convs)-1]
	u := userID(w.rng.IntN(w.plan.users))
	w.ids++
	ch := &store.Change{Conversation: c.id, RequestID: im.ClientMessageID(w.name("change")), MessageID: im.MessageID(w.ids)}
	if c.present(u) {
		ch.RemoveMembers = []im.UserID{u}
	} else {
		ch.AddMembers = []im.UserID{u}
	}
	n := w.states[w.rng.IntN(len(w.states))]
	n.exec(n.life, func() {
		w.tracef("%s: add %v, remove %v in %s", n.name, ch.AddMembers, ch.RemoveMembers, c.id)
		r := &lane.Run{Conv: c.id, Change: ch, Settled: func(store.ChangeResult, error) {}}
		l := n.laneOf(c.id)
		l.do(lane.Submit{Run: r})
		n.later(patience, func() { l.do(lane.Expire{Run: r}) })
	})
}

// restoring is how long the state role stands still for a restore: nothing of
// the former history is on its way to anybody after it.
const restoring = 10 * time.Second

// restore stops the state role, brings the backup back and starts it again.
func (w *world) restore() {
	w.tracef("the state role stops for a restore")
	w.faults++
	w.stopped = true
	for _, s := range w.states {
		if !s.down {
			s.crash()
		}
	}
	w.after(restoring, func() {
		w.tracef("the backup is restored")
		w.judge.restoring()
		w.store.restore()
		w.stopped = false
		for _, s := range w.states {
			w.restart(&s.process)
		}
	})
}

package sim

import (
	"cmp"
	"slices"
	"time"

	"github.com/imdhq/imd/pkg/im"
	"github.com/imdhq/imd/pkg/run"
	v1 "github.com/imdhq/imd/proto/gen/internalv1"
	"github.com/imdhq/imd/sdk/go/gen/clientv1"
	"github.com/imdhq/imd/sdk/go/protocol"
)

// Times and bounds of a gateway.
const (
	submitTimeout = 1200 * time.Millisecond
	submitAge     = 400 * time.Millisecond
	submitSends   = 200
	submitBytes   = 256 << 10
	readTimeout   = 1200 * time.Millisecond
	firstCompare  = time.Second // between tries of the first comparison of heads
)

// gateway is one node with the gateway role.
type gateway struct {
	process
	n        int
	links    []*link
	sessions []*session // registered: can be delivered to
	outlets  []*submitter
	ring     int // turns which state node a conversation belongs to
	since    time.Duration
}

// submitter carries runs to one state node.
type submitter struct {
	node    *stateNode
	waiting []submission
	calls   int
}

// submission is a run that waits for a call.
type submission struct {
	s       *session
	out     run.Out
	offered time.Duration
}

func (g *gateway) start() {
	g.links, g.sessions, g.outlets, g.since = nil, nil, nil, everything
	for _, n := range g.w.states {
		g.outlets = append(g.outlets, &submitter{node: n})
	}
	if g.w.plan.antiEntropy > 0 && g.w.bad != NoAntiEntropy {
		g.later(0, g.compare)
	}
}

// accept takes a connection.
func (g *gateway) accept(l *link) {
	s := &session{w: g.w, g: g, link: l, user: l.dev.user, device: l.dev.id, id: g.w.name("s"), pinged: -1}
	s.unacked.First, s.unacked.Jitter = 3*time.Second, func() float64 { return 1 }
	s.queue.User, s.queue.Session = string(s.user), s.id
	l.sess = s
	g.links = append(g.links, l)
}

// deliver takes deliveries of push.
func (g *gateway) deliver(ds []*shipment) {
	for _, d := range ds {
		for _, id := range d.sessions {
			if i := slices.IndexFunc(g.sessions, func(s *session) bool { return s.id == id }); i >= 0 {
				g.sessions[i].deliver(d)
			}
		}
	}
}

// kick ends sessions.
func (g *gateway) kick(id, reason string) {
	if i := slices.IndexFunc(g.sessions, func(s *session) bool { return s.id == id }); i >= 0 {
		g.sessions[i].end(reason)
	}
}

// submit hands runs to the state nodes that this gateway holds for theirs.
func (g *gateway) submit(s *session, outs []run.Out) {
	slices.SortFunc(outs, func(a, b run.Out) int { return cmp.Compare(a.Run.ConversationId, b.Run.ConversationId) })
	for _, o := range outs {
		t := g.outlets[(hashOf(o.Run.ConversationId)+g.ring)%len(g.outlets)]
		t.waiting = append(t.waiting, submission{s, o, g.w.now})
		g.carry(t)
	}
}

// carry makes a call for what waits, if one more may be made.
func (g *gateway) carry(t *submitter) {
	for len(t.waiting) > 0 && t.calls < g.w.plan.submitCalls {
		batch, late := t.take(g.w.now)
		for _, x := range late {
			x.s.submitted(x.out, nil, protocol.NewError("busy", "", 0))
		}
		if len(batch) > 0 {
			t.calls++
			g.callState(t, batch)
		}
	}
}

// take removes what goes into the next call.
func (t *submitter) take(now time.Duration) (batch, late []submission) {
	sends, bytes, i := 0, 0, 0
	for ; i < len(t.waiting); i++ {
		x := t.waiting[i]
		n := len(x.out.Run.Sends)
		if now-x.offered > submitAge {
			late = append(late, x)
			continue
		}
		if len(batch) > 0 && (sends+n > submitSends || bytes+x.out.Size > submitBytes) {
			break
		}
		batch = append(batch, x)
		sends += n
		bytes += x.out.Size
	}
	t.waiting = t.waiting[i:]
	return batch, late
}

// callState submits a batch and hands out the results.
func (g *gateway) callState(t *submitter, batch []submission) {
	runs := make([]*v1.Run, len(batch))
	for i, x := range batch {
		runs[i] = x.out.Run
	}
	g.w.call(call{
		from: &g.process, to: &t.node.process, loss: g.w.plan.submitLoss, timeout: submitTimeout,
		serve: func(reply func(any)) { t.node.submit(runs, reply) },
		done: func(res any, ok bool) {
			t.calls--
			if !ok && g.w.rng.IntN(2) == 0 {
				g.ring++ // this node is held to be away
			}
			for i, x := range batch {
				if ok {
					x.s.submitted(x.out, res.([][]*clientv1.SendAck)[i], nil)
				} else {
					x.s.submitted(x.out, nil, protocol.NewError("unavailable", "", 0))
				}
			}
			g.carry(t)
		},
	})
}

// read makes a call to any state node on behalf of a request.
func (g *gateway) read(serve func(reply func(any)), done func(res any, ok bool)) {
	n := g.w.states[g.w.rng.IntN(len(g.w.states))]
	g.w.call(call{from: &g.process, to: &n.process, loss: g.w.plan.readLoss, timeout: readTimeout, serve: serve, done: done})
}

// compare asks state for the heads that changed, and tells sessions that do not
// know them.
func (g *gateway) compare() {
	interval := g.w.plan.antiEntropy
	again := func() {
		wait := g.w.between(interval*8/10, interval*12/10)
		if g.since == everything {
			wait = min(wait, firstCompare)
		}
		g.later(wait, g.compare)
	}
	var users []im.UserID
	for _, s := range g.sessions {
		if !slices.Contains(users, s.user) {
			users = append(users, s.user)
		}
	}
	type answer struct {
		heads []userHead
		next  time.Duration
		epoch string
	}
	since := g.since
	g.read(func(reply func(any)) {
		if since == everything {
			since = g.w.now // a version to begin with
		}
		heads, next := g.w.store.heads(users, since)
		reply(answer{heads, next, g.w.store.epochName()})
	}, func(res any, ok bool) {
		defer again()
		if !ok {
			return
		}
		a := res.(answer)
		g.since = a.next
		for _, s := range slices.Clone(g.sessions) {
			if s.phase == online && s.epoch != a.epoch {
				s.end("resync")
			}
		}
		for _, h := range a.heads {
			for _, s := range g.sessions {
				if s.user == h.user && s.phase == online && s.seen.Get(h.conv).Any < h.seq {
					s.head(h.conv, h.seq)
				}
			}
		}
	})
}

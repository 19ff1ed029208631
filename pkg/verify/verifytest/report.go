package verifytest

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/imdhq/imd/pkg/history"
)

// report writes down what was planned.
func (g *generator) report() {
	g.made.Run = history.Run{Seed: g.seed, Server: "made", Allocator: "transaction", Began: "2026-01-01T00:00:00Z", Healed: g.healed, Ended: g.ended}
	if g.size.Segment {
		g.made.Run.Allocator = "segment"
	}
	g.ops()
	for i := range g.users {
		for _, d := range g.users[i].devices {
			g.device(i, d)
		}
	}
	for i, f := range g.faults {
		name := fmt.Sprintf("%d kill", i+1)
		g.add("faults.log", history.Record{T: f[0], Kind: history.Fault, Name: name})
		g.add("faults.log", history.Record{T: f[1], Kind: history.Fault, Name: name, Stop: true})
	}
	if g.size.Faults > 0 { // one that clients must not feel, at the end
		aside := history.Record{T: max(g.healed-calm+slack, second), Kind: history.Fault, Name: "99 etcd-outage", Entry: history.Aside}
		g.add("faults.log", aside)
		aside.T, aside.Stop = g.healed, true
		g.add("faults.log", aside)
	}
	for _, c := range g.convs {
		g.final(c)
	}
	if !g.size.Plain {
		g.plane()
		g.where()
		g.effects()
	}
}

func (g *generator) add(file string, r history.Record) {
	g.made.Entries = append(g.made.Entries, Entry{file, r})
}

// ops are the sends of the recorded users, and a stranger's who is refused.
func (g *generator) ops() {
	var all []history.Record
	for _, m := range g.sends {
		base := history.Record{User: m.sender, Device: m.device, Conv: g.convs[m.conv].id, CMID: m.cmid}
		at := func(t int64, kind history.Kind, ack string) *history.Record {
			r := base
			r.T, r.Kind, r.Ack = t, kind, ack
			if kind == history.Invoke {
				r.N, r.Hash = m.n, m.hash
			}
			all = append(all, r)
			return &all[len(all)-1]
		}
		at(m.invoked, history.Invoke, "")
		switch {
		case m.retried:
			at(m.lost, history.Return, history.AckRetry).Reason = "overloaded"
			at(m.again, history.Invoke, "")
		case m.lost != 0:
			at(m.lost, history.Return, history.AckUnknown)
			at(m.again, history.Invoke, "")
		}
		ok := at(m.answered, history.Return, history.AckOK)
		ok.MID, ok.Seq, ok.Prev, ok.Dup = m.mid, m.seq, m.prev, m.lost != 0 && !m.retried && m.commit < m.again
	}
	c := g.convs[0]
	for i := range g.users {
		if slices.Contains(c.members, i) || c.joins[i] != nil {
			continue
		}
		u := g.users[i]
		r := history.Record{T: second, Kind: history.Invoke, User: u.id, Device: u.devices[0], Conv: c.id, CMID: "stranger", N: 1, Hash: "hx"}
		all = append(all, r)
		r.T, r.Kind, r.Ack, r.Reason, r.N, r.Hash = second+ms, history.Return, history.AckFail, "not_member", 0, ""
		all = append(all, r)
		break
	}
	slices.SortStableFunc(all, func(a, b history.Record) int { return cmp.Compare(a.T, b.T) })
	for _, r := range all {
		g.add("client-1.ops", r)
	}
}

// session is a time in which a device is online.
type session struct {
	from, to int64
	resync   bool
}

// sessions plans a device's connections. The last one lasts to the end, unless
// the device goes away for good.
func (g *generator) sessions() []session {
	var all []session
	end := g.ended - 5*second
	t := g.between(0, second)
	for {
		s := session{from: t, to: t + g.between(3*second, 20*second), resync: len(all) > 0 && g.chance(0.1)}
		if s.to >= end-second {
			s.to = g.ended
			if s.from < end-2*second && g.chance(0.1) {
				s.to = end - second // gone
			}
			return append(all, s)
		}
		all = append(all, s)
		t = s.to + g.between(100*ms, 2*second)
	}
}

// shower is a device that records its view.
type shower struct {
	g        *generator
	file     string
	base     history.Record
	epoch    int
	sessions []session
	views    []history.Record
}

// device writes the view of one device.
func (g *generator) device(u int, name string) {
	s := &shower{g: g, file: fmt.Sprintf("client-%d.view", u%4), base: history.Record{User: g.users[u].id, Device: name}, epoch: 1, sessions: g.sessions()}
	for i, at := range s.sessions {
		s.note(at.from, history.Connect, func(r *history.Record) { r.Name = fmt.Sprintf("e%d", s.epoch) })
		if at.resync {
			s.epoch++
			s.note(at.from+1, history.Resync, func(r *history.Record) { r.Name = fmt.Sprintf("e%d", s.epoch) })
		}
		s.note(at.from+2, history.Digest, func(r *history.Record) { r.Ack = history.AckOK })
		if at.to < g.ended {
			s.note(at.to, history.Disconnect, nil)
		} else if i == len(s.sessions)-1 {
			s.note(g.ended-second, history.Settled, nil)
		}
	}
	for _, c := range g.convs {
		if lo, hi, ok := c.span(u); ok {
			s.follow(c, lo, hi)
		}
	}
	slices.SortStableFunc(s.views, func(a, b history.Record) int { return cmp.Compare(a.T, b.T) })
	for _, r := range s.views {
		g.add(s.file, r)
	}
}

func (s *shower) note(t int64, kind history.Kind, more func(*history.Record)) {
	r := s.base
	r.T, r.Kind = t, kind
	if more != nil {
		more(&r)
	}
	s.views = append(s.views, r)
}

// follow shows one conversation over all sessions.
func (s *shower) follow(c *conversation, lo, hi int64) {
	g, have, next := s.g, lo, 0
	if len(c.log) > 0 && g.chance(0.2) { // a device that begins at the head
		for next < len(c.log) && c.log[next].commit < s.sessions[0].from {
			have = max(have, c.log[next].seq)
			next++
		}
	}
	for i, at := range s.sessions {
		if at.resync {
			have, next = lo, 0
		}
		switch {
		case at.resync || i == 0 && (have > 0 || g.chance(0.5)):
			s.note(at.from+2, history.Open, func(r *history.Record) { r.Conv, r.Seq = c.id, have })
		case i > 0:
			s.note(at.from+2, history.Have, func(r *history.Record) { r.Conv, r.Seq = c.id, have })
		}
		t := at.from + 3
		for ; next < len(c.log); next++ {
			m := c.log[next]
			shown := max(t+1, m.commit+g.between(ms, 50*ms))
			if shown >= at.to {
				break
			}
			if m.seq <= have || m.seq > hi && hi != 0 {
				continue
			}
			have = m.seq
			if m.entry != "message" {
				continue
			}
			t = shown
			s.note(t, history.Show, func(r *history.Record) {
				r.Conv, r.Seq, r.MID, r.Sender, r.Hash, r.Entry = c.id, m.seq, m.mid, m.sender, m.hash, m.entry
			})
		}
	}
}

// span is what a user may see.
func (c *conversation) span(u int) (lo, hi int64, ok bool) {
	if slices.Contains(c.members, u) {
		return 0, 0, true
	}
	join := c.joins[u]
	if join == nil {
		return 0, 0, false
	}
	if end := c.leaves[u]; end != nil {
		hi = end.seq
	}
	return join.seq - 1, hi, true
}

// final is a conversation's ground truth.
func (g *generator) final(c *conversation) {
	for _, m := range c.log {
		g.add("db.final", history.Record{Kind: history.Row, Conv: c.id, Seq: m.seq, Prev: m.prev, MID: m.mid, Sender: m.sender, CMID: m.cmid, Hash: m.hash, Entry: m.entry})
	}
	for u := range g.users {
		if lo, hi, ok := c.span(u); ok {
			g.add("members.final", history.Record{Kind: history.Span, User: g.users[u].id, Conv: c.id, Seq: lo, To: hi})
		}
	}
}

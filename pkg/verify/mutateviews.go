package verify

import (
	"fmt"
	"iter"
	"slices"
)

// shown is a show, and what its device recorded of that conversation.
type shown struct {
	*story
	at uint32 // in History.views
}

// lasting gives the shows of messages behind the last resync: nothing takes
// them back.
func (m *mutant) lasting() iter.Seq[shown] {
	return func(yield func(shown) bool) {
		list, _ := m.good.stories()
		for i := range list {
			s := &list[i]
			for _, at := range m.lastLife(s) {
				if !yield(shown{s, at}) {
					return
				}
			}
		}
	}
}

// lastLife gives the shows of messages of a story behind its last resync.
func (m *mutant) lastLife(s *story) []uint32 {
	since := int64(-1)
	for v := range m.good.told(s) {
		if v.kind == viewResync {
			since = v.t
		}
	}
	var list []uint32
	for _, at := range s.own {
		if v := &m.views[at]; v.kind == viewShow && v.word == nameMessage && v.t > since {
			list = append(list, at)
		}
	}
	return list
}

// due gives the shows that I7 demands: of settled devices, and of messages that
// were acknowledged before.
func (m *mutant) due() iter.Seq[shown] {
	acked := map[[2]int64]int64{} // by conversation and seq
	for s := range m.stored() {
		acked[[2]int64{int64(s.conv), m.rows[s.row].seq}] = s.acked
	}
	return func(yield func(shown) bool) {
		for s := range m.lasting() {
			v, settled := &m.views[s.at], m.good.settled(s.wide)
			t, ok := acked[[2]int64{int64(v.conv), v.seq}]
			if ok && settled != never && t <= settled && v.t <= settled && !yield(s) {
				return
			}
		}
	}
}

func (m *mutant) tell(s shown) string {
	v := &m.good.views[s.at]
	return fmt.Sprintf("seq %d of %s on %s of %s", v.seq, m.names.text(s.conv), m.names.text(s.device), m.names.text(s.user))
}

func (m *mutant) neverShown() string {
	s, ok := choose(m.rng, m.due())
	if !ok {
		return ""
	}
	without(&m.views, int(s.at))
	return m.tell(s)
}

// newestNotShown drops the last of what a device should have shown.
func (m *mutant) newestNotShown() string {
	last := map[*story]shown{}
	for s := range m.due() {
		last[s.story] = s
	}
	s, ok := choose(m.rng, func(yield func(shown) bool) {
		list, _ := m.good.stories()
		for i := range list {
			if s, ok := last[&list[i]]; ok && !yield(s) {
				return
			}
		}
	})
	if !ok {
		return ""
	}
	without(&m.views, int(s.at))
	return m.tell(s)
}

// nothingShown drops everything that a device showed of a conversation.
func (m *mutant) nothingShown() string {
	s, ok := choose(m.rng, m.due())
	if !ok {
		return ""
	}
	var drop []int
	for _, at := range s.own {
		if m.views[at].kind == viewShow {
			drop = append(drop, int(at))
		}
	}
	without(&m.views, drop...)
	return m.tell(s)
}

// leftBehind lets a device be online without settling.
func (m *mutant) leftBehind() string {
	s, ok := choose(m.rng, func(yield func(shown) bool) {
		for s := range m.due() {
			if m.good.online(s.wide) != nil && !yield(s) {
				return
			}
		}
	})
	if !ok {
		return ""
	}
	views := own(&m.views)
	for _, i := range s.wide {
		if views[i].kind == viewSettled {
			views[i].kind = viewConnect
		}
	}
	return m.tell(s)
}

func changeShow(change func(*view)) func(*mutant) string {
	return func(m *mutant) string {
		s, ok := choose(m.rng, m.lasting())
		if !ok {
			return ""
		}
		change(&own(&m.views)[s.at])
		return m.tell(s)
	}
}

// add appends a view at the end of the run.
func (m *mutant) add(v view, after int64) {
	v.t, v.at = m.Run.Ended+after, at{}
	m.views = append(slices.Clip(m.views), v)
}

// addShow adds a changed copy of a show at the end.
func addShow(change func(*view)) func(*mutant) string {
	return func(m *mutant) string {
		s, ok := choose(m.rng, m.lasting())
		if !ok {
			return ""
		}
		v := m.views[s.at]
		change(&v)
		m.add(v, 1)
		return m.tell(s)
	}
}

// resumeWith lets a device connect once more and then do what a changed copy of
// a show says.
func resumeWith(change func(*view)) func(*mutant) string {
	return func(m *mutant) string {
		s, ok := choose(m.rng, m.lasting())
		if !ok {
			return ""
		}
		v := m.views[s.at]
		change(&v)
		m.add(view{user: s.user, device: s.device, kind: viewConnect}, 1)
		m.add(v, 2)
		return m.tell(s)
	}
}

func (m *mutant) shownTwice() string {
	s, ok := choose(m.rng, m.lasting())
	if !ok {
		return ""
	}
	v := m.views[s.at]
	v.at = at{}
	m.views = append(slices.Clip(m.views), v)
	return m.tell(s)
}

// swapShows lets two shows that follow each other change places.
func (m *mutant) swapShows() string {
	pair, ok := choose(m.rng, func(yield func([2]shown) bool) {
		var before *shown
		for s := range m.lasting() {
			if before != nil && before.story == s.story && !yield([2]shown{*before, s}) {
				return
			}
			before = &s
		}
	})
	if !ok {
		return ""
	}
	views := own(&m.views)
	a, b := &views[pair[0].at], &views[pair[1].at]
	a.seq, b.seq, a.mid, b.mid = b.seq, a.seq, b.mid, a.mid
	return m.tell(pair[0])
}

func (m *mutant) sameEpoch() string {
	s, ok := choose(m.rng, m.lasting())
	if !ok {
		return ""
	}
	anew := view{user: s.user, device: s.device, kind: viewResync, word: nameMade}
	m.add(anew, 1)
	m.add(anew, 2)
	return m.tell(s)
}

// forgetResync drops a resync behind which a device showed again what it had
// shown before.
func (m *mutant) forgetResync() string {
	at, ok := choose(m.rng, func(yield func(uint32) bool) {
		list, _ := m.good.stories()
		for i := range list {
			for at := range m.needed(&list[i]) {
				if !yield(at) {
					return
				}
			}
		}
	})
	if !ok {
		return ""
	}
	v := &m.good.views[at]
	without(&m.views, int(at))
	return fmt.Sprintf("%s of %s", m.names.text(v.device), m.names.text(v.user))
}

// needed gives the resyncs of a story that the first show behind them needs.
func (m *mutant) needed(s *story) iter.Seq[uint32] {
	return func(yield func(uint32) bool) {
		for _, list := range [][]uint32{s.wide, s.own} {
			for _, at := range list {
				if m.views[at].kind == viewResync && m.needs(s, m.views[at].t) && !yield(at) {
					return
				}
			}
		}
	}
}

// needs reports whether the last show before t is above the first one after it.
func (m *mutant) needs(s *story, t int64) bool {
	var before *view
	for v := range m.good.told(s) {
		switch {
		case v.kind == viewShow && v.t < t:
			before = v
		case v.kind == viewResync && v.t < t:
			before = nil
		case v.kind == viewResync && v.t > t:
			return false
		case v.kind == viewShow:
			return before != nil && v.seq <= before.seq
		}
	}
	return false
}

// cutSpan takes the right to see a show away.
func cutSpan(change func(s *span, seq int64)) func(*mutant) string {
	return func(m *mutant) string {
		s, ok := choose(m.rng, func(yield func(shown) bool) {
			for s := range m.lasting() {
				if m.views[s.at].seq > 1 && !yield(s) {
					return
				}
			}
		})
		if !ok {
			return ""
		}
		seq, spans := m.views[s.at].seq, own(&m.spans)
		for i := range spans {
			if p := &spans[i]; p.user == s.user && p.conv == s.conv && p.holds(seq) {
				change(p, seq)
			}
		}
		return m.tell(s)
	}
}

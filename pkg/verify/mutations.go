package verify

import (
	"cmp"
	"fmt"
	"iter"
	"slices"

	"github.com/imdhq/imd/pkg/history"
)

// mutations are the ways to break each invariant.
var mutations = map[string][]kind{
	"I1": {
		{"an acknowledged row lost", (*mutant).loseRow},
		{"the content of an acknowledged row changed", changeRow(func(r *row) { r.hash = nameMade })},
		{"the seq of an acknowledged row changed", changeRow(func(r *row) { r.seq += 1 << 40 })},
		{"the id of an acknowledged row changed", changeRow(func(r *row) { r.mid++ })},
		{"a content gone before older ones", (*mutant).goneEarly},
		{"the content of an acknowledged row gone", changeRow(func(r *row) { r.hash = 0 })},
		{"an answer with another prev_seq", changeOK(func(o *op) { o.prev += 1 << 40 })},
	},
	"I2": {
		{"a message from nowhere", addRow(func(r *row) { r.cmid, r.seq, r.mid = nameMade, r.seq+1<<40, r.mid+1<<40 })},
		{"a row under another key", changeRow(func(r *row) { r.cmid = nameMade })},
		{"a content that was never sent", changeRow(func(r *row) { r.hash = nameMade })},
		{"an answer to a send that was never made", addOp(func(o *op) { o.cmid = nameMade })},
	},
	"I3": {
		{"a second answer with another seq", addOp(func(o *op) { o.seq++ })},
		{"a second answer with another id", addOp(func(o *op) { o.mid++ })},
		{"a message stored twice", addRow(func(r *row) { r.seq, r.mid = r.seq+1<<40, r.mid+1<<40 })},
		{"refused after it was acknowledged", (*mutant).refuseAgain},
	},
	"I4": {
		{"a hole", (*mutant).hole},
		{"a wrong prev_seq", changeRow(func(r *row) { r.prev++ })},
		{"two rows with one seq", (*mutant).oneSeq},
		{"two rows change places", (*mutant).swapRows},
	},
	"I5": {
		{"a message ahead of one acknowledged just before", swapPair(false)},
		{"a message far ahead of its time", swapPair(true)},
		{"a message that left after a later one was acknowledged", (*mutant).lateLeave},
	},
	"I6": {
		{"neighbours of a sender change places", swapSends(false)},
		{"the first and the last of a sender change places", swapSends(true)},
		{"sends of a device with their numbers exchanged", (*mutant).swapNumbers},
		{"sends across a change of the ring change places", (*mutant).swapAcross},
	},
	"I7": {
		{"a message never shown", (*mutant).neverShown},
		{"the newest message never shown", (*mutant).newestNotShown},
		{"a conversation never shown", (*mutant).nothingShown},
		{"shown as another message", changeShow(func(v *view) { v.mid++ })},
		{"shown without being stored", addShow(func(v *view) { v.seq += 1 << 40 })},
		{"a device left behind", (*mutant).leftBehind},
	},
	"I8": {
		{"a message shown twice", (*mutant).shownTwice},
		{"an old message shown at the end", addShow(func(*view) {})},
		{"two shows change places", (*mutant).swapShows},
	},
	"I9": {
		{"a conversation taken up too low", resumeWith(func(v *view) { v.kind, v.seq = viewHave, v.seq-1 })},
		{"an old message shown after a reconnect", resumeWith(func(*view) {})},
		{"begun anew twice for one data_epoch", (*mutant).sameEpoch},
		{"begun anew without being told", (*mutant).forgetResync},
	},
	"I10": {
		{"an effect of a deposed leader", (*mutant).deposed},
		{"an effect that was refused takes place", (*mutant).takenAfterAll},
		{"an effect of another with the leader's token", changeAct(history.Effect, func(a *act) { a.user = nameMade })},
		{"an effect with a token of nobody", changeAct(history.Effect, func(a *act) { a.n += 1 << 40 })},
		{"a token given twice", addAct(history.Claim, func(a *act) { a.user = nameMade })},
		{"an event never told", (*mutant).neverTold},
		{"a receiver that is told nothing", (*mutant).toldNothing},
		{"an event never taken", changeEvent(func(d *deed) { d.ack = ackFail })},
		{"an event told with another content", changeEvent(func(d *deed) { d.hash = nameMade })},
		{"a repeat with another content", copyDeed(event, func(d *deed) { d.hash = nameMade })},
		{"an event told with a second key", copyDeed(event, func(d *deed) { d.entry = nameMade })},
		{"an event told before the one in front of it", (*mutant).toldEarly},
		{"two events with one number", (*mutant).oneNumber},
		{"an event from nowhere", copyDeed(event, func(d *deed) { d.entry, d.seq, d.n = nameMade, d.seq+1<<40, d.n+1<<40 })},
		{"a user never notified", (*mutant).neverNotified},
		{"a user notified of what was read", (*mutant).notifiedOfRead},
		{"a notice that is not taken back", (*mutant).notTakenBack},
		{"a notice of a message from nowhere", copyDeed(push, func(d *deed) { d.entry, d.seq = nameMade, d.seq+1<<40 })},
		{"a notice for a stranger", copyDeed(push, func(d *deed) { d.entry, d.user = nameMade, nameMade })},
		{"a scheduled message never sent", breakAppointment(func(m *mutant, _ *appointment, row int) { without(&m.rows, row) })},
		{"a scheduled message sent twice", breakAppointment((*mutant).sentTwice)},
		{"a scheduled message sent before its time", breakAppointment((*mutant).sentEarly)},
		{"a scheduled message sent with another content", breakAppointment(func(m *mutant, _ *appointment, row int) { own(&m.rows)[row].hash = nameMade })},
		{"a scheduled message of nobody", (*mutant).sentForNobody},
		{"a cancelled message sent", (*mutant).sentThough},
		{"an announcement shown twice", copyDeed(ofKind(history.Notice), func(*deed) {})},
		{"an announcement of nobody", (*mutant).noticeOfNobody},
		{"an announcement never shown", (*mutant).neverNoticed},
		{"an announcement shown after it was taken back", noticedLate(true)},
		{"an announcement shown after its end", noticedLate(false)},
	},
	"I11": {
		{"a route epoch that goes back", changeCall(nameClaim, func(a *act) bool { return a.prev > 1 }, func(a *act) { a.seq = 1 })},
		{"a route that is there is not found", changeCall(nameLookup, func(a *act) bool { return a.list != 0 }, func(a *act) { a.list = 0 })},
		{"a clean-up that removes another's route", changeCall(nameRelease, func(a *act) bool { return !a.was }, func(a *act) { a.was = true })},
		{"a session that lost its route keeps it", changeCall(nameRefresh, func(a *act) bool { return a.reason == nameSuperseded || a.reason == nameReplaced },
			func(a *act) { a.reason = nameKept })},
	},
	"I12": {
		{"a session that stays beside its heir", (*mutant).staysIn},
		{"a session that ends for another that never was", (*mutant).endedForNobody},
	},
	"I13": {
		{"a user seen online after the process was killed", (*mutant).seenOn},
		{"a user who is online and not seen", (*mutant).notSeen},
	},
	"I14": {
		{"two rows with one id", (*mutant).rowsWithOneID},
		{"an answer with the id of another message", (*mutant).answerWithOtherID},
		{"a message without id", changeRow(func(r *row) { r.mid = 0 })},
		{"an id made twice", addAct(history.Made, func(*act) {})},
	},
	"I15": {
		{"a half of a change in force", changeAct(history.Applied, func(a *act) { a.to-- })},
		{"a change in force that must be refused", (*mutant).wrongInForce},
		{"a change in force that nobody made", changeAct(history.Applied, func(a *act) { a.n, a.to = a.n+1<<40, a.n+1<<40 })},
		{"a change that never comes", neverInForce(false)},
		{"a change that comes late", neverInForce(true)},
	},
	"I16": {
		{"a living node left out", leaveOut(false)},
		{"a living node left out while etcd is away", leaveOut(true)},
		{"a living node never used", (*mutant).neverUsed},
		{"a dead node used on", (*mutant).usedDead},
	},
	"I17": {
		{"shown to a stranger", addShow(func(v *view) { v.user = nameMade })},
		{"shown after leaving", cutSpan(func(s *span, seq int64) { s.to = seq - 1 })},
		{"shown before joining", cutSpan(func(s *span, seq int64) { s.seq = seq })},
		{"shown to one who never was a member", cutSpan(func(s *span, _ int64) { s.user = nameMade })},
	},
	"I18": {
		{"answers here and there late", worsen(false, func(o *op) { o.t += int64(Prompt) + 1 })},
		{"a stall", worsen(true, func(o *op) { o.t += int64(Prompt) + 1 })},
		{"a stall under faults that clients must not feel", (*mutant).feltAside},
		{"answers that never came", worsen(false, func(o *op) { o.ack = ackUnknown })},
	},
	"I19": {
		{"never answered", (*mutant).neverAnswered},
		{"left at a retry", changeAnswers(func(o *op) { o.ack = ackRetry })},
		{"left unknown", changeAnswers(func(o *op) { o.ack = ackUnknown })},
		{"refused but stored", changeAnswers(func(o *op) { o.ack = ackFail })},
		{"acknowledged but not stored", (*mutant).loseRow},
	},
	"I20": {
		{"a head that no sync told of", (*mutant).untoldHead},
	},
}

// stored are the sends that were acknowledged and are in the log.
func (m *mutant) stored() iter.Seq[*send] {
	return func(yield func(*send) bool) {
		sends := m.good.sends()
		for i := range sends {
			if s := &sends[i]; s.acked != never && s.row >= 0 && s.invoked != never && !yield(s) {
				return
			}
		}
	}
}

func (m *mutant) aSend() (*send, bool) { return choose(m.rng, m.stored()) }

func (m *mutant) name(s *send) string {
	return fmt.Sprintf("send %s of %s in %s", m.names.text(s.cmid), m.names.text(s.user), m.names.text(s.conv))
}

// answersOf gives the places of a send's answers of some kinds.
func (m *mutant) answersOf(s *send, kinds ...ack) []int {
	var at []int
	for _, i := range m.good.opOrder[s.lo:s.hi] {
		if slices.Contains(kinds, m.good.ops[i].ack) {
			at = append(at, int(i))
		}
	}
	return at
}

func (m *mutant) loseRow() string {
	s, ok := m.aSend()
	if !ok {
		return ""
	}
	without(&m.rows, int(s.row))
	return m.name(s)
}

func changeRow(change func(*row)) func(*mutant) string {
	return func(m *mutant) string {
		s, ok := m.aSend()
		if !ok {
			return ""
		}
		change(&own(&m.rows)[s.row])
		return m.name(s)
	}
}

func changeOK(change func(*op)) func(*mutant) string {
	return func(m *mutant) string {
		s, ok := m.aSend()
		if !ok {
			return ""
		}
		at := m.answersOf(s, ackOK)
		change(&own(&m.ops)[at[m.rng.IntN(len(at))]])
		return m.name(s)
	}
}

// changeAnswers changes every definite answer to a send.
func changeAnswers(change func(*op)) func(*mutant) string {
	return func(m *mutant) string {
		s, ok := m.aSend()
		if !ok {
			return ""
		}
		ops := own(&m.ops)
		for _, i := range m.answersOf(s, ackOK, ackFail) {
			change(&ops[i])
		}
		return m.name(s)
	}
}

// addRow adds a changed copy of a row.
func addRow(change func(*row)) func(*mutant) string {
	return func(m *mutant) string {
		s, ok := m.aSend()
		if !ok {
			return ""
		}
		r := m.rows[s.row]
		change(&r)
		r.at = at{}
		m.rows = append(slices.Clip(m.rows), r)
		return m.name(s)
	}
}

// addOp adds a changed copy of an answer at the end of the run.
func addOp(change func(*op)) func(*mutant) string {
	return func(m *mutant) string {
		s, ok := m.aSend()
		if !ok {
			return ""
		}
		o := m.ops[m.answersOf(s, ackOK)[0]]
		o.t, o.at = m.Run.Ended+1, at{}
		change(&o)
		m.ops = append(slices.Clip(m.ops), o)
		return m.name(s)
	}
}

func (m *mutant) refuseAgain() string {
	s, ok := m.aSend()
	if !ok {
		return ""
	}
	again := op{t: m.Run.Ended + 1, user: s.user, device: s.device, conv: s.conv, cmid: s.cmid, hash: s.hash, n: s.n}
	refused := again
	refused.t, refused.ack, refused.n, refused.hash = again.t+1, ackFail, 0, 0
	m.ops = append(slices.Clip(m.ops), again, refused)
	return m.name(s)
}

func (m *mutant) neverAnswered() string {
	s, ok := m.aSend()
	if !ok {
		return ""
	}
	without(&m.ops, m.answersOf(s, ackOK, ackFail, ackRetry, ackUnknown)...)
	return m.name(s)
}

// neighbours gives pairs of rows that follow each other in a conversation.
func (m *mutant) neighbours() iter.Seq[[2]uint32] {
	return func(yield func([2]uint32) bool) {
		order, _ := m.good.ordered()
		for i := 1; i < len(order); i++ {
			if m.rows[order[i-1]].conv == m.rows[order[i]].conv && !yield([2]uint32{order[i-1], order[i]}) {
				return
			}
		}
	}
}

// onRows does something to two neighbours.
func (m *mutant) onRows(do func(a, b int)) string {
	pair, ok := choose(m.rng, m.neighbours())
	if !ok {
		return ""
	}
	r := &m.good.rows[pair[0]]
	do(int(pair[0]), int(pair[1]))
	return fmt.Sprintf("seq %d of %s", r.seq, m.names.text(r.conv))
}

func (m *mutant) hole() string {
	return m.onRows(func(a, _ int) { without(&m.rows, a) })
}

// goneEarly removes the content of a message whose neighbour below keeps its own.
func (m *mutant) goneEarly() string {
	pair, ok := choose(m.rng, func(yield func([2]uint32) bool) {
		for p := range m.neighbours() {
			a, b := &m.rows[p[0]], &m.rows[p[1]]
			if a.entry == nameMessage && a.hash != 0 && b.entry == nameMessage && b.hash != 0 && !yield(p) {
				return
			}
		}
	})
	if !ok {
		return ""
	}
	own(&m.rows)[pair[1]].hash = 0
	return fmt.Sprintf("seq %d of %s", m.rows[pair[1]].seq, m.names.text(m.rows[pair[1]].conv))
}

func (m *mutant) oneSeq() string {
	return m.onRows(func(a, b int) { rows := own(&m.rows); rows[a].seq = rows[b].seq })
}

func (m *mutant) swapRows() string {
	return m.onRows(func(a, b int) { rows := own(&m.rows); rows[a].seq, rows[b].seq = rows[b].seq, rows[a].seq })
}

// exchange lets two sends change places, in the log and in all answers.
func (m *mutant) exchange(a, b *send) {
	rows, ops := own(&m.rows), own(&m.ops)
	ra, rb := &rows[a.row], &rows[b.row]
	ra.seq, rb.seq = rb.seq, ra.seq
	ra.prev, rb.prev = rb.prev, ra.prev
	for _, s := range []*send{a, b} {
		for _, i := range m.answersOf(s, ackOK) {
			ops[i].seq, ops[i].prev = rows[s.row].seq, rows[s.row].prev
		}
	}
}

// sequential gives pairs of sends of which the first was acknowledged before
// the second left: the first is the newest such, or the oldest.
func (m *mutant) sequential(oldest bool) iter.Seq[[2]*send] {
	return func(yield func([2]*send) bool) {
		began := slices.Collect(m.stored())
		done := slices.Clone(began)
		slices.SortFunc(began, func(a, b *send) int { return cmp.Or(cmp.Compare(a.conv, b.conv), cmp.Compare(a.invoked, b.invoked)) })
		slices.SortFunc(done, func(a, b *send) int { return cmp.Or(cmp.Compare(a.conv, b.conv), cmp.Compare(a.acked, b.acked)) })
		first, next := 0, 0
		for _, b := range began {
			for done[first].conv != b.conv {
				first++
			}
			next = max(next, first)
			for next < len(done) && done[next].conv == b.conv && done[next].acked < b.invoked {
				next++
			}
			if next == first {
				continue
			}
			a := done[next-1]
			if oldest {
				a = done[first]
			}
			if !yield([2]*send{a, b}) {
				return
			}
		}
	}
}

func swapPair(far bool) func(*mutant) string {
	return func(m *mutant) string {
		pair, ok := choose(m.rng, m.sequential(far))
		if !ok {
			return ""
		}
		m.exchange(pair[0], pair[1])
		return m.name(pair[0]) + " and " + m.name(pair[1])
	}
}

// lateLeave lets the first of two sends happen after the second, but keeps
// their places in the log.
func (m *mutant) lateLeave() string {
	pair, ok := choose(m.rng, m.sequential(false))
	if !ok {
		return ""
	}
	a, b := pair[0], pair[1]
	ops := own(&m.ops)
	for _, i := range m.good.opOrder[a.lo:a.hi] {
		ops[i].t += b.acked - a.invoked + 1
	}
	return m.name(a)
}

// devices gives what I6 judges: the sends of each device in each conversation.
func (m *mutant) devices() iter.Seq[[]*send] {
	return func(yield func([]*send) bool) {
		for _, lane := range m.good.lanes() {
			var judged []*send
			for i, s := range lane {
				if s.row >= 0 && !m.good.gaveUp(lane, i) && !m.good.mayHaveFailed(s) {
					judged = append(judged, s)
				}
			}
			if len(judged) > 1 && !yield(judged) {
				return
			}
		}
	}
}

// twoOf chooses two sends of a device.
func (m *mutant) twoOf(far bool) (a, b *send) {
	list, ok := choose(m.rng, m.devices())
	if !ok {
		return nil, nil
	}
	if far {
		return list[0], list[len(list)-1]
	}
	i := 1 + m.rng.IntN(len(list)-1)
	return list[i-1], list[i]
}

func swapSends(far bool) func(*mutant) string {
	return func(m *mutant) string {
		a, b := m.twoOf(far)
		if a == nil {
			return ""
		}
		m.exchange(a, b)
		return m.name(a) + " and " + m.name(b)
	}
}

func (m *mutant) swapNumbers() string {
	a, b := m.twoOf(false)
	if a == nil {
		return ""
	}
	ops := own(&m.ops)
	for s, n := range map[*send]int64{a: b.n, b: a.n} {
		for _, i := range m.good.opOrder[s.lo:s.hi] {
			if ops[i].ack == ackNone {
				ops[i].n = n
			}
		}
	}
	return m.name(a) + " and " + m.name(b)
}

func (m *mutant) rowsWithOneID() string {
	return m.onRows(func(a, b int) { rows := own(&m.rows); rows[a].mid = rows[b].mid })
}

func (m *mutant) answerWithOtherID() string {
	a, ok := m.aSend()
	if !ok {
		return ""
	}
	b, ok := choose(m.rng, func(yield func(*send) bool) {
		for s := range m.stored() {
			if s.key != a.key && !yield(s) {
				return
			}
		}
	})
	if !ok {
		return ""
	}
	own(&m.ops)[m.answersOf(a, ackOK)[0]].mid = m.rows[b.row].mid
	return m.name(a)
}

// worsen breaks as many prompt answers as are needed for I18, chosen at random
// or one after the other.
func worsen(inRow bool, change func(*op)) func(*mutant) string {
	return func(m *mutant) string {
		windows, a := m.good.faultWindows(), m.good.availability(m.opt)
		var prompt []*send
		for s := range m.stored() {
			end := s.invoked + int64(Prompt)
			if s.acked <= end && end+int64(Prompt) < m.Run.Ended && !touches(windows, s.invoked, end) {
				prompt = append(prompt, s)
			}
		}
		need := a.Within - int(a.Wanted*float64(a.Judged)) + 1
		if need > len(prompt) {
			return ""
		}
		from := 0
		if inRow {
			slices.SortFunc(prompt, func(a, b *send) int { return cmp.Compare(a.invoked, b.invoked) })
			from = m.rng.IntN(len(prompt) - need + 1)
		} else {
			m.rng.Shuffle(len(prompt), func(i, j int) { prompt[i], prompt[j] = prompt[j], prompt[i] })
		}
		ops := own(&m.ops)
		for _, s := range prompt[from : from+need] {
			for _, i := range m.answersOf(s, ackOK) {
				change(&ops[i])
			}
		}
		return fmt.Sprintf("%d sends", need)
	}
}

package verify

import (
	"fmt"
	"iter"
	"slices"

	"github.com/imdhq/imd/pkg/history"
)

// deedsThat gives the records of effects.log that fit.
func (m *mutant) deedsThat(fit func(*deed) bool) iter.Seq[*deed] {
	return func(yield func(*deed) bool) {
		for i := range m.good.deeds {
			if d := &m.good.deeds[i]; fit(d) && !yield(d) {
				return
			}
		}
	}
}

func ofKind(kind history.Kind) func(*deed) bool {
	return func(d *deed) bool { return d.kind == kind }
}

func event(d *deed) bool { return d.kind == history.Told && !d.notice() }

func push(d *deed) bool { return d.kind == history.Told && d.reason == namePush }

// about says which record was chosen.
func (m *mutant) about(d *deed) string {
	text := m.names.text
	return fmt.Sprintf("%s %s %d of %s %s", d.kind, text(d.entry), max(d.n, d.seq), text(d.user), text(d.conv))
}

// dropDeeds drops the records that fit.
func (m *mutant) dropDeeds(fit func(*deed) bool) {
	m.deeds = slices.DeleteFunc(slices.Clone(m.deeds), func(d deed) bool { return fit(&d) })
}

// changeDeeds changes the records that fit.
func (m *mutant) changeDeeds(fit func(*deed) bool, change func(*deed)) {
	deeds := own(&m.deeds)
	for i := range deeds {
		if fit(&deeds[i]) {
			change(&deeds[i])
		}
	}
}

// addDeed adds a changed copy of a record at the end of the run.
func (m *mutant) addDeed(d *deed, change func(*deed)) {
	one := *d
	one.at, one.t = at{}, m.Run.Ended
	change(&one)
	m.deeds = append(slices.Clip(m.deeds), one)
}

// copyDeed adds a changed copy of one of the records that fit.
func copyDeed(fit func(*deed) bool, change func(*deed)) func(*mutant) string {
	return func(m *mutant) string {
		d, ok := choose(m.rng, m.deedsThat(fit))
		if !ok {
			return ""
		}
		m.addDeed(d, change)
		return m.about(d)
	}
}

// sameEvent fits all tellings of an event by one receiver.
func sameEvent(d *deed) func(*deed) bool {
	return func(o *deed) bool { return event(o) && o.name == d.name && o.conv == d.conv && o.seq == d.seq }
}

// changeEvent changes all tellings of one event.
func changeEvent(change func(*deed)) func(*mutant) string {
	return func(m *mutant) string {
		d, ok := choose(m.rng, m.deedsThat(func(d *deed) bool { return event(d) && d.hash != 0 }))
		if !ok {
			return ""
		}
		m.changeDeeds(sameEvent(d), change)
		return m.about(d)
	}
}

func (m *mutant) neverTold() string {
	d, ok := choose(m.rng, m.deedsThat(event))
	if !ok {
		return ""
	}
	m.dropDeeds(sameEvent(d))
	return m.about(d)
}

// toldNothing keeps all events from a receiver that is to be told of them.
func (m *mutant) toldNothing() string {
	d, ok := choose(m.rng, m.deedsThat(ofKind(history.Receiver)))
	if !ok {
		return ""
	}
	m.dropDeeds(func(o *deed) bool { return event(o) && o.name == d.name })
	return "receiver " + m.names.text(d.name)
}

// toldEarly moves an event before the one in front of it.
func (m *mutant) toldEarly() string {
	audiences := m.good.audiences(func(*deed, *deed, string) {})
	type pair struct{ before, d *deed }
	p, ok := choose(m.rng, func(yield func(pair) bool) {
		for _, a := range audiences {
			for at, d := range a.first {
				if before := a.first[spot{at.conv, at.seq - 1}]; before != nil && !yield(pair{before, d}) {
					return
				}
			}
		}
	})
	if !ok {
		return ""
	}
	m.changeDeeds(sameEvent(p.d), func(d *deed) { d.t = p.before.t - 1 })
	return m.about(p.d)
}

// oneNumber gives an event the number of another.
func (m *mutant) oneNumber() string {
	d, ok := choose(m.rng, m.deedsThat(event))
	if !ok {
		return ""
	}
	other, ok := choose(m.rng, m.deedsThat(func(o *deed) bool { return event(o) && o.name == d.name && o.n != d.n }))
	if !ok {
		return ""
	}
	m.changeDeeds(sameEvent(d), func(d *deed) { d.n = other.n })
	return m.about(d)
}

// neverNotified takes away what told a user without devices of what is unread.
func (m *mutant) neverNotified() string {
	by := m.good.notices()
	d, ok := choose(m.rng, m.deedsThat(func(d *deed) bool {
		n := by[pillow{d.user, d.conv}]
		return push(d) && d.ack == ackOK && m.sleeps(d) && !slices.ContainsFunc(n.reads, func(r *deed) bool { return r.seq >= d.seq })
	}))
	if !ok {
		return ""
	}
	m.dropDeeds(func(o *deed) bool { return push(o) && o.user == d.user && o.conv == d.conv && o.seq >= d.seq })
	return m.about(d)
}

// sleeps reports whether a notice is of a user without devices.
func (m *mutant) sleeps(d *deed) bool {
	_, ok := choose(m.rng, m.deedsThat(func(o *deed) bool { return o.kind == history.Sleeper && o.user == d.user && o.conv == d.conv }))
	return ok
}

// notifiedOfRead repeats a notice long after it was read.
func (m *mutant) notifiedOfRead() string {
	by, faults := m.good.notices(), m.good.troubled()
	d, ok := choose(m.rng, m.deedsThat(func(d *deed) bool {
		return push(d) && m.sleeps(d) && slices.ContainsFunc(by[pillow{d.user, d.conv}].reads, func(r *deed) bool {
			return r.ack == ackOK && r.seq >= d.seq && m.Run.Ended-r.to-within(faults, r.to, m.Run.Ended) > int64(PushStale)
		})
	}))
	if !ok {
		return ""
	}
	m.addDeed(d, func(*deed) {})
	return m.about(d)
}

// notTakenBack takes away what took a notice back.
func (m *mutant) notTakenBack() string {
	by, faults := m.good.notices(), m.good.troubled()
	d, ok := choose(m.rng, m.deedsThat(func(d *deed) bool {
		return push(d) && m.sleeps(d) && m.good.wantsBack(d, by[pillow{d.user, d.conv}], faults) != nil
	}))
	if !ok {
		return ""
	}
	m.dropDeeds(func(o *deed) bool {
		return o.kind == history.Told && o.reason == nameTakenBack && o.user == d.user && o.conv == d.conv && o.seq >= d.seq
	})
	return m.about(d)
}

// anAppointment chooses a scheduled message that is in the log, or one that was cancelled.
func (m *mutant) anAppointment(cancelled bool) (a *appointment, row int) {
	rows := m.good.rowsByKey()
	a, ok := choose(m.rng, func(yield func(*appointment) bool) {
		for _, a := range m.good.appointments() {
			_, there := rows[key{a.conv, a.user, a.cmid}]
			if (cancelled && !a.may() || !cancelled && there && a.must(m.good)) && !yield(a) {
				return
			}
		}
	})
	if !ok {
		return nil, 0
	}
	return a, int(rows[key{a.conv, a.user, a.cmid}])
}

// breakAppointment does something to a scheduled message that was sent, and its row.
func breakAppointment(do func(m *mutant, a *appointment, row int)) func(*mutant) string {
	return func(m *mutant) string {
		a, row := m.anAppointment(false)
		if a == nil {
			return ""
		}
		do(m, a, row)
		return m.about(a.deed)
	}
}

// sentThough puts a scheduled message that was cancelled into the log.
func (m *mutant) sentThough() string {
	a, _ := m.anAppointment(true)
	if a == nil {
		return ""
	}
	m.rows = append(slices.Clip(m.rows), row{mid: 1 << 50, seq: 1 << 40, prev: 1<<40 - 1, conv: a.conv, sender: a.user, cmid: a.cmid, hash: a.hash, entry: nameMessage})
	return m.about(a.deed)
}

func (m *mutant) sentTwice(_ *appointment, i int) {
	r := m.rows[i]
	r.at, r.seq, r.mid = at{}, r.seq+1<<40, r.mid+1<<40
	m.rows = append(slices.Clip(m.rows), r)
}

// sentEarly moves the time of a scheduled message behind that at which it was seen.
func (m *mutant) sentEarly(a *appointment, _ int) {
	m.changeDeeds(func(d *deed) bool { return d.kind == history.Schedule && d.name == a.name }, func(d *deed) { d.n = m.Run.Ended })
}

// sentForNobody forgets that a message was scheduled, if every answer to such a question is
// known.
func (m *mutant) sentForNobody() string {
	a, _ := m.anAppointment(false)
	if a == nil || m.unknown(history.Schedule) {
		return ""
	}
	m.dropDeeds(func(d *deed) bool { return d.kind == history.Schedule && d.name == a.name })
	if !slices.ContainsFunc(m.deeds, func(d deed) bool { return d.kind == history.Schedule && d.user == a.user }) {
		return "" // what a sender writes that never scheduled anything is nobody's business
	}
	return m.about(a.deed)
}

// unknown reports whether an answer to a question of a kind never came.
func (m *mutant) unknown(kind history.Kind) bool {
	return slices.ContainsFunc(m.good.deeds, func(d deed) bool { return d.kind == kind && d.ack == ackUnknown })
}

// noticeOfNobody lets a device show an announcement that nobody made.
func (m *mutant) noticeOfNobody() string {
	if m.unknown(history.Announce) {
		return ""
	}
	return copyDeed(ofKind(history.Notice), func(d *deed) { d.n += 1 << 40 })(m)
}

// neverNoticed takes an announcement that lasts away from a device that listens.
func (m *mutant) neverNoticed() string {
	by, _ := m.good.proclamations()
	listeners := m.good.deedsOf(history.Listener)
	d, ok := choose(m.rng, m.deedsThat(func(d *deed) bool {
		p := by[d.n]
		return d.kind == history.Notice && p != nil && slices.ContainsFunc(listeners, func(l *deed) bool {
			return l.user == d.user && l.device == d.device && p.lasts(l.t)
		})
	}))
	if !ok {
		return ""
	}
	m.dropDeeds(func(o *deed) bool {
		return o.kind == history.Notice && o.user == d.user && o.device == d.device && o.n == d.n
	})
	return m.about(d)
}

// noticedLate lets another device show an announcement long after its end; back: that was
// taken back.
func noticedLate(back bool) func(*mutant) string {
	return func(m *mutant) string {
		by, _ := m.good.proclamations()
		faults := m.good.troubled()
		d, ok := choose(m.rng, m.deedsThat(func(d *deed) bool {
			p := by[d.n]
			if d.kind != history.Notice || p == nil || back != (p.withdrawn != nil && p.withdrawn.ack == ackOK) {
				return false
			}
			end := p.seq
			if back {
				end = p.withdrawn.to
			}
			return end < m.Run.Ended && m.Run.Ended-end-within(faults, end, m.Run.Ended) > int64(NoticeStale)
		}))
		if !ok {
			return ""
		}
		m.addDeed(d, func(d *deed) { d.device = nameMade })
		return m.about(d)
	}
}

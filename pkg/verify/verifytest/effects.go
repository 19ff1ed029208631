package verifytest

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"

	"github.com/imdhq/imd/pkg/history"
)

// The conversations that are there for what leaders do, and who writes there.
const (
	bedroom, sleeper = "g_bed", "z1"
	diary, secretary = "g_diary", "clock"
)

// effects makes the records of what a leader did for others: events of all rows, notices
// of one user without devices, scheduled messages and announcements.
func (g *generator) effects() {
	told := g.tellings()
	told = append(told, g.sleep()...)
	told = append(told, g.appointments()...)
	slices.SortStableFunc(told, func(a, b history.Record) int { return cmp.Compare(a.T, b.T) })
	number := map[string]int64{} // by key, in the order of the first tellings
	for i := range told {
		if r := &told[i]; r.Name == "events" {
			if number[r.Entry] == 0 {
				number[r.Entry] = int64(len(number) + 1)
			}
			r.N = number[r.Entry]
		}
	}
	all := append(told, history.Record{T: ms, Kind: history.Receiver, Name: "events"})
	all = append(all, g.announcements()...)
	g.inOrder("effects.log", all)
}

// telling is how a receiver is told of a row.
func (g *generator) telling(r history.Record, t int64) history.Record {
	kind := "message.committed"
	if r.Entry != "message" {
		kind = "member.changed"
	}
	return history.Record{T: t, Kind: history.Told, Name: "events", Reason: kind, Entry: "m_" + strconv.FormatInt(r.MID, 10), Conv: r.Conv, Seq: r.Seq, MID: r.MID, Hash: r.Hash, Ack: history.AckOK}
}

// tell tells of a row, after the one before it, sometimes in vain at first, sometimes once
// more; it returns when it was taken.
func (g *generator) tell(all *[]history.Record, r history.Record, t int64) int64 {
	one := g.telling(r, t)
	if g.chance(0.1) {
		refused := one
		refused.Ack = []string{history.AckFail, history.AckUnknown}[g.IntN(2)]
		*all = append(*all, refused)
		one.T += 500 * ms
	}
	*all = append(*all, one)
	if g.chance(0.05) {
		again := one
		again.T, again.Dup = one.T+g.between(ms, 2*second), true
		*all = append(*all, again)
	}
	return one.T
}

// tellings are those of the rows of conversations.
func (g *generator) tellings() (all []history.Record) {
	for _, c := range g.convs {
		t := int64(0)
		for _, m := range c.log {
			hash := m.hash
			t = g.tell(&all, history.Record{Conv: c.id, Seq: m.seq, MID: m.mid, Hash: hash, Entry: m.entry}, max(t, m.commit)+g.between(ms, 50*ms))
		}
	}
	return all
}

// put adds a row of a conversation of this file, and returns it.
func (g *generator) put(conv string, seq int64, sender, cmid string) history.Record {
	g.mid++
	r := history.Record{Kind: history.Row, Conv: conv, Seq: seq, Prev: seq - 1, MID: g.mid, Sender: sender, CMID: cmid, Hash: "h-" + cmid, Entry: "message"}
	g.add("db.final", r)
	return r
}

// sleep lets somebody write to a user without devices, who reads now and then. It goes on
// where no fault is about.
func (g *generator) sleep() (all []history.Record) {
	g.add("members.final", history.Record{Kind: history.Span, User: sleeper, Conv: bedroom})
	all = append(all, history.Record{T: ms, Kind: history.Sleeper, User: sleeper, Conv: bedroom})
	notice := func(r history.Record, kind string, t int64) {
		all = append(all, history.Record{T: t, Kind: history.Told, Name: "pushes", Reason: kind, Entry: fmt.Sprintf("%s_%d_%s", kind, r.MID, sleeper),
			User: sleeper, Conv: bedroom, Seq: r.Seq, MID: r.MID, Ack: history.AckOK})
	}
	seq, t := int64(0), g.ended-34*second // behind all faults and their windows
	for range 3 {
		var r history.Record
		for range 1 + g.IntN(2) {
			seq++
			r = g.put(bedroom, seq, "host", fmt.Sprint("bed-", seq))
			g.tell(&all, r, t)
			t += 600 * ms
		}
		notice(r, history.TypePush, t+g.between(0, 100*ms))
		t += second
		all = append(all, history.Record{T: t, To: t + 10*ms, Kind: history.ReadUp, User: sleeper, Conv: bedroom, Seq: seq, Ack: history.AckOK})
		notice(r, history.TypeWithdraw, t+g.between(100*ms, 400*ms))
		t += 6 * second
	}
	seq++
	r := g.put(bedroom, seq, "host", "bed-last")
	g.tell(&all, r, t)
	notice(r, history.TypePush, t+second)
	return all
}

// appointments are scheduled messages; every third is cancelled, every fifth too late.
func (g *generator) appointments() (all []history.Record) {
	g.add("members.final", history.Record{Kind: history.Span, User: secretary, Conv: diary})
	seq := int64(0)
	for i := range 15 {
		asked := second + int64(i)*700*ms
		cmid := fmt.Sprint("diary-", i)
		r := history.Record{T: asked, To: asked + 5*ms, Kind: history.Schedule, User: secretary, Conv: diary, CMID: cmid, Hash: "h-" + cmid, Name: fmt.Sprint(1000 + i),
			N: asked + 2*second, Ack: history.AckOK}
		all = append(all, r)
		cancel := history.Record{T: r.N - 100*ms, To: r.N - 90*ms, Kind: history.Cancel, Name: r.Name, Ack: history.AckOK}
		switch {
		case i%3 == 0:
			all = append(all, cancel)
			continue
		case i%5 == 1:
			cancel.T, cancel.To, cancel.Ack = r.N+50*ms, r.N+60*ms, history.AckFail
			all = append(all, cancel)
		}
		seq++
		g.tell(&all, g.put(diary, seq, secretary, cmid), r.N+g.between(100*ms, 300*ms))
	}
	return all
}

// announcements are made, some for a short time only, some of them taken back, and shown by
// two devices.
func (g *generator) announcements() (all []history.Record) {
	at := g.ended - 34*second
	for n := int64(1); n <= 8; n++ {
		t := at + n*second
		a := history.Record{T: t, To: t + 5*ms, Kind: history.Announce, N: n, Hash: fmt.Sprint("a-", n), Seq: g.ended + second, Ack: history.AckOK}
		if n%4 == 1 {
			a.Seq = t + 3*second
		}
		all = append(all, a)
		if n%4 == 2 {
			all = append(all, history.Record{T: t + 2*second, To: t + 2*second + 5*ms, Kind: history.Withdraw, N: n, Ack: history.AckOK})
		}
		for i := range 2 {
			all = append(all, history.Record{T: t + g.between(10*ms, 500*ms), Kind: history.Notice, User: fmt.Sprint("l", i), Device: "p", Name: "e1", N: n, Hash: a.Hash})
		}
	}
	for i := range 2 {
		all = append(all, history.Record{T: g.ended - second, Kind: history.Listener, User: fmt.Sprint("l", i), Device: "p"})
	}
	return all
}

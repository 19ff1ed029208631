package verify

import (
	"cmp"
	"errors"
	"fmt"
	"slices"

	"github.com/imdhq/imd/pkg/history"
)

// deed is a record of effects.log. Which fields count depends on the kind, as in
// history.Record.
type deed struct {
	t, to, n, seq, mid       int64
	kind                     history.Kind
	user, device, conv, cmid name
	hash, entry, name        name
	reason                   name
	at                       at
	ack                      ack
	dup                      bool
}

// deedKinds are the kinds of records in effects.log.
var deedKinds = []history.Kind{history.Told, history.Receiver, history.Sleeper, history.ReadUp, history.Schedule, history.Cancel, history.Announce, history.Withdraw,
	history.Notice, history.Listener}

// unanswered are those of them that carry no answer.
var unanswered = []history.Kind{history.Receiver, history.Sleeper, history.Notice, history.Listener}

// deed checks a record of effects.log and keeps it.
func (l *loader) deed(r *history.Record, p at) error {
	id := l.h.names.id
	d := deed{t: r.T, to: r.To, n: r.N, seq: r.Seq, mid: r.MID, kind: r.Kind, user: id(r.User), device: id(r.Device), conv: id(r.Conv), cmid: id(r.CMID),
		hash: id(r.Hash), entry: id(r.Entry), name: id(r.Name), reason: id(r.Reason), at: p, ack: acks[r.Ack], dup: r.Dup}
	notice := r.Reason == history.TypePush || r.Reason == history.TypeWithdraw
	switch {
	case !slices.Contains(deedKinds, r.Kind):
		return fmt.Errorf("a record of kind %q does not belong here", r.Kind)
	case !slices.Contains(unanswered, r.Kind) && d.ack == ackNone:
		return fmt.Errorf("a %s with the unknown answer %q", r.Kind, r.Ack)
	case r.Kind == history.Told && (r.Name == "" || r.Entry == "" || r.Reason == "" || r.Conv == "" || r.Seq < 1 || notice && r.User == ""):
		return errors.New("something was told without receiver, key, type, conversation or seq, or of nobody")
	case r.Kind == history.Receiver && r.Name == "":
		return errors.New("a receiver without name")
	case (r.Kind == history.Sleeper || r.Kind == history.ReadUp || r.Kind == history.Schedule) && (r.User == "" || r.Conv == ""):
		return fmt.Errorf("a %s without user or conversation", r.Kind)
	case (r.Kind == history.Schedule && d.ack == ackOK || r.Kind == history.Cancel) && r.Name == "":
		return fmt.Errorf("a %s without its message", r.Kind)
	case (r.Kind == history.Notice || r.Kind == history.Listener) && (r.User == "" || r.Device == ""):
		return fmt.Errorf("a %s without user or device", r.Kind)
	}
	l.h.deeds = append(l.h.deeds, d)
	return nil
}

func (h *History) deedRef(d *deed) Ref {
	text := h.names.text
	return h.ref(d.at, history.Record{T: d.t, To: d.to, N: d.n, Seq: d.seq, MID: d.mid, Kind: d.kind, User: text(d.user), Device: text(d.device), Conv: text(d.conv),
		CMID: text(d.cmid), Hash: text(d.hash), Entry: text(d.entry), Name: text(d.name), Reason: text(d.reason), Ack: ackNames[d.ack], Dup: d.dup})
}

// deedsOf are the records of a kind in order of time.
func (x *index) deedsOf(kind history.Kind) (all []*deed) {
	for i := range x.deeds {
		if x.deeds[i].kind == kind {
			all = append(all, &x.deeds[i])
		}
	}
	slices.SortStableFunc(all, func(a, b *deed) int { return cmp.Compare(a.t, b.t) })
	return all
}

// notice reports whether it was told of a user, not of an event.
func (d *deed) notice() bool { return d.reason == namePush || d.reason == nameTakenBack }

// spot names an entry.
type spot struct {
	conv name
	seq  int64
}

// entryAt is a row of the log; nil = there is none.
func (x *index) entryAt(p spot) *row {
	i, ok := x.find(p.conv, p.seq)
	if !ok {
		return nil
	}
	return &x.rows[x.rowOrder[i]]
}

// troubled are the times under any fault, and some time behind: leaders depend on all
// that there is.
func (x *index) troubled() [][2]int64 {
	return x.windowsOf(Slack, func(*faultSpan) bool { return true })
}

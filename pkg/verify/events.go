package verify

import (
	"fmt"

	"github.com/imdhq/imd/pkg/history"
)

// audience is one receiver of events, and what it was told.
type audience struct {
	name   name
	byKey  map[name]*deed  // the first time that each key was told
	byNum  map[int64]*deed // and each number
	first  map[spot]*deed  // and each entry
	taken  map[spot]bool
	newest map[name]*deed // of each conversation, the last one that was told for the first time
	tries  int
}

// audiences are the receivers of events: those that are to be told of all, and any others, in
// the order in which they were told first.
// bad hears what is wrong with a telling, and the one that it does not go with.
func (x *index) audiences(bad func(d, other *deed, what string)) (all []*audience) {
	by := map[name]*audience{}
	of := func(d *deed) *audience {
		a := by[d.name]
		if a == nil {
			a = &audience{name: d.name, byKey: map[name]*deed{}, byNum: map[int64]*deed{}, first: map[spot]*deed{}, taken: map[spot]bool{}, newest: map[name]*deed{}}
			by[d.name], all = a, append(all, a)
		}
		return a
	}
	for _, d := range x.deedsOf(history.Receiver) {
		of(d)
	}
	for _, d := range x.deedsOf(history.Told) {
		if d.notice() {
			continue
		}
		if what, other := of(d).hear(d); what != "" {
			bad(d, other, what)
		}
	}
	return all
}

// hear takes one telling in, and says what is wrong with it.
func (a *audience) hear(d *deed) (what string, other *deed) {
	a.tries++
	p := spot{d.conv, d.seq}
	a.taken[p] = a.taken[p] || d.ack == ackOK
	if before := a.byKey[d.entry]; before != nil {
		if before.conv != d.conv || before.seq != d.seq || before.mid != d.mid || before.n != d.n || before.reason != d.reason || before.hash != d.hash {
			return "one key was told with two contents", before
		}
		return "", nil
	}
	a.byKey[d.entry] = d
	if before := a.first[p]; before != nil {
		return "one event was told with two keys", before
	}
	a.first[p] = d
	if before := a.byNum[d.n]; before != nil {
		return "two events were told with one number", before
	}
	a.byNum[d.n] = d
	before := a.newest[d.conv]
	if before != nil && before.seq > d.seq {
		return "an event was told after a later one of its conversation", before
	}
	a.newest[d.conv] = d
	return "", nil
}

// events: each receiver is told of every row, with one key and one content, in order
// within a conversation as far as it has not been told before, and of nothing else. It
// tells how much was judged.
func (c *check) events() string {
	all := c.audiences(func(d, other *deed, what string) { c.fail(refs(c.deedRef(other), c.deedRef(d)), "%s", what) })
	tries := 0
	for _, a := range all {
		tries += a.tries
		for _, d := range c.deedsOf(history.Told) {
			if d.name != a.name || d.notice() || a.byKey[d.entry] != d {
				continue
			}
			r := c.entryAt(spot{d.conv, d.seq})
			switch {
			case r == nil:
				c.fail(refs(c.deedRef(d)), "an event from nowhere was told")
			case r.mid != d.mid || r.entry == nameMessage && r.hash != 0 && d.hash != r.hash:
				c.fail(refs(c.rowRef(r), c.deedRef(d)), "an event was told otherwise than the log has it")
			}
		}
		for i := range c.rows {
			r := &c.rows[i]
			c.inv.Checked++
			p := spot{r.conv, r.seq}
			switch d := a.first[p]; {
			case d == nil:
				c.fail(refs(c.rowRef(r)), "%s was never told of an event", c.names.text(a.name))
			case !a.taken[p]:
				c.fail(refs(c.rowRef(r), c.deedRef(d)), "%s was told of an event and never took it", c.names.text(a.name))
			}
		}
	}
	if len(all) == 0 {
		return ""
	}
	return fmt.Sprintf("%d events were told in %d requests", len(c.rows)*len(all), tries)
}

// heardAt is when an entry was told as an event for the first time; never = it was not.
func (x *index) heardAt() map[spot]int64 {
	at := map[spot]int64{}
	for _, d := range x.deedsOf(history.Told) {
		p := spot{d.conv, d.seq}
		if _, ok := at[p]; !ok && !d.notice() {
			at[p] = d.t
		}
	}
	return at
}

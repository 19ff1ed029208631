package verify

import (
	"fmt"
	"slices"
	"time"

	"github.com/imdhq/imd/pkg/history"
)

// What is allowed to notices of users, outside the time of faults.
const (
	// PushDue is how long after a message its reading may take the place of a notice.
	PushDue = 10 * time.Second
	// PushStale is how long after a user has read a message its notice may still come.
	PushStale = 6 * time.Second
)

// pillow is a user without devices in a conversation.
type pillow struct{ user, conv name }

// notices are what a receiver was told of one such user, and what the user has read.
type notices struct {
	pushes, withdrawals, reads []*deed
}

func (x *index) notices() map[pillow]*notices {
	by := map[pillow]*notices{}
	at := func(d *deed) *notices {
		p := pillow{d.user, d.conv}
		if by[p] == nil {
			by[p] = &notices{}
		}
		return by[p]
	}
	for _, d := range x.deedsOf(history.ReadUp) {
		n := at(d)
		n.reads = append(n.reads, d)
	}
	for _, d := range x.deedsOf(history.Told) {
		switch d.reason {
		case namePush:
			n := at(d)
			n.pushes = append(n.pushes, d)
		case nameTakenBack:
			n := at(d)
			n.withdrawals = append(n.withdrawals, d)
		}
	}
	return by
}

// pushes: notices are of messages that their users may see and did not write, one key is
// one notice, users without devices are notified of all that they do not read at
// once, and not of what they have read; what they have read is taken back. It tells how
// much was judged.
func (c *check) pushes() string {
	count := c.noticesFromNowhere()
	by, heard, faults := c.notices(), c.heardAt(), c.troubled()
	for _, d := range c.deedsOf(history.Sleeper) {
		n := by[pillow{d.user, d.conv}]
		if n == nil {
			n = &notices{}
		}
		c.notified(d, n, heard, faults)
		c.spared(n, faults)
		c.takenBack(n, faults)
	}
	if count == 0 {
		return ""
	}
	return fmt.Sprintf("%d notices of users", count)
}

// noticesFromNowhere judges each notice by itself.
func (c *check) noticesFromNowhere() (count int) {
	byKey := map[name]*deed{}
	for _, d := range c.deedsOf(history.Told) {
		if !d.notice() {
			continue
		}
		count++
		c.inv.Checked++
		if before := byKey[d.entry]; before == nil {
			byKey[d.entry] = d
		} else if before.user != d.user || before.conv != d.conv || before.seq != d.seq || before.mid != d.mid || before.reason != d.reason {
			c.fail(refs(c.deedRef(before), c.deedRef(d)), "one key was told with two notices")
		}
		switch r := c.entryAt(spot{d.conv, d.seq}); {
		case r == nil || r.mid != d.mid:
			c.fail(refs(c.deedRef(d)), "a user was notified of a message from nowhere")
		case r.sender == d.user:
			c.fail(refs(c.rowRef(r), c.deedRef(d)), "a user was notified of an own message")
		case !maySee(c.visible()[[2]name{d.user, d.conv}], d.seq):
			c.fail(refs(c.rowRef(r), c.deedRef(d)), "a user was notified of a message that is not for that user")
		}
	}
	return count
}

// notified judges whether a user was notified of each message, or of a later one.
func (c *check) notified(who *deed, n *notices, heard map[spot]int64, faults [][2]int64) {
	order, convs := c.ordered()
	e := convs[who.conv]
	for _, i := range order[e.lo:e.hi] {
		r := &c.rows[i]
		if r.entry != nameMessage || r.sender == who.user || !maySee(c.visible()[[2]name{who.user, who.conv}], r.seq) {
			continue
		}
		c.inv.Checked++
		due := int64(never)
		if at, ok := heard[spot{r.conv, r.seq}]; ok && !touches(faults, at, at+int64(PushDue)) {
			due = at + int64(PushDue)
		}
		told := slices.ContainsFunc(n.pushes, func(d *deed) bool { return d.seq >= r.seq && d.ack == ackOK })
		read := slices.ContainsFunc(n.reads, func(d *deed) bool { return d.seq >= r.seq && d.t < due })
		if !told && !read {
			c.fail(refs(c.deedRef(who), c.rowRef(r)), "%s was never notified of a message", c.names.text(who.user))
		}
	}
}

// spared judges whether a user was notified of what was read.
func (c *check) spared(n *notices, faults [][2]int64) {
	for _, read := range n.reads {
		if read.ack != ackOK {
			continue
		}
		for _, d := range n.pushes {
			if d.seq <= read.seq && d.t > read.to && d.t-read.to-within(faults, read.to, d.t) > int64(PushStale) {
				c.fail(refs(c.deedRef(read), c.deedRef(d)), "a user was notified of a message that was read %v before", time.Duration(d.t-read.to).Round(time.Millisecond))
			}
		}
	}
}

// takenBack judges whether notices of what was read were taken back, if no fault was
// about: a leader that ends between the notice and its note of it does not know of it.
func (c *check) takenBack(n *notices, faults [][2]int64) {
	for _, d := range n.pushes {
		read := c.wantsBack(d, n, faults)
		if read == nil {
			continue
		}
		c.inv.Checked++
		if !slices.ContainsFunc(n.withdrawals, func(o *deed) bool { return o.seq >= d.seq && o.t > d.t && o.ack == ackOK }) {
			c.fail(refs(c.deedRef(d), c.deedRef(read)), "a notice of what was read was not taken back")
		}
	}
}

// wantsBack is the reading for which a notice must be taken back; nil = there is none, or
// a later notice may have come in between.
func (x *index) wantsBack(d *deed, n *notices, faults [][2]int64) *deed {
	i := slices.IndexFunc(n.reads, func(r *deed) bool { return r.ack == ackOK && r.seq >= d.seq })
	if d.ack != ackOK || i < 0 || n.reads[i].t < d.t {
		return nil
	}
	by := n.reads[i].to + int64(PushStale)
	later := slices.ContainsFunc(n.pushes, func(o *deed) bool { return o.seq > d.seq && o.t < by })
	if later || by > x.Run.Ended || touches(faults, d.t, by) {
		return nil
	}
	return n.reads[i]
}

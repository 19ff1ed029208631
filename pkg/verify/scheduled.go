package verify

import (
	"fmt"
	"time"

	"github.com/imdhq/imd/pkg/history"
)

// appointment is a scheduled message and what was asked about it.
type appointment struct {
	*deed
	cancel *deed // the answer that counts: ok, else fail, else unknown; nil = it was never to be cancelled
}

// appointments are the scheduled messages whose answer is known.
func (x *index) appointments() (all []*appointment) {
	by := map[name]*appointment{}
	for _, d := range x.deedsOf(history.Schedule) {
		if d.ack == ackOK {
			a := &appointment{deed: d}
			by[d.name], all = a, append(all, a)
		}
	}
	for _, d := range x.deedsOf(history.Cancel) {
		if a := by[d.name]; a != nil && (a.cancel == nil || a.cancel.ack == ackUnknown || d.ack == ackOK) {
			a.cancel = d
		}
	}
	return all
}

// must reports whether the message must be in the log in the end, may whether it may.
func (a *appointment) must(x *index) bool {
	return (a.cancel == nil || a.cancel.ack == ackFail) && a.n < x.Run.Ended
}

func (a *appointment) may() bool { return a.cancel == nil || a.cancel.ack != ackOK }

// scheduled: each message that is due and was not cancelled is in the log exactly once, none
// that was, and none before its time. It tells how much was judged.
func (c *check) scheduled() string {
	known := map[key]*appointment{}
	lost := map[[2]name]bool{} // by user and conversation: an answer did not come
	users := map[name]bool{}
	for _, d := range c.deedsOf(history.Schedule) {
		users[d.user] = true
		lost[[2]name{d.user, d.conv}] = lost[[2]name{d.user, d.conv}] || d.ack == ackUnknown
	}
	all, cancelled := c.appointments(), 0
	for _, a := range all {
		known[key{a.conv, a.user, a.cmid}] = a
		if a.cancel != nil && a.cancel.ack == ackOK {
			cancelled++
		}
	}
	sent := map[*appointment]*row{}
	heard, proofs := c.heardAt(), c.known()
	for p, i := range c.rowOrder {
		r := &c.rows[i]
		if r.entry != nameMessage || !users[r.sender] {
			continue
		}
		a := known[key{r.conv, r.sender, r.cmid}]
		switch {
		case a == nil && !lost[[2]name{r.sender, r.conv}]:
			c.fail(refs(c.rowRef(r)), "a message is in the log that nobody scheduled")
		case a == nil:
		case sent[a] != nil:
			c.fail(refs(c.deedRef(a.deed), c.rowRef(sent[a]), c.rowRef(r)), "a scheduled message was sent twice")
		default:
			sent[a] = r
			at := proofs[p]
			if t, ok := heard[spot{r.conv, r.seq}]; ok {
				at = min(at, t)
			}
			c.kept(a, r, at)
		}
	}
	for _, a := range all {
		if c.inv.Checked++; sent[a] == nil && a.must(c.index) {
			c.fail(refs(c.deedRef(a.deed)), "a scheduled message was never sent")
		}
	}
	if len(all) == 0 {
		return ""
	}
	return fmt.Sprintf("%d scheduled messages, %d of them cancelled", len(all), cancelled)
}

// kept judges a message that was sent, and was seen at a time for the first time.
func (c *check) kept(a *appointment, r *row, at int64) {
	switch {
	case !a.may():
		c.fail(refs(c.deedRef(a.deed), c.deedRef(a.cancel), c.rowRef(r)), "a scheduled message was sent that was cancelled")
	case r.hash != 0 && r.hash != a.hash:
		c.fail(refs(c.deedRef(a.deed), c.rowRef(r)), "a scheduled message was sent with another content")
	case at < a.n:
		c.fail(refs(c.deedRef(a.deed), c.rowRef(r)), "a scheduled message was sent %v before its time", time.Duration(a.n-at).Round(time.Millisecond))
	}
}

package verify

import "fmt"

// origin is I2: every message of the final log was sent, with that content; and
// no answer came for a send that was never made. Messages of senders that were
// not recorded cannot be judged; they are counted.
func (c *check) origin() {
	sends, users := c.sends(), c.recorded()
	known := make(map[key]int32, len(sends))
	for i := range sends {
		s := &sends[i]
		known[s.key] = int32(i)
		if c.inv.Checked++; s.invoked == never {
			c.fail(func() []Ref { return c.refsOf(s) }, "an answer to a send that was never made")
		}
	}
	unrecorded := 0
	for i := range c.rows {
		r := &c.rows[i]
		if r.entry != nameMessage {
			continue
		}
		at, ok := known[key{r.conv, r.sender, r.cmid}]
		switch {
		case ok:
			c.inv.Checked++
			if s := &sends[at]; r.hash != 0 && !c.sentWith(s, r.hash) {
				c.fail(func() []Ref { return join(c.refsOf(s), []Ref{c.rowRef(r)}) }, "the log holds a content that was never sent under this key")
			}
		case users[r.sender]:
			c.inv.Checked++
			c.fail(refs(c.rowRef(r)), "the log holds a message that its sender never sent")
		default:
			unrecorded++
		}
	}
	if unrecorded > 0 {
		c.inv.Note = fmt.Sprintf("%d messages of senders that were not recorded are not judged", unrecorded)
	}
}

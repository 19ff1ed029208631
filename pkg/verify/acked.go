package verify

import "time"

// leastAge is the shortest time for which a content is kept, in nanoseconds.
const leastAge = int64(24 * time.Hour)

// acked is I1: what an ACK_OK said is what the final log holds: the same id,
// seq, content and, where the answer named it, predecessor. Contents may be gone
// because of their age, but never within a day, nor before those of older messages.
func (c *check) acked() {
	c.goneInOrder()
	sends := c.sends()
	for i := range sends {
		s := &sends[i]
		if s.acked == never {
			continue
		}
		for o := range c.opsOf(s) {
			if o.ack != ackOK {
				continue
			}
			c.inv.Checked++
			if what := c.differs(s, o); what != "" {
				c.fail(func() []Ref { return c.refsOf(s) }, "%s", what)
			}
		}
	}
}

// differs says how the log contradicts an ACK_OK, or "".
func (c *check) differs(s *send, o *op) string {
	if s.row < 0 {
		return "acknowledged, but not in the final log"
	}
	r := &c.rows[s.row]
	switch {
	case r.seq != o.seq:
		return "acknowledged with another seq than the log has"
	case r.mid != o.mid:
		return "acknowledged with another message id than the log has"
	case o.prev != 0 && r.prev != o.prev:
		return "acknowledged with another prev_seq than the log has"
	case r.entry == nameMessage && r.hash == 0 && c.Run.Ended-s.invoked < leastAge:
		return "acknowledged, but its content is gone before it is a day old"
	case s.hash != 0 && r.hash != 0 && r.hash != s.hash && !c.sentWith(s, r.hash):
		return "acknowledged, but the log holds another content"
	}
	return ""
}

// goneInOrder finds contents that are gone though an older message has its own.
func (c *check) goneInOrder() {
	order, convs := c.ordered()
	for _, e := range convs {
		var kept *row
		for i := e.lo; i < e.hi; i++ {
			r := &c.rows[order[i]]
			switch {
			case r.entry != nameMessage:
			case r.hash != 0:
				kept = r
			case kept != nil:
				c.fail(refs(c.rowRef(kept), c.rowRef(r)), "the content of seq %d is gone, though that of seq %d is kept", r.seq, kept.seq)
			}
		}
	}
}

// sentWith reports whether the send ever left with the content.
func (x *index) sentWith(s *send, hash name) bool {
	for o := range x.opsOf(s) {
		if o.ack == ackNone && o.hash == hash {
			return true
		}
	}
	return false
}

package verify

// answers is I3: every ACK_OK for a key names one message id and one seq; after
// it the key is never refused; and the log holds one row for it.
func (c *check) answers() {
	sends := c.sends()
	for i := range sends {
		s := &sends[i]
		if c.inv.Checked++; s.acked != never {
			c.agree(s)
		}
	}
	c.rowsByKey()
	for _, twin := range c.rowTwins {
		c.fail(refs(c.rowRef(&c.rows[twin[0]]), c.rowRef(&c.rows[twin[1]])), "one key has two rows: the message was stored twice")
	}
}

// agree compares the answers of one send with its first ACK_OK.
func (c *check) agree(s *send) {
	var first *op
	invoked := int64(never) // of the last invoke
	for o := range c.opsOf(s) {
		switch o.ack {
		case ackNone:
			invoked = o.t
		case ackOK:
			if first == nil {
				first = o
			} else if o.mid != first.mid || o.seq != first.seq {
				c.fail(refs(c.opRef(first), c.opRef(o)), "two answers for one key name different messages")
			}
		case ackFail:
			if first != nil && invoked > first.t && invoked != never && !c.reused(s, o) {
				c.fail(refs(c.opRef(first), c.opRef(o)), "refused after it had been acknowledged")
			}
		}
	}
}

// reused reports whether a refusal is right because the key had been used for
// another content.
func (x *index) reused(s *send, fail *op) bool {
	if fail.reason != nameReused {
		return false
	}
	for o := range x.opsOf(s) {
		if o.ack == ackNone && o.hash != s.hash {
			return true
		}
	}
	return false
}

package verify

// resolved is I19: every send got a definite answer, and the log agrees with
// the last one: what was acknowledged is there, what was refused is not.
func (c *check) resolved() {
	sends := c.sends()
	for i := range sends {
		s := &sends[i]
		if s.invoked == never {
			continue // an answer from nowhere is I2's
		}
		c.inv.Checked++
		if what := c.unresolved(s); what != "" {
			c.fail(func() []Ref { return c.refsOf(s) }, "%s", what)
		}
	}
}

// unresolved says what is wrong with the last answer to a send.
func (c *check) unresolved(s *send) string {
	last := c.last(s)
	switch {
	case last == nil:
		return "a send never got a definite answer"
	case last.ack == ackOK && s.row < 0:
		return "acknowledged in the end, but not in the final log"
	case last.ack == ackFail && s.row >= 0 && !c.reused(s, last):
		return "refused in the end, but in the final log"
	}
	return ""
}

package verify

// rising is I8: the seqs that a device shows of a conversation strictly rise,
// until a resync makes it begin anew.
func (c *check) rising() {
	list, _ := c.stories()
	for i := range list {
		var last *view
		for v := range c.told(&list[i]) {
			switch v.kind {
			case viewResync:
				last = nil
			case viewShow:
				if c.inv.Checked++; last != nil && v.seq <= last.seq {
					what := "was shown after"
					if v.seq == last.seq {
						what = "was shown again after"
					}
					c.fail(refs(c.viewRef(last), c.viewRef(v)), "seq %d %s %d", v.seq, what, last.seq)
				}
				last = v // not the highest: one step back is one violation
			}
		}
	}
}

package verify

// order is I4: under the transaction allocator the seqs of a conversation are
// exactly 1 to its last; under segment they rise. Each row's prev_seq is the
// seq of the row before it.
func (c *check) order() {
	order, convs := c.ordered()
	dense := c.Run.Allocator == allocTransaction
	for _, e := range convs {
		var before *row
		for _, i := range order[e.lo:e.hi] {
			c.inv.Checked++
			c.follows(before, &c.rows[i], dense)
			before = &c.rows[i]
		}
	}
}

func (c *check) follows(before, r *row, dense bool) {
	last := int64(0)
	if before != nil {
		last = before.seq
	}
	pair := func() []Ref {
		if before == nil {
			return []Ref{c.rowRef(r)}
		}
		return []Ref{c.rowRef(before), c.rowRef(r)}
	}
	switch {
	case r.seq == last:
		c.fail(pair, "two rows have seq %d", r.seq)
	case dense && r.seq != last+1:
		c.fail(pair, "a hole: after seq %d comes %d", last, r.seq)
	case r.prev != last:
		c.fail(pair, "prev_seq of seq %d is %d, but the row before has %d", r.seq, r.prev, last)
	}
}

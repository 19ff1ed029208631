package verify

import (
	"cmp"
	"slices"
)

// ids is I14: a message id stands for one entry, in the log and in the answers.
func (c *check) ids() {
	uses := c.uses()
	slices.SortFunc(uses, func(a, b use) int {
		return cmp.Or(cmp.Compare(a.mid, b.mid), cmp.Compare(a.conv, b.conv), cmp.Compare(a.user, b.user), cmp.Compare(a.cmid, b.cmid), a.rank()-b.rank(), cmp.Compare(a.i, b.i))
	})
	for i := range uses {
		u := &uses[i]
		c.inv.Checked++
		if u.mid == 0 {
			c.fail(func() []Ref { return []Ref{c.useRef(u)} }, "a message without id")
			continue
		}
		if i == 0 || uses[i-1].mid != u.mid {
			continue
		}
		a := &uses[i-1]
		if a.key != u.key || !a.op && !u.op {
			c.fail(func() []Ref { return []Ref{c.useRef(a), c.useRef(u)} }, "message id %d stands for two entries", u.mid)
		}
	}
}

// use is where a message id occurs.
type use struct {
	mid int64
	key
	i  uint32
	op bool // in History.ops, else in History.rows
}

// rank puts rows before answers.
func (u *use) rank() int {
	if u.op {
		return 1
	}
	return 0
}

func (c *check) uses() []use {
	var all []use
	for i := range c.ops {
		if o := &c.ops[i]; o.ack == ackOK {
			all = append(all, use{o.mid, keyOf(o), uint32(i), true})
		}
	}
	for i := range c.rows {
		if r := &c.rows[i]; r.mid != 0 || r.entry == nameMessage {
			all = append(all, use{r.mid, key{r.conv, r.sender, r.cmid}, uint32(i), false})
		}
	}
	return all
}

func (c *check) useRef(u *use) Ref {
	if u.op {
		return c.opRef(&c.ops[u.i])
	}
	return c.rowRef(&c.rows[u.i])
}

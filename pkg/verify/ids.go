package verify

import (
	"cmp"
	"slices"

	"github.com/imdhq/imd/pkg/history"
)

// ids is I14: a message id stands for one entry, in the log, in the answers
// and among what nodes made beside them.
func (c *check) ids() {
	uses := c.uses()
	slices.SortFunc(uses, func(a, b use) int {
		return cmp.Or(cmp.Compare(a.mid, b.mid), cmp.Compare(a.conv, b.conv), cmp.Compare(a.user, b.user), cmp.Compare(a.cmid, b.cmid), cmp.Compare(a.where, b.where), cmp.Compare(a.i, b.i))
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
		if a.key != u.key || a.where != inOps && u.where != inOps {
			c.fail(func() []Ref { return []Ref{c.useRef(a), c.useRef(u)} }, "message id %d stands for two entries", u.mid)
		}
	}
}

// use is where a message id occurs.
type use struct {
	mid int64
	key
	i     uint32
	where where
}

// where says in which slice of History a use stands, rows before answers.
type where int

const (
	inRows where = iota
	inOps
	inActs
)

func (c *check) uses() []use {
	var all []use
	for i := range c.ops {
		if o := &c.ops[i]; o.ack == ackOK {
			all = append(all, use{o.mid, keyOf(o), uint32(i), inOps})
		}
	}
	for i := range c.rows {
		if r := &c.rows[i]; r.mid != 0 || r.entry == nameMessage {
			all = append(all, use{r.mid, key{r.conv, r.sender, r.cmid}, uint32(i), inRows})
		}
	}
	for i := range c.acts {
		if a := &c.acts[i]; a.kind == history.Made {
			all = append(all, use{a.n, key{}, uint32(i), inActs})
		}
	}
	return all
}

func (c *check) useRef(u *use) Ref {
	switch u.where {
	case inOps:
		return c.opRef(&c.ops[u.i])
	case inActs:
		return c.actRef(&c.acts[u.i])
	}
	return c.rowRef(&c.rows[u.i])
}

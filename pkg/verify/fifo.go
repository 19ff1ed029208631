package verify

import (
	"cmp"
	"fmt"
	"slices"
)

// fifo is I6: the acknowledged messages of a device in a conversation have
// seqs in the order in which it sent them. What the device had given up when it
// went on with later ones is not judged, but counted; nor is what was never
// acknowledged: nobody was told where it is.
func (c *check) fifo() {
	gone := 0
	for _, lane := range c.lanes() {
		var before *send
		for i, s := range lane {
			if c.gaveUp(lane, i) {
				gone++
				continue
			}
			if before != nil {
				c.inOrder(before, s)
			}
			before = s
		}
	}
	if gone > 0 {
		c.inv.Note = fmt.Sprintf("%d sends that were given up before a later one left are not judged", gone)
	}
}

func (c *check) inOrder(a, b *send) {
	c.inv.Checked++
	both := func() []Ref { return join(c.refsOf(a), c.refsOf(b)) }
	switch {
	case a.n == b.n:
		c.fail(both, "two sends of a device are both its number %d in the conversation", a.n)
	case c.position(a) >= c.position(b):
		c.fail(both, "sends %d and %d of a device have seqs %d and %d", a.n, b.n, c.position(a), c.position(b))
	}
}

// lanes gives the acknowledged sends of each device in each conversation, in
// the order of their numbers.
func (x *index) lanes() [][]*send {
	sends := x.sends()
	all := make([]*send, 0, len(sends))
	for i := range sends {
		if s := &sends[i]; s.acked != never && s.invoked != never {
			all = append(all, s)
		}
	}
	same := func(a, b *send) int {
		return cmp.Or(cmp.Compare(a.conv, b.conv), cmp.Compare(a.user, b.user), cmp.Compare(a.device, b.device))
	}
	slices.SortFunc(all, func(a, b *send) int { return cmp.Or(same(a, b), cmp.Compare(a.n, b.n)) })
	var lanes [][]*send
	for lo := 0; lo < len(all); {
		hi := lo + 1
		for hi < len(all) && same(all[lo], all[hi]) == 0 {
			hi++
		}
		lanes = append(lanes, all[lo:hi])
		lo = hi
	}
	return lanes
}

// gaveUp reports whether, between a lost answer to a send and its leaving
// again, a later send of the device left for the first time.
func (x *index) gaveUp(lane []*send, i int) bool {
	lost := int64(never)
	for o := range x.opsOf(lane[i]) {
		switch {
		case o.ack == ackUnknown:
			lost = min(lost, o.t)
		case o.ack == ackNone && lost < o.t:
			for _, later := range lane[i+1:] {
				if later.invoked >= o.t {
					break
				}
				if later.invoked > lost {
					return true
				}
			}
			lost = never
		}
	}
	return false
}

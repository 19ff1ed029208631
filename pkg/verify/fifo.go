package verify

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
)

// fifo is I6: the acknowledged messages of a device in a conversation have
// seqs in the order in which it sent them. What the device had given up when it
// went on with later ones is not judged, but counted, and so is what may have
// been refused for good by an answer that was lost; nor is what was never
// acknowledged: nobody was told where it is.
func (c *check) fifo() {
	gone, failed, across := 0, 0, 0
	rings := c.plane().rings
	for _, lane := range c.lanes() {
		var before *send
		for i, s := range lane {
			switch {
			case c.gaveUp(lane, i):
				gone++
				continue
			case c.mayHaveFailed(s):
				failed++
				continue
			}
			if before != nil {
				c.inOrder(before, s)
				if spans(rings, before, s) {
					across++
				}
			}
			before = s
		}
	}
	if len(rings) > 0 {
		defer func() {
			note := fmt.Sprintf("%d pairs of sends across one of %d changes of the ring", across, len(rings))
			c.inv.Note = strings.TrimSuffix(note+"; "+c.inv.Note, "; ")
		}()
	}
	if gone > 0 {
		c.inv.Note = fmt.Sprintf("%d sends that were given up before a later one left are not judged", gone)
	}
	if failed > 0 {
		c.inv.Note += fmt.Sprintf("%s%d sends whose lost answer may have been a refusal for good are not judged", map[bool]string{true: "; "}[gone > 0], failed)
	}
}

// spans reports whether the ring changed between the leaving of the first of two sends and
// the answer to the second.
func spans(rings []int64, a, b *send) bool {
	i, _ := slices.BinarySearch(rings, a.invoked)
	return i < len(rings) && rings[i] <= b.acked
}

// mayHaveFailed reports whether an answer to s was lost while its sender was
// being refused for good in that conversation, as one who was removed or blocked
// for a while is. Such a refusal holds nothing back, so later sends may be stored
// first; the repeat is then stored behind them.
func (x *index) mayHaveFailed(s *send) bool {
	if !x.refused()[[2]name{s.user, s.conv}] {
		return false
	}
	for o := range x.opsOf(s) {
		if o.ack == ackUnknown {
			return true
		}
	}
	return false
}

// refused are the users and conversations in which a send was refused for good.
func (x *index) refused() map[[2]name]bool {
	if x.refusedIn == nil {
		x.refusedIn = map[[2]name]bool{}
		for i := range x.ops {
			if o := &x.ops[i]; o.ack == ackFail {
				x.refusedIn[[2]name{o.user, o.conv}] = true
			}
		}
	}
	return x.refusedIn
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

package verify

import (
	"cmp"
	"slices"
)

// fifo is I6: the acknowledged messages of a device in a conversation have
// seqs in the order in which it sent them. Others do not count here: nobody
// was told where they are.
func (c *check) fifo() {
	all := c.sends()
	order := make([]uint32, 0, len(all))
	for i := range all {
		if all[i].acked != never && all[i].invoked != never {
			order = append(order, uint32(i))
		}
	}
	slices.SortFunc(order, func(i, j uint32) int {
		a, b := &all[i], &all[j]
		return cmp.Or(cmp.Compare(a.conv, b.conv), cmp.Compare(a.user, b.user), cmp.Compare(a.device, b.device), cmp.Compare(a.n, b.n))
	})
	for i := 1; i < len(order); i++ {
		a, b := &all[order[i-1]], &all[order[i]]
		if a.conv != b.conv || a.user != b.user || a.device != b.device {
			continue
		}
		c.inv.Checked++
		both := func() []Ref { return join(c.refsOf(a), c.refsOf(b)) }
		switch {
		case a.n == b.n:
			c.fail(both, "two sends of a device are both its number %d in the conversation", a.n)
		case c.position(a) >= c.position(b):
			c.fail(both, "sends %d and %d of a device have seqs %d and %d", a.n, b.n, c.position(a), c.position(b))
		}
	}
}

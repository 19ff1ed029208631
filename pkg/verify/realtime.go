package verify

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"github.com/anishathalye/porcupine"
)

// realTime is I5: if the answer to one send came before another one left, the
// first has the lower seq. A sweep in order of time finds every such pair; a
// search for a linear order of an append-only log, over windows of operations,
// says the same by another way.
func (c *check) realTime() {
	sends := c.sends()
	for lo := 0; lo < len(sends); {
		hi := lo + 1
		for hi < len(sends) && sends[hi].conv == sends[lo].conv {
			hi++
		}
		c.sweep(sends[lo:hi])
		lo = hi
	}
	c.search()
	c.inv.Note = fmt.Sprintf("%d windows searched for a linear order, %d undecided", c.windows, c.undecided)
}

// sweep goes through one conversation in order of time.
func (c *check) sweep(sends []send) {
	var began, done []*send
	for i := range sends {
		s := &sends[i]
		if s.invoked != never && c.position(s) != 0 {
			began = append(began, s)
		}
		if s.acked != never {
			done = append(done, s)
		}
	}
	slices.SortFunc(began, func(a, b *send) int { return cmp.Compare(a.invoked, b.invoked) })
	slices.SortFunc(done, func(a, b *send) int { return cmp.Compare(a.acked, b.acked) })
	var highest *send
	for _, s := range began {
		for len(done) > 0 && done[0].acked < s.invoked {
			if highest == nil || c.position(done[0]) > c.position(highest) {
				highest = done[0]
			}
			done = done[1:]
		}
		if highest == nil {
			continue
		}
		c.inv.Checked++
		if h := highest; c.position(s) <= c.position(h) {
			c.fail(func() []Ref { return join(c.refsOf(h), c.refsOf(s)) },
				"seq %d was acknowledged before the send with seq %d left", c.position(h), c.position(s))
		}
	}
}

// window is how many operations are searched at once.
const window = 200

// appendLog is a log to which operations append; its state is its length, and
// the output of an operation is the length it found.
var appendLog = porcupine.Model{
	Init: func() any { return 0 },
	Step: func(state, _, output any) (bool, any) {
		length := state.(int)
		return output.(int) == length, length + 1
	},
	Equal: func(a, b any) bool { return a == b },
}

// search looks for a linear order of each window of the log. What is not known
// to have been acknowledged may have happened at any time after its invoke, and
// what nobody recorded at any time at all.
func (c *check) search() {
	order, convs := c.ordered()
	keys := c.sendKeys()
	for _, e := range convs {
		for lo := e.lo; lo < e.hi; lo += window {
			rows := order[lo:min(lo+window, e.hi)]
			if result := c.linear(rows, keys); result == porcupine.Illegal {
				c.fail(refs(c.rowRef(&c.rows[rows[0]]), c.rowRef(&c.rows[rows[len(rows)-1]])),
					"no linear order explains the log from seq %d to %d", c.rows[rows[0]].seq, c.rows[rows[len(rows)-1]].seq)
			}
		}
	}
}

// sendKeys finds sends by key.
func (c *check) sendKeys() map[key]*send {
	sends := c.sends()
	keys := make(map[key]*send, len(sends))
	for i := range sends {
		keys[sends[i].key] = &sends[i]
	}
	return keys
}

// linear judges one window.
func (c *check) linear(rows []uint32, keys map[key]*send) porcupine.CheckResult {
	ops := make([]porcupine.Operation, 0, len(rows))
	for i, at := range rows {
		r := &c.rows[at]
		op := porcupine.Operation{ClientId: i, Output: i, Call: -1, Return: never}
		if s := keys[key{r.conv, r.sender, r.cmid}]; r.entry == nameMessage && s != nil && s.invoked != never {
			op.Call, op.Return = s.invoked, max(s.acked, s.invoked)
		}
		ops = append(ops, op)
	}
	result := porcupine.CheckOperationsTimeout(appendLog, ops, max(c.opt.SearchFor, time.Nanosecond))
	c.windows++
	if result == porcupine.Unknown {
		c.undecided++
	}
	return result
}

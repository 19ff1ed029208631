package circuit

// openAfter is how many calls in a row may stay without an answer before the
// next ones are not made.
const openAfter = 3

// Circuit decides whether a call to a server is worth its time. It is closed
// while the server answers. After a few calls in a row without an answer it
// opens: no call is made, and somebody off the path asks from time to time
// whether the cache is there again. The zero value is closed; not safe for
// concurrent use.
type Circuit struct {
	silent int
	open   bool
}

// NewOpenCircuit is the circuit of a server that has not answered yet.
func NewOpenCircuit() Circuit { return Circuit{open: true} }

// Open reports whether calls are not to be made.
func (c *Circuit) Open() bool { return c.open }

// Called takes the class of what came of a call, "" for an answer. It reports
// whether the circuit has opened by it: then asking begins.
func (c *Circuit) Called(what Class) (opened bool) {
	switch {
	case c.open: // a call that was on its way when it opened
		return false
	case !what.Silent():
		c.silent = 0
		return false
	}
	c.silent++
	c.open = c.silent >= openAfter
	return c.open
}

// Asked takes whether the server answered when it was asked, and reports whether
// the circuit has closed by it.
func (c *Circuit) Asked(answered bool) (closed bool) {
	if !c.open || !answered {
		return false
	}
	c.open, c.silent = false, 0
	return true
}

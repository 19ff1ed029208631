package presence

import "time"

// turns is how far it is known what those outside believe.
type turns uint8

const (
	unknown turns = iota
	learned       // all of it, and not compared yet
	known
)

// believed takes in what those outside believe.
func (c *Core) believed(e Told) {
	if e.First {
		c.turns = unknown
		for _, u := range c.users {
			if u.outside {
				u.outside = false
				c.arm(u)
			}
		}
	}
	for _, id := range e.Users {
		c.of(id).outside = true
	}
	if e.Last {
		c.turns = learned
	}
}

// compare finds out, once it is known what is and what those outside believe, where
// the two differ.
func (c *Core) compare(now time.Time) {
	if c.turns != learned || !c.whole(now) {
		return
	}
	c.turns = known
	for _, u := range c.users {
		c.turn(now, u)
		c.arm(u)
	}
}

// turn tells those outside of a user, if they believe something else.
func (c *Core) turn(now time.Time, u *user) {
	there := u.shown != 0
	if there == u.outside {
		return
	}
	u.outside = there
	t := Turn{User: u.id, Online: there, At: now}
	if at := later(u.seen, u.left); !there && !at.IsZero() {
		t.At = at
	}
	c.fx.Turned = append(c.fx.Turned, t)
}

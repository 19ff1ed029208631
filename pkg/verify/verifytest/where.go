package verifytest

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/imdhq/imd/pkg/history"
)

// where makes the records of who is where. It always is the same, but for small pauses.
func (g *generator) where() {
	g.visits()
	g.calls()
}

// visits lets logins of two users follow each other. The last session of k1 ends with its
// process, that of k2 stays.
func (g *generator) visits() {
	var sessions, sights []history.Record
	soon := func(t int64) int64 { return t + g.between(ms, 80*ms) }
	stay := func(user, session, login, device string, asked, out int64, why string) {
		r := history.Record{T: soon(asked), To: asked, Kind: history.Login, User: user, Device: device, Entry: session, Name: login, Ack: history.AckOK}
		sessions = append(sessions, r)
		if out > 0 {
			r.T, r.To, r.Kind, r.Ack, r.Reason = soon(out), 0, history.Logout, "", why
			sessions = append(sessions, r)
		}
	}
	stay("k1", "s1", "l1", "d1", second, 5*second+100*ms, history.Replaced)
	stay("k1", "s2", "l2", "d2", 5*second, 8*second+100*ms, history.Superseded)
	stay("k1", "s3", "l2", "d2", 8*second, 12*second, history.Killed)
	stay("k2", "s4", "l1", "d1", 2*second, 9*second+100*ms, history.Replaced)
	stay("k2", "s5", "l3", "d2", 9*second, 0, "")
	sessions = append(sessions, history.Record{T: 3 * second, To: 3*second - 500*ms, Kind: history.Login, User: "k2", Device: "d9", Entry: "s6", Name: "l9", Ack: history.AckFail, Reason: "login_refused"})
	for _, observer := range []string{"o1", "o2"} {
		see := func(user string, t int64, stop bool) {
			sights = append(sights, history.Record{T: t, Kind: history.Sight, User: user, Device: observer, Stop: stop})
		}
		see("k1", 500*ms, true)
		see("k2", 500*ms, true)
		see("k1", g.between(1100*ms, 3*second), false)
		see("k2", g.between(2100*ms, 4*second), false)
		see("k1", 12*second+g.between(3*second, 11*second), true)
	}
	g.inOrder("sessions.log", sessions)
	g.inOrder("presence.log", sights)
}

// inOrder adds records to a file in order of time.
func (g *generator) inOrder(file string, all []history.Record) {
	slices.SortStableFunc(all, func(a, b history.Record) int { return cmp.Compare(a.T, b.T) })
	for _, r := range all {
		g.add(file, r)
	}
}

// caller makes calls about one user, one after the other.
type caller struct {
	g    *generator
	user string
	t    int64
	seen int64 // the highest epoch
	all  *[]history.Record
}

func (c *caller) call(name, session, login, device string, n int64) *history.Record {
	c.t += c.g.between(20*ms, 200*ms)
	r := history.Record{T: c.t, To: c.t + c.g.between(ms, 10*ms), Kind: history.Route, Name: name, User: c.user, Entry: session, Sender: login, Device: device,
		N: n, Prev: c.seen, Ack: history.AckOK}
	*c.all = append(*c.all, r)
	return &(*c.all)[len(*c.all)-1]
}

func (c *caller) claim(session, login, device, superseded, replaced string) int64 {
	r := c.call(history.RouteClaim, session, login, device, 0)
	c.seen = max(c.seen, 1_000_000) + c.g.between(1, 1000)
	r.Seq, r.Hash = c.seen, superseded+"|"+replaced
	return c.seen
}

func (c *caller) lookup(found string) { c.call(history.RouteLookup, "", "", "", 0).Hash = found }

// calls lets processes call the route store, which loses everything once.
func (g *generator) calls() {
	var all []history.Record
	const lost = 14 * second
	for i := range 6 {
		c := &caller{g: g, user: fmt.Sprint("r", i), t: g.between(second, 2*second), all: &all}
		a := c.claim("a", "l1", "d1", "", "")
		c.lookup("a")
		b := c.claim("b", "l1", "d1", "a", "")
		c.call(history.RouteRelease, "a", "l1", "d1", a)
		c.call(history.RouteRefresh, "a", "l1", "d1", a).Reason = history.Superseded
		c.call(history.RouteRefresh, "b", "l1", "d1", b).Reason = "kept"
		x := c.claim("c", "l2", "d2", "", "b")
		c.call(history.RouteRefresh, "b", "l1", "d1", b).Reason = history.Replaced
		if i%3 == 2 { // nobody knows whether it came through; the next one says so
			unknown := c.call(history.RouteClaim, "x", "l2", "d3", 0)
			unknown.To, unknown.Ack = 0, history.AckUnknown
			c.lookup("c x")
		}
		c.t = lost + second
		c.lookup("")
		c.call(history.RouteRefresh, "c", "l2", "d2", x).Reason = "restored"
		c.lookup("c")
		d := c.claim("d", "l2", "d3", "", "")
		c.lookup("c d")
		c.call(history.RouteRelease, "d", "l2", "d3", d).Dup = true
		c.lookup("c")
	}
	all = append(all, history.Record{T: lost, To: lost + 200*ms, Kind: history.Route, Name: history.RouteForget, Ack: history.AckOK, Reason: history.ClockSlow})
	g.inOrder("routes.log", all)
}

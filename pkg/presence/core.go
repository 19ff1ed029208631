package presence

import (
	"slices"
	"time"

	"github.com/imdhq/imd/pkg/im"
	"github.com/imdhq/imd/pkg/store"
)

const (
	// TickTime is how far apart ticks are: changes are told in batches.
	TickTime = 100 * time.Millisecond
	// GatherLimit is how long a gateway that serves may keep quiet before it
	// counts as one without sessions.
	GatherLimit = 10 * time.Second
	// tombTime is how long it is remembered which session of a login and device
	// was the newest, after it ended.
	tombTime = 2 * time.Minute
)

// Waits are how long a class that has lost its last session is still shown.
type Waits struct {
	Offline time.Duration // the client closed, or its connection broke
	Return  time.Duration // the server ended the session and told the client to come back
}

// Core is who is online, as the gateways tell it. Not safe for concurrent use.
type Core struct {
	// Waits may be changed between steps; they hold for what ends from then on.
	Waits Waits

	homes map[store.Home]*home
	order []*home // in the order of their listing
	users map[im.UserID]*user

	due    alarms
	dirty  []*user // that are shown in another way than was told
	asked  []*user // with unanswered watchers
	viewed bool    // the registry has been heard of
	live   int     // sessions
	turns  turns   // for those outside
	out    map[*home]*Tell
	fx     Effects
}

// home is one gateway.
type home struct {
	at       store.Home
	serving  bool
	listed   time.Time // since when it serves
	heard    time.Time
	reported bool // its snapshot is complete
	again    bool // it has begun one before
	gen      uint32
}

// user is one user that has sessions, had some lately, or is watched.
type user struct {
	id          im.UserID
	places      []place
	shown, told Mask
	hide        *[classes]time.Time // when a class is hidden; zero = it is not
	left        time.Time           // when the last session ended
	seen        time.Time
	known       bool // seen is what there is
	loading     bool
	dirty       bool
	asked       bool // it is in Core.asked
	outside     bool // those outside believe that it is online
	watchers    []*home
	unanswered  []*home
	wake        time.Time // zero = no alarm
	index       int       // in the alarms
}

// place is a session, or the newest one of its login and device that lately
// ended.
type place struct {
	hash    uint64 // 0 = of a session without a route
	session im.SessionID
	epoch   uint64
	home    *home
	class   Mask
	gen     uint32
	ended   time.Time // zero = it lives
}

func (p *place) live() bool { return p.ended.IsZero() }

// New makes a Core that has heard of nobody.
func New(w Waits) *Core {
	return &Core{Waits: w, homes: map[store.Home]*home{}, users: map[im.UserID]*user{}}
}

// PlaceOf stands for a login on a device, in all processes of a cluster alike.
func PlaceOf(login im.LoginID, device im.DeviceID) uint64 {
	// FNV-1a: it must be the same in every process, and collisions of one user's
	// few logins do not happen.
	const prime = 1099511628211
	h := uint64(14695981039346656037)
	for _, s := range []string{string(login), "\x00", string(device)} {
		for i := range len(s) {
			h = (h ^ uint64(s[i])) * prime
		}
	}
	return max(h, 1)
}

// Step takes in an event. The effects are the caller's.
func (c *Core) Step(now time.Time, ev Event) Effects {
	c.fx, c.out = Effects{}, map[*home]*Tell{}
	switch e := ev.(type) {
	case Gateways:
		c.gateways(now, e.List)
	case Report:
		c.report(now, e)
	case Loaded:
		c.loaded(now, e.Users)
	case Told:
		c.believed(e)
	case Tick:
		c.tick(now)
	}
	for _, h := range c.order {
		if t := c.out[h]; t != nil {
			c.fx.Tell = append(c.fx.Tell, *t)
		}
	}
	return c.fx
}

// Stats is what a Core holds.
type Stats struct {
	Users    int // shown as online
	Sessions int
	Watched  int // users that some gateway wants to hear of
	Followed int // gateways that have reported all they have
	Awaited  int // gateways that serve and have not
}

// Stats counts; it looks at every user.
func (c *Core) Stats() Stats {
	s := Stats{Sessions: c.live}
	for _, u := range c.users {
		if u.shown != 0 {
			s.Users++
		}
		if len(u.watchers) > 0 {
			s.Watched++
		}
	}
	for _, h := range c.order {
		switch {
		case h.reported:
			s.Followed++
		case h.serving:
			s.Awaited++
		}
	}
	return s
}

// whole reports whether all gateways have told what they have, or had the time
// to.
func (c *Core) whole(now time.Time) bool {
	if !c.viewed {
		return false
	}
	for _, h := range c.order {
		if h.serving && !h.reported && now.Sub(h.listed) < GatherLimit {
			return false
		}
	}
	return true
}

// gateways takes in who is in the cluster.
func (c *Core) gateways(now time.Time, list []Gateway) {
	c.viewed = true
	there := map[store.Home]bool{}
	for _, g := range list {
		there[g.Home] = true
		h := c.homes[g.Home]
		if h == nil {
			h = &home{at: g.Home, heard: now}
			c.homes[g.Home] = h
			c.order = append(c.order, h)
		}
		if g.Serving && !h.serving {
			h.listed = now
		}
		h.serving = g.Serving
	}
	for _, h := range slices.Clone(c.order) {
		if !there[h.at] {
			c.gone(now, h)
		}
	}
}

// gone forgets a gateway that left.
func (c *Core) gone(now time.Time, h *home) {
	delete(c.homes, h.at)
	c.order = slices.DeleteFunc(c.order, func(o *home) bool { return o == h })
	c.forgetWatches(h)
	for _, u := range c.users {
		c.lose(now, u, func(p *place) bool { return p.home == h }, h.heard, 0)
		c.arm(u)
	}
}

// lose removes places of which nothing more will be heard; live ones ended at a
// time.
func (c *Core) lose(now time.Time, u *user, which func(*place) bool, at time.Time, wait time.Duration) {
	before := len(u.places)
	u.places = slices.DeleteFunc(u.places, func(p place) bool {
		if !which(&p) {
			return false
		}
		c.count(&p, -1)
		if p.live() {
			u.left = later(u.left, at)
		}
		return true
	})
	if len(u.places) != before {
		c.settle(now, u, wait)
	}
}

// count keeps the number of sessions; it is called for every place that comes or
// goes.
func (c *Core) count(p *place, n int) {
	if p.live() {
		c.live += n
	}
}

// report takes in what a gateway told.
func (c *Core) report(now time.Time, r Report) {
	h := c.homes[r.Home]
	if h == nil {
		return // it has gone
	}
	h.heard = now
	if r.First {
		h.again = h.gen > 0
		h.gen++
		h.reported = false
		h.listed = now // it is there, and gets the time again
		if h.again {
			c.forgetWatches(h)
		}
	}
	for _, x := range r.Changes {
		switch x.Kind {
		case Began:
			c.began(now, h, x.Session)
		case Ended:
			c.ended(now, x)
		case Watch:
			c.watch(now, h, x.Session.User)
		case Unwatch:
			c.unwatch(h, x.Session.User)
		}
	}
	if !r.Last || h.reported {
		return
	}
	h.reported = true
	if !h.again {
		return
	}
	for _, u := range c.users {
		c.lose(now, u, func(p *place) bool { return p.home == h && p.live() && p.gen != h.gen }, now, c.Waits.Offline)
		c.arm(u)
	}
}

// forgetWatches forgets what a gateway wanted to hear of.
func (c *Core) forgetWatches(h *home) {
	is := func(o *home) bool { return o == h }
	for _, u := range c.users {
		u.watchers, u.unanswered = slices.DeleteFunc(u.watchers, is), slices.DeleteFunc(u.unanswered, is)
	}
}

// of finds a user, or makes it.
func (c *Core) of(id im.UserID) *user {
	u := c.users[id]
	if u == nil {
		u = &user{id: id, index: -1}
		c.users[id] = u
	}
	return u
}

// began takes in a session.
func (c *Core) began(now time.Time, h *home, s Session) {
	u := c.of(s.User)
	n := place{session: s.ID, epoch: s.Epoch, home: h, class: MaskOf(s.Class), gen: h.gen}
	if s.Epoch > 0 {
		n.hash = s.Place
	}
	for i := range u.places {
		p := &u.places[i]
		switch {
		case p.session == n.session && !p.live():
			return // it was over already
		case p.session != n.session && n.hash != 0 && p.hash == n.hash && p.epoch > n.epoch:
			c.supersede(h, s.ID)
			return
		}
	}
	u.places = slices.DeleteFunc(u.places, func(p place) bool {
		again := p.session == n.session // or now with its route
		if !again && (n.hash == 0 || p.hash != n.hash) {
			return false
		}
		if !again && p.live() {
			c.supersede(p.home, p.session)
		}
		c.count(&p, -1)
		return true
	})
	u.places = append(u.places, n)
	c.count(&n, 1)
	c.settle(now, u, c.Waits.Offline)
}

// ended takes in the end of a session. One that is not known was superseded, or
// ended before this Core heard of it; still its user was there until then.
func (c *Core) ended(now time.Time, x Change) {
	u := c.of(x.Session.User)
	for i := range u.places {
		p := &u.places[i]
		if p.session != x.Session.ID || !p.live() {
			continue
		}
		c.count(p, -1)
		u.left = later(u.left, x.At)
		if p.hash == 0 {
			u.places = slices.Delete(u.places, i, i+1)
		} else {
			p.ended = now
		}
		wait := c.Waits.Offline
		if x.Returns {
			wait = max(wait, c.Waits.Return)
		}
		c.settle(now, u, wait)
		return
	}
	u.left = later(u.left, x.At)
	if u.shown == 0 && x.At.After(u.seen) {
		u.seen = x.At
		c.fx.Save = append(c.fx.Save, Seen{u.id, x.At})
	}
	c.arm(u)
}

// supersede has a session dropped by its gateway.
func (c *Core) supersede(h *home, s im.SessionID) {
	t := c.to(h)
	t.Superseded = append(t.Superseded, s)
}

// to is what a gateway hears after this step.
func (c *Core) to(h *home) *Tell {
	t := c.out[h]
	if t == nil {
		t = &Tell{Home: h.at}
		c.out[h] = t
	}
	return t
}

// settle compares the sessions with what is shown: what is new is shown, and
// what is gone is hidden after the wait.
func (c *Core) settle(now time.Time, u *user, wait time.Duration) {
	var live Mask
	for i := range u.places {
		if u.places[i].live() {
			live |= u.places[i].class
		}
	}
	for i := range classes {
		bit := Mask(1 << i)
		switch {
		case live&bit != 0:
			if u.hide != nil {
				u.hide[i] = time.Time{}
			}
			u.shown |= bit
		case u.shown&bit != 0:
			if u.hide == nil {
				u.hide = new([classes]time.Time)
			}
			if u.hide[i].IsZero() || wait == 0 {
				u.hide[i] = now.Add(wait)
			}
		}
	}
	c.mark(u)
	c.arm(u)
}

// mark notes that a user is shown in another way than was told.
func (c *Core) mark(u *user) {
	if u.shown != u.told && !u.dirty {
		u.dirty = true
		c.dirty = append(c.dirty, u)
	}
}

// watch notes that a gateway wants to hear of a user, and answers it.
func (c *Core) watch(now time.Time, h *home, id im.UserID) {
	u := c.of(id)
	if !slices.Contains(u.watchers, h) {
		u.watchers = append(u.watchers, h)
	}
	if !slices.Contains(u.unanswered, h) {
		u.unanswered = append(u.unanswered, h)
	}
	if u.shown == 0 && !u.known && !u.loading {
		u.loading = true
		c.fx.Load = append(c.fx.Load, id)
	}
	c.answer(now, u)
}

func (c *Core) unwatch(h *home, id im.UserID) {
	u := c.users[id]
	if u == nil {
		return
	}
	is := func(o *home) bool { return o == h }
	u.watchers, u.unanswered = slices.DeleteFunc(u.watchers, is), slices.DeleteFunc(u.unanswered, is)
	c.arm(u)
}

// answer tells those who asked for a user, as soon as it is sure what it is.
func (c *Core) answer(now time.Time, u *user) {
	if len(u.unanswered) == 0 || u.dirty { // the next tick tells all
		return
	}
	if u.shown == 0 && (u.loading || !c.whole(now)) {
		if !u.asked {
			u.asked = true
			c.asked = append(c.asked, u)
		}
		return
	}
	for _, h := range u.unanswered {
		t := c.to(h)
		t.States = append(t.States, u.state())
	}
	u.unanswered = nil
}

// state is what others see of the user.
func (u *user) state() State {
	s := State{User: u.id, Online: u.shown}
	if u.shown == 0 {
		s.LastSeen = u.seen
	}
	return s
}

// loaded takes in when users were last seen.
func (c *Core) loaded(now time.Time, list []Seen) {
	for _, s := range list {
		u := c.users[s.User]
		if u == nil {
			continue
		}
		u.loading, u.known = false, true
		u.seen = later(u.seen, s.At)
		c.answer(now, u)
		c.arm(u)
	}
}

// tick does what is due, and tells what has changed.
func (c *Core) tick(now time.Time) {
	if c.whole(now) {
		for u := c.due.next(now); u != nil; u = c.due.next(now) {
			c.wake(now, u)
		}
	}
	for _, u := range c.dirty {
		u.dirty = false
		if u.told == u.shown {
			c.answer(now, u)
			c.arm(u)
			continue
		}
		u.told = u.shown
		if c.turns == known {
			c.turn(now, u)
		}
		for _, h := range u.watchers {
			t := c.to(h)
			t.States = append(t.States, u.state())
		}
		u.unanswered = nil
		c.arm(u)
	}
	clear(c.dirty)
	c.dirty = c.dirty[:0]
	c.compare(now)
	asked := c.asked
	c.asked = nil
	for _, u := range asked {
		u.asked = false
		c.answer(now, u)
		c.arm(u)
	}
}

// wake does what is due for one user.
func (c *Core) wake(now time.Time, u *user) {
	if u.hide != nil {
		was := u.shown
		for i := range classes {
			if at := u.hide[i]; !at.IsZero() && !now.Before(at) {
				u.shown &^= 1 << i
				u.hide[i] = time.Time{}
			}
		}
		if *u.hide == [classes]time.Time{} {
			u.hide = nil
		}
		if was != 0 && u.shown == 0 {
			u.seen, u.known = later(u.seen, u.left), true
			c.fx.Save = append(c.fx.Save, Seen{u.id, u.seen})
		}
		c.mark(u)
	}
	u.places = slices.DeleteFunc(u.places, func(p place) bool { return !p.live() && now.Sub(p.ended) >= tombTime })
	c.arm(u)
}

// arm sets the alarm of a user to when something of it is due next, and forgets
// one of whom nothing is left.
func (c *Core) arm(u *user) {
	var at time.Time
	sooner := func(t time.Time) {
		if !t.IsZero() && (at.IsZero() || t.Before(at)) {
			at = t
		}
	}
	if u.hide != nil {
		for _, t := range u.hide {
			sooner(t)
		}
	}
	for i := range u.places {
		if p := &u.places[i]; !p.live() {
			sooner(p.ended.Add(tombTime))
		}
	}
	c.due.set(u, at)
	if len(u.places) == 0 && len(u.watchers) == 0 && u.shown == 0 && u.hide == nil && !u.dirty && !u.loading && !u.asked && !u.outside {
		delete(c.users, u.id)
	}
}

func later(a, b time.Time) time.Time {
	if b.After(a) {
		return b
	}
	return a
}

// Online lists the users that are shown as online, in no order.
func (c *Core) Online() []im.UserID {
	var out []im.UserID
	for id, u := range c.users {
		if u.shown != 0 {
			out = append(out, id)
		}
	}
	return out
}

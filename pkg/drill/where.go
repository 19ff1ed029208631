package drill

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/google/uuid"

	"github.com/imdhq/imd/pkg/history"
	"github.com/imdhq/imd/pkg/im"
	"github.com/imdhq/imd/pkg/store"
)

// The users of whom one login may be in at a time, and who looks at them.
const (
	rivals     = 3 // users
	observers  = 2
	lookEvery  = 300 * ms
	lookLimit  = 500 * ms
	raceLogins = 4 // of a user at once
	raceEvery  = 400 * ms
)

// calmFor is how long, after the load, who is where may take to come right: what the
// judge allows, and a bit.
const calmFor = 46 * time.Second

// whereabouts looks at who is where while a drill goes on, in layouts whose routes are
// in Redis: it lets a few users log in again and again of whom only one login may
// be in, sees who is online in the route store, and calls that store as gateways do.
type whereabouts struct {
	d       *drill
	gates   []*node // that clients reach
	eyes    []store.RouteStore
	callers []*routeCaller
	users   []im.UserID

	rivals sync.WaitGroup // those that log in
	rest   sync.WaitGroup // all else
	mu     sync.Mutex
	n      int                            // sessions so far
	in     map[im.UserID]int              // sessions that are in
	seen   []map[im.UserID]history.Record // by observer, the last record of each
}

// newWhereabouts makes it; nothing goes on yet. Close ends it.
func newWhereabouts(d *drill) (*whereabouts, error) {
	w := &whereabouts{d: d, in: map[im.UserID]int{}}
	for _, n := range d.nodes {
		if n.proxy != nil {
			w.gates = append(w.gates, n)
		}
	}
	for i := range rivals {
		w.users = append(w.users, im.UserID(fmt.Sprint("rival-", i+1)))
	}
	open := func(url string) (store.RouteStore, error) {
		s, err := d.OpenRoutes(url)
		if err != nil {
			return nil, fmt.Errorf("open the route store: %w", err)
		}
		return s, nil
	}
	for range observers {
		s, err := open("redis://" + d.cache.address)
		if err != nil {
			w.close()
			return nil, err
		}
		w.eyes, w.seen = append(w.eyes, s), append(w.seen, map[im.UserID]history.Record{})
	}
	for i := range routeStores {
		at, err := d.cache.way(callerName(i))
		var s store.RouteStore
		if err == nil {
			s, err = open(fmt.Sprintf("redis://%s/%d", at, callerBase))
		}
		if err != nil {
			w.close()
			return nil, err
		}
		w.callers = append(w.callers, &routeCaller{d: d, name: callerName(i), store: s})
	}
	return w, nil
}

// close gives back what it opened.
func (w *whereabouts) close() {
	for _, s := range w.eyes {
		_ = s.Close() // a client of a server that ends with the drill
	}
	for _, c := range w.callers {
		_ = c.store.Close()
	}
}

// run goes on until ctx is done, which ends the calls; users log in until load is.
func (w *whereabouts) run(ctx, load context.Context) {
	seed := w.d.Seed
	for i, user := range w.users {
		w.rivals.Go(func() { w.rival(ctx, load, user, rand.New(rand.NewPCG(seed, uint64(100+i)))) })
	}
	for i := range w.eyes {
		w.rest.Go(func() { w.watch(ctx, i) })
	}
	round := &routeRound{began: time.Now(), spent: map[string]int{}}
	for i := range routeWorkers {
		c := w.callers[i%len(w.callers)]
		w.rest.Go(func() { c.work(load, round, i, rand.New(rand.NewPCG(seed, uint64(200+i)))) })
	}
}

// wait waits until all calls have ended. ctx of run must be done.
func (w *whereabouts) wait() {
	w.rivals.Wait()
	w.rest.Wait()
}

// settle waits until nobody has more logins in than one and everybody is seen as they
// are, or until that should have come about.
func (w *whereabouts) settle(ctx context.Context) {
	for end := time.Now().Add(calmFor); time.Now().Before(end) && !w.calm() && hold(ctx, lookEvery); {
	}
}

func (w *whereabouts) calm() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, user := range w.users {
		if w.in[user] > 1 {
			return false
		}
		for _, seen := range w.seen {
			if r := seen[user]; r.Ack == history.AckUnknown || r.Stop == (w.in[user] > 0) {
				return false
			}
		}
	}
	return true
}

// rival lets a user log in again and again, mostly as another login, and go away now and
// then.
func (w *whereabouts) rival(ctx, load context.Context, user im.UserID, rng *rand.Rand) {
	var sessions sync.WaitGroup
	defer sessions.Wait()
	login, device := newLogin(), "d1"
	for hold(load, time.Duration(800+rng.IntN(2500))*ms) {
		if rng.IntN(4) > 0 {
			login, device = newLogin(), fmt.Sprint("d", 1+rng.IntN(3))
		}
		leave := time.Duration(0)
		if rng.IntN(4) == 0 {
			leave = time.Duration(500+rng.IntN(3000)) * ms
		}
		s := w.session(user, login, device, w.gates[rng.IntN(len(w.gates))])
		if !s.begin(ctx) {
			continue
		}
		if leave == 0 {
			sessions.Go(func() { s.follow(ctx, 0) })
			continue
		}
		s.follow(ctx, leave) // and nobody comes meanwhile, so that the user is away for a time
		hold(load, time.Duration(1000+rng.IntN(4000))*ms)
	}
}

func newLogin() im.LoginID { return im.LoginID("rival-" + uuid.NewString()) }

// race lets logins of one user come at the same time, through all gates, until ctx is
// done.
func (w *whereabouts) race(ctx context.Context, rng *rand.Rand) {
	user := w.users[rng.IntN(len(w.users))]
	for ctx.Err() == nil {
		for i := range raceLogins {
			s := w.session(user, newLogin(), fmt.Sprint("d", i), w.gates[(i+rng.IntN(2))%len(w.gates)])
			w.rivals.Go(func() {
				if s.begin(w.d.ctx) {
					s.follow(w.d.ctx, 0)
				}
			})
		}
		hold(ctx, raceEvery)
	}
}

// session is one that has not said hello yet.
func (w *whereabouts) session(user im.UserID, login im.LoginID, device string, gate *node) *rivalSession {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.n++
	return &rivalSession{w: w, gate: gate, rec: history.Record{User: string(user), Device: device, Name: string(login), Entry: fmt.Sprint("s", w.n)}}
}

// rivalSession is a session of a rival.
type rivalSession struct {
	w    *whereabouts
	gate *node
	boot string // of the process that has it
	rec  history.Record
	peer *peer
}

// begin logs in and reports whether the session stands.
func (s *rivalSession) begin(ctx context.Context) bool {
	d := s.w.d
	token, err := d.world.tokenOf(im.UserID(s.rec.User), im.LoginID(s.rec.Name))
	if err != nil {
		d.trouble("a token for a rival: %v", err)
		return false
	}
	at := s.gate.endpoints()
	s.boot = at.BootID
	if s.peer, err = reach(ctx, at.Public); err != nil {
		return false
	}
	if err := s.peer.upgrade(); err != nil {
		s.peer.Close()
		return false
	}
	r := s.rec
	r.Kind, r.To = history.Login, max(d.rec.Now(), 1)
	reason, err := s.peer.enter(token, s.rec.Device)
	r.T, r.Ack = d.rec.Now(), history.AckOK
	switch {
	case err != nil:
		r.Ack = history.AckUnknown
	case reason != "":
		r.Ack, r.Reason = history.AckFail, reason
	}
	if r.Ack == history.AckOK {
		s.w.moved(s.rec.User, 1)
	}
	d.rec.Add("sessions.log", r)
	if r.Ack != history.AckOK {
		s.peer.Close()
	}
	return r.Ack == history.AckOK
}

// moved counts a session that came or went.
func (w *whereabouts) moved(user string, by int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.in[im.UserID(user)] += by
}

// follow stays until the session ends, or leaves by itself after a time; 0 = never. A
// session that is in when ctx ends has no end in the history.
func (s *rivalSession) follow(ctx context.Context, leave time.Duration) {
	defer s.peer.Close()
	stop := context.AfterFunc(ctx, func() { s.peer.Close() })
	defer stop()
	left := false
	if leave > 0 {
		t := time.AfterFunc(leave, func() {
			s.w.mu.Lock()
			left = true
			s.w.mu.Unlock()
			s.peer.leave()
		})
		defer t.Stop()
	}
	reason := s.peer.stay()
	if ctx.Err() != nil {
		return
	}
	d := s.w.d
	r := s.rec
	r.T, r.Kind, r.Reason = d.rec.Now(), history.Logout, reason
	s.w.mu.Lock()
	r.Stop = left
	s.w.mu.Unlock()
	if left {
		r.Reason = "left"
	} else if reason == "" {
		r.Reason = "lost"
		hold(ctx, 300*ms) // until it is known what became of the process
		if !s.gate.alive() || s.gate.endpoints().BootID != s.boot {
			r.Reason = history.Killed
		}
	}
	s.w.moved(s.rec.User, -1)
	d.rec.Add("sessions.log", r)
}

// watch records who is in the route store, as one who asks it again and again.
func (w *whereabouts) watch(ctx context.Context, i int) {
	for hold(ctx, lookEvery) {
		call, done := context.WithTimeout(ctx, lookLimit)
		routes, err := w.eyes[i].Lookup(call, w.users)
		done()
		if ctx.Err() != nil {
			return
		}
		for _, user := range w.users {
			r := history.Record{Kind: history.Sight, User: string(user), Device: fmt.Sprint("observer-", i+1)}
			if err != nil {
				r.Ack = history.AckUnknown
			} else {
				r.Stop = !slices.ContainsFunc(routes, func(x store.Route) bool { return x.User == user })
			}
			w.mu.Lock()
			last, known := w.seen[i][user]
			w.seen[i][user] = r
			w.mu.Unlock()
			if !known || last != r {
				r.T = max(w.d.rec.Now(), 1)
				w.d.rec.Add("presence.log", r)
			}
		}
	}
}

// The callers of the route store.
const (
	routeStores  = 2
	routeWorkers = 4
	routeUsers   = 3
	// routeTurn is how long a user of theirs is used: shorter than a route lives.
	routeTurn = 20 * time.Second
	// routeDoubts is how many calls about a user may end in doubt before the next user
	// is taken: each of them may have happened at any later time.
	routeDoubts = 3
	routeLimit  = time.Second
	// callerBase is the database of theirs: the scheduler sweeps what belongs to no node.
	callerBase = 1
)

func callerName(i int) string { return fmt.Sprint("routes-", i+1) }

// routeCaller is a process that calls the route store, as far as that can tell.
type routeCaller struct {
	d     *drill
	name  string
	store store.RouteStore

	mu   sync.Mutex
	n    int
	seen uint64 // the highest epoch
}

// routeRound says which users are used now.
type routeRound struct {
	began time.Time
	mu    sync.Mutex
	spent map[string]int // calls in doubt, by user
	next  int
}

// user is one to call about.
func (r *routeRound) user(rng *rand.Rand) string {
	r.mu.Lock()
	defer r.mu.Unlock()
	for n := 0; ; n++ {
		user := fmt.Sprintf("traveller-%d-%d", int(time.Since(r.began)/routeTurn), rng.IntN(routeUsers)+r.next)
		if r.spent[user] < routeDoubts {
			return user
		}
		if n > 8 {
			r.next += routeUsers
		}
	}
}

// doubt takes note of a call of which nobody knows what became.
func (r *routeRound) doubt(user string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.spent[user]++
}

// work calls the store until ctx is done.
func (c *routeCaller) work(ctx context.Context, round *routeRound, worker int, rng *rand.Rand) {
	mine := map[string][]store.Route{}
	for hold(ctx, time.Duration(30+rng.IntN(120))*ms) {
		user := round.user(rng)
		if len(mine) > 3*routeUsers {
			clear(mine) // nearly all are of former turns
		}
		have := mine[user]
		pick := rng.IntN(10)
		var r history.Record
		switch {
		case pick < 3 || len(have) == 0 && pick < 7:
			var x store.Route
			if r, x = c.claim(ctx, user, worker, rng); r.Ack == history.AckOK {
				have = append(have, x)
			}
		case pick < 5 || len(have) == 0:
			r = c.lookup(ctx, user)
		case pick < 8:
			r = c.refresh(ctx, have[rng.IntN(len(have))])
		default:
			i := rng.IntN(len(have))
			r = c.release(ctx, have[i])
			have = slices.Delete(slices.Clone(have), i, i+1)
		}
		mine[user] = have
		if r.Ack == history.AckUnknown {
			round.doubt(user)
		}
		c.d.rec.Add("routes.log", r)
	}
}

// call makes a call about a route and records it; do does it.
func (c *routeCaller) call(ctx context.Context, name string, x store.Route, do func(context.Context) error) history.Record {
	c.mu.Lock()
	seen := c.seen
	c.mu.Unlock()
	ctx, cancel := context.WithTimeout(ctx, routeLimit)
	defer cancel()
	r := history.Record{T: max(c.d.rec.Now(), 1), Kind: history.Route, Name: name, User: string(x.User), Entry: string(x.Session), Sender: string(x.Login),
		Device: string(x.Device), N: int64(x.Epoch), Prev: int64(seen)}
	if err := do(ctx); err != nil {
		r.Ack = history.AckUnknown
		return r
	}
	r.To, r.Ack = max(c.d.rec.Now(), r.T), history.AckOK
	return r
}

func (c *routeCaller) claim(ctx context.Context, user string, worker int, rng *rand.Rand) (history.Record, store.Route) {
	c.mu.Lock()
	c.n++
	x := store.Route{User: im.UserID(user), Session: im.SessionID(fmt.Sprintf("%s-%d-%d", c.name, worker, c.n)), Login: im.LoginID(fmt.Sprint("l", rng.IntN(3))),
		Device: im.DeviceID(fmt.Sprint("d", rng.IntN(2))), Class: im.Phone, Node: im.NodeID(c.name), Boot: "drill", Since: time.Now()}
	c.mu.Unlock()
	var got store.Claim
	r := c.call(ctx, history.RouteClaim, x, func(ctx context.Context) (err error) {
		got, err = c.store.Claim(ctx, x, store.Policy{Mode: store.KickOld})
		return err
	})
	if r.Ack == history.AckOK {
		r.Seq, r.Hash = int64(got.Epoch), sessionsOf(got.Superseded)+"|"+sessionsOf(got.Replaced)
		x.Epoch = got.Epoch
		c.mu.Lock()
		c.seen = max(c.seen, got.Epoch)
		c.mu.Unlock()
	}
	return r, x
}

func (c *routeCaller) lookup(ctx context.Context, user string) history.Record {
	var found []store.Route
	r := c.call(ctx, history.RouteLookup, store.Route{User: im.UserID(user)}, func(ctx context.Context) (err error) {
		found, err = c.store.Lookup(ctx, []im.UserID{im.UserID(user)})
		return err
	})
	r.Hash = sessionsOf(found)
	return r
}

func (c *routeCaller) refresh(ctx context.Context, x store.Route) history.Record {
	var got []store.Standing
	r := c.call(ctx, history.RouteRefresh, x, func(ctx context.Context) (err error) {
		got, err = c.store.Refresh(ctx, []store.Route{x})
		return err
	})
	if r.Ack == history.AckOK {
		r.Reason = standings[got[0]]
	}
	return r
}

func (c *routeCaller) release(ctx context.Context, x store.Route) history.Record {
	was := false
	r := c.call(ctx, history.RouteRelease, x, func(ctx context.Context) (err error) {
		was, err = c.store.Release(ctx, x.User, x.Session, x.Epoch)
		return err
	})
	r.Dup = was && r.Ack == history.AckOK
	return r
}

// standings are the answers to a refresh as the history has them.
var standings = map[store.Standing]string{store.Kept: "kept", store.Restored: "restored", store.Superseded: history.Superseded, store.Replaced: history.Replaced}

// sessionsOf are sessions as the history has them.
func sessionsOf(routes []store.Route) string {
	var all []string
	for _, r := range routes {
		all = append(all, string(r.Session))
	}
	slices.Sort(all)
	return strings.Join(all, " ")
}

// lost records that Redis forgot everything at some time of do; reason is
// history.ClockSlow if its clock has gone back too. A nil w records nothing.
func (w *whereabouts) lost(reason string, do func() error) error {
	if w == nil {
		return do()
	}
	r := history.Record{T: max(w.d.rec.Now(), 1), Kind: history.Route, Name: history.RouteForget, Ack: history.AckOK, Reason: reason}
	err := do()
	if r.To = w.d.rec.Now(); err != nil {
		r.To, r.Ack = 0, history.AckUnknown
	}
	w.d.rec.Add("routes.log", r)
	return err
}

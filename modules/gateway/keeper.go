package gateway

import (
	"context"
	"slices"
	"sync"
	"time"

	"go.uber.org/zap"

	"github.com/imdhq/imd/pkg/im"
	"github.com/imdhq/imd/pkg/obs"
	"github.com/imdhq/imd/pkg/store"
	v1 "github.com/imdhq/imd/proto/gen/internalv1"
	"github.com/imdhq/imd/sdk/go/gen/clientv1"
)

const (
	// refreshTime is how long it takes to refresh all routes; then it begins
	// again. Three rounds fit into the life of a route.
	refreshTime = store.RouteTTL / 3
	// restoreTime is that of a round after the store has lost something.
	restoreTime = 4 * time.Second
	// youngTime is how long after the start rounds take restoreTime: a state node may
	// learn late that this process is there, and not have told it whom it ended.
	youngTime = 15 * time.Second
	// keepStep is how often some are refreshed.
	keepStep = 250 * time.Millisecond
	// askTime is how often the store is asked what it remembers. With
	// restoreTime it bounds how long lost routes stay away.
	askTime = time.Second
	// refreshBatch is how many routes one call refreshes.
	refreshBatch = 500
	// checksWaiting is how many logins may wait to be looked up again; whose turn comes
	// while there is no room has the next one.
	checksWaiting = 4096
	// lateClaims is how many places are claimed at once afterwards.
	lateClaims = 32
)

// keeper keeps the routes of this node's sessions: it refreshes them, puts back
// what the store has lost, claims what could not be claimed, and ends sessions
// that were displaced, or whose logins were ended, without being told.
type keeper struct {
	g *Gateway
	// refreshing and restoring are refreshTime and restoreTime, and asking is
	// askTime; tests shorten them.
	refreshing, restoring, asking time.Duration

	mu      sync.Mutex
	waiting map[*session]struct{} // without a place
}

func newKeeper(g *Gateway) *keeper {
	return &keeper{g: g, refreshing: refreshTime, restoring: restoreTime, asking: askTime, waiting: map[*session]struct{}{}}
}

// wait notes a session whose place is to be claimed later.
func (k *keeper) wait(s *session) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.waiting[s] = struct{}{}
	k.g.m.unclaimed.Set(float64(len(k.waiting)))
}

// forget drops a session that has ended or has its place.
func (k *keeper) forget(s *session) {
	k.mu.Lock()
	defer k.mu.Unlock()
	delete(k.waiting, s)
	k.g.m.unclaimed.Set(float64(len(k.waiting)))
}

func (k *keeper) unclaimed() []*session {
	k.mu.Lock()
	defer k.mu.Unlock()
	out := make([]*session, 0, len(k.waiting))
	for s := range k.waiting {
		out = append(out, s)
	}
	return out
}

// round is one pass over all sessions. It is a value that steps in time.
type round struct {
	left  []*session
	total int
	begin time.Time
	over  time.Duration // the time it takes
}

// due takes the sessions whose turn has come.
func (r *round) due(now time.Time) []*session {
	part := r.total
	if d := now.Sub(r.begin); d < r.over {
		part = int(float64(r.total) * float64(d) / float64(r.over))
	}
	n := min(len(r.left), max(0, part-(r.total-len(r.left))))
	out := r.left[:n]
	r.left = r.left[n:]
	return out
}

// done reports whether the next round may begin.
func (r *round) done(now time.Time) bool { return len(r.left) == 0 && now.Sub(r.begin) >= r.over }

// checks is the sessions whose logins are to be looked up again. They are asked about
// in full groups.
type checks []*session

// add notes those for whom there is room, and returns how many others there are.
func (c *checks) add(due []*session) (others int) {
	n := min(len(due), checksWaiting-len(*c))
	*c = append(*c, due[:n]...)
	return len(due) - n
}

// next is those who can be asked about: full groups, or everybody at the end of a round.
func (c checks) next(end bool) []*session {
	if end {
		return c
	}
	return c[:len(c)-len(c)%joinsAtOnce]
}

// lookUp is sessions whose logins are to be looked up again. last = of a round.
type lookUp struct {
	sessions []*session
	last     bool
	others   int // for whom there was no room since the one before
}

// missed is how many logins were not looked up: in all, those of them for whom there
// was no room, and why the last one of the others was not.
type missed struct {
	n, noRoom int
	err       error
}

func (m *missed) add(more missed) {
	m.n, m.noRoom = m.n+more.n, m.noRoom+more.noRoom
	if more.err != nil {
		m.err = more.err
	}
}

// tell says so in the log, and begins anew.
func (m *missed) tell(log *zap.Logger) {
	if m.n > 0 {
		log.Warn("logins were not looked up again; the next round makes up for it",
			zap.Int("sessions", m.n), zap.Int("no_room", m.noRoom), obs.Err(m.err))
	}
	*m = missed{}
}

// run works until ctx is done. Logins are looked up beside it, so that a directory that
// does not answer holds up no route.
func (k *keeper) run(ctx context.Context) {
	var beside sync.WaitGroup
	defer beside.Wait()
	groups := make(chan lookUp)
	defer close(groups)
	beside.Go(func() {
		var of missed // the round
		for l := range groups {
			unanswered := k.readmit(ctx, l.sessions)
			if ctx.Err() != nil { // the directory has not failed, the node stops
				continue
			}
			k.g.m.unchecked.WithLabelValues("unanswered").Add(float64(unanswered.n))
			of.add(unanswered)
			of.add(missed{n: l.others, noRoom: l.others})
			if l.last {
				of.tell(k.g.Log)
			}
		}
	})
	tick := time.NewTicker(keepStep)
	defer tick.Stop()
	var r round
	var ask checks
	end := false // of a round: incomplete groups are asked about too
	others := 0  // for whom there was no room, and of whom nobody was told
	began, memory, asked := time.Now(), "", time.Time{}
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		now := time.Now()
		if now.Sub(asked) >= k.asking {
			asked = now
			name, err := k.ask(ctx)
			switch {
			case err != nil:
				k.g.m.routesAway.Set(1)
			case memory != name:
				if memory != "" {
					k.g.Log.Warn("the route store has forgotten; all routes are put back", zap.Int("sessions", k.g.hub.len()))
					k.g.m.routeLosses.Inc()
					r = k.round(now, k.restoring)
				}
				memory = name
				fallthrough
			default:
				k.g.m.routesAway.Set(0)
				k.claimWaiting(ctx)
			}
		}
		due := r.due(now)
		k.refresh(ctx, due)
		n := ask.add(due)
		k.g.m.unchecked.WithLabelValues("full").Add(float64(n))
		others += n
		end = end || r.done(now)
		if next := ask.next(end); len(next) > 0 {
			select {
			case groups <- lookUp{next, end, others}:
				ask, end, others = slices.Clone(ask[len(next):]), false, 0
			default: // it has not answered yet
			}
		}
		if r.done(now) {
			over := k.refreshing
			if now.Sub(began) < youngTime {
				over = min(over, k.restoring)
			}
			r = k.round(now, over)
		}
	}
}

func (k *keeper) round(now time.Time, over time.Duration) round {
	all := k.g.hub.all()
	return round{left: all, total: len(all), begin: now, over: over}
}

// ask asks the store what it remembers.
func (k *keeper) ask(ctx context.Context) (string, error) {
	routes, err := k.g.Routes()
	if err != nil {
		return "", err
	}
	ctx, cancel := context.WithTimeout(ctx, routeTimeout)
	defer cancel()
	return routes.Memory(ctx)
}

// refresh refreshes the routes of sessions that have a place.
func (k *keeper) refresh(ctx context.Context, sessions []*session) {
	for len(sessions) > 0 {
		n := min(len(sessions), refreshBatch)
		batch, list := make([]*session, 0, n), make([]store.Route, 0, n)
		for len(sessions) > 0 && len(batch) < refreshBatch {
			s := sessions[0]
			sessions = sessions[1:]
			s.mu.Lock()
			p, live := s.place, s.phase != ended
			s.mu.Unlock()
			if live && p.claimed {
				batch, list = append(batch, s), append(list, s.routeAt(p))
			}
		}
		if len(batch) == 0 {
			continue
		}
		standings, err := k.call(ctx, list)
		if err != nil {
			k.g.m.refreshed.WithLabelValues("failed").Add(float64(len(list)))
			k.g.Log.Warn("routes were not refreshed; the next round makes up for it", zap.Int("routes", len(list)), obs.Err(err))
			continue
		}
		k.settle(batch, list, standings)
	}
}

func (k *keeper) call(ctx context.Context, list []store.Route) ([]store.Standing, error) {
	routes, err := k.g.Routes()
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, routeTimeout)
	defer cancel()
	return routes.Refresh(ctx, list)
}

// settle does what the answers ask for.
func (k *keeper) settle(batch []*session, list []store.Route, standings []store.Standing) {
	for i, s := range batch {
		k.g.m.refreshed.WithLabelValues(standings[i].String()).Inc()
		if why := standings[i]; why == store.Superseded || why == store.Replaced {
			k.displaced(s, list[i], why)
			continue
		}
		if !s.live() { // its release may have come before the refresh
			k.g.release(list[i])
		}
	}
}

// displaced ends a session that a newer one displaced.
func (k *keeper) displaced(s *session, r store.Route, why store.Standing) {
	if why == store.Replaced { // again, in case the one that did it could not
		k.g.revoke(r)
	}
	s.displace(why.String())
}

// readmit asks whether the logins of sessions have been ended meanwhile, and ends
// the sessions: whoever did it may not have reached this node. It returns those about
// whom it was not answered.
func (k *keeper) readmit(ctx context.Context, sessions []*session) (out missed) {
	sessions = slices.DeleteFunc(slices.Clone(sessions), func(s *session) bool { return !s.begun() })
	for at := 0; at < len(sessions); at += joinsAtOnce {
		part := sessions[at:min(at+joinsAtOnce, len(sessions))]
		who := make([]*v1.AdmitRequest, len(part))
		for i, s := range part {
			who[i] = s.application()
		}
		answers, unanswered := k.g.admitMany(ctx, who), missed{}
		for i, s := range part {
			reason := k.g.ended.of(s.user, s.login, time.Now())
			if answers[i].err != nil { // the rows stay: its next hello finds them
				unanswered.add(missed{n: 1, err: answers[i].err})
			} else if reason == "" {
				reason = answers[i].res.RefusedReason
			}
			if reason != "" {
				s.end(reason, endTexts[reason], 0)
			}
		}
		if unanswered.n == len(part) { // nobody can say now; the next round asks again
			out.add(missed{n: len(sessions) - at, err: unanswered.err})
			return out
		}
		out.add(unanswered)
	}
	return out
}

// claimWaiting claims the places of sessions that began without.
func (k *keeper) claimWaiting(ctx context.Context) {
	var wg sync.WaitGroup
	slot := make(chan struct{}, lateClaims)
	for _, s := range k.unclaimed() {
		if ctx.Err() != nil {
			break
		}
		slot <- struct{}{}
		wg.Go(func() {
			defer func() { <-slot }()
			k.claimLate(s)
		})
	}
	wg.Wait()
}

// claimLate claims a place with the rank of the session's beginning, so that it
// displaces nobody who came later.
func (k *keeper) claimLate(s *session) {
	s.mu.Lock()
	p, live := s.place, s.phase != ended
	s.mu.Unlock()
	if !live {
		k.forget(s)
		return
	}
	r := s.routeAt(p)
	claim, err := k.g.claim(r, s.policy())
	switch {
	case im.ReasonOf(err) == clientv1.Reason_REASON_LOGIN_REFUSED:
		s.end("login_refused", "another login has the place", 0)
		return
	case err != nil:
		return // still away: the next round asks again
	case claim.Standing != store.Kept:
		k.displaced(s, r, claim.Standing)
		return
	}
	k.forget(s)
	s.mu.Lock()
	s.place.claimed = true
	live = s.phase != ended
	if s.announced {
		k.g.watchers.began(s)
	}
	s.mu.Unlock()
	if !live {
		s.release()
	}
	k.proveLate(r, claim)
	k.g.displaced(s.user, claim)
}

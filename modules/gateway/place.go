package gateway

import (
	"context"
	"slices"
	"time"

	"github.com/imdhq/imd/pkg/im"
	"github.com/imdhq/imd/pkg/obs"
	"github.com/imdhq/imd/pkg/store"
	v1 "github.com/imdhq/imd/proto/gen/internalv1"
	"github.com/imdhq/imd/sdk/go/gen/clientv1"
)

const (
	// routeTimeout bounds one call to the route store.
	routeTimeout = time.Second
	// claimTries is how often a claim is made again after holders of the place
	// turned out to be dead.
	claimTries = 3
)

// routes is what the gateway asks of the route store.
type routes interface {
	Claim(context.Context, store.Route, store.Policy) (store.Claim, error)
	ClaimMany(context.Context, []store.Claiming) ([]store.Claimed, error)
	Refresh(context.Context, []store.Route) ([]store.Standing, error)
	Release(ctx context.Context, user im.UserID, session im.SessionID, epoch uint64) (bool, error)
	Lookup(ctx context.Context, users []im.UserID) ([]store.Route, error)
	Recent(ctx context.Context, users []im.UserID) ([]store.Route, error)
	Memory(context.Context) (string, error)
}

// place is a session's in the route store.
type place struct {
	claimed bool
	epoch   uint64 // route epoch; of one that is not claimed yet, its rank when it is
	since   time.Time
}

// claim takes note of the session's claim. If logins that may be dead are in its
// way it finds out, and claims again. Without a route store newcomers are let in and
// their places claimed later, unless the policy can refuse them.
func (s *session) claim(j *entrant) (store.Claim, *refusal) {
	policy, claim, err := s.policy(), j.claim, j.err
	again := []*entrant{j}
	for try := 1; lost(err) && try < claimTries && s.g.evict(claim.Holders) && s.live(); try++ {
		s.g.claimAll(again)
		if j.err == nil {
			s.g.admitAll(again)
		}
		claim, err = j.claim, j.err
	}
	since := j.since
	switch {
	case err == nil:
		s.mu.Lock()
		s.place = place{true, claim.Epoch, since}
		s.mu.Unlock()
		return claim, nil
	case lost(err):
		return claim, refuse("login_refused", "another login has the place")
	case im.ReasonOf(err) == clientv1.Reason_REASON_BUSY:
		s.g.Log.Warn("a session was refused: the route store is full", obs.Session(s.id), obs.Err(err))
		return claim, &refusal{reason: "busy", msg: "the cluster holds as many sessions as it may", after: minWait}
	case policy.Mode == store.RejectNew:
		return claim, &refusal{reason: "busy", msg: "the node cannot look up logins now", after: minWait}
	}
	s.g.Log.Warn("a session begins without a route", obs.Session(s.id), obs.Err(err))
	s.mu.Lock()
	s.place = place{epoch: uint64(since.UnixMicro()), since: since}
	s.mu.Unlock()
	return store.Claim{}, nil
}

// policy is what the session's login means for others of its user.
func (s *session) policy() store.Policy { return s.g.tuned.Get().login.of(s.class) }

// unclaimed reports whether the session begins without a route.
func (s *session) unclaimed() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return !s.place.claimed
}

// routeAt is the session's route with a place.
func (s *session) routeAt(p place) store.Route {
	return store.Route{User: s.user, Session: s.id, Login: s.login, Device: s.device, Class: s.class,
		Node: s.g.Node, Boot: s.g.Boot, Epoch: p.epoch, Since: p.since}
}

// claim makes one claim.
func (g *Gateway) claim(r store.Route, p store.Policy) (store.Claim, error) {
	routes, err := g.Routes()
	if err != nil {
		return store.Claim{}, err
	}
	ctx, cancel := context.WithTimeout(g.ctx, routeTimeout)
	defer cancel()
	return routes.Claim(ctx, r, p)
}

// release gives the route back.
func (s *session) release() {
	s.mu.Lock()
	p := s.place
	s.place.claimed = false
	s.mu.Unlock()
	s.g.keeper.forget(s)
	if !p.claimed {
		return
	}
	if !s.g.releases.take(s.g.ctx, store.RouteTTL) {
		return // the node ends; the route goes by the sweep, or by itself
	}
	defer s.g.releases.give()
	s.g.release(s.routeAt(p))
}

// release removes exactly this route.
func (g *Gateway) release(r store.Route) {
	routes, err := g.Routes()
	if err == nil {
		ctx, cancel := context.WithTimeout(context.Background(), routeTimeout)
		defer cancel()
		_, err = routes.Release(ctx, r.User, r.Session, r.Epoch)
	}
	if err != nil {
		g.Log.Warn("a route was not released; it ends by itself", obs.Session(r.Session), obs.Err(err))
	}
}

// displaced ends the sessions that a claim displaced, and the logins.
func (g *Gateway) displaced(user im.UserID, c store.Claim) {
	for _, r := range c.Replaced {
		g.revoke(r)
	}
	for _, l := range c.Away {
		g.revoke(store.Route{User: user, Login: l})
	}
	g.displace(c.Superseded, "superseded")
	g.displace(c.Replaced, "replaced")
}

// revoke makes the tokens of a replaced login useless.
func (g *Gateway) revoke(r store.Route) {
	_, err := g.Directory.Revoke(g.ctx, &v1.RevokeRequest{UserId: string(r.User), LoginId: string(r.Login), Reason: "replaced"})
	if err != nil {
		g.Log.Warn("a replaced login was not revoked; its token may come back", obs.User(r.User), obs.Login(r.Login), obs.Err(err))
	}
}

// displace ends sessions on whichever node holds them. Those that are not told
// find out with their next refresh.
func (g *Gateway) displace(routes []store.Route, reason string) {
	for node, ids := range byNode(routes) {
		g.kicks.add(node, reason, ids)
	}
}

func byNode(routes []store.Route) map[im.NodeID][]string {
	out := map[im.NodeID][]string{}
	for _, r := range routes {
		out[r.Node] = append(out[r.Node], string(r.Session))
	}
	return out
}

// evict removes the routes of holders that are dead: their process has left the
// cluster, or it says that their device does not answer. False = none is, so
// that another claim would be refused again.
func (g *Gateway) evict(holders []store.Route) bool {
	alive := map[im.SessionID]bool{}
	for node, ids := range byNode(holders) {
		if g.left(node, holders) {
			continue
		}
		answered, err := g.probe(node, ids)
		if err != nil { // nobody knows; the place stays taken
			g.Log.Warn("the holder of a place was not probed", obs.Peer(string(node)), obs.Err(err))
			return false
		}
		for _, id := range answered {
			alive[im.SessionID(id)] = true
		}
	}
	freed := false
	for _, h := range holders {
		if !alive[h.Session] {
			g.release(h)
			freed = true
		}
	}
	return freed
}

// probe asks a node whose devices answer; those that do not are asked once more.
func (g *Gateway) probe(node im.NodeID, ids []string) (alive []string, err error) {
	for range 2 {
		if len(ids) == 0 {
			break
		}
		res, err := g.Peer(node).Probe(g.ctx, &v1.ProbeRequest{SessionIds: ids[:min(len(ids), maxProbes)]})
		if err != nil {
			return nil, err
		}
		alive = append(alive, res.Alive...)
		ids = slices.DeleteFunc(ids, func(id string) bool { return slices.Contains(res.Alive, id) })
	}
	return alive, nil
}

// left reports whether the process that holds routes on a node is surely gone.
func (g *Gateway) left(node im.NodeID, holders []store.Route) bool {
	if node == g.Node || g.View == nil {
		return false
	}
	view := g.View()
	if view.Revision == 0 || view.Stale {
		return false
	}
	n, there := view.Node(node)
	for _, h := range holders {
		if h.Node == node && there && n.BootID == h.Boot {
			return false
		}
	}
	return true
}

// probe pings the device and reports whether a byte came within the time.
func (s *session) probe(ctx context.Context) bool {
	s.mu.Lock()
	if s.phase != online {
		begins := s.phase == joining
		s.mu.Unlock()
		return begins
	}
	at := time.Now()
	s.replyLocked(&clientv1.ServerFrame{Kind: &clientv1.ServerFrame_Ping{Ping: &clientv1.Ping{IntervalMs: millis(s.beat.interval)}}})
	s.mu.Unlock()
	tick := time.NewTicker(probeStep)
	defer tick.Stop()
	for {
		select {
		case <-s.done:
			return false
		case <-ctx.Done():
			return false
		case <-tick.C:
			if s.wire.lastByte.Load() > at.UnixNano() {
				return true
			}
		}
	}
}

const (
	// probeTime is how long a device has to answer one probe; one attempt of a call
	// between roles has a little more. It is asked twice.
	probeTime = 450 * time.Millisecond
	probeStep = 5 * time.Millisecond
	// maxProbes is how many sessions one call probes.
	maxProbes = 100
)

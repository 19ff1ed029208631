package memory

import (
	"context"
	"hash/maphash"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/imdhq/imd/pkg/failpoint"
	"github.com/imdhq/imd/pkg/im"
	"github.com/imdhq/imd/pkg/store"
	"github.com/imdhq/imd/sdk/go/gen/clientv1"
)

// shards bounds how many users wait for each other.
const shards = 64

// Routes is a store.RouteStore.
type Routes struct {
	now    func() time.Time
	seed   maphash.Seed
	closed atomic.Bool
	shard  [shards]shard
}

var _ store.RouteStore = (*Routes)(nil)

// shard holds the users of one hash value.
type shard struct {
	mu    sync.Mutex
	epoch uint64 // the highest route epoch given out here; outlives the routes
	users map[im.UserID]*user
	swept time.Time // when logins that nobody needs any more were forgotten last
}

// user is what one user has; never nothing.
type user struct {
	routes []store.Route
	// displaced says why sessions lost their routes. It ends with their release;
	// of too many the oldest is forgotten first.
	displaced []displacement
	logins    store.Logins
}

// displacement is a session that lost its route to a newer one.
type displacement struct {
	session im.SessionID
	why     store.Standing
}

// maxDisplaced is how many are remembered of one user. The sessions were told
// when it happened, by a call that cannot get lost inside a process.
const maxDisplaced = 32

// New is an empty route store.
func New() *Routes {
	r := &Routes{now: time.Now, seed: maphash.MakeSeed()}
	for i := range r.shard {
		r.shard[i].users = map[im.UserID]*user{}
	}
	return r
}

func (r *Routes) of(user im.UserID) *shard {
	return &r.shard[maphash.String(r.seed, string(user))%shards]
}

// check refuses calls on a closed store or with an ended context.
func (r *Routes) check(ctx context.Context, op string) error {
	if r.closed.Load() {
		return im.Errorf(clientv1.Reason_REASON_UNAVAILABLE, op, "the route store is closed")
	}
	return ctx.Err()
}

// Claim is store.RouteStore's. A claim of a session that has a route already
// replaces it under a new epoch.
func (r *Routes) Claim(ctx context.Context, route store.Route, p store.Policy) (store.Claim, error) {
	if err := r.check(ctx, "memory.Claim"); err != nil {
		return store.Claim{}, err
	}
	s := r.of(route.User)
	s.mu.Lock()
	defer s.mu.Unlock()
	if route.Epoch == 0 {
		route.Epoch = max(s.epoch+1, uint64(r.now().UnixMicro()))
	}
	c, ok := s.put(route, p, r.now())
	if !ok {
		return c, im.Errorf(clientv1.Reason_REASON_LOGIN_REFUSED, "memory.Claim", "another login is active")
	}
	return c, nil
}

// ClaimMany is store.RouteStore's. A call costs nothing here.
func (r *Routes) ClaimMany(ctx context.Context, list []store.Claiming) ([]store.Claimed, error) {
	if len(list) > store.MaxClaims {
		return nil, im.Errorf(clientv1.Reason_REASON_BAD_REQUEST, "memory.Claim", "more than %d claims", store.MaxClaims)
	}
	out := make([]store.Claimed, len(list))
	for i, c := range list {
		out[i].Claim, out[i].Err = r.Claim(ctx, c.Route, c.Policy)
	}
	return out, nil
}

// put lets a route in that has its epoch; false = the policy refuses it.
func (s *shard) put(route store.Route, p store.Policy, now time.Time) (store.Claim, bool) {
	u := s.users[route.User]
	if u == nil {
		u = &user{}
	}
	c, keep, ok := store.Admit(u.routes, route, p)
	if !ok || c.Standing != store.Kept {
		return c, ok
	}
	s.forget(now)
	s.epoch = max(s.epoch, route.Epoch)
	u.logins, c.Away = u.logins.Claim(u.routes, route, p, now)
	u.routes = append(keep, route)
	u.displace(c.Superseded, store.Superseded)
	u.displace(c.Replaced, store.Replaced)
	s.users[route.User] = u
	return c, true
}

// forget drops, now and then, the logins whose time is over.
func (s *shard) forget(now time.Time) {
	if now.Sub(s.swept) < store.LoginTTL/10 {
		return
	}
	s.swept = now
	for id, u := range s.users {
		maps.DeleteFunc(u.logins, func(_ im.LoginID, l store.Login) bool { return !now.Before(l.Until) })
		s.tidy(id, u)
	}
}

func (u *user) displace(routes []store.Route, why store.Standing) {
	for _, r := range routes {
		u.displaced = append(u.displaced, displacement{r.Session, why})
	}
	u.displaced = u.displaced[max(0, len(u.displaced)-maxDisplaced):]
}

// Refresh is store.RouteStore's. Routes do not end by themselves here.
func (r *Routes) Refresh(ctx context.Context, routes []store.Route) ([]store.Standing, error) {
	if err := r.check(ctx, "memory.Refresh"); err != nil {
		return nil, err
	}
	out := make([]store.Standing, len(routes))
	for i, x := range routes {
		out[i] = r.of(x.User).refresh(x, r.now())
	}
	return out, nil
}

func (s *shard) refresh(r store.Route, now time.Time) store.Standing {
	s.mu.Lock()
	defer s.mu.Unlock()
	if u := s.users[r.User]; u != nil {
		for _, h := range u.routes {
			if h.Session == r.Session && h.Epoch == r.Epoch {
				u.logins, _ = u.logins.Seen(r.Login, now)
				return store.Kept
			}
		}
		for _, d := range u.displaced {
			if d.session == r.Session {
				return d.why
			}
		}
	}
	if c, _ := s.put(r, store.Policy{}, now); c.Standing != store.Kept {
		return c.Standing
	}
	return store.Restored
}

// Release is store.RouteStore's.
func (r *Routes) Release(ctx context.Context, id im.UserID, session im.SessionID, epoch uint64) (bool, error) {
	if err := r.check(ctx, "memory.Release"); err != nil {
		return false, err
	}
	s := r.of(id)
	s.mu.Lock()
	defer s.mu.Unlock()
	if u := s.users[id]; u != nil {
		u.displaced = slices.DeleteFunc(u.displaced, func(d displacement) bool { return d.session == session })
	}
	return s.remove(id, func(x store.Route) bool {
		return x.Session == session && x.Epoch == epoch || failpoint.Bad(failpoint.ReleaseAnySession)
	}) > 0, nil
}

// remove takes the routes of a user away that match, and says how many.
func (s *shard) remove(id im.UserID, match func(store.Route) bool) int {
	u := s.users[id]
	if u == nil {
		return 0
	}
	before := len(u.routes)
	u.routes = slices.DeleteFunc(u.routes, match)
	s.tidy(id, u)
	return before - len(u.routes)
}

// tidy forgets a user who has nothing.
func (s *shard) tidy(id im.UserID, u *user) {
	if len(u.routes)+len(u.displaced)+len(u.logins) == 0 {
		delete(s.users, id)
	}
}

// Lookup is store.RouteStore's.
func (r *Routes) Lookup(ctx context.Context, users []im.UserID) ([]store.Route, error) {
	if err := r.check(ctx, "memory.Lookup"); err != nil {
		return nil, err
	}
	var out []store.Route
	for _, id := range users {
		s := r.of(id)
		s.mu.Lock()
		if u := s.users[id]; u != nil {
			out = append(out, u.routes...)
		}
		s.mu.Unlock()
	}
	return out, nil
}

// Recent is store.RouteStore's; nothing here is nearer than the table.
func (r *Routes) Recent(ctx context.Context, users []im.UserID) ([]store.Route, error) {
	return r.Lookup(ctx, users)
}

// Memory is store.RouteStore's. The table ends with the process, as do those
// who ask.
func (r *Routes) Memory(ctx context.Context) (string, error) {
	return "process", r.check(ctx, "memory.Memory")
}

// Homes is store.Sweeper's.
func (r *Routes) Homes(ctx context.Context) ([]store.Home, error) {
	if err := r.check(ctx, "memory.Homes"); err != nil {
		return nil, err
	}
	var out []store.Home
	for i := range r.shard {
		s := &r.shard[i]
		s.mu.Lock()
		for _, u := range s.users {
			for _, x := range u.routes {
				if !slices.Contains(out, x.Home()) {
					out = append(out, x.Home())
				}
			}
		}
		s.mu.Unlock()
	}
	return out, nil
}

// Sweep is store.Sweeper's.
func (r *Routes) Sweep(ctx context.Context, h store.Home) (int, error) {
	if err := r.check(ctx, "memory.Sweep"); err != nil {
		return 0, err
	}
	n := 0
	for i := range r.shard {
		s := &r.shard[i]
		s.mu.Lock()
		for id := range s.users {
			n += s.remove(id, func(x store.Route) bool { return x.Home() == h })
		}
		s.mu.Unlock()
	}
	return n, nil
}

// Close is store.RouteStore's.
func (r *Routes) Close() error {
	r.closed.Store(true)
	for i := range r.shard {
		s := &r.shard[i]
		s.mu.Lock()
		clear(s.users)
		s.mu.Unlock()
	}
	return nil
}

package memory

import (
	"cmp"
	"context"
	"hash/maphash"
	"net/url"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"go.uber.org/zap"

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
	users map[im.UserID][]store.Route
}

// New is an empty route store.
func New() *Routes {
	r := &Routes{now: time.Now, seed: maphash.MakeSeed()}
	for i := range r.shard {
		r.shard[i].users = map[im.UserID][]store.Route{}
	}
	return r
}

// Open is the driver's store.Opener; dsn is "memory:".
func Open(_ context.Context, _ *url.URL, _ *zap.Logger) (store.RouteStore, error) { return New(), nil }

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
	c, keep, ok := admit(s.users[route.User], route, p)
	if !ok {
		return store.Claim{}, im.Errorf(clientv1.Reason_REASON_LOGIN_REFUSED, "memory.Claim", "another login is active")
	}
	s.epoch = max(s.epoch+1, uint64(r.now().UnixMicro()))
	route.Epoch, c.Epoch = s.epoch, s.epoch
	s.users[route.User] = append(keep, route)
	return c, nil
}

// Release is store.RouteStore's.
func (r *Routes) Release(ctx context.Context, user im.UserID, session im.SessionID, epoch uint64) (bool, error) {
	if err := r.check(ctx, "memory.Release"); err != nil {
		return false, err
	}
	s := r.of(user)
	s.mu.Lock()
	defer s.mu.Unlock()
	have := s.users[user]
	i := slices.IndexFunc(have, func(x store.Route) bool { return x.Session == session && x.Epoch == epoch })
	if i < 0 {
		return false, nil
	}
	if len(have) == 1 {
		delete(s.users, user)
		return true, nil
	}
	s.users[user] = slices.Delete(have, i, i+1)
	return true, nil
}

// Lookup is store.RouteStore's.
func (r *Routes) Lookup(ctx context.Context, users []im.UserID) ([]store.Route, error) {
	if err := r.check(ctx, "memory.Lookup"); err != nil {
		return nil, err
	}
	var out []store.Route
	for _, u := range users {
		s := r.of(u)
		s.mu.Lock()
		out = append(out, s.users[u]...)
		s.mu.Unlock()
	}
	return out, nil
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

// admit decides what a new route does to those its user has. It returns what
// is displaced and what stays, or false if the policy refuses the newcomer.
// have is not changed.
func admit(have []store.Route, next store.Route, p store.Policy) (c store.Claim, keep []store.Route, ok bool) {
	ended := rivals(have, next, p)
	if p.Mode == store.RejectNew && len(ended) > 0 {
		return store.Claim{}, nil, false
	}
	for _, h := range have {
		switch {
		case h.Session == next.Session:
			// the same socket claims again: its former claim is void, and nobody is told
		case h.Login == next.Login && h.Device == next.Device:
			c.Superseded = append(c.Superseded, h)
		case ended[h.Login]:
			c.Replaced = append(c.Replaced, h)
		default:
			keep = append(keep, h)
		}
	}
	return c, keep, true
}

// rivals are the logins that cannot live beside next.
func rivals(have []store.Route, next store.Route, p store.Policy) map[im.LoginID]bool {
	sameClass := p.SameClass || p.Mode == store.Multi
	oldest := map[im.LoginID]uint64{} // the other logins that count, by their oldest route
	for _, h := range have {
		if h.Login == next.Login || sameClass && h.Class != next.Class {
			continue
		}
		if e, ok := oldest[h.Login]; !ok || h.Epoch < e {
			oldest[h.Login] = h.Epoch
		}
	}
	logins := make([]im.LoginID, 0, len(oldest))
	for l := range oldest {
		logins = append(logins, l)
	}
	if p.Mode == store.Multi {
		slices.SortFunc(logins, func(a, b im.LoginID) int { return cmp.Compare(oldest[a], oldest[b]) })
		beyond := len(logins) + 1 - p.Multi
		if p.Multi < 1 || beyond < 0 {
			beyond = 0
		}
		logins = logins[:beyond]
	}
	out := make(map[im.LoginID]bool, len(logins))
	for _, l := range logins {
		out[l] = true
	}
	return out
}

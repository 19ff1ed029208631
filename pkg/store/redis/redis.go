// Package redis is the route store that many nodes share, in Redis: one hash a
// user, changed by scripts that see and change it in one step. Epochs and ends
// of life come from the server's clock. Nothing in it needs to survive: gateways
// put back what is lost.
//
// It works with one server, with a primary behind Sentinel and with a cluster.
// In a cluster one key tells that something was lost, so what one of its
// primaries loses alone comes back with the ordinary refreshes.
package redis

import (
	"context"
	"crypto/rand"
	"errors"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/redis/rueidis"
	"go.uber.org/zap"

	"github.com/imdhq/imd/pkg/failpoint"
	"github.com/imdhq/imd/pkg/im"
	"github.com/imdhq/imd/pkg/redis"
	"github.com/imdhq/imd/pkg/store"
	"github.com/imdhq/imd/sdk/go/gen/clientv1"
)

const (
	// callTime bounds one call.
	callTime = 400 * time.Millisecond
	// maxCalls is how many calls may be on their way; claims come one by one.
	maxCalls = 1024
	// maxBatch is how many commands go in one call.
	maxBatch = 500
	// cacheTime is how old a cached route may get if the server's word that it
	// changed is lost.
	cacheTime = 5 * time.Second
	// homeTime is how long a process is listed after its last claim or refresh.
	homeTime = 24 * time.Hour
)

// Keys besides those of users.
const (
	homesKey  = "imd:r:homes"  // hash: NODE newline BOOT -> 1
	memoryKey = "imd:r:memory" // the name of what the server remembers
)

func userKey(u im.UserID) string    { return "imd:r:{" + string(u) + "}" }
func homeKey(h store.Home) string   { return "imd:r:home:" + h.Boot } // set of the users with routes there
func homeField(h store.Home) string { return string(h.Node) + "\n" + h.Boot }

// Routes is a store.RouteStore in Redis.
type Routes struct {
	link  *redis.Link
	seen  atomic.Uint64 // the highest route epoch that this process knows of
	birth string        // for memoryKey, if the server has forgotten it
}

var _ store.RouteStore = (*Routes)(nil)

// Open makes a store that connects by itself, now or when the server is there.
// The error is about cfg only.
func Open(cfg redis.Config, log *zap.Logger) (*Routes, error) {
	link, err := redis.Open(cfg, redis.Use{
		Name: "the route store", Without: "sessions begin without routes, and live delivery waits", Calls: maxCalls, Pipeline: 3 * maxBatch, Cache: true,
	}, log)
	if err != nil {
		return nil, err
	}
	return &Routes{link: link, birth: rand.Text()}, nil
}

// Close is store.RouteStore's.
func (r *Routes) Close() error { return r.link.Close() }

// Away reports whether the server does not answer.
func (r *Routes) Away() bool { return r.link.Away() }

// unavailable is what callers are told of a failed call.
func unavailable(ctx context.Context, op string, err error) error {
	if ctx.Err() != nil {
		return ctx.Err()
	}
	return &im.Error{Reason: clientv1.Reason_REASON_UNAVAILABLE, Op: op, Msg: "the route store does not answer", Err: err}
}

// call is a script for one key.
type call struct {
	script script
	key    string
	args   []string
}

// run runs scripts, and those again that the server did not know. more goes in
// front, and is not answered.
func (r *Routes) run(ctx context.Context, op string, more func(rueidis.Builder) rueidis.Commands, calls ...call) ([]rueidis.RedisResult, error) {
	limit := max(callTime, time.Duration(len(calls))*time.Millisecond)
	skip := 0
	res, err := r.link.Do(ctx, limit, func(b rueidis.Builder) rueidis.Commands {
		var cmds rueidis.Commands
		if more != nil {
			cmds = more(b)
			skip = len(cmds)
		}
		for _, c := range calls {
			cmds = append(cmds, c.script.by(true, b, c.key, c.args))
		}
		return cmds
	})
	if err != nil {
		return nil, unavailable(ctx, op, err)
	}
	for _, x := range res[:skip] {
		if err := x.Error(); err != nil {
			return nil, unavailable(ctx, op, redis.Classified(err))
		}
	}
	res = res[skip:]
	var again []int
	for i := range res {
		if unknown(res[i].Error()) {
			again = append(again, i)
		}
	}
	if len(again) > 0 {
		second, err := r.link.Do(ctx, limit, func(b rueidis.Builder) rueidis.Commands {
			var cmds rueidis.Commands
			for _, i := range again {
				cmds = append(cmds, calls[i].script.by(false, b, calls[i].key, calls[i].args))
			}
			return cmds
		})
		if err != nil {
			return nil, unavailable(ctx, op, err)
		}
		for at, i := range again {
			res[i] = second[at]
		}
	}
	for i := range res {
		if err := res[i].Error(); err != nil {
			return nil, unavailable(ctx, op, redis.Classified(err))
		}
	}
	return res, nil
}

// base are the first arguments of every script for a user.
func (r *Routes) base() []string {
	return []string{strconv.FormatInt(store.RouteTTL.Microseconds(), 10), strconv.FormatUint(r.seen.Load(), 10), strconv.FormatInt(store.LoginTTL.Microseconds(), 10)}
}

// saw notes an epoch.
func (r *Routes) saw(epoch uint64) {
	for have := r.seen.Load(); epoch > have && !r.seen.CompareAndSwap(have, epoch); have = r.seen.Load() {
	}
}

// atAll notes where users have routes, for Homes and Sweep. It comes in front of the
// claims, so that no route is ever without it.
func atAll(users map[store.Home][]string) func(rueidis.Builder) rueidis.Commands {
	return func(b rueidis.Builder) (cmds rueidis.Commands) {
		seconds := int64(homeTime / time.Second)
		for h, list := range users {
			cmds = append(cmds, b.Sadd().Key(homeKey(h)).Member(list...).Build(),
				b.Expire().Key(homeKey(h)).Seconds(seconds).Build(),
				b.Hset().Key(homesKey).FieldValue().FieldValue(homeField(h), "1").Build())
		}
		return cmds
	}
}

var modes = map[store.PolicyMode]string{store.Multi: "multi", store.KickOld: "kick_old", store.RejectNew: "reject_new"}

// Claim is store.RouteStore's.
func (r *Routes) Claim(ctx context.Context, x store.Route, p store.Policy) (store.Claim, error) {
	out, err := r.ClaimMany(ctx, []store.Claiming{{Route: x, Policy: p}})
	if err != nil {
		return store.Claim{}, err
	}
	return out[0].Claim, out[0].Err
}

// ClaimMany is store.RouteStore's. All scripts go in one call, behind the note where
// their users have routes.
func (r *Routes) ClaimMany(ctx context.Context, list []store.Claiming) ([]store.Claimed, error) {
	const op = "redis.Claim"
	if len(list) > store.MaxClaims {
		return nil, im.Errorf(clientv1.Reason_REASON_BAD_REQUEST, op, "more than %d claims", store.MaxClaims)
	}
	out := make([]store.Claimed, len(list))
	calls, of := make([]call, 0, len(list)), make([]int, 0, len(list))
	users := map[store.Home][]string{}
	for i, c := range list {
		args, err := r.claiming(c)
		if err != nil {
			out[i].Err = err
			continue
		}
		calls, of = append(calls, call{claim.or(failpoint.EpochWithoutTime, claimWithoutTime), userKey(c.Route.User), args}), append(of, i)
		users[c.Route.Home()] = append(users[c.Route.Home()], string(c.Route.User))
	}
	if len(calls) == 0 {
		return out, nil
	}
	res, err := r.run(ctx, op, atAll(users), calls...)
	if err != nil {
		return nil, err
	}
	for n, i := range of {
		out[i].Claim, out[i].Err = r.claimed(list[i].Route.User, res[n])
	}
	return out, nil
}

// claiming are the arguments of the script that makes a claim.
func (r *Routes) claiming(c store.Claiming) ([]string, error) {
	x, p := c.Route, c.Policy
	rest, err := record(x)
	if err != nil {
		return nil, err
	}
	same := "0"
	if p.SameClass {
		same = "1"
	}
	return append(r.base(), string(x.Session), string(x.Login), string(x.Device), string(x.Class), rest, strconv.FormatUint(x.Epoch, 10),
		modes[p.Mode], strconv.Itoa(p.Multi), same, strconv.Itoa(p.Total)), nil
}

// claimed reads the answer to a claim.
func (r *Routes) claimed(user im.UserID, res rueidis.RedisResult) (c store.Claim, err error) {
	const op = "redis.Claim"
	parts, err := res.ToArray()
	if err != nil || len(parts) != 5 {
		return c, &im.Error{Reason: clientv1.Reason_REASON_INTERNAL, Op: op, Msg: "the answer is not understood", Err: err}
	}
	what, err := parts[0].ToString()
	if err != nil {
		return c, &im.Error{Reason: clientv1.Reason_REASON_INTERNAL, Op: op, Msg: "the answer is not understood", Err: err}
	}
	text, err := parts[1].ToString()
	if err == nil {
		c.Epoch, err = strconv.ParseUint(text, 10, 64)
	}
	var lists [2][]store.Route
	for i := range lists {
		if err == nil {
			lists[i], err = listed(user, parts[2+i])
		}
	}
	var away []string
	if err == nil {
		away, err = parts[4].AsStrSlice()
	}
	if err != nil {
		return store.Claim{}, &im.Error{Reason: clientv1.Reason_REASON_INTERNAL, Op: op, Msg: "the answer is not understood", Err: err}
	}
	for _, l := range away {
		c.Away = append(c.Away, im.LoginID(l))
	}
	switch what {
	case "refused":
		c.Holders = lists[1]
		return c, im.Errorf(clientv1.Reason_REASON_LOGIN_REFUSED, op, "another login is active")
	case "kept":
		r.saw(c.Epoch)
		c.Superseded, c.Replaced = lists[0], lists[1]
	default:
		c.Standing = standings[what]
	}
	return c, nil
}

// listed reads routes that a script gave as session and record in turn.
func listed(user im.UserID, m rueidis.RedisMessage) ([]store.Route, error) {
	flat, err := m.AsStrSlice()
	if err != nil {
		return nil, err
	}
	var out []store.Route
	for i := 0; i+1 < len(flat); i += 2 {
		x, _, err := parse(user, flat[i], flat[i+1])
		if err != nil {
			return nil, err
		}
		out = append(out, x)
	}
	return out, nil
}

var standings = map[string]store.Standing{"kept": store.Kept, "restored": store.Restored, "superseded": store.Superseded, "replaced": store.Replaced}

// Refresh is store.RouteStore's.
func (r *Routes) Refresh(ctx context.Context, routes []store.Route) ([]store.Standing, error) {
	out := make([]store.Standing, 0, len(routes))
	for len(routes) > 0 {
		n := min(len(routes), maxBatch)
		part, err := r.refresh(ctx, routes[:n])
		if err != nil {
			return nil, err
		}
		out, routes = append(out, part...), routes[n:]
	}
	return out, nil
}

func (r *Routes) refresh(ctx context.Context, routes []store.Route) ([]store.Standing, error) {
	const op = "redis.Refresh"
	calls := make([]call, len(routes))
	users := map[store.Home][]string{}
	for i, x := range routes {
		rest, err := record(x)
		if err != nil {
			return nil, err
		}
		r.saw(x.Epoch)
		users[x.Home()] = append(users[x.Home()], string(x.User))
		calls[i] = call{refresh, userKey(x.User), append(r.base(), string(x.Session), string(x.Login), string(x.Device), rest, strconv.FormatUint(x.Epoch, 10))}
	}
	res, err := r.run(ctx, op, atAll(users), calls...)
	if err != nil {
		return nil, err
	}
	out := make([]store.Standing, len(routes))
	for i, x := range res {
		text, err := x.ToString()
		if err != nil {
			return nil, unavailable(ctx, op, redis.Classified(err))
		}
		out[i] = standings[text]
	}
	return out, nil
}

// Release is store.RouteStore's.
func (r *Routes) Release(ctx context.Context, user im.UserID, session im.SessionID, epoch uint64) (bool, error) {
	const op = "redis.Release"
	res, err := r.run(ctx, op, nil, call{release.or(failpoint.ReleaseAnySession, releaseAny), userKey(user), append(r.base(), string(session), strconv.FormatUint(epoch, 10))})
	if err != nil {
		return false, err
	}
	n, err := res[0].ToInt64()
	if err != nil {
		return false, unavailable(ctx, op, redis.Classified(err))
	}
	return n > 0, nil
}

// Lookup is store.RouteStore's. The server's clock, read on the same way, says
// which routes have ended.
func (r *Routes) Lookup(ctx context.Context, users []im.UserID) ([]store.Route, error) {
	const op = "redis.Lookup"
	var out []store.Route
	for some := range slices.Chunk(users, maxBatch) {
		res, err := r.link.Do(ctx, callTime, func(b rueidis.Builder) rueidis.Commands {
			cmds := make(rueidis.Commands, 0, len(some)+1)
			cmds = append(cmds, clock(b))
			for _, u := range some {
				cmds = append(cmds, b.Hgetall().Key(userKey(u)).Build())
			}
			return cmds
		})
		if err != nil {
			return nil, unavailable(ctx, op, err)
		}
		at, err := res[0].AsIntSlice()
		if err != nil || len(at) != 2 {
			return nil, unavailable(ctx, op, errors.Join(redis.Classified(err), errors.New("the server does not tell the time")))
		}
		now := time.Unix(at[0], at[1]*1000)
		out = slices.Grow(out, len(some))
		for i, x := range res[1:] {
			if out, err = routesOf(out, some[i], x, now); err != nil {
				return nil, unavailable(ctx, op, redis.Classified(err))
			}
		}
	}
	return out, nil
}

// Recent is store.RouteStore's. The client library keeps what it read until the
// server says that it changed; what it remembers of users without routes is not
// used.
func (r *Routes) Recent(ctx context.Context, users []im.UserID) ([]store.Route, error) {
	const op = "redis.Recent"
	var out []store.Route
	var none []im.UserID
	for some := range slices.Chunk(users, maxBatch) {
		res, err := r.link.DoCached(ctx, callTime, func(b rueidis.Builder) []rueidis.CacheableTTL {
			cmds := make([]rueidis.CacheableTTL, len(some))
			for i, u := range some {
				cmds[i] = rueidis.CT(b.Hgetall().Key(userKey(u)).Cache(), cacheTime)
			}
			return cmds
		})
		if err != nil {
			return nil, unavailable(ctx, op, err)
		}
		out = slices.Grow(out, len(some))
		for i, x := range res {
			had := len(out)
			if out, err = routesOf(out, some[i], x, time.Time{}); err != nil {
				return nil, unavailable(ctx, op, redis.Classified(err))
			}
			if len(out) == had && x.IsCacheHit() && !failpoint.Bad(failpoint.AbsenceCached) {
				none = append(none, some[i])
			}
		}
	}
	if len(none) == 0 {
		return out, nil
	}
	more, err := r.Lookup(ctx, none)
	return append(out, more...), err
}

// routesOf adds the routes of a hash that have not ended by now; a zero now =
// ended ones too, which lead to a gateway that says so.
func routesOf(out []store.Route, user im.UserID, res rueidis.RedisResult, now time.Time) ([]store.Route, error) {
	all, err := res.AsStrMap()
	if err != nil {
		return out, err
	}
	for field, value := range all {
		if session, ok := strings.CutPrefix(field, "s:"); ok {
			x, ends, err := parse(user, session, value)
			if err != nil {
				return out, err
			}
			if now.Before(ends) {
				out = append(out, x)
			}
		}
	}
	return out, nil
}

// Memory is store.RouteStore's.
func (r *Routes) Memory(ctx context.Context) (string, error) {
	res, err := r.run(ctx, "redis.Memory", nil, call{memory, memoryKey, []string{r.birth + strconv.FormatInt(time.Now().UnixNano(), 36)}})
	if err != nil {
		return "", err
	}
	return res[0].ToString()
}

// Homes is store.Sweeper's.
func (r *Routes) Homes(ctx context.Context) ([]store.Home, error) {
	const op = "redis.Homes"
	res, err := r.link.Do(ctx, callTime, func(b rueidis.Builder) rueidis.Commands {
		return rueidis.Commands{b.Hkeys().Key(homesKey).Build()}
	})
	if err != nil {
		return nil, unavailable(ctx, op, err)
	}
	list, err := res[0].AsStrSlice()
	if err != nil {
		return nil, unavailable(ctx, op, redis.Classified(err))
	}
	var out []store.Home
	for _, f := range list {
		if node, boot, ok := strings.Cut(f, "\n"); ok {
			out = append(out, store.Home{Node: im.NodeID(node), Boot: boot})
		}
	}
	return out, nil
}

// Sweep is store.Sweeper's. What is swept is forgotten afterwards, so that a
// sweep that breaks off is done again.
func (r *Routes) Sweep(ctx context.Context, h store.Home) (int, error) {
	const op = "redis.Sweep"
	n := 0
	for cursor := uint64(0); ; {
		res, err := r.link.Do(ctx, callTime, func(b rueidis.Builder) rueidis.Commands {
			return rueidis.Commands{b.Sscan().Key(homeKey(h)).Cursor(cursor).Count(maxBatch).Build()}
		})
		if err != nil {
			return n, unavailable(ctx, op, err)
		}
		page, err := res[0].AsScanEntry()
		if err != nil {
			return n, unavailable(ctx, op, redis.Classified(err))
		}
		some, err := r.sweep(ctx, h, page.Elements)
		n += some
		if err != nil {
			return n, err
		}
		if cursor = page.Cursor; cursor == 0 {
			break
		}
	}
	res, err := r.link.Do(ctx, callTime, func(b rueidis.Builder) rueidis.Commands {
		return rueidis.Commands{b.Del().Key(homeKey(h)).Build(), b.Hdel().Key(homesKey).Field(homeField(h)).Build()}
	})
	if err != nil {
		return n, unavailable(ctx, op, err)
	}
	return n, errors.Join(redis.Classified(res[0].Error()), redis.Classified(res[1].Error()))
}

// sweep removes the routes of users there. The library may give more of them at
// once than were asked for.
func (r *Routes) sweep(ctx context.Context, h store.Home, users []string) (int, error) {
	n := 0
	for len(users) > 0 {
		some := users[:min(len(users), maxBatch)]
		users = users[len(some):]
		calls := make([]call, len(some))
		for i, u := range some {
			calls[i] = call{sweep, userKey(im.UserID(u)), append(r.base(), string(h.Node), h.Boot)}
		}
		res, err := r.run(ctx, "redis.Sweep", nil, calls...)
		if err != nil {
			return n, err
		}
		for _, x := range res {
			one, err := x.ToInt64()
			if err != nil {
				return n, unavailable(ctx, "redis.Sweep", redis.Classified(err))
			}
			n += int(one)
		}
	}
	return n, nil
}

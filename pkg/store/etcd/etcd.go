// Package etcd is the route store of small clusters that have no Redis: the
// routes of at most 10,000 sessions in the cluster's etcd. A change of a user's
// routes is one transaction that compares and writes a key of that user. Routes
// end with leases of their own, one for each 1,000 sessions of a process.
//
// Every process follows all routes with one watch, so that live delivery asks
// its own memory. Nothing in it needs to survive: gateways put back what is lost.
package etcd

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"

	"github.com/imdhq/imd/pkg/backoff"
	"github.com/imdhq/imd/pkg/im"
	"github.com/imdhq/imd/pkg/store"
	"github.com/imdhq/imd/sdk/go/gen/clientv1"
)

const (
	// Ceiling is how many sessions a cluster may have with its routes here.
	Ceiling = 10_000
	// perLease is how many sessions share a lease: the end of one stalls every
	// write for as long as its keys take to delete.
	perLease = 1000
	// leaseTime is how long routes outlive their process, and renewEvery how often
	// leases are renewed.
	leaseTime  = 60 * time.Second
	renewEvery = 20 * time.Second
	// longTime is how long one lease serves for guards that outlive the process.
	longTime = time.Hour
	// callTime bounds one call to etcd.
	callTime = time.Second
	// maxOps is how many reads or writes go in one transaction.
	maxOps = 100
	// conflictTries is how often a change is tried when others change the same
	// user.
	conflictTries = 50
	// leaseTries is how often a change is tried when its leases turn out to be gone.
	leaseTries = 3
)

// conflictPauses are before each next try after a conflict, at random: others try too.
var conflictPauses = backoff.Policy{Base: time.Millisecond, Max: 50 * time.Millisecond}

// Options are those of a store.
type Options struct {
	Prefix string // of all keys, with a slash at the end
	Log    *zap.Logger
	Reg    prometheus.Registerer
	// Close is called by Close at the end; nil = nothing is.
	Close func() error
}

// Routes is a store.RouteStore in etcd.
type Routes struct {
	Options
	prefix string
	client *clientv3.Client
	now    func() time.Time
	stop   context.CancelFunc
	wg     sync.WaitGroup

	leases leases
	table  table
	reread chan struct{} // capacity 1: the table is to be read anew
}

var _ store.RouteStore = (*Routes)(nil)

// Open makes a store on a client, which it does not close. It begins to follow
// the routes and does not wait for etcd.
func Open(client *clientv3.Client, o Options) *Routes {
	ctx, stop := context.WithCancel(context.Background())
	r := &Routes{Options: o, prefix: o.Prefix, client: client, now: time.Now, stop: stop, reread: make(chan struct{}, 1)}
	r.leases.of, r.table.users = map[im.SessionID]share{}, map[im.UserID]map[im.SessionID]store.Route{}
	o.Reg.MustRegister(
		prometheus.NewGaugeFunc(prometheus.GaugeOpts{Namespace: "imd", Subsystem: "routes", Name: "table_lag_seconds",
			Help: "Since the last sign of life of the watch that keeps the table of routes in etcd; 10 to 20 s are healthy."}, r.table.lag),
		prometheus.NewGaugeFunc(prometheus.GaugeOpts{Namespace: "imd", Subsystem: "routes", Name: "table_sessions",
			Help: "Routes in that table; the store takes 10,000."}, func() float64 { return float64(r.table.size()) }),
	)
	r.wg.Go(func() { r.follow(ctx) })
	r.wg.Go(func() { r.renew(ctx) })
	return r
}

// Close is store.RouteStore's. It gives the leases back, and the routes with
// them.
func (r *Routes) Close() error {
	r.stop()
	r.wg.Wait()
	ctx, cancel := context.WithTimeout(context.Background(), callTime)
	defer cancel()
	for _, id := range r.leases.all() {
		if _, err := r.client.Revoke(ctx, id); err != nil {
			r.Log.Warn("the lease of routes was not given back; it ends by itself", zap.Error(err))
			break
		}
	}
	if r.Options.Close != nil {
		return r.Options.Close()
	}
	return nil
}

func unavailable(ctx context.Context, op string, err error) error {
	if ctx.Err() != nil {
		return ctx.Err()
	}
	return &im.Error{Reason: clientv1.Reason_REASON_UNAVAILABLE, Op: op, Msg: "the route store does not answer", Err: err}
}

// user is what etcd has of one user, and the revision of the guard; 0 = none.
type user struct {
	routes []store.Route
	guard  guard
	rev    int64
}

// read reads users in one transaction for each few. What is not ours is passed
// by.
func (r *Routes) read(ctx context.Context, users []im.UserID) ([]user, error) {
	out := make([]user, 0, len(users))
	for len(users) > 0 {
		n := min(len(users), maxOps)
		ops := make([]clientv3.Op, n)
		for i, u := range users[:n] {
			ops[i] = clientv3.OpGet(r.userPrefix(u), clientv3.WithPrefix())
		}
		cctx, cancel := context.WithTimeout(ctx, callTime)
		res, err := r.client.Txn(cctx).Then(ops...).Commit()
		cancel()
		if err != nil {
			return nil, err
		}
		for i := range n {
			var u user
			for _, kv := range res.Responses[i].GetResponseRange().Kvs {
				id, session, ok := r.split(string(kv.Key))
				switch {
				case !ok || id != users[i]:
				case session == "":
					u.rev = kv.ModRevision
					if err := json.Unmarshal(kv.Value, &u.guard); err != nil {
						return nil, fmt.Errorf("the guard of %s: %w", id, err)
					}
				default:
					x, err := decode(id, session, kv.Value)
					if err != nil {
						return nil, err
					}
					u.routes = append(u.routes, x)
				}
			}
			out = append(out, u)
		}
		users = users[n:]
	}
	return out, nil
}

// change is one change of a user's routes.
type change struct {
	user   im.UserID
	rev    int64
	guard  guard
	put    *store.Route // nil = none
	remove []store.Route
}

// writes are the comparison and the writes of a change, and the lease whose share its
// session took for them: commit keeps it or gives it back.
type writes struct {
	session im.SessionID
	lease   clientv3.LeaseID
	puts    bool // the session's route
	cmp     clientv3.Cmp
	ops     []clientv3.Op
}

// writes are those of a change that a session makes; "" = none does.
func (r *Routes) writes(ctx context.Context, c change, session im.SessionID) (writes, error) {
	lease, err := r.lease(ctx, session)
	if err != nil {
		return writes{}, err
	}
	keep := lease
	if len(c.guard.Logins) > 0 {
		if keep, err = r.longLease(ctx); err != nil {
			r.leases.giveBack(session)
			return writes{}, err
		}
	}
	text, _ := json.Marshal(c.guard) // plain fields: it cannot fail
	ops := []clientv3.Op{clientv3.OpPut(r.guardKey(c.user), string(text), clientv3.WithLease(keep))}
	for _, x := range c.remove {
		ops = append(ops, clientv3.OpDelete(r.routeKey(x.User, x.Session)))
	}
	if c.put != nil {
		ops = append(ops, clientv3.OpPut(r.routeKey(c.put.User, c.put.Session), encode(*c.put), clientv3.WithLease(lease)))
	}
	return writes{session, lease, c.put != nil, clientv3.Compare(clientv3.ModRevision(r.guardKey(c.user)), "=", c.rev), ops}, nil
}

// commit makes changes of different users in one transaction; false = somebody was
// faster. A session keeps its share of a lease if its route may be there now. That is
// also so after an error, since a transaction whose answer is lost may have been made,
// or be made yet: the route then lives as long as the lease and has its place in it,
// until it is released. Only of one that names an unknown lease is it known that
// nothing was done.
func (r *Routes) commit(ctx context.Context, list ...writes) (bool, error) {
	var cmps []clientv3.Cmp
	var ops []clientv3.Op
	for _, w := range list {
		cmps, ops = append(cmps, w.cmp), append(ops, w.ops...)
	}
	ctx, cancel := context.WithTimeout(ctx, callTime)
	defer cancel()
	res, err := r.client.Txn(ctx).If(cmps...).Then(ops...).Commit()
	done := err == nil && res.Succeeded
	maybe := err != nil && !errors.Is(err, rpctypes.ErrLeaseNotFound)
	for _, w := range list {
		if w.puts && (done || maybe) {
			r.leases.keep(w.session, w.lease)
		} else {
			r.leases.giveBack(w.session)
		}
	}
	return done, err
}

// change reads a user, lets decide say what to do, and does it, again if others
// change the same user. decide returns nil for nothing.
func (r *Routes) change(ctx context.Context, id im.UserID, session im.SessionID, decide func(user) *change) error {
	for try := 0; ; try++ {
		all, err := r.read(ctx, []im.UserID{id})
		if err != nil {
			return err
		}
		c := decide(all[0])
		if c == nil {
			return nil
		}
		c.user, c.rev = id, all[0].rev
		w, err := r.writes(ctx, *c, session)
		if err != nil {
			return err
		}
		done, err := r.commit(ctx, w)
		switch {
		case done:
			return nil
		case r.gone(ctx, err, w) && try < leaseTries:
			continue // with another one
		case err != nil:
			return err
		case try == conflictTries:
			return errors.New("others keep changing the same user")
		}
		if err := conflictPauses.Sleep(ctx, try); err != nil {
			return err
		}
	}
}

// Claim is store.RouteStore's. Error: busy if the cluster has as many sessions as
// it may.
func (r *Routes) Claim(ctx context.Context, x store.Route, p store.Policy) (store.Claim, error) {
	const op = "etcd.Claim"
	if err := r.room(x); err != nil {
		return store.Claim{}, err
	}
	var v verdict
	if err := r.change(ctx, x.User, x.Session, func(u user) *change {
		v = r.decide(u, x, p)
		return v.change
	}); err != nil {
		return store.Claim{}, unavailable(ctx, op, err)
	}
	return r.settle(v)
}

// room refuses a session beyond those that the cluster may have.
func (r *Routes) room(x store.Route) error {
	if n := r.table.size(); n >= Ceiling && !r.leases.has(x.Session) {
		return im.Errorf(clientv1.Reason_REASON_BUSY, "etcd.Claim", "the cluster has %d sessions, as many as routes in etcd are good for; use storage.routes: redis", n)
	}
	return nil
}

// verdict is what a claim comes to.
type verdict struct {
	claim   store.Claim
	refused bool
	change  *change // nil = none
}

// decide is what a claim does to what a user has.
func (r *Routes) decide(u user, x store.Route, p store.Policy) (v verdict) {
	if x.Epoch == 0 {
		x.Epoch = max(u.guard.Top+1, uint64(r.now().UnixMicro()), r.table.highest()+1)
	}
	c, _, ok := store.Admit(u.routes, x, p)
	if v.refused = !ok; ok && c.Standing == store.Kept {
		g := u.guard
		g.Top = max(g.Top, x.Epoch)
		g.displace(c.Superseded, store.Superseded)
		g.displace(c.Replaced, store.Replaced)
		g.Logins, c.Away = g.Logins.Claim(u.routes, x, p, r.now())
		v.change = &change{guard: g, put: &x, remove: append(c.Superseded[:len(c.Superseded):len(c.Superseded)], c.Replaced...)}
	}
	v.claim = c
	return v
}

// settle is the answer to a claim whose change, if any, is made.
func (r *Routes) settle(v verdict) (store.Claim, error) {
	if v.refused {
		return v.claim, im.Errorf(clientv1.Reason_REASON_LOGIN_REFUSED, "etcd.Claim", "another login is active")
	}
	r.table.raise(v.claim.Epoch)
	return v.claim, nil
}

// Refresh is store.RouteStore's. Leases keep the routes alive; this asks whether
// they are there.
func (r *Routes) Refresh(ctx context.Context, routes []store.Route) ([]store.Standing, error) {
	const op = "etcd.Refresh"
	users := make([]im.UserID, len(routes))
	for i, x := range routes {
		users[i] = x.User
		r.table.raise(x.Epoch)
	}
	have, err := r.read(ctx, users)
	if err != nil {
		return nil, unavailable(ctx, op, err)
	}
	out := make([]store.Standing, len(routes))
	var lost []int
	for i, x := range routes {
		switch out[i] = standing(have[i], x); out[i] {
		case store.Restored:
			lost = append(lost, i)
		}
	}
	rest, err := r.restore(ctx, routes, have, lost)
	if err != nil {
		return nil, unavailable(ctx, op, err)
	}
	for _, i := range rest { // those that others changed meanwhile, and second ones of a user
		x := routes[i]
		err := r.change(ctx, x.User, x.Session, func(u user) *change {
			if out[i] = standing(u, x); out[i] != store.Restored {
				return nil
			}
			return restoring(u, x)
		})
		if err != nil {
			return nil, unavailable(ctx, op, err)
		}
	}
	for i, n := 0, 0; i < len(routes) && n < seenAtOnce && ctx.Err() == nil; i++ {
		if out[i] == store.Kept && r.seen(ctx, routes[i], have[i]) {
			n++
		}
	}
	return out, nil
}

// seenAtOnce is how many logins one refresh remembers for longer: each is a
// change of its own, and they may all be due at once. There are hours left.
const seenAtOnce = 16

// seen remembers the login of a route for longer, and reports whether that was
// due. If it fails, another refresh does it.
func (r *Routes) seen(ctx context.Context, x store.Route, have user) bool {
	if _, due := have.guard.Logins.Seen(x.Login, r.now()); !due {
		return false
	}
	err := r.change(ctx, x.User, x.Session, func(u user) *change {
		g, due := u.guard, false
		if g.Logins, due = g.Logins.Seen(x.Login, r.now()); !due {
			return nil
		}
		return &change{guard: g}
	})
	if err != nil {
		r.Log.Warn("a login is not remembered for longer", zap.Error(err))
	}
	return true
}

// standing is what became of a route; Restored = it is to be put back.
func standing(u user, x store.Route) store.Standing {
	for _, h := range u.routes {
		if h.Session == x.Session && h.Epoch == x.Epoch {
			return store.Kept
		}
	}
	if why, ok := u.guard.Displaced[x.Session]; ok {
		return why
	}
	if c, _, _ := store.Admit(u.routes, x, store.Policy{}); c.Standing != store.Kept {
		return c.Standing
	}
	return store.Restored
}

// restoring puts a route back.
func restoring(u user, x store.Route) *change {
	c, _, _ := store.Admit(u.routes, x, store.Policy{})
	g := u.guard
	g.Top = max(g.Top, x.Epoch)
	g.displace(c.Superseded, store.Superseded)
	return &change{guard: g, put: &x, remove: c.Superseded}
}

// restore puts many routes back in transactions of a hundred writes. It returns
// those that are still to be done, one by one.
func (r *Routes) restore(ctx context.Context, routes []store.Route, have []user, lost []int) (rest []int, err error) {
	seen := map[im.UserID]bool{}
	var batch []int
	for _, i := range lost {
		if seen[routes[i].User] || len(have[i].routes) > 0 {
			rest = append(rest, i)
			continue
		}
		seen[routes[i].User] = true
		batch = append(batch, i)
	}
	for len(batch) > 0 {
		n := min(len(batch), maxOps/2)
		done, list, err := r.putBack(ctx, routes, have, batch[:n])
		for try := 1; r.gone(ctx, err, list...) && try < leaseTries; try++ {
			done, list, err = r.putBack(ctx, routes, have, batch[:n])
		}
		if err != nil {
			return nil, err
		}
		if !done {
			rest = append(rest, batch[:n]...)
		}
		batch = batch[n:]
	}
	return rest, nil
}

// putBack makes one transaction; false = others changed one of the users. It
// returns what it wrote.
func (r *Routes) putBack(ctx context.Context, routes []store.Route, have []user, batch []int) (done bool, list []writes, err error) {
	for _, i := range batch {
		c := restoring(have[i], routes[i])
		c.user, c.rev = routes[i].User, have[i].rev
		w, err := r.writes(ctx, *c, routes[i].Session)
		if err != nil {
			for _, w := range list {
				r.leases.giveBack(w.session)
			}
			return false, nil, err
		}
		list = append(list, w)
	}
	done, err = r.commit(ctx, list...)
	return done, list, err
}

// Release is store.RouteStore's.
func (r *Routes) Release(ctx context.Context, id im.UserID, session im.SessionID, epoch uint64) (bool, error) {
	found, stays := false, false // stays: its route has another epoch, and needs its share of the lease
	err := r.change(ctx, id, session, func(u user) *change {
		found, stays = false, false
		for _, h := range u.routes {
			if h.Session != session {
				continue
			}
			if h.Epoch == epoch {
				found = true
				return &change{guard: u.guard, remove: []store.Route{h}}
			}
			stays = true
		}
		return nil
	})
	if err != nil {
		return false, unavailable(ctx, "etcd.Release", err)
	}
	if !stays {
		r.leases.free(session)
	}
	return found, nil
}

// Lookup is store.RouteStore's.
func (r *Routes) Lookup(ctx context.Context, users []im.UserID) ([]store.Route, error) {
	all, err := r.read(ctx, users)
	if err != nil {
		return nil, unavailable(ctx, "etcd.Lookup", err)
	}
	var out []store.Route
	for _, u := range all {
		out = append(out, u.routes...)
	}
	return out, nil
}

// Recent is store.RouteStore's, from this process's own table.
func (r *Routes) Recent(ctx context.Context, users []im.UserID) ([]store.Route, error) {
	if !r.table.ready() {
		return r.Lookup(ctx, users)
	}
	return r.table.of(users), nil
}

// Memory is store.RouteStore's. It asks etcd how far it is, because a watch says
// nothing when etcd has gone back to an older state.
func (r *Routes) Memory(ctx context.Context) (string, error) {
	const op = "etcd.Memory"
	rev, ok := r.table.revision()
	if !ok {
		return "", unavailable(ctx, op, errors.New("the table of routes was not read yet"))
	}
	cctx, cancel := context.WithTimeout(ctx, callTime)
	defer cancel()
	res, err := r.client.Get(cctx, r.prefix)
	if err != nil {
		return "", unavailable(ctx, op, err)
	}
	if r.table.wentBack(rev, res.Header.Revision, res.Header.ClusterId) {
		select {
		case r.reread <- struct{}{}:
		default: // it is going to be
		}
	}
	return r.table.memory(), nil
}

// Homes is store.Sweeper's.
func (r *Routes) Homes(ctx context.Context) ([]store.Home, error) {
	if !r.table.ready() {
		return nil, unavailable(ctx, "etcd.Homes", errors.New("the table of routes was not read yet"))
	}
	return r.table.homes(), nil
}

// Sweep is store.Sweeper's.
func (r *Routes) Sweep(ctx context.Context, h store.Home) (int, error) {
	n := 0
	for _, id := range r.table.at(h) {
		gone := 0
		err := r.change(ctx, id, "", func(u user) *change {
			var c change
			for _, x := range u.routes {
				if x.Home() == h {
					c.remove = append(c.remove, x)
				}
			}
			if gone = len(c.remove); gone == 0 {
				return nil
			}
			c.guard = u.guard
			return &c
		})
		if err != nil {
			return n, unavailable(ctx, "etcd.Sweep", err)
		}
		n += gone
	}
	return n, nil
}

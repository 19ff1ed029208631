package etcd

import (
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"

	"github.com/imdhq/imd/pkg/im"
	"github.com/imdhq/imd/pkg/store"
)

// leases are those of this process, and which sessions each one has.
type leases struct {
	mu   sync.Mutex
	list []lease
	of   map[im.SessionID]share
	lost bool // one ended, and with it its routes

	// long is for guards that outlive the process, and since when it is used.
	long  clientv3.LeaseID
	since time.Time

	more, longer *grant // under way, of one for list and of long; nil = none
}

// grant is a call for a lease that everybody who wants one waits for.
type grant struct {
	done   chan struct{} // closed at its end
	err    error         // what is below is for after the end
	gaveUp bool          // who made it could not wait for longer: another may
}

// share is a session's of a lease.
type share struct {
	id    clientv3.LeaseID
	trial bool // no route has needed it yet
}

type lease struct {
	id    clientv3.LeaseID
	users int // sessions that have it
}

// lease is the one for a session: what it has, one with room, or a new one. What is
// new is on trial until keep or giveBack. The empty session gets one without counting.
func (r *Routes) lease(ctx context.Context, session im.SessionID) (clientv3.LeaseID, error) {
	if id := r.leases.take(session); id != 0 {
		return id, nil
	}
	for {
		err := r.leases.share(ctx, &r.leases.more, func() error {
			id, err := r.grant(ctx, leaseTime)
			if err == nil {
				r.leases.add(id)
			}
			return err
		})
		if err != nil {
			return 0, err
		}
		if id := r.leases.take(session); id != 0 {
			return id, nil
		}
	}
}

// longLease is one that ends when the logins of a guard that is written now are
// forgotten, some hours later at most. It is never renewed; a new one takes its place
// from time to time.
func (r *Routes) longLease(ctx context.Context) (clientv3.LeaseID, error) {
	for {
		now := r.now()
		if id := r.leases.forLong(now.Add(-longTime)); id != 0 {
			return id, nil
		}
		err := r.leases.share(ctx, &r.leases.longer, func() error {
			id, err := r.grant(ctx, store.LoginTTL+2*longTime)
			if err == nil {
				r.leases.setLong(id, now)
			}
			return err
		})
		if err != nil {
			return 0, err
		}
	}
}

// grant asks etcd for a lease.
func (r *Routes) grant(ctx context.Context, ttl time.Duration) (clientv3.LeaseID, error) {
	ctx, cancel := context.WithTimeout(ctx, callTime)
	defer cancel()
	res, err := r.client.Grant(ctx, int64(ttl/time.Second))
	if err != nil {
		return 0, err
	}
	return res.ID, nil
}

// share makes a call unless one is under way, in which case it waits for that as long
// as ctx allows. All who waited get the outcome, but for one that came of the caller's
// own haste: then the next makes the call.
func (l *leases) share(ctx context.Context, at **grant, call func() error) error {
	for {
		l.mu.Lock()
		g := *at
		if g == nil {
			g = &grant{done: make(chan struct{})}
			*at = g
			l.mu.Unlock()
			g.err = call()
			g.gaveUp = g.err != nil && ctx.Err() != nil
			l.mu.Lock()
			*at = nil
			l.mu.Unlock()
			close(g.done)
			return g.err
		}
		l.mu.Unlock()
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-g.done:
		}
		if !g.gaveUp {
			return g.err
		}
	}
}

func (l *leases) add(id clientv3.LeaseID) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.list = append(l.list, lease{id: id})
}

func (l *leases) take(session im.SessionID) clientv3.LeaseID {
	l.mu.Lock()
	defer l.mu.Unlock()
	if s, ok := l.of[session]; ok {
		return s.id
	}
	for i := range l.list {
		if l.list[i].users < perLease {
			if session != "" {
				l.list[i].users++
				l.of[session] = share{l.list[i].id, true}
			}
			return l.list[i].id
		}
	}
	return 0
}

func (l *leases) has(session im.SessionID) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	_, ok := l.of[session]
	return ok
}

// keep notes that a session may have a route on a lease: its share lasts until free,
// also if another claim of the session has given it back meanwhile.
func (l *leases) keep(session im.SessionID, id clientv3.LeaseID) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if was := l.of[session]; was.id != id {
		if !l.count(id, 1) {
			return // it has ended, and the route with it
		}
		l.count(was.id, -1)
	}
	l.of[session] = share{id: id}
}

// giveBack ends a share that no route has come to need.
func (l *leases) giveBack(session im.SessionID) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if s := l.of[session]; s.trial {
		l.count(s.id, -1)
		delete(l.of, session)
	}
}

// free ends a session's share.
func (l *leases) free(session im.SessionID) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.count(l.of[session].id, -1)
	delete(l.of, session)
}

// count changes how many sessions have a lease; false = it is none of ours. It is
// locked.
func (l *leases) count(id clientv3.LeaseID, by int) bool {
	i := slices.IndexFunc(l.list, func(x lease) bool { return x.id == id })
	if i >= 0 {
		l.list[i].users += by
	}
	return i >= 0
}

func (l *leases) all() []clientv3.LeaseID {
	l.mu.Lock()
	defer l.mu.Unlock()
	out := make([]clientv3.LeaseID, len(l.list))
	for i, x := range l.list {
		out[i] = x.id
	}
	return out
}

// gone reports whether err says that etcd does not know a lease any more, as after
// it went back to an older state, and forgets the one for long and those of list that
// are gone.
func (r *Routes) gone(ctx context.Context, err error, list ...writes) bool {
	if !errors.Is(err, rpctypes.ErrLeaseNotFound) {
		return false
	}
	ids := make([]clientv3.LeaseID, len(list))
	for i, w := range list {
		ids[i] = w.lease
	}
	slices.Sort(ids)
	for _, id := range append(slices.Compact(ids), r.leases.forLong(time.Time{})) {
		cctx, cancel := context.WithTimeout(ctx, callTime)
		res, err := r.client.TimeToLive(cctx, id)
		cancel()
		if err == nil && res.TTL <= 0 {
			r.leases.drop(id)
		}
	}
	return true
}

// forLong is the lease for long, if it is used since then or later; 0 = there is
// none.
func (l *leases) forLong(since time.Time) clientv3.LeaseID {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.since.Before(since) {
		return 0
	}
	return l.long
}

func (l *leases) setLong(id clientv3.LeaseID, since time.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.long, l.since = id, since
}

// drop forgets a lease that etcd does not know any more: its routes are gone.
func (l *leases) drop(id clientv3.LeaseID) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.long == id {
		l.long = 0
		return
	}
	l.list = slices.DeleteFunc(l.list, func(x lease) bool { return x.id == id })
	for s, x := range l.of {
		if x.id == id {
			delete(l.of, s)
		}
	}
	l.lost = true
}

// losses reports once that a lease ended.
func (l *leases) losses() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	was := l.lost
	l.lost = false
	return was
}

// renew keeps the leases until ctx is done.
func (r *Routes) renew(ctx context.Context) {
	tick := time.NewTicker(renewEvery)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		for _, id := range r.leases.all() {
			cctx, cancel := context.WithTimeout(ctx, callTime)
			_, err := r.client.KeepAliveOnce(cctx, id)
			cancel()
			if errors.Is(err, rpctypes.ErrLeaseNotFound) {
				r.leases.drop(id)
			}
			if err != nil && ctx.Err() == nil {
				r.Log.Warn("a lease of routes was not renewed", zap.Error(err))
			}
		}
	}
}

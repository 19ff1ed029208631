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
	granting sync.Mutex // one grant at a time; guards long and since

	mu   sync.Mutex
	list []lease
	of   map[im.SessionID]clientv3.LeaseID
	lost bool // one ended, and with it its routes

	// long is for guards that outlive the process, and since when it is used.
	long  clientv3.LeaseID
	since time.Time
}

type lease struct {
	id    clientv3.LeaseID
	users int // sessions that have it
}

// lease is the one for a session: what it has, one with room, or a new one. The
// empty session gets one without counting.
func (r *Routes) lease(ctx context.Context, session im.SessionID) (clientv3.LeaseID, error) {
	if id := r.leases.take(session); id != 0 {
		return id, nil
	}
	r.leases.granting.Lock()
	defer r.leases.granting.Unlock()
	if id := r.leases.take(session); id != 0 {
		return id, nil
	}
	ctx, cancel := context.WithTimeout(ctx, callTime)
	defer cancel()
	res, err := r.client.Grant(ctx, int64(leaseTime/time.Second))
	if err != nil {
		return 0, err
	}
	r.leases.add(res.ID)
	return r.leases.take(session), nil
}

// longLease is one that ends when the logins of a guard that is written now are
// forgotten, some hours later at most. It is never renewed; a new one takes its place
// from time to time.
func (r *Routes) longLease(ctx context.Context) (clientv3.LeaseID, error) {
	r.leases.granting.Lock()
	defer r.leases.granting.Unlock()
	if now := r.now(); r.leases.long == 0 || now.Sub(r.leases.since) > longTime {
		ctx, cancel := context.WithTimeout(ctx, callTime)
		defer cancel()
		res, err := r.client.Grant(ctx, int64((store.LoginTTL+2*longTime)/time.Second))
		if err != nil {
			return 0, err
		}
		r.leases.long, r.leases.since = res.ID, now
	}
	return r.leases.long, nil
}

func (l *leases) add(id clientv3.LeaseID) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.list = append(l.list, lease{id: id})
}

func (l *leases) take(session im.SessionID) clientv3.LeaseID {
	l.mu.Lock()
	defer l.mu.Unlock()
	if id, ok := l.of[session]; ok {
		return id
	}
	for i := range l.list {
		if l.list[i].users < perLease {
			if session != "" {
				l.list[i].users++
				l.of[session] = l.list[i].id
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

// free gives a session's share back.
func (l *leases) free(session im.SessionID) {
	l.mu.Lock()
	defer l.mu.Unlock()
	id, ok := l.of[session]
	if !ok {
		return
	}
	delete(l.of, session)
	for i := range l.list {
		if l.list[i].id == id {
			l.list[i].users--
		}
	}
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
// it went back to an older state, and forgets the one for long and those of ids that
// are gone.
func (r *Routes) gone(ctx context.Context, err error, ids ...clientv3.LeaseID) bool {
	if !errors.Is(err, rpctypes.ErrLeaseNotFound) {
		return false
	}
	slices.Sort(ids)
	for _, id := range append(slices.Compact(ids), r.leases.forLong()) {
		cctx, cancel := context.WithTimeout(ctx, callTime)
		res, err := r.client.TimeToLive(cctx, id)
		cancel()
		if err == nil && res.TTL <= 0 {
			r.leases.drop(id)
		}
	}
	return true
}

// forLong is the lease for long; 0 = there is none.
func (l *leases) forLong() clientv3.LeaseID {
	l.granting.Lock()
	defer l.granting.Unlock()
	return l.long
}

// drop forgets a lease that etcd does not know any more: its routes are gone.
func (l *leases) drop(id clientv3.LeaseID) {
	l.granting.Lock()
	long := l.long == id
	if long {
		l.long = 0
	}
	l.granting.Unlock()
	if long {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.list = slices.DeleteFunc(l.list, func(x lease) bool { return x.id == id })
	for s, x := range l.of {
		if x == id {
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

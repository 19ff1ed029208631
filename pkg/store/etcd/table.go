package etcd

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"

	"github.com/imdhq/imd/pkg/backoff"
	"github.com/imdhq/imd/pkg/im"
	"github.com/imdhq/imd/pkg/store"
)

const (
	// progressEvery is how often etcd is asked how far the watch is, and
	// staleAfter when a watch without an answer is begun anew.
	progressEvery = 5 * time.Second
	staleAfter    = 15 * time.Second
	// readTime bounds reading all routes.
	readTime = 5 * time.Second
)

// table is the copy of all routes that the watch keeps.
type table struct {
	mu      sync.RWMutex
	read    bool // it was read once
	users   map[im.UserID]map[im.SessionID]store.Route
	count   int
	top     uint64 // the highest epoch that was seen
	rev     int64
	cluster uint64
	losses  int       // times that routes of this process got lost
	alive   time.Time // of the last sign of life of the watch
}

func (t *table) ready() bool {
	t.mu.RLock()
	defer t.mu.RUnlock()
	return t.read
}

func (t *table) size() int {
	t.mu.RLock()
	defer t.mu.RUnlock()
	return t.count
}

func (t *table) highest() uint64 {
	t.mu.RLock()
	defer t.mu.RUnlock()
	return t.top
}

func (t *table) raise(epoch uint64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.top = max(t.top, epoch)
}

func (t *table) lag() float64 {
	t.mu.RLock()
	defer t.mu.RUnlock()
	if !t.read {
		return 0
	}
	return time.Since(t.alive).Seconds()
}

func (t *table) memory() string {
	t.mu.RLock()
	defer t.mu.RUnlock()
	return fmt.Sprintf("%x/%d", t.cluster, t.losses)
}

// revision is how far the table is; false = it was not read yet.
func (t *table) revision() (int64, bool) {
	t.mu.RLock()
	defer t.mu.RUnlock()
	return t.rev, t.read
}

// wentBack counts a loss if etcd, asked when the table was at a revision, is at an
// earlier one or another cluster.
func (t *table) wentBack(had, now int64, cluster uint64) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	if now >= had && cluster == t.cluster || t.rev < had { // below: it was noticed meanwhile
		return false
	}
	t.losses++
	t.rev, t.cluster = now, cluster
	return true
}

func (t *table) of(users []im.UserID) (out []store.Route) {
	t.mu.RLock()
	defer t.mu.RUnlock()
	for _, u := range users {
		for _, r := range t.users[u] {
			out = append(out, r)
		}
	}
	return out
}

func (t *table) homes() (out []store.Home) {
	t.mu.RLock()
	defer t.mu.RUnlock()
	for _, routes := range t.users {
		for _, r := range routes {
			if !slices.Contains(out, r.Home()) {
				out = append(out, r.Home())
			}
		}
	}
	return out
}

// at lists the users with routes of a process.
func (t *table) at(h store.Home) (out []im.UserID) {
	t.mu.RLock()
	defer t.mu.RUnlock()
	for u, routes := range t.users {
		for _, r := range routes {
			if r.Home() == h {
				out = append(out, u)
				break
			}
		}
	}
	return out
}

func (t *table) set(r store.Route) {
	of := t.users[r.User]
	if of == nil {
		of = map[im.SessionID]store.Route{}
		t.users[r.User] = of
	}
	if _, had := of[r.Session]; !had {
		t.count++
	}
	of[r.Session] = r
	t.top = max(t.top, r.Epoch)
}

func (t *table) drop(u im.UserID, s im.SessionID) {
	of := t.users[u]
	if _, had := of[s]; !had {
		return
	}
	t.count--
	if delete(of, s); len(of) == 0 {
		delete(t.users, u)
	}
}

// follow keeps the table until ctx is done.
func (r *Routes) follow(ctx context.Context) {
	for ctx.Err() == nil {
		rev, err := r.readAll(ctx)
		if err == nil {
			err = r.watch(ctx, rev)
		}
		if ctx.Err() == nil {
			r.Log.Warn("the table of routes is read anew", zap.Error(err))
			_ = backoff.Sleep(ctx, 200*time.Millisecond)
		}
	}
}

// readAll replaces the table. A revision below one that was seen, another
// cluster, or routes of this process that are missing mean that something was
// lost.
func (r *Routes) readAll(ctx context.Context) (int64, error) {
	ctx, cancel := context.WithTimeout(ctx, readTime)
	defer cancel()
	res, err := r.client.Get(ctx, r.prefix, clientv3.WithPrefix())
	if err != nil {
		return 0, err
	}
	t := &r.table
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.read && (res.Header.Revision < t.rev || res.Header.ClusterId != t.cluster) {
		t.losses++
	}
	t.users, t.count = map[im.UserID]map[im.SessionID]store.Route{}, 0
	for _, kv := range res.Kvs {
		r.take(kv)
	}
	t.read, t.rev, t.cluster, t.alive = true, res.Header.Revision, res.Header.ClusterId, time.Now()
	r.missing()
	return res.Header.Revision, nil
}

// take puts one key into the table, which is locked.
func (r *Routes) take(kv *mvccpb.KeyValue) {
	u, s, ok := r.split(string(kv.Key))
	if !ok || s == "" {
		return
	}
	x, err := decode(u, s, kv.Value)
	if err != nil {
		r.Log.Warn("a route cannot be read", zap.Error(err))
		return
	}
	r.table.set(x)
}

// missing counts a loss if a lease of this process ended. The table is locked.
func (r *Routes) missing() {
	if r.leases.losses() {
		r.table.losses++
	}
}

// watch follows the changes after a revision; it returns why it ended. It begins
// at that revision and not behind it: etcd gives no sign of life to a watch whose
// first revision is yet to come.
func (r *Routes) watch(ctx context.Context, from int64) error {
	ctx, cancel := context.WithCancel(clientv3.WithRequireLeader(ctx))
	defer cancel()
	// The client waits here until etcd has made the watch, however long that is.
	opening := time.AfterFunc(staleAfter, cancel)
	events := r.client.Watch(ctx, r.prefix, clientv3.WithPrefix(), clientv3.WithRev(from), clientv3.WithProgressNotify())
	if !opening.Stop() {
		return fmt.Errorf("the watch was not made within %v", staleAfter)
	}
	tick := time.NewTicker(progressEvery)
	defer tick.Stop()
	heard := time.Now()
	for {
		select {
		case res, ok := <-events:
			if !ok {
				return fmt.Errorf("the watch ended: %w", context.Cause(ctx))
			}
			if err := res.Err(); err != nil {
				return err
			}
			heard = time.Now()
			r.apply(res)
		case <-r.reread:
			return errors.New("etcd went back to an older state")
		case <-tick.C:
			if time.Since(heard) > staleAfter {
				return fmt.Errorf("the watch is silent since %v", time.Since(heard).Round(time.Second))
			}
			if err := r.client.RequestProgress(ctx); err != nil {
				return err
			}
		}
	}
}

// userChange is one change of a user's keys.
type userChange struct {
	user im.UserID
	rev  int64
}

// apply takes events in. If a route of this process goes without a new guard of its
// user, nobody displaced or released it: it was lost.
func (r *Routes) apply(res clientv3.WatchResponse) {
	t := &r.table
	t.mu.Lock()
	defer t.mu.Unlock()
	guards, mine := map[userChange]bool{}, map[userChange]bool{}
	for _, e := range res.Events {
		u, s, ok := r.split(string(e.Kv.Key))
		switch {
		case !ok || e.Kv.ModRevision <= t.rev:
		case e.Type == mvccpb.PUT:
			r.take(e.Kv)
			if s == "" {
				guards[userChange{u, e.Kv.ModRevision}] = true
			}
		case s != "":
			t.drop(u, s)
			if r.leases.has(s) {
				mine[userChange{u, e.Kv.ModRevision}] = true
			}
		}
	}
	for c := range mine {
		if !guards[c] {
			t.losses++
			break
		}
	}
	t.rev, t.alive = max(t.rev, res.Header.Revision), time.Now()
	r.missing()
}

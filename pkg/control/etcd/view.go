package etcd

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"

	"github.com/imdhq/imd/pkg/backoff"
	"github.com/imdhq/imd/pkg/control"
)

// lister is the part of the etcd client that a follower needs.
type lister interface {
	Get(ctx context.Context, key string, opts ...clientv3.OpOption) (*clientv3.GetResponse, error)
	Watch(ctx context.Context, key string, opts ...clientv3.OpOption) clientv3.WatchChan
	RequestProgress(ctx context.Context) error
}

// update is a new copy and what led to it.
type update struct {
	next replica
	// events are what changed, by rising revision; none if all was read or only
	// the revision moved.
	events []*clientv3.Event
	whole  bool // all was read
	direct bool // from etcd itself
}

// follower keeps a copy of the records of an area and hands it on. One
// goroutine, run, changes it.
type follower struct {
	etcd   lister
	area   control.Area
	prefix string
	timing timing
	pulse  *pulse
	read   reader // nil = plain
	// took gets each new copy. An error means that it cannot be right, and that all
	// must be read again.
	took func(update) error
	// checked gets what etcd has at the revision of the copy, once a minute. An error
	// means what that of took does.
	checked  func(replica) error
	away     func()                // is told when etcd cannot be reached
	noticed  func(*clientv3.Event) // sees every event of etcd itself
	log      *zap.Logger
	upstream control.Feed // asked in place of etcd; nil = etcd is
	// own reports whether etcd is to be followed although there is an upstream, and
	// a channel that is closed when that changes; nil = it is not.
	own func() (bool, <-chan struct{})

	direct bool // cur comes from etcd itself
	cur    replica
	stale  bool
	behind int // reads in a row that were behind cur

	mu     sync.Mutex // guards what stats reads
	heard  time.Time
	rev    int64
	newest int64
	gone   bool // stale, for stats
	drift  uint64
	resync map[string]uint64
	why    error // of the last failure to read; nil after a success
}

// newFollower follows the keys of an area below root.
func newFollower(etcd lister, root string, area control.Area, t timing, p *pulse, log *zap.Logger) *follower {
	return &follower{
		etcd: etcd, area: area, prefix: root + string(area) + "/", timing: t, pulse: p, log: log.With(zap.String("area", string(area))), direct: true,
		took: func(update) error { return nil }, checked: func(replica) error { return nil },
		away: func() {}, noticed: func(*clientv3.Event) {}, own: func() (bool, <-chan struct{}) { return false, nil },
		resync: make(map[string]uint64),
	}
}

var errSilent = errors.New("nothing was heard for too long")

// resyncError ends a watch so that everything is read again.
type resyncError struct {
	cause string // one of control.ResyncCauses
	err   error
}

// Error names the cause.
func (e *resyncError) Error() string {
	if e.err == nil {
		return e.cause
	}
	return fmt.Sprintf("%s: %v", e.cause, e.err)
}

// Unwrap gives what etcd said.
func (e *resyncError) Unwrap() error { return e.err }

// run keeps the copy current until ctx is done: from the upstream if there is
// one, and from etcd while that fails or own says so.
func (f *follower) run(ctx context.Context) {
	if f.upstream == nil {
		f.attend(ctx)
		return
	}
	for ctx.Err() == nil {
		own, changed := f.own()
		if own {
			f.attendFor(ctx, 0, changed)
			continue
		}
		if f.subscribe(ctx, changed) {
			f.log.Warn("no node hands the registry on; following etcd for a while")
			f.attendFor(ctx, backoff.Spread(f.timing.detour, 0.2, rand.Float64()), nil)
		}
	}
}

// attendFor follows etcd itself for some time, 0 = without end, or until a
// channel is closed.
func (f *follower) attendFor(ctx context.Context, d time.Duration, until <-chan struct{}) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	if d > 0 {
		defer time.AfterFunc(d, cancel).Stop()
	}
	defer cancelled(cancel, until)()
	if !f.direct {
		f.cur.records = nil // read all
		f.direct = true
	}
	f.attend(ctx)
}

// cancelled calls cancel when a channel is closed, until stop is called.
func cancelled(cancel context.CancelFunc, when <-chan struct{}) (stop func()) {
	quit := make(chan struct{})
	go func() {
		select {
		case <-when:
			cancel()
		case <-quit:
		}
	}()
	return func() { close(quit) }
}

// attend follows etcd itself until ctx is done.
func (f *follower) attend(ctx context.Context) {
	attempt := 0
	loaded := f.cur.records != nil // read at start; the watch goes on from there
	for ctx.Err() == nil {
		if loaded {
			loaded = false
		} else if err := f.load(ctx); err != nil {
			if ctx.Err() != nil {
				return
			}
			f.lost(err)
			f.log.Warn("the registry cannot be read; keeping the last copy", zap.Int("attempt", attempt), zap.Error(err))
			_ = pauses.Sleep(ctx, attempt) // the loop looks at ctx
			attempt++
			continue
		}
		start := time.Now()
		err := f.follow(ctx)
		if ctx.Err() != nil {
			return
		}
		f.count(err)
		if time.Since(start) > f.timing.stale {
			attempt = 0
		}
		_ = pauses.Sleep(ctx, attempt)
		attempt = min(attempt+1, 3)
	}
}

// load reads everything and publishes it.
func (f *follower) load(ctx context.Context) error {
	resp, err := f.get(ctx)
	if err != nil {
		return fmt.Errorf("read all records: %w", err)
	}
	h := resp.Header
	switch f.cur.judge(h.Revision, h.ClusterId, f.behind) {
	case ignoreIt:
		f.behind++
		return fmt.Errorf("etcd answered at revision %d, which is behind %d", h.Revision, f.cur.rev)
	case rebuild:
		f.count(&resyncError{cause: control.ResyncRestored})
		f.cur.history++
	}
	f.behind = 0
	next := replicaOf(f.read, h.Revision, h.ClusterId, resp.Kvs)
	next.history = f.cur.history
	f.log.Debug("registry read", zap.Int64("rev", next.rev), zap.Int("changed", f.cur.differences(next)))
	for k, rec := range next.records {
		if !rec.ok {
			f.log.Warn("a record cannot be read and is left out", zap.String("key", k))
		}
	}
	f.mu.Lock()
	f.newest = h.Revision // may be lower than before after a restore
	f.mu.Unlock()
	return f.set(update{next: next, whole: true})
}

func (f *follower) get(ctx context.Context, opts ...clientv3.OpOption) (*clientv3.GetResponse, error) {
	ctx, cancel := context.WithTimeout(ctx, callLimit)
	defer cancel()
	return f.etcd.Get(ctx, f.prefix, append(opts, clientv3.WithPrefix())...)
}

// follow applies changes from the copy's revision on until something calls for
// reading everything again. It watches from the revision that the copy has and
// not from the next one: etcd gives no sign of life to a watch whose first
// revision is yet to come, nor to any other watch of its stream.
func (f *follower) follow(ctx context.Context) error {
	ctx, cancel := context.WithCancel(clientv3.WithRequireLeader(ctx))
	defer cancel()
	// The client waits here until etcd has made the watch, however long that is.
	opening := time.AfterFunc(f.timing.stale, cancel)
	events := f.etcd.Watch(ctx, f.prefix, clientv3.WithPrefix(), clientv3.WithRev(f.cur.rev),
		clientv3.WithProgressNotify(), clientv3.WithCreatedNotify())
	if !opening.Stop() {
		f.lost(errSilent)
		return &resyncError{cause: control.ResyncStale, err: errSilent}
	}
	defer f.pulse.join()()
	silence := time.NewTimer(f.timing.stale)
	defer silence.Stop()
	verify := time.NewTimer(backoff.Spread(f.timing.reconcile, 0.2, rand.Float64()))
	defer verify.Stop()
	for {
		select {
		case resp, ok := <-events:
			if !ok {
				return &resyncError{cause: control.ResyncBroken, err: errors.New("the watch ended")}
			}
			if err := f.hear(resp); err != nil {
				return err
			}
			silence.Reset(f.timing.stale)
		case <-silence.C:
			f.lost(errSilent)
			return &resyncError{cause: control.ResyncStale, err: errSilent}
		case <-verify.C:
			if err := f.verify(ctx); err != nil {
				return err
			}
			verify.Reset(backoff.Spread(f.timing.reconcile, 0.2, rand.Float64()))
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// hear takes in one answer of the watch.
func (f *follower) hear(resp clientv3.WatchResponse) error {
	if resp.CompactRevision != 0 {
		return &resyncError{cause: control.ResyncCompacted, err: resp.Err()}
	}
	if err := resp.Err(); err != nil {
		return &resyncError{cause: control.ResyncBroken, err: err}
	}
	if resp.Header.ClusterId != 0 && resp.Header.ClusterId != f.cur.cluster {
		return &resyncError{cause: control.ResyncRestored}
	}
	f.saw(resp.Header.Revision)
	events := slices.DeleteFunc(resp.Events, func(ev *clientv3.Event) bool { return ev.Kv.ModRevision <= f.cur.rev })
	switch {
	case len(events) > 0:
		for _, ev := range events {
			f.noticed(ev)
		}
		return f.set(update{next: f.cur.apply(events), events: events})
	case resp.IsProgressNotify():
		return f.set(update{next: f.cur.reached(resp.Header.Revision)})
	}
	return nil
}

// verify compares the copy with what etcd says it should be at its revision,
// so that changes still on their way do not look like a difference.
func (f *follower) verify(ctx context.Context) error {
	resp, err := f.get(ctx, clientv3.WithRev(f.cur.rev))
	switch {
	case errors.Is(err, rpctypes.ErrCompacted):
		return &resyncError{cause: control.ResyncCompacted, err: err}
	case err != nil:
		f.lost(err)
		return &resyncError{cause: control.ResyncBroken, err: fmt.Errorf("check the view: %w", err)}
	}
	f.saw(resp.Header.Revision)
	return f.compare(replicaOf(f.read, f.cur.rev, f.cur.cluster, resp.Kvs))
}

// compare looks for differences between the copy and what it should be.
func (f *follower) compare(want replica) error {
	err := f.checked(want)
	n := f.cur.differences(want)
	if n == 0 {
		return err
	}
	f.mu.Lock()
	f.drift += uint64(n)
	f.mu.Unlock()
	f.log.Error("the copy of the registry differs from etcd; reading it again", zap.Int("records", n), zap.Int64("rev", f.cur.rev))
	return &resyncError{cause: control.ResyncDrift}
}

// set hands on a copy that is current.
func (f *follower) set(u update) error {
	u.direct = f.direct
	f.cur, f.stale = u.next, false
	f.mu.Lock()
	f.heard, f.rev, f.gone, f.why = time.Now(), u.next.rev, false, nil
	f.newest = max(f.newest, u.next.rev)
	f.mu.Unlock()
	return f.took(u)
}

// lost notes that etcd cannot be reached.
func (f *follower) lost(err error) {
	f.mu.Lock()
	f.gone, f.why = true, err
	f.mu.Unlock()
	if !f.stale {
		f.stale = true
		f.away()
	}
}

// saw notes that etcd has reached a revision.
func (f *follower) saw(rev int64) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.newest = max(f.newest, rev)
}

// count notes why everything is read again.
func (f *follower) count(err error) {
	cause := control.ResyncBroken
	var r *resyncError
	if errors.As(err, &r) {
		cause = r.cause
	}
	f.mu.Lock()
	f.resync[cause]++
	f.mu.Unlock()
	f.log.Info("reading the registry again", zap.Error(err))
}

// stats adds what the follower knows. Of the nodes it tells the state too.
func (f *follower) stats(s *control.Stats) {
	f.mu.Lock()
	defer f.mu.Unlock()
	s.Drift += f.drift
	if s.Resyncs == nil {
		s.Resyncs = map[string]uint64{}
	}
	for k, v := range f.resync {
		s.Resyncs[k] += v
	}
	if f.area != control.AreaNodes {
		return
	}
	s.Stale, s.Heard, s.Revision, s.Newest = f.gone, f.heard, f.rev, f.newest
	if f.why != nil {
		s.Trouble = short(f.why)
	}
}

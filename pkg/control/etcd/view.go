package etcd

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
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

// follower keeps a copy of the records below a prefix and publishes it. One
// goroutine, run, changes it.
type follower struct {
	etcd     lister
	prefix   string
	timing   timing
	listed   func(r replica, direct bool) // gets each new copy; direct = from etcd itself
	away     func()                       // is told when etcd cannot be reached
	noticed  func(*clientv3.Event)        // sees every event
	log      *zap.Logger
	upstream control.Feed // asked in place of etcd; nil = etcd is

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

func newFollower(etcd lister, prefix string, t timing, log *zap.Logger) *follower {
	return &follower{
		etcd: etcd, prefix: prefix, timing: t, log: log,
		direct: true, listed: func(replica, bool) {}, away: func() {}, noticed: func(*clientv3.Event) {},
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

// run keeps the copy current until ctx is done.
func (f *follower) run(ctx context.Context) {
	for f.upstream != nil && ctx.Err() == nil {
		f.direct = false
		f.subscribe(ctx)
		detour, cancel := context.WithTimeout(ctx, backoff.Spread(f.timing.detour, 0.2, rand.Float64()))
		f.log.Warn("no node hands the registry on; following etcd for a while")
		f.cur.records = nil // read all
		f.direct = true
		f.attend(detour)
		cancel()
	}
	f.direct = true
	f.attend(ctx)
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
			f.log.Warn("the cluster view cannot be read; keeping the last one", zap.Int("attempt", attempt), zap.Error(err))
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
	}
	f.behind = 0
	next := replicaOf(h.Revision, h.ClusterId, resp.Kvs)
	f.log.Debug("cluster view read", zap.Int64("rev", next.rev), zap.Int("changed", f.cur.differences(next)))
	for k, rec := range next.records {
		if !rec.ok {
			f.log.Warn("a node record cannot be read and is left out", zap.String("key", k))
		}
	}
	f.mu.Lock()
	f.newest = h.Revision // may be lower than before after a restore
	f.mu.Unlock()
	f.set(next)
	return nil
}

func (f *follower) get(ctx context.Context, opts ...clientv3.OpOption) (*clientv3.GetResponse, error) {
	ctx, cancel := context.WithTimeout(ctx, callLimit)
	defer cancel()
	return f.etcd.Get(ctx, f.prefix, append(opts, clientv3.WithPrefix())...)
}

// follow applies changes from the copy's revision on until something calls for
// reading everything again.
func (f *follower) follow(ctx context.Context) error {
	ctx, cancel := context.WithCancel(clientv3.WithRequireLeader(ctx))
	defer cancel()
	events := f.etcd.Watch(ctx, f.prefix, clientv3.WithPrefix(), clientv3.WithRev(f.cur.rev+1),
		clientv3.WithProgressNotify(), clientv3.WithCreatedNotify())
	ask := time.NewTimer(f.timing.progress)
	defer ask.Stop()
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
			ask.Reset(f.timing.progress) // one answer serves every watch of the stream
		case <-ask.C:
			if err := f.ask(ctx); err != nil {
				return err
			}
			ask.Reset(f.timing.progress)
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
	switch {
	case len(resp.Events) > 0:
		for _, ev := range resp.Events {
			f.noticed(ev)
		}
		f.set(f.cur.apply(resp.Events))
	case resp.IsProgressNotify():
		f.set(f.cur.reached(resp.Header.Revision))
	}
	return nil
}

// ask requests a sign of life. It must carry what the watch's context carries,
// or the answer goes to another stream.
func (f *follower) ask(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, callLimit)
	defer cancel()
	if err := f.etcd.RequestProgress(ctx); err != nil && !errors.Is(err, context.DeadlineExceeded) {
		return &resyncError{cause: control.ResyncBroken, err: err}
	}
	return nil // without an answer the silence will end the watch
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
	n := f.cur.differences(replicaOf(f.cur.rev, f.cur.cluster, resp.Kvs))
	if n == 0 {
		return nil
	}
	f.mu.Lock()
	f.drift += uint64(n)
	f.mu.Unlock()
	f.log.Error("the cluster view differs from etcd; reading it again", zap.Int("records", n), zap.Int64("rev", f.cur.rev))
	return &resyncError{cause: control.ResyncDrift}
}

// set publishes a copy that is current.
func (f *follower) set(next replica) {
	f.cur, f.stale = next, false
	f.mu.Lock()
	f.heard, f.rev, f.gone, f.why = time.Now(), next.rev, false, nil
	f.newest = max(f.newest, next.rev)
	f.mu.Unlock()
	f.listed(next, f.direct)
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
	f.log.Info("reading the cluster view again", zap.Error(err))
}

// stats adds what the follower knows.
func (f *follower) stats(s *control.Stats) {
	f.mu.Lock()
	defer f.mu.Unlock()
	s.Stale, s.Heard, s.Revision, s.Newest, s.Drift = f.gone, f.heard, f.rev, f.newest, f.drift
	if f.why != nil {
		s.Trouble = short(f.why)
	}
	s.Resyncs = make(map[string]uint64, len(f.resync))
	for k, v := range f.resync {
		s.Resyncs[k] = v
	}
}

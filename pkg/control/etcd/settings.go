package etcd

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"time"

	"go.etcd.io/etcd/api/v3/mvccpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"

	"github.com/imdhq/imd/pkg/backoff"
	"github.com/imdhq/imd/pkg/settings"
)

// settingsFollower feeds the documents of settings to settings.Live: a full
// read, then a watch from the next revision, grouped by revision. What it means
// is decided there. One goroutine, run, uses it.
type settingsFollower struct {
	etcd   lister
	prefix string
	timing timing
	live   *settings.Live
	log    *zap.Logger
	loaded bool // read once, before run
}

// rereadError ends a watch so that everything is read again.
type rereadError struct{ cause string }

// Error names the cause.
func (e rereadError) Error() string { return "read again: " + e.cause }

// load reads all documents and feeds them. An error means that nothing was
// read, or that it was older than what is known.
func (f *settingsFollower) load(ctx context.Context) error {
	resp, err := f.get(ctx)
	if err != nil {
		return fmt.Errorf("read the settings: %w", err)
	}
	ev := settings.Read{Revision: resp.Header.Revision, Cluster: resp.Header.ClusterId, Records: f.records(resp.Kvs)}
	if cause := f.live.Feed(ev); cause != "" {
		return rereadError{cause}
	}
	f.loaded = true
	return nil
}

func (f *settingsFollower) get(ctx context.Context, opts ...clientv3.OpOption) (*clientv3.GetResponse, error) {
	ctx, cancel := context.WithTimeout(ctx, callLimit)
	defer cancel()
	return f.etcd.Get(ctx, f.prefix, append(opts, clientv3.WithPrefix())...)
}

func (f *settingsFollower) records(kvs []*mvccpb.KeyValue) []settings.Record {
	out := make([]settings.Record, 0, len(kvs))
	for _, kv := range kvs {
		out = append(out, f.record(kv))
	}
	return out
}

func (f *settingsFollower) record(kv *mvccpb.KeyValue) settings.Record {
	return settings.Record{Section: strings.TrimPrefix(string(kv.Key), f.prefix), Version: kv.Version, Mod: kv.ModRevision, Raw: kv.Value}
}

// run keeps the settings current until ctx is done. While etcd is away the last
// ones stay in force.
func (f *settingsFollower) run(ctx context.Context) {
	attempt := 0
	for ctx.Err() == nil {
		var err error
		if !f.loaded {
			err = f.load(ctx)
		}
		if err == nil {
			start := time.Now()
			err = f.follow(ctx)
			if time.Since(start) > f.timing.stale {
				attempt = 0
			}
		}
		f.loaded = false
		if ctx.Err() != nil {
			return
		}
		f.log.Info("reading the settings again", zap.Int("attempt", attempt), zap.Error(err))
		_ = pauses.Sleep(ctx, attempt) // the loop looks at ctx
		attempt = min(attempt+1, 4)
	}
}

// follow feeds changes until something calls for reading everything again.
func (f *settingsFollower) follow(ctx context.Context) error {
	ctx, cancel := context.WithCancel(clientv3.WithRequireLeader(ctx))
	defer cancel()
	events := f.etcd.Watch(ctx, f.prefix, clientv3.WithPrefix(), clientv3.WithRev(f.live.State().Head()+1),
		clientv3.WithProgressNotify(), clientv3.WithCreatedNotify())
	ask := time.NewTicker(f.timing.progress)
	defer ask.Stop()
	silence := time.NewTimer(f.timing.stale)
	defer silence.Stop()
	check := time.NewTimer(backoff.Spread(f.timing.reconcile, 0.2, rand.Float64()))
	defer check.Stop()
	for {
		select {
		case resp, ok := <-events:
			if !ok {
				return errors.New("the watch ended")
			}
			if err := f.hear(resp); err != nil {
				return err
			}
			silence.Reset(f.timing.stale)
		case <-ask.C: // must carry what the watch's context carries, or the answer goes to another stream
			actx, stop := context.WithTimeout(ctx, callLimit)
			err := f.etcd.RequestProgress(actx)
			stop()
			if err != nil && !errors.Is(err, context.DeadlineExceeded) {
				return err
			}
		case <-silence.C:
			return fmt.Errorf("nothing was heard for %v", f.timing.stale)
		case <-check.C:
			if err := f.check(ctx); err != nil {
				return err
			}
			check.Reset(backoff.Spread(f.timing.reconcile, 0.2, rand.Float64()))
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// hear takes in one answer of the watch, which holds whole revisions.
func (f *settingsFollower) hear(resp clientv3.WatchResponse) error {
	if err := resp.Err(); err != nil {
		return err // compacted, no leader, closed
	}
	if state := f.live.State(); !state.Of(resp.Header.ClusterId) {
		return rereadError{settings.CauseRestored}
	}
	f.live.Heard()
	for i := 0; i < len(resp.Events); {
		rev := resp.Events[i].Kv.ModRevision
		c := settings.Changed{Revision: rev}
		for ; i < len(resp.Events) && resp.Events[i].Kv.ModRevision == rev; i++ {
			r := f.record(resp.Events[i].Kv)
			if resp.Events[i].Type == clientv3.EventTypeDelete {
				c.Deletes = append(c.Deletes, r.Section)
			} else {
				c.Puts = append(c.Puts, r)
			}
		}
		if cause := f.live.Feed(c); cause != "" {
			return rereadError{cause}
		}
	}
	if resp.IsProgressNotify() {
		f.live.Feed(settings.Reached{Revision: resp.Header.Revision})
	}
	return nil
}

// check compares what is known with what etcd had at that revision, so that
// changes on their way do not look like a difference.
func (f *settingsFollower) check(ctx context.Context) error {
	head := f.live.State().Head()
	resp, err := f.get(ctx, clientv3.WithRev(head))
	if errors.Is(err, rpctypes.ErrCompacted) {
		return f.load(ctx)
	}
	if err != nil {
		return fmt.Errorf("check the settings: %w", err)
	}
	if cause := f.live.Feed(settings.Check{Revision: head, Records: f.records(resp.Kvs)}); cause != "" {
		return rereadError{cause}
	}
	return nil
}

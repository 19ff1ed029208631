package etcd

import (
	"context"
	"math/rand/v2"
	"time"

	"go.uber.org/zap"

	"github.com/imdhq/imd/pkg/backoff"
	"github.com/imdhq/imd/pkg/control"
)

const (
	feedWait  = 10 * time.Second // of one long poll
	feedGrace = 2 * time.Second  // for its answer
)

// feedPauses are between questions that failed.
var feedPauses = backoff.Policy{Base: 100 * time.Millisecond, Max: time.Second}

// subscribe keeps the copy current from the upstream, until that has failed for
// longer than patience or ctx is done. Once in a while it asks for everything
// and compares, as a watch is checked.
func (f *follower) subscribe(ctx context.Context) {
	patience := f.timing.patience + time.Duration(rand.Float64()*float64(f.timing.patience/2))
	good, attempt := time.Now(), 0
	check := time.Now().Add(backoff.Spread(f.timing.reconcile, 0.2, rand.Float64()))
	for ctx.Err() == nil {
		at := control.Cursor{Revision: f.cur.rev, Cluster: f.cur.cluster}
		whole := f.cur.records == nil || !time.Now().Before(check)
		if whole {
			at = control.Cursor{}
		}
		b, err := f.poll(ctx, at)
		if err == nil && f.accept(b, whole) {
			good, attempt = time.Now(), 0
			if whole {
				check = time.Now().Add(backoff.Spread(f.timing.reconcile, 0.2, rand.Float64()))
			}
			continue
		}
		if ctx.Err() != nil || time.Since(good) > patience {
			return
		}
		f.log.Debug("the registry could not be had from another node", zap.Error(err))
		_ = feedPauses.Sleep(ctx, attempt) // the loop looks at ctx
		attempt++
	}
}

func (f *follower) poll(ctx context.Context, at control.Cursor) (control.Batch, error) {
	ctx, cancel := context.WithTimeout(ctx, feedWait+feedGrace)
	defer cancel()
	return f.upstream.Changes(ctx, at, feedWait)
}

// accept takes in a batch, unless it is from a node that is behind what we have.
func (f *follower) accept(b control.Batch, whole bool) bool {
	switch f.cur.judge(b.Revision, b.Cluster, f.behind) {
	case ignoreIt:
		f.behind++
		return false
	case rebuild:
		if !b.Full {
			return false
		}
		f.count(&resyncError{cause: control.ResyncRestored})
	}
	f.behind = 0
	next := f.cur.take(f.prefix, b)
	if whole && f.cur.records != nil && next.rev == f.cur.rev && next.cluster == f.cur.cluster {
		if n := f.cur.differences(next); n > 0 {
			f.mu.Lock()
			f.drift += uint64(n)
			f.mu.Unlock()
			f.count(&resyncError{cause: control.ResyncDrift})
		}
	}
	f.set(next)
	return true
}

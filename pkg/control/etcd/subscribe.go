package etcd

import (
	"context"
	"errors"
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

// subscribe keeps the copy current from the upstream, until ctx is done, until is
// closed, or the upstream has failed for longer than patience, which it reports.
// Once in a while it asks for everything and compares, as a watch is checked.
func (f *follower) subscribe(ctx context.Context, until <-chan struct{}) (failed bool) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer cancelled(cancel, until)()
	f.direct = false
	patience := f.timing.patience + time.Duration(rand.Float64()*float64(f.timing.patience/2))
	good, attempt := time.Now(), 0
	check := time.Now().Add(backoff.Spread(f.timing.reconcile, 0.2, rand.Float64()))
	whole := f.cur.records == nil
	for ctx.Err() == nil {
		due := !time.Now().Before(check)
		b, err := f.poll(ctx, whole || due)
		if err == nil {
			err = f.accept(b, due)
		}
		if err == nil {
			good, attempt, whole = time.Now(), 0, false
			if due {
				check = time.Now().Add(backoff.Spread(f.timing.reconcile, 0.2, rand.Float64()))
			}
			continue
		}
		if ctx.Err() != nil {
			return false
		}
		if time.Since(good) > patience {
			return true
		}
		if r := (*resyncError)(nil); errors.As(err, &r) {
			whole = true
		}
		f.log.Debug("the registry could not be had from another node", zap.Error(err))
		_ = feedPauses.Sleep(ctx, attempt) // the loop looks at ctx
		attempt++
	}
	return false
}

// poll asks the upstream for what changed, or for everything.
func (f *follower) poll(ctx context.Context, whole bool) (control.Batch, error) {
	at := control.Cursor{Revision: f.cur.rev, Cluster: f.cur.cluster}
	if whole {
		at = control.Cursor{}
	}
	ctx, cancel := context.WithTimeout(ctx, feedWait+feedGrace)
	defer cancel()
	return f.upstream.Changes(ctx, f.area, at, feedWait)
}

// errLags says that the answering node is behind what we have.
var errLags = errors.New("the node that answered is behind")

// accept takes in a batch, unless it is from a node that is behind what we have.
// However often that happens, only etcd itself can tell that it went back.
func (f *follower) accept(b control.Batch, check bool) error {
	switch f.cur.judge(b.Revision, b.Cluster, 0) {
	case ignoreIt:
		return errLags
	case rebuild:
		if !b.Full {
			return &resyncError{cause: control.ResyncRestored}
		}
		f.count(&resyncError{cause: control.ResyncRestored})
		f.cur.history++
	}
	next, events := f.cur.take(f.prefix, b)
	if check && f.cur.records != nil && next.rev == f.cur.rev && next.cluster == f.cur.cluster {
		if err := f.compare(next); err != nil {
			f.count(err)
		}
	}
	return f.set(update{next: next, events: events, whole: b.Full})
}

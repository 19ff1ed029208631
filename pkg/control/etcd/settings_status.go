package etcd

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"

	"github.com/imdhq/imd/pkg/backoff"
	"github.com/imdhq/imd/pkg/settings"
)

const (
	// statusTTL is the lease of a node's report; long, because nothing but a
	// list for people depends on it, and each renewal costs etcd a call.
	statusTTL   = time.Minute
	statusRenew = 20 * time.Second
	// statusGap is the least time between two reports, so that a flood of
	// changes does not become one of reports.
	statusGap = 200 * time.Millisecond
	// statusRevoke bounds giving up the lease at the end.
	statusRevoke = time.Second
)

// settingsReporter writes what this node has in force.
type settingsReporter struct {
	etcd *clientv3.Client
	key  string
	node string
	live *settings.Live
	log  *zap.Logger

	lease clientv3.LeaseID
	wrote settings.Status // last; its time does not count
}

// run reports until ctx is done, then takes the report away.
func (r *settingsReporter) run(ctx context.Context) {
	defer r.end()
	attempt := 0
	for ctx.Err() == nil {
		state, changed := r.live.Watch()
		wait := statusRenew
		if err := r.report(ctx, state); err != nil {
			if ctx.Err() != nil {
				return
			}
			r.log.Debug("the state of the settings was not reported", zap.Int("attempt", attempt), zap.Error(err))
			wait, changed = pauses.Pause(attempt), nil
			attempt = min(attempt+1, 6)
		} else {
			attempt = 0
		}
		t := time.NewTimer(wait)
		select {
		case <-changed:
		case <-t.C:
		case <-ctx.Done():
		}
		t.Stop()
		_ = backoff.Sleep(ctx, statusGap) // the loop looks at ctx
	}
}

// report keeps the lease and writes the report if it is not what was written
// last.
func (r *settingsReporter) report(ctx context.Context, s settings.State) error {
	ctx, cancel := context.WithTimeout(ctx, callLimit)
	defer cancel()
	status := settings.Status{Node: r.node, Applied: s.Applied()}
	status.Refused, status.Reason = s.Refused()
	if len(status.Reason) > 512 {
		status.Reason = status.Reason[:512]
	}
	if r.lease != 0 && status == r.wrote {
		_, err := r.etcd.KeepAliveOnce(ctx, r.lease)
		if errors.Is(err, rpctypes.ErrLeaseNotFound) {
			r.lease = 0
		} else {
			return err
		}
	}
	if r.lease == 0 {
		resp, err := r.etcd.Grant(ctx, seconds(statusTTL))
		if err != nil {
			return fmt.Errorf("lease: %w", err)
		}
		r.lease, r.wrote = resp.ID, settings.Status{}
	}
	full := status
	full.At = time.Now().UTC().Truncate(time.Millisecond)
	value, err := json.Marshal(full)
	if err != nil {
		return err
	}
	_, err = r.etcd.Put(ctx, r.key, string(value), clientv3.WithLease(r.lease))
	if errors.Is(err, rpctypes.ErrLeaseNotFound) {
		r.lease = 0
	}
	if err != nil {
		return fmt.Errorf("write: %w", err)
	}
	r.wrote = status
	return nil
}

// end revokes the lease; if that fails it ends by itself.
func (r *settingsReporter) end() {
	if r.lease == 0 {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), statusRevoke)
	defer cancel()
	_, _ = r.etcd.Revoke(ctx, r.lease)
}

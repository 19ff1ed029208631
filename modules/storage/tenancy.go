package storage

import (
	"context"
	"fmt"
	"strings"
	"time"

	"go.uber.org/zap"

	"github.com/imdhq/imd/pkg/backoff"
	"github.com/imdhq/imd/pkg/obs"
	"github.com/imdhq/imd/pkg/store"
)

const (
	// tenancyTime is how long a server counts as using the database without a word;
	// one that was killed keeps others out for so long.
	tenancyTime = 10 * time.Second
	// tenancyStep is how often it says so, and tenancyCall bounds that.
	tenancyStep = 3 * time.Second
	tenancyCall = 2 * time.Second
	// tenancyPause is how often a newcomer looks whether another server has gone.
	tenancyPause = 500 * time.Millisecond
	// alone begins the name of a server that is one node.
	alone = "node "
)

// tenancy is the use of a database by one server, so that two that know nothing of
// each other do not both take it: each would deliver to its own users only, and
// their schedulers would hinder each other. Nodes of two control planes with the same
// controlplane.cluster are taken for one server: the id of an etcd cluster would tell
// them apart, but is not known while etcd is away, and another one after a restore.
type tenancy struct {
	store  store.Occupiable
	server string
	log    *zap.Logger
}

// begin waits until the time of a server that was killed is over. Errors:
// store.ErrOtherServer if another one is there, which has its time prolonged; those of the
// store.
func (t *tenancy) begin(ctx context.Context) error {
	for first := (time.Time{}); ; {
		by, until, err := t.occupy(ctx)
		if err != nil || by == t.server {
			return err
		}
		switch {
		case first.IsZero():
			first = until
			t.log.Info("another server uses the database; if it was killed, its time is over soon", zap.String("server", by), zap.Duration("at_most", tenancyTime))
		case !until.Equal(first):
			return occupied(by)
		}
		if err := backoff.Sleep(ctx, tenancyPause); err != nil {
			return err
		}
	}
}

func (t *tenancy) occupy(ctx context.Context) (by string, until time.Time, err error) {
	ctx, cancel := context.WithTimeout(ctx, tenancyCall)
	defer cancel()
	return t.store.Occupy(ctx, t.server, tenancyTime)
}

// occupied is what an operator is told.
func occupied(by string) error {
	how := "have nodes share it by giving all of them the same controlplane.endpoints and storage.routes=redis"
	if !strings.HasPrefix(by, alone) {
		how = "give this node its controlplane.endpoints and storage.routes=redis"
	}
	return fmt.Errorf("%w: %s, whose control plane this node is not part of, so that their users would not reach each other; %s, or give this one a database of its own",
		store.ErrOtherServer, by, how)
}

// keep says so again and again until ctx is done. Error: store.ErrOtherServer if
// another server has come, because this one was silent for too long.
func (t *tenancy) keep(ctx context.Context) error {
	tick := time.NewTicker(tenancyStep)
	defer tick.Stop()
	said, warned := time.Now(), false
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
		switch by, _, err := t.occupy(ctx); {
		case err == nil && by != t.server:
			return occupied(by)
		case err == nil:
			said, warned = time.Now(), false
		case ctx.Err() != nil:
		case !warned && time.Since(said) > tenancyTime:
			warned = true
			t.log.Warn("the database could not be told for a while that it is used: another server could take it, and this one would end; it is tried again",
				zap.Duration("since", time.Since(said)), obs.Err(err))
		default:
			t.log.Debug("the database was not told that it is used; it is tried again", obs.Err(err))
		}
	}
}

// end lets others in at once. Nodes of a cluster leave that to time: others of them
// may go on.
func (t *tenancy) end() {
	if !strings.HasPrefix(t.server, alone) {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), tenancyCall)
	defer cancel()
	if err := t.store.Vacate(ctx, t.server); err != nil {
		t.log.Info("the database was not told that this server has gone; another has to wait for a moment", obs.Err(err))
	}
}

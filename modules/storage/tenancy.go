package storage

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
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
	// planePatience is how long a newcomer waits for nodes that run to take what it
	// read in etcd for theirs: etcd may have come back empty a moment ago.
	planePatience = 15 * time.Second
	// alone begins the name of a server that is one node.
	alone = "node "
)

// tenancy is the use of a database by one server, so that two that know nothing of
// each other do not both take it: each would deliver to its own users only, and
// their schedulers would hinder each other. Two control planes with the same
// controlplane.cluster are told apart by the secret that the nodes of each share; it is
// put back into an etcd that has lost it, and goes along when etcd is moved.
type tenancy struct {
	store  store.Occupiable
	server string
	plane  func() string // the control plane; "" = not known yet, nil = the node has its own
	log    *zap.Logger
}

// planeOf names a control plane by its secret, which cannot be found out from it.
func planeOf(secret string) string {
	if secret == "" {
		return ""
	}
	sum := sha256.Sum256([]byte("control plane " + secret))
	return "plane " + hex.EncodeToString(sum[:8])
}

// begin waits until the time of a server that was killed is over. Errors:
// store.ErrOtherServer if another one is there, which has its time prolonged; those of the
// store.
func (t *tenancy) begin(ctx context.Context) error {
	if err := t.take(ctx, store.SeatServer, t.server, 0, occupied); err != nil {
		return err
	}
	if plane := t.known(); plane != "" {
		return t.take(ctx, store.SeatPlane, plane, planePatience, t.doubled)
	}
	return nil
}

// known is the control plane, if that is known.
func (t *tenancy) known() string {
	if t.plane == nil {
		return ""
	}
	return t.plane()
}

// take takes a seat, and gives up after patience if another one has its time prolonged.
func (t *tenancy) take(ctx context.Context, seat store.Seat, who string, patience time.Duration, taken func(by string) error) error {
	began := time.Now()
	for first := (time.Time{}); ; {
		by, until, err := t.occupy(ctx, seat, who)
		if err != nil || by == who {
			return err
		}
		switch {
		case first.IsZero():
			first = until
			t.log.Info(waits[seat], zap.String("by", by), zap.Duration("at_most", max(tenancyTime, patience)))
		case !until.Equal(first) && time.Since(began) >= patience:
			return taken(by)
		}
		if err := backoff.Sleep(ctx, tenancyPause); err != nil {
			return err
		}
		if seat == store.SeatServer {
			continue
		}
		if by, _, err := t.occupy(ctx, store.SeatServer, t.server); err != nil || by != t.server { // its time is shorter than this may take
			return cmp.Or(err, occupied(by))
		}
	}
}

// waits is what the log says while another one has a seat.
var waits = map[store.Seat]string{
	store.SeatServer: "another server uses the database; if it was killed, its time is over soon",
	store.SeatPlane:  "a cluster of this name on another etcd used the database last; waiting until its nodes have gone, or know the same secret",
}

func (t *tenancy) occupy(ctx context.Context, seat store.Seat, who string) (by string, until time.Time, err error) {
	ctx, cancel := context.WithTimeout(ctx, tenancyCall)
	defer cancel()
	return t.store.Occupy(ctx, seat, who, tenancyTime)
}

// doubled is what an operator is told of two control planes with one name.
func (t *tenancy) doubled(string) error {
	return fmt.Errorf("%w: another %s, on an etcd that this node does not use, so that their users would not reach each other; correct controlplane.endpoints, "+
		"or give this cluster a database of its own and a name of its own in controlplane.cluster; to move to another etcd, keep nodes.json in the data folders, or stop all nodes first",
		store.ErrOtherServer, t.server)
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
	said, warned, rivals := time.Now(), false, others{}
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
		rivals.compare(ctx, t)
		switch by, _, err := t.occupy(ctx, store.SeatServer, t.server); {
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

// compare says once that another control plane of the same name uses the database. It
// ends nobody: who came first is not known, and nodes of one cluster may disagree for a
// moment after etcd came back empty.
func (o *others) compare(ctx context.Context, t *tenancy) {
	plane := t.known()
	if plane == "" {
		return
	}
	by, until, err := t.occupy(ctx, store.SeatPlane, plane)
	switch {
	case err != nil: // keep tells of a database that is away
	case by == plane:
		*o = others{}
	case o.until.IsZero() || until.Equal(o.until): // perhaps it has gone
		o.until = until
	case !o.said:
		o.said = true
		t.log.Error("another cluster of the same name, on an etcd that this node does not use, uses the database; the users of the two do not reach each other",
			zap.String("server", t.server))
	}
}

// others is what a node knows of another control plane.
type others struct {
	until time.Time // of its time, at the last look; zero = it was not there
	said  bool      // that it is there
}

// end lets others in at once. Nodes of a cluster leave that to time: others of them
// may go on.
func (t *tenancy) end() {
	if !strings.HasPrefix(t.server, alone) {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), tenancyCall)
	defer cancel()
	if err := t.store.Vacate(ctx, store.SeatServer, t.server); err != nil {
		t.log.Info("the database was not told that this server has gone; another has to wait for a moment", obs.Err(err))
	}
}

package gateway

import (
	"context"
	"time"

	"github.com/imdhq/imd/pkg/failpoint"
	"github.com/imdhq/imd/pkg/im"
	"github.com/imdhq/imd/pkg/obs"
	v1 "github.com/imdhq/imd/proto/gen/internalv1"
)

// firstCompare is between tries of the first comparison: what is lost before it
// has succeeded is not compared.
const firstCompare = time.Second

// headsBatch is how many users one comparison names.
const headsBatch = 1000

// antiEntropy compares heads with state from time to time, so that a lost last
// delivery heals without a reconnect. It returns when ctx is done.
func (g *Gateway) antiEntropy(ctx context.Context) {
	version, failed := "", false // failed: so did the round before, and it is told
	t := time.NewTimer(0)
	defer t.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-t.C:
		}
		if v, err := g.compareHeads(ctx, version); err == nil {
			if version = v; failed {
				g.Log.Info("heads are compared again")
			}
			failed = false
		} else if ctx.Err() == nil && !failed {
			failed = true
			g.Log.Warn("heads are not compared; the round that succeeds makes up for it", obs.Err(err))
		}
		wait := time.Duration(float64(g.cfg.AntiEntropy.Interval) * jitter())
		if version == "" {
			wait = min(wait, firstCompare)
		}
		t.Reset(wait)
	}
}

// compareHeads makes one round: heads that changed since version go to the
// sessions that do not know them. It returns the version for the next round.
func (g *Gateway) compareHeads(ctx context.Context, version string) (next string, err error) {
	if failpoint.Bad(failpoint.NoAntiEntropy) {
		return "", nil
	}
	users := g.hub.online()
	for first := true; first || len(users) > 0; first = false {
		n := min(len(users), headsBatch)
		res, err := g.State.Heads(ctx, &v1.HeadsRequest{UserIds: users[:n], Version: version})
		if err != nil {
			return "", err
		}
		users = users[n:]
		if first {
			next = res.Version // of the earliest answer, so that no change falls between
			g.resync(res.DataEpoch)
		}
		for _, h := range res.Heads {
			for _, s := range g.hub.of(im.UserID(h.UserId)) {
				s.compare(h.ConversationId, h.Seq)
			}
		}
	}
	return next, nil
}

// resync ends the sessions that began under another data_epoch.
func (g *Gateway) resync(dataEpoch string) {
	if dataEpoch == "" {
		return
	}
	for _, s := range g.hub.all() {
		s.mu.Lock()
		if s.phase == online && s.dataEpoch != dataEpoch {
			s.endLocked("resync", endTexts["resync"], 0)
		}
		s.mu.Unlock()
	}
}

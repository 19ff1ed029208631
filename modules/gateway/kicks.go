package gateway

import (
	"context"
	"sync"
	"time"

	"go.uber.org/zap"

	"github.com/imdhq/imd/pkg/im"
	"github.com/imdhq/imd/pkg/obs"
	v1 "github.com/imdhq/imd/proto/gen/internalv1"
)

const (
	// kickSessions is how many sessions one call ends, and kicksWaiting how many
	// may wait for one node.
	kickSessions = 1000
	kicksWaiting = 50_000
	// kickFor is how long a node is tried, and kickPause the first pause between
	// two calls.
	kickFor   = 2 * time.Second
	kickPause = 50 * time.Millisecond
)

// kicks tells other gateways which of their sessions have been displaced. A call
// takes all that wait for one node, so that nobody who joins waits for a gateway
// that does not answer. Safe for concurrent use.
type kicks struct {
	peer func(im.NodeID) peerClient
	m    *metrics
	log  *zap.Logger
	ctx  context.Context // ends the calls
	// run starts a worker; false = the gateway ends.
	run func(func()) bool
	// closing says that nothing is tried again.
	closing func() bool

	mu      sync.Mutex
	waiting map[im.NodeID]map[string][]string // session ids by reason; there = somebody works on it
}

// add takes sessions of a node.
func (k *kicks) add(node im.NodeID, reason string, ids []string) {
	k.mu.Lock()
	defer k.mu.Unlock()
	all, busy := k.waiting[node]
	if len(all[reason])+len(ids) > kicksWaiting || !busy && !k.run(func() { k.work(node) }) {
		k.m.kicksLost.Add(float64(len(ids)))
		return
	}
	if !busy {
		if k.waiting == nil {
			k.waiting = map[im.NodeID]map[string][]string{}
		}
		all = map[string][]string{}
		k.waiting[node] = all
	}
	all[reason] = append(all[reason], ids...)
}

// take removes what goes into the next call; none = the worker is no worker any
// more.
func (k *kicks) take(node im.NodeID) (reason string, ids []string) {
	k.mu.Lock()
	defer k.mu.Unlock()
	all := k.waiting[node]
	for reason, ids := range all {
		n := min(len(ids), kickSessions)
		if all[reason] = ids[n:]; n == len(ids) {
			delete(all, reason)
		}
		return reason, ids[:n]
	}
	delete(k.waiting, node)
	return "", nil
}

func (k *kicks) work(node im.NodeID) {
	for reason, ids := k.take(node); len(ids) > 0; reason, ids = k.take(node) {
		if err := k.tell(node, reason, ids); err != nil {
			k.m.kicksLost.Add(float64(len(ids)))
			k.log.Warn("displaced sessions were not told; they find out with their next refresh",
				obs.Peer(string(node)), zap.Int("sessions", len(ids)), obs.Err(err))
		}
	}
}

// tell makes the call, and again while the node may come back.
func (k *kicks) tell(node im.NodeID, reason string, ids []string) error {
	until := time.Now().Add(kickFor)
	for wait := kickPause; ; wait *= 2 {
		_, err := k.peer(node).Kick(k.ctx, &v1.KickRequest{SessionIds: ids, Reason: reason})
		if err == nil || !im.Retryable(err) || k.closing() || time.Now().Add(wait).After(until) {
			return err
		}
		select {
		case <-k.ctx.Done():
			return err
		case <-time.After(wait):
		}
	}
}

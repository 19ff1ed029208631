package gateway

import (
	"errors"
	"sync/atomic"
	"testing"

	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/imdhq/imd/pkg/control"
	"github.com/imdhq/imd/pkg/im"
	v1 "github.com/imdhq/imd/proto/gen/internalv1"
	"github.com/imdhq/imd/sdk/go/gen/clientv1"
	"github.com/imdhq/imd/sdk/go/protocol"
)

// A leader that was followed, as this gateway has seen or been shown, has no
// effect here: its calls are refused before anything is done.
func TestLeadersThatWereFollowedAreRefused(t *testing.T) {
	t.Parallel()
	var seen atomic.Pointer[control.Leaders]
	seen.Store(&control.Leaders{})
	w := beginTuned(t, func(g *Gateway) { g.Leaders = seen.Load })
	c := w.session(t, protocol.Proto, "ann", "d")
	kick := func(token int64, reason string) error {
		_, err := w.peers.Gateway(testNode).Kick(t.Context(), &v1.KickRequest{UserId: "ann", Reason: reason, Leader: &v1.LeaderProof{Election: "scheduler", Token: token}})
		return err
	}
	refused := func(err error) bool {
		var e *im.Error
		return errors.As(err, &e) && e.Reason == clientv1.Reason_REASON_FORBIDDEN
	}
	seen.Store(&control.Leaders{All: []control.Leader{{Name: "scheduler", Token: 7}}})
	if err := kick(6, "kicked"); !refused(err) {
		t.Errorf("the one before the announced one: %v", err)
	}
	old := &v1.DeliverRequest{Leader: &v1.LeaderProof{Election: "scheduler", Token: 6}}
	if _, err := w.peers.Gateway(testNode).Deliver(t.Context(), old); !refused(err) {
		t.Errorf("its delivery: %v", err)
	}
	if c.Closed() {
		t.Error("a refused call ended a session")
	}
	if n := testutil.ToFloat64(w.g.m.staleLeaders); n != 2 {
		t.Errorf("%v calls are counted", n)
	}
	old.Leader.Token = 8 // a newer one, of which no announcement has come yet
	if _, err := w.peers.Gateway(testNode).Deliver(t.Context(), old); err != nil {
		t.Errorf("the next leader: %v", err)
	}
	if err := kick(7, "kicked"); !refused(err) {
		t.Errorf("the announced one after that: %v", err)
	}
	if err := kick(8, "kicked"); err != nil {
		t.Errorf("the next leader: %v", err)
	}
	wantBye(t, c, "kicked")
}

package peer

import (
	"testing"
	"time"

	"go.uber.org/zap"

	"github.com/imdhq/imd/pkg/control"
	"github.com/imdhq/imd/pkg/im"
	"github.com/imdhq/imd/pkg/tally"
	v1 "github.com/imdhq/imd/proto/gen/internalv1"
	"github.com/imdhq/imd/sdk/go/gen/clientv1"
)

// Only the newest leader is told, and believed.
func TestTallyIsForTheLeader(t *testing.T) {
	s := NewSet("n", zap.NewNop())
	ask := func(token, at int64) (*v1.TallyResponse, error) {
		r := &v1.TallyRequest{Leader: &v1.LeaderProof{Election: "scheduler", Token: token}}
		if at > 0 {
			r.Cluster = &v1.Tally{Token: token, AtMs: at}
		}
		return checker{s}.Tally(t.Context(), r)
	}
	if _, err := ask(3, 0); im.ReasonOf(err) != clientv1.Reason_REASON_FORBIDDEN {
		t.Errorf("a process that counts nothing: %v", err)
	}
	book := tally.New(time.Now)
	s.UseTally(book, func() *control.Leaders { return &control.Leaders{} })
	if _, err := (checker{s}).Tally(t.Context(), &v1.TallyRequest{}); im.ReasonOf(err) != clientv1.Reason_REASON_FORBIDDEN {
		t.Errorf("without a proof: %v", err)
	}
	if res, err := ask(3, 50); err != nil || res.Cluster != nil || res.NodeId != "n" {
		t.Errorf("%v, %v", res, err)
	}
	if _, err := ask(2, 90); im.ReasonOf(err) != clientv1.Reason_REASON_FORBIDDEN || book.Cluster().AtMs != 50 {
		t.Errorf("a leader that was followed: %v, kept %v", err, book.Cluster())
	}
	if res, err := ask(4, 0); err != nil || res.Cluster.GetAtMs() != 50 {
		t.Errorf("a new leader: %v, %v", res, err)
	}
	if all, err := s.Tally(t.Context(), &v1.TallyRequest{Leader: &v1.LeaderProof{Election: "scheduler", Token: 4}}); err != nil || len(all) != 1 || all[0].Told.BootId != "n" {
		t.Errorf("asked by itself: %v, %v", all, err)
	}
}

// A node that does not answer is named, and does not stop the others.
func TestTallyNamesTheSilent(t *testing.T) {
	w := newWorld(t, "a", "b")
	for _, n := range w.nodes {
		n.set.UseTally(tally.New(time.Now), func() *control.Leaders { return &control.Leaders{} })
	}
	w.caller.UseTally(tally.New(time.Now), func() *control.Leaders { return &control.Leaders{} })
	w.nodes[0].stop()
	all, err := w.caller.Tally(t.Context(), &v1.TallyRequest{Leader: &v1.LeaderProof{Election: "scheduler", Token: 1}})
	if err != nil || len(all) != 3 {
		t.Fatalf("%v, %v", all, err)
	}
	if all[0].Silent == "" || all[0].Told != nil || all[1].Silent != "" || all[1].Told == nil {
		t.Errorf("%+v", all)
	}
}

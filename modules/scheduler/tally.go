package scheduler

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/imdhq/imd/pkg/control"
	"github.com/imdhq/imd/pkg/failpoint"
	"github.com/imdhq/imd/pkg/im"
	"github.com/imdhq/imd/pkg/presence"
	"github.com/imdhq/imd/pkg/store"
	"github.com/imdhq/imd/pkg/tally"
	v1 "github.com/imdhq/imd/proto/gen/internalv1"
	"github.com/imdhq/imd/sdk/go/gen/clientv1"
)

const (
	// tallyEvery is how often all nodes are asked for what they counted.
	tallyEvery = 5 * time.Second
	// tallyLimit bounds it; a node has 500 ms.
	tallyLimit = 2 * time.Second
)

// tallies are the rounds of one term. The first asks the nodes what the leader
// before knew, and hands them the sum of that at once; each other one hands over the
// sum of the round before.
func (s *Scheduler) tallies() round {
	ledger := tally.NewLedger()
	var last *v1.Tally
	return func(ctx context.Context, t control.Term) error {
		if s.Tally == nil {
			return nil
		}
		first := last == nil
		sum, err := s.addUp(ctx, t, ledger, last)
		if err == nil && first {
			sum, err = s.addUp(ctx, t, ledger, sum)
		}
		if err == nil {
			last = sum
		}
		return err
	}
}

// addUp hands all nodes a sum, nil = none, and returns the next one, of what they
// say.
func (s *Scheduler) addUp(ctx context.Context, t control.Term, ledger *tally.Ledger, last *v1.Tally) (*v1.Tally, error) {
	p := t.Proof()
	failpoint.HitJob("tally")
	answers, err := s.Tally(ctx, &v1.TallyRequest{Leader: &v1.LeaderProof{Election: p.Name, Token: p.Token}, Cluster: last})
	if im.ReasonOf(err) == clientv1.Reason_REASON_FORBIDDEN {
		return nil, errors.Join(store.ErrFenced, err)
	}
	if err != nil {
		return nil, fmt.Errorf("ask the nodes what they counted: %w", err)
	}
	if ctx.Err() != nil { // the term has ended, and nobody was asked
		return nil, ctx.Err()
	}
	r := tally.Round{At: time.Now(), Answers: answers, Users: -1}
	if n := s.online.Load(); n != nil {
		r.Users = *n
	}
	sum := ledger.Step(r)
	sum.Token, sum.NodeId = p.Token, string(s.Node)
	s.Kept.Keep(sum)
	silent := 0
	for _, n := range sum.Nodes {
		if n.Silent != "" {
			silent++
		}
	}
	s.silentNodes.Set(float64(silent))
	return sum, nil
}

// showStats shows who is online.
func (s *Scheduler) showStats(st presence.Stats) {
	s.presence.show(st)
	if st.Awaited > 0 || st.Followed == 0 {
		s.online.Store(nil)
		return
	}
	n := int64(st.Users)
	s.online.Store(&n)
}

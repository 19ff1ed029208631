package peer

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"sync"

	"github.com/imdhq/imd/pkg/control"
	"github.com/imdhq/imd/pkg/im"
	"github.com/imdhq/imd/pkg/tally"
	v1 "github.com/imdhq/imd/proto/gen/internalv1"
	"github.com/imdhq/imd/sdk/go/gen/clientv1"
)

// counting is what a process counts, and which leaders may ask for it.
type counting struct {
	book    *tally.Book
	leaders func() *control.Leaders
	floor   control.Floor
}

// UseTally lets the leader of the schedulers ask for what this process counts.
// Before Register.
func (s *Set) UseTally(b *tally.Book, leaders func() *control.Leaders) {
	s.tally.book, s.tally.leaders = b, leaders
}

// Tally asks every node of the cluster, and this one, for what it counted, and
// hands them what is known of the cluster. It takes 500 ms at most. Errors:
// forbidden (another node leads). A node that does not answer is in the answer.
func (s *Set) Tally(ctx context.Context, req *v1.TallyRequest) ([]tally.Answer, error) {
	ctx, cancel := context.WithTimeout(ctx, AttemptTimeout)
	defer cancel()
	own, err := checker{s}.Tally(ctx, req)
	if err != nil {
		return nil, err
	}
	own.BootId = cmp.Or(own.BootId, string(s.node)) // a node that calls nobody
	out := []tally.Answer{{Node: string(s.node), Told: own}}
	p := s.others.Load()
	if p == nil {
		return out, nil
	}
	var mu sync.Mutex
	var calls sync.WaitGroup
	var stale error
	for _, o := range *p {
		calls.Go(func() {
			a, err := o.remote.tally(ctx, req)
			mu.Lock()
			defer mu.Unlock()
			out, stale = append(out, a), errors.Join(stale, err)
		})
	}
	calls.Wait()
	if stale != nil {
		return nil, stale
	}
	slices.SortFunc(out, func(a, b tally.Answer) int { return cmp.Compare(a.Node, b.Node) })
	return out, nil
}

// tally asks one node. Errors: forbidden.
func (r *remote) tally(ctx context.Context, req *v1.TallyRequest) (tally.Answer, error) {
	out := tally.Answer{Node: string(r.id()), Gateway: r.node.Has(roleGateway)}
	r.begin()
	defer r.end()
	res, err := r.peer.Tally(ctx, req)
	if err != nil {
		err = im.FromConnect("peer.Tally", err)
		out.Silent = im.ReasonName(im.ReasonOf(err))
		if im.ReasonOf(err) == clientv1.Reason_REASON_FORBIDDEN {
			return out, err
		}
		return out, nil
	}
	out.Told = res
	return out, nil
}

// Tally tells what this process counted; see PeerService.
func (c checker) Tally(_ context.Context, r *v1.TallyRequest) (*v1.TallyResponse, error) {
	t := &c.s.tally
	if r.Leader == nil || t.book == nil {
		return nil, im.Errorf(clientv1.Reason_REASON_FORBIDDEN, "peer.Tally", "this is for the leader of the schedulers")
	}
	if err := t.floor.Admit(t.leaders(), r.Leader.Election, r.Leader.Token); err != nil {
		return nil, &im.Error{Reason: clientv1.Reason_REASON_FORBIDDEN, Op: "peer.Tally", Msg: "another node leads", Err: err}
	}
	t.book.Keep(r.Cluster)
	res := t.book.Tell()
	res.NodeId, res.BootId = string(c.s.node), c.s.link.BootID
	if r.Cluster == nil {
		res.Cluster = t.book.Cluster()
	}
	return res, nil
}

package peer

import (
	"sync"

	"github.com/imdhq/imd/pkg/im"
	"github.com/imdhq/imd/sdk/go/gen/clientv1"
)

// scatter calls each node once, with those of the requests that are its own, and
// puts the answers into the order of the requests. If all go to one node, its
// error is that of the call; else failed makes answers of errors.
func scatter[Req, Ans any](reqs []*Req, home func(*Req) im.NodeID, call func([]*Req) ([]*Ans, error), failed func(*clientv1.Error) *Ans) ([]*Ans, error) {
	parts := map[im.NodeID][]int{}
	for i, r := range reqs {
		node := home(r)
		parts[node] = append(parts[node], i)
	}
	if len(parts) < 2 {
		return call(reqs)
	}
	out := make([]*Ans, len(reqs))
	var wg sync.WaitGroup
	for _, index := range parts {
		part := make([]*Req, len(index))
		for i, at := range index {
			part[i] = reqs[at]
		}
		wg.Go(func() {
			answers, err := call(part)
			if err == nil && len(answers) != len(part) {
				err = im.Errorf(clientv1.Reason_REASON_INTERNAL, "peer.scatter", "%d answers to %d requests", len(answers), len(part))
			}
			for i, at := range index {
				if err != nil {
					out[at] = failed(im.Wire(err))
				} else {
					out[at] = answers[i]
				}
			}
		})
	}
	wg.Wait()
	return out, nil
}

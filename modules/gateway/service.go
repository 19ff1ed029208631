package gateway

import (
	"context"
	"sync"
	"time"

	"github.com/imdhq/imd/pkg/im"
	v1 "github.com/imdhq/imd/proto/gen/internalv1"
	"github.com/imdhq/imd/sdk/go/gen/clientv1"
	"github.com/imdhq/imd/sdk/go/protocol"
)

// service is GatewayService, what other roles ask of this one.
type service struct{ g *Gateway }

// admit refuses a call of a leader that has been followed. It may have been
// paused for longer than its term, and not know it yet.
func (s service) admit(op string, p *v1.LeaderProof) error {
	if p == nil {
		return nil
	}
	if err := s.g.floor.Admit(s.g.leaders(), p.Election, p.Token); err != nil {
		s.g.m.staleLeaders.Inc()
		return &im.Error{Reason: clientv1.Reason_REASON_FORBIDDEN, Op: op, Msg: "another node leads", Err: err}
	}
	return nil
}

// Deliver queues frames on sessions, in order, and never waits for a client.
func (s service) Deliver(_ context.Context, req *v1.DeliverRequest) (*v1.DeliverResponse, error) {
	if err := s.admit("gateway.Deliver", req.Leader); err != nil {
		return nil, err
	}
	res := &v1.DeliverResponse{Sessions: make([]int32, len(req.Deliveries)), Waiting: make([]bool, len(req.Deliveries))}
	var found, touched []*session
	delivered := 0
	defer func() { s.g.Tally.Delivered(delivered) }()
	for i := 0; i < len(req.Deliveries); i++ {
		d := req.Deliveries[i]
		frames := newShared(d)
		if d.Audience != nil {
			first := i
			for ; i+1 < len(req.Deliveries) && alike(d, req.Deliveries[i+1]); i++ {
				frames = append(frames, newShared(req.Deliveries[i+1])...) // so that they leave in one message
			}
			n := s.g.groups.deliver(d.ConversationId, arrival{d.Audience, frames})
			for ; first <= i; first++ {
				res.Sessions[first], res.Waiting[first] = int32(max(n, 0)), n < 0
			}
			continue
		}
		found, res.NotHere = s.g.hub.find(d.SessionIds, found[:0], res.NotHere)
		if d.Relaxed {
			relaxed(frames[0], found)
			continue
		}
		here := found[:0]
		for _, x := range found {
			hit, due := x.deliver(frames)
			if due {
				touched = append(touched, x)
			}
			if !hit {
				res.NotHere = append(res.NotHere, string(x.id))
				continue
			}
			here = append(here, x)
		}
		res.Sessions[i] = int32(len(here))
		delivered += len(here) * entriesOf(frames)
		s.g.arrived(frames, here)
	}
	flush(touched) // all that one call brings to a session leaves in one message
	return res, nil
}

// alike reports whether a delivery to a group has the audience of the one before.
func alike(before, d *v1.Delivery) bool {
	return d.Audience != nil && d.ConversationId == before.ConversationId && d.Audience.MemberVersion == before.Audience.MemberVersion &&
		!d.Audience.Change && len(before.Audience.RemovedUserIds)+len(d.Audience.RemovedUserIds) == 0
}

// Kick ends sessions. A reason without a close code counts as kicked.
func (s service) Kick(_ context.Context, req *v1.KickRequest) (*v1.KickResponse, error) {
	if err := s.admit("gateway.Kick", req.Leader); err != nil {
		return nil, err
	}
	reason := req.Reason
	if protocol.CloseCode(reason) == 0 {
		reason = "kicked"
	}
	s.g.ended.note(im.UserID(req.UserId), im.LoginID(req.LoginId), reason, time.Now())
	var found []*session
	if len(req.SessionIds) > 0 {
		found, _ = s.g.hub.find(req.SessionIds, nil, nil)
	} else {
		found = s.g.hub.of(im.UserID(req.UserId))
	}
	res := &v1.KickResponse{}
	for _, x := range found {
		if req.LoginId != "" && string(x.login) != req.LoginId || req.UserId != "" && string(x.user) != req.UserId {
			continue
		}
		if x.displace(reason) {
			res.Ended++
		}
	}
	return res, nil
}

// Probe asks the devices of sessions for a sign of life.
func (s service) Probe(ctx context.Context, req *v1.ProbeRequest) (*v1.ProbeResponse, error) {
	if len(req.SessionIds) > maxProbes {
		return nil, im.Errorf(clientv1.Reason_REASON_BAD_REQUEST, "gateway.Probe", "at most %d sessions are probed at once", maxProbes)
	}
	ctx, cancel := context.WithTimeout(ctx, probeTime)
	defer cancel()
	found, _ := s.g.hub.find(req.SessionIds, nil, nil)
	alive := make([]bool, len(found))
	var wg sync.WaitGroup
	for i, x := range found {
		wg.Go(func() { alive[i] = x.probe(ctx) })
	}
	wg.Wait()
	res := &v1.ProbeResponse{}
	for i, x := range found {
		if alive[i] {
			res.Alive = append(res.Alive, string(x.id))
		}
	}
	return res, nil
}

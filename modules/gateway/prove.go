package gateway

import (
	"go.uber.org/zap"

	"github.com/imdhq/imd/pkg/im"
	"github.com/imdhq/imd/pkg/obs"
	"github.com/imdhq/imd/pkg/store"
	v1 "github.com/imdhq/imd/proto/gen/internalv1"
	"github.com/imdhq/imd/sdk/go/gen/clientv1"
	"github.com/imdhq/imd/sdk/go/protocol"
)

// prove makes the session, which has claimed its place or waits for it, the only
// one of its login and device whose sends are stored, under session.strict. It
// returns what the session's claim displaced.
//
// The message store may know a higher epoch than the claim has. Then a newer
// session was faster, which another claim of the same rank finds out; or the route
// store has lost its past and its clock is behind, and the session claims above it.
func (s *session) prove(claim store.Claim) (store.Claim, *refusal) {
	if !s.g.tuned.Get().strict {
		return claim, nil
	}
	for {
		s.mu.Lock()
		p := s.place
		s.mu.Unlock()
		known, err := s.g.prove(s.routeAt(p), claim.Replaced, !p.claimed)
		if err != nil {
			s.g.Log.Warn("a session was refused: its rank is not in the message store", obs.Session(s.id), obs.Err(err))
			return claim, &refusal{reason: "busy", msg: "the node cannot note sessions now", after: minWait}
		}
		if p.claimed && known > p.epoch {
			again, no := s.claimAbove(p, known)
			if no != nil {
				return claim, no
			}
			claim.Superseded, claim.Replaced = append(claim.Superseded, again.Superseded...), append(claim.Replaced, again.Replaced...)
			claim.Away = append(claim.Away, again.Away...)
			continue
		}
		s.mu.Lock()
		s.place.epoch = known
		s.runs.Proof = s.proofLocked()
		s.mu.Unlock()
		return claim, nil
	}
}

// proofLocked is the session's rank as its sends carry it.
func (s *session) proofLocked() *v1.SessionProof {
	return &v1.SessionProof{LoginId: string(s.login), DeviceId: string(s.device), RouteEpoch: s.place.epoch}
}

// claimAbove claims the session's place with a rank above an epoch, unless a newer
// session has it.
func (s *session) claimAbove(p place, epoch uint64) (store.Claim, *refusal) {
	policy := s.policy()
	for _, rank := range []uint64{p.epoch, epoch + 1} {
		p.epoch = rank
		claim, err := s.g.claim(s.routeAt(p), policy)
		switch {
		case im.ReasonOf(err) == clientv1.Reason_REASON_LOGIN_REFUSED:
			return claim, refuse("login_refused", "another login has the place")
		case err != nil:
			s.g.Log.Warn("a session was refused: its rank is below what the message store knows", obs.Session(s.id), obs.Err(err))
			return claim, &refusal{reason: "busy", msg: "the node cannot look up logins now", after: minWait}
		case claim.Standing != store.Kept:
			return claim, refuse(claim.Standing.String(), "%s", endTexts[claim.Standing.String()])
		case rank > epoch:
			s.mu.Lock()
			s.place.epoch = rank
			s.mu.Unlock()
			return claim, nil
		}
	}
	panic("the second rank is above the epoch")
}

// prove notes a claim in the message store and returns the highest epoch that is
// noted. rank asks for one that is above all others.
func (g *Gateway) prove(r store.Route, replaced []store.Route, rank bool) (uint64, error) {
	req := &v1.ProveRequest{UserId: string(r.User), Session: proofOf(r), Rank: rank}
	for _, x := range replaced {
		req.Replaced = append(req.Replaced, proofOf(x))
	}
	res, err := g.Directory.Prove(g.ctx, req)
	if err != nil {
		return 0, err
	}
	return res.RouteEpoch, nil
}

func proofOf(r store.Route) *v1.SessionProof {
	return &v1.SessionProof{LoginId: string(r.Login), DeviceId: string(r.Device), RouteEpoch: r.Epoch}
}

// proveLate notes whom a late claim has replaced. Its own rank was noted when the
// session began.
func (k *keeper) proveLate(r store.Route, c store.Claim) {
	if len(c.Replaced) == 0 || !k.g.tuned.Get().strict {
		return
	}
	if _, err := k.g.prove(r, c.Replaced, false); err != nil {
		k.g.Log.Warn("replaced sessions may send until they hear of it", obs.User(r.User), zap.Int("sessions", len(c.Replaced)), obs.Err(err))
	}
}

// outranked finds out of the answers of state that the session was displaced, and
// why; "" = it was not. What a client is told of its sends is that nothing is
// decided: the same message may come again over the session that took the place.
func outranked(acks []*clientv1.SendAck) (reason string) {
	for _, a := range acks {
		if e := a.GetError(); e != nil && (e.Reason == "superseded" || e.Reason == "replaced") {
			reason = e.Reason
			a.Error = protocol.NewError("unavailable", endTexts[reason], 0)
		}
	}
	return reason
}

package gateway

import (
	"context"
	"slices"
	"time"

	"github.com/imdhq/imd/pkg/im"
	"github.com/imdhq/imd/pkg/obs"
	"github.com/imdhq/imd/pkg/store"
	v1 "github.com/imdhq/imd/proto/gen/internalv1"
	"github.com/imdhq/imd/sdk/go/gen/clientv1"
)

const (
	// joinCalls is how many groups of logins are looked up and claim their places at
	// once, and joinsAtOnce how many are in a group.
	joinCalls   = 4
	joinsAtOnce = 64
	// joinsWaiting is how many logins may wait for their turn, and joinWait for how
	// long. In a wave of reconnects all would otherwise be late together, and come
	// back to be late again.
	joinsWaiting = 32_768
	joinWait     = 5 * time.Second
	// joinsApart is how many logins that need more than their group gives them work at
	// once: a holder of the place is probed, or the rank is noted. Others wait for
	// joinWait.
	joinsApart = 128
)

// entrant is a login on its way to a session.
type entrant struct {
	s       *session
	since   time.Time
	no      *refusal // the directory's
	claimed bool     // the route store was asked
	claim   store.Claim
	err     error         // of the claim
	done    chan struct{} // holds one when all of this is there
}

func newJoins(g *Gateway) *gather[*entrant] {
	return &gather[*entrant]{calls: joinCalls, most: joinsAtOnce, room: joinsWaiting, age: joinWait, run: g.goroutine, now: time.Now, ask: g.joinMany,
		late: func(j *entrant) { j.no = tooMany(); j.done <- struct{}{} }}
}

// tooMany is the refusal of one for whom there is no turn.
func tooMany() *refusal {
	return &refusal{reason: "busy", msg: "too many log in at once", after: pauses()}
}

// gone is the refusal of one whose session has ended; nobody reads it.
func gone() *refusal { return &refusal{reason: "gone", msg: "the session has ended"} }

// lost reports whether a claim was refused because others have the place.
func lost(err error) bool { return im.ReasonOf(err) == clientv1.Reason_REASON_LOGIN_REFUSED }

// joinMany admits logins, registers their sessions, claims their routes and admits
// them again, each time all of them in one call. The order matters: whoever is
// admitted after the claim can be found by a revocation, and whoever can be found
// here before the claim misses no delivery that looks the route up. Who has ended
// meanwhile, or hung up, or been overtaken by a later hello of its device, claims
// nothing, which would displace another.
func (g *Gateway) joinMany(batch []*entrant) {
	if len(batch) == joinsAtOnce {
		g.haste.wave(time.Now())
	}
	g.admitAll(staying(batch))
	in := staying(batch)
	for _, j := range in {
		j.s.subscribe()
		if j.s.stays() {
			j.s.overtake()
		} else if j.no == nil {
			j.no = gone()
		}
	}
	in = staying(in)
	g.claimAll(in)
	g.admitAll(slices.DeleteFunc(in, func(j *entrant) bool { return lost(j.err) }))
	for _, j := range batch {
		j.done <- struct{}{}
	}
}

// staying is those who are not refused, and refuses those whose sessions have ended.
func staying(list []*entrant) []*entrant {
	out := make([]*entrant, 0, len(list))
	for _, j := range list {
		if j.no == nil && !j.s.live() {
			j.no = gone()
		}
		if j.no == nil {
			out = append(out, j)
		}
	}
	return out
}

// turn waits for the turn of a login that needs more than its group gives it; give gives
// it back. no = there is none.
func (s *session) turn(j *entrant) (give func(), no *refusal) {
	if j.no != nil || !lost(j.err) && !s.g.tuned.Get().strict {
		return func() {}, nil
	}
	if !s.g.apart.take(s.g.ctx, s.g.joins.age) {
		return func() {}, tooMany()
	}
	return s.g.apart.give, nil
}

// claimAll claims the places of many.
func (g *Gateway) claimAll(list []*entrant) {
	if len(list) == 0 {
		return
	}
	now := time.Now()
	claims := make([]store.Claiming, len(list))
	for i, j := range list {
		j.claimed, j.since = true, now
		claims[i] = store.Claiming{Route: j.s.routeAt(place{since: now}), Policy: j.s.policy()}
	}
	res, err := g.claimMany(claims)
	for i, j := range list {
		if j.err = err; err == nil {
			j.claim, j.err = res[i].Claim, res[i].Err
		}
	}
}

// claimMany makes many claims.
func (g *Gateway) claimMany(list []store.Claiming) ([]store.Claimed, error) {
	routes, err := g.Routes()
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(g.ctx, routeTimeout)
	defer cancel()
	return routes.ClaimMany(ctx, list)
}

// admitAll asks the directory about those who are not refused yet.
func (g *Gateway) admitAll(list []*entrant) {
	asked := make([]*entrant, 0, len(list))
	who := make([]*v1.AdmitRequest, 0, len(list))
	now := time.Now()
	for _, j := range list {
		if reason := g.ended.of(j.s.user, j.s.login, now); reason != "" {
			j.no = &refusal{reason: reason, msg: endTexts[reason]}
			continue
		}
		asked, who = append(asked, j), append(who, j.s.application())
	}
	if len(asked) == 0 {
		return
	}
	for i, a := range g.admitMany(g.ctx, who) {
		asked[i].no = asked[i].s.verdict(a)
	}
}

// verdict is the refusal that an answer of the directory means; nil = none.
func (s *session) verdict(a looked) *refusal {
	if a.err != nil {
		s.g.Log.Warn("a login was not looked up", obs.Session(s.id), obs.Err(a.err))
		return &refusal{reason: "busy", msg: "the node cannot look up logins now", after: pauses()}
	}
	if reason := a.res.RefusedReason; reason != "" {
		return &refusal{reason: reason, msg: endTexts[reason]}
	}
	s.dataEpoch = a.res.DataEpoch
	return nil
}

// looked is what the directory said of a login, or why it said nothing.
type looked struct {
	res *v1.AdmitResponse
	err error
}

// admitMany looks many logins up and answers for each in order; those whose call fails
// are asked about apart.
func (g *Gateway) admitMany(ctx context.Context, who []*v1.AdmitRequest) []looked {
	out, all := make([]looked, len(who)), make([]int, len(who))
	for i := range all {
		all[i] = i
	}
	ask := func(some []int) []failure[int] { return g.askAdmits(ctx, who, some, out) }
	for _, f := range askApart(all, time.Now, ask) { // the caller says so in the log
		out[f.x].err = f.err
	}
	return out
}

// askAdmits makes one call about some, notes what it is answered, and returns the
// others.
func (g *Gateway) askAdmits(ctx context.Context, who []*v1.AdmitRequest, some []int, out []looked) (failed []failure[int]) {
	const op = "gateway.admit"
	req := &v1.AdmitManyRequest{Requests: make([]*v1.AdmitRequest, len(some))}
	for n, i := range some {
		req.Requests[n] = who[i]
	}
	res, err := g.Directory.AdmitMany(ctx, req)
	if err == nil && len(res.Answers) != len(some) {
		err = im.Errorf(clientv1.Reason_REASON_INTERNAL, op, "")
	}
	if err != nil {
		return allFailed(some, err)
	}
	for n, i := range some {
		if r := res.Answers[n].GetResponse(); r != nil {
			out[i].res = r
		} else {
			failed = append(failed, failure[int]{i, unanswered(op, res.Answers[n].GetError())})
		}
	}
	return failed
}

// application is the session's login as the directory is asked about it.
func (s *session) application() *v1.AdmitRequest {
	return &v1.AdmitRequest{UserId: string(s.user), LoginId: string(s.login), IssuedMs: s.issued}
}

package gateway

import (
	"context"
	"time"

	"github.com/imdhq/imd/pkg/im"
	"github.com/imdhq/imd/pkg/obs"
	v1 "github.com/imdhq/imd/proto/gen/internalv1"
	"github.com/imdhq/imd/sdk/go/gen/clientv1"
)

const (
	// admitCalls is how many calls that look up logins are out at once, admitsAtOnce
	// how many logins one carries.
	admitCalls   = 4
	admitsAtOnce = 64
	// admitsWaiting is how many logins may wait for a call; turns bound them before.
	admitsWaiting = 8192
)

// applicant is a login that wants to be looked up.
type applicant struct {
	req  *v1.AdmitRequest
	res  *v1.AdmitResponse
	err  error
	done chan struct{} // holds one when res or err is there
}

// decide answers the applicant.
func (a *applicant) decide(res *v1.AdmitResponse, err error) {
	a.res, a.err = res, err
	a.done <- struct{}{}
}

func newAdmits(g *Gateway) *gather[*applicant] {
	return &gather[*applicant]{calls: admitCalls, most: admitsAtOnce, room: admitsWaiting, age: joinWait, run: g.goroutine, now: time.Now,
		ask:  func(batch []*applicant) { g.admitMany(g.ctx, batch) },
		late: func(a *applicant) { a.decide(nil, lateAdmit()) }}
}

func lateAdmit() error {
	return im.Errorf(clientv1.Reason_REASON_BUSY, "gateway.admit", "too many log in at once")
}

// lookUp asks the directory whether a login may begin a session. Those who ask
// at once share a call. For goroutines that Run waits for.
func (g *Gateway) lookUp(req *v1.AdmitRequest) (*v1.AdmitResponse, error) {
	a := &applicant{req: req, done: make(chan struct{}, 1)}
	if !g.admits.offer(a, false) {
		return nil, lateAdmit()
	}
	<-a.done
	return a.res, a.err
}

// admitMany looks many logins up and decides each.
func (g *Gateway) admitMany(ctx context.Context, batch []*applicant) {
	ask := func(some []*applicant) []failure[*applicant] { return g.askAdmits(ctx, some) }
	for _, f := range askApart(batch, time.Now, ask) { // each says so in the log
		f.x.decide(nil, f.err)
	}
}

// askAdmits makes one call, decides whom it can, and returns the others.
func (g *Gateway) askAdmits(ctx context.Context, batch []*applicant) (failed []failure[*applicant]) {
	const op = "gateway.admit"
	req := &v1.AdmitManyRequest{Requests: make([]*v1.AdmitRequest, len(batch))}
	for i, a := range batch {
		req.Requests[i] = a.req
	}
	res, err := g.Directory.AdmitMany(ctx, req)
	if err == nil && len(res.Answers) != len(batch) {
		err = im.Errorf(clientv1.Reason_REASON_INTERNAL, op, "")
	}
	if err != nil {
		return allFailed(batch, err)
	}
	for i, a := range batch {
		if r := res.Answers[i].GetResponse(); r != nil {
			a.decide(r, nil)
		} else {
			failed = append(failed, failure[*applicant]{a, unanswered(op, res.Answers[i].GetError())})
		}
	}
	return failed
}

// admit asks the directory whether the login may begin a session.
func (s *session) admit() *refusal {
	if reason := s.g.ended.of(s.user, s.login, time.Now()); reason != "" {
		return &refusal{reason: reason, msg: endTexts[reason]}
	}
	res, err := s.g.lookUp(s.application())
	if err != nil {
		s.g.Log.Warn("a login was not looked up", obs.Session(s.id), obs.Err(err))
		return &refusal{reason: "busy", msg: "the node cannot look up logins now", after: pauses()}
	}
	if res.RefusedReason != "" {
		return &refusal{reason: res.RefusedReason, msg: endTexts[res.RefusedReason]}
	}
	s.dataEpoch = res.DataEpoch
	return nil
}

// application is the session's login as the directory is asked about it.
func (s *session) application() *v1.AdmitRequest {
	return &v1.AdmitRequest{UserId: string(s.user), LoginId: string(s.login), IssuedMs: s.issued}
}

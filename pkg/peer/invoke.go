package peer

import (
	"context"
	"errors"
	"net"
	"time"

	"github.com/imdhq/imd/pkg/backoff"
	"github.com/imdhq/imd/pkg/balance"
	"github.com/imdhq/imd/pkg/failpoint"
	"github.com/imdhq/imd/pkg/im"
	"github.com/imdhq/imd/pkg/peer/seal"
	"github.com/imdhq/imd/pkg/trace"
	v1 "github.com/imdhq/imd/proto/gen/internalv1"
	"github.com/imdhq/imd/sdk/go/gen/clientv1"
)

const (
	// AttemptTimeout is the longest one attempt of a call to another process
	// takes.
	AttemptTimeout = 500 * time.Millisecond
	// maxRetries is how often a call is made again after a failure.
	maxRetries = 2
)

// retryPause is 25 ms, doubled, give or take half.
func retryPause(retry int) time.Duration {
	base := 25 * time.Millisecond << retry
	return base/2 + backoff.Policy{Base: base}.Pause(0)
}

// service is one generated service: its handler in this process, and its client
// at another.
type service[H any] struct {
	group *group
	local handler[H]
	at    func(*remote) H
}

// function is a method of a service, as the expression of its interface.
type function[H, Req, Res any] = func(H, context.Context, *Req) (*Res, error)

// invoke makes a call at whatever node the method's picker chooses.
func invoke[H, Req, Res any](ctx context.Context, s *Set, v *service[H], m *Method, key string, f function[H, Req, Res], req *Req) (*Res, error) {
	if v.group.alone.Load() {
		return here(ctx, s, v, m, f, req)
	}
	ctx, cancel := context.WithTimeout(isolated{ctx}, s.whole)
	defer cancel()
	var tried []string
	for retry := 0; ; retry++ {
		p := v.group.pick(m, key, tried)
		if p == nil {
			return here(ctx, s, v, m, f, req)
		}
		res, err := hedged(ctx, s, v, m, key, p, f, req)
		if err == nil {
			return res, nil
		}
		if retry == maxRetries || !repeatable(m, err) || ctx.Err() != nil {
			return nil, err
		}
		unsent := undialled(err) // nobody had work with it: it is free, and another node may have it at once
		if !unsent && !v.group.mayRetry(time.Now()) {
			return nil, err
		}
		s.metrics.retried(m)
		tried = append(tried, p.id())
		if unsent && retry == 0 {
			continue
		}
		if backoff.Sleep(ctx, retryPause(retry)) != nil {
			return nil, err
		}
	}
}

// repeatable reports whether a call that failed so may be made again elsewhere.
func repeatable(m *Method, err error) bool {
	if m.Repeat != v1.Repeat_REPEAT_ANYWHERE && m.Repeat != v1.Repeat_REPEAT_BACKUP && !failpoint.Bad(failpoint.RetryUnmarked) {
		return false
	}
	return im.ReasonOf(err) == clientv1.Reason_REASON_UNAVAILABLE
}

// undialled reports whether an attempt failed because there was no connection.
func undialled(err error) bool {
	var dial *net.OpError
	return errors.As(err, &dial) && dial.Op == "dial"
}

// invokeAt makes a call at one node, once.
func invokeAt[H, Req, Res any](ctx context.Context, s *Set, v *service[H], m *Method, node im.NodeID, f function[H, Req, Res], req *Req) (*Res, error) {
	if node == s.node {
		return here(ctx, s, v, m, f, req)
	}
	p := s.reach(node)
	if p == nil {
		return nil, absent(m.Name, v.group.role)
	}
	ctx, cancel := context.WithTimeout(isolated{ctx}, s.whole)
	defer cancel()
	return once(ctx, s, v, m, p, f, req)
}

// here calls the handler of this process.
func here[H, Req, Res any](ctx context.Context, s *Set, v *service[H], m *Method, f function[H, Req, Res], req *Req) (*Res, error) {
	h := v.local.Load()
	if h == nil {
		return nil, absent(m.Name, v.group.role)
	}
	return call(ctx, s, m.Name, *h, f, req)
}

// answer is how one of two attempts ended.
type answer[Res any] struct {
	res    *Res
	err    error
	backup bool
}

// hedged makes one attempt, and a second one at another node if the answer takes
// long and the method allows it. The first good answer wins, and the other
// attempt is given up.
func hedged[H, Req, Res any](ctx context.Context, s *Set, v *service[H], m *Method, key string, p *place, f function[H, Req, Res], req *Req) (*Res, error) {
	if m.Repeat != v1.Repeat_REPEAT_BACKUP || p.remote == nil {
		return once(ctx, s, v, m, p, f, req)
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	answers := make(chan answer[Res], 2) // one slot for each attempt: a late one never blocks
	try := func(p *place, backup bool) {
		res, err := once(ctx, s, v, m, p, f, req)
		answers <- answer[Res]{res, err, backup}
	}
	go try(p, false)
	due := time.NewTimer(v.group.hedgeDelay(m, time.Now()))
	defer due.Stop()
	for out := 1; ; {
		select {
		case a := <-answers:
			out--
			if a.err == nil && a.backup {
				s.metrics.backupWon(m)
			}
			if a.err == nil || out == 0 {
				return a.res, a.err
			}
		case <-due.C:
			q := v.group.other(m, key, p)
			if q == nil || !v.group.mayHedge(m, time.Now()) {
				continue
			}
			s.metrics.backup(m)
			out++
			go try(q, true)
		}
	}
}

// once makes one attempt at one node and learns from how it ends.
func once[H, Req, Res any](ctx context.Context, s *Set, v *service[H], m *Method, p *place, f function[H, Req, Res], req *Req) (*Res, error) {
	if p.remote == nil {
		return here(ctx, s, v, m, f, req)
	}
	actx, cancel := context.WithTimeout(ctx, s.attempt)
	defer cancel()
	parent := trace.From(ctx)
	here := parent.Child()
	actx = trace.With(actx, here)
	begin := time.Now()
	p.remote.begin()
	res, err := f(v.at(p.remote), actx, req)
	p.remote.end()
	took := time.Since(begin)
	o := outcome(ctx, err)
	p.remote.learn(o, err)
	if v.group.report(p, m, o, took, time.Now()) {
		s.ejected(v.group, p, err)
	}
	s.metrics.answered(p, m, took, err)
	if here.Sampled() {
		s.trace.Span(attempt(p, m, here, parent, begin, took, err))
	}
	if err != nil {
		return nil, failed(m.Name, err)
	}
	return res, nil
}

// failed is what callers get to know of an attempt that failed. That two nodes do
// not believe each other is nothing that a client's token could change.
func failed(op string, err error) error {
	var distrust seal.ErrPeer
	if errors.As(err, &distrust) {
		return &im.Error{Reason: clientv1.Reason_REASON_UNAVAILABLE, Op: op, Msg: "two nodes of the cluster do not believe each other", Err: err}
	}
	return im.FromConnect(op, err)
}

// outcome is what an attempt says about its node. ctx is that of the caller.
func outcome(ctx context.Context, err error) balance.Outcome {
	var distrust seal.ErrPeer
	switch {
	case err == nil:
		return balance.OK
	case errors.Is(ctx.Err(), context.Canceled):
		return balance.Gone
	case undialled(err), errors.As(err, &distrust):
		return balance.Unreachable
	}
	e := im.FromConnect("", err)
	if e.Err != nil { // not from the other side's program
		return balance.Failed
	}
	if e.Reason == clientv1.Reason_REASON_UNAVAILABLE {
		return balance.Failed
	}
	return balance.OK // it is busy, or refuses for a reason of its own
}

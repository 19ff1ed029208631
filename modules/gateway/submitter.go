package gateway

import (
	"context"
	"sync"
	"time"

	"github.com/imdhq/imd/pkg/im"
	"github.com/imdhq/imd/pkg/run"
	v1 "github.com/imdhq/imd/proto/gen/internalv1"
	"github.com/imdhq/imd/sdk/go/gen/clientv1"
	"github.com/imdhq/imd/sdk/go/protocol"
)

const (
	// submitCalls is how many calls to state are in flight.
	submitCalls = 4
	// submitSends and submitBytes bound one call.
	submitSends = 200
	submitBytes = 256 << 10
	// submitWaiting is how many sends of the whole node may wait for a call.
	submitWaiting = 4096
	// submitAge is how long a run may wait for a call.
	submitAge = 400 * time.Millisecond
)

// submitClient is what the submitter asks of the state role.
type submitClient interface {
	Submit(context.Context, *v1.SubmitRequest) (*v1.SubmitResponse, error)
}

// owner gets the result of a run: its acks, or the error of the call.
type owner interface {
	submitted(conv string, token run.Token, acks []*clientv1.SendAck, failed *clientv1.Error)
}

// submission is a run that waits for a call.
type submission struct {
	owner   owner
	out     run.Out
	offered time.Time
}

// submitter carries all runs of this node to state. A call takes all that wait,
// so that a busy node makes few large calls. Safe for concurrent use.
type submitter struct {
	state submitClient
	m     *metrics
	ctx   context.Context // of the module's Run; ends the calls
	run   func(func())
	now   func() time.Time

	mu      sync.Mutex
	waiting []submission
	sends   int // in waiting
	calls   int // in flight
}

// offer takes a run. false = too many wait; its owner hears nothing more.
func (b *submitter) offer(s submission) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	n := len(s.out.Run.Sends)
	if b.sends > 0 && b.sends+n > submitWaiting {
		return false
	}
	s.offered = b.now()
	b.waiting = append(b.waiting, s)
	b.sends += n
	if b.calls < submitCalls {
		b.calls++
		b.run(b.work)
	}
	return true
}

// work makes calls until nothing waits.
func (b *submitter) work() {
	for {
		batch, late := b.take()
		for _, s := range late {
			s.owner.submitted(s.out.Run.ConversationId, s.out.Token, nil, protocol.NewError("busy", "", 0))
		}
		if len(batch) > 0 {
			b.call(batch)
		} else if len(late) == 0 {
			return
		}
	}
}

// take removes what goes into the next call, oldest first. If there is nothing
// the caller is no call any more.
func (b *submitter) take() (batch, late []submission) {
	b.mu.Lock()
	defer b.mu.Unlock()
	now, sends, bytes, i := b.now(), 0, 0, 0
	for ; i < len(b.waiting); i++ {
		s := b.waiting[i]
		n := len(s.out.Run.Sends)
		if now.Sub(s.offered) > submitAge {
			late = append(late, s)
			b.sends -= n
			continue
		}
		if len(batch) > 0 && (sends+n > submitSends || bytes+s.out.Size > submitBytes) {
			break
		}
		batch = append(batch, s)
		b.sends -= n
		sends += n
		bytes += s.out.Size
	}
	clear(b.waiting[:i])
	b.waiting = b.waiting[i:]
	if len(b.waiting) == 0 {
		b.waiting = nil
	}
	if len(batch) == 0 && len(late) == 0 {
		b.calls--
	}
	return batch, late
}

// call submits a batch and hands out the results.
func (b *submitter) call(batch []submission) {
	req := &v1.SubmitRequest{Runs: make([]*v1.Run, len(batch))}
	sends := 0
	for i, s := range batch {
		req.Runs[i] = s.out.Run
		sends += len(s.out.Run.Sends)
	}
	b.m.submitSends.Observe(float64(sends))
	res, err := b.state.Submit(b.ctx, req)
	failed := im.Wire(err)
	if err == nil && len(res.Runs) != len(batch) {
		failed = protocol.NewError("internal", "", 0)
	}
	for i, s := range batch {
		var acks []*clientv1.SendAck
		if failed == nil {
			acks = res.Runs[i].GetAcks()
		}
		s.owner.submitted(s.out.Run.ConversationId, s.out.Token, acks, failed)
	}
}

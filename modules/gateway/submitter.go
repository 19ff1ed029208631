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
	// submitCalls is how many calls to one state node are in flight.
	submitCalls = 4
	// submitSends and submitBytes bound one call.
	submitSends = 200
	submitBytes = 256 << 10
	// submitWaiting is how many sends of the whole node may wait for a call.
	submitWaiting = 4096
	// crowded is how many sends of one conversation may wait before they get a
	// call of their own, and crowdedSends how many that takes. Others would have to
	// wait in it until the last of them is stored.
	crowded, crowdedSends = 16, 50
	// crowdedCalls is how many of the calls may be such ones.
	crowdedCalls = submitCalls / 2
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

// submitter carries all runs of this node to state. A call takes all that wait
// for one state node, so that a busy node makes few large calls, and a slow state
// node holds up its own conversations only. Safe for concurrent use.
type submitter struct {
	state submitClient
	// home names the state node of a conversation; nil = there is only one.
	home func(conv string) im.NodeID
	m    *metrics
	ctx  context.Context // of the module's Run; ends the calls
	run  func(func())
	now  func() time.Time

	mu     sync.Mutex
	queues map[im.NodeID]*submitQueue // those with calls
	sends  int                        // waiting in all
}

// submitQueue is what waits for one state node.
type submitQueue struct {
	node    im.NodeID
	waiting []submission
	calls   int             // in flight
	sends   map[string]int  // waiting, by conversation
	alone   map[string]bool // conversations with a call of their own in flight
}

// offer takes a run. false = too many wait; its owner hears nothing more.
func (b *submitter) offer(s submission) bool {
	node := im.NodeID("")
	if b.home != nil {
		node = b.home(s.out.Run.ConversationId)
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	n := len(s.out.Run.Sends)
	if b.sends > 0 && b.sends+n > submitWaiting {
		return false
	}
	q := b.queues[node]
	if q == nil {
		if b.queues == nil {
			b.queues = map[im.NodeID]*submitQueue{}
		}
		q = &submitQueue{node: node, sends: map[string]int{}, alone: map[string]bool{}}
		b.queues[node] = q
	}
	s.offered = b.now()
	q.waiting = append(q.waiting, s)
	q.sends[s.out.Run.ConversationId] += n
	b.sends += n
	if q.calls < submitCalls {
		q.calls++
		b.run(func() { b.work(q) })
	}
	return true
}

// work makes calls until nothing waits.
func (b *submitter) work(q *submitQueue) {
	for {
		batch, late, alone := b.take(q)
		for _, s := range late {
			s.owner.submitted(s.out.Run.ConversationId, s.out.Token, nil, protocol.NewError("busy", "", 0))
		}
		if len(batch) > 0 {
			b.call(batch)
			b.back(q, alone)
		} else if len(late) == 0 {
			return
		}
	}
}

// take removes what goes into the next call, oldest first: sends of one crowded
// conversation, which it names, or those of all others. If there is nothing
// the caller is no call any more.
func (b *submitter) take(q *submitQueue) (batch, late []submission, alone string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	now, sends, bytes := b.now(), 0, 0
	kept := q.waiting[:0]
	for i, s := range q.waiting {
		n, conv := len(s.out.Run.Sends), s.out.Run.ConversationId
		if now.Sub(s.offered) > submitAge {
			late = append(late, s)
			b.gone(q, s)
			continue
		}
		if len(batch) == 0 && q.mayBeAlone(conv) {
			alone = conv
			q.alone[conv] = true
		}
		most := submitSends
		if alone != "" {
			most = crowdedSends
		}
		if alone != "" && conv != alone || alone == "" && q.crowd(conv) {
			kept = append(kept, s)
			continue
		}
		if len(batch) > 0 && (sends+n > most || bytes+s.out.Size > submitBytes) {
			kept = append(kept, q.waiting[i:]...)
			break
		}
		batch = append(batch, s)
		b.gone(q, s)
		sends += n
		bytes += s.out.Size
	}
	clear(q.waiting[len(kept):])
	q.waiting = kept
	if len(q.waiting) == 0 {
		q.waiting = nil
	}
	if len(batch) == 0 && len(late) == 0 {
		if q.calls--; q.calls == 0 {
			delete(b.queues, q.node)
		}
	}
	return batch, late, alone
}

// gone counts a submission that waits no more.
func (b *submitter) gone(q *submitQueue, s submission) {
	n, conv := len(s.out.Run.Sends), s.out.Run.ConversationId
	b.sends -= n
	if q.sends[conv] -= n; q.sends[conv] == 0 {
		delete(q.sends, conv)
	}
}

// back takes note that the call of a crowded conversation has ended.
func (b *submitter) back(q *submitQueue, alone string) {
	if alone == "" {
		return
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	delete(q.alone, alone)
}

// crowd reports whether a conversation shares no call with others.
func (q *submitQueue) crowd(conv string) bool { return q.alone[conv] || q.sends[conv] > crowded }

// mayBeAlone reports whether the next call may be that of one conversation.
func (q *submitQueue) mayBeAlone(conv string) bool {
	return q.sends[conv] > crowded && !q.alone[conv] && len(q.alone) < crowdedCalls
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

package push

import (
	"context"
	"sync"

	v1 "github.com/imdhq/imd/proto/gen/internalv1"
)

// maxBatch is the most items of one conversation taken at a time, so that a hot
// conversation takes turns with the others.
const maxBatch = 64

// queue holds items by conversation. A conversation is handed to one worker at
// a time, so its items are worked on in order. Safe for concurrent use.
type queue struct {
	capacity int

	mu     sync.Mutex
	size   int // items waiting or in work
	byConv map[string]*pile
	ready  []*pile       // piles with items that no worker has
	wake   chan struct{} // capacity 1: there may be something in ready
}

// pile is what waits for one conversation.
type pile struct {
	conv   string
	items  []*v1.FanoutItem
	inWork bool
}

// batch is what a worker has taken.
type batch struct {
	pile  *pile
	items []*v1.FanoutItem
}

func newQueue(capacity int) *queue {
	return &queue{capacity: capacity, byConv: map[string]*pile{}, wake: make(chan struct{}, 1)}
}

// put appends all items or none.
func (q *queue) put(items []*v1.FanoutItem) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.size+len(items) > q.capacity {
		return false
	}
	q.size += len(items)
	for _, it := range items {
		p := q.byConv[it.ConversationId]
		if p == nil {
			p = &pile{conv: it.ConversationId}
			q.byConv[it.ConversationId] = p
		}
		p.items = append(p.items, it)
		if !p.inWork && len(p.items) == 1 {
			q.ready = append(q.ready, p)
		}
	}
	q.signal()
	return true
}

// take waits for a conversation with items; false once ctx is done.
func (q *queue) take(ctx context.Context) (batch, bool) {
	for {
		q.mu.Lock()
		if len(q.ready) > 0 {
			p := q.ready[0]
			q.ready = q.ready[1:]
			n := min(len(p.items), maxBatch)
			b := batch{p, p.items[:n:n]}
			p.items = p.items[n:]
			p.inWork = true
			if len(q.ready) > 0 {
				q.signal()
			}
			q.mu.Unlock()
			return b, true
		}
		q.mu.Unlock()
		select {
		case <-ctx.Done():
			return batch{}, false
		case <-q.wake:
		}
	}
}

// done gives the conversation back.
func (q *queue) done(b batch) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.size -= len(b.items)
	b.pile.inWork = false
	if len(b.pile.items) == 0 {
		delete(q.byConv, b.pile.conv)
		return
	}
	q.ready = append(q.ready, b.pile)
	q.signal()
}

func (q *queue) signal() {
	select {
	case q.wake <- struct{}{}:
	default:
	}
}

func (q *queue) len() int {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.size
}

package push

import (
	"context"
	"sync"

	v1 "github.com/imdhq/imd/proto/gen/internalv1"
)

const (
	// maxBatch is the most items of one conversation taken at a time, so that a hot
	// conversation takes turns with the others.
	maxBatch = 64
	// itemBytes is what an item takes beside its content.
	itemBytes = 512
)

// queue holds items by conversation. A conversation is handed to one worker at
// a time, so its items are worked on in order. Safe for concurrent use.
type queue struct {
	capacity int // items
	room     int // bytes

	mu     sync.Mutex
	size   int // items waiting or in work
	bytes  int // of them
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

// full is what of a queue does not suffice.
type full string

const (
	fits         full = ""
	tooManyItems full = "items"
	tooManyBytes full = "bytes"
)

func newQueue(capacity, room int) *queue {
	return &queue{capacity: capacity, room: room, byConv: map[string]*pile{}, wake: make(chan struct{}, 1)}
}

// put appends all items, or none and says why.
func (q *queue) put(items []*v1.FanoutItem) full {
	bytes := weigh(items)
	q.mu.Lock()
	defer q.mu.Unlock()
	switch {
	case q.size+len(items) > q.capacity:
		return tooManyItems
	case q.bytes+bytes > q.room:
		return tooManyBytes
	}
	q.size += len(items)
	q.bytes += bytes
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
	return fits
}

// weigh is about how many bytes items take in memory.
func weigh(items []*v1.FanoutItem) (bytes int) {
	for _, it := range items {
		e := it.GetEntry()
		c := e.GetContent()
		bytes += itemBytes + len(c.GetText()) + len(c.GetData())
		for k, v := range c.GetAttributes() {
			bytes += len(k) + len(v)
		}
		for _, users := range [][]string{it.AlsoUserIds, it.OnlyUserIds, e.GetMemberChange().GetUserIds()} {
			for _, u := range users {
				bytes += len(u) + 16
			}
		}
	}
	return bytes
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
	bytes := weigh(b.items)
	q.mu.Lock()
	defer q.mu.Unlock()
	q.size -= len(b.items)
	q.bytes -= bytes
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

// len is how many items wait or are in work.
func (q *queue) len() int {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.size
}

// held is how many bytes these items take.
func (q *queue) held() int {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.bytes
}

package imd

import (
	"context"
	"iter"
	"slices"
	"strings"

	"github.com/imdhq/imd/sdk/go/gen/clientv1"
	"github.com/imdhq/imd/sdk/go/protocol"
	"github.com/imdhq/imd/sdk/go/timeline"
)

// Event is something that happened in a conversation: *EntryEvent,
// *ReceiptEvent, *TypingEvent, *LaggedEvent or *ResyncEvent. More may come; skip what is not
// known.
type Event interface {
	// Conversation returns the id of the conversation.
	Conversation() string
}

// EntryEvent is the next entry of a conversation's log. Per conversation they
// come in order, each once and none left out.
type EntryEvent struct {
	ConversationID string
	Entry          *clientv1.Entry // shared; must not be changed
}

// Conversation returns the id of the conversation.
func (e *EntryEvent) Conversation() string { return e.ConversationID }

// Text returns the entry's text, empty if it has none.
func (e *EntryEvent) Text() string { return e.Entry.GetContent().GetText() }

// IsMessage reports whether the entry is a message.
func (e *EntryEvent) IsMessage() bool {
	return e.Entry.GetKind() == clientv1.EntryKind_ENTRY_KIND_MESSAGE
}

// ReceiptEvent tells how far a member has received and read. Only the newest
// one of a member counts, and earlier ones may be left out.
type ReceiptEvent struct {
	ConversationID string
	UserID         string
	DeliveredSeq   int64
	ReadSeq        int64
}

// Conversation returns the id of the conversation.
func (e *ReceiptEvent) Conversation() string { return e.ConversationID }

// LaggedEvent tells a reader that it has fallen behind what is in memory. What
// follows comes from the server's history, without a gap.
type LaggedEvent struct {
	ConversationID string
	After          int64 // the seq after which it goes on
}

// Conversation returns the id of the conversation.
func (e *LaggedEvent) Conversation() string { return e.ConversationID }

// ResyncEvent tells that the log is another one, because the server's store was
// restored or wiped: what was read before is void, and seqs begin anew.
type ResyncEvent struct {
	ConversationID string
}

// Conversation returns the id of the conversation.
func (e *ResyncEvent) Conversation() string { return e.ConversationID }

// subscription is who is woken when conversations change.
type subscription struct {
	id    string // of one conversation; empty = all
	wake  chan struct{}
	dirty []string // of all: what changed, in order, each once
	isOn  map[string]bool
}

// mark wakes those who read a conversation. The lock is held.
func (c *Client) mark(cv *conv) {
	for sub := range c.subs {
		switch {
		case sub.id == "":
			if !sub.isOn[cv.id] {
				sub.isOn[cv.id] = true
				sub.dirty = append(sub.dirty, cv.id)
			}
		case sub.id != cv.id:
			continue
		}
		signal(sub.wake)
	}
}

func (c *Client) subscribe(id string) (sub *subscription, cancel func()) {
	sub = &subscription{id: id, wake: make(chan struct{}, 1), isOn: make(map[string]bool)}
	c.mu.Lock()
	c.subs[sub] = struct{}{}
	if id == "" {
		for _, cv := range c.convs {
			c.mark(cv)
		}
	}
	c.mu.Unlock()
	return sub, func() {
		c.mu.Lock()
		delete(c.subs, sub)
		c.mu.Unlock()
	}
}

// take returns the conversations that changed and forgets them. The client's
// lock is taken.
func (c *Client) take(sub *subscription) []string {
	c.mu.Lock()
	defer c.mu.Unlock()
	dirty := sub.dirty
	sub.dirty = nil
	clear(sub.isOn)
	return dirty
}

// Events returns what happens in the conversation from now on, or behind the
// seq of After: history first, then live, without a gap between them. The loop
// ends with an error, which is the context's or why the client ended. A slow
// loop holds nobody up: see LaggedEvent.
func (cv *Conversation) Events(ctx context.Context, opts ...Option) iter.Seq2[Event, error] {
	o := options(opts)
	r := cv.client.reader(cv.id)
	if o.hasAfter {
		r.pos = o.after
	}
	return func(yield func(Event, error) bool) {
		sub, cancel := cv.client.subscribe(cv.id)
		defer cancel()
		if err := cv.reachable(ctx); err != nil {
			yield(nil, err)
			return
		}
		for {
			if !r.drain(ctx, yield) {
				return
			}
			if err := cv.client.await(ctx, sub); err != nil {
				yield(nil, err)
				return
			}
		}
	}
}

// reachable asks the server about a conversation that the client does not know.
// A direct one may simply not exist yet.
func (cv *Conversation) reachable(ctx context.Context) error {
	cv.client.mu.Lock()
	inner := cv.client.convs[cv.id]
	known := inner != nil && inner.tl.Known()
	cv.client.mu.Unlock()
	if known || cv.toUser != "" || strings.HasPrefix(cv.id, "d_") {
		return nil
	}
	_, err := cv.page(ctx, timeline.Request{}, 1)
	return err
}

// Events returns what happens in all conversations from now on, in the order of
// each. The loop ends as that of Conversation.Events.
func (c *Client) Events(ctx context.Context) iter.Seq2[Event, error] {
	readers := make(map[string]*reader)
	c.mu.Lock()
	for id := range c.convs {
		readers[id] = c.readerLocked(id)
	}
	c.mu.Unlock()
	return func(yield func(Event, error) bool) {
		sub, cancel := c.subscribe("")
		defer cancel()
		for {
			dirty := c.take(sub)
			for _, id := range dirty {
				r := readers[id]
				if r == nil {
					r = &reader{client: c, id: id, pos: unknownSeq}
					readers[id] = r
				}
				if !r.drain(ctx, yield) {
					return
				}
			}
			if len(dirty) > 0 {
				continue
			}
			if err := c.await(ctx, sub); err != nil {
				yield(nil, err)
				return
			}
		}
	}
}

// await waits for a change.
func (c *Client) await(ctx context.Context, sub *subscription) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	select {
	case <-sub.wake:
		return c.Err()
	case <-ctx.Done():
		return ctx.Err()
	case <-c.ctx.Done():
		return c.Err()
	}
}

// reader is one reader's place in one conversation.
type reader struct {
	client   *Client
	id       string
	pos      int64 // everything up to here was read; unknownSeq = from where the client begins
	resets   int
	live     bool // it was served from memory
	receiptN uint64
	typingN  uint64
}

// reader returns a reader that begins at what is here now.
func (c *Client) reader(id string) *reader {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.readerLocked(id)
}

func (c *Client) readerLocked(id string) *reader {
	r := &reader{client: c, id: id, pos: unknownSeq}
	if cv := c.convs[id]; cv != nil {
		r.resets, r.receiptN, r.typingN = cv.resets, cv.receiptN, cv.typingN
		if cv.tl.Known() {
			r.pos = cv.tl.Have()
		}
	}
	return r
}

// drain yields everything there is; it returns false if the loop has ended.
func (r *reader) drain(ctx context.Context, yield func(Event, error) bool) bool {
	for {
		events, more, err := r.next(ctx)
		for _, e := range events {
			if !yield(e, nil) {
				return false
			}
		}
		if err != nil {
			yield(nil, err)
			return false
		}
		if !more {
			return true
		}
	}
}

// next returns the next events; more tells to come again at once.
func (r *reader) next(ctx context.Context) (events []Event, more bool, err error) {
	c := r.client
	c.mu.Lock()
	cv := c.convs[r.id]
	if cv == nil || !cv.tl.Known() {
		c.mu.Unlock()
		return nil, false, nil
	}
	if cv.resets != r.resets {
		r.resets, r.pos, r.live, r.receiptN = cv.resets, unknownSeq, false, 0
		events = append(events, &ResyncEvent{ConversationID: r.id})
	}
	if r.pos == unknownSeq {
		r.pos = cv.first
	}
	have := cv.tl.Have()
	behind := r.pos < have && r.pos < cv.recentFrom
	if r.pos < have && !behind {
		at, _ := slices.BinarySearchFunc(cv.recent, r.pos+1, func(e *clientv1.Entry, seq int64) int { return int(e.Seq - seq) })
		for _, e := range cv.recent[at:] {
			events = append(events, &EntryEvent{ConversationID: r.id, Entry: e})
		}
		r.pos, r.live = have, true
	}
	events = append(events, r.receipts(cv)...)
	events = append(events, r.typing(cv)...)
	c.mu.Unlock()
	if !behind {
		return events, false, nil
	}
	if r.live {
		r.live = false
		events = append(events, &LaggedEvent{ConversationID: r.id, After: r.pos})
	}
	old, err := r.history(ctx, have)
	return append(events, old...), true, err
}

// history reads one page behind pos from the server.
func (r *reader) history(ctx context.Context, have int64) ([]Event, error) {
	conversation := r.client.Conversation(r.id)
	page, err := conversation.page(ctx, timeline.Request{After: r.pos}, protocol.MaxHistoryLimit)
	if err != nil {
		return nil, err
	}
	var events []Event
	for _, e := range page.Entries {
		if timeline.Shows(e.Kind) {
			events = append(events, &EntryEvent{ConversationID: r.id, Entry: e})
		}
	}
	if page.CompleteTo > r.pos {
		r.pos = page.CompleteTo
	} else if page.End {
		r.pos = have // there is nothing any more that this user may see
	}
	return events, nil
}

// receipts returns those that are new to the reader. The lock is held.
func (r *reader) receipts(cv *conv) []Event {
	if cv.receiptN == r.receiptN {
		return nil
	}
	var fresh []receiptNote
	for _, note := range cv.receipts {
		if note.n > r.receiptN {
			fresh = append(fresh, note)
		}
	}
	r.receiptN = cv.receiptN
	slices.SortFunc(fresh, func(a, b receiptNote) int { return int(a.n) - int(b.n) })
	events := make([]Event, 0, len(fresh))
	for _, note := range fresh {
		events = append(events, &ReceiptEvent{
			ConversationID: cv.id,
			UserID:         note.receipt.UserId,
			DeliveredSeq:   note.receipt.DeliveredSeq,
			ReadSeq:        note.receipt.ReadSeq,
		})
	}
	return events
}

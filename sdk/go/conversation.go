package imd

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"slices"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/imdhq/imd/sdk/go/gen/clientv1"
	"github.com/imdhq/imd/sdk/go/gen/imdv1"
	"github.com/imdhq/imd/sdk/go/outbox"
	"github.com/imdhq/imd/sdk/go/protocol"
	"github.com/imdhq/imd/sdk/go/timeline"
)

// Conversation is a handle on one conversation. It is cheap, holds nothing, and
// may be made for conversations that the user is not in.
type Conversation struct {
	client *Client
	id     string
	toUser string // of a direct conversation that may not exist yet
}

// ConversationInfo is what the client knows of a conversation at a moment.
type ConversationInfo struct {
	ID          string
	Kind        clientv1.ConversationKind
	Name        string          // of a group
	PeerID      string          // of a direct conversation: the other user
	Role        clientv1.Role   // unspecified = not a member any more
	Have        int64           // everything up to here is on this device
	HeadSeq     int64           // the newest entry
	ReadSeq     int64           // how far the user has read
	Unread      uint32          // at most protocol.MaxUnread, to be shown as 999+
	LastMessage *clientv1.Entry // nil if there is none; must not be changed
	Closed      bool
	MemberCount uint32
}

// Conversation returns the handle of a conversation by its id.
func (c *Client) Conversation(id string) *Conversation { return &Conversation{client: c, id: id} }

// Direct returns the handle of the direct conversation with a user. It exists
// from its first message on.
func (c *Client) Direct(userID string) *Conversation {
	return &Conversation{client: c, id: protocol.DirectID(c.UserID(), userID), toUser: userID}
}

// Conversations returns what the client knows, the latest active first.
func (c *Client) Conversations() []ConversationInfo {
	c.mu.Lock()
	defer c.mu.Unlock()
	var all []ConversationInfo
	for _, cv := range c.recent() {
		if cv.state != nil {
			all = append(all, cv.info())
		}
	}
	slices.SortStableFunc(all, func(a, b ConversationInfo) int {
		return int(b.LastMessage.GetServerTimeMs()/1000 - a.LastMessage.GetServerTimeMs()/1000)
	})
	return all
}

func (cv *conv) info() ConversationInfo {
	st := cv.state
	return ConversationInfo{
		ID:          cv.id,
		Kind:        st.GetKind(),
		Name:        st.GetName(),
		PeerID:      st.GetPeerId(),
		Role:        st.GetRole(),
		Have:        cv.tl.Have(),
		HeadSeq:     max(st.GetHeadSeq(), cv.tl.Have()),
		ReadSeq:     cv.tl.ReadSeq(),
		Unread:      cv.tl.Unread(),
		LastMessage: st.GetLastMessage(),
		Closed:      st.GetClosed(),
		MemberCount: st.GetMemberCount(),
	}
}

// Schedule has the server send a message at a later time. The message then comes
// like any other, with the client message id of the answer. See API for the list,
// and to cancel it.
func (cv *Conversation) Schedule(ctx context.Context, at time.Time, content *Content) (*imdv1.ScheduledMessage, error) {
	in := &imdv1.ScheduleRequest{Content: content, SendAtMs: at.UnixMilli(), To: &imdv1.ScheduleRequest_ConversationId{ConversationId: cv.id}}
	if cv.toUser != "" {
		in.To = &imdv1.ScheduleRequest_ToUser{ToUser: cv.toUser}
	}
	return cv.client.API().Schedule(ctx, in)
}

// SendTo sends a message to a user, in their direct conversation. It returns at
// once; Acked tells the outcome.
func (c *Client) SendTo(_ context.Context, userID string, content *Content) *Outgoing {
	return c.Direct(userID).Send(content)
}

// ID returns the conversation's id.
func (cv *Conversation) ID() string { return cv.id }

// Info returns what the client knows of the conversation; ok is false if that
// is nothing.
func (cv *Conversation) Info() (info ConversationInfo, ok bool) {
	cv.client.mu.Lock()
	defer cv.client.mu.Unlock()
	if c := cv.client.convs[cv.id]; c != nil && c.state != nil {
		return c.info(), true
	}
	return ConversationInfo{ID: cv.id}, false
}

// Send sends a message. It returns at once, and the message is in Items as
// pending; messages of a conversation are stored in the order of the calls.
func (cv *Conversation) Send(content *Content) *Outgoing {
	return cv.SendWithID(NewID(), content)
}

// SendWithID is Send with a client message id of the caller's own, for messages
// that outlive the program: the same id with the same content is stored once. A
// message with the id of one that waits is that one.
func (cv *Conversation) SendWithID(clientMessageID string, content *Content) *Outgoing {
	return cv.send(&clientv1.Send{ClientMessageId: clientMessageID, Content: content})
}

// Edit replaces a message's content. The server must have the feature "edit".
func (cv *Conversation) Edit(seq int64, content *Content) *Outgoing {
	return cv.send(&clientv1.Send{ClientMessageId: NewID(), Kind: clientv1.EntryKind_ENTRY_KIND_EDIT, TargetSeq: seq, Content: content})
}

// Recall takes a message's content away for everybody. The server must have the
// feature "recall".
func (cv *Conversation) Recall(seq int64) *Outgoing {
	return cv.send(&clientv1.Send{ClientMessageId: NewID(), Kind: clientv1.EntryKind_ENTRY_KIND_RECALL, TargetSeq: seq})
}

func (cv *Conversation) send(s *clientv1.Send) *Outgoing {
	out := &Outgoing{ClientMessageID: s.ClientMessageId, ConversationID: cv.id, done: make(chan struct{})}
	if err := cv.check(s); err != nil {
		out.finish(Stored{}, err)
		return out
	}
	if cv.toUser != "" {
		s.To = &clientv1.Send_ToUser{ToUser: cv.toUser}
	} else {
		s.To = &clientv1.Send_ConversationId{ConversationId: cv.id}
	}
	if s.Content != nil {
		s.Content = proto.CloneOf(s.Content)
	}
	return cv.client.enqueue(s, out)
}

// check refuses what the server would refuse, without asking.
func (cv *Conversation) check(s *clientv1.Send) error {
	reason, detail := "", ""
	switch {
	case cv.toUser != "" && !protocol.ValidID(cv.toUser):
		reason = protocol.ReasonInvalidID
	case cv.toUser == "" && !protocol.ValidID(cv.id):
		reason = protocol.ReasonInvalidID
	case !protocol.ValidUUID(s.ClientMessageId):
		reason, detail = protocol.ReasonBadRequest, "the client message id is not a UUID of version 4 or 7 in lower case"
	case s.Kind == clientv1.EntryKind_ENTRY_KIND_RECALL:
	default:
		reason = protocol.CheckContent(s.Content)
	}
	if reason == "" {
		return nil
	}
	return fromWire(protocol.NewError(reason, detail, 0))
}

// enqueue puts a message into the outbox and its echo into the timeline.
func (c *Client) enqueue(s *clientv1.Send, out *Outgoing) *Outgoing {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.err != nil {
		out.finish(Stored{}, c.err)
		return out
	}
	if waiting := c.outbox.Get(s.ClientMessageId); waiting != nil {
		return waiting.Value
	}
	out.client = c
	if !c.outbox.Add(&outbox.Message[*Outgoing]{ID: s.ClientMessageId, Conversation: out.ConversationID, Send: s, Value: out}) {
		out.finish(Stored{}, ErrOutboxFull)
		return out
	}
	if cv := c.convs[out.ConversationID]; cv != nil {
		cv.typedAt = time.Time{} // what is typed next is told at once
	}
	if !c.opts.SendOnly {
		cv := c.conv(out.ConversationID)
		cv.tl.Send(&clientv1.Entry{
			ClientMessageId: s.ClientMessageId,
			Kind:            s.Kind,
			Content:         s.Content,
			TargetSeq:       s.TargetSeq,
		})
		c.mark(cv)
	}
	c.pump(time.Now())
	signal(c.wake)
	return out
}

// withdraw takes a message back.
func (c *Client) withdraw(id string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	m := c.outbox.Withdraw(id)
	if m == nil {
		return
	}
	m.Value.finish(Stored{}, ErrWithdrawn)
	if cv := c.convs[m.Conversation]; cv != nil {
		cv.tl.Withdraw(id)
		c.mark(cv)
	}
	c.pump(time.Now())
	signal(c.wake)
}

// Items returns the conversation as it is to be shown: the newest entries in
// order, then what is pending or failed. Earlier entries come with LoadOlder.
func (cv *Conversation) Items() []timeline.Item {
	cv.client.mu.Lock()
	defer cv.client.mu.Unlock()
	if c := cv.client.convs[cv.id]; c != nil {
		return c.tl.Items()
	}
	return nil
}

// LoadOlder reads the page before the first of Items and reports whether there
// may be more before that.
func (cv *Conversation) LoadOlder(ctx context.Context) (more bool, err error) {
	c := cv.client
	c.mu.Lock()
	inner := c.convs[cv.id]
	if inner == nil || !inner.tl.Older() {
		c.mu.Unlock()
		return false, nil
	}
	req := inner.tl.OlderRequest()
	c.mu.Unlock()
	page, err := cv.page(ctx, req, protocol.HistoryLimit)
	if err != nil {
		return true, err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.convs[cv.id] == inner {
		c.effects(inner, inner.tl.Page(c.ms(time.Now()), req, page))
		c.mark(inner)
		signal(c.wake)
	}
	return inner.tl.Older(), nil
}

// MarkRead moves the user's read position up to seq; it never goes down.
func (cv *Conversation) MarkRead(ctx context.Context, seq int64) error {
	_, err := cv.client.call(ctx, func() *clientv1.ClientFrame {
		return &clientv1.ClientFrame{Kind: &clientv1.ClientFrame_Read{Read: &clientv1.Read{ConversationId: cv.id, Seq: seq}}}
	})
	return err
}

// Option narrows what is read.
type Option func(*readOptions)

type readOptions struct {
	after    int64
	hasAfter bool
	before   int64
	limit    int
	backward bool
}

// After begins behind a seq; 0 is the beginning of the log.
func After(seq int64) Option {
	return func(o *readOptions) { o.after, o.hasAfter = seq, true }
}

// Before ends before a seq. It means nothing to Events.
func Before(seq int64) Option { return func(o *readOptions) { o.before = seq } }

// Limit ends after n entries. It means nothing to Events.
func Limit(n int) Option { return func(o *readOptions) { o.limit = n } }

// Backward begins at the newest entry. It means nothing to Events.
func Backward() Option { return func(o *readOptions) { o.backward = true } }

func options(opts []Option) readOptions {
	var o readOptions
	for _, opt := range opts {
		opt(&o)
	}
	return o
}

// History reads the log from the server, page by page as the loop goes on. It
// ends at the newest entry there is when it gets there, or with an error.
func (cv *Conversation) History(ctx context.Context, opts ...Option) iter.Seq2[*clientv1.Entry, error] {
	o := options(opts)
	return func(yield func(*clientv1.Entry, error) bool) {
		left := o.limit
		req := timeline.Request{After: o.after, Before: o.before, Backward: o.backward}
		for {
			limit := protocol.HistoryLimit
			if o.limit > 0 {
				limit = min(limit, left)
			}
			page, err := cv.page(ctx, req, limit)
			if err != nil {
				yield(nil, err)
				return
			}
			entries := page.Entries
			if o.backward {
				entries = slices.Clone(entries)
				slices.Reverse(entries)
			}
			for _, e := range entries {
				if !yield(e, nil) {
					return
				}
				if left--; left == 0 {
					return
				}
			}
			if page.End {
				return
			}
			if o.backward {
				req.Before = page.CompleteFrom
			} else {
				req.After = page.CompleteTo
			}
		}
	}
}

// page reads one page, on as many connections as it takes.
func (cv *Conversation) page(ctx context.Context, req timeline.Request, limit int) (*clientv1.Page, error) {
	answer, err := cv.client.call(ctx, func() *clientv1.ClientFrame { return historyFrame(cv.id, req, limit) })
	if err != nil {
		return nil, err
	}
	page := answer.GetHistoryResult().GetPage()
	if page == nil {
		return &clientv1.Page{End: true, CompleteFrom: req.After + 1, CompleteTo: req.After}, nil
	}
	if !page.End && page.CompleteTo < page.CompleteFrom {
		return nil, lost("a page without progress")
	}
	return page, nil
}

// call makes a request and waits for its answer, again on the next connection
// if one is lost. Retryable answers are tried again.
func (c *Client) call(ctx context.Context, frame func() *clientv1.ClientFrame) (*clientv1.ServerFrame, error) {
	select {
	case c.slots <- struct{}{}:
		defer func() { <-c.slots }()
	case <-ctx.Done():
		return nil, ctx.Err()
	case <-c.ctx.Done():
		return nil, c.Err()
	}
	for attempt := 0; ; attempt++ {
		answer, err := c.callOnce(ctx, frame())
		var e *Error
		switch {
		case errors.Is(err, errMoved):
			continue
		case errors.As(err, &e) && e.Retryable:
			if waitErr := c.pause(ctx, max(e.RetryAfter, backoff(attempt, 0))); waitErr != nil {
				return nil, fmt.Errorf("%w (last: %w)", waitErr, err)
			}
			continue
		}
		return answer, err
	}
}

func (c *Client) pause(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	case <-c.ctx.Done():
		return c.Err()
	}
}

type answer struct {
	frame *clientv1.ServerFrame
	err   error
}

// callOnce waits for a session and makes one request on it.
func (c *Client) callOnce(ctx context.Context, f *clientv1.ClientFrame) (*clientv1.ServerFrame, error) {
	got := make(chan answer, 1)
	for {
		c.mu.Lock()
		s, avail, err := c.cur, c.avail, c.err
		ok := err == nil && s != nil && s.cause == nil && !s.closing
		if ok {
			s.request(f, func(f *clientv1.ServerFrame, err error) { got <- answer{f, err} })
			signal(c.wake)
		}
		c.mu.Unlock()
		if err != nil {
			return nil, err
		}
		if ok {
			break
		}
		select {
		case <-avail:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
	select {
	case a := <-got:
		return a.frame, a.err
	case <-ctx.Done():
		return nil, ctx.Err()
	case <-c.ctx.Done():
		return nil, c.Err()
	}
}

package imd

import (
	"context"
	"sync/atomic"
	"time"

	"github.com/imdhq/imd/sdk/go/gen/clientv1"
)

// Stored says where a sent message is in the log.
type Stored struct {
	ConversationID string
	MessageID      int64 // 0 if the message was found in the log before its answer came
	Seq            int64
	PrevSeq        int64
	ServerTime     time.Time
	Duplicate      bool // it was stored before; all as in the first answer
}

// Outgoing is a message on its way. It stays in the client's outbox, over any
// number of connections, until the server has stored or refused it for good.
type Outgoing struct {
	// ClientMessageID identifies the message; the server stores it once
	// however often it is sent.
	ClientMessageID string
	// ConversationID is where it goes.
	ConversationID string

	client  *Client
	done    chan struct{} // closed once stored or err is set
	stored  Stored
	err     error
	refusal atomic.Pointer[Error]
}

// Refused is why the server last refused the message for now; nil if it never
// did. The message is sent again by itself; this is for people who wait.
func (o *Outgoing) Refused() *Error { return o.refusal.Load() }

// Acked waits for the outcome. The error is an *Error if the server refused the
// message for good, ErrWithdrawn, ErrOutboxFull, ErrClosed, what ended the
// client, or the context's; only after the last may the message still be stored
// later by this client.
func (o *Outgoing) Acked(ctx context.Context) (Stored, error) {
	select {
	case <-o.done:
		return o.stored, o.err
	default:
	}
	select {
	case <-o.done:
		return o.stored, o.err
	case <-ctx.Done():
		return Stored{}, ctx.Err()
	}
}

// Done is closed when the outcome is known.
func (o *Outgoing) Done() <-chan struct{} { return o.done }

// Withdraw takes the message back unless its outcome is known. It may have been
// stored all the same, and then appears in the conversation.
func (o *Outgoing) Withdraw() {
	if o.client != nil {
		o.client.withdraw(o.ClientMessageID)
	}
}

// finish tells the outcome, once.
func (o *Outgoing) finish(s Stored, err error) {
	o.stored, o.err = s, err
	close(o.done)
}

func storedByAck(a *clientv1.SendAck) Stored {
	return Stored{
		ConversationID: a.ConversationId,
		MessageID:      a.MessageId,
		Seq:            a.Seq,
		PrevSeq:        a.PrevSeq,
		ServerTime:     time.UnixMilli(a.ServerTimeMs),
		Duplicate:      a.Duplicate,
	}
}

func storedByEntry(conversationID string, e *clientv1.Entry) Stored {
	return Stored{
		ConversationID: conversationID,
		MessageID:      e.MessageId,
		Seq:            e.Seq,
		PrevSeq:        e.PrevSeq,
		ServerTime:     time.UnixMilli(e.ServerTimeMs),
	}
}

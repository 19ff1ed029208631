package status

import (
	"context"
	"time"

	"github.com/imdhq/imd/pkg/im"
	v1 "github.com/imdhq/imd/proto/gen/internalv1"
	"github.com/imdhq/imd/sdk/go/gen/clientv1"
)

// Bounds of the search for a message in the store. An id is made a moment before
// its message is stored; it may take longer while the store is away.
const (
	searchBefore = 5 * time.Second // clocks of nodes differ
	searchAfter  = 2 * time.Minute
	searchPages  = 20
	searchPage   = 200
	searchLimit  = 5 * time.Second // for all of it
)

// historian is what the search asks of the state role.
type historian interface {
	History(context.Context, *v1.HistoryRequest) (*v1.HistoryResponse, error)
}

// StoredMessage is a message as the store has it.
type StoredMessage struct {
	Conversation    string    `json:"conversation_id"`
	Seq             int64     `json:"seq,string"`
	Sender          string    `json:"sender,omitempty"` // empty = the system
	ClientMessageID string    `json:"client_message_id,omitempty"`
	Kind            string    `json:"kind"`
	At              time.Time `json:"at"`
}

// findStored looks for a message in its conversation: no store finds messages by
// their id alone. The time in the id says where to look. nil = it is not there.
func findStored(ctx context.Context, h historian, conv string, id im.MessageID, made time.Time) (*StoredMessage, error) {
	ctx, cancel := context.WithTimeout(ctx, searchLimit)
	defer cancel()
	newest, err := entries(ctx, h, &clientv1.History{ConversationId: conv, Limit: 1, Backward: true})
	if err != nil || len(newest) == 0 {
		return nil, err
	}
	// From low on, every entry may be young enough; before it, none is.
	low, high := int64(1), newest[0].Seq+1
	for low < high {
		middle := low + (high-low)/2
		some, err := entries(ctx, h, &clientv1.History{ConversationId: conv, AfterSeq: middle - 1, Limit: 1})
		switch {
		case err != nil:
			return nil, err
		case len(some) == 0 || !at(some[0]).Before(made.Add(-searchBefore)):
			high = middle
		default:
			low = max(middle, some[0].Seq) + 1
		}
	}
	for range searchPages {
		some, err := entries(ctx, h, &clientv1.History{ConversationId: conv, AfterSeq: low - 1, Limit: searchPage})
		if err != nil || len(some) == 0 {
			return nil, err
		}
		for _, e := range some {
			if e.MessageId == int64(id) {
				return &StoredMessage{conv, e.Seq, e.Sender, e.ClientMessageId, kindWord(e.Kind), at(e)}, nil
			}
			if at(e).After(made.Add(searchAfter)) {
				return nil, nil
			}
			low = e.Seq + 1
		}
	}
	return nil, nil
}

// entries reads one page as the system.
func entries(ctx context.Context, h historian, q *clientv1.History) ([]*clientv1.Entry, error) {
	res, err := h.History(ctx, &v1.HistoryRequest{History: q, MaxBytes: 1 << 20})
	if err != nil {
		return nil, err
	}
	return res.GetResult().GetPage().GetEntries(), nil
}

func at(e *clientv1.Entry) time.Time { return time.UnixMilli(e.ServerTimeMs) }

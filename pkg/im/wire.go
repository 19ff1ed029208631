package im

import (
	"google.golang.org/protobuf/proto"

	"github.com/imdhq/imd/sdk/go/gen/clientv1"
)

// WireEntry is an entry as clients see it: of changes the request id is left
// out. What cannot be decoded is left out too, so that one damaged row does not
// keep the rest of a log from its readers.
func WireEntry(e *Entry) *clientv1.Entry {
	w := &clientv1.Entry{
		Seq: int64(e.Seq), PrevSeq: int64(e.PrevSeq), Kind: e.Kind, MessageId: int64(e.MessageID), Sender: string(e.Sender),
		ServerTimeMs: e.ServerTime.UnixMilli(), TargetSeq: int64(e.TargetSeq), Countable: e.Countable, ChangedSeq: int64(e.ChangedSeq),
	}
	if sent(e.Kind) {
		w.ClientMessageId = string(e.ClientMessageID)
	}
	if e.Content != nil {
		w.Content = decoded[clientv1.Content](e.Content)
	}
	switch e.Kind {
	case clientv1.EntryKind_ENTRY_KIND_MEMBER_CHANGE:
		w.MemberChange = decoded[clientv1.MemberChange](e.Change)
	case clientv1.EntryKind_ENTRY_KIND_CONVERSATION_CHANGE:
		w.ConversationChange = decoded[clientv1.ConversationChange](e.Change)
	}
	return w
}

// sent reports whether entries of this kind are made by sends.
func sent(k clientv1.EntryKind) bool {
	switch k {
	case clientv1.EntryKind_ENTRY_KIND_MESSAGE, clientv1.EntryKind_ENTRY_KIND_EDIT,
		clientv1.EntryKind_ENTRY_KIND_RECALL, clientv1.EntryKind_ENTRY_KIND_REACTION:
		return true
	}
	return false
}

// decoded decodes b; nil if it is damaged.
func decoded[T any, P interface {
	*T
	proto.Message
}](b []byte) P {
	p := P(new(T))
	if proto.Unmarshal(b, p) != nil {
		return nil
	}
	return p
}

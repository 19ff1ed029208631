package state

import (
	"google.golang.org/protobuf/proto"

	"github.com/imdhq/imd/pkg/im"
	"github.com/imdhq/imd/pkg/store"
	"github.com/imdhq/imd/sdk/go/gen/clientv1"
)

// wireEntry is an entry as clients see it: of changes the request id is left
// out. What cannot be decoded is left out too, so that one damaged row does not
// keep the rest of a log from its readers.
func wireEntry(e *im.Entry) *clientv1.Entry {
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

// wireState is one conversation as a list shows it, without a page.
func wireState(s *store.ConversationState) *clientv1.ConversationState {
	w := &clientv1.ConversationState{
		ConversationId: string(s.Conversation), Kind: s.Kind, Name: s.Name, PeerId: string(s.Peer), Role: s.Role,
		Start: int64(s.Start), HeadSeq: int64(s.Head), ReadSeq: int64(s.Read), UnreadCount: uint32(s.Unread),
		Closed: s.Closed, MemberCount: uint32(s.Members),
	}
	if s.Last != nil {
		w.LastMessage = wireEntry(s.Last)
	}
	if p := s.PeerMember; p != nil {
		w.Receipts = []*clientv1.Receipt{{
			ConversationId: w.ConversationId, UserId: string(p.User), DeliveredSeq: int64(p.Delivered), ReadSeq: int64(p.Read),
		}}
	}
	return w
}

// wirePage is a page of entries that fits into room bytes of JSON; at least one
// entry of p stays. backward says at which end to shorten.
func wirePage(p *store.HistoryPage, room int, backward bool, size func(*clientv1.Entry) int) *clientv1.Page {
	w := &clientv1.Page{CompleteFrom: int64(p.CompleteFrom), CompleteTo: int64(p.CompleteTo), End: p.End}
	n := len(p.Entries)
	for i := range n {
		at := i
		if backward {
			at = n - 1 - i
		}
		e := wireEntry(&p.Entries[at])
		if room -= size(e); room < 0 && i > 0 {
			w.End = false
			break
		}
		w.Entries = append(w.Entries, e)
	}
	kept := len(w.Entries)
	if backward {
		for i, j := 0, kept-1; i < j; i, j = i+1, j-1 {
			w.Entries[i], w.Entries[j] = w.Entries[j], w.Entries[i]
		}
	}
	if kept < n {
		if backward {
			w.CompleteFrom = w.Entries[0].Seq
		} else {
			w.CompleteTo = w.Entries[kept-1].Seq
		}
	}
	return w
}

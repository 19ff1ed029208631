package state

import (
	"github.com/imdhq/imd/pkg/im"
	"github.com/imdhq/imd/pkg/store"
	"github.com/imdhq/imd/sdk/go/gen/clientv1"
)

// wireState is one conversation as a list shows it, without a page.
func wireState(s *store.ConversationState, wire func(*im.Entry) *clientv1.Entry) *clientv1.ConversationState {
	w := &clientv1.ConversationState{
		ConversationId: string(s.Conversation), Kind: s.Kind, Name: s.Name, PeerId: string(s.Peer), Role: s.Role,
		Start: int64(s.Start), HeadSeq: int64(s.Head), ReadSeq: int64(s.Read), UnreadCount: uint32(s.Unread),
		Closed: s.Closed, MemberCount: uint32(s.Members),
	}
	if s.Last != nil {
		w.LastMessage = wire(s.Last)
	}
	if p := s.PeerMember; p != nil {
		w.Receipts = []*clientv1.Receipt{{
			ConversationId: w.ConversationId, UserId: string(p.User), DeliveredSeq: int64(p.Delivered), ReadSeq: int64(p.Read),
		}}
	}
	return w
}

// alike is the entries of groups that were made for answers of one call, by
// conversation and seq: who has missed the same is told the same. nil = none are kept.
type alike map[entryAt]*clientv1.Entry

// entryAt is where an entry stands.
type entryAt struct {
	conversation im.ConversationID
	seq          im.Seq
}

// of returns how the entries of a conversation are made. What it makes is only read.
func (a alike) of(s *store.ConversationState) func(*im.Entry) *clientv1.Entry {
	if a == nil || s.Kind != clientv1.ConversationKind_CONVERSATION_KIND_GROUP {
		return im.WireEntry
	}
	return func(e *im.Entry) *clientv1.Entry {
		at := entryAt{s.Conversation, e.Seq}
		w := a[at]
		if w == nil {
			w = im.WireEntry(e)
			a[at] = w
		}
		return w
	}
}

// wirePage is a page of entries that fits into room bytes of JSON; at least one
// entry of p stays. backward says at which end to shorten.
func wirePage(p *store.HistoryPage, room int, backward bool, size func(*clientv1.Entry) int, wire func(*im.Entry) *clientv1.Entry) *clientv1.Page {
	w := &clientv1.Page{CompleteFrom: int64(p.CompleteFrom), CompleteTo: int64(p.CompleteTo), End: p.End}
	n := len(p.Entries)
	for i := range n {
		at := i
		if backward {
			at = n - 1 - i
		}
		e := wire(&p.Entries[at])
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

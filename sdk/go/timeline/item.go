package timeline

import (
	"slices"

	"google.golang.org/protobuf/proto"

	"github.com/imdhq/imd/sdk/go/gen/clientv1"
)

// ItemState is where an item stands.
type ItemState uint8

const (
	// Sent is an entry of the log.
	Sent ItemState = iota
	// Pending was sent from here and is not known to be stored.
	Pending
	// Failed was refused for good.
	Failed
)

// String returns the state as a lower-case word.
func (s ItemState) String() string {
	switch s {
	case Pending:
		return "pending"
	case Failed:
		return "failed"
	}
	return "sent"
}

// Item is one line of the timeline.
type Item struct {
	State ItemState
	// Entry is the log's entry. Of what is not stored it has only the sender,
	// the client message id, the kind, the content and the target. It is shared
	// and must not be changed.
	Entry *clientv1.Entry
	// Reason tells why the item failed.
	Reason string
}

// Items returns the timeline: what is in the log, in order, then what is not,
// in the order of sending. Messages and changes of members or of the
// conversation are items; edits and recalls show in their messages.
func (t *Timeline) Items() []Item {
	all := make([]Item, 0, len(t.items)+len(t.local))
	for _, it := range t.items {
		all = append(all, *it)
	}
	for _, it := range t.local {
		all = append(all, *it)
	}
	return all
}

// Older reports whether there may be something before the first item.
func (t *Timeline) Older() bool { return t.known && t.floor > t.start+1 }

// OlderRequest returns the request for the page before the first item.
func (t *Timeline) OlderRequest() Request {
	return Request{After: t.start, Before: t.floor, Backward: true}
}

// Gaps returns what is left out between the items, lowest first.
func (t *Timeline) Gaps() []Gap {
	var gaps []Gap
	for i := 1; i < len(t.stretches); i++ {
		g := Gap{max(t.stretches[i-1].hi+1, t.floor), t.stretches[i].lo - 1}
		if g.From <= g.To {
			gaps = append(gaps, g)
		}
	}
	return gaps
}

// Send adds what is being sent as pending. e holds the client message id, kind,
// content and target; the timeline takes it over. An id that is pending is
// left as it is; one that failed is pending again.
func (t *Timeline) Send(e *clientv1.Entry) {
	if i := t.localIndex(e.ClientMessageId); i >= 0 {
		t.local[i].State, t.local[i].Reason = Pending, ""
		return
	}
	e.Sender = t.self
	if e.Kind == clientv1.EntryKind_ENTRY_KIND_UNSPECIFIED {
		e.Kind = clientv1.EntryKind_ENTRY_KIND_MESSAGE
	}
	t.local = append(t.local, &Item{State: Pending, Entry: e})
}

// Fail marks what was refused for good.
func (t *Timeline) Fail(clientMessageID, reason string) {
	if i := t.localIndex(clientMessageID); i >= 0 {
		t.local[i].State, t.local[i].Reason = Failed, reason
	}
}

// Withdraw takes back what is not stored. It may still appear as an entry.
func (t *Timeline) Withdraw(clientMessageID string) {
	if i := t.localIndex(clientMessageID); i >= 0 {
		t.local = slices.Delete(t.local, i, i+1)
	}
}

func (t *Timeline) localIndex(clientMessageID string) int {
	return slices.IndexFunc(t.local, func(it *Item) bool { return it.Entry.ClientMessageId == clientMessageID })
}

// takeOwn ends the wait of what turns out to be in the log.
func (t *Timeline) takeOwn(e *clientv1.Entry, fx *Effects) {
	if e.ClientMessageId == "" || e.Sender != t.self {
		return
	}
	if i := t.localIndex(e.ClientMessageId); i >= 0 {
		t.local = slices.Delete(t.local, i, i+1)
		fx.Sent = append(fx.Sent, e.ClientMessageId)
	}
}

// takeStored ends the wait of what was stored below have without being shown,
// because a newer page was taken instead.
func (t *Timeline) takeStored(fx *Effects) {
	t.local = slices.DeleteFunc(t.local, func(it *Item) bool {
		if it.Entry.Seq == 0 || it.Entry.Seq > t.have {
			return false
		}
		fx.Sent = append(fx.Sent, it.Entry.ClientMessageId)
		return true
	})
}

// Shows reports whether entries of a kind are shown; all others only move have.
func Shows(k clientv1.EntryKind) bool {
	return k >= clientv1.EntryKind_ENTRY_KIND_MESSAGE && k <= clientv1.EntryKind_ENTRY_KIND_REACTION
}

// apply makes an item of an entry, or changes the item it is about.
func (t *Timeline) apply(e *clientv1.Entry, fx *Effects) {
	switch e.Kind {
	case clientv1.EntryKind_ENTRY_KIND_MESSAGE,
		clientv1.EntryKind_ENTRY_KIND_MEMBER_CHANGE,
		clientv1.EntryKind_ENTRY_KIND_CONVERSATION_CHANGE:
		i, have := t.find(e.Seq)
		if have {
			t.refresh(i, e, fx)
			return
		}
		t.items = slices.Insert(t.items, i, &Item{State: Sent, Entry: e})
	case clientv1.EntryKind_ENTRY_KIND_EDIT, clientv1.EntryKind_ENTRY_KIND_RECALL:
		i, have := t.find(e.TargetSeq)
		if !have {
			return
		}
		changed := proto.CloneOf(t.items[i].Entry)
		changed.ChangedSeq, changed.Content = e.Seq, nil
		if e.Kind == clientv1.EntryKind_ENTRY_KIND_EDIT {
			changed.Content = e.Content
		}
		t.refresh(i, changed, fx)
	}
}

// refresh replaces an item's entry by a newer copy.
func (t *Timeline) refresh(i int, e *clientv1.Entry, fx *Effects) {
	if it := t.items[i]; e.ChangedSeq > it.Entry.ChangedSeq {
		t.items[i] = &Item{State: Sent, Entry: e}
		fx.Changed = append(fx.Changed, e.Seq)
	}
}

func (t *Timeline) find(seq int64) (int, bool) {
	return slices.BinarySearchFunc(t.items, seq, func(it *Item, seq int64) int { return compareSeq(it.Entry, seq) })
}

// trim holds the number of items to keep.
func (t *Timeline) trim() {
	if n := len(t.items) - t.keep; t.keep > 0 && n > 0 {
		t.floor = t.items[n-1].Entry.Seq + 1
		clear(t.items[:n])
		t.items = t.items[n:]
	}
}

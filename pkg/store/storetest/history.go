package storetest

import (
	"errors"
	"strings"

	"github.com/imdhq/imd/pkg/im"
	"github.com/imdhq/imd/pkg/store"
	"github.com/imdhq/imd/sdk/go/gen/clientv1"
)

// pageSizes are the limits at which paging is tried.
var pageSizes = []int{1, 7, 50, 300}

// bothWays reads everything in every page size and direction.
func bothWays(k *kit, conv im.ConversationID, reader im.UserID, want []im.Seq) {
	k.Helper()
	for _, limit := range pageSizes {
		for _, backward := range []bool{false, true} {
			got := k.walk(store.HistoryQuery{Reader: reader, Conversation: conv, Limit: limit, Backward: backward})
			same(k, "seen by "+string(reader), got, want)
		}
	}
}

func historyPages(k *kit) {
	conv := k.group("a", "b")
	k.fill(conv, "a", 299)
	bothWays(k, conv, "b", upTo(1, 300))
	bothWays(k, conv, "", upTo(1, 300))
	for _, limit := range pageSizes {
		for _, backward := range []bool{false, true} {
			got := k.walk(store.HistoryQuery{Reader: "b", Conversation: conv, After: 20, Before: 281, Limit: limit, Backward: backward})
			same(k, "interval", got, upTo(21, 280))
		}
	}
	p := k.history(store.HistoryQuery{Reader: "b", Conversation: conv, Limit: 10})
	same(k, "forward", []im.Seq{p.CompleteFrom, p.CompleteTo}, []im.Seq{1, 10})
	p = k.history(store.HistoryQuery{Reader: "b", Conversation: conv, Limit: 10, Backward: true})
	same(k, "backward", []im.Seq{p.CompleteFrom, p.CompleteTo}, []im.Seq{291, 300})
	p = k.history(store.HistoryQuery{Reader: "b", Conversation: conv, After: 290, Before: 1000})
	same(k, "beyond the head", []any{p.CompleteFrom, p.CompleteTo, p.End, len(p.Entries)}, []any{291, 300, true, 10})
	p = k.history(store.HistoryQuery{Reader: "b", Conversation: conv, After: 290, Limit: 10})
	same(k, "exactly full", []any{p.CompleteTo, p.End}, []any{300, true})
	p = k.history(store.HistoryQuery{Reader: "b", Conversation: conv, Limit: 1_000_000})
	same(k, "limit lowered", len(p.Entries), min(300, store.MaxPage))
}

func historyBytes(k *kit) {
	conv := k.group("a")
	for _, n := range []int{100, 100, 5000, 100} {
		k.sent(row(conv, "a", strings.Repeat("x", n)))
	}
	p := k.history(store.HistoryQuery{Reader: "a", Conversation: conv, After: 1, MaxBytes: 250})
	same(k, "forward", []any{len(p.Entries), p.CompleteTo, p.End}, []any{2, 3, false})
	p = k.history(store.HistoryQuery{Reader: "a", Conversation: conv, After: 3, MaxBytes: 250})
	same(k, "one too large", []any{len(p.Entries), p.CompleteTo, p.End}, []any{1, 4, false})
	p = k.history(store.HistoryQuery{Reader: "a", Conversation: conv, MaxBytes: 250, Backward: true})
	same(k, "backward", []any{len(p.Entries), p.CompleteFrom, p.CompleteTo, p.End}, []any{1, 5, 5, false})
	p = k.history(store.HistoryQuery{Reader: "a", Conversation: conv, MaxBytes: 1 << 20})
	same(k, "all", []any{len(p.Entries), p.End}, []any{5, true})
}

func historyEmpty(k *kit) {
	conv := k.group("a")
	k.fill(conv, "a", 4)
	for _, q := range []store.HistoryQuery{{After: 5}, {After: 3, Before: 4}, {After: 5, Backward: true}, {After: 90}} {
		q.Reader, q.Conversation = "a", conv
		p := k.history(q)
		if len(p.Entries) != 0 || !p.End || p.CompleteTo >= p.CompleteFrom {
			k.Errorf("%+v: %+v", q, p)
		}
	}
	for _, reader := range []im.UserID{"stranger", ""} {
		id := conv
		if reader == "" {
			id = "g_none"
		}
		_, err := k.s.History(k.ctx(), store.HistoryQuery{Reader: reader, Conversation: id, Limit: 5})
		if im.ReasonOf(err) != clientv1.Reason_REASON_NOT_MEMBER {
			k.Errorf("%q reads %s: %v", reader, id, err)
		}
	}
}

// borders has a member that joins, leaves, rejoins, is removed and rejoins.
func borders(k *kit) {
	conv := k.group("o")
	k.fill(conv, "o", 10)
	in := k.add(conv, "o", "m") // 12
	k.fill(conv, "o", 20)
	out := k.change(store.Change{Conversation: conv, Actor: "m", Leave: true}).Entry.Seq
	hidden := k.fill(conv, "o", 20)
	first := upTo(in, out)
	bothWays(k, conv, "m", first)
	p := k.history(store.HistoryQuery{Reader: "m", Conversation: conv, After: out - 1})
	same(k, "what ends at the own LEFT", []any{len(p.Entries), p.CompleteTo, p.End}, []any{1, out, true})
	if s := k.state(conv, "m"); s.Head != out || s.Start != in-1 || s.Role != clientv1.Role_ROLE_UNSPECIFIED {
		k.Errorf("state after leaving: %+v", s)
	}
	back := k.add(conv, "o", "m")
	same(k, "back behind what is hidden", back, hidden+1)
	k.fill(conv, "o", 5)
	gone := k.remove(conv, "o", "m")
	k.fill(conv, "o", 5)
	second := append(first, upTo(back, gone)...)
	bothWays(k, conv, "m", second)
	again := k.add(conv, "o", "m")
	last := k.fill(conv, "o", 3)
	bothWays(k, conv, "m", append(second, upTo(again, last)...))
	bothWays(k, conv, "o", upTo(1, last))
	s := k.state(conv, "m")
	same(k, "state", []any{s.Start, s.Head, s.Role, s.Unread}, []any{in - 1, last, clientv1.Role_ROLE_MEMBER, 28})
	k.sent(row(conv, "m", "own"))
	same(k, "own new message", k.seen(conv, "m")[len(k.seen(conv, "m"))-1], last+1)
}

func openHistory(k *kit) {
	conv := k.groupOf(store.CreateGroup{Name: "open", Owner: "o", OpenHistory: true})
	k.fill(conv, "o", 10)
	r := k.change(store.Change{Conversation: conv, Actor: "o", AddMembers: []im.UserID{"m"}})
	same(k, "start in the entry", memberChange(k, r.Entry).Start, 0)
	bothWays(k, conv, "m", upTo(1, 12))
	same(k, "unread", k.position(conv, "m").Unread, 10)
	out := k.remove(conv, "o", "m")
	k.fill(conv, "o", 10)
	bothWays(k, conv, "m", upTo(1, out))
	k.add(conv, "o", "m")
	bothWays(k, conv, "m", upTo(1, out+11))
	same(k, "start", k.state(conv, "m").Start, 0)
}

func clearedHistory(k *kit) {
	conv := k.group("o", "m")
	k.fill(conv, "o", 20)
	clearTo := func(seq, want im.Seq) {
		k.Helper()
		got, err := k.s.ClearHistory(k.ctx(), conv, "m", seq)
		if err != nil || got != want {
			k.Errorf("clear up to %d: %d, %v; want %d", seq, got, err, want)
		}
	}
	clearTo(10, 10)
	bothWays(k, conv, "m", upTo(11, 21))
	clearTo(5, 10) // never down
	clearTo(-1, 10)
	bothWays(k, conv, "m", upTo(11, 21))
	clearTo(1000, 21) // never past the head
	bothWays(k, conv, "m", nil)
	s := k.state(conv, "m")
	same(k, "nothing to see", []any{s.Start, s.Head, s.Unread, s.Last == nil}, []any{21, 21, 0, true})
	p := k.history(store.HistoryQuery{Reader: "m", Conversation: conv, After: 21})
	if !p.End || p.CompleteTo < 21 {
		k.Errorf("a client at the border is sent back: %+v", p)
	}
	k.s = k.d.Reopen(k, k.s)
	bothWays(k, conv, "m", nil)
	last := k.fill(conv, "o", 3)
	if last != 24 && !k.d.Holes {
		k.Errorf("the last entry has seq %d", last)
	}
	bothWays(k, conv, "m", upTo(last-2, last))
	bothWays(k, conv, "o", append(upTo(1, 21), upTo(last-2, last)...))
	same(k, "delivered begins at the start", k.position(conv, "m").Delivered, 21)
	k.remove(conv, "o", "m")
	k.add(conv, "o", "m")
	bothWays(k, conv, "m", upTo(last-2, last+2))
	for _, u := range []im.UserID{"stranger", "x"} {
		if _, err := k.s.ClearHistory(k.ctx(), conv, u, 1); im.ReasonOf(err) != clientv1.Reason_REASON_NOT_MEMBER {
			k.Errorf("a stranger clears: %v", err)
		}
	}
}

// hiddenStretches checks that one page covers what is hidden around its
// entries, so that nobody asks twice.
func hiddenStretches(k *kit) {
	conv := k.group("o", "m")
	k.fill(conv, "o", 4)
	out := k.remove(conv, "o", "m") // 6
	k.fill(conv, "o", 100)
	back := k.add(conv, "o", "m") // 107
	last := k.fill(conv, "o", 3)
	p := k.history(store.HistoryQuery{Reader: "m", Conversation: conv, After: out})
	same(k, "forward", []any{len(p.Entries), p.CompleteFrom, p.CompleteTo, p.End}, []any{4, out + 1, last, true})
	p = k.history(store.HistoryQuery{Reader: "m", Conversation: conv, After: out, Before: back})
	same(k, "only hidden", []any{len(p.Entries), p.CompleteFrom, p.CompleteTo, p.End}, []any{0, out + 1, back - 1, true})
	p = k.history(store.HistoryQuery{Reader: "m", Conversation: conv, Before: back, Backward: true, Limit: 2})
	same(k, "backward", []any{len(p.Entries), p.CompleteFrom, p.CompleteTo, p.End}, []any{2, out - 1, back - 1, false})
	p = k.history(store.HistoryQuery{Reader: "m", Conversation: conv, After: out - 1, Limit: 2})
	same(k, "across", []any{len(p.Entries), p.CompleteFrom, p.CompleteTo, p.End}, []any{2, out, back, false})
}

func entryBySeq(k *kit) {
	conv := k.group("a")
	r := row(conv, "a", "x")
	k.sent(r)
	e, err := k.s.Entry(k.ctx(), conv, 2)
	if err != nil || e.MessageID != r.MessageID || string(e.Content) != "x" {
		k.Errorf("entry: %+v, %v", e, err)
	}
	for _, c := range []im.ConversationID{conv, "g_none"} {
		if _, err := k.s.Entry(k.ctx(), c, 3); !errors.Is(err, store.ErrNotFound) {
			k.Errorf("no such entry: %v", err)
		}
	}
}

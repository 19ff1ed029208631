package storetest

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"

	"github.com/imdhq/imd/pkg/im"
	"github.com/imdhq/imd/pkg/store"
	"github.com/imdhq/imd/sdk/go/gen/clientv1"
)

func directIsMade(k *kit) {
	r := k.append(to("alice", "bob", "hello"))[0]
	if r.Err != nil || r.Seq != 1 || r.PrevSeq != 0 || r.Duplicate || r.ServerTime.IsZero() {
		k.Fatalf("first send: %+v", r)
	}
	if got := k.sent(to("bob", "alice", "hi"), row(direct("alice", "bob"), "alice", "again")); got != 3 {
		k.Errorf("third send has seq %d", got)
	}
	for _, u := range []im.UserID{"alice", "bob"} {
		same(k, "seen by "+string(u), k.seen(direct("alice", "bob"), u), upTo(1, 3))
		if _, err := k.s.User(k.ctx(), u); err != nil {
			k.Errorf("%s is not known: %v", u, err)
		}
	}
	p, err := k.s.Members(k.ctx(), direct("alice", "bob"), "bob", "", 10)
	if err != nil || p.Count != 2 || p.Kind != clientv1.ConversationKind_CONVERSATION_KIND_DIRECT || len(p.Members) != 2 {
		k.Errorf("members: %+v, %v", p, err)
	}
}

func directRefused(k *kit) {
	k.refusedRow(clientv1.Reason_REASON_NOT_MEMBER, row(direct("a", "b"), "a", "no peer"))
	k.refusedRow(clientv1.Reason_REASON_NOT_MEMBER, row("g_none", "a", "no group"))
	k.refusedRow(clientv1.Reason_REASON_NOT_MEMBER, row("g_none", "", "the system, no group"))
	self := row(direct("a", "a"), "a", "self")
	self.Peer = "a"
	k.refusedRow(clientv1.Reason_REASON_BAD_REQUEST, self)
	k.sent(to("a", "b", "x"))
	k.refusedRow(clientv1.Reason_REASON_NOT_MEMBER, row(direct("a", "b"), "c", "a stranger"))
	if _, err := k.s.History(k.ctx(), store.HistoryQuery{Reader: "c", Conversation: direct("a", "b"), Limit: 1}); im.ReasonOf(err) != clientv1.Reason_REASON_NOT_MEMBER {
		k.Errorf("a stranger reads: %v", err)
	}
}

func numbering(k *kit) {
	convs := []im.ConversationID{k.group("o"), k.group("o"), direct("o", "p")}
	next := map[im.ConversationID]im.Seq{convs[0]: 2, convs[1]: 2, convs[2]: 1}
	for range 20 {
		var rows []store.AppendRow
		for range 37 {
			r := row(convs[rand.IntN(3)], "o", "x")
			if r.Conversation == convs[2] {
				r.Peer = "p"
			}
			rows = append(rows, r)
		}
		for i, r := range k.append(rows...) {
			if want := next[rows[i].Conversation]; r.Err != nil || r.Seq != want || r.PrevSeq != want-1 || r.MessageID != rows[i].MessageID {
				k.Fatalf("got %+v, want seq %d", r, want)
			}
			next[rows[i].Conversation]++
		}
	}
	for _, c := range convs {
		var prev im.Seq
		for _, e := range k.history(store.HistoryQuery{Reader: "o", Conversation: c}).Entries {
			if e.PrevSeq != prev {
				k.Fatalf("entry %d names %d, the one before is %d", e.Seq, e.PrevSeq, prev)
			}
			prev = e.Seq
		}
	}
}

func resends(k *kit) {
	conv := k.group("a", "b")
	rows := []store.AppendRow{row(conv, "a", "1"), row(conv, "a", "2"), row(conv, "b", "3")}
	first := k.append(rows...)
	for range 30 {
		var batch []store.AppendRow
		var want []int
		for range 5 {
			i := rand.IntN(3)
			r := rows[i]
			r.MessageID, r.Run = mid(), rand.IntN(2)
			batch, want = append(batch, r), append(want, i)
		}
		for i, r := range k.append(batch...) {
			f := first[want[i]]
			if r.Err != nil || !r.Duplicate || r.MessageID != f.MessageID || r.Seq != f.Seq || r.PrevSeq != f.PrevSeq || !r.ServerTime.Equal(f.ServerTime) {
				k.Fatalf("resend: %+v, first %+v", r, f)
			}
		}
	}
	same(k, "history", k.seen(conv, "b"), upTo(1, 4))
}

func duplicatesInBatch(k *kit) {
	conv := k.group("a")
	x, y := row(conv, "a", "x"), row(conv, "a", "y")
	again := x
	again.MessageID = mid()
	r := k.append(x, again, y, again)
	if r[0].Duplicate || !r[1].Duplicate || r[2].Duplicate || !r[3].Duplicate {
		k.Errorf("duplicates: %+v", r)
	}
	if r[1].Seq != r[0].Seq || r[3].MessageID != x.MessageID || r[2].Seq != r[0].Seq+1 {
		k.Errorf("answers: %+v", r)
	}
	same(k, "history", k.seen(conv, "a"), upTo(1, 3))
}

func idReused(k *kit) {
	conv := k.group("a")
	x := row(conv, "a", "x")
	k.sent(x)
	other := row(conv, "a", "other")
	other.ClientMessageID = x.ClientMessageID
	k.refusedRow(clientv1.Reason_REASON_ID_REUSED, other)
	twice := row(conv, "a", "one")
	again := row(conv, "a", "two")
	again.ClientMessageID = twice.ClientMessageID
	if r := k.append(twice, again); r[0].Err != nil || r[1].Err == nil || r[1].Err.Reason != clientv1.Reason_REASON_ID_REUSED {
		k.Errorf("in one batch: %+v", r)
	}
	same(k, "history", k.seen(conv, "a"), upTo(1, 3))
}

func dedupScope(k *kit) {
	x, y := k.group("a", "c"), k.group("a", "c")
	r := row(x, "a", "t")
	k.sent(r)
	for _, s := range []struct {
		conv im.ConversationID
		user im.UserID
	}{{x, "c"}, {y, "c"}, {y, "a"}} {
		n := r
		n.Conversation, n.Sender, n.MessageID = s.conv, s.user, mid()
		if got := k.append(n)[0]; got.Err != nil || got.Duplicate || got.MessageID != n.MessageID {
			k.Errorf("%s by %s: %+v", s.conv, s.user, got)
		}
	}
}

func dedupBeforePermission(k *kit) {
	conv := k.group("o", "m")
	r := row(conv, "m", "x")
	seq := k.sent(r)
	k.remove(conv, "o", "m")
	check := func(when string) {
		k.Helper()
		got := k.append(r)[0]
		if got.Err != nil || !got.Duplicate || got.Seq != seq {
			k.Errorf("resend %s: %+v", when, got)
		}
		other := r
		other.BodyHash[0]++
		k.refusedRow(clientv1.Reason_REASON_ID_REUSED, other)
	}
	check("after removal")
	k.refusedRow(clientv1.Reason_REASON_NOT_MEMBER, row(conv, "m", "new"))
	k.change(store.Change{Conversation: conv, Actor: "o", Close: true})
	check("after closing")
	r = to("a", "b", "x")
	seq = k.sent(r)
	if err := k.s.SetBlock(k.ctx(), "b", "a", true); err != nil {
		k.Fatal(err)
	}
	check("after a block")
}

func refusalHoldsNothing(k *kit) {
	conv := k.group("o")
	rows := []store.AppendRow{row(conv, "o", "1"), row(conv, "stranger", "2"), row(conv, "o", "3"), {Conversation: conv, Sender: "o"}, row(conv, "o", "4")}
	r := k.append(rows...)
	if r[0].Err != nil || r[1].Err == nil || r[2].Err != nil || r[3].Err == nil || r[4].Err != nil {
		k.Fatalf("answers: %+v", r)
	}
	if r[3].Err.Reason != clientv1.Reason_REASON_BAD_REQUEST {
		k.Errorf("a row without client message id: %v", r[3].Err)
	}
	same(k, "history", k.seen(conv, "o"), upTo(1, 4))
}

func batchBounds(k *kit) {
	if r, err := k.s.Append(k.ctx(), nil); err != nil || len(r) != 0 {
		k.Errorf("empty batch: %v, %v", r, err)
	}
	conv := k.group("a")
	rows := make([]store.AppendRow, store.MaxAppendRows+1)
	for i := range rows {
		rows[i] = row(conv, "a", "x")
	}
	if _, err := k.s.Append(k.ctx(), rows); im.ReasonOf(err) != clientv1.Reason_REASON_BAD_REQUEST {
		k.Errorf("too many rows: %v", err)
	}
	k.sent(rows[1:]...)
}

func roundTrip(k *kit) {
	conv := k.group("a")
	rows := []store.AppendRow{row(conv, "a", "x"), row(conv, "a", "y"), row(conv, "a", "z"), row(conv, "a", ""), row(conv, "", "system")}
	rows[0].Kind, rows[0].TargetSeq, rows[0].Countable = clientv1.EntryKind_ENTRY_KIND_REACTION, 1, false
	rows[1].ClientMessageID = "not-a-uuid"
	rows[2].ClientMessageID = "5F0C6F0E-8A5B-4C1E-9D27-3B1F6A2E7C01" // not canonical: kept as it is
	rows[3].Content = nil
	rows[4].Content = bytes.Repeat([]byte{0, 0xff, 'x'}, 30_000)
	k.sent(rows...)
	got := k.history(store.HistoryQuery{Reader: "a", Conversation: conv, After: 1}).Entries
	for i, e := range got {
		r := rows[i]
		want := im.Entry{
			Seq: im.Seq(i + 2), PrevSeq: im.Seq(i + 1), Kind: r.Kind, MessageID: r.MessageID, ClientMessageID: r.ClientMessageID,
			Sender: r.Sender, ServerTime: e.ServerTime, Content: r.Content, TargetSeq: r.TargetSeq, Countable: r.Countable,
		}
		if fmt.Sprintf("%#v", e) != fmt.Sprintf("%#v", want) {
			k.Errorf("entry %d:\n got %.300v\nwant %.300v", e.Seq, e, want)
		}
	}
}

func systemSends(k *kit) {
	conv := k.group("o")
	k.sent(row(conv, "", "notice"))
	same(k, "unread", k.position(conv, "o").Unread, 1)
	k.change(store.Change{Conversation: conv, Close: true})
	k.refusedRow(clientv1.Reason_REASON_CONVERSATION_CLOSED, row(conv, "", "notice"))
	if got := k.walk(store.HistoryQuery{Conversation: conv, Limit: 2}); len(got) != 3 {
		k.Errorf("the system sees %v", got)
	}
	k.sent(to("a", "b", "x"))
	k.sent(row(direct("a", "b"), "", "notice"))
}

// concurrentAppends races the same keys from many sides: every key must get
// one answer, and the log must be without holes.
func concurrentAppends(k *kit) {
	const writers, rounds = 8, 12
	convs := []im.ConversationID{k.group("a", "b"), k.group("a", "b"), direct("a", "b")}
	var keys []store.AppendRow
	for i := range 120 {
		r := row(convs[i%3], []im.UserID{"a", "b"}[i%2], "x")
		if i%3 == 2 {
			r.Peer = []im.UserID{"b", "a"}[i%2]
		}
		keys = append(keys, r)
	}
	type answer struct {
		key int
		store.AppendResult
	}
	answers := make([][]answer, writers)
	var wg sync.WaitGroup
	for w := range writers {
		rnd := rand.New(rand.NewPCG(uint64(w), 1))
		wg.Go(func() {
			for range rounds {
				var batch []store.AppendRow
				var ids []int
				for range 10 {
					i := rnd.IntN(len(keys))
					r := keys[i]
					r.MessageID = mid()
					batch, ids = append(batch, r), append(ids, i)
				}
				res, err := k.s.Append(k.Context(), batch)
				if err != nil {
					k.Errorf("append: %v", err)
					return
				}
				for i, r := range res {
					answers[w] = append(answers[w], answer{ids[i], r})
				}
			}
		})
	}
	wg.Wait()
	first := map[int]store.AppendResult{}
	originals := map[int]int{}
	for _, a := range slices.Concat(answers...) {
		if a.Err != nil {
			k.Fatalf("key %d: %v", a.key, a.Err)
		}
		if !a.Duplicate {
			originals[a.key]++
		}
		f, ok := first[a.key]
		if !ok {
			first[a.key] = a.AppendResult
		} else if f.Seq != a.Seq || f.MessageID != a.MessageID || f.PrevSeq != a.PrevSeq {
			k.Errorf("key %d has two answers: %+v and %+v", a.key, f, a.AppendResult)
		}
	}
	for i := range first {
		if originals[i] != 1 {
			k.Errorf("key %d was stored anew %d times", i, originals[i])
		}
	}
	total := 0
	for _, c := range convs {
		seen := k.seen(c, "a")
		same(k, "log", seen, upTo(1, im.Seq(len(seen))))
		total += len(seen)
	}
	same(k, "entries", total, len(first)+2)
}

func permissionAtOnce(k *kit) {
	conv := k.group("o", "m")
	k.sent(row(conv, "m", "x"))
	k.remove(conv, "o", "m")
	k.refusedRow(clientv1.Reason_REASON_NOT_MEMBER, row(conv, "m", "x"))
	k.add(conv, "o", "m")
	k.sent(row(conv, "m", "x"))
	k.change(store.Change{Conversation: conv, Actor: "m", Leave: true})
	k.refusedRow(clientv1.Reason_REASON_NOT_MEMBER, row(conv, "m", "x"))
	k.add(conv, "o", "m")
	end := k.change(store.Change{Conversation: conv, Actor: "o", Close: true}).Entry.Seq
	for _, u := range []im.UserID{"o", "m"} {
		k.refusedRow(clientv1.Reason_REASON_CONVERSATION_CLOSED, row(conv, u, "x"))
	}
	k.refusedRow(clientv1.Reason_REASON_NOT_MEMBER, row(conv, "stranger", "x"))
	if s := k.state(conv, "m"); !s.Closed || s.Head != end {
		k.Errorf("state of a closed group: %+v", s)
	}
	same(k, "history", k.seen(conv, "o"), upTo(1, end))
}

func blocks(k *kit) {
	set := func(user, blocked im.UserID, on bool) {
		k.Helper()
		if err := k.s.SetBlock(k.ctx(), user, blocked, on); err != nil {
			k.Fatal(err)
		}
	}
	for _, p := range [][2]im.UserID{{"a", "b"}, {"y", "x"}} {
		me, other := p[0], p[1]
		k.sent(to(me, other, "1"), to(other, me, "2"))
		set(me, other, true)
		set(me, other, true)
		k.refusedRow(clientv1.Reason_REASON_FORBIDDEN, to(other, me, "blocked"))
		k.refusedRow(clientv1.Reason_REASON_FORBIDDEN, row(direct(me, other), other, "blocked"))
		k.sent(to(me, other, "the other way"))
		g := k.group(me, other)
		k.sent(row(g, other, "in a group"))
		set(me, other, false)
		k.sent(to(other, me, "again"))
		same(k, "history", k.seen(direct(me, other), me), upTo(1, 4))
	}
	set("p", "q", true) // before there is a conversation
	k.refusedRow(clientv1.Reason_REASON_FORBIDDEN, to("q", "p", "blocked"))
	if list, _ := k.syncAll(store.SyncQuery{User: "p"}); len(list) != 0 {
		k.Errorf("a refused send made a conversation: %v", list)
	}
	if err := k.s.SetBlock(k.ctx(), "p", "p", true); im.ReasonOf(err) != clientv1.Reason_REASON_BAD_REQUEST {
		k.Errorf("blocking oneself: %v", err)
	}
}

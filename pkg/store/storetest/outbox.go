package storetest

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/imdhq/imd/pkg/im"
	"github.com/imdhq/imd/pkg/store"
	"github.com/imdhq/imd/sdk/go/gen/clientv1"
)

// fed is a store whose commits leave marks, and what its leader proves.
func (k *kit) fed() store.Proof {
	k.Helper()
	p := k.fence("x", 1).Proof()
	k.must(k.s.SetFeed(k.ctx(), p, true))
	return p
}

// gather turns all marks into events and returns those behind a position.
func (k *kit) gather(p store.Proof, after int64) []store.Event {
	k.Helper()
	for {
		n, err := k.s.Gather(k.ctx(), p, 3)
		k.must(err)
		if n == 0 {
			break
		}
	}
	all, err := k.s.Events(k.ctx(), after, 100_000)
	k.must(err)
	for i, e := range all {
		if e.Position != after+int64(i)+1 {
			k.Fatalf("event %d has position %d", i, e.Position)
		}
	}
	return all
}

// Every entry that is committed while the outbox is on becomes one event, in the
// order of its conversation.
func outboxEvents(k *kit) {
	k.sent(to("a", "b", "before"))
	if n, err := k.s.Gather(k.ctx(), k.fence("x", 0).Proof(), 10); err != nil || n != 0 {
		k.Errorf("an outbox that is off has %d marks, %v", n, err)
	}
	p := k.fed()
	first := to("a", "b", "one")
	k.sent(first, to("a", "b", "two"))
	k.sent(first) // a resend is no event
	g := k.group("a", "b", "c")
	k.sent(row(g, "c", "three"), to("b", "a", "four"))
	k.remove(g, "a", "c")
	k.s = k.d.Reopen(k.T, k.s)
	k.sent(to("a", "b", "five")) // the reopened store feeds too
	state, err := k.s.OutboxState(k.ctx())
	k.must(err)
	if !state.On || !state.Marks || state.Last != 0 {
		k.Errorf("before gathering: %+v", state)
	}
	all := k.gather(p, 0)
	got := map[im.ConversationID][]string{}
	var positions []int64
	for _, e := range all {
		positions = append(positions, e.Position)
		got[e.Conversation] = append(got[e.Conversation], fmt.Sprint(e.Kind, " ", e.Seq))
	}
	d := direct("a", "b")
	want := map[im.ConversationID][]string{d: {"1 2", "1 3", "1 4", "1 5"}, g: {"2 1", "1 2", "2 3"}}
	if !k.d.Holes {
		same(k, "events", got, want)
	}
	if len(got[d]) != 4 || len(got[g]) != 3 {
		k.Fatalf("events: %v", got)
	}
	full, err := k.s.EventsAt(k.ctx(), append(positions, 999))
	k.must(err)
	var texts []string
	for i, e := range full {
		if e.Position != all[i].Position || e.Entry == nil || e.Entry.Seq != e.Seq || !e.Entry.ServerTime.Equal(e.At) || e.Key == 0 {
			k.Errorf("event %+v with entry %+v", e, e.Entry)
			continue
		}
		if e.Conversation == d {
			texts = append(texts, string(e.Entry.Content))
		}
	}
	same(k, "contents", texts, []string{"one", "two", "four", "five"})
	if all[0].Key == 0 || all[0].Key != all[1].Key {
		k.Errorf("keys of one conversation: %d and %d", all[0].Key, all[1].Key)
	}
	k.must(k.s.SetFeed(k.ctx(), p, false))
	k.sent(to("a", "b", "unheard"))
	if n, err := k.s.Gather(k.ctx(), p, 10); err != nil || n != 0 {
		k.Errorf("an outbox that was switched off has %d marks, %v", n, err)
	}
}

// What many write at once, while a leader gathers, is all told, once and in order.
func outboxWhileWriting(k *kit) {
	p := k.fed()
	const writers, each = 6, 30
	groups := []im.ConversationID{k.group("a"), k.group("a"), k.group("a")}
	var wg sync.WaitGroup
	for range writers {
		wg.Go(func() {
			for i := range each {
				rows := make([]store.AppendRow, len(groups))
				for n := range groups { // each in another order, so that they wait for each other
					rows[n] = row(groups[(n+i)%len(groups)], "a", "text")
					rows[n].Run = n
				}
				if out, err := k.s.Append(k.ctx(), rows); err != nil || out[0].Err != nil {
					k.Errorf("append: %v", err)
				}
			}
		})
	}
	done := make(chan struct{})
	go func() { wg.Wait(); close(done) }()
	for more := true; more; {
		select {
		case <-done:
			more = false
		default:
		}
		if _, err := k.s.Gather(k.ctx(), p, 5); err != nil {
			k.Errorf("gather: %v", err)
		}
	}
	heads, counts := map[im.ConversationID]im.Seq{}, map[im.ConversationID]int{}
	for _, e := range k.gather(p, 0) {
		if e.Seq <= heads[e.Conversation] {
			k.Errorf("%s: seq %d behind %d", e.Conversation, e.Seq, heads[e.Conversation])
		}
		heads[e.Conversation] = e.Seq
		counts[e.Conversation]++
	}
	for _, g := range groups {
		if counts[g] != writers*each+1 {
			k.Errorf("%d events of %d entries", counts[g], writers*each+1)
		}
	}
}

// A leader that was followed changes nothing of the outbox.
func outboxFenced(k *kit) {
	old := k.fed()
	k.sent(to("a", "b", "text"))
	now := k.fence("x", 2).Proof()
	for name, call := range map[string]func() error{
		"SetFeed":   func() error { return k.s.SetFeed(k.ctx(), old, false) },
		"Gather":    func() error { _, err := k.s.Gather(k.ctx(), old, 10); return err },
		"PutEvents": func() error { return k.s.PutEvents(k.ctx(), old, []store.Event{{Kind: store.UserOnline, User: "a"}}) },
		"TrimEvents": func() error {
			_, err := k.s.TrimEvents(k.ctx(), old, time.Now().Add(time.Hour), 10)
			return err
		},
		"SaveReceiver": func() error {
			_, err := k.s.SaveReceiver(k.ctx(), old, store.Receiver{Name: "r", Cursor: 5}, store.Settled{})
			return err
		},
		"SettlePushes": func() error { return k.s.SettlePushes(k.ctx(), old, []store.PushResult{{Gone: true}}) },
	} {
		if err := call(); !errors.Is(err, store.ErrFenced) {
			k.Errorf("%s: %v", name, err)
		}
	}
	if all := k.gather(now, 0); len(all) != 1 {
		k.Errorf("%d events", len(all))
	}
	if rs, err := k.s.Receivers(k.ctx()); err != nil || len(rs) != 0 {
		k.Errorf("receivers: %+v, %v", rs, err)
	}
}

func outboxTrims(k *kit) {
	p := k.fed()
	at := time.UnixMilli(1_700_000_000_000)
	k.must(k.s.PutEvents(k.ctx(), p, []store.Event{
		{Kind: store.UserOnline, User: "a", At: at}, {Kind: store.UserOffline, User: "a", At: at.Add(time.Minute)}, {Kind: store.UserOnline, User: "b", At: at.Add(time.Hour)},
	}))
	all := k.gather(p, 0)
	if len(all) != 3 || all[0].Kind != store.UserOnline || all[0].User != "a" || !all[0].At.Equal(at) || all[0].Conversation != "" ||
		all[0].Key == 0 || all[0].Key != all[1].Key || all[0].Key == all[2].Key {
		k.Fatalf("events: %+v", all)
	}
	if full, err := k.s.EventsAt(k.ctx(), []int64{1}); err != nil || len(full) != 1 || full[0].Entry != nil {
		k.Errorf("an event without entry: %+v, %v", full, err)
	}
	r := store.Receiver{Name: "r", Cursor: 3}
	ok, err := k.s.SaveReceiver(k.ctx(), p, r, store.Settled{Dead: []store.DeadLetter{{Position: 1}, {Position: 3}}})
	k.must(err)
	n, err := k.s.TrimEvents(k.ctx(), p, at.Add(time.Second), 10)
	k.must(err)
	state, err := k.s.OutboxState(k.ctx())
	k.must(err)
	dead, err := k.s.DeadLetters(k.ctx(), "r", 0, 10)
	k.must(err)
	if !ok || n != 1 || state.First != 2 || state.Last != 3 || len(dead) != 1 || dead[0].Position != 3 {
		k.Errorf("%d trimmed, %+v, dead %+v", n, state, dead)
	}
	if n, err = k.s.TrimEvents(k.ctx(), p, at.Add(2*time.Hour), 1); err != nil || n != 1 {
		k.Errorf("with a limit %d were trimmed, %v", n, err)
	}
	if n, err = k.s.TrimEvents(k.ctx(), p, at.Add(2*time.Hour), 10); err != nil || n != 1 {
		k.Errorf("the last: %d, %v", n, err)
	}
	k.must(k.s.PutEvents(k.ctx(), p, []store.Event{{Kind: store.UserOnline, User: "c", At: at}}))
	if all, err = k.s.Events(k.ctx(), 0, 10); err != nil || len(all) != 1 || all[0].Position != 4 {
		k.Errorf("positions begin anew: %+v, %v", all, err)
	}
}

// An event that says of a user what is known already is none, in whatever call it
// comes; what is known outlives the events.
func userEvents(k *kit) {
	p := k.fed()
	at := time.UnixMilli(1_700_000_000_000)
	put := func(want int64, events ...store.Event) {
		k.Helper()
		for i := range events {
			events[i].At = at
		}
		k.must(k.s.PutEvents(k.ctx(), p, events))
		if o, err := k.s.OutboxState(k.ctx()); err != nil || o.Last != want {
			k.Errorf("after %+v there are %d events, want %d, %v", events, o.Last, want, err)
		}
	}
	comes := func(u im.UserID) store.Event { return store.Event{Kind: store.UserOnline, User: u} }
	goes := func(u im.UserID) store.Event { return store.Event{Kind: store.UserOffline, User: u} }
	put(0, goes("a"))
	put(2, comes("a"), comes("b"))
	put(2, comes("a"), comes("b")) // the outcome of the first call was not known
	put(5, goes("b"), comes("c"), goes("b"), comes("b"), comes("c"))
	put(6, goes("c"))
	if _, err := k.s.TrimEvents(k.ctx(), p, at.Add(time.Hour), 100); err != nil {
		k.Fatal(err)
	}
	k.s = k.d.Reopen(k.T, k.s)
	put(6, comes("b"), goes("c"))
	put(7, comes("d"))
	first, err := k.s.OnlineUsers(k.ctx(), "", 2)
	k.must(err)
	rest, err := k.s.OnlineUsers(k.ctx(), "b", 2)
	k.must(err)
	if !slices.Equal(first, []im.UserID{"a", "b"}) || !slices.Equal(rest, []im.UserID{"d"}) {
		k.Errorf("online are %v and %v", first, rest)
	}
}

func receiverRows(k *kit) {
	p := k.fed()
	r := store.Receiver{Name: "shop", Cursor: 7, Reached: 7, Open: []store.Open{{Position: 3, Tries: 2}, {Position: 6}}}
	save := func(r store.Receiver, s store.Settled, want bool) {
		k.Helper()
		if ok, err := k.s.SaveReceiver(k.ctx(), p, r, s); err != nil || ok != want {
			k.Errorf("save %+v: %v, %v", r, ok, err)
		}
	}
	only := func() store.Receiver {
		k.Helper()
		all, err := k.s.Receivers(k.ctx())
		k.must(err)
		if len(all) != 1 {
			k.Fatalf("receivers: %+v", all)
		}
		return all[0]
	}
	save(r, store.Settled{}, true)
	save(r, store.Settled{}, false) // there is one
	k.s = k.d.Reopen(k.T, k.s)
	got := only()
	if got.Cursor != 7 || !slices.Equal(got.Open, r.Open) || got.Generation != 1 || got.Dead != 0 || time.Since(got.Saved) > time.Minute {
		k.Errorf("receiver: %+v", got)
	}
	got.Cursor, got.Reached, got.Open = 9, 9, nil
	save(got, store.Settled{Dead: []store.DeadLetter{{Position: 3, Tries: 10, Reason: "status 500"}, {Position: 8, Tries: 1, Reason: "gone"}}}, true)
	if dead, err := k.s.DeadLetters(k.ctx(), "shop", 3, 10); err != nil || len(dead) != 1 || dead[0].Position != 8 || dead[0].Receiver != "shop" || dead[0].Reason != "gone" || dead[0].Again {
		k.Errorf("dead letters: %+v, %v", dead, err)
	}
	if n, err := k.s.Rewind(k.ctx(), "shop", 0, true); err != nil || n != 2 {
		k.Errorf("dead letters again: %d, %v", n, err)
	}
	save(got, store.Settled{}, false) // it was moved since
	if got = only(); got.Generation != 2 || got.Cursor != 9 || got.Dead != 2 {
		k.Errorf("receiver: %+v", got)
	}
	dead, err := k.s.DeadLetters(k.ctx(), "shop", 0, 10)
	k.must(err)
	if !dead[0].Again || !dead[1].Again {
		k.Errorf("dead letters: %+v", dead)
	}
	save(got, store.Settled{Revived: []int64{3}, Dead: []store.DeadLetter{{Position: 8, Tries: 4, Reason: "again"}}}, true)
	if dead, err = k.s.DeadLetters(k.ctx(), "shop", 0, 10); err != nil || len(dead) != 1 || dead[0].Tries != 4 || dead[0].Again {
		k.Errorf("dead letters: %+v, %v", dead, err)
	}
	if _, err := k.s.Rewind(k.ctx(), "shop", 2, false); err != nil {
		k.Error(err)
	}
	if got = only(); got.Generation != 3 || got.Cursor != 2 || got.Reached != 9 || len(got.Open) != 0 {
		k.Errorf("after a rewind: %+v", got)
	}
	if _, err := k.s.Rewind(k.ctx(), "other", 2, false); !errors.Is(err, store.ErrNotFound) {
		k.Errorf("rewind of nobody: %v", err)
	}
	k.must(k.s.RemoveReceiver(k.ctx(), "shop"))
	if err := k.s.RemoveReceiver(k.ctx(), "shop"); !errors.Is(err, store.ErrNotFound) {
		k.Errorf("remove of nobody: %v", err)
	}
	for _, name := range []string{"", strings.Repeat("n", 65)} {
		if _, err := k.s.SaveReceiver(k.ctx(), p, store.Receiver{Name: name}, store.Settled{}); err == nil {
			k.Errorf("a receiver %q is kept", name)
		}
	}
}

// pushed makes pushes due.
func (k *kit) pushed(p store.Proof, list []store.Push) {
	k.Helper()
	all, err := k.s.Receivers(k.ctx())
	k.must(err)
	r := store.Receiver{Name: "offline"}
	for _, one := range all {
		r = one
	}
	if ok, err := k.s.SaveReceiver(k.ctx(), p, r, store.Settled{Pushes: list}); err != nil || !ok {
		k.Fatalf("save pushes: %v, %v", ok, err)
	}
}

func (k *kit) due() []store.Push {
	k.Helper()
	list, err := k.s.DuePushes(k.ctx(), time.Now().Add(time.Minute), 100)
	k.must(err)
	return list
}

func pushesUnacked(k *kit) {
	p := k.fed()
	g := k.group("a", "b", "c", "d", "e", "f")
	last := k.fill(g, "a", 3)
	late := k.add(g, "a", "g")
	k.save(store.Position{Conversation: g, User: "b", Delivered: last}, store.Position{Conversation: g, User: "c", Read: last}, store.Position{Conversation: g, User: "d", Delivered: last - 1})
	k.must(k.s.SetMute(k.ctx(), g, "e", time.Now().Add(time.Hour)))
	k.must(k.s.SetMute(k.ctx(), g, "f", time.Now().Add(time.Hour)))
	k.must(k.s.SetMute(k.ctx(), g, "f", time.Time{}))
	if err := k.s.SetMute(k.ctx(), g, "stranger", time.Now().Add(time.Hour)); im.ReasonOf(err) != clientv1.Reason_REASON_NOT_MEMBER {
		k.Errorf("a stranger mutes: %v", err)
	}
	events := k.gather(p, 0)
	upto := events[len(events)-1].Position
	list, err := k.s.Unacked(k.ctx(), 0, upto, 100)
	k.must(err)
	var who []string
	for _, one := range list {
		who = append(who, fmt.Sprint(one.User, " ", one.Seq))
		if one.Conversation != g || one.Sender != "a" || one.MessageID == 0 {
			k.Errorf("push: %+v", one)
		}
	}
	slices.Sort(who)
	same(k, "unacked", who, []string{fmt.Sprint("d ", last), fmt.Sprint("f ", last)}) // g came later
	if late <= last {
		k.Errorf("the change has seq %d", late)
	}
	if list, err = k.s.Unacked(k.ctx(), upto, upto, 100); err != nil || len(list) != 0 {
		k.Errorf("behind the last event: %+v, %v", list, err)
	}
	if list, err = k.s.Unacked(k.ctx(), 0, upto, 5); err != nil || len(list) != 0 {
		k.Errorf("in a group that is too large: %+v, %v", list, err)
	}
}

func pushRows(k *kit) {
	p := k.fed()
	d := direct("a", "b")
	one := k.sent(to("a", "b", "one"))
	k.pushed(p, []store.Push{{User: "b", Conversation: d, Seq: one, MessageID: 11, Sender: "a"}, {User: "stranger", Conversation: d, Seq: one}})
	first := k.due()
	if len(first) != 1 || first[0].User != "b" || first[0].Seq != one || first[0].MessageID != 11 || first[0].Sender != "a" || first[0].State != store.PushDue || first[0].Tries != 0 {
		k.Fatalf("due: %+v", first)
	}
	two := k.sent(to("a", "b", "two"))
	k.pushed(p, []store.Push{{User: "b", Conversation: d, Seq: two, MessageID: 12, Sender: "a"}, {User: "b", Conversation: d, Seq: one, MessageID: 11}})
	settle := func(list ...store.PushResult) {
		k.Helper()
		k.must(k.s.SettlePushes(k.ctx(), p, list))
	}
	settle(store.PushResult{Push: first[0], Next: store.PushSent}) // it has a newer message by now
	second := k.due()
	if len(second) != 1 || second[0].Seq != two || second[0].MessageID != 12 {
		k.Fatalf("two messages of a conversation: %+v", second)
	}
	again := time.Now().Add(time.Hour)
	settle(store.PushResult{Push: second[0], Next: store.PushDue, Again: again})
	if list := k.due(); len(list) != 0 {
		k.Errorf("due before its time: %+v", list)
	}
	list, err := k.s.DuePushes(k.ctx(), again, 10)
	k.must(err)
	if len(list) != 1 || list[0].Tries != 1 { // those of the older message are its own
		k.Fatalf("after a try: %+v", list)
	}
	settle(store.PushResult{Push: list[0], Next: store.PushSent})
	if n, err := k.s.PushCounts(k.ctx()); err != nil || n[store.PushSent] != 1 || len(n) != 1 {
		k.Errorf("counts: %v, %v", n, err)
	}
	k.read(d, "b", one)
	if list := k.due(); len(list) != 0 {
		k.Errorf("reading an older message withdraws: %+v", list)
	}
	k.read(d, "b", two)
	gone := k.due()
	if len(gone) != 1 || gone[0].State != store.PushWithdraw || gone[0].Tries != 0 {
		k.Fatalf("read elsewhere: %+v", gone)
	}
	settle(store.PushResult{Push: gone[0], Gone: true})
	if n, err := k.s.PushCounts(k.ctx()); err != nil || len(n) != 0 {
		k.Errorf("counts: %v, %v", n, err)
	}
}

// What was read before anybody was told is never told; if it is read while the
// user is told, it is withdrawn.
func pushReadMeanwhile(k *kit) {
	p := k.fed()
	d := direct("a", "b")
	one := k.sent(to("a", "b", "one"))
	k.pushed(p, []store.Push{{User: "b", Conversation: d, Seq: one, MessageID: 11, Sender: "a"}})
	list := k.due()
	k.read(d, "b", one)
	if left := k.due(); len(left) != 0 {
		k.Errorf("read before it was told: %+v", left)
	}
	k.must(k.s.SettlePushes(k.ctx(), p, []store.PushResult{{Push: list[0], Next: store.PushSent}}))
	if left := k.due(); len(left) != 1 || left[0].State != store.PushWithdraw || left[0].Seq != one {
		k.Errorf("read while it was told: %+v", left)
	}
	k.pushed(p, []store.Push{{User: "b", Conversation: d, Seq: one, MessageID: 11, Sender: "a"}})
	if left := k.due(); len(left) != 1 || left[0].State != store.PushWithdraw {
		k.Errorf("what is read becomes due: %+v", left)
	}
}

// What takes the place of a notice that was told is withdrawn though it was not
// told itself, and waits for the pause that the older one left.
func pushNewer(k *kit) {
	p := k.fed()
	d := direct("a", "b")
	next := func() store.Push {
		seq := k.sent(to("a", "b", fmt.Sprint(time.Now().UnixNano())))
		return store.Push{User: "b", Conversation: d, Seq: seq, MessageID: im.MessageID(seq), Sender: "a"}
	}
	told := func(one store.Push, pause time.Duration) {
		k.Helper()
		k.must(k.s.SettlePushes(k.ctx(), p, []store.PushResult{{Push: one, Next: store.PushSent, Again: time.Now().Add(pause)}}))
	}
	one, two, three := next(), next(), next()
	k.pushed(p, []store.Push{one})
	told(k.due()[0], time.Hour)
	for _, newer := range []store.Push{two, three} {
		k.pushed(p, []store.Push{newer})
		if list := k.due(); len(list) != 0 {
			k.Errorf("a newer one comes in the pause: %+v", list)
		}
	}
	k.read(d, "b", three.Seq)
	list := k.due()
	if len(list) != 1 || list[0].State != store.PushWithdraw || list[0].Seq != three.Seq {
		k.Fatalf("the older one was told, the newer one was not: %+v", list)
	}
	k.must(k.s.SettlePushes(k.ctx(), p, []store.PushResult{{Push: list[0], Gone: true}}))
	four, five := next(), next()
	k.pushed(p, []store.Push{four})
	list = k.due()
	k.pushed(p, []store.Push{five}) // while four is being told
	told(list[0], 0)
	k.read(d, "b", five.Seq)
	if list = k.due(); len(list) != 1 || list[0].State != store.PushWithdraw {
		k.Errorf("the older one was being told: %+v", list)
	}
}

// Who was refused, or muted the conversation then, was told of nothing that would be
// withdrawn; who may have been told was.
func pushRefused(k *kit) {
	p := k.fed()
	d := direct("a", "b")
	try := func(told bool) im.Seq {
		k.Helper()
		seq := k.sent(to("a", "b", fmt.Sprint(time.Now().UnixNano())))
		k.pushed(p, []store.Push{{User: "b", Conversation: d, Seq: seq, MessageID: im.MessageID(seq), Sender: "a"}})
		for range 2 {
			list := k.due()
			if len(list) != 1 {
				k.Fatalf("due: %+v", list)
			}
			k.must(k.s.SettlePushes(k.ctx(), p, []store.PushResult{{Push: list[0], Next: store.PushDue, Again: time.Now(), Told: told}}))
		}
		return seq
	}
	for _, told := range []bool{false, true} {
		k.read(d, "b", try(told))
		list := k.due()
		if len(list) == 1 != told || told && list[0].State != store.PushWithdraw {
			k.Errorf("tried and read, told %v: %+v", told, list)
		}
		for _, one := range list {
			k.must(k.s.SettlePushes(k.ctx(), p, []store.PushResult{{Push: one, Gone: true}}))
		}
	}
	seq := try(false)
	k.must(k.s.SetMute(k.ctx(), d, "b", time.Now().Add(time.Hour)))
	k.read(d, "b", seq)
	if list := k.due(); len(list) != 0 {
		k.Errorf("refused, muted and read: %+v", list)
	}
}

// Muting drops what is due, lets nothing become due, and takes back nothing.
func pushMuted(k *kit) {
	p := k.fed()
	d := direct("a", "b")
	seq := k.sent(to("a", "b", "one"))
	push := store.Push{User: "b", Conversation: d, Seq: seq, MessageID: 11, Sender: "a"}
	k.pushed(p, []store.Push{push})
	until := time.Now().Add(time.Hour).Truncate(time.Millisecond)
	k.must(k.s.SetMute(k.ctx(), d, "b", until))
	k.pushed(p, []store.Push{push})
	if list := k.due(); len(list) != 0 {
		k.Errorf("due of what is muted: %+v", list)
	}
	g := k.group("b", "c")
	k.must(k.s.SetMute(k.ctx(), g, "b", until.Add(time.Second)))
	k.must(k.s.SetMute(k.ctx(), g, "c", until))
	mutes := func(after im.ConversationID, limit int) []store.Mute {
		k.Helper()
		list, err := k.s.Mutes(k.ctx(), "b", after, limit)
		k.must(err)
		for i := range list {
			list[i].Until = list[i].Until.UTC()
		}
		return list
	}
	first, second := store.Mute{User: "b", Conversation: d, Until: until.UTC()}, store.Mute{User: "b", Conversation: g, Until: until.Add(time.Second).UTC()}
	same(k, "mutes", mutes("", 10), []store.Mute{first, second})
	same(k, "the first mute", mutes("", 1), []store.Mute{first})
	same(k, "mutes behind one", mutes(d, 10), []store.Mute{second})
	k.must(k.s.SetMute(k.ctx(), d, "b", time.Time{}))
	same(k, "mutes without one that was lifted", mutes("", 10), []store.Mute{second})
	k.pushed(p, []store.Push{push})
	list := k.due()
	if len(list) != 1 {
		k.Fatalf("due after the mute: %+v", list)
	}
	k.must(k.s.SettlePushes(k.ctx(), p, []store.PushResult{{Push: list[0], Next: store.PushSent}}))
	k.must(k.s.SetMute(k.ctx(), d, "b", until))
	k.read(d, "b", seq)
	if list = k.due(); len(list) != 1 || list[0].State != store.PushWithdraw {
		k.Errorf("what was told before it was muted is read: %+v", list)
	}
}

func badges(k *kit) {
	g, d := k.group("a", "b"), direct("a", "b")
	k.fill(g, "a", 3)
	k.sent(to("a", "b", "one"), to("a", "b", "two"), to("b", "a", "three"))
	check := func(want map[im.UserID]int) {
		k.Helper()
		got, err := k.s.Badges(k.ctx(), []im.UserID{"a", "b", "nobody", "b"})
		k.must(err)
		same(k, "badges", got, want)
	}
	check(map[im.UserID]int{"a": 1, "b": 5})
	k.must(k.s.SetMute(k.ctx(), g, "b", time.Now().Add(time.Hour)))
	check(map[im.UserID]int{"a": 1, "b": 2})
	k.read(d, "a", 3)
	check(map[im.UserID]int{"b": 2})
	k.must(k.s.SetMute(k.ctx(), g, "b", time.Now().Add(-time.Hour)))
	k.remove(g, "a", "b")
	check(map[im.UserID]int{"b": 2})
	k.fill(d, "a", store.MaxUnread+5)
	check(map[im.UserID]int{"b": store.MaxUnread})
}

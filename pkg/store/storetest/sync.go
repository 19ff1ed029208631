package storetest

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"

	"github.com/imdhq/imd/pkg/im"
	"github.com/imdhq/imd/pkg/store"
	"github.com/imdhq/imd/sdk/go/gen/clientv1"
)

// ids are the conversations of a list, sorted.
func ids(states map[im.ConversationID]store.ConversationState) []im.ConversationID {
	return slices.Sorted(maps.Keys(states))
}

// many makes n conversations of u.
func many(k *kit, u im.UserID, n int) []im.ConversationID {
	k.Helper()
	var out []im.ConversationID
	var rows []store.AppendRow
	for i := range n {
		r := to(im.UserID(fmt.Sprintf("p%03d", i)), u, "hello")
		rows, out = append(rows, r), append(out, r.Conversation)
		if len(rows) == store.MaxAppendRows || i == n-1 {
			k.sent(rows...)
			rows = nil
		}
	}
	slices.Sort(out)
	return out
}

func syncPages(k *kit) {
	p := k.sync(store.SyncQuery{User: "nobody"})
	if len(p.States) != 0 || p.More || !p.Full || p.Token == "" {
		k.Errorf("an empty list: %+v", p)
	}
	want := many(k, "u", 420)
	for _, limit := range []int{1, 7, 50, 200, 1_000_000} {
		q := store.SyncQuery{User: "u", Limit: limit}
		var got []im.ConversationID
		for {
			if q.Limit > store.MaxSyncPage {
				q.Limit = store.MaxSyncPage
			}
			p := k.sync(q)
			if !p.Full {
				k.Fatal("a page of the full list is not full")
			}
			for _, s := range p.States {
				got = append(got, s.Conversation)
			}
			q.Token = p.Token
			if !p.More {
				break
			}
		}
		same(k, "list", got, want)
		if p := k.sync(q); len(p.States) != 0 || p.More || p.Full {
			k.Errorf("after the end: %d states, more %v, full %v", len(p.States), p.More, p.Full)
		}
	}
	// A caller with room for fewer states goes on behind any of them.
	q := store.SyncQuery{User: "u"}
	var got []im.ConversationID
	for {
		p := k.sync(q)
		use := min(3, len(p.States))
		for _, s := range p.States[:use] {
			got = append(got, s.Conversation)
		}
		if use == len(p.States) && !p.More {
			break
		}
		q.Token = p.TokenAfter[use-1]
	}
	same(k, "list by three", got, want)
}

func syncChanges(k *kit) {
	g, h := k.group("o", "m"), k.group("o", "m")
	k.sent(to("m", "p", "x"))
	_, token := k.syncAll(store.SyncQuery{User: "m"})
	expect := func(what string, want ...im.ConversationID) {
		k.Helper()
		var got map[im.ConversationID]store.ConversationState
		got, token = k.syncAll(store.SyncQuery{User: "m", Token: token})
		slices.Sort(want)
		same(k, what, ids(got), want)
	}
	expect("nothing")
	k.sent(row(g, "o", "x"))
	expect("a message", g)
	k.change(store.Change{Conversation: h, Actor: "o", Rename: new("new")})
	k.sent(to("p", "m", "x"))
	expect("a name and a message", h, direct("m", "p"))
	k.read(g, "m", 2)
	expect("the own position", g)
	k.read(g, "o", 2)
	expect("another's position in a group")
	k.read(direct("m", "p"), "p", 2)
	expect("the peer's position", direct("m", "p"))
	if _, err := k.s.ClearHistory(k.ctx(), g, "m", 1); err != nil {
		k.Fatal(err)
	}
	expect("cleared history", g)
	k.add(g, "o", "x")
	expect("a new member", g)
	k.change(store.Change{Conversation: g, Actor: "o", SetRole: &store.SetRole{User: "m", Role: clientv1.Role_ROLE_ADMIN}})
	expect("the own role", g)
	k.remove(g, "o", "m")
	expect("removal", g)
	k.sent(row(g, "o", "x"))
	expect("what a former member does not see")
	k.add(g, "o", "m")
	expect("return", g)
	k.read(g, "m", 0)
	k.append(row(g, "stranger", "x"))
	expect("what changes nothing")
	i := k.group("z")
	expect("a group without me")
	k.add(i, "z", "m")
	expect("a group with me", i)
}

func syncCursors(k *kit) {
	list := many(k, "u", 30)
	_, token := k.syncAll(store.SyncQuery{User: "u"})
	stranger := k.group("z")
	left := k.group("z", "u")
	k.remove(left, "z", "u")
	behind, level := k.group("z", "u"), k.group("z", "u") // groups in which nothing happens any more
	_, token = k.syncAll(store.SyncQuery{User: "u", Token: token})
	k.sent(to("p000", "u", "new"))
	cursors := map[im.ConversationID]im.Seq{
		list[3]: 0, list[4]: 1, list[5]: 9, list[20]: 0, direct("p000", "u"): 1, stranger: 5, left: 2, "g_none": 1, "d_none": 1,
		behind: 0, level: 99,
	}
	want := []im.ConversationID{list[3], list[20], direct("p000", "u"), stranger, left, behind, "g_none", "d_none"}
	slices.Sort(want)
	want = slices.Compact(want)
	for _, limit := range []int{1, 2, 3, 200} {
		got, next := k.syncAll(store.SyncQuery{User: "u", Token: token, Cursors: cursors, Limit: limit})
		same(k, "list", ids(got), want)
		for _, id := range []im.ConversationID{stranger, "g_none", left} {
			if got[id].Role != clientv1.Role_ROLE_UNSPECIFIED {
				k.Errorf("%s: %+v", id, got[id])
			}
		}
		if s := got[stranger]; s.Head != 0 || s.Name != "" || s.Kind != 0 || s.Members != 0 {
			k.Errorf("a stranger learns %+v", s)
		}
		if again, _ := k.syncAll(store.SyncQuery{User: "u", Token: next}); len(again) != 0 {
			k.Errorf("after the end: %v", ids(again))
		}
	}
	full, _ := k.syncAll(store.SyncQuery{User: "u", Cursors: cursors, Limit: 7})
	same(k, "the full list with cursors", len(full), len(list)+6) // four groups and two that do not exist
}

// syncEntries compares the pages of a sync with those of history.
func syncEntries(k *kit) {
	list := many(k, "u", 8)
	for i := range list {
		peer := im.UserID(fmt.Sprintf("p%03d", i))
		k.fill(direct(peer, "u"), peer, 4*i)
	}
	twice := k.group("z", "u")
	k.fill(twice, "z", 5)
	k.remove(twice, "z", "u")
	k.fill(twice, "z", 5)
	k.add(twice, "z", "u")
	k.fill(twice, "z", 5)
	left := k.group("z", "u")
	k.fill(left, "z", 5)
	k.remove(left, "z", "u")
	stranger := k.group("z")
	_, token := k.syncAll(store.SyncQuery{User: "u"})
	cursors := map[im.ConversationID]im.Seq{stranger: 0, twice: 3, left: 2}
	for i, conv := range list[:6] {
		cursors[conv] = im.Seq(3 * i)
	}
	for _, q := range []store.SyncQuery{{}, {Cursors: cursors}, {Cursors: cursors, Token: token}} {
		q.User = "u"
		for _, q.Entries = range []int{1, 5, 100} {
			got, _ := k.syncAll(q)
			for id, s := range got {
				have, known := q.Cursors[id]
				h := store.HistoryQuery{Reader: "u", Conversation: id, After: have, Backward: !known, Limit: q.Entries}
				if s.Role == clientv1.Role_ROLE_UNSPECIFIED && s.Kind == 0 {
					same(k, "a page for a stranger", s.Page == nil, true)
					continue
				}
				if s.Page == nil {
					k.Fatalf("%s has no page", id)
				}
				same(k, fmt.Sprintf("page of %s, %d entries, above %d", id, q.Entries, have), *s.Page, k.history(h))
			}
		}
	}
	syncBytes(k)
}

// syncBytes bounds the pages of a sync: those in front are as they are without a
// bound, and none comes behind the first that is left out.
func syncBytes(k *kit) {
	free := k.sync(store.SyncQuery{User: "u", Entries: 3})
	total := 0
	for _, s := range free.States {
		for _, e := range s.Page.Entries {
			total += len(e.Content) + len(e.Change)
		}
	}
	for most := 1; most <= 3*total; most += 1 + total/40 {
		used, over := 0, false
		for i, s := range k.sync(store.SyncQuery{User: "u", Entries: 3, MaxBytes: most}).States {
			switch {
			case s.Page == nil:
				over = true
				continue
			case over:
				k.Fatalf("%d bytes: a page behind one that was left out", most)
			case s.Page.End == free.States[i].Page.End && len(s.Page.Entries) == len(free.States[i].Page.Entries):
				same(k, "page", *s.Page, *free.States[i].Page)
			}
			for _, e := range s.Page.Entries {
				used += len(e.Content) + len(e.Change)
			}
		}
		if used > most || over && most > 2*total { // a store may read an entry more than it brings
			k.Fatalf("%d bytes of at most %d and of %d in all, cut %v", used, most, total, over)
		}
	}
}

// syncWhileChanging changes conversations while a walk goes on: each change is
// in this walk or in the next.
func syncWhileChanging(k *kit) {
	list := many(k, "u", 40)
	peer := map[im.ConversationID]im.UserID{}
	for i := range 40 {
		p := im.UserID(fmt.Sprintf("p%03d", i))
		peer[direct(p, "u")] = p
	}
	known := map[im.ConversationID]im.Seq{}
	q := store.SyncQuery{User: "u", Limit: 5}
	for n := 0; ; n++ {
		p := k.sync(q)
		for _, s := range p.States {
			known[s.Conversation] = s.Head
		}
		q.Token = p.Token
		if !p.More {
			break
		}
		for _, c := range []im.ConversationID{list[n], list[39-n]} {
			k.sent(to(peer[c], "u", "more"))
		}
	}
	next, _ := k.syncAll(store.SyncQuery{User: "u", Token: q.Token})
	for id, s := range next {
		known[id] = s.Head
	}
	full, _ := k.syncAll(store.SyncQuery{User: "u"})
	for id, s := range full {
		if known[id] != s.Head {
			k.Errorf("%s: the walks know %d, the head is %d", id, known[id], s.Head)
		}
	}
}

// syncMany asks for many pages at once: none changes another.
func syncMany(k *kit) {
	list := many(k, "u", 30)
	left := k.group("z", "u")
	k.fill(left, "z", 5)
	k.remove(left, "z", "u")
	_, token := k.syncAll(store.SyncQuery{User: "u"})
	_, quiet := k.syncAll(store.SyncQuery{User: "p001"})
	k.sent(to("p000", "u", "new"), to("p003", "u", "new"))
	cursors := map[im.ConversationID]im.Seq{list[0]: 0, list[3]: 1, list[9]: 0, left: 3, "g_none": 1}
	qs := []store.SyncQuery{
		{User: "u"}, {User: "u", Token: token}, {User: "nobody"}, {User: "u", Token: token, Entries: 2, Cursors: cursors},
		{User: "u", Entries: 20, MaxBytes: 60}, {User: "p001", Token: quiet}, {User: "u", Limit: 3, Entries: 1}, {User: "u", Token: "void", Cursors: cursors},
		{User: "p003", Entries: 5}, {User: "u", Entries: 20, MaxBytes: 60},
	}
	for i := range qs {
		qs[i].Digest = i%2 == 0
		if qs[i].Limit == 0 {
			qs[i].Limit = store.MaxSyncPage
		}
	}
	pages, err := k.s.SyncMany(k.ctx(), qs)
	if err != nil || len(pages) != len(qs) {
		k.Fatalf("%d pages, %v", len(pages), err)
	}
	for i, q := range qs {
		want, got := k.sync(q), pages[i]
		what := fmt.Sprintf("query %d", i)
		if a, b := text(got.States), text(want.States); a != b {
			k.Errorf("%s: %.2000s, want %.2000s", what, a, b)
		}
		same(k, what+": more, full, tokens", []any{got.More, got.Full, len(got.TokenAfter), got.Token == ""}, []any{want.More, want.Full, len(want.TokenAfter), false})
		same(k, what+": digest", got.Digest, want.Digest)
		if sums := q.Digest && !want.More && q.User != "nobody"; sums != (want.Digest != 0) {
			k.Errorf("%s: its digest is %d", what, want.Digest)
		}
		q.Token, q.Cursors = got.Token, nil
		if !got.More {
			if p := k.sync(q); len(p.States) != 0 {
				k.Errorf("%s: its token brings %+v", what, p.States)
			}
		}
	}
	if p, err := k.s.SyncMany(k.ctx(), nil); err != nil || len(p) != 0 {
		k.Errorf("nothing: %v, %v", p, err)
	}
	if _, err := k.s.SyncMany(k.ctx(), make([]store.SyncQuery, store.MaxSyncs+1)); im.ReasonOf(err) != clientv1.Reason_REASON_BAD_REQUEST {
		k.Errorf("too many: %v", err)
	}
}

// text is all of a value, through its pointers.
func text(v any) string {
	b, err := json.Marshal(v)
	return string(b) + fmt.Sprint(err)
}

func voidTokens(k *kit) {
	g := k.group("u")
	other := k.d.Open(k)
	o := &kit{T: k.T, d: k.d, s: other}
	o.group("u")
	_, foreign := o.syncAll(store.SyncQuery{User: "u"})
	if err := other.Close(); err != nil {
		k.Fatal(err)
	}
	for _, token := range []string{foreign, "t40", "%%%", "AAAA"} {
		p := k.sync(store.SyncQuery{User: "u", Token: token, Cursors: map[im.ConversationID]im.Seq{"g_of_the_other": 7}})
		if !p.Full || len(p.States) != 1 || p.States[0].Conversation != g {
			k.Errorf("token %q: %+v", token, p)
		}
	}
}

func directState(k *kit) {
	k.sent(to("a", "b", "x"), to("a", "b", "y"))
	d := direct("a", "b")
	k.save(store.Position{Conversation: d, User: "b", Delivered: 2, Read: 1})
	s := k.state(d, "a")
	if s.Peer != "b" || s.Kind != clientv1.ConversationKind_CONVERSATION_KIND_DIRECT || s.Role != clientv1.Role_ROLE_MEMBER || s.Members != 2 {
		k.Errorf("state: %+v", s)
	}
	if m := s.PeerMember; m == nil || m.User != "b" || m.Delivered != 2 || m.Read != 1 {
		k.Errorf("peer: %+v", s.PeerMember)
	}
	same(k, "unread", []int{s.Unread, k.state(d, "b").Unread}, []int{0, 1})
}

func formerMember(k *kit) {
	g := k.group("o", "m")
	out := k.remove(g, "o", "m")
	k.change(store.Change{Conversation: g, Actor: "o", Rename: new("secret")})
	k.add(g, "o", "n")
	k.change(store.Change{Conversation: g, Actor: "o", Close: true})
	s := k.state(g, "m")
	same(k, "state", []any{s.Name, s.Head, s.Role, s.Closed, s.Members}, []any{"team", out, clientv1.Role_ROLE_UNSPECIFIED, false, 0})
	if _, err := k.s.Position(k.ctx(), g, "m"); im.ReasonOf(err) != clientv1.Reason_REASON_NOT_MEMBER {
		k.Errorf("position of a former member: %v", err)
	}
	if _, err := k.s.Members(k.ctx(), g, "m", "", 10); im.ReasonOf(err) != clientv1.Reason_REASON_NOT_MEMBER {
		k.Errorf("members for a former member: %v", err)
	}
}

func lastMessage(k *kit) {
	g := k.group("o", "m")
	if s := k.state(g, "m"); s.Last != nil {
		k.Errorf("no message yet: %+v", s.Last)
	}
	r := row(g, "o", "x")
	k.sent(r)
	k.change(store.Change{Conversation: g, Actor: "o", Rename: new("new")})
	k.add(g, "o", "n")
	if s := k.state(g, "m"); s.Last == nil || s.Last.MessageID != r.MessageID || string(s.Last.Content) != "x" {
		k.Errorf("last: %+v", s.Last)
	}
	if s := k.state(g, "n"); s.Last != nil {
		k.Errorf("last for a newcomer: %+v", s.Last)
	}
	k.remove(g, "o", "m")
	k.sent(row(g, "o", "hidden"))
	k.add(g, "o", "m")
	if s := k.state(g, "m"); s.Last == nil || string(s.Last.Content) != "x" {
		k.Errorf("last over a hidden stretch: %+v", s.Last)
	}
}

func heads(k *kit) {
	users := []im.UserID{"a", "b", "m"}
	get := func(version string) (map[string]im.Seq, string) {
		k.Helper()
		list, next, err := k.s.Heads(k.ctx(), users, version)
		if err != nil {
			k.Fatal(err)
		}
		out := map[string]im.Seq{}
		for _, h := range list {
			out[string(h.User)+" "+string(h.Conversation)] = h.Seq
		}
		return out, next
	}
	g := k.group("a", "m")
	list, v := get("")
	same(k, "at first", len(list), 0)
	k.sent(to("a", "b", "x"))
	last := k.sent(row(g, "a", "x"))
	k.group("other")
	list, v = get(v)
	for _, key := range []string{"a " + string(direct("a", "b")), "b " + string(direct("a", "b"))} {
		same(k, key, list[key], 1)
	}
	same(k, "group", []im.Seq{list["a "+string(g)], list["m "+string(g)]}, []im.Seq{last, last})
	if _, ok := list["b "+string(g)]; ok {
		k.Error("a stranger gets a head")
	}
	out := k.remove(g, "a", "m")
	k.sent(row(g, "a", "x"))
	list, v = get(v)
	same(k, "removed", []im.Seq{list["a "+string(g)], list["m "+string(g)]}, []im.Seq{out + 1, out})
	if _, _, err := k.s.Heads(k.ctx(), users, "not one of ours"); err != nil {
		k.Errorf("void version: %v", err)
	}
	k.sent(row(g, "a", "y"))
	list, _ = get(v)
	same(k, "again", list["a "+string(g)], out+2)
}

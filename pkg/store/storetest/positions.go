package storetest

import (
	"github.com/imdhq/imd/pkg/im"
	"github.com/imdhq/imd/pkg/store"
	"github.com/imdhq/imd/sdk/go/gen/clientv1"
)

func unreadRules(k *kit) {
	d := direct("a", "b")
	k.sent(to("a", "b", "1"), to("a", "b", "2"), to("a", "b", "3"))
	same(k, "b at first", k.position(d, "b").Unread, 3)
	same(k, "b after reading", k.read(d, "b", 3).Unread, 0)
	k.sent(to("b", "a", "4"), to("b", "a", "5"))
	same(k, "b's own messages", k.position(d, "b").Unread, 0)
	same(k, "a", k.position(d, "a").Unread, 2)
	same(k, "sending does not read", k.position(d, "b").Read, 3)
	k.sent(to("a", "b", "6"), to("a", "b", "7"), to("a", "b", "8"), to("a", "b", "9"))
	same(k, "b after four more", k.position(d, "b").Unread, 4)
	same(k, "b in the list", k.state(d, "b").Unread, 4)
	p := k.read(d, "b", 9)
	same(k, "b after the mark", []any{p.Unread, p.Read, p.Delivered}, []any{0, 9, 9})
	p = k.read(d, "b", 3) // late
	same(k, "after a late mark", []any{p.Unread, p.Read}, []any{0, 9})
	quiet := row(d, "a", "quiet")
	quiet.Countable = false
	k.sent(quiet)
	same(k, "not countable", k.position(d, "b").Unread, 0)
	g := k.group("o", "m")
	k.fill(g, "o", 5)
	k.add(g, "o", "n")
	same(k, "changes do not count", k.position(g, "m").Unread, 5)
	same(k, "a newcomer", k.position(g, "n").Unread, 0)
	if _, err := k.s.ClearHistory(k.ctx(), g, "m", 4); err != nil {
		k.Fatal(err)
	}
	same(k, "cleared", k.position(g, "m").Unread, 2)
}

func unreadBound(k *kit) {
	g := k.group("o", "m")
	k.fill(g, "o", store.MaxUnread+50)
	same(k, "unread", k.position(g, "m").Unread, store.MaxUnread)
	same(k, "in the list", k.state(g, "m").Unread, store.MaxUnread)
	same(k, "the sender", k.position(g, "o").Unread, 0)
}

func positionsOnlyRise(k *kit) {
	g := k.group("o", "m")
	k.fill(g, "o", 9)
	p := k.save(store.Position{Conversation: g, User: "m", Delivered: 5})[0]
	same(k, "delivered", []any{p.Delivered, p.Read, p.Head, p.Start, p.Members, p.Kind, p.Unread},
		[]any{5, 0, 10, 0, 2, clientv1.ConversationKind_CONVERSATION_KIND_GROUP, 0}) // nothing was read, so nothing is counted
	p = k.save(store.Position{Conversation: g, User: "m", Delivered: 3, Read: 2})[0]
	same(k, "lower", []any{p.Delivered, p.Read}, []any{5, 2})
	p = k.save(store.Position{Conversation: g, User: "m", Delivered: 99, Read: 99})[0]
	same(k, "past the head", []any{p.Delivered, p.Read}, []any{10, 10})
	same(k, "read again", k.position(g, "m"), p)
	start := k.add(g, "o", "n") - 1
	same(k, "a newcomer's delivered begins at the start", k.position(g, "n").Delivered, start)
	d := direct("o", "p")
	k.sent(to("o", "p", "x"))
	list := k.save(store.Position{Conversation: g, User: "o", Read: 3}, store.Position{Conversation: d, User: "p", Read: 1},
		store.Position{Conversation: g, User: "o", Read: 7})
	if len(list) != 3 || list[0].Read != 7 || list[1].Peer != "o" || list[1].Read != 1 || list[2].Read != 7 {
		k.Errorf("several: %+v", list)
	}
}

func positionsOfStrangers(k *kit) {
	g := k.group("o", "m")
	k.fill(g, "o", 3)
	k.remove(g, "o", "m")
	got := k.save(store.Position{Conversation: g, User: "m", Read: 3}, store.Position{Conversation: g, User: "x", Read: 3},
		store.Position{Conversation: "g_none", User: "o", Read: 3}, store.Position{Conversation: g, User: "o", Read: 3})
	if len(got) != 4 || got[3].User != "o" || got[3].Read != 3 {
		k.Fatalf("positions: %+v", got)
	}
	for i, u := range []im.UserID{"m", "x", "o"} {
		if got[i].User != u || got[i].Kind != 0 || got[i].Read != 0 {
			k.Errorf("a stranger stands at %+v", got[i])
		}
	}
	same(k, "state of a former member", k.state(g, "m").Read, 0)
	for _, u := range []im.UserID{"m", "x"} {
		if _, err := k.s.Position(k.ctx(), g, u); im.ReasonOf(err) != clientv1.Reason_REASON_NOT_MEMBER {
			k.Errorf("position of %s: %v", u, err)
		}
	}
}

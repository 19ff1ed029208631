package storetest

import (
	"fmt"
	"sync"

	"google.golang.org/protobuf/proto"

	"github.com/imdhq/imd/pkg/im"
	"github.com/imdhq/imd/pkg/store"
	"github.com/imdhq/imd/sdk/go/gen/clientv1"
)

const (
	asMember = clientv1.Role_ROLE_MEMBER
	asAdmin  = clientv1.Role_ROLE_ADMIN
	asOwner  = clientv1.Role_ROLE_OWNER
)

func createOnce(k *kit) {
	c := store.Change{Conversation: "g_first", Actor: "a", RequestID: uuid(), MessageID: mid(), Create: &store.CreateGroup{Name: "n", Owner: "a", Members: []im.UserID{"b"}}}
	first := k.change(c)
	if first.Duplicate || first.Conversation != "g_first" || first.Entry.Seq != 1 || first.Entry.Sender != "a" {
		k.Fatalf("created: %+v", first)
	}
	again := c
	again.Conversation, again.MessageID = "g_second", mid()
	r := k.change(again)
	if !r.Duplicate || r.Conversation != "g_first" || r.Entry.Seq != 1 || r.Entry.MessageID != c.MessageID {
		k.Errorf("repeated: %+v", r)
	}
	if _, err := k.s.History(k.ctx(), store.HistoryQuery{Conversation: "g_second", Limit: 1}); im.ReasonOf(err) != clientv1.Reason_REASON_NOT_MEMBER {
		k.Errorf("the repeat made a group: %v", err)
	}
	other := again
	other.Actor = "b" // another actor, another request
	other.Create = &store.CreateGroup{Owner: "b"}
	if r := k.change(other); r.Duplicate || r.Conversation != "g_second" {
		k.Errorf("another actor: %+v", r)
	}
}

func changeOnce(k *kit) {
	g := k.group("o", "m")
	add := store.Change{Conversation: g, Actor: "o", RequestID: uuid(), AddMembers: []im.UserID{"x"}}
	first := k.change(add)
	k.remove(g, "o", "x")
	r := k.change(add)
	if !r.Duplicate || r.Entry.Seq != first.Entry.Seq || r.Entry.MessageID != first.Entry.MessageID {
		k.Errorf("repeated: %+v, first %+v", r, first)
	}
	leave := store.Change{Conversation: g, Actor: "m", RequestID: uuid(), Leave: true}
	first = k.change(leave)
	same(k, "who should hear of it", first.Removed, []im.UserID{"m"})
	r = k.change(leave) // whatever the actor may do now
	if !r.Duplicate || r.Entry.Seq != first.Entry.Seq || len(r.Removed) != 1 {
		k.Errorf("leaving again: %+v", r)
	}
	same(k, "log", k.seen(g, "o"), upTo(1, first.Entry.Seq))
	h := k.group("m")
	leave.Conversation = h // the same request id elsewhere is another request
	k.refused(clientv1.Reason_REASON_FORBIDDEN, leave)
}

func requestIDOfMessage(k *kit) {
	g := k.group("o")
	r := row(g, "o", "x")
	k.sent(r)
	k.refused(clientv1.Reason_REASON_ID_REUSED, store.Change{Conversation: g, Actor: "o", RequestID: r.ClientMessageID, Rename: new("n")})
	c := store.Change{Conversation: g, Actor: "o", RequestID: uuid(), Rename: new("n")}
	k.change(c)
	r = row(g, "o", "x")
	r.ClientMessageID = c.RequestID
	k.refusedRow(clientv1.Reason_REASON_ID_REUSED, r)
}

func roles(k *kit) {
	actions := map[string]func(g im.ConversationID) store.Change{
		"rename": func(g im.ConversationID) store.Change { return store.Change{Conversation: g, Rename: new("new")} },
		"add": func(g im.ConversationID) store.Change {
			return store.Change{Conversation: g, AddMembers: []im.UserID{"new"}}
		},
		"remove": func(g im.ConversationID) store.Change {
			return store.Change{Conversation: g, RemoveMembers: []im.UserID{"victim"}}
		},
		"role": func(g im.ConversationID) store.Change {
			return store.Change{Conversation: g, SetRole: &store.SetRole{User: "victim", Role: asAdmin}}
		},
		"close": func(g im.ConversationID) store.Change { return store.Change{Conversation: g, Close: true} },
		"remove owner": func(g im.ConversationID) store.Change {
			return store.Change{Conversation: g, RemoveMembers: []im.UserID{"owner"}}
		},
	}
	const ok = clientv1.Reason_REASON_UNSPECIFIED
	const no, out = clientv1.Reason_REASON_FORBIDDEN, clientv1.Reason_REASON_NOT_MEMBER
	table := map[string]map[im.UserID]im.Reason{
		"rename":       {"owner": ok, "admin": ok, "member": no, "stranger": out, "": ok},
		"add":          {"owner": ok, "admin": ok, "member": no, "stranger": out, "": ok},
		"remove":       {"owner": ok, "admin": ok, "member": no, "stranger": out, "": ok},
		"role":         {"owner": ok, "admin": no, "member": no, "stranger": out, "": ok},
		"close":        {"owner": ok, "admin": no, "member": no, "stranger": out, "": ok},
		"remove owner": {"owner": no, "admin": no, "member": no, "stranger": out, "": ok},
	}
	for name, by := range table {
		for actor, want := range by {
			g := k.group("owner", "admin", "member", "victim")
			k.change(store.Change{Conversation: g, Actor: "owner", SetRole: &store.SetRole{User: "admin", Role: asAdmin}})
			c := actions[name](g)
			c.Actor = actor
			if _, err := k.tryChange(c); im.ReasonOf(err) != want {
				k.Errorf("%s by %q: %v, want %q", name, actor, err, im.ReasonName(want))
			}
		}
	}
	k.sent(to("a", "b", "x"))
	for _, actor := range []im.UserID{"a", ""} {
		k.refused(no, store.Change{Conversation: direct("a", "b"), Actor: actor, Rename: new("n")})
	}
	k.refused(out, store.Change{Conversation: direct("a", "b"), Actor: "c", Leave: true})
	k.refused(out, store.Change{Conversation: "g_none", Actor: "a", Leave: true})
	k.refused(out, store.Change{Conversation: "g_none", Rename: new("n")})
	g := k.group("o", "m")
	k.change(store.Change{Conversation: g, Actor: "o", Close: true})
	for _, c := range []store.Change{{Rename: new("n")}, {Close: true}, {AddMembers: []im.UserID{"x"}}, {SetRole: &store.SetRole{User: "m", Role: asAdmin}}} {
		c.Conversation, c.Actor = g, "o"
		k.refused(clientv1.Reason_REASON_CONVERSATION_CLOSED, c)
	}
}

func onlyOwner(k *kit) {
	g := k.group("o", "m")
	k.refused(clientv1.Reason_REASON_FORBIDDEN, store.Change{Conversation: g, Actor: "o", Leave: true})
	k.refused(clientv1.Reason_REASON_FORBIDDEN, store.Change{Conversation: g, Actor: "o", SetRole: &store.SetRole{User: "o", Role: asMember}})
	k.change(store.Change{Conversation: g, Actor: "o", SetRole: &store.SetRole{User: "m", Role: asOwner}})
	k.change(store.Change{Conversation: g, Actor: "o", Leave: true})
	k.refused(clientv1.Reason_REASON_FORBIDDEN, store.Change{Conversation: g, Actor: "m", Leave: true})
	same(k, "role", k.state(g, "m").Role, asOwner)
	k.refused(clientv1.Reason_REASON_NOT_FOUND, store.Change{Conversation: g, Actor: "m", SetRole: &store.SetRole{User: "o", Role: asMember}})
	k.add(g, "m", "o")
	same(k, "role after return", k.state(g, "o").Role, asMember)
	k.refused(clientv1.Reason_REASON_BAD_REQUEST, store.Change{Conversation: g, Actor: "m", SetRole: &store.SetRole{User: "o", Role: asMember}})
	k.refused(clientv1.Reason_REASON_BAD_REQUEST, store.Change{Conversation: g, Actor: "m", SetRole: &store.SetRole{User: "o"}})
}

func userLists(k *kit) {
	many := make([]im.UserID, store.MaxAddMembers+1)
	for i := range many {
		many[i] = im.UserID(fmt.Sprintf("u%04d", i))
	}
	tooMany := store.Change{Conversation: "g_big", Actor: "o", Create: &store.CreateGroup{Owner: "o", Members: many}}
	k.refused(clientv1.Reason_REASON_TOO_LARGE, tooMany)
	if _, err := k.s.History(k.ctx(), store.HistoryQuery{Conversation: "g_big", Limit: 1}); im.ReasonOf(err) != clientv1.Reason_REASON_NOT_MEMBER {
		k.Errorf("half created: %v", err)
	}
	g := k.group("o", "m", "m", "o", "n", "m")
	count := func(want int) {
		k.Helper()
		p, err := k.s.Members(k.ctx(), g, "o", "", 1000)
		if err != nil || p.Count != want || len(p.Members) != want {
			k.Errorf("members: %d and %d, %v; want %d", p.Count, len(p.Members), err, want)
		}
	}
	count(3)
	k.refused(clientv1.Reason_REASON_TOO_LARGE, store.Change{Conversation: g, Actor: "o", AddMembers: many})
	k.refused(clientv1.Reason_REASON_TOO_LARGE, store.Change{Conversation: g, Actor: "o", RemoveMembers: many})
	k.refused(clientv1.Reason_REASON_BAD_REQUEST, store.Change{Conversation: g, Actor: "o", AddMembers: []im.UserID{"o", "m"}})
	k.refused(clientv1.Reason_REASON_BAD_REQUEST, store.Change{Conversation: g, Actor: "o", AddMembers: []im.UserID{}})
	k.refused(clientv1.Reason_REASON_BAD_REQUEST, store.Change{Conversation: g, Actor: "o", AddMembers: []im.UserID{""}})
	k.refused(clientv1.Reason_REASON_BAD_REQUEST, store.Change{Conversation: g, Actor: "o", RemoveMembers: []im.UserID{"stranger"}})
	k.refused(clientv1.Reason_REASON_BAD_REQUEST, store.Change{Conversation: g, Actor: "o", Rename: new("team")})
	k.refused(clientv1.Reason_REASON_BAD_REQUEST, store.Change{Conversation: g, Actor: "o"})
	k.refused(clientv1.Reason_REASON_BAD_REQUEST, store.Change{Conversation: g, Actor: "o", Close: true, Leave: true})
	fifty := make([]im.UserID, 50)
	for i := range fifty {
		fifty[i] = "same"
	}
	r := k.change(store.Change{Conversation: g, Actor: "o", AddMembers: append(fifty, "m", "other")})
	same(k, "who was added", memberChange(k, r.Entry).UserIds, []string{"same", "other"})
	count(5)
	r = k.change(store.Change{Conversation: g, Actor: "o", RemoveMembers: append(fifty, "stranger")})
	same(k, "who was removed", r.Removed, []im.UserID{"same"})
	count(4)
	r = k.change(store.Change{Conversation: g, Actor: "o", AddMembers: many[:store.MaxAddMembers]})
	count(4 + store.MaxAddMembers)
	k.s = k.d.Reopen(k, k.s)
	count(4 + store.MaxAddMembers)
}

func concurrentAdds(k *kit) {
	g := k.group("o")
	var wg sync.WaitGroup
	var mu sync.Mutex
	won := 0
	for range 20 {
		wg.Go(func() {
			_, err := k.tryChange(store.Change{Conversation: g, Actor: "o", AddMembers: []im.UserID{"m"}})
			mu.Lock()
			defer mu.Unlock()
			if err == nil {
				won++
			} else if im.ReasonOf(err) != clientv1.Reason_REASON_BAD_REQUEST {
				k.Errorf("add: %v", err)
			}
		})
	}
	wg.Wait()
	same(k, "adds that worked", won, 1)
	same(k, "members", k.position(g, "o").Members, 2)
	same(k, "log", k.seen(g, "o"), upTo(1, 2))
}

func changeEntries(k *kit) {
	r := k.change(store.Change{Conversation: "g_x", Actor: "o", Create: &store.CreateGroup{Name: "n", Owner: "o", Members: []im.UserID{"z", "a"}}})
	m := memberChange(k, r.Entry)
	same(k, "create", []any{m.Action, m.UserIds, m.Start, r.Entry.Countable}, []any{clientv1.MemberAction_MEMBER_ACTION_ADDED, []string{"o", "z", "a"}, 0, false})
	v := r.MemberVersion
	rises := func(r store.ChangeResult) {
		k.Helper()
		if r.MemberVersion <= v {
			k.Errorf("member version %d after %d", r.MemberVersion, v)
		}
		v = r.MemberVersion
	}
	r = k.change(store.Change{Conversation: "g_x", Actor: "o", AddMembers: []im.UserID{"y"}})
	m = memberChange(k, r.Entry)
	same(k, "add", []any{m.Action, m.UserIds, m.Role, m.Start}, []any{clientv1.MemberAction_MEMBER_ACTION_ADDED, []string{"y"}, asMember, 1})
	rises(r)
	r = k.change(store.Change{Conversation: "g_x", Actor: "o", SetRole: &store.SetRole{User: "y", Role: asAdmin}})
	m = memberChange(k, r.Entry)
	same(k, "role", []any{m.Action, m.UserIds, m.Role}, []any{clientv1.MemberAction_MEMBER_ACTION_ROLE, []string{"y"}, asAdmin})
	rises(r)
	r = k.change(store.Change{Conversation: "g_x", Actor: "y", RemoveMembers: []im.UserID{"z"}})
	m = memberChange(k, r.Entry)
	same(k, "remove", []any{m.Action, m.UserIds, r.Removed}, []any{clientv1.MemberAction_MEMBER_ACTION_REMOVED, []string{"z"}, []im.UserID{"z"}})
	rises(r)
	r = k.change(store.Change{Conversation: "g_x", Actor: "a", Leave: true})
	m = memberChange(k, r.Entry)
	same(k, "leave", []any{m.Action, m.UserIds}, []any{clientv1.MemberAction_MEMBER_ACTION_LEFT, []string{"a"}})
	rises(r)
	for what, c := range map[string]store.Change{"name": {Rename: new("other")}, "closed": {Close: true}} {
		if what == "closed" {
			continue
		}
		c.Conversation, c.Actor = "g_x", "o"
		k.conversationChange(c, &clientv1.ConversationChange{Name: new("other")})
	}
	k.conversationChange(store.Change{Conversation: "g_x", Actor: "o", Close: true}, &clientv1.ConversationChange{Closed: new(true)})
	head, err := k.s.Entry(k.ctx(), "g_x", 1)
	if err != nil || head.Kind != clientv1.EntryKind_ENTRY_KIND_MEMBER_CHANGE || head.Content != nil {
		k.Errorf("first entry: %+v, %v", head, err)
	}
	if got := k.append(row("g_x", "q", "x"))[0]; got.Err == nil {
		k.Error("a stranger writes")
	}
}

// conversationChange applies c and compares the text of its entry.
func (k *kit) conversationChange(c store.Change, want *clientv1.ConversationChange) {
	k.Helper()
	r := k.change(c)
	var got clientv1.ConversationChange
	if err := proto.Unmarshal(r.Entry.Change, &got); err != nil || !proto.Equal(&got, want) || r.Entry.Kind != clientv1.EntryKind_ENTRY_KIND_CONVERSATION_CHANGE {
		k.Errorf("entry: %v, %v; want %v", &got, err, want)
	}
}

func memberPages(k *kit) {
	users := make([]im.UserID, 25)
	for i := range users {
		users[i] = im.UserID(fmt.Sprintf("u%02d", i))
	}
	g := k.group("a", users...)
	k.remove(g, "a", "u03")
	var got []im.UserID
	after := im.UserID("")
	for {
		p, err := k.s.Members(k.ctx(), g, "u01", after, 7)
		if err != nil || p.Count != 25 || p.Kind != clientv1.ConversationKind_CONVERSATION_KIND_GROUP || p.MemberVersion == 0 {
			k.Fatalf("members: %+v, %v", p, err)
		}
		for _, m := range p.Members {
			got = append(got, m.User)
			if want := asMember; m.User != "a" && m.Role != want || m.User == "a" && m.Role != asOwner {
				k.Errorf("role of %s: %v", m.User, m.Role)
			}
		}
		if p.End {
			break
		}
		after = got[len(got)-1]
	}
	want := append([]im.UserID{"a"}, append(append([]im.UserID{}, users[:3]...), users[4:]...)...)
	same(k, "members", got, want)
	for _, u := range []im.UserID{"stranger", "u03"} {
		if _, err := k.s.Members(k.ctx(), g, u, "", 5); im.ReasonOf(err) != clientv1.Reason_REASON_NOT_MEMBER {
			k.Errorf("%s lists members: %v", u, err)
		}
	}
	if _, err := k.s.Members(k.ctx(), "g_none", "", "", 5); im.ReasonOf(err) != clientv1.Reason_REASON_NOT_MEMBER {
		k.Errorf("no such group: %v", err)
	}
	if p, err := k.s.Members(k.ctx(), g, "", "", 1000); err != nil || len(p.Members) != 25 {
		k.Errorf("for the system: %v", err)
	}
	k.add(g, "a", "late")
	head := k.state(g, "late").Head
	if _, err := k.s.ClearHistory(k.ctx(), g, "u01", head); err != nil {
		k.Error(err)
	}
	starts, err := k.s.Starts(k.ctx(), g, []im.UserID{"a", "u01", "u03", "late", "stranger"})
	if err != nil {
		k.Error(err)
	}
	same(k, "starts", starts, map[im.UserID]im.Seq{"a": k.state(g, "a").Start, "u01": head, "late": k.state(g, "late").Start})
	if starts, err := k.s.Starts(k.ctx(), "g_none", []im.UserID{"a"}); err != nil || len(starts) != 0 {
		k.Errorf("starts in no group: %v, %v", starts, err)
	}
}

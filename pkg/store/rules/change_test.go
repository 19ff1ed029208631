package rules

import (
	"reflect"
	"testing"

	"google.golang.org/protobuf/proto"

	"github.com/imdhq/imd/pkg/im"
	"github.com/imdhq/imd/pkg/store"
	"github.com/imdhq/imd/sdk/go/gen/clientv1"
)

const (
	group  = clientv1.ConversationKind_CONVERSATION_KIND_GROUP
	direct = clientv1.ConversationKind_CONVERSATION_KIND_DIRECT

	plain = clientv1.Role_ROLE_MEMBER
	admin = clientv1.Role_ROLE_ADMIN
	owner = clientv1.Role_ROLE_OWNER
)

// roster is a Roster of who is in it.
type roster map[im.UserID]*Member

func (r roster) Members(users ...im.UserID) (map[im.UserID]*Member, error) {
	out := map[im.UserID]*Member{}
	for _, u := range users {
		if m := r[u]; m != nil {
			out[u] = m
		}
	}
	return out, nil
}

func (r roster) Owners() (n int, err error) {
	for _, m := range r {
		if m.Role == owner {
			n++
		}
	}
	return n, nil
}

// talk is a group of an owner, an admin and a plain member, and one who was
// removed.
func talk() (*Conversation, roster) {
	c := &Conversation{ID: "g_1", Kind: group, Name: "talk", Head: 9, Count: 3, MemberVersion: 4}
	return c, roster{
		"olga": {User: "olga", Role: owner}, "adam": {User: "adam", Role: admin}, "paul": {User: "paul", Role: plain},
		"gone": {User: "gone", View: View{Last: store.Stretch{Start: 2, End: 6}}, Delivered: 5, LeftName: "chat"},
	}
}

func TestCheckChange(t *testing.T) {
	name, many := "n", make([]im.UserID, store.MaxAddMembers+1)
	good := func(set func(*store.Change)) store.Change {
		q := store.Change{Conversation: "g_1", Actor: "olga", RequestID: "r", Rename: &name}
		set(&q)
		return q
	}
	tests := []struct {
		name string
		set  func(*store.Change)
		want im.Reason
	}{
		{"good", func(*store.Change) {}, 0},
		{"two at once", func(q *store.Change) { q.Close = true }, clientv1.Reason_REASON_BAD_REQUEST},
		{"none", func(q *store.Change) { q.Rename = nil }, clientv1.Reason_REASON_BAD_REQUEST},
		{"no request id", func(q *store.Change) { q.RequestID = "" }, clientv1.Reason_REASON_BAD_REQUEST},
		{"no conversation", func(q *store.Change) { q.Conversation = "" }, clientv1.Reason_REASON_BAD_REQUEST},
		{"no owner", func(q *store.Change) { q.Rename, q.Create = nil, &store.CreateGroup{} }, clientv1.Reason_REASON_BAD_REQUEST},
		{"the system leaves", func(q *store.Change) { q.Rename, q.Actor, q.Leave = nil, "", true }, clientv1.Reason_REASON_BAD_REQUEST},
		{"no role", func(q *store.Change) { q.Rename, q.SetRole = nil, &store.SetRole{User: "paul"} }, clientv1.Reason_REASON_BAD_REQUEST},
		{"an unknown role", func(q *store.Change) { q.Rename, q.SetRole = nil, &store.SetRole{User: "paul", Role: 99} }, clientv1.Reason_REASON_BAD_REQUEST},
		{"an empty user", func(q *store.Change) { q.Rename, q.AddMembers = nil, []im.UserID{""} }, clientv1.Reason_REASON_BAD_REQUEST},
		{"too many", func(q *store.Change) { q.Rename, q.RemoveMembers = nil, many }, clientv1.Reason_REASON_TOO_LARGE},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			if err := CheckChange(good(tt.set)); (err != nil) != (tt.want != 0) || err != nil && im.ReasonOf(err) != tt.want {
				t.Errorf("CheckChange() = %v", err)
			}
		})
	}
}

func TestRefusedChanges(t *testing.T) {
	name, same := "other", "talk"
	forbidden, bad := clientv1.Reason_REASON_FORBIDDEN, clientv1.Reason_REASON_BAD_REQUEST
	tests := []struct {
		name string
		q    store.Change
		set  func(*Conversation)
		want im.Reason
	}{
		{"by a stranger", store.Change{Actor: "who", Rename: &name}, nil, clientv1.Reason_REASON_NOT_MEMBER},
		{"by a former member", store.Change{Actor: "gone", Rename: &name}, nil, clientv1.Reason_REASON_NOT_MEMBER},
		{"of a direct conversation", store.Change{Actor: "olga", Rename: &name}, func(c *Conversation) { c.Kind = direct }, forbidden},
		{"of a closed group", store.Change{Rename: &name}, func(c *Conversation) { c.Closed = true }, clientv1.Reason_REASON_CONVERSATION_CLOSED},
		{"a plain member renames", store.Change{Actor: "paul", Rename: &name}, nil, forbidden},
		{"an admin closes", store.Change{Actor: "adam", Close: true}, nil, forbidden},
		{"an admin gives a role", store.Change{Actor: "adam", SetRole: &store.SetRole{User: "paul", Role: admin}}, nil, forbidden},
		{"the same name", store.Change{Actor: "adam", Rename: &same}, nil, bad},
		{"all are members", store.Change{Actor: "adam", AddMembers: []im.UserID{"paul"}}, nil, bad},
		{"the group is full", store.Change{Actor: "adam", AddMembers: []im.UserID{"new"}}, func(c *Conversation) { c.Count = store.MaxMembers }, clientv1.Reason_REASON_TOO_LARGE},
		{"none is a member", store.Change{Actor: "adam", RemoveMembers: []im.UserID{"gone", "who"}}, nil, bad},
		{"an owner is removed", store.Change{Actor: "adam", RemoveMembers: []im.UserID{"paul", "olga"}}, nil, forbidden},
		{"the only owner leaves", store.Change{Actor: "olga", Leave: true}, nil, forbidden},
		{"the only owner steps down", store.Change{Actor: "olga", SetRole: &store.SetRole{User: "olga", Role: plain}}, nil, forbidden},
		{"a role for a former member", store.Change{Actor: "olga", SetRole: &store.SetRole{User: "gone", Role: admin}}, nil, clientv1.Reason_REASON_NOT_FOUND},
		{"the same role", store.Change{Actor: "olga", SetRole: &store.SetRole{User: "adam", Role: admin}}, nil, bad},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			c, r := talk()
			if tt.set != nil {
				tt.set(c)
			}
			if _, err := Decide(c, tt.q, r); im.ReasonOf(err) != tt.want {
				t.Errorf("Decide() = %v, want %v", err, tt.want)
			}
		})
	}
}

func TestPlans(t *testing.T) {
	name := "other"
	told := func(m *clientv1.MemberChange) proto.Message { return m }
	tests := []struct {
		name   string
		q      store.Change
		open   bool
		next   Conversation // what differs from talk
		member []Member
		text   proto.Message
	}{
		{"rename", store.Change{Actor: "adam", Rename: &name}, false, Conversation{Name: name, Count: 3, MemberVersion: 4}, nil,
			&clientv1.ConversationChange{Name: &name}},
		{"close", store.Change{Close: true}, false, Conversation{Name: "talk", Closed: true, Count: 3, MemberVersion: 4}, nil,
			&clientv1.ConversationChange{Closed: proto.Bool(true)}},
		{"add a newcomer and one who returns", store.Change{Actor: "adam", AddMembers: []im.UserID{"new", "paul", "gone", "new"}}, false,
			Conversation{Name: "talk", Count: 5, MemberVersion: 5}, []Member{
				{User: "new", Role: plain, View: View{Last: store.Stretch{Start: 9}}, Delivered: 9},
				{User: "gone", Role: plain, View: View{Earlier: []store.Stretch{{Start: 2, End: 6}}, Last: store.Stretch{Start: 9}}, Delivered: 5},
			}, told(&clientv1.MemberChange{Action: clientv1.MemberAction_MEMBER_ACTION_ADDED, UserIds: []string{"new", "gone"}, Role: plain, Start: 9})},
		{"add with open history", store.Change{Actor: "adam", AddMembers: []im.UserID{"gone"}}, true,
			Conversation{Name: "talk", Count: 4, MemberVersion: 5}, []Member{{User: "gone", Role: plain, Delivered: 5}},
			told(&clientv1.MemberChange{Action: clientv1.MemberAction_MEMBER_ACTION_ADDED, UserIds: []string{"gone"}, Role: plain})},
		{"remove", store.Change{Actor: "adam", RemoveMembers: []im.UserID{"paul", "who"}}, false,
			Conversation{Name: "talk", Count: 2, MemberVersion: 5}, []Member{{User: "paul", View: View{Last: store.Stretch{End: 12}}, LeftName: "talk"}},
			told(&clientv1.MemberChange{Action: clientv1.MemberAction_MEMBER_ACTION_REMOVED, UserIds: []string{"paul"}})},
		{"leave", store.Change{Actor: "paul", Leave: true}, false,
			Conversation{Name: "talk", Count: 2, MemberVersion: 5}, []Member{{User: "paul", View: View{Last: store.Stretch{End: 12}}, LeftName: "talk"}},
			told(&clientv1.MemberChange{Action: clientv1.MemberAction_MEMBER_ACTION_LEFT, UserIds: []string{"paul"}})},
		{"the system takes the only owner's role", store.Change{SetRole: &store.SetRole{User: "olga", Role: plain}}, false,
			Conversation{Name: "talk", Count: 3, MemberVersion: 5}, []Member{{User: "olga", Role: plain}},
			told(&clientv1.MemberChange{Action: clientv1.MemberAction_MEMBER_ACTION_ROLE, UserIds: []string{"olga"}, Role: plain})},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			c, r := talk()
			c.OpenHistory = tt.open
			p, err := Decide(c, tt.q, r)
			if err != nil {
				t.Fatal(err)
			}
			c.Head = 11 // it has moved since: a head is not the plan's
			p.Apply(c)
			tt.next.ID, tt.next.Kind, tt.next.OpenHistory, tt.next.Head = "g_1", group, tt.open, 11
			same(t, "conversation", *c, tt.next)
			planned(t, p, tt.q, 9, 12, tt.member, tt.text)
		})
	}
}

func TestFound(t *testing.T) {
	q := store.Change{Conversation: "g_2", Create: &store.CreateGroup{Name: "new", Owner: "olga", Members: []im.UserID{"paul", "olga"}}}
	c, p := Found(q)
	same(t, "before", c, Conversation{ID: "g_2", Kind: group, Name: "new"})
	p.Apply(&c)
	same(t, "after", c, Conversation{ID: "g_2", Kind: group, Name: "new", Count: 2, MemberVersion: 1})
	same(t, "newcomers", p.Newcomers(), []im.UserID{"olga", "paul"})
	planned(t, p, q, 0, 1, []Member{{User: "olga", Role: owner}, {User: "paul", Role: plain}},
		&clientv1.MemberChange{Action: clientv1.MemberAction_MEMBER_ACTION_ADDED, UserIds: []string{"olga", "paul"}, Role: plain})
}

// planned checks what a plan writes with the entry seq behind prev, and that
// what the roster holds stays as it was.
func planned(t *testing.T, p Plan, q store.Change, prev, seq im.Seq, members []Member, text proto.Message) {
	t.Helper()
	if got := p.Members(prev, seq); len(got)+len(members) > 0 {
		same(t, "members", got, members)
		same(t, "members, asked again", p.Members(prev, seq), members)
	}
	e, err := p.Entry(q, prev)
	if err != nil {
		t.Fatal(err)
	}
	got := text.ProtoReflect().New().Interface()
	if err := proto.Unmarshal(e.Change, got); err != nil || !proto.Equal(got, text) {
		t.Errorf("entry: %v, %v, want %v", got, err, text)
	}
	if _, about := text.(*clientv1.ConversationChange); about != (e.Kind == clientv1.EntryKind_ENTRY_KIND_CONVERSATION_CHANGE) {
		t.Errorf("kind: %v", e.Kind)
	}
	c := Conversation{ID: "g_1", MemberVersion: 7}
	again, err := Repeat(&c, e)
	if err != nil || !again.Duplicate || again.MemberVersion != 7 {
		t.Errorf("Repeat() = %+v, %v", again, err)
	}
	var removed []im.UserID
	for _, m := range members {
		if !m.Present() {
			removed = append(removed, m.User)
		}
	}
	same(t, "removed", again.Removed, removed)
}

func TestRepeatOfAMessage(t *testing.T) {
	if _, err := Repeat(&Conversation{}, im.Entry{Kind: clientv1.EntryKind_ENTRY_KIND_MESSAGE}); im.ReasonOf(err) != clientv1.Reason_REASON_ID_REUSED {
		t.Errorf("Repeat() = %v", err)
	}
}

func same(t *testing.T, what string, got, want any) {
	t.Helper()
	if !reflect.DeepEqual(got, want) {
		t.Errorf("%s: %+v, want %+v", what, got, want)
	}
}

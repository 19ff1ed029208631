package state

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/imdhq/imd/pkg/im"
	"github.com/imdhq/imd/pkg/store"
	v1 "github.com/imdhq/imd/proto/gen/internalv1"
	"github.com/imdhq/imd/sdk/go/gen/clientv1"
)

// changeRequest makes a change of g_1 by alice; the same key gives the same
// request id.
func changeRequest(key string, ch any) *v1.ChangeRequest {
	r := &v1.ChangeRequest{ConversationId: "g_1", UserId: "alice", RequestId: send(key).ClientMessageId}
	switch c := ch.(type) {
	case *v1.ChangeRequest_Create:
		r.Change, r.ConversationId = c, ""
	case *v1.ChangeRequest_Rename:
		r.Change = c
	case *v1.ChangeRequest_AddMembers:
		r.Change = c
	case *v1.ChangeRequest_RemoveMembers:
		r.Change = c
	case *v1.ChangeRequest_SetRole:
		r.Change = c
	case *v1.ChangeRequest_Leave:
		r.Change = c
	case *v1.ChangeRequest_Close:
		r.Change = c
	}
	return r
}

func create(name string, users ...string) *v1.ChangeRequest_Create {
	return &v1.ChangeRequest_Create{Create: &v1.CreateGroup{Name: name, UserIds: users}}
}

func add(users ...string) *v1.ChangeRequest_AddMembers {
	return &v1.ChangeRequest_AddMembers{AddMembers: &v1.AddMembers{UserIds: users}}
}

func TestChangeChecks(t *testing.T) {
	many := make([]string, store.MaxAddMembers+1)
	for i := range many {
		many[i] = fmt.Sprint("u", i)
	}
	with := func(r *v1.ChangeRequest, f func(*v1.ChangeRequest)) *v1.ChangeRequest { f(r); return r }
	for name, tt := range map[string]struct {
		req  *v1.ChangeRequest
		want string
	}{
		"create":              {changeRequest("k", create("n", "bob")), ""},
		"create alone":        {changeRequest("k", create("n")), ""},
		"no name":             {changeRequest("k", create("", "bob")), "bad_request"},
		"name of 128 bytes":   {changeRequest("k", create(strings.Repeat("é", 64), "bob")), ""},
		"name of 129 bytes":   {changeRequest("k", create(strings.Repeat("n", 129), "bob")), "bad_request"},
		"name with NUL":       {changeRequest("k", create("a\x00b", "bob")), "bad_request"},
		"malformed user":      {changeRequest("k", create("n", "b b")), "invalid_id"},
		"500 users":           {changeRequest("k", add(many[:500]...)), ""},
		"501 users":           {changeRequest("k", add(many...)), "too_large"},
		"only oneself":        {changeRequest("k", add("alice")), "bad_request"},
		"nobody":              {changeRequest("k", add()), "bad_request"},
		"leave":               {changeRequest("k", &v1.ChangeRequest_Leave{Leave: &v1.Leave{}}), ""},
		"close":               {changeRequest("k", &v1.ChangeRequest_Close{Close: &v1.CloseGroup{}}), ""},
		"nothing":             {changeRequest("k", nil), "bad_request"},
		"role":                {changeRequest("k", &v1.ChangeRequest_SetRole{SetRole: &v1.SetRole{UserId: "bob", Role: clientv1.Role_ROLE_ADMIN}}), ""},
		"no role":             {changeRequest("k", &v1.ChangeRequest_SetRole{SetRole: &v1.SetRole{UserId: "bob"}}), "bad_request"},
		"role of nobody":      {changeRequest("k", &v1.ChangeRequest_SetRole{SetRole: &v1.SetRole{Role: clientv1.Role_ROLE_ADMIN}}), "invalid_id"},
		"request id":          {with(changeRequest("k", add("bob")), func(r *v1.ChangeRequest) { r.RequestId = "x" }), "bad_request"},
		"version 7":           {with(changeRequest("k", add("bob")), func(r *v1.ChangeRequest) { r.RequestId = "019ad5f0-6f0e-7c1e-9d27-3b1f6a2e7c01" }), ""},
		"version 1":           {with(changeRequest("k", add("bob")), func(r *v1.ChangeRequest) { r.RequestId = "019ad5f0-6f0e-1c1e-9d27-3b1f6a2e7c01" }), "bad_request"},
		"direct":              {with(changeRequest("k", add("bob")), func(r *v1.ChangeRequest) { r.ConversationId = "d_x" }), "forbidden"},
		"no conversation":     {with(changeRequest("k", add("bob")), func(r *v1.ChangeRequest) { r.ConversationId = "" }), "bad_request"},
		"create with an id":   {with(changeRequest("k", create("n")), func(r *v1.ChangeRequest) { r.ConversationId = "g_9" }), "bad_request"},
		"malformed actor":     {with(changeRequest("k", add("bob")), func(r *v1.ChangeRequest) { r.UserId = "?" }), "invalid_id"},
		"the system leaves":   {with(changeRequest("k", &v1.ChangeRequest_Leave{Leave: &v1.Leave{}}), func(r *v1.ChangeRequest) { r.UserId = "" }), "bad_request"},
		"the system may else": {with(changeRequest("k", add("bob")), func(r *v1.ChangeRequest) { r.UserId = "" }), ""},
	} {
		t.Run(name, func(t *testing.T) {
			if _, err := changeOf(tt.req); im.ReasonName(im.ReasonOf(err)) != tt.want && (err != nil || tt.want != "") {
				t.Errorf("got %v, want %q", err, tt.want)
			}
		})
	}
}

func TestUserIDsAreDistinctAndWithoutTheActor(t *testing.T) {
	got, err := userIDs([]string{"bob", "alice", "bob", "carol"}, "alice", 1)
	if err != nil || !slices.Equal(got, []im.UserID{"bob", "carol"}) {
		t.Fatal(got, err)
	}
}

func TestChangesGoToMembersAndToTheRemoved(t *testing.T) {
	serve(t, func(t *testing.T, n *node) {
		res, err := n.calls.Change(n.ctx, changeRequest("one", create("team", "bob", "carol")))
		if err != nil {
			t.Fatal(err)
		}
		if !im.ConversationID(res.ConversationId).Group() || res.Seq != 1 || res.Duplicate {
			t.Fatalf("created %v", res)
		}
		again, err := n.calls.Change(n.ctx, changeRequest("one", create("team", "bob", "carol")))
		if err != nil || again.ConversationId != res.ConversationId || !again.Duplicate {
			t.Fatalf("created again: %v %v", again, err)
		}
		req := changeRequest("two", &v1.ChangeRequest_RemoveMembers{RemoveMembers: &v1.RemoveMembers{UserIds: []string{"bob"}}})
		req.ConversationId = res.ConversationId
		if _, err = n.calls.Change(n.ctx, req); err != nil {
			t.Fatal(err)
		}
		items := n.out.take()
		if len(items) != 2 {
			t.Fatalf("%d items: a repeat tells nobody", len(items))
		}
		e := items[0].GetEntry()
		if e.Kind != clientv1.EntryKind_ENTRY_KIND_MEMBER_CHANGE || e.MemberChange.Action != clientv1.MemberAction_MEMBER_ACTION_ADDED || e.ClientMessageId != "" {
			t.Errorf("entry %v", e)
		}
		if !slices.Equal(items[1].AlsoUserIds, []string{"bob"}) || items[1].MemberVersion <= items[0].MemberVersion {
			t.Errorf("item %v", items[1])
		}
	})
}

func TestChangeOfAnUnknownGroup(t *testing.T) {
	serve(t, func(t *testing.T, n *node) {
		_, err := n.calls.Change(n.ctx, changeRequest("k", add("bob")))
		if im.ReasonOf(err) != clientv1.Reason_REASON_NOT_MEMBER {
			t.Fatal(err)
		}
	})
}

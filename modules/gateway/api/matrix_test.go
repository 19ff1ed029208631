package api

import (
	"testing"

	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"

	"github.com/imdhq/imd/pkg/auth"
)

// row says what a method answers to each kind of caller: ok or the reason.
type row struct {
	body    string // as a user
	keyBody string // with an API key; "" = the same
	scope   string // that the key needs

	stranger, member, admin, owner, key string
}

const id1 = `"requestId":"5f0c6f0e-8a5b-4c1e-9d27-3b1f6a2e7c01"`

var matrix = map[string]row{
	"ConversationService/Create": {body: `{` + id1 + `,"name":"team","userIds":["x","y"]}`, scope: auth.ScopeConversations,
		stranger: "ok", member: "ok", admin: "ok", owner: "ok", key: "ok"},
	"ConversationService/Rename": {body: `{"conversationId":"g_1",` + id1 + `,"name":"team"}`, scope: auth.ScopeConversations,
		stranger: "not_member", member: "forbidden", admin: "ok", owner: "ok", key: "ok"},
	"ConversationService/Close": {body: `{"conversationId":"g_1",` + id1 + `}`, scope: auth.ScopeConversations,
		stranger: "not_member", member: "forbidden", admin: "forbidden", owner: "ok", key: "ok"},
	"ConversationService/AddMembers": {body: `{"conversationId":"g_1",` + id1 + `,"userIds":["x"]}`, scope: auth.ScopeConversations,
		stranger: "not_member", member: "forbidden", admin: "ok", owner: "ok", key: "ok"},
	"ConversationService/RemoveMembers": {body: `{"conversationId":"g_1",` + id1 + `,"userIds":["x"]}`, scope: auth.ScopeConversations,
		stranger: "not_member", member: "forbidden", admin: "ok", owner: "ok", key: "ok"},
	"ConversationService/SetRole": {body: `{"conversationId":"g_1",` + id1 + `,"userId":"x","role":"ROLE_ADMIN"}`, scope: auth.ScopeConversations,
		stranger: "not_member", member: "forbidden", admin: "forbidden", owner: "ok", key: "ok"},
	"ConversationService/Leave": {body: `{"conversationId":"g_1",` + id1 + `}`, scope: auth.ScopeConversations,
		keyBody:  `{"conversationId":"g_1",` + id1 + `,"asUser":"member"}`,
		stranger: "not_member", member: "ok", admin: "ok", owner: "ok", key: "ok"},
	"ConversationService/ListMembers": {body: `{"conversationId":"g_1"}`, scope: auth.ScopeConversations,
		stranger: "not_member", member: "ok", admin: "ok", owner: "ok", key: "ok"},
	"ConversationService/ClearHistory": {body: `{"conversationId":"g_1","upToSeq":"3"}`, scope: auth.ScopeConversations,
		keyBody:  `{"conversationId":"g_1","upToSeq":"3","asUser":"member"}`,
		stranger: "not_member", member: "ok", admin: "ok", owner: "ok", key: "ok"},
	"ConversationService/Mute": {body: `{"conversationId":"g_1"}`, keyBody: `{"conversationId":"g_1","asUser":"member"}`, scope: auth.ScopeConversations,
		stranger: "not_member", member: "ok", admin: "ok", owner: "ok", key: "ok"},
	"ConversationService/Unmute": {body: `{"conversationId":"g_1"}`, keyBody: `{"conversationId":"g_1","asUser":"member"}`, scope: auth.ScopeConversations,
		stranger: "not_member", member: "ok", admin: "ok", owner: "ok", key: "ok"},
	"ConversationService/ListMutes": {body: `{}`, keyBody: `{"asUser":"member"}`, scope: auth.ScopeConversations,
		stranger: "ok", member: "ok", admin: "ok", owner: "ok", key: "ok"},
	"ConversationService/List": {body: `{}`, keyBody: `{"asUser":"member"}`, scope: auth.ScopeConversations,
		stranger: "ok", member: "ok", admin: "ok", owner: "ok", key: "ok"},
	"MessageService/Send": {body: `{"conversationId":"g_1","clientMessageId":"5f0c6f0e-8a5b-4c1e-9d27-3b1f6a2e7c01","content":{"text":"hi"}}`, scope: auth.ScopeMessages,
		stranger: "not_member", member: "ok", admin: "ok", owner: "ok", key: "ok"},
	"MessageService/History": {body: `{"conversationId":"g_1"}`, scope: auth.ScopeMessages,
		stranger: "not_member", member: "ok", admin: "ok", owner: "ok", key: "ok"},
	"MessageService/Schedule": {body: `{"conversationId":"g_1",` + id1 + `,"content":{"text":"hi"},"sendAtMs":"1234"}`, scope: auth.ScopeMessages,
		stranger: "not_member", member: "ok", admin: "ok", owner: "ok", key: "ok"},
	"MessageService/ListScheduled": {body: `{}`, scope: auth.ScopeMessages,
		stranger: "ok", member: "ok", admin: "ok", owner: "ok", key: "ok"},
	"MessageService/CancelScheduled": {body: `{"scheduledId":"7"}`, scope: auth.ScopeMessages,
		stranger: "ok", member: "ok", admin: "ok", owner: "ok", key: "ok"},
	"UserService/Get": {body: `{"userId":"x"}`, scope: auth.ScopeUsers,
		stranger: "forbidden", member: "forbidden", admin: "forbidden", owner: "forbidden", key: "ok"},
	"UserService/SetDisabled": {body: `{"userId":"x","disabled":true}`, scope: auth.ScopeUsers,
		stranger: "forbidden", member: "forbidden", admin: "forbidden", owner: "forbidden", key: "ok"},
	"UserService/Block": {body: `{"userId":"x"}`, keyBody: `{"userId":"x","asUser":"member"}`, scope: auth.ScopeUsers,
		stranger: "ok", member: "ok", admin: "ok", owner: "ok", key: "ok"},
	"UserService/Unblock": {body: `{"userId":"x"}`, keyBody: `{"userId":"x","asUser":"member"}`, scope: auth.ScopeUsers,
		stranger: "ok", member: "ok", admin: "ok", owner: "ok", key: "ok"},
	"UserService/Devices": {body: `{"userId":"x"}`, scope: auth.ScopeUsers,
		stranger: "forbidden", member: "forbidden", admin: "forbidden", owner: "forbidden", key: "ok"},
	"UserService/Kick": {body: `{"userId":"x","loginId":"l"}`, scope: auth.ScopeUsers,
		stranger: "forbidden", member: "forbidden", admin: "forbidden", owner: "forbidden", key: "ok"},
	"PresenceService/Get": {body: `{"userIds":["member"]}`, scope: auth.ScopeUsers,
		stranger: "forbidden", member: "ok", admin: "ok", owner: "ok", key: "ok"},
	"TokenService/Mint": {body: `{"userId":"x"}`, scope: auth.ScopeTokens,
		stranger: "forbidden", member: "forbidden", admin: "forbidden", owner: "forbidden", key: "ok"},
	"TokenService/Revoke": {body: `{"userId":"x"}`, scope: auth.ScopeTokens,
		stranger: "forbidden", member: "forbidden", admin: "forbidden", owner: "forbidden", key: "ok"},
}

// Every method of the schema has a row, and every row holds.
func TestWhoMayCallWhat(t *testing.T) {
	f := start(t, nil)
	left := map[string]bool{}
	for name := range matrix {
		left[name] = true
	}
	protoregistry.GlobalFiles.RangeFilesByPackage("imd.v1", func(file protoreflect.FileDescriptor) bool {
		for i := range file.Services().Len() {
			s := file.Services().Get(i)
			for j := range s.Methods().Len() {
				name := string(s.Name()) + "/" + string(s.Methods().Get(j).Name())
				r, ok := matrix[name]
				if !ok {
					t.Errorf("%s has no row: say who may call it", name)
					continue
				}
				delete(left, name)
				t.Run(name, func(t *testing.T) { checkRow(t, f, name, r) })
			}
		}
		return true
	})
	for name := range left {
		t.Errorf("%s has a row but is no method", name)
	}
}

func checkRow(t *testing.T, f *fixture, method string, r row) {
	if r.keyBody == "" {
		r.keyBody = r.body
	}
	var others []string
	for _, s := range auth.Scopes() {
		if s != r.scope {
			others = append(others, s)
		}
	}
	stolen := f.key(auth.Scopes()...)
	for _, c := range []struct{ kind, bearer, body, want string }{
		{"none", "", r.body, "bad_token"},
		{"garbage", "garbage", r.body, "bad_token"},
		{"a key that is not stored", auth.NewAPIKey().Text(), r.keyBody, "bad_token"},
		{"a key with another secret", stolen[:21] + auth.NewAPIKey().Text()[21:], r.keyBody, "bad_token"},
		{"stranger", f.token("stranger"), r.body, r.stranger},
		{"member", f.token("member"), r.body, r.member},
		{"admin", f.token("admin"), r.body, r.admin},
		{"owner", f.token("owner"), r.body, r.owner},
		{"key without scope", f.key(others...), r.keyBody, "forbidden"},
		{"key with scope", f.key(r.scope), r.keyBody, r.key},
	} {
		a := f.post(c.bearer, method, c.body)
		if got := a.reason(); got != c.want {
			t.Errorf("%s: %s, want %s", c.kind, got, c.want)
		}
		if want := map[string]int{"ok": 200, "bad_token": 401, "forbidden": 403, "not_member": 403}[c.want]; a.status != want {
			t.Errorf("%s: status %d, want %d", c.kind, a.status, want)
		}
	}
}

func TestAMethodWithoutPolicyKeepsTheAPIFromStarting(t *testing.T) {
	for _, s := range start(t, nil).api.srv.Specs() {
		p, ok := policies[s.Procedure]
		if !ok || p.scope == "" {
			t.Errorf("%s: %+v", s.Procedure, p)
		}
	}
}

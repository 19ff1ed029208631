package api

import (
	"bytes"
	"compress/gzip"
	"context"
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"testing"
	"time"

	"connectrpc.com/connect/v2"
	"connectrpc.com/connect/v2/connecthttp"
	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/protobuf/proto"

	"github.com/imdhq/imd/pkg/auth"
	"github.com/imdhq/imd/pkg/im"
	"github.com/imdhq/imd/pkg/store"
	"github.com/imdhq/imd/pkg/store/memory"
	v1 "github.com/imdhq/imd/proto/gen/internalv1"
	"github.com/imdhq/imd/proto/gen/public/imd/v1/imdv1connect"
	"github.com/imdhq/imd/sdk/go/gen/clientv1"
	"github.com/imdhq/imd/sdk/go/gen/imdv1"
	"github.com/imdhq/imd/sdk/go/protocol"
)

const (
	uuid1 = "5f0c6f0e-8a5b-4c1e-9d27-3b1f6a2e7c01"
	uuid7 = "019ad5f0-6f0e-7c1e-9d27-3b1f6a2e7c01" // version 7
)

func TestSendDirect(t *testing.T) {
	f := start(t, nil)
	a := f.post(f.token("alice"), "MessageService/Send", `{"toUser":"bob","clientMessageId":"`+uuid7+`","content":{"text":"hi"}}`)
	conv := protocol.DirectID("alice", "bob")
	if a.status != 200 || a.body["conversationId"] != conv || a.body["messageId"] != "301234567890123776" || a.body["seq"] != "6" {
		t.Fatalf("%d %s", a.status, a.raw)
	}
	run := f.w.last(t).(*v1.SubmitRequest).Runs[0]
	hash := protocol.BodyHash(clientv1.EntryKind_ENTRY_KIND_MESSAGE, 0, &clientv1.Content{Value: &clientv1.Content_Text{Text: "hi"}})
	if run.UserId != "alice" || run.PeerId != "bob" || run.ConversationId != conv || run.SessionId != "" || len(run.Sends) != 1 ||
		run.Sends[0].ClientMessageId != uuid7 || !bytes.Equal(run.Sends[0].BodyHash, hash[:]) || run.Sends[0].Kind != clientv1.EntryKind_ENTRY_KIND_MESSAGE {
		t.Errorf("run = %v", run)
	}
}

func TestWhoActs(t *testing.T) {
	f := start(t, nil)
	send := func(as string) string {
		return `{"conversationId":"g_1","clientMessageId":"` + uuid1 + `","content":{"text":"x"},"asUser":"` + as + `"}`
	}
	key := f.key(auth.ScopeMessages, auth.ScopeConversations, auth.ScopeUsers)
	for _, tt := range []struct{ name, bearer, as, want, actor string }{
		{"a user as oneself", f.token("member"), "member", "ok", "member"},
		{"a user as another", f.token("member"), "owner", "forbidden", ""},
		{"a user with no valid name", f.token("member"), "a b", "invalid_id", ""},
		{"a key as the system", key, "", "ok", ""},
		{"a key as a user", key, "member", "ok", "member"},
		{"a key as a stranger", key, "stranger", "not_member", "stranger"},
		{"a key as nobody valid", key, "a/b", "invalid_id", ""},
	} {
		a := f.post(tt.bearer, "MessageService/Send", send(tt.as))
		if got := a.reason(); got != tt.want {
			t.Errorf("%s: %s, want %s", tt.name, got, tt.want)
		}
		if run := f.w.last(t).(*v1.SubmitRequest).Runs[0]; tt.want == "ok" && run.UserId != tt.actor {
			t.Errorf("%s: acts as %q, want %q", tt.name, run.UserId, tt.actor)
		}
	}
	for _, m := range []string{"ConversationService/Leave", "ConversationService/List", "ConversationService/ClearHistory", "UserService/Block"} {
		if got := f.post(key, m, `{}`).reason(); got != "bad_request" {
			t.Errorf("%s as the system: %s", m, got)
		}
	}
}

func TestCreate(t *testing.T) {
	f := start(t, nil)
	key := f.key(auth.ScopeConversations)
	for _, tt := range []struct{ name, bearer, body, owner, others string }{
		{"a user owns", f.token("alice"), `"userIds":["bob","alice","bob","carol"]`, "alice", "bob carol"},
		{"a user alone", f.token("alice"), `"openHistory":true`, "alice", ""},
		{"the first one owns", key, `"userIds":["bob","carol","bob"]`, "bob", "carol"},
		{"the named one owns", key, `"userIds":["bob","carol"],"asUser":"carol"`, "carol", "bob"},
	} {
		a := f.post(tt.bearer, "ConversationService/Create", `{"name":"team",`+id1+`,`+tt.body+`}`)
		if a.status != 200 || a.body["conversationId"] != "g_9" {
			t.Errorf("%s: %d %s", tt.name, a.status, a.raw)
			continue
		}
		r := f.w.last(t).(*v1.ChangeRequest)
		if got := strings.Join(r.GetCreate().UserIds, " "); r.UserId != tt.owner || got != tt.others || r.RequestId != uuid1 {
			t.Errorf("%s: owner %q, others %q", tt.name, r.UserId, got)
		}
	}
	if got := f.post(key, "ConversationService/Create", `{"name":"team",`+id1+`}`).reason(); got != "bad_request" {
		t.Errorf("nobody owns: %s", got)
	}
}

// What is wrong is refused before anything else is called.
func TestRequestsAreChecked(t *testing.T) {
	f := start(t, nil)
	user, key := f.token("member"), f.key(auth.Scopes()...)
	var ids []string
	for i := range protocol.MaxAddMembers + 1 {
		ids = append(ids, fmt.Sprintf(`"u%d"`, i))
	}
	many := "[" + strings.Join(ids, ",") + "]"
	const send = `"clientMessageId":"` + uuid1 + `","content":{"text":"x"}`
	for _, tt := range []struct{ bearer, method, body, want string }{
		{user, "MessageService/Send", `{` + send + `}`, "bad_request"},
		{user, "MessageService/Send", `{"toUser":"bob","conversationId":"g_1",` + send + `}`, "bad_request"},
		{user, "MessageService/Send", `{"toUser":"member",` + send + `}`, "bad_request"},
		{key, "MessageService/Send", `{"toUser":"member",` + send + `}`, "bad_request"},
		{user, "MessageService/Send", `{"toUser":"a b",` + send + `}`, "invalid_id"},
		{user, "MessageService/Send", `{"conversationId":"g 1",` + send + `}`, "invalid_id"},
		{user, "MessageService/Send", `{"toUser":"bob","clientMessageId":"` + strings.ToUpper(uuid1) + `","content":{"text":"x"}}`, "bad_request"},
		{user, "MessageService/Send", `{"toUser":"bob","clientMessageId":"` + strings.ToUpper(uuid7) + `","content":{"text":"x"}}`, "bad_request"},
		{user, "MessageService/Send", `{"toUser":"bob","clientMessageId":"` + strings.Replace(uuid7, "-7", "-8", 1) + `","content":{"text":"x"}}`, "bad_request"},
		{user, "ConversationService/Create", `{"name":"x","requestId":"` + strings.Replace(uuid1, "-4", "-1", 1) + `"}`, "bad_request"},
		{user, "MessageService/Send", `{"toUser":"bob","content":{"text":"x"}}`, "bad_request"},
		{user, "MessageService/Send", `{"toUser":"bob","clientMessageId":"` + uuid1 + `"}`, "bad_request"},
		{user, "MessageService/Send", `{"toUser":"bob","clientMessageId":"` + uuid1 + `","content":{"text":"a\u0000b"}}`, "bad_request"},
		{user, "MessageService/Send", `{"toUser":"bob","clientMessageId":"` + uuid1 + `","content":{"text":"` + strings.Repeat("x", 16385) + `"}}`, "too_large"},
		{user, "MessageService/Send", `{"toUser":"bob",` + send + `,"sender":"owner"}`, "bad_request"},
		{user, "MessageService/Send", `{"toUser":"bob",` + send, "bad_request"},
		{user, "MessageService/Send", `{"toUser":"bob","toUser":"carol",` + send + `}`, "bad_request"},
		{user, "MessageService/Send", `[]`, "bad_request"},
		{user, "MessageService/Send", ``, "bad_request"},
		{user, "MessageService/Send", "{\"toUser\":\"\xff\"," + send + "}", "bad_request"},
		{user, "MessageService/History", `{"conversationId":"g_1","limit":-1}`, "bad_request"},
		{user, "MessageService/History", `{"conversationId":"g_1","afterSeq":"-1"}`, "bad_request"},
		{user, "MessageService/History", `{"conversationId":"g_1","beforeSeq":"9007199254740992"}`, "bad_request"},
		{user, "MessageService/History", `{}`, "invalid_id"},
		{user, "ConversationService/Create", `{` + id1 + `}`, "bad_request"},
		{user, "ConversationService/Create", `{"name":"x"}`, "bad_request"},
		{user, "ConversationService/Create", `{"name":"` + strings.Repeat("n", 129) + `",` + id1 + `}`, "too_large"},
		{user, "ConversationService/Create", `{"name":"x",` + id1 + `,"userIds":["a b"]}`, "invalid_id"},
		{user, "ConversationService/Create", `{"name":"x",` + id1 + `,"userIds":` + many + `}`, "too_large"},
		{user, "ConversationService/AddMembers", `{"conversationId":"g_1",` + id1 + `}`, "bad_request"},
		{user, "ConversationService/RemoveMembers", `{"conversationId":"g_1",` + id1 + `,"userIds":[""]}`, "invalid_id"},
		{user, "ConversationService/SetRole", `{"conversationId":"g_1",` + id1 + `,"userId":"x"}`, "bad_request"},
		{user, "ConversationService/SetRole", `{"conversationId":"g_1",` + id1 + `,"userId":"x","role":99}`, "bad_request"},
		{user, "ConversationService/SetRole", `{"conversationId":"g_1",` + id1 + `,"userId":"x","role":"ROLE_KING"}`, "bad_request"},
		{user, "ConversationService/Leave", `{` + id1 + `}`, "invalid_id"},
		{user, "ConversationService/ListMembers", `{"conversationId":"g_1","limit":-5}`, "bad_request"},
		{user, "ConversationService/ListMembers", `{"conversationId":"g_1","pageToken":"rubbish"}`, "bad_request"},
		{user, "ConversationService/ListMembers", `{"conversationId":"g_1","pageToken":"` + pageToken(listPage, "t1") + `"}`, "bad_request"},
		{user, "ConversationService/List", `{"pageToken":"` + pageToken(membersPage, "x") + `"}`, "bad_request"},
		{user, "ConversationService/ClearHistory", `{"conversationId":"g_1","upToSeq":"-1"}`, "bad_request"},
		{user, "ConversationService/Mute", `{"conversationId":"g_1","untilMs":"1000"}`, "bad_request"},
		{user, "ConversationService/Mute", `{"conversationId":"g_1","untilMs":"-5"}`, "bad_request"},
		{user, "ConversationService/Mute", `{"conversationId":"g_1","untilMs":"9223372036854775807"}`, "bad_request"},
		{user, "ConversationService/Mute", `{"conversationId":"g 1"}`, "invalid_id"},
		{user, "ConversationService/Unmute", `{}`, "invalid_id"},
		{user, "ConversationService/ListMutes", `{"limit":-1}`, "bad_request"},
		{user, "ConversationService/ListMutes", `{"pageToken":"` + pageToken(membersPage, "x") + `"}`, "bad_request"},
		{user, "UserService/Block", `{"userId":"member"}`, "bad_request"},
		{user, "UserService/Block", `{}`, "invalid_id"},
		{key, "UserService/Get", `{"userId":"a b"}`, "invalid_id"},
		{key, "TokenService/Mint", `{}`, "invalid_id"},
		{key, "TokenService/Mint", `{"userId":"x","ttlSeconds":"-1"}`, "bad_request"},
		{key, "TokenService/Mint", `{"userId":"x","ttlSeconds":"86401"}`, "bad_request"},
		{key, "TokenService/Mint", `{"userId":"x","ttlSeconds":"9223372036854775807"}`, "bad_request"},
		{key, "TokenService/Mint", `{"userId":"x","loginId":"a b"}`, "invalid_id"},
		{key, "TokenService/Mint", `{"userId":"x","deviceId":"a b"}`, "invalid_id"},
		{key, "TokenService/Mint", `{"userId":"x","class":"fridge"}`, "bad_request"},
		{key, "TokenService/Revoke", `{"userId":"x","loginId":"a b"}`, "invalid_id"},
		{user, "MessageService/Nothing", `{}`, "unsupported"},
	} {
		if a := f.post(tt.bearer, tt.method, tt.body); a.reason() != tt.want {
			t.Errorf("%s %.120s: %s, want %s", tt.method, tt.body, a.reason(), tt.want)
		}
	}
	if n := len(f.w.seen); n != 0 {
		t.Errorf("%d calls went through: %v", n, f.w.last(t))
	}
}

func TestAnswersToASend(t *testing.T) {
	f := start(t, nil)
	for _, tt := range []struct {
		name   string
		ack    *clientv1.SendAck
		reason string
		status int
	}{
		{"busy", &clientv1.SendAck{Status: clientv1.Ack_ACK_RETRY, Error: &clientv1.Error{Reason: "busy", Code: "unavailable", Retryable: true, RetryAfterMs: 1400}}, "busy", 503},
		{"closed", &clientv1.SendAck{Status: clientv1.Ack_ACK_FAIL, Error: &clientv1.Error{Reason: "conversation_closed"}}, "conversation_closed", 400},
		{"reused", &clientv1.SendAck{Status: clientv1.Ack_ACK_FAIL, Error: &clientv1.Error{Reason: "id_reused"}}, "id_reused", 409},
		{"not said", &clientv1.SendAck{}, "unavailable", 503},
	} {
		f.w.answer = tt.ack
		a := f.post(f.token("member"), "MessageService/Send", matrix["MessageService/Send"].body)
		if a.reason() != tt.reason || a.status != tt.status {
			t.Errorf("%s: %d %s", tt.name, a.status, a.raw)
		}
		if tt.name == "busy" && a.header.Get("Retry-After") != "2" {
			t.Errorf("Retry-After = %q", a.header.Get("Retry-After"))
		}
	}
}

// limits refuses everybody but the system.
type limits struct{}

func (limits) Send(u im.UserID, _ im.ConversationID) (bool, time.Duration) {
	return u == "", 700 * time.Millisecond
}

func TestRates(t *testing.T) {
	f := start(t, func(d *Deps) { d.Limiter = limits{} })
	body := matrix["MessageService/Send"].body
	if a := f.post(f.token("member"), "MessageService/Send", body); a.status != 429 || a.reason() != "rate_limited" || !strings.Contains(a.raw, `"retryAfterMs":700`) {
		t.Errorf("%d %s", a.status, a.raw)
	}
	if a := f.post(f.key(auth.ScopeMessages), "MessageService/Send", body); a.status != 200 {
		t.Errorf("%d %s", a.status, a.raw)
	}
}

func TestCredentials(t *testing.T) {
	f := start(t, nil)
	f.w.refused["dora"], f.w.refused["kim"], f.w.refused["odd"] = "revoked", "kicked", "something"
	revoked := f.key(auth.Scopes()...)
	k, err := auth.ParseAPIKey(revoked)
	if err != nil {
		t.Fatal(err)
	}
	f.w.keys[k.ID].RevokedMs = 1
	for _, tt := range []struct{ bearer, want string }{
		{f.token("dora"), "revoked"},
		{f.token("kim"), "kicked"},
		{f.token("odd"), "bad_token"},
		{revoked, "bad_token"},
		{"imd_rubbish", "bad_token"},
		{" ", "bad_token"},
	} {
		a := f.post(tt.bearer, "ConversationService/List", `{}`)
		if a.status != 401 || a.reason() != tt.want || a.header.Get("WWW-Authenticate") == "" {
			t.Errorf("%.12q: %d %s, want %s", tt.bearer, a.status, a.reason(), tt.want)
		}
		if strings.Contains(a.raw, tt.bearer) && len(tt.bearer) > 20 {
			t.Errorf("the answer repeats the credential: %s", a.raw)
		}
	}
	f.now = epoch.Add(2 * time.Hour)
	a := f.post(f.token("alice"), "ConversationService/List", `{}`)
	if a.status != 401 || a.reason() != "token_expired" || !strings.Contains(a.raw, "expired 1h0m0s ago") {
		t.Errorf("%d %s", a.status, a.raw)
	}
	req, _ := http.NewRequest(http.MethodPost, f.srv.URL+"/imd.v1.ConversationService/List", strings.NewReader("{}"))
	req.Header = http.Header{"Content-Type": {"application/json"}, "Authorization": {"Basic eDp5"}}
	if a := f.do(req); a.reason() != "bad_token" {
		t.Errorf("Basic: %s", a.raw)
	}
}

func TestMintedTokensWork(t *testing.T) {
	f := start(t, nil)
	f.now = epoch.Add(123 * time.Millisecond)
	key := f.key(auth.ScopeTokens)
	a := f.post(key, "TokenService/Mint", `{"userId":"alice","deviceId":"d1","class":"phone","ttlSeconds":60}`)
	token, _ := a.body["token"].(string)
	c, err := f.api.Verifier.Verify(token, f.now)
	if err != nil {
		t.Fatalf("%s: %v", a.raw, err)
	}
	if c.User != "alice" || c.Device != "d1" || c.Class != im.Phone || string(c.Login) != a.body["loginId"] || !c.IssuedAt.Equal(f.now) || !c.Expires.Equal(f.now.Add(time.Minute)) {
		t.Errorf("%+v", c)
	}
	if a := f.post(token, "ConversationService/List", `{}`); a.status != 200 {
		t.Errorf("%d %s", a.status, a.raw)
	}
	f.w.refused["dora"] = "revoked"
	if a := f.post(key, "TokenService/Mint", `{"userId":"dora"}`); a.reason() != "forbidden" || a.status != 403 {
		t.Errorf("a disabled user: %d %s", a.status, a.raw)
	}
	if a := f.post(key, "TokenService/Revoke", `{"userId":"alice","loginId":"l1"}`); a.status != 200 {
		t.Errorf("%s", a.raw)
	}
	if r := f.w.last(t).(*v1.RevokeRequest); r.LoginId != "l1" || r.Reason != "revoked" || r.UntilMs < f.now.Add(24*time.Hour).UnixMilli() {
		t.Errorf("%v", r)
	}
}

func TestPages(t *testing.T) {
	f := start(t, nil)
	var ids []string
	token := ""
	for range 5 {
		a := f.post(f.token("member"), "ConversationService/ListMembers", `{"conversationId":"g_1","limit":2,"pageToken":"`+token+`"}`)
		for _, m := range a.body["members"].([]any) {
			ids = append(ids, m.(map[string]any)["userId"].(string))
		}
		if token, _ = a.body["nextPageToken"].(string); token == "" {
			break
		}
	}
	if got := strings.Join(ids, " "); got != "admin member owner" {
		t.Errorf("members: %s", got)
	}
	a := f.post(f.token("member"), "ConversationService/List", `{}`)
	token, _ = a.body["nextPageToken"].(string)
	b := f.post(f.token("member"), "ConversationService/List", `{"pageToken":"`+token+`"}`)
	if strings.Contains(a.raw, "g_0") || !strings.Contains(a.raw, "g_1") || !strings.Contains(b.raw, "g_2") || b.body["nextPageToken"] != nil {
		t.Errorf("list: %s then %s", a.raw, b.raw)
	}
	for limit, want := range map[string]int32{"0": 100, "7": 7, "1000000": 500} {
		f.post(f.token("member"), "MessageService/History", `{"conversationId":"g_1","limit":`+limit+`}`)
		if got := f.w.last(t).(*v1.HistoryRequest).History.Limit; got != want {
			t.Errorf("limit %s becomes %d, want %d", limit, got, want)
		}
	}
}

func TestPlainHTTP(t *testing.T) {
	f := start(t, nil)
	request := func(method, path, contentType, body string) answer {
		req, err := http.NewRequest(method, f.srv.URL+path, strings.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		if contentType != "" {
			req.Header.Set("Content-Type", contentType)
		}
		req.Header.Set("Authorization", "Bearer "+f.token("member"))
		return f.do(req)
	}
	message := url.QueryEscape(`{"conversationId":"g_1","limit":5}`)
	for _, tt := range []struct {
		name, method, path, contentType, body string
		status                                int
		text                                  string
	}{
		{"GET of a read", "GET", "/imd.v1.MessageService/History?encoding=json&message=" + message, "", "", 200, "completeTo"},
		{"GET without parameters", "GET", "/imd.v1.MessageService/History", "", "", 400, "encoding"},
		{"GET of a change", "GET", "/imd.v1.MessageService/Send?encoding=json&message=%7B%7D", "", "", 405, "use POST"},
		{"GET of nothing", "GET", "/imd.v1.MessageService/Nothing", "", "", 404, "no method"},
		{"PUT", "PUT", "/imd.v1.MessageService/History", "application/json", "{}", 405, "use POST"},
		{"curl without a type", "POST", "/imd.v1.MessageService/History", "application/x-www-form-urlencoded", "{}", 415, "Content-Type: application/json"},
		{"no type", "POST", "/imd.v1.MessageService/History", "", "{}", 415, "Content-Type: application/json"},
		{"a charset", "POST", "/imd.v1.MessageService/History", "application/json; charset=utf-8", `{"conversationId":"g_1"}`, 200, "completeTo"},
		{"1 MiB and more", "POST", "/imd.v1.MessageService/History", "application/json", `{"conversationId":"` + strings.Repeat("x", 1<<20) + `"}`, 400, "too_large"},
		{"an unknown field", "POST", "/imd.v1.MessageService/History", "application/json", `{"conversation":"g_1"}`, 400, `unknown field \"conversation\"`},
		{"OpenAPI", "GET", "/v1/openapi.json", "", "", 200, "/imd.v1.MessageService/Send"},
	} {
		a := request(tt.method, tt.path, tt.contentType, tt.body)
		if a.status != tt.status || !strings.Contains(a.raw, tt.text) {
			t.Errorf("%s: %d %.300s", tt.name, a.status, a.raw)
		}
		if tt.status >= 400 && a.reason() != "bad_request" && a.reason() != "too_large" {
			t.Errorf("%s: %s", tt.name, a.reason())
		}
	}
}

// A small packed body that unpacks to more than the limit is refused.
func TestGzipBomb(t *testing.T) {
	f := start(t, nil)
	var packed bytes.Buffer
	z := gzip.NewWriter(&packed)
	if _, err := z.Write([]byte(`{"conversationId":"` + strings.Repeat("x", 8<<20) + `"}`)); err != nil {
		t.Fatal(err)
	}
	z.Close()
	req, _ := http.NewRequest(http.MethodPost, f.srv.URL+"/imd.v1.MessageService/History", &packed)
	req.Header = http.Header{"Content-Type": {"application/json"}, "Content-Encoding": {"gzip"}, "Authorization": {"Bearer " + f.token("member")}}
	if a := f.do(req); a.reason() != "too_large" {
		t.Errorf("%d %.200s", a.status, a.raw)
	}
}

func TestAPanicTellsNothing(t *testing.T) {
	f := start(t, func(d *Deps) { d.Limiter = panics{} })
	a := f.post(f.token("member"), "MessageService/Send", matrix["MessageService/Send"].body)
	if a.status != 500 || a.reason() != "internal" || strings.Contains(a.raw, "secret") {
		t.Errorf("%d %s", a.status, a.raw)
	}
	f.w.explode = true
	a = f.post(f.token("member"), "MessageService/History", matrix["MessageService/History"].body)
	if a.status != 500 || a.reason() != "internal" || strings.Contains(a.raw, "secret") {
		t.Errorf("%d %s", a.status, a.raw)
	}
}

type panics struct{}

func (panics) Send(im.UserID, im.ConversationID) (bool, time.Duration) { panic("a secret") }

func TestCORS(t *testing.T) {
	f := start(t, func(d *Deps) {
		d.AllowOrigin = func(r *http.Request) bool { return r.Header.Get("Origin") == "https://app.example" }
	})
	for origin, allowed := range map[string]bool{"https://app.example": true, "https://app.example.evil": false, "null": false} {
		req, _ := http.NewRequest(http.MethodOptions, f.srv.URL+"/imd.v1.MessageService/Send", nil)
		req.Header = http.Header{"Origin": {origin}, "Access-Control-Request-Method": {"POST"}}
		a := f.do(req)
		if ok := a.status == 204 && a.header.Get("Access-Control-Allow-Origin") == origin; ok != allowed || (!allowed && a.status != 403) {
			t.Errorf("preflight of %s: %d %v", origin, a.status, a.header)
		}
		req, _ = http.NewRequest(http.MethodPost, f.srv.URL+"/imd.v1.ConversationService/List", strings.NewReader("{}"))
		req.Header = http.Header{"Origin": {origin}, "Content-Type": {"application/json"}, "Authorization": {"Bearer " + f.token("member")}}
		a = f.do(req)
		if ok := a.header.Get("Access-Control-Allow-Origin") == origin; ok != allowed || a.header.Get("Access-Control-Allow-Credentials") != "" {
			t.Errorf("call of %s: %v", origin, a.header)
		}
	}
}

// The same methods answer gRPC, gRPC-Web and Connect with protobuf.
func TestOtherProtocols(t *testing.T) {
	f := start(t, nil)
	h2c := new(http.Protocols)
	h2c.SetUnencryptedHTTP2(true)
	tr := &http.Transport{Protocols: h2c}
	defer tr.CloseIdleConnections()
	for name, opt := range map[string]connecthttp.Option{"grpc": connecthttp.WithGRPC(), "grpcweb": connecthttp.WithGRPCWeb(), "get": connecthttp.WithHTTPGet()} {
		bearer := func(next connect.ClientFunc) connect.ClientFunc {
			return func(ctx context.Context, spec connect.Spec) (connect.ClientStream, error) {
				if info, ok := connect.CallInfoForClientContext(ctx); ok {
					info.RequestHeader().Set("Authorization", "Bearer "+f.token("member"))
				}
				return next(ctx, spec)
			}
		}
		c := imdv1connect.NewMessageServiceClient(connect.NewClient(connecthttp.NewTransport(&http.Client{Transport: tr}, f.srv.URL, opt), bearer))
		res, err := c.History(t.Context(), &imdv1.HistoryRequest{ConversationId: "g_1"})
		if err != nil || res.Page.CompleteTo != 5 {
			t.Errorf("%s: %v %v", name, res, err)
		}
		if f.w.last(t).(*v1.HistoryRequest).Json {
			t.Errorf("%s: sizes counted as JSON", name)
		}
		_, err = c.Send(t.Context(), &imdv1.SendRequest{})
		if r := im.FromConnect("test", err); r == nil || r.Reason != clientv1.Reason_REASON_BAD_REQUEST {
			t.Errorf("%s: %v", name, err)
		}
		_, err = c.History(t.Context(), &imdv1.HistoryRequest{ConversationId: "g_1", AsUser: "owner"})
		if r := im.FromConnect("test", err); r == nil || r.Reason != clientv1.Reason_REASON_FORBIDDEN {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestMetricsHaveBoundedLabels(t *testing.T) {
	f := start(t, nil)
	f.post(f.token("member"), "MessageService/Send", matrix["MessageService/Send"].body)
	f.post("", "MessageService/Send", "{}")
	f.post(f.token("member"), "MessageService/MadeUp1", "{}")
	f.post(f.token("member"), "MessageService/MadeUp2", "{}")
	for labels, want := range map[string]float64{"imd.v1.MessageService Send ok": 1, "imd.v1.MessageService Send unauthenticated": 1, "unknown unknown unimplemented": 2} {
		if got := counter(t, f.reg, labels); got != want {
			t.Errorf("%s = %v, want %v", labels, got, want)
		}
	}
}

func counter(t *testing.T, reg *prometheus.Registry, labels string) float64 {
	t.Helper()
	families, err := reg.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range families {
		for _, m := range f.GetMetric() {
			l := map[string]string{}
			for _, p := range m.GetLabel() {
				l[p.GetName()] = p.GetValue()
			}
			if f.GetName() == "imd_http_requests_total" && l["service"]+" "+l["method"]+" "+l["code"] == labels {
				return m.GetCounter().GetValue()
			}
		}
	}
	return 0
}

func FuzzPageToken(f *testing.F) {
	f.Add(pageToken(membersPage, "alice"))
	f.Add("")
	f.Fuzz(func(t *testing.T, s string) {
		at, err := readPageToken(membersPage, s)
		if err == nil && s != "" && pageToken(membersPage, at) != s {
			t.Fatalf("%q reads as %q", s, at)
		}
	})
}

// Bodies are read by protobuf alone; whatever comes in, there is one answer and
// it has a reason.
func FuzzSendBody(f *testing.F) {
	f.Add([]byte(`{"toUser":"bob"}`))
	f.Fuzz(func(t *testing.T, b []byte) {
		var r imdv1.SendRequest
		if proto.Unmarshal(b, &r) != nil {
			return
		}
		if run, err := sendRun("alice", &r); err == nil && (!protocol.ValidID(run.ConversationId) || len(run.Sends) != 1) {
			t.Fatalf("%v", run)
		}
	})
}

func TestPresence(t *testing.T) {
	routes := memory.New()
	for _, class := range []im.Class{im.Phone, im.Web} {
		r := store.Route{User: "member", Session: im.SessionID(class), Login: im.LoginID(class), Device: "d", Class: class, Node: "n1", Since: epoch}
		if _, err := routes.Claim(t.Context(), r, store.Policy{}); err != nil {
			t.Fatal(err)
		}
	}
	f := start(t, func(d *Deps) { d.Routes = func() (Routes, error) { return routes, nil } })
	a := f.post(f.token("admin"), "PresenceService/Get", `{"userIds":["owner","stranger","member"]}`)
	want := `{"users":[{"userId":"owner","lastSeenMs":"1234"},{"userId":"member","online":true,"classes":["phone","web"]}]}`
	if a.status != http.StatusOK || strings.ReplaceAll(a.raw, " ", "") != want {
		t.Errorf("%d %s, want %s", a.status, a.raw, want)
	}
	if a := f.post(f.token("stranger"), "PresenceService/Get", `{"userIds":["stranger"]}`); a.reason() != "ok" {
		t.Errorf("of oneself: %s", a.raw)
	}
	for body, want := range map[string]string{
		`{}`: "bad_request", `{"userIds":["no user"]}`: "invalid_id",
		`{"userIds":[` + strings.TrimSuffix(strings.Repeat(`"u",`, 201), ",") + `]}`: "bad_request",
	} {
		if a := f.post(f.token("admin"), "PresenceService/Get", body); a.reason() != want {
			t.Errorf("%.40s: %s, want %s", body, a.reason(), want)
		}
	}
}

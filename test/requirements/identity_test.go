package requirements

import (
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/imdhq/imd/pkg/auth"
	"github.com/imdhq/imd/pkg/im"
	"github.com/imdhq/imd/pkg/testenv"
	"github.com/imdhq/imd/sdk/go/gen/clientv1"
	"github.com/imdhq/imd/sdk/go/protocol"
)

// apiKey makes an API key as an operator would.
func apiKey(t *testing.T, n *testenv.Node, scopes string) string {
	t.Helper()
	out, errOut, status := n.Command("key", "create", "--name", "backend", "--scopes", scopes, "-o", "json")
	var key struct{ Secret string }
	if err := json.Unmarshal([]byte(out), &key); err != nil || status != 0 || key.Secret == "" {
		t.Fatalf("key create: %d, %v, %s", status, err, errOut)
	}
	return key.Secret
}

// Ids and numbers of 64 bits are strings on every JSON surface, come back as
// they went, and are refused where they cannot be exact.
func TestR40IdsAreStringsInJSON(t *testing.T) {
	t.Parallel()
	n := node(t)
	token, key := n.Token("ann"), apiKey(t, n, "messages,conversations,tokens,users")
	a := testenv.Login(t, n.URL(), protocol.JSON, token, "d")
	b := testenv.Login(t, n.URL(), protocol.JSON, n.Token("bob"), "d")
	ack := a.MustSend(testenv.ToUser("bob", "hi"))
	b.Write(ackFrame(ack.ConversationId, 0, ack.Seq))
	c := rawUpgrade(t, n, n.Token("ann"))
	seen := map[string]bool{}
	_, _ = c.Write(wsFrame(true, 1, fmt.Appendf(nil, `{"id":2,"sync":{"pageLimit":5}}
{"id":3,"history":{"conversationId":"%[1]s"}}
{"id":4,"read":{"conversationId":"%[1]s","seq":"1"}}
{"id":5,"send":{"toUser":"carl","clientMessageId":"%[2]s","content":{"text":"x"}}}
{"id":6,"send":{"toUser":"carl","clientMessageId":"x"}}`, ack.ConversationId, uuid.NewString())))
	for _ = c.SetReadDeadline(time.Now().Add(testenv.Patience)); len(seen) < 6; {
		_, payload, err := c.frame()
		if err != nil {
			t.Fatalf("only %v came: %v", seen, err)
		}
		for line := range strings.Lines(string(payload)) {
			inexact(t, "a frame", []byte(line))
			if strings.Contains(line, `"welcome"`) { // before, it would be in the sync
				a.MustSend(testenv.ToUser("carl", "a deliver for the other device"))
			}
			var f map[string]json.RawMessage
			if err := json.Unmarshal([]byte(line), &f); err != nil {
				t.Fatal(err)
			}
			for kind := range f {
				if kind != "id" {
					seen[kind] = true
				}
			}
		}
	}
	stdout, _, status := n.Command("send", "--as", "ann", "--to", "bob", "-o", "json", "again")
	if status != 0 {
		t.Fatalf("imd send ended with %d", status)
	}
	inexact(t, "imd send", []byte(stdout))
	if !strings.Contains(stdout, `"message_id": "`) || !strings.Contains(stdout, `"seq": "2"`) {
		t.Errorf("imd send prints %s", stdout)
	}
	post := func(method string, body map[string]any) (int, map[string]any) {
		t.Helper()
		status, out := testenv.Post(t, n.URL(), method, key, body)
		text, _ := json.Marshal(out)
		inexact(t, method, text)
		return status, out
	}
	_, sent := post("imd.v1.MessageService/Send", map[string]any{"asUser": "ann", "toUser": "bob", "clientMessageId": uuid.NewString(), "content": map[string]any{"text": "x"}})
	_, page := post("imd.v1.MessageService/History", map[string]any{"asUser": "ann", "conversationId": ack.ConversationId, "afterSeq": "2"})
	entry := page["page"].(map[string]any)["entries"].([]any)[0].(map[string]any)
	if entry["messageId"] != sent["messageId"] || entry["seq"] != sent["seq"] {
		t.Errorf("history has %v, the answer to the send said %v", entry, sent)
	}
	post("imd.v1.ConversationService/List", map[string]any{"asUser": "ann"})
	post("imd.v1.ConversationService/ListMembers", map[string]any{"conversationId": ack.ConversationId})
	post("imd.v1.TokenService/Mint", map[string]any{"userId": "ann"})
	post("imd.v1.UserService/Get", map[string]any{"userId": "ann"})
	// The seqs come back as strings, and as numbers only if these are exact.
	for _, seq := range []string{`"2"`, `2`} {
		if status, body := raw(t, n, key, `{"asUser":"ann","conversationId":"`+ack.ConversationId+`","afterSeq":`+seq+`}`); status != 200 {
			t.Errorf("after_seq %s: %d %s", seq, status, body)
		}
	}
	for _, seq := range []string{`9007199254740993`, `"9007199254740993"`, `1e300`, `1.5`, `"1.5"`} {
		if status, body := raw(t, n, key, `{"asUser":"ann","conversationId":"`+ack.ConversationId+`","afterSeq":`+seq+`}`); status != 400 {
			t.Errorf("after_seq %s: %d %s", seq, status, body)
		}
	}
	a.MustSend(testenv.ToUser("bob", "the connection lives"))
	_ = a.TryWriteRaw(true, []byte(`{"id":9,"read":{"conversationId":"`+ack.ConversationId+`","seq":9007199254740993}}`))
	wantClosed(t, a, 4500, testenv.Patience)
}

// raw posts a body to History as it is.
func raw(t *testing.T, n *testenv.Node, bearer, body string) (int, string) {
	t.Helper()
	return rawPost(t, n, "imd.v1.MessageService/History", bearer, "application/json", []byte(body))
}

// inexact finds numbers that a double might not hold: names of ids, times in ms
// and seqs must be strings.
func inexact(t *testing.T, what string, data []byte) {
	t.Helper()
	small := []string{"id", "version", "unreadCount", "memberCount", "pingIntervalMs", "pongTimeoutMs", "retryAfterMs", "closeCode"}
	var walk func(name string, v any)
	walk = func(name string, v any) {
		switch v := v.(type) {
		case map[string]any:
			for k, x := range v {
				walk(k, x)
			}
		case []any:
			for _, x := range v {
				walk(name, x)
			}
		case float64:
			if !slices.Contains(small, name) {
				t.Errorf("%s: %s is the number %v", what, name, v)
			}
		}
	}
	var v any
	if err := json.Unmarshal(data, &v); err != nil {
		t.Fatalf("%s: %v in %s", what, err, data)
	}
	walk("", v)
}

// Nobody acts for another, over the HTTP API neither.
func TestR41IdentityComesFromTheSession(t *testing.T) {
	t.Parallel()
	n := node(t)
	token := n.Token("ann")
	a, b := testenv.Login(t, n.URL(), protocol.JSON, token, "d"), login(t, n, "bob", "d")
	conv := a.MustSend(testenv.ToUser("bob", "1")).ConversationId
	b.Take("the deliver", isDeliver)
	for i, field := range []string{`"sender":"bob"`, `"userId":"bob"`, `"from":"bob"`, `"extensions":{"sender":"bob","user_id":"bob"}`,
		`"seq":"900"`, `"messageId":"7","serverTimeMs":"1"`, `"kind":"ENTRY_KIND_MESSAGE","countable":false`} {
		id := uint32(100 + i)
		_ = a.TryWriteRaw(true, fmt.Appendf(nil, `{"id":%d,"userId":"bob","send":{%s,"toUser":"bob","clientMessageId":"%s","content":{"text":"%d"}}}`, id, field, uuid.NewString(), i+2))
		if got := a.Answer(id).GetSendAck(); got.GetStatus() != clientv1.Ack_ACK_OK || got.Seq != int64(i+2) {
			t.Errorf("with %s: %v", field, got)
		}
		e := b.Entry("the message", func(_ string, e *clientv1.Entry) bool { return e.Seq == int64(i+2) })
		if e.Sender != "ann" || !e.Countable || e.MessageId == 7 || e.ServerTimeMs == 1 {
			t.Errorf("with %s bob got %v", field, e)
		}
	}
	for _, kind := range []string{"ENTRY_KIND_MEMBER_CHANGE", "ENTRY_KIND_CONVERSATION_CHANGE", "ENTRY_KIND_ANNOUNCEMENT"} {
		_ = a.TryWriteRaw(true, fmt.Appendf(nil, `{"id":200,"send":{"kind":"%s","toUser":"bob","clientMessageId":"%s","content":{"text":"x"}}}`, kind, uuid.NewString()))
		if got := a.Answer(200).GetSendAck(); got.GetStatus() != clientv1.Ack_ACK_FAIL {
			t.Errorf("kind %s: %v", kind, got)
		}
	}
	// Read marks, acks, groups: of ann, whatever they name.
	_ = a.TryWriteRaw(true, []byte(`{"id":201,"userId":"bob","read":{"conversationId":"`+conv+`","seq":"3","userId":"bob"}}`))
	if r := a.Answer(201).GetReceipt(); r.GetUserId() != "ann" {
		t.Errorf("a read mark for bob: %v", r)
	}
	_ = a.TryWriteRaw(true, []byte(`{"userId":"bob","ack":{"userId":"bob","ranges":[{"conversationId":"`+conv+`","seq":"3"}]}}`))
	if st := state(t, b, conv); st.ReadSeq != 0 || st.UnreadCount != 8 {
		t.Errorf("bob's state moved: %v", st)
	}
	group := testenv.Group(t, n.URL(), n.Token("bob"), "bobs", "carl")
	for method, body := range map[string]map[string]any{
		"ConversationService/Create":      {"requestId": uuid.NewString(), "name": "g", "asUser": "bob"},
		"ConversationService/Rename":      {"requestId": uuid.NewString(), "conversationId": group, "name": "g", "asUser": "bob"},
		"ConversationService/Close":       {"requestId": uuid.NewString(), "conversationId": group},
		"ConversationService/Leave":       {"requestId": uuid.NewString(), "conversationId": group, "asUser": "carl"},
		"ConversationService/List":        {"asUser": "bob"},
		"ConversationService/ListMembers": {"conversationId": group},
		"MessageService/Send":             {"conversationId": group, "clientMessageId": uuid.NewString(), "content": map[string]any{"text": "x"}, "asUser": "bob"},
		"MessageService/History":          {"conversationId": group},
		"UserService/Block":               {"userId": "carl", "asUser": "bob"},
		"TokenService/Mint":               {"userId": "bob"},
	} {
		if status, answer := testenv.Post(t, n.URL(), "imd.v1."+method, token, body); status != http.StatusForbidden {
			t.Errorf("%s for bob: %d %v", method, status, answer)
		}
	}
	all, _ := b.Walk(group, 100, false)
	if len(all) != 1 || all[0].Sender != "bob" {
		t.Errorf("the log of bob's group: %v", all)
	}
}

// Revoked logins end within two seconds, and only they; expiry ends busy
// connections too.
func TestR42TokensLive(t *testing.T) {
	t.Parallel()
	n := node(t)
	key := apiKey(t, n, "tokens")
	mint := func(ttl int) (token, login string) {
		out := testenv.MustPost(t, n.URL(), "imd.v1.TokenService/Mint", key, map[string]any{"userId": "ann", "ttlSeconds": ttl})
		return out["token"].(string), out["loginId"].(string)
	}
	revoke := func(login string) {
		testenv.MustPost(t, n.URL(), "imd.v1.TokenService/Revoke", key, map[string]any{"userId": "ann", "loginId": login})
	}
	var conns []*testenv.Client
	var tokens, logins []string
	for i := range 3 {
		token, id := mint(600)
		tokens, logins = append(tokens, token), append(logins, id)
		conns = append(conns, testenv.Login(t, n.URL(), protocol.Encoding(i%2), token, fmt.Sprint("d", i)))
	}
	other := login(t, n, "bob", "d")
	refused := func(token string) {
		t.Helper()
		c := testenv.Dial(t, n.URL(), protocol.JSON)
		c.Write(helloFrame(1, token, "d"))
		wantClosed(t, c, 4505, 2*time.Second)
		if status, _ := testenv.Post(t, n.URL(), "imd.v1.ConversationService/List", token, map[string]any{}); status != http.StatusUnauthorized {
			t.Errorf("over HTTP a revoked token gets %d", status)
		}
	}
	revoke(logins[1])
	wantClosed(t, conns[1], 4505, 2*time.Second)
	refused(tokens[1])
	conns[0].MustSend(testenv.ToUser("bob", "still here"))
	conns[2].MustSend(testenv.ToUser("bob", "still here"))
	revoke("")
	wantClosed(t, conns[0], 4505, 2*time.Second)
	wantClosed(t, conns[2], 4505, 2*time.Second)
	for _, token := range tokens {
		refused(token)
	}
	other.MustSend(testenv.ToUser("carl", "not concerned"))
	const life = 5 // seconds, so that a machine which stands still for two lets it log in
	token, _ := mint(life)
	clock := testenv.NewClock(t)
	began := clock.Now()
	busy := testenv.Login(t, n.URL(), protocol.Proto, token, "d") // one issued later is good
	for !busy.Closed() && clock.Since(began) < (life+4)*time.Second {
		if busy.TryWrite(historyFrame(&clientv1.History{ConversationId: "g_none"})) != nil {
			break
		}
		time.Sleep(20 * time.Millisecond)
	}
	wantClosed(t, busy, 4005, time.Second)
	if took := clock.Since(began); took > life*time.Second+2100*time.Millisecond {
		t.Errorf("a token of %d s ended a busy connection after %v", life, took)
	}
}

// A web page that is neither the own nor listed cannot connect, and * needs to
// be asked for twice. (TestOrigins of the conformance tests has the look-alikes.)
func TestR43EveryOriginNeedsAnUnsafeSetting(t *testing.T) {
	t.Parallel()
	n := &testenv.Node{Dir: t.TempDir() + "/data"}
	status, text := refusedStart(t, n, set("gateway.allowed_origins=*")...)
	if status != 78 || !strings.Contains(text, "gateway.allowed_origins") || !strings.Contains(text, "unsafe_allow_all_origins") {
		t.Errorf("* alone: %d %s", status, text)
	}
	open := node(t, "gateway.allowed_origins=*", "gateway.unsafe_allow_all_origins=true")
	open.AwaitLog("every web page may connect")
	c, _, err := testenv.TryDial(t, open.URL(), protocol.JSON, testenv.DialOptions{Header: http.Header{"Origin": {"https://any.example"}}})
	if err != nil {
		t.Fatal(err)
	}
	c.Close()
	// A token in the URL is none.
	res, err := http.Get(open.URL() + "/v1/ws?token=" + open.Token("ann"))
	if err != nil {
		t.Fatal(err)
	}
	res.Body.Close()
	if res.StatusCode == http.StatusOK || strings.Contains(open.Log(), "token=") {
		t.Errorf("a token in the URL: %d", res.StatusCode)
	}
}

// Ids that are odd are refused by one rule everywhere; those that are allowed
// never meet.
func TestR47IdentitiesStaySeparate(t *testing.T) {
	t.Parallel()
	n := node(t)
	key := apiKey(t, n, "tokens,users,conversations,messages")
	token := n.Token("ann")
	a := login(t, n, "ann", "d")
	for _, id := range []string{"a/b", "a:b", "..%2f", "*", "{x}", "a\nb", `'; DROP TABLE entry; --`, `"`, "", strings.Repeat("x", 10_240), "🙂", "аnn" /* a Cyrillic a */, "a b", "a\x00b", "ａnn"} {
		if status, answer := testenv.Post(t, n.URL(), "imd.v1.TokenService/Mint", key, map[string]any{"userId": id}); status != 400 || testenv.ReasonOf(answer) != "invalid_id" {
			t.Errorf("minting for %.20q: %d %v", id, status, answer)
		}
		if id != "" {
			wantFail(t, a, testenv.ToUser(id, "x"), "invalid_id")
			wantFail(t, a, testenv.To(id, "x"), "invalid_id")
		}
		for method, body := range map[string]map[string]any{
			"ConversationService/Create": {"requestId": uuid.NewString(), "name": "g", "userIds": []string{id}},
			"UserService/Block":          {"userId": id},
			"MessageService/History":     {"conversationId": id},
		} {
			if status, answer := testenv.Post(t, n.URL(), "imd.v1."+method, token, body); status != 400 || testenv.ReasonOf(answer) != "invalid_id" {
				t.Errorf("%s with %.20q: %d %v", method, id, status, answer)
			}
		}
		if id != "" {
			c := testenv.Dial(t, n.URL(), protocol.Proto)
			c.Write(helloFrame(1, n.Token("ann"), id))
			wantClosed(t, c, 4500, testenv.Patience)
		}
	}
	// Odd, but allowed: each is somebody else.
	users := []string{"a.b", "a-b", "a_b", "a@b", "a+b", "A.b", "a.B", "..", ".", "-", "--help", "49", "0", "00", "system", "null", "_", "a", strings.Repeat("x", 64)}
	convs := map[string]string{}
	for _, u := range users {
		c := testenv.Login(t, n.URL(), protocol.JSON, n.Token(u), "d")
		if c.Welcome.UserId != u || len(c.Synced.Conversations) != 0 {
			t.Errorf("%s is welcomed as %v and has %v", u, c.Welcome, c.Synced)
		}
		for _, v := range users {
			if u == v {
				continue
			}
			pair := []string{u, v}
			slices.Sort(pair)
			conv := protocol.DirectID(u, v)
			if before, ok := convs[conv]; ok && before != fmt.Sprint(pair) {
				t.Errorf("%v and %s share %s", pair, before, conv)
			}
			convs[conv] = fmt.Sprint(pair)
		}
		c.Close()
	}
	x, y := login(t, n, "a.b", "d"), login(t, n, "a", "d")
	x.MustSend(testenv.ToUser("c", "of a.b"))
	y.MustSend(testenv.ToUser("b.c", "of a"))
	if x.MustSend(testenv.ToUser("c", "again")).Seq != 2 {
		t.Error("two pairs share a conversation")
	}
	// Names are free text, and stay text.
	for _, name := range []string{`x'; DROP TABLE entry; --`, "two\nlines", `{"level":"error"}`, "%s%d", "🙂", "<script>"} {
		conv := testenv.Group(t, n.URL(), token, name)
		if st := state(t, a, conv); st == nil || st.Name != name {
			t.Errorf("the name %q became %v", name, st)
		}
	}
	text := n.Log()
	for line := range strings.SplitSeq(strings.TrimSpace(text[:strings.LastIndex(text, "\n")+1]), "\n") { // the last may still be coming
		var fields map[string]any
		if json.Unmarshal([]byte(line), &fields) != nil || fields["msg"] == nil {
			t.Errorf("a line of the log is no event: %q", line)
		}
	}
}

// What nobody may read is in no log, metric, answer or view; weak secrets and
// weak callers are refused.
func TestR48SecretsStaySecret(t *testing.T) {
	t.Parallel()
	const body = "canary-7f3a-body"
	n := node(t, "log.level=debug")
	key := apiKey(t, n, "tokens")
	token := n.Token("ann")
	a := testenv.Login(t, n.URL(), protocol.JSON, token, "d")
	a.MustSend(testenv.ToUser("bob", body))
	wrong := a.Decide(&clientv1.Send{To: &clientv1.Send_ToUser{ToUser: "bob"}, ClientMessageId: "x", Content: testenv.Text(body)})
	var said []string
	said = append(said, wrong.String())
	for _, bearer := range []string{"", "x.y.z", token, "imd_aaaaaaaaaaaaaaaa_" + strings.Repeat("b", 52), key + "x"} {
		status, answer := testenv.Post(t, n.URL(), "imd.v1.TokenService/Mint", bearer, map[string]any{"userId": "bob"})
		if status != http.StatusUnauthorized && status != http.StatusForbidden {
			t.Errorf("minting with %.8q: %d %v", bearer, status, answer)
		}
		said = append(said, fmt.Sprint(answer))
	}
	_, answer := testenv.Post(t, n.URL(), "imd.v1.MessageService/Send", token, map[string]any{"toUser": "a/b", "clientMessageId": uuid.NewString(), "content": map[string]any{"text": body}})
	said = append(said, fmt.Sprint(answer))
	c := testenv.Dial(t, n.URL(), protocol.JSON)
	c.Write(helloFrame(1, token+"x", "d"))
	_, text := c.WaitClosed(testenv.Patience)
	said = append(said, text)
	_ = a.TryWriteRaw(true, []byte(`{"id":1,"id":2,"send":{"content":{"text":"`+body+`"}}}`))
	_, text = a.WaitClosed(testenv.Patience)
	said = append(said, text)
	expired := n.Mint(auth.Claims{User: im.UserID("ann"), Login: "l"}, time.Millisecond)
	c = testenv.Dial(t, n.URL(), protocol.JSON)
	c.Write(helloFrame(1, expired, "d"))
	_, text = c.WaitClosed(testenv.Patience)
	said = append(said, text)
	show, _, _ := n.Command("config", "show", "-o", "json")
	nodes, _, _ := n.Command("nodes", "-o", "json")
	keys, _, _ := n.Command("key", "list", "-o", "json")
	said = append(said, show, nodes, keys, n.Metrics())
	n.Stop()
	said = append(said, n.Log())
	secrets := map[string]string{"the token": token, "an expired token": expired, "a token's signature": token[strings.LastIndex(token, ".")+1:],
		"the API key": key, "the secret of the API key": key[strings.LastIndex(key, "_")+1:], "the admin key": n.AdminKey(), "a message": body}
	for name, secret := range secrets {
		for _, text := range said {
			if i := strings.Index(text, secret); i >= 0 {
				t.Errorf("%s is in: %.200s", name, text[max(0, i-100):])
			}
		}
	}
}

package imd

import (
	"encoding/base64"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"

	"github.com/imdhq/imd/sdk/go/gen/clientv1"
	"github.com/imdhq/imd/sdk/go/gen/imdv1"
	"github.com/imdhq/imd/sdk/go/protocol"
)

func TestOverRealSockets(t *testing.T) {
	for _, enc := range []protocol.Encoding{protocol.Proto, protocol.JSON} {
		t.Run(enc.String(), func(t *testing.T) {
			f := newFakeServer()
			srv := f.listen(t)
			dial := func(user string) *Client {
				c, err := Connect(within(t, 10*time.Second), srv.URL, Options{Token: user, Encoding: enc, HTTPClient: srv.Client()})
				if err != nil {
					t.Fatal(err)
				}
				t.Cleanup(func() { _ = c.Close() })
				return c
			}
			alice, bob := dial("alice"), dial("bob")
			events := bob.Events(within(t, 10*time.Second))
			var want []string
			for i := range 100 {
				text := string(rune('a'+i%26)) + "\u0001\"😀"
				want = append(want, text)
				alice.SendTo(t.Context(), "bob", Text(text))
			}
			f.each(func(s *fakeSession) { // everybody has to come back
				if s.user == "alice" {
					s.bye(protocol.NewBye("drain", "", 10*time.Millisecond))
				}
			})
			if got := texts(t, events, 100); !slices.Equal(got, want) {
				t.Errorf("bob got %v", got)
			}
		})
	}
}

func TestDialRaw(t *testing.T) {
	f := newFakeServer()
	srv := f.listen(t)
	ctx := within(t, 10*time.Second)
	conn, err := DialRaw(ctx, srv.URL, DialOptions{Encoding: protocol.JSON})
	if err != nil {
		t.Fatal(err)
	}
	defer conn.CloseNow()
	if err := conn.Write(ctx, &clientv1.ClientFrame{Id: 1, Kind: &clientv1.ClientFrame_Hello{Hello: &clientv1.Hello{Version: 1, Token: "eve"}}}); err != nil {
		t.Fatal(err)
	}
	frames, err := conn.Read(ctx)
	if err != nil || len(frames) != 1 || frames[0].GetWelcome().GetUserId() != "eve" {
		t.Fatalf("%v, %v", frames, err)
	}
	f.each(func(s *fakeSession) { s.bye(protocol.NewBye("kicked", "", 0)) })
	if frames, err = conn.Read(ctx); err != nil || frames[0].GetBye().GetCloseCode() != 4502 {
		t.Fatalf("%v, %v", frames, err)
	}
	var e *Error
	if _, err = conn.Read(ctx); !errors.As(err, &e) || e.CloseCode != 4502 || e.Reason != "kicked" || e.Retryable {
		t.Errorf("the close is %v", err)
	}
}

// Many frames leave in as many envelopes as the server's limits ask for.
func TestWriteCutsEnvelopes(t *testing.T) {
	f := newFakeServer()
	srv := f.listen(t)
	ctx := within(t, 10*time.Second)
	conn, err := DialRaw(ctx, srv.URL, DialOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer conn.CloseNow()
	f.mu.Lock()
	f.log("g_1", "eve")
	f.mu.Unlock()
	frames := []*clientv1.ClientFrame{{Id: 1, Kind: &clientv1.ClientFrame_Hello{Hello: &clientv1.Hello{Version: 1, Token: "eve"}}}}
	big := Text(string(make([]byte, 10000)))
	for range 100 {
		frames = append(frames, &clientv1.ClientFrame{Id: 2, Kind: &clientv1.ClientFrame_Send{Send: &clientv1.Send{
			To: &clientv1.Send_ConversationId{ConversationId: "g_1"}, ClientMessageId: NewID(), Content: big}}})
	}
	for range 200 {
		frames = append(frames, &clientv1.ClientFrame{Kind: &clientv1.ClientFrame_Pong{Pong: &clientv1.Pong{}}})
	}
	if err := conn.Write(ctx, frames...); err != nil {
		t.Fatal(err)
	}
	for answers := 0; answers < 101; {
		got, err := conn.Read(ctx)
		if err != nil {
			t.Fatal(err)
		}
		answers += len(got)
	}
}

func TestRefusedUpgrade(t *testing.T) {
	answer := func(status int, header, body string) *Error {
		t.Helper()
		srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			if header != "" {
				w.Header().Set("Retry-After", header)
			}
			w.WriteHeader(status)
			_, _ = io.WriteString(w, body)
		}))
		defer srv.Close()
		_, err := DialRaw(within(t, 10*time.Second), srv.URL, DialOptions{})
		var e *Error
		if !errors.As(err, &e) {
			t.Fatalf("error %v", err)
		}
		return e
	}
	if e := answer(503, "3", `{"code":"unavailable","message":"drain"}`); !e.Retryable || e.RetryAfter != 3*time.Second || e.Code != "unavailable" || e.Message != "drain" || e.HTTPStatus != 503 {
		t.Errorf("503: %+v", e)
	}
	if e := answer(403, "", "origin"); e.Retryable || e.Message != "origin" {
		t.Errorf("403: %+v", e)
	}
	if e := answer(429, "x", ""); !e.Retryable || e.RetryAfter != 0 {
		t.Errorf("429: %+v", e)
	}
	if _, err := DialRaw(within(t, 10*time.Second), "ws://127.0.0.1:1", DialOptions{}); err == nil || !retryable(err) {
		t.Errorf("nobody there: %v", err)
	}
}

func TestParseAddress(t *testing.T) {
	tests := []struct{ in, socket, base string }{
		{"ws://h:1", "ws://h:1/v1/ws", "http://h:1"},
		{"http://h:1/", "ws://h:1/v1/ws", "http://h:1"},
		{"https://h/chat/", "wss://h/chat/v1/ws", "https://h/chat"},
		{"wss://h/chat/v1/ws", "wss://h/chat/v1/ws", "https://h/chat"},
		{"h:8420", "ws://h:8420/v1/ws", "http://h:8420"},
		{"ws://u:p@h/?q#f", "ws://h/v1/ws", "http://h"},
	}
	for _, tt := range tests {
		got, err := parseAddress(tt.in)
		if err != nil || got.socket != tt.socket || got.base != tt.base {
			t.Errorf("%s: %+v, %v", tt.in, got, err)
		}
	}
	for _, bad := range []string{"ftp://h", "ws://", "://"} {
		if _, err := parseAddress(bad); err == nil {
			t.Errorf("%q was taken", bad)
		}
	}
}

func TestAPI(t *testing.T) {
	f := newFakeServer()
	srv := f.listen(t)
	var paths []string
	api := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		paths = append(paths, r.URL.Path)
		if r.Header.Get("Authorization") != "Bearer alice" || r.Header.Get("Content-Type") != "application/json" || r.Method != http.MethodPost {
			w.WriteHeader(http.StatusUnauthorized)
			return
		}
		body, _ := io.ReadAll(r.Body)
		switch r.URL.Path {
		case "/imd.v1.ConversationService/Create":
			in := &imdv1.CreateRequest{}
			if err := protojson.Unmarshal(body, in); err != nil || !protocol.ValidUUID(in.RequestId) || in.Name != "team" || len(in.UserIds) != 2 {
				t.Errorf("create %v, %v", in, err)
			}
			_, _ = io.WriteString(w, `{"conversationId":"g_1","seq":"1","later":true}`)
		case "/imd.v1.ConversationService/ListMembers":
			in := &imdv1.ListMembersRequest{}
			_ = protojson.Unmarshal(body, in)
			if in.PageToken == "" {
				_, _ = io.WriteString(w, `{"members":[{"userId":"alice"}],"nextPageToken":"n"}`)
			} else {
				_, _ = io.WriteString(w, `{"members":[{"userId":"bob"}]}`)
			}
		case "/imd.v1.ConversationService/ListMutes":
			if !strings.Contains(string(body), "pageToken") {
				_, _ = io.WriteString(w, `{"conversations":[{"conversationId":"g_1","untilMs":"5000"}],"nextPageToken":"n"}`)
			} else {
				_, _ = io.WriteString(w, `{"conversations":[{"conversationId":"g_2"}]}`)
			}
		case "/imd.v1.UserService/Block":
			detail, _ := proto.Marshal(protocol.NewError("invalid_id", "no", 0))
			w.WriteHeader(http.StatusBadRequest)
			_, _ = io.WriteString(w, `{"code":"invalid_argument","message":"no","details":[{"type":"imd.client.v1.Error","value":"`+base64.RawStdEncoding.EncodeToString(detail)+`"}]}`)
		default:
			_, _ = io.WriteString(w, `{}`)
		}
	}))
	defer api.Close()
	ctx := within(t, 10*time.Second)
	c, err := Connect(ctx, srv.URL, Options{Token: "alice"})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	c.addr.base = api.URL
	g, err := c.API().CreateGroup(ctx, "team", "bob", "carol")
	if err != nil || g.ID() != "g_1" {
		t.Fatalf("%v, %v", g, err)
	}
	members, err := c.API().Members(ctx, "g_1")
	if err != nil || len(members) != 2 || members[1].UserId != "bob" {
		t.Errorf("members %v, %v", members, err)
	}
	mutes, err := c.API().Mutes(ctx)
	if err != nil || len(mutes) != 2 || !mutes["g_2"].IsZero() || mutes["g_1"].UnixMilli() != 5000 {
		t.Errorf("mutes %v, %v", mutes, err)
	}
	var e *Error
	if err := c.API().Block(ctx, "a b"); !errors.As(err, &e) || e.Reason != protocol.ReasonInvalidID || e.HTTPStatus != 400 {
		t.Errorf("block: %v", err)
	}
	calls := map[string]func() error{
		"Rename":        func() error { _, err := c.API().Rename(ctx, "g_1", "x"); return err },
		"AddMembers":    func() error { _, err := c.API().AddMembers(ctx, "g_1", "dan"); return err },
		"RemoveMembers": func() error { _, err := c.API().RemoveMembers(ctx, "g_1", "dan"); return err },
		"SetRole":       func() error { _, err := c.API().SetRole(ctx, "g_1", "dan", clientv1.Role_ROLE_ADMIN); return err },
		"Leave":         func() error { _, err := c.API().Leave(ctx, "g_1"); return err },
		"Close":         func() error { _, err := c.API().CloseGroup(ctx, "g_1"); return err },
		"Mute":          func() error { return c.API().Mute(ctx, "g_1", time.Now().Add(time.Hour)) },
		"Unmute":        func() error { return c.API().Unmute(ctx, "g_1") },
		"ClearHistory":  func() error { return c.API().ClearHistory(ctx, "g_1", 5) },
	}
	for name, call := range calls {
		if err := call(); err != nil || paths[len(paths)-1] != "/imd.v1.ConversationService/"+name {
			t.Errorf("%s: %v, %s", name, err, paths[len(paths)-1])
		}
	}
	if err := c.API().Unblock(ctx, "bob"); err != nil {
		t.Error(err)
	}
}

func TestNewID(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		seen := map[string]bool{}
		for range 10_000 {
			id := NewID()
			if seen[id] || !protocol.ValidUUID(id) || id[14] != '7' {
				t.Fatal(id)
			}
			seen[id] = true
		}
		now, before := time.Now(), NewID()
		if ms, err := strconv.ParseInt(before[:8]+before[9:13], 16, 64); err != nil || ms != now.UnixMilli() {
			t.Errorf("%s at %d", before, now.UnixMilli())
		}
		time.Sleep(2 * time.Millisecond)
		if after := NewID(); after <= before {
			t.Errorf("%s, then %s", before, after)
		}
	})
}

func TestErrorText(t *testing.T) {
	for want, e := range map[string]*Error{
		"imd: not_member: no":     {Code: "permission_denied", Reason: "not_member", Message: "no"},
		"imd: unavailable":        {Code: "unavailable"},
		"imd: closed with 4999":   {CloseCode: 4999},
		"imd: HTTP status 418: x": {HTTPStatus: 418, Message: "x"},
		"imd: connection lost":    {},
	} {
		if e.Error() != want {
			t.Errorf("%q, want %q", e.Error(), want)
		}
	}
}

package conformance

import (
	"encoding/binary"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/imdhq/imd/pkg/testenv"
	"github.com/imdhq/imd/sdk/go/gen/clientv1"
	"github.com/imdhq/imd/sdk/go/protocol"
)

func init() {
	proto, text := []protocol.Encoding{protocol.Proto}, []protocol.Encoding{protocol.JSON}
	statements = append(statements,
		statement{1, "either subprotocol is accepted, only unknown ones are refused", nil, false, subprotocols},
		statement{2, "n frames in one envelope are n envelopes", nil, false, envelopes},
		statement{3, "an envelope of the limit works, a byte more closes 1009", nil, false, envelopeLimit},
		statement{4, "the wrong message type closes 1003", nil, false, wrongType},
		statement{4, "bad UTF-8 in text closes 1007", text, false, badText},
		statement{4, "bad UTF-8 in a protobuf string closes 4500", proto, false, badProtoString},
		statement{5, "unknown fields and kinds do not close", nil, false, unknown},
		statement{6, "duplicate keys, two kinds and rounded integers close 4500", text, false, ambiguousJSON},
		statement{7, "compression is not taken up", nil, false, compression},
		statement{9, "a frame before hello, and a second hello, close 4500", nil, false, helloOrder},
		statement{number: 9, text: "no hello in 5 s closes 4008", waits: true, test: noHello},
		statement{10, "bad tokens get 4501 or 401, expired ones 4005", nil, false, badTokens},
		statement{11, "versions are agreed on", nil, false, versions},
		statement{12, "no field makes a user another", nil, false, identity},
	)
}

func subprotocols(t *testing.T, s *suite) {
	c, _, err := testenv.TryDial(t, s.URL(), s.enc, testenv.DialOptions{Subprotocols: []string{"imd.v9", s.enc.Subprotocol()}})
	if err != nil {
		t.Fatal(err)
	}
	c.Close()
	for _, offer := range [][]string{{"imd.v9"}, {}} {
		_, res, err := testenv.TryDial(t, s.URL(), s.enc, testenv.DialOptions{Subprotocols: offer})
		if err == nil || res == nil || res.StatusCode != http.StatusBadRequest {
			t.Fatalf("an offer of %v: %v", offer, err)
		}
		body, _ := io.ReadAll(res.Body)
		var e struct{ Code, Message string }
		if json.Unmarshal(body, &e) != nil || !strings.Contains(e.Message, "imd.v1.proto") || !strings.Contains(e.Message, "imd.v1.json") {
			t.Errorf("the refusal does not name both: %s", body)
		}
	}
}

func envelopes(t *testing.T, s *suite) {
	a, b := s.login(t, "ann", "d"), s.login(t, "bob", "d")
	var frames []*clientv1.ClientFrame
	for i := range 10 {
		frames = append(frames, sendFrame(a.ID(), testenv.ToUser(s.user("bob"), fmt.Sprint("m", i))))
	}
	a.Write(frames[:5]...)
	for _, f := range frames[5:] {
		a.Write(f)
	}
	for i, f := range frames {
		if got := a.Answer(f.Id).GetSendAck(); got.Status != clientv1.Ack_ACK_OK || got.Seq != int64(i+1) {
			t.Fatalf("send %d: %v", i, got)
		}
	}
	for i := range 10 {
		b.Entry("a deliver", func(_ string, e *clientv1.Entry) bool { return e.Content.GetText() == fmt.Sprint("m", i) })
	}
}

// padded is an envelope of exactly n bytes that asks for history.
func padded(t *testing.T, enc protocol.Encoding, n int) []byte {
	t.Helper()
	f := historyFrame(&clientv1.History{ConversationId: "g_none", Limit: 1})
	f.Id = 99
	one, err := protocol.EncodeClient(enc, f)
	if err != nil {
		t.Fatal(err)
	}
	if enc == protocol.JSON {
		return append(one, []byte(strings.Repeat(" ", n-len(one)))...)
	}
	// An unknown field fills the rest of a second frame.
	rest := n - len(one)
	for size := rest - 12; ; size++ {
		field := binary.AppendUvarint(nil, 2047<<3|2)
		field = binary.AppendUvarint(field, uint64(size))
		body := len(field) + size
		if len(binary.AppendUvarint(nil, uint64(body)))+body == rest {
			out := binary.AppendUvarint(one, uint64(body))
			return append(append(out, field...), make([]byte, size)...)
		}
		if size > rest {
			t.Fatal("cannot be padded")
		}
	}
}

func envelopeLimit(t *testing.T, s *suite) {
	c := s.login(t, "ann", "d")
	if err := c.TryWriteRaw(s.enc == protocol.JSON, padded(t, s.enc, s.enc.MaxEnvelope())); err != nil {
		t.Fatal(err)
	}
	if f := c.Answer(99); reasonOf(f) != "not_member" {
		t.Errorf("an envelope of the limit: %v", f)
	}
	_ = c.TryWriteRaw(s.enc == protocol.JSON, padded(t, s.enc, s.enc.MaxEnvelope()+1))
	wantClosed(t, c, 1009, "", 5*time.Second)
}

func wrongType(t *testing.T, s *suite) {
	c := s.login(t, "ann", "d")
	_ = c.TryWriteRaw(s.enc != protocol.JSON, []byte("{}"))
	wantClosed(t, c, 1003, "", 5*time.Second)
}

func badText(t *testing.T, s *suite) {
	for name, text := range map[string]string{
		"in a text": "{\"id\":9,\"history\":{\"conversationId\":\"g_\xff\"}}", "in a key": "{\"\xc0\xaf\":1}", "truncated": "{\"id\":9}\xe2\x82",
		"a surrogate": "{\"id\":9,\"history\":{\"conversationId\":\"\xed\xa0\x80\"}}",
	} {
		t.Run(name, func(t *testing.T) {
			c := s.login(t, "ann", "d-"+uuid.NewString()[:8])
			_ = c.TryWriteRaw(true, []byte(text))
			wantClosed(t, c, 1007, "", 5*time.Second)
		})
	}
}

func badProtoString(t *testing.T, s *suite) {
	c := s.login(t, "ann", "d")
	// history (field 6) with a conversation_id that is not UTF-8.
	_ = c.TryWriteRaw(false, []byte{5, 6<<3 | 2, 3, 1<<3 | 2, 1, 0xff})
	wantClosed(t, c, 4500, "bad_frame", 5*time.Second)
}

func unknown(t *testing.T, s *suite) {
	c := s.login(t, "ann", "d")
	if s.enc == protocol.JSON {
		_ = c.TryWriteRaw(true, []byte(`{"id":70,"history":{"conversationId":"g_none","limit":1,"tomorrow":{"x":[1]}},"more":1}`+"\n"+`{"id":71,"teleport":{}}`))
	} else {
		f := historyFrame(&clientv1.History{ConversationId: "g_none", Limit: 1})
		f.Id = 70
		f.ProtoReflect().SetUnknown([]byte{0xfa, 0x7f, 1, 'x'})
		unknownKind := &clientv1.ClientFrame{Id: 71}
		unknownKind.ProtoReflect().SetUnknown([]byte{0xf2, 0x7f, 0})
		c.Write(f, unknownKind)
	}
	wantReason(t, c.Answer(70), "not_member")
	wantReason(t, c.Answer(71), "unknown_kind")
	recall := testenv.ToUser(s.user("bob"), "x")
	recall.Kind, recall.TargetSeq = clientv1.EntryKind_ENTRY_KIND_RECALL, 1
	if a := c.Decide(recall); a.Status != clientv1.Ack_ACK_FAIL || a.Error.Reason != "unsupported" {
		t.Errorf("a recall: %v", a)
	}
	alive(t, c)
}

func ambiguousJSON(t *testing.T, s *suite) {
	for name, text := range map[string]string{
		"a key twice":             `{"id":1,"id":2,"history":{"conversationId":"g_none"}}`,
		"a nested key twice":      `{"id":1,"history":{"conversationId":"g_none","conversationId":"g_2"}}`,
		"both forms of a name":    `{"id":1,"history":{"conversationId":"g_none","conversation_id":"g_2"}}`,
		"two kinds":               `{"id":1,"history":{"conversationId":"g_none"},"read":{"conversationId":"g_none"}}`,
		"an integer above 2^53-1": `{"id":1,"read":{"conversationId":"g_none","seq":9007199254740993}}`,
		"a lone surrogate":        `{"id":1,"history":{"conversationId":"\ud800"}}`,
		"nested 100,000 deep":     `{"id":1,"x":` + strings.Repeat("[", 60_000) + strings.Repeat("]", 60_000) + `}`,
		"no JSON":                 `hello`,
		"65 frames":               strings.Repeat("{\"pong\":{}}\n", 65),
	} {
		t.Run(name, func(t *testing.T) {
			c := s.login(t, "ann", "d-"+uuid.NewString()[:8])
			_ = c.TryWriteRaw(true, []byte(text))
			wantClosed(t, c, 4500, "bad_frame", 5*time.Second)
		})
	}
	c := s.login(t, "ann", "exact")
	_ = c.TryWriteRaw(true, []byte(`{"id":88,"read":{"conversationId":"g_none","seq":"9007199254740993"}}`))
	wantReason(t, c.Answer(88), "not_member")
}

func compression(t *testing.T, s *suite) {
	c, res, err := testenv.TryDial(t, s.URL(), s.enc, testenv.DialOptions{
		Header: http.Header{"Sec-Websocket-Extensions": {"permessage-deflate; client_max_window_bits"}}})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if e := res.Header.Get("Sec-WebSocket-Extensions"); e != "" {
		t.Errorf("the server agreed to %q", e)
	}
}

func helloOrder(t *testing.T, s *suite) {
	c := testenv.Dial(t, s.Door(), s.enc)
	c.Write(syncFrame(&clientv1.Sync{}))
	wantClosed(t, c, 4500, "bad_frame", 3*time.Second)
	c = s.login(t, "ann", "d")
	c.Write(helloFrame(50, hello(s.Token(s.user("ann")))))
	wantClosed(t, c, 4500, "bad_frame", 3*time.Second)
}

func noHello(t *testing.T, s *suite) {
	began, clock := time.Now(), testenv.NewClock(t)
	c := testenv.Dial(t, s.Door(), s.enc)
	wantClosed(t, c, 4008, "auth_timeout", 8*time.Second)
	if took := time.Since(began); took < 4*time.Second || clock.Now() > 7*time.Second {
		t.Errorf("closed after %v, want about 5 s", took)
	}
}

func badTokens(t *testing.T, s *suite) {
	for name, token := range s.badTokens(t) {
		t.Run(name, func(t *testing.T) {
			c := testenv.Dial(t, s.Door(), s.enc)
			c.Write(helloFrame(1, hello(token.text)))
			wantClosed(t, c, token.code, token.reason, 3*time.Second)
			_, res, err := testenv.TryDial(t, s.URL(), s.enc, testenv.DialOptions{Header: http.Header{"Authorization": {"Bearer " + token.text}}})
			if err == nil || res == nil || res.StatusCode != http.StatusUnauthorized {
				t.Errorf("in the header: %v", err)
			}
		})
	}
	token := s.Token(s.user("ann"))
	c, _, err := testenv.TryDial(t, s.URL(), s.enc, testenv.DialOptions{Header: http.Header{"Authorization": {"Bearer " + token}}})
	if err != nil {
		t.Fatal(err)
	}
	if f := c.Request(helloFrame(0, hello(""))); f.GetWelcome().GetUserId() != s.user("ann") {
		t.Errorf("a good token in the header: %v", f)
	}
}

func versions(t *testing.T, s *suite) {
	for _, h := range []*clientv1.Hello{{Version: 0}, {Version: 99}, {Version: 99, MinVersion: 2}} {
		c := testenv.Dial(t, s.Door(), s.enc)
		h.Token, h.DeviceId = s.Token(s.user("ann")), "d"
		c.Write(helloFrame(1, h))
		f := c.Take("bye", func(f *clientv1.ServerFrame) bool { return f.GetBye() != nil })
		if b := f.GetBye(); b.Reason != "unsupported_version" || !strings.Contains(b.Message, "1") {
			t.Errorf("%v: %v", h, b)
		}
		if code, _ := c.WaitClosed(3 * time.Second); code != 4506 {
			t.Errorf("closed with %d", code)
		}
	}
	c := testenv.Dial(t, s.Door(), s.enc)
	f := c.Request(helloFrame(0, &clientv1.Hello{Version: 99, MinVersion: 1, Token: s.Token(s.user("ann")), DeviceId: "d"}))
	if f.GetWelcome().GetVersion() != 1 {
		t.Errorf("levels 1 to 99: %v", f)
	}
}

func identity(t *testing.T, s *suite) {
	a, b := s.login(t, "ann", "d"), s.login(t, "bob", "d")
	if s.enc == protocol.JSON {
		for i, extra := range []string{
			`"sender":"%s",`, `"userId":"%s",`, `"from":"%s",`, `"user_id":"%s",`,
		} {
			id := 100 + i
			_ = a.TryWriteRaw(true, fmt.Appendf(nil, `{"id":%d,`+extra+`"send":{`+extra+`"toUser":"%s","seq":"9","messageId":"7","serverTimeMs":"1","clientMessageId":"%s","content":{"text":"hi"}}}`,
				id, s.user("bob"), s.user("bob"), s.user("bob"), uuid.NewString()))
			if ack := a.Answer(uint32(id)).GetSendAck(); ack.GetStatus() != clientv1.Ack_ACK_OK || ack.Seq != int64(i+1) {
				t.Fatalf("%s: %v", extra, ack)
			}
		}
	} else {
		a.MustSend(testenv.ToUser(s.user("bob"), "hi"))
	}
	e := b.Entry("the message", func(string, *clientv1.Entry) bool { return true })
	if e.Sender != s.user("ann") {
		t.Errorf("stored as sent by %q", e.Sender)
	}
	// A read mark and an ack of ann's move nothing of bob's.
	conv := protocol.DirectID(s.user("ann"), s.user("bob"))
	a.Request(readFrame(conv, e.Seq))
	a.Write(ackFrame(conv, 0, e.Seq))
	st := b.Sync(&clientv1.Sync{}).Conversations[0]
	if st.ReadSeq != 0 || st.UnreadCount == 0 {
		t.Errorf("bob's state moved: %v", st)
	}
}

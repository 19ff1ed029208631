package protocol

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"

	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"

	"github.com/imdhq/imd/sdk/go/gen/clientv1"
)

func nested(n int) string {
	return `{"x":` + strings.Repeat("[", n-1) + strings.Repeat("]", n-1) + `}`
}

func TestDecodeJSON(t *testing.T) {
	pong := `{"pong":{}}`
	tests := []struct {
		name   string
		in     string
		frames int
		fault  Fault // 0 = accepted
	}{
		{"nothing", "", 0, 0},
		{"one frame", pong, 1, 0},
		{"one frame with a line end", pong + "\n", 1, 0},
		{"empty lines and white space", "\n \t\r\n  " + pong + " \r\n\n" + pong + "\t", 2, 0},
		{"most frames", strings.Repeat(pong+"\n", 64), 64, 0},
		{"too many frames", strings.Repeat(pong+"\n", 65), 64, BadFrame},
		{"two objects on a line", pong + pong, 0, BadFrame},
		{"two objects on a line behind a space", pong + " " + pong, 0, BadFrame},
		{"an object over two lines", "{\n\"pong\":{}}", 0, BadFrame},
		{"not an object", "[]", 0, BadFrame},
		{"a broken one behind a good one", pong + "\n{", 1, BadFrame},
		{"a trailing comma", `{"pong":{},}`, 0, BadFrame},
		{"no value", `{"pong":}`, 0, BadFrame},
		{"a key without quotes", `{pong:{}}`, 0, BadFrame},
		{"a key twice", `{"id":1,"id":1,"pong":{}}`, 0, BadFrame},
		{"a key twice, once escaped", `{"id":1,"\u0069d":1,"pong":{}}`, 0, BadFrame},
		{"a key twice, by its two names", `{"typing":{"conversationId":"a","conversation_id":"a"}}`, 0, BadFrame},
		{"an unknown key twice", `{"zzz":1,"pong":{},"zzz":2}`, 0, BadFrame},
		{"a key twice in an unknown object", `{"zzz":{"a":1,"a":2},"pong":{}}`, 0, BadFrame},
		{"an attribute twice", `{"send":{"content":{"attributes":{"a":"1","a":"2"}}}}`, 0, BadFrame},
		{"attributes that look like one field", `{"send":{"content":{"attributes":{"conversationId":"1","conversation_id":"2"}}}}`, 1, 0},
		{"many keys, none twice", `{"zzz":{` + manyKeys(500, false) + `},"pong":{}}`, 1, 0},
		{"many keys, one twice", `{"zzz":{` + manyKeys(500, true) + `},"pong":{}}`, 0, BadFrame},
		{"proto names", `{"typing":{"conversation_id":"a"}}`, 1, 0},
		{"two kinds", `{"pong":{},"typing":{}}`, 0, BadFrame},
		{"two receivers", `{"send":{"toUser":"bob","conversationId":"g_1"}}`, 0, BadFrame},
		{"unknown fields", `{"pong":{"a":[1,{"b":null}]},"zzz":{"y":[true,false,"x"]}}`, 1, 0},
		{"an unknown kind", `{"id":5,"zzz":{}}`, 1, 0},
		{"an unknown enum", `{"send":{"kind":"ENTRY_KIND_POLL"}}`, 1, 0},
		{"a number of the largest size", `{"history":{"afterSeq":9007199254740991}}`, 1, 0},
		{"a number too large", `{"history":{"afterSeq":9007199254740992}}`, 0, BadFrame},
		{"a negative number too large", `{"history":{"afterSeq":-9007199254740992}}`, 0, BadFrame},
		{"a number too large with an exponent", `{"history":{"afterSeq":1e16}}`, 0, BadFrame},
		{"a number too large in an unknown field", `{"zzz":[10000000000000000],"pong":{}}`, 0, BadFrame},
		{"a large number as a string", `{"history":{"afterSeq":"9007199254740993"}}`, 1, 0},
		{"a surrogate pair", `{"typing":{"conversationId":"\ud83d\ude00"}}`, 1, 0},
		{"a lone high surrogate", `{"typing":{"conversationId":"\ud83d"}}`, 0, BadFrame},
		{"a high surrogate before another escape", `{"typing":{"conversationId":"\ud83d\u0041"}}`, 0, BadFrame},
		{"a lone low surrogate", `{"typing":{"conversationId":"\ude00"}}`, 0, BadFrame},
		{"a lone surrogate in an unknown field", `{"zzz":"\ude00","pong":{}}`, 0, BadFrame},
		{"deepest nesting", nested(64), 1, 0},
		{"too deep", nested(65), 0, BadFrame},
		{"text that is not UTF-8", "{\"typing\":{\"conversationId\":\"\xff\"}}", 0, BadText},
		{"too large", `{"typing":{"conversationId":"` + strings.Repeat("a", MaxTextEnvelope) + `"}}`, 0, TooLarge},
		{"largest", `{"zzz":"` + strings.Repeat("a", MaxTextEnvelope-10) + `"}`, 1, 0},
		{"a string that does not end", `{"typing":{"conversationId":"a`, 0, BadFrame},
		{"a raw control character", "{\"typing\":{\"conversationId\":\"\x01\"}}", 0, BadFrame},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			frames, err := decodeAny(true, JSON, []byte(tt.in))
			checkFault(t, err, tt.fault)
			if len(frames) != tt.frames {
				t.Errorf("%d frames, want %d", len(frames), tt.frames)
			}
		})
	}
}

func manyKeys(n int, twice bool) string {
	var b strings.Builder
	for i := range n {
		fmt.Fprintf(&b, `"k%d":1,`, i)
	}
	if twice {
		b.WriteString(`"k7":1`)
	} else {
		b.WriteString(`"last":1`)
	}
	return b.String()
}

func checkFault(t *testing.T, err error, want Fault) {
	t.Helper()
	switch fe := AsFrameError(err); {
	case err == nil && want != 0:
		t.Errorf("accepted, want fault %d", want)
	case err != nil && fe == nil:
		t.Errorf("not a FrameError: %v", err)
	case fe != nil && fe.Fault != want:
		t.Errorf("fault %d (%v), want %d", fe.Fault, err, want)
	}
}

func TestDecodeProto(t *testing.T) {
	pong := []byte{2, 0x5a, 0}
	tests := []struct {
		name   string
		in     []byte
		frames int
		fault  Fault
	}{
		{"nothing", nil, 0, 0},
		{"one frame", pong, 1, 0},
		{"an empty frame", []byte{0}, 1, 0},
		{"most frames", bytes.Repeat(pong, 64), 64, 0},
		{"too many frames", bytes.Repeat(pong, 65), 64, BadFrame},
		{"a length of five bytes", append([]byte{0x82, 0x80, 0x80, 0x80, 0}, pong[1:]...), 1, 0},
		{"a length of six bytes", append([]byte{0x82, 0x80, 0x80, 0x80, 0x80, 0}, pong[1:]...), 0, BadFrame},
		{"half a length", []byte{0x80}, 0, BadFrame},
		{"a length beyond the end", []byte{3, 0x5a, 0}, 0, BadFrame},
		{"broken behind a good one", append(bytes.Clone(pong), 1, 0xff), 1, BadFrame},
		{"an unknown kind", []byte{5, 0x08, 5, 0xa2, 0x06, 0}, 1, 0},
		{"a string that is not UTF-8", []byte{5, 0x42, 3, 0x0a, 1, 0xff}, 0, BadFrame},
		{"too large", make([]byte, MaxBinaryEnvelope+1), 0, TooLarge},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			frames, err := decodeAny(true, Proto, tt.in)
			checkFault(t, err, tt.fault)
			if len(frames) != tt.frames {
				t.Errorf("%d frames, want %d", len(frames), tt.frames)
			}
		})
	}
}

func TestUnknownKindKeepsID(t *testing.T) {
	for enc, in := range map[Encoding][]byte{
		JSON:  []byte(`{"id":5,"zzz":{"a":1}}`),
		Proto: {5, 0x08, 5, 0xa2, 0x06, 0},
	} {
		frames, err := decodeAny(true, enc, in)
		if err != nil || len(frames) != 1 {
			t.Fatalf("%v: %v, %v", enc, frames, err)
		}
		f := frames[0].(*clientv1.ClientFrame)
		if f.Id != 5 || f.Kind != nil || len(f.ProtoReflect().GetUnknown()) != 0 {
			t.Errorf("%v: %v, want id 5, no kind, nothing unknown kept", enc, f)
		}
	}
}

func TestYieldErrorEndsDecoding(t *testing.T) {
	stop := errors.New("stop")
	n := 0
	err := DecodeClientEnvelope(JSON, []byte(`{"pong":{}}`+"\n"+`{"pong":{}}`), Limits{}, func(*clientv1.ClientFrame) error {
		n++
		return stop
	})
	if err != stop || n != 1 {
		t.Errorf("error %v after %d frames, want the own error after 1", err, n)
	}
}

func TestCloseCodeOfFaults(t *testing.T) {
	for fault, want := range map[Fault]int{BadFrame: 4500, TooLarge: 1009, BadText: 1007} {
		if got := (&FrameError{Fault: fault}).CloseCode(); got != want {
			t.Errorf("fault %d closes with %d, want %d", fault, got, want)
		}
	}
}

func TestSelect(t *testing.T) {
	tests := []struct {
		offered []string
		want    Encoding
		ok      bool
	}{
		{[]string{"imd.v1.json", "imd.v1.proto"}, JSON, true},
		{[]string{"chat", "imd.v1.proto", "imd.v1.json"}, Proto, true},
		{[]string{"chat"}, Proto, false},
		{nil, Proto, false},
	}
	for _, tt := range tests {
		if got, ok := Select(tt.offered); got != tt.want || ok != tt.ok {
			t.Errorf("Select(%v) = %v, %v", tt.offered, got, ok)
		}
	}
	for _, e := range []Encoding{Proto, JSON} {
		if got, ok := EncodingOf(e.Subprotocol()); !ok || got != e {
			t.Errorf("EncodingOf(%q) = %v, %v", e.Subprotocol(), got, ok)
		}
	}
}

// samples are frames with every kind of field.
func samples() []proto.Message {
	name, closed, unread := "näme \"x\"", false, uint32(0)
	return []proto.Message{
		&clientv1.ClientFrame{},
		&clientv1.ClientFrame{Id: 1<<32 - 1, Kind: &clientv1.ClientFrame_Send{Send: &clientv1.Send{
			To: &clientv1.Send_ToUser{ToUser: "bob"}, Resend: true, Kind: 99, TargetSeq: -1,
			Content: &clientv1.Content{Type: "x", Value: &clientv1.Content_Data{Data: []byte{0, 1, 255, 7}},
				Attributes: map[string]string{"b": "\x00\x1f\b\f\n\r\t\\\"/<>&\u2028😀", "a": "", "": "x"}}}}},
		&clientv1.ClientFrame{Kind: &clientv1.ClientFrame_Sync{Sync: &clientv1.Sync{PageLimit: -5, Cursors: []*clientv1.Cursor{{}, {Have: 1 << 62}}}}},
		&clientv1.ServerFrame{Kind: &clientv1.ServerFrame_SyncResult{SyncResult: &clientv1.SyncResult{Digest: 1<<64 - 1, Full: true}}},
		&clientv1.ServerFrame{Kind: &clientv1.ServerFrame_Receipt{Receipt: &clientv1.Receipt{UnreadCount: &unread}}},
		&clientv1.ServerFrame{Kind: &clientv1.ServerFrame_Deliver{Deliver: &clientv1.Deliver{Entries: []*clientv1.Entry{
			{Seq: 1, Kind: clientv1.EntryKind_ENTRY_KIND_CONVERSATION_CHANGE, ConversationChange: &clientv1.ConversationChange{Name: &name, Closed: &closed}},
			{Seq: 1<<53 - 1, MessageId: 1<<63 - 1, Content: &clientv1.Content{Value: &clientv1.Content_Text{}}},
			{MemberChange: &clientv1.MemberChange{UserIds: []string{"a", "b"}, Role: clientv1.Role_ROLE_OWNER}},
		}}}},
	}
}

func TestJSONFollowsTheMapping(t *testing.T) {
	for i, m := range samples() {
		got, err := appendJSON(nil, m.ProtoReflect())
		if err != nil {
			t.Fatal(err)
		}
		if Size(JSON, m) != len(got) {
			t.Errorf("%d: Size() = %d, want %d", i, Size(JSON, m), len(got))
		}
		if Size(Proto, m) != proto.Size(m) {
			t.Errorf("%d: Size() in binary is wrong", i)
		}
		theirs, err := protojson.Marshal(m)
		if err != nil {
			t.Fatal(err)
		}
		if a, b := generic(t, got), generic(t, theirs); a != b {
			t.Errorf("%d:\n%s\nwant\n%s", i, a, b)
		}
		back := m.ProtoReflect().New().Interface()
		if err := protojson.Unmarshal(got, back); err != nil || !proto.Equal(m, back) {
			t.Errorf("%d: %v comes back as %v (%v)", i, m, back, err)
		}
	}
}

// generic returns JSON in a form that only depends on its meaning.
func generic(t *testing.T, in []byte) string {
	t.Helper()
	var v any
	if err := json.Unmarshal(in, &v); err != nil {
		t.Fatalf("%v in %s", err, in)
	}
	out, _ := json.Marshal(v)
	return string(out)
}

func TestEncodeRefusesBadUTF8(t *testing.T) {
	frame := &clientv1.ServerFrame{Kind: &clientv1.ServerFrame_Head{Head: &clientv1.Head{ConversationId: "\xff"}}}
	for _, enc := range []Encoding{Proto, JSON} {
		out, err := AppendFrame([]byte("before"), enc, frame)
		if err == nil || string(out) != "before" {
			t.Errorf("%v: %q, %v; want what was before and an error", enc, out, err)
		}
	}
}

func BenchmarkEncodeDeliverJSON(b *testing.B) {
	frame := &clientv1.ServerFrame{Kind: &clientv1.ServerFrame_Deliver{Deliver: &clientv1.Deliver{ConversationId: "g_301234567890123776", Entries: []*clientv1.Entry{{
		Seq: 1000, PrevSeq: 999, Kind: clientv1.EntryKind_ENTRY_KIND_MESSAGE, MessageId: 301234567890123776, Sender: "alice", ServerTimeMs: 1795975200000,
		ClientMessageId: "5f0c6f0e-8a5b-4c1e-9d27-3b1f6a2e7c01", Countable: true,
		Content: &clientv1.Content{Value: &clientv1.Content_Text{Text: strings.Repeat("a", 128)}},
	}}}}}
	b.ReportAllocs()
	for b.Loop() {
		if _, err := EncodeServer(JSON, frame); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkDecodeSendJSON(b *testing.B) {
	in := []byte(`{"id":3,"send":{"toUser":"bob","clientMessageId":"5f0c6f0e-8a5b-4c1e-9d27-3b1f6a2e7c01","content":{"text":"hello"}}}`)
	b.ReportAllocs()
	for b.Loop() {
		if err := DecodeClientEnvelope(JSON, in, ServerLimits(JSON), func(*clientv1.ClientFrame) error { return nil }); err != nil {
			b.Fatal(err)
		}
	}
}

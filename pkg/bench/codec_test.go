package bench

import (
	"bytes"
	"testing"

	"google.golang.org/protobuf/proto"
	"pgregory.net/rapid"

	"github.com/imdhq/imd/sdk/go/gen/clientv1"
	"github.com/imdhq/imd/sdk/go/protocol"
)

var (
	anyText = rapid.OneOf(rapid.Just(""), rapid.StringMatching(`[a-z]{1,40}`), rapid.StringN(0, 200, 1000))
	anyInt  = rapid.OneOf(rapid.Int64Range(0, 300), rapid.Int64())
)

// What is written by hand says what the generated code would say, in as many
// bytes; fields may stand in another order.
func TestSendIsWrittenAsGenerated(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		s := sendOut{conv: rapid.StringMatching(`[dg]_[a-z0-9]{1,60}`).Draw(t, "conv"), text: []byte(anyText.Draw(t, "text")),
			resend: rapid.Bool().Draw(t, "resend"), runStart: rapid.Bool().Draw(t, "start")}
		if rapid.Bool().Draw(t, "direct") {
			s.conv, s.user = "", "bob"
		}
		copy(s.cmid[:], "5f0c6f0e-8a5b-4c1e-9d27-3b1f6a2e7c01")
		id := rapid.Uint32().Draw(t, "id")
		want := s.message(id)
		env := s.append([]byte("x"), id)
		slow, err := protocol.AppendFrame(nil, protocol.Proto, want)
		if err != nil || env[0] != 'x' || len(env)-1 != len(slow) {
			t.Fatalf("%d bytes, want %d, %v", len(env)-1, len(slow), err)
		}
		err = protocol.DecodeClientEnvelope(protocol.Proto, env[1:], protocol.Limits{}, func(got *clientv1.ClientFrame) error {
			if !proto.Equal(got, want) {
				t.Fatalf("got  %v\nwant %v", got, want)
			}
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
	})
}

func TestAckIsWrittenAsGenerated(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		ranges := rapid.SliceOfN(rapid.Custom(func(t *rapid.T) ackRange {
			return ackRange{anyASCII.Draw(t, "conv"), anyInt.Draw(t, "after"), anyInt.Draw(t, "seq")}
		}), 0, 20).Draw(t, "ranges")
		want, err := protocol.AppendFrame(nil, protocol.Proto, ackMessage(ranges))
		if err != nil {
			t.Fatal(err)
		}
		if got := appendAck(nil, ranges); !bytes.Equal(got, want) {
			t.Fatalf("got  %x\nwant %x", got, want)
		}
	})
}

var anyASCII = rapid.StringMatching(`[a-z0-9_]{0,40}`)

// What the generated code writes is read by hand as it was meant.
func TestSendAckIsReadAsGenerated(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		m := &clientv1.SendAck{ClientMessageId: anyASCII.Draw(t, "cmid"), Status: clientv1.Ack(rapid.Int32Range(0, 5).Draw(t, "status")),
			ConversationId: anyASCII.Draw(t, "conv"), MessageId: anyInt.Draw(t, "mid"), Seq: anyInt.Draw(t, "seq"), PrevSeq: anyInt.Draw(t, "prev"),
			ServerTimeMs: anyInt.Draw(t, "at"), Duplicate: rapid.Bool().Draw(t, "dup")}
		if rapid.Bool().Draw(t, "error") {
			m.Error = &clientv1.Error{Code: "unavailable", Reason: anyASCII.Draw(t, "reason"), Retryable: true, RetryAfterMs: rapid.Uint32().Draw(t, "after"), Message: anyText.Draw(t, "text")}
		}
		id := rapid.Uint32().Draw(t, "id")
		gotID, kind, body := readFrame(t, &clientv1.ServerFrame{Id: id, Kind: &clientv1.ServerFrame_SendAck{SendAck: m}})
		var got, want ackIn
		if gotID != id || kind != kindSendAck || !got.parse(body) {
			t.Fatalf("id %d, kind %d", gotID, kind)
		}
		want.from(m)
		if string(got.cmid) != string(want.cmid) || string(got.conv) != string(want.conv) || string(got.reason) != string(want.reason) ||
			got.status != want.status || got.mid != want.mid || got.seq != want.seq || got.prev != want.prev || got.at != want.at ||
			got.duplicate != want.duplicate || got.retryMs != want.retryMs {
			t.Fatalf("got %+v\nwant %+v", got, want)
		}
	})
}

func readFrame(t interface{ Fatalf(string, ...any) }, m *clientv1.ServerFrame) (uint32, int, []byte) {
	env, err := protocol.AppendFrame(nil, protocol.Proto, m)
	if err != nil {
		t.Fatalf("%v", err)
	}
	frame, n := cutFrame(env)
	if n != len(env) {
		t.Fatalf("%d of %d bytes are the frame", n, len(env))
	}
	return head(frame)
}

var anyEntry = rapid.Custom(func(t *rapid.T) *clientv1.Entry {
	e := &clientv1.Entry{Seq: anyInt.Draw(t, "seq"), PrevSeq: anyInt.Draw(t, "prev"), Kind: clientv1.EntryKind(rapid.Int32Range(0, 8).Draw(t, "kind")),
		MessageId: anyInt.Draw(t, "mid"), ClientMessageId: anyASCII.Draw(t, "cmid"), Sender: anyASCII.Draw(t, "sender"), ServerTimeMs: anyInt.Draw(t, "at"),
		TargetSeq: anyInt.Draw(t, "target"), Countable: rapid.Bool().Draw(t, "count")}
	switch rapid.IntRange(0, 5).Draw(t, "content") {
	case 0, 1:
		e.Content = &clientv1.Content{Value: &clientv1.Content_Text{Text: anyText.Draw(t, "text")}}
	case 2:
		e.Content = &clientv1.Content{Type: rapid.SampledFrom([]string{"text", "x"}).Draw(t, "type"), Value: &clientv1.Content_Text{Text: anyText.Draw(t, "text")}}
	case 3:
		e.Content = &clientv1.Content{Type: "x", Value: &clientv1.Content_Data{Data: []byte{1, 2}}, Attributes: map[string]string{"a": "b"}}
	case 4:
		e.MemberChange = &clientv1.MemberChange{Action: clientv1.MemberAction_MEMBER_ACTION_ADDED, UserIds: []string{"a", "b"}, Start: anyInt.Draw(t, "start")}
	}
	return e
})

func TestDeliverIsReadAsGenerated(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		m := &clientv1.Deliver{ConversationId: anyASCII.Draw(t, "conv"), Entries: rapid.SliceOfN(anyEntry, 0, 5).Draw(t, "entries")}
		_, kind, body := readFrame(t, &clientv1.ServerFrame{Kind: &clientv1.ServerFrame_Deliver{Deliver: m}})
		if kind != kindDeliver {
			t.Fatalf("kind %d", kind)
		}
		var e entryIn
		i := 0
		ok := eachEntry(body, &e, func(conv []byte, got *entryIn) {
			var want entryIn
			want.from(m.Entries[i])
			if string(conv) != m.ConversationId || got.seq != want.seq || got.prev != want.prev || got.kind != want.kind || got.mid != want.mid ||
				string(got.cmid) != string(want.cmid) || string(got.sender) != string(want.sender) || got.plain != want.plain ||
				want.plain && string(got.text) != string(want.text) {
				t.Fatalf("got %+v\nwant %+v", got, want)
			}
			sameEntry(t, got.entry(), m.Entries[i])
			i++
		})
		if !ok || i != len(m.Entries) {
			t.Fatalf("%d of %d entries, %v", i, len(m.Entries), ok)
		}
	})
}

// sameEntry compares what the timeline and the recording look at.
func sameEntry(t *rapid.T, got, want *clientv1.Entry) {
	if got == nil {
		t.Fatalf("no entry for %v", want)
	}
	got, want = proto.CloneOf(got), proto.CloneOf(want)
	if want.Kind == clientv1.EntryKind_ENTRY_KIND_MESSAGE && want.TargetSeq == 0 || got.TargetSeq == 0 {
		if hashOf(got.Kind, 0, got.Content) != hashOf(want.Kind, 0, want.Content) {
			t.Fatalf("another content: %v and %v", got, want)
		}
	}
	for _, e := range []*clientv1.Entry{got, want} {
		e.Content, e.ServerTimeMs, e.Countable, e.TargetSeq = nil, 0, false, 0
		if e.Kind == clientv1.EntryKind_ENTRY_KIND_MESSAGE {
			e.MemberChange = nil
		}
	}
	if !proto.Equal(got, want) {
		t.Fatalf("got %v\nwant %v", got, want)
	}
}

// Whatever comes, nothing panics, and nothing is read beyond its end.
func FuzzFramesFromAnywhere(f *testing.F) {
	env, _ := protocol.AppendFrame(nil, protocol.Proto, &clientv1.ServerFrame{Id: 7, Kind: &clientv1.ServerFrame_SendAck{SendAck: &clientv1.SendAck{Seq: 1}}})
	f.Add(env)
	f.Add([]byte{5, 0x22, 3, 0x12, 1, 8})
	f.Fuzz(func(t *testing.T, data []byte) {
		for len(data) > 0 {
			frame, n := cutFrame(data)
			if n == 0 {
				return
			}
			_, kind, body := head(frame)
			switch kind {
			case kindSendAck:
				new(ackIn).parse(body)
			case kindDeliver:
				eachEntry(body, new(entryIn), func(_ []byte, e *entryIn) { e.entry() })
			}
			data = data[n:]
		}
	})
}

// A frame of two kinds is left to the generated code.
func TestFramesOfTwoKindsAreNotReadByHand(t *testing.T) {
	ack, _ := proto.Marshal(&clientv1.ServerFrame{Id: 3, Kind: &clientv1.ServerFrame_SendAck{SendAck: &clientv1.SendAck{}}})
	ping, _ := proto.Marshal(&clientv1.ServerFrame{Kind: &clientv1.ServerFrame_Ping{Ping: &clientv1.Ping{}}})
	if _, kind, _ := head(append(ack, ping...)); kind != 0 {
		t.Errorf("kind %d", kind)
	}
}

package conformance

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/imdhq/imd/pkg/testenv"
	"github.com/imdhq/imd/sdk/go/gen/clientv1"
	"github.com/imdhq/imd/sdk/go/protocol"
)

func init() {
	statements = append(statements,
		statement{14, "a resend gets the first answer", nil, false, resend},
		statement{15, "an id with other content is id_reused; of another user or conversation, a new message", nil, false, idScope},
		statement{16, "500 sends without waiting keep their order", nil, false, pipelined},
		statement{number: 17, text: "after ACK_RETRY nothing overtakes", waits: true, test: behind},
		statement{19, "content of the limit is stored, a byte more is too_large", nil, false, contentLimit},
	)
}

func resend(t *testing.T, s *suite) {
	a, b := s.login(t, "ann", "d"), s.login(t, "bob", "d")
	var sends []*clientv1.Send
	var first []*clientv1.SendAck
	for i := range 3 {
		sends = append(sends, testenv.ToUser(s.user("bob"), fmt.Sprint("m", i)))
		first = append(first, a.MustSend(sends[i]))
	}
	a.Cut()
	a = s.login(t, "ann", "d")
	other := s.login(t, "ann", "d2")
	for _, c := range []*testenv.Client{a, other} {
		for _, i := range []int{0, 0, 0, 1, 2, 0} {
			again := &clientv1.Send{To: sends[i].To, ClientMessageId: sends[i].ClientMessageId, Content: sends[i].Content, Resend: true}
			got := c.Decide(again)
			if got.Status != clientv1.Ack_ACK_OK || !got.Duplicate || got.MessageId != first[i].MessageId || got.Seq != first[i].Seq ||
				got.PrevSeq != first[i].PrevSeq || got.ServerTimeMs != first[i].ServerTimeMs || got.ConversationId != first[i].ConversationId {
				t.Fatalf("the resend of %d got %v, first %v", i, got, first[i])
			}
		}
	}
	all, _ := b.Walk(first[0].ConversationId, 100, false)
	if texts(all) != "m0 m1 m2" {
		t.Errorf("history has %q", texts(all))
	}
	for i := range 3 {
		b.Entry("a deliver", func(_ string, e *clientv1.Entry) bool { return e.Content.GetText() == fmt.Sprint("m", i) })
	}
	if f := b.TakeWithin(300*time.Millisecond, func(f *clientv1.ServerFrame) bool { return f.GetDeliver() != nil }); f != nil {
		t.Errorf("delivered twice: %v", f)
	}
}

func idScope(t *testing.T, s *suite) {
	a, c := s.login(t, "ann", "d"), s.login(t, "carl", "d")
	id := uuid.Must(uuid.NewV7()).String()
	send := func(from *testenv.Client, to, text string) *clientv1.SendAck {
		m := testenv.ToUser(s.user(to), text)
		m.ClientMessageId = id
		return from.Decide(m)
	}
	one := send(a, "bob", "x")
	if one.Status != clientv1.Ack_ACK_OK {
		t.Fatal(one)
	}
	if got := send(a, "bob", "y"); got.Status != clientv1.Ack_ACK_FAIL || got.Error.Reason != "id_reused" {
		t.Errorf("other content: %v", got)
	}
	for name, got := range map[string]*clientv1.SendAck{"another user": send(c, "bob", "x"), "another conversation": send(a, "dan", "x")} {
		if got.Status != clientv1.Ack_ACK_OK || got.Duplicate || got.MessageId == one.MessageId {
			t.Errorf("%s: %v", name, got)
		}
	}
}

func pipelined(t *testing.T, s *suite) {
	a := s.login(t, "ann", "d")
	b := s.login(t, "bob", "d")
	var sends []*clientv1.Send
	for i := range 500 {
		m := testenv.ToUser(s.user("bob"), fmt.Sprint(i))
		m.ClientMessageId = uuid.NewString()
		sends = append(sends, m)
	}
	seqs := a.SendAll(sends)
	for i := 1; i < len(seqs); i++ {
		if seqs[i] <= seqs[i-1] {
			t.Fatalf("send %d has seq %d behind %d", i, seqs[i], seqs[i-1])
		}
	}
	all, _ := b.Walk(protocol.DirectID(s.user("ann"), s.user("bob")), 500, false)
	for i, e := range all {
		if e.Content.GetText() != fmt.Sprint(i) {
			t.Fatalf("history has %q at %d", e.Content.GetText(), i)
		}
	}
	if len(all) != 500 {
		t.Errorf("history has %d entries", len(all))
	}
}

// behind goes over the user's rate, which refuses with ACK_RETRY, and looks at
// what comes after the refusal.
func behind(t *testing.T, s *suite) {
	a := s.login(t, "ann", "d")
	frames := map[uint32]*clientv1.Send{}
	first := uint32(0)
	for i := 0; first == 0 && i < 2000; i += 32 {
		var batch []*clientv1.ClientFrame
		for j := range 32 {
			f := sendFrame(a.ID(), testenv.ToUser(s.user("bob"), fmt.Sprint(i+j)))
			frames[f.Id] = f.GetSend()
			batch = append(batch, f)
		}
		a.Write(batch...)
		for _, f := range batch {
			ack := a.Answer(f.Id).GetSendAck()
			switch {
			case first == 0 && ack.Status == clientv1.Ack_ACK_RETRY:
				if first = f.Id; ack.Error.Reason != "rate_limited" || ack.Error.RetryAfterMs == 0 {
					t.Errorf("refused with %v", ack)
				}
			case first != 0 && (ack.Status != clientv1.Ack_ACK_RETRY || ack.Error.Reason != "behind"):
				t.Fatalf("after the refusal: %v", ack)
			}
		}
	}
	if first == 0 {
		t.Fatal("nothing was refused")
	}
	time.Sleep(1500 * time.Millisecond)
	late := testenv.ToUser(s.user("bob"), "late")
	if ack := a.Send(late); ack.Status != clientv1.Ack_ACK_RETRY || ack.Error.Reason != "behind" {
		t.Errorf("a later one before the refused one: %v", ack)
	}
	if ack := a.Decide(testenv.ToUser(s.user("carl"), "x")); ack.Status != clientv1.Ack_ACK_OK {
		t.Errorf("another conversation is held back: %v", ack)
	}
	again := frames[first]
	again.Resend = true
	if ack := a.Decide(again); ack.Status != clientv1.Ack_ACK_OK {
		t.Errorf("the refused one again: %v", ack)
	}
	if ack := a.Decide(late); ack.Status != clientv1.Ack_ACK_OK {
		t.Errorf("a later one after it: %v", ack)
	}
}

func contentLimit(t *testing.T, s *suite) {
	a := s.login(t, "ann", "d")
	for name, content := range map[string]func(n int) *clientv1.Content{
		"text": func(n int) *clientv1.Content {
			return &clientv1.Content{Type: "text", Value: &clientv1.Content_Text{Text: strings.Repeat("x", n-4)}}
		},
		"data": func(n int) *clientv1.Content {
			return &clientv1.Content{Type: "blob", Value: &clientv1.Content_Data{Data: make([]byte, n-4)}}
		},
		"attributes": func(n int) *clientv1.Content {
			return &clientv1.Content{Type: "text", Value: &clientv1.Content_Text{Text: "hi"}, Attributes: map[string]string{"k": strings.Repeat("v", n-7)}}
		},
	} {
		ok := testenv.ToUser(s.user("bob"), "")
		ok.Content = content(16384)
		if ack := a.Decide(ok); ack.Status != clientv1.Ack_ACK_OK {
			t.Errorf("%s of the limit: %v", name, ack)
		}
		large := testenv.ToUser(s.user("bob"), "")
		large.Content = content(16385)
		if ack := a.Decide(large); ack.Status != clientv1.Ack_ACK_FAIL || ack.Error.Reason != "too_large" {
			t.Errorf("%s above it: %v", name, ack)
		}
	}
	named := func(id string) *clientv1.Send {
		return &clientv1.Send{To: &clientv1.Send_ToUser{ToUser: s.user("bob")}, ClientMessageId: id, Content: testenv.Text("x")}
	}
	for name, m := range map[string]*clientv1.Send{
		"no id":            named("x"),
		"an upper-case id": named(strings.ToUpper(uuid.NewString())),
		"version 1":        named("5f0c6f0e-8a5b-1c1e-9d27-3b1f6a2e7c01"),
		"version 5":        named("5f0c6f0e-8a5b-5c1e-9d27-3b1f6a2e7c01"),
		"version 8":        named("5f0c6f0e-8a5b-8c1e-9d27-3b1f6a2e7c01"),
		"no content":       {To: &clientv1.Send_ToUser{ToUser: s.user("bob")}},
		"no target":        {Content: testenv.Text("x")},
		"oneself":          testenv.ToUser(s.user("ann"), "x"),
		"U+0000":           testenv.ToUser(s.user("bob"), "a\x00b"),
	} {
		if ack := a.Decide(m); ack.Status != clientv1.Ack_ACK_FAIL || ack.Error.Reason != "bad_request" {
			t.Errorf("%s: %v", name, ack)
		}
	}
	for _, id := range []string{"a/b", "a:b", "..%2f", "", "a b", "ü", strings.Repeat("x", 65), "a\nb", "*", "{x}"} {
		m := testenv.ToUser(id, "x")
		if ack := a.Decide(m); ack.Status != clientv1.Ack_ACK_FAIL || ack.Error.Reason != "invalid_id" && id != "" {
			t.Errorf("to %q: %v", id, ack)
		}
	}
	alive(t, a)
}

package gateway

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/coder/websocket"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"google.golang.org/protobuf/proto"

	"github.com/imdhq/imd/pkg/delivery"
	"github.com/imdhq/imd/pkg/im"
	"github.com/imdhq/imd/pkg/testenv"
	v1 "github.com/imdhq/imd/proto/gen/internalv1"
	"github.com/imdhq/imd/sdk/go/gen/clientv1"
	"github.com/imdhq/imd/sdk/go/protocol"
)

func sendOf(id uint32, s *clientv1.Send) *clientv1.ClientFrame {
	return &clientv1.ClientFrame{Id: id, Kind: &clientv1.ClientFrame_Send{Send: s}}
}

func ackOf(conv string, after, seq int64) *clientv1.ClientFrame {
	return &clientv1.ClientFrame{Kind: &clientv1.ClientFrame_Ack{Ack: &clientv1.DeliveryAck{
		Ranges: []*clientv1.AckRange{{ConversationId: conv, AfterSeq: after, Seq: seq}}}}}
}

func numbered(n int, to string) *clientv1.Send {
	s := testenv.ToUser(to, fmt.Sprint("m", n))
	s.ClientMessageId = uuidOf(n)
	return s
}

func TestAMessageGoesToEverySessionButTheSender(t *testing.T) {
	w := begin(t)
	both(t, func(t *testing.T, enc protocol.Encoding) {
		a, b := "a-"+enc.String(), "b-"+enc.String()
		ann, phone := w.session(t, enc, a, "web"), w.session(t, enc, a, "phone")
		bobs := []*testenv.Client{w.session(t, protocol.Proto, b, "d1"), w.session(t, protocol.JSON, b, "d2")}
		ack := ann.MustSend(testenv.ToUser(b, "hello"))
		conv := protocol.DirectID(a, b)
		if ack.ConversationId != conv || ack.Seq != 1 || ack.MessageId != 100 || ack.Duplicate {
			t.Errorf("answered %v", ack)
		}
		for _, c := range append(bobs, phone) {
			e := c.Entry("the message", func(id string, e *clientv1.Entry) bool { return id == conv })
			if e.Content.GetText() != "hello" || e.Sender != a || e.Seq != 1 || e.ClientMessageId != ack.ClientMessageId {
				t.Errorf("delivered %v", e)
			}
		}
		if f := ann.TakeWithin(200*time.Millisecond, isDeliver); f != nil {
			t.Errorf("the sending session got %v", f)
		}
		bobs[0].Write(ackOf(conv, 0, 1))
		eventually(t, "state hears of the ack", func() bool {
			w.state.mu.Lock()
			defer w.state.mu.Unlock()
			for _, m := range w.state.marks {
				if m.ConversationId == conv && m.UserId == b && m.Seq == 1 && m.AfterSeq == 0 && !m.Read {
					return true
				}
			}
			return false
		})
		f := bobs[0].Request(&clientv1.ClientFrame{Kind: &clientv1.ClientFrame_Read{Read: &clientv1.Read{ConversationId: conv, Seq: 1}}})
		if r := f.GetReceipt(); r.GetReadSeq() != 1 || r.UnreadCount == nil {
			t.Errorf("read is answered with %v", f)
		}
		again := ann.Send(&clientv1.Send{To: &clientv1.Send_ConversationId{ConversationId: conv}, ClientMessageId: ack.ClientMessageId,
			Resend: true, Content: testenv.Text("hello")})
		if again.Status != clientv1.Ack_ACK_OK || !again.Duplicate || again.Seq != 1 {
			t.Errorf("the resend is answered with %v", again)
		}
	})
}

func TestFramesOfOneEnvelopeAreTakenInOrder(t *testing.T) {
	w := begin(t)
	both(t, func(t *testing.T, enc protocol.Encoding) {
		u := "u-" + enc.String()
		c := testenv.Dial(t, w.base(), enc)
		frames := []*clientv1.ClientFrame{helloWith(w.token(u))}
		for i := range 60 {
			frames = append(frames, sendOf(uint32(100+i), numbered(i, "peer")))
		}
		c.Write(frames...)
		if f := c.Answer(7); f.GetWelcome() == nil {
			t.Fatalf("hello is answered with %v", f)
		}
		for i := range 60 {
			a := c.Take("an ack", func(f *clientv1.ServerFrame) bool { return f.GetSendAck() != nil })
			if a.Id != uint32(100+i) || a.GetSendAck().Seq != int64(i+1) {
				t.Fatalf("answer %d is %v", i, a)
			}
		}
	})
}

func TestIllFormedSendsFailAndTheConnectionStays(t *testing.T) {
	w := begin(t)
	long := strings.Repeat("x", protocol.MaxContent)
	for name, tt := range map[string]struct {
		send   *clientv1.Send
		reason string
	}{
		"no target":        {&clientv1.Send{ClientMessageId: uuidOf(1), Content: testenv.Text("x")}, "bad_request"},
		"oneself":          {numbered(1, "ann"), "bad_request"},
		"bad user":         {numbered(1, "a b"), "invalid_id"},
		"bad conversation": {&clientv1.Send{To: &clientv1.Send_ConversationId{ConversationId: "x"}, ClientMessageId: uuidOf(1), Content: testenv.Text("x")}, "invalid_id"},
		"no uuid":          {&clientv1.Send{To: &clientv1.Send_ToUser{ToUser: "bob"}, ClientMessageId: "1", Content: testenv.Text("x")}, "bad_request"},
		"a uuid of 8":      {&clientv1.Send{To: &clientv1.Send_ToUser{ToUser: "bob"}, ClientMessageId: "00000000-0000-8000-8000-000000000001", Content: testenv.Text("x")}, "bad_request"},
		"no content":       {&clientv1.Send{To: &clientv1.Send_ToUser{ToUser: "bob"}, ClientMessageId: uuidOf(1)}, "bad_request"},
		"too large":        {&clientv1.Send{To: &clientv1.Send_ToUser{ToUser: "bob"}, ClientMessageId: uuidOf(1), Content: testenv.Text(long + "x")}, "too_large"},
		"recall":           {&clientv1.Send{To: &clientv1.Send_ToUser{ToUser: "bob"}, ClientMessageId: uuidOf(1), Kind: clientv1.EntryKind_ENTRY_KIND_RECALL}, "unsupported"},
		"a system's kind":  {&clientv1.Send{To: &clientv1.Send_ToUser{ToUser: "bob"}, ClientMessageId: uuidOf(1), Kind: clientv1.EntryKind_ENTRY_KIND_MEMBER_CHANGE, Content: testenv.Text("x")}, "bad_request"},
	} {
		t.Run(name, func(t *testing.T) {
			both(t, func(t *testing.T, enc protocol.Encoding) {
				c := w.session(t, enc, "ann", "d")
				a := c.Request(sendOf(0, tt.send)).GetSendAck()
				if a.GetStatus() != clientv1.Ack_ACK_FAIL || a.GetError().GetReason() != tt.reason || a.ClientMessageId != tt.send.ClientMessageId {
					t.Errorf("answered %v, want %s", a, tt.reason)
				}
				c.MustSend(&clientv1.Send{To: &clientv1.Send_ToUser{ToUser: "bob"}, Content: testenv.Text(long[:protocol.MaxContent-4])})
			})
		})
	}
}

func TestRequestsThatAreWrongGetAnError(t *testing.T) {
	w := begin(t)
	c := w.session(t, protocol.JSON, "ann", "d")
	for name, tt := range map[string]struct {
		frame  *clientv1.ClientFrame
		reason string
	}{
		"no kind":         {&clientv1.ClientFrame{}, "unknown_kind"},
		"typing":          {&clientv1.ClientFrame{Kind: &clientv1.ClientFrame_Typing{Typing: &clientv1.Typing{}}}, "invalid_id"},
		"foreign typing":  {&clientv1.ClientFrame{Kind: &clientv1.ClientFrame_Typing{Typing: &clientv1.Typing{ConversationId: "g_1"}}}, "not_member"},
		"watched id":      {watchFrame([]string{"no user"}), "invalid_id"},
		"watched group":   {watchFrame(nil, ""), "invalid_id"},
		"201 watched":     {watchFrame(slices.Repeat([]string{"u"}, 201)), "too_large"},
		"9 conversations": {watchFrame(nil, slices.Repeat([]string{"g_1"}, 9)...), "too_large"},
		"stranger":        {watchFrame([]string{"zoe"}), "forbidden"},
		"foreign group":   {watchFrame(nil, "g_1"), "forbidden"},
		"history limit":   {&clientv1.ClientFrame{Kind: &clientv1.ClientFrame_History{History: &clientv1.History{ConversationId: "g_1", Limit: -1}}}, "bad_request"},
		"history id":      {&clientv1.ClientFrame{Kind: &clientv1.ClientFrame_History{History: &clientv1.History{ConversationId: ""}}}, "invalid_id"},
		"foreign history": {&clientv1.ClientFrame{Kind: &clientv1.ClientFrame_History{History: &clientv1.History{ConversationId: "g_1"}}}, "not_member"},
		"page limit":      {&clientv1.ClientFrame{Kind: &clientv1.ClientFrame_Sync{Sync: &clientv1.Sync{PageLimit: -1}}}, "bad_request"},
		"257 cursors":     {&clientv1.ClientFrame{Kind: &clientv1.ClientFrame_Sync{Sync: &clientv1.Sync{Cursors: make257()}}}, "bad_request"},
		"read":            {&clientv1.ClientFrame{Kind: &clientv1.ClientFrame_Read{Read: &clientv1.Read{ConversationId: "g_1", Seq: -1}}}, "bad_request"},
		"foreign read":    {&clientv1.ClientFrame{Kind: &clientv1.ClientFrame_Read{Read: &clientv1.Read{ConversationId: "g_1", Seq: 1}}}, "not_member"},
		"ack":             {ackOf("g_1", 5, 5), "bad_request"},
	} {
		t.Run(name, func(t *testing.T) {
			if f := c.Request(tt.frame); f.GetError().GetReason() != tt.reason {
				t.Errorf("answered %v, want %s", f, tt.reason)
			}
		})
	}
	if f := c.Request(&clientv1.ClientFrame{Kind: &clientv1.ClientFrame_Sync{Sync: &clientv1.Sync{}}}); f.GetSyncResult() == nil {
		t.Errorf("the connection answers %v", f)
	}
}

func make257() []*clientv1.Cursor {
	var out []*clientv1.Cursor
	for i := range 257 {
		out = append(out, &clientv1.Cursor{ConversationId: fmt.Sprint("g_", i)})
	}
	return out
}

func TestAfterARetryLaterSendsAreBehind(t *testing.T) {
	w := begin(t)
	var sick atomic.Bool
	w.state.set(func(s *fakeState) {
		s.refuse = func(x *v1.RunSend) string {
			if sick.Load() && x.ClientMessageId == uuidOf(1) {
				return "busy"
			}
			return ""
		}
	})
	both(t, func(t *testing.T, enc protocol.Encoding) {
		c := w.session(t, enc, "ann-"+enc.String(), "d")
		sick.Store(true)
		for i := range 5 {
			c.Write(sendOf(uint32(100+i), numbered(i, "bob")))
		}
		want := []string{"", "busy", "behind", "behind", "behind"}
		for i, reason := range want {
			a := c.Answer(uint32(100 + i)).GetSendAck()
			if a.GetError().GetReason() != reason {
				t.Fatalf("send %d is answered with %v, want %q", i, a, reason)
			}
		}
		if a := c.Send(numbered(9, "carl")); a.Status != clientv1.Ack_ACK_OK {
			t.Errorf("another conversation waits: %v", a)
		}
		sick.Store(false)
		if a := c.Send(numbered(3, "bob")); a.GetError().GetReason() != "behind" {
			t.Errorf("the wrong send: %v", a)
		}
		for i := 1; i < 5; i++ {
			c.Write(sendOf(uint32(200+i), numbered(i, "bob")))
		}
		for i := 1; i < 5; i++ {
			if a := c.Answer(uint32(200 + i)).GetSendAck(); a.GetSeq() != int64(i+1) {
				t.Errorf("resend %d is answered with %v", i, a)
			}
		}
	})
}

func TestWithAStalledStoreEachSendIsAnsweredInTime(t *testing.T) {
	t.Parallel()
	w := begin(t)
	both(t, func(t *testing.T, enc protocol.Encoding) {
		release := w.state.stall()
		defer release()
		c := w.session(t, enc, "ann-"+enc.String(), "d")
		took := testenv.Took(func() {
			for i := range 20 {
				c.Write(sendOf(uint32(100+i), numbered(i, fmt.Sprint("p", i%3))))
			}
			for i := range 20 {
				a := c.Answer(uint32(100 + i)).GetSendAck()
				if a.GetStatus() != clientv1.Ack_ACK_RETRY || !a.Error.Retryable {
					t.Errorf("answered %v", a)
				}
			}
		})
		if took > 2*time.Second {
			t.Errorf("the answers took %v", took)
		}
	})
}

// 1,000 sends at once against a stalled store: the gateway stops reading, and
// afterwards all are stored in order by resending.
func TestAFloodAgainstAStalledStore(t *testing.T) {
	t.Parallel()
	w := begin(t, func(c *Config) {
		c.Limits.ConnectionRate, c.Limits.ConnectionBurst = 1e6, 1e6
		c.Limits.UserRate, c.Limits.UserBurst = 1e6, 1e6
	})
	release := w.state.stall()
	defer release()
	c := w.session(t, protocol.Proto, "ann", "d")
	const n = 1000
	written := make(chan error, 1)
	go func() {
		for i := range n {
			if err := c.TryWrite(sendOf(uint32(1000+i), numbered(i, "bob"))); err != nil {
				written <- err
				return
			}
		}
		written <- nil
	}()
	eventually(t, "the reader stops", func() bool {
		s := w.g.hub.all()[0]
		s.mu.Lock()
		defer s.mu.Unlock()
		return s.runs.Unanswered() == protocol.ServerSendWindow && s.stalled.Load()
	})
	release()
	if err := <-written; err != nil {
		t.Fatal(err)
	}
	ok := map[string]int64{}
	var refused bool
	for i := range n {
		a := c.Answer(uint32(1000 + i)).GetSendAck()
		if a.Status == clientv1.Ack_ACK_OK {
			ok[a.ClientMessageId] = a.Seq
		} else if a.Status == clientv1.Ack_ACK_RETRY {
			refused = true
		} else {
			t.Fatalf("send %d: %v", i, a)
		}
	}
	for i := 0; refused && i < n; i++ {
		if ok[uuidOf(i)] == 0 {
			a := c.MustSend(numbered(i, "bob"))
			ok[a.ClientMessageId] = a.Seq
		}
	}
	for i := 1; i < n; i++ {
		if ok[uuidOf(i)] <= ok[uuidOf(i-1)] {
			t.Fatalf("send %d has seq %d, the one before %d", i, ok[uuidOf(i)], ok[uuidOf(i-1)])
		}
	}
}

func TestManyRunsGoInOneCall(t *testing.T) {
	now := time.Now()
	w := beginTuned(t, func(g *Gateway) { g.submitter.now = func() time.Time { return now } }) // nothing waits too long
	release := w.state.stall()
	defer release()
	var all []*testenv.Client
	for i := range 40 {
		all = append(all, w.session(t, protocol.Proto, fmt.Sprint("u", i), "d"))
	}
	for i, c := range all {
		c.Write(sendOf(500, numbered(i, "peer")))
	}
	eventually(t, "all have arrived", func() bool {
		n := 0
		for _, s := range w.g.hub.all() {
			s.mu.Lock()
			n += s.runs.Unanswered()
			s.mu.Unlock()
		}
		return n == len(all)
	})
	release()
	eventually(t, "all are stored", func() bool {
		w.state.mu.Lock()
		defer w.state.mu.Unlock()
		return len(w.state.convs) == len(all)
	})
	w.state.mu.Lock()
	calls := slices.Clone(w.state.calls)
	w.state.mu.Unlock()
	if len(calls) > 2*submitCalls {
		t.Errorf("%d calls for 40 sends that waited: %v", len(calls), calls)
	}
	for i, c := range all { // "busy" is the answer if the machine stood still meanwhile
		if a := c.Answer(500).GetSendAck(); a.Status != clientv1.Ack_ACK_OK && a.GetError().GetReason() != "busy" {
			t.Errorf("send %d is answered with %v", i, a)
		}
	}
}

func TestUnacknowledgedEntriesAreDeliveredAgain(t *testing.T) {
	t.Parallel()
	w := begin(t, func(c *Config) { c.RedeliverAfter = 200 * time.Millisecond })
	both(t, func(t *testing.T, enc protocol.Encoding) {
		bob, conv := "bob-"+enc.String(), "g_"+enc.String()
		c := w.session(t, enc, bob, "d")
		w.state.post(conv, "ann", "one", bob)
		is := func(seq int64) func(*clientv1.ServerFrame) bool {
			return func(f *clientv1.ServerFrame) bool { return isDeliver(f) && f.GetDeliver().Entries[0].Seq == seq }
		}
		c.Take("the first", is(1))
		c.Write(ackOf(conv, 0, 1))
		c.Request(&clientv1.ClientFrame{Kind: &clientv1.ClientFrame_Sync{Sync: &clientv1.Sync{}}}) // the ack was read before it
		for c.TakeWithin(time.Millisecond, is(1)) != nil {                                         // what came before the ack
		}
		w.state.post(conv, "ann", "two", bob)
		first := c.Take("the second", is(2))
		for i := range delivery.Redeliveries {
			if f := c.Take("the second again", is(2)); !proto.Equal(f, first) {
				t.Errorf("delivered %v, then, for time %d, %v", first, i+2, f)
			}
		}
		// The next would come after 800 ms, like the last.
		if f := c.TakeWithin(1100*time.Millisecond, isDeliver); f != nil {
			t.Errorf("%v comes once more", f)
		}
	})
}

// One that does not read is closed, and nobody else notices.
func TestAClientThatDoesNotReadIsClosed(t *testing.T) {
	t.Parallel()
	w := begin(t, func(c *Config) { c.WriteTimeout, c.RedeliverAfter = 500*time.Millisecond, 100*time.Millisecond })
	w.g.Limits().SetOff(true)
	both(t, func(t *testing.T, enc protocol.Encoding) {
		p := enc.String()
		conv := "g_" + p
		deaf, _, err := testenv.TryDial(t, w.base(), enc, testenv.DialOptions{Paused: true})
		if err != nil {
			t.Fatal(err)
		}
		deaf.Write(helloWith(w.token("deaf-" + p)))
		good := w.session(t, enc, "good-"+p, "d")
		eventually(t, "both are here", func() bool { return len(w.routesOf("deaf-"+p)) == 1 })
		before := testutil.ToFloat64(w.g.m.closed.WithLabelValues("slow"))
		body := strings.Repeat("x", 8000)
		var worst time.Duration
		for n := 0; len(w.routesOf("deaf-"+p)) == 1; n++ {
			var f *clientv1.ServerFrame
			worst = max(worst, testenv.Took(func() {
				w.state.post(conv, "ann", body, "deaf-"+p, "good-"+p)
				f = good.Take("the deliver", isDeliver)
			}))
			good.Write(ackOf(conv, f.GetDeliver().Entries[0].Seq-1, f.GetDeliver().Entries[0].Seq))
			if n > 100_000 {
				t.Fatal("the one that does not read is never closed")
			}
		}
		if worst > time.Second {
			t.Errorf("another client waited %v", worst)
		}
		eventually(t, "it is counted as slow", func() bool { return testutil.ToFloat64(w.g.m.closed.WithLabelValues("slow")) == before+1 })
	})
}

// One that reads late gets what fitted, then a head, and stays.
func TestASlowReaderGetsHeads(t *testing.T) {
	t.Parallel()
	w := begin(t)
	both(t, func(t *testing.T, enc protocol.Encoding) {
		bob, conv := "bob-"+enc.String(), "g_"+enc.String()
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
		defer cancel()
		ws, _, err := websocket.Dial(ctx, w.base()+protocol.Path, &websocket.DialOptions{Subprotocols: []string{enc.Subprotocol()}})
		if err != nil {
			t.Fatal(err)
		}
		defer ws.CloseNow()
		ws.SetReadLimit(protocol.ClientReadLimit)
		typ := websocket.MessageBinary
		if enc == protocol.JSON {
			typ = websocket.MessageText
		}
		write := func(f *clientv1.ClientFrame) {
			data, err := protocol.EncodeClient(enc, f)
			if err == nil {
				err = ws.Write(ctx, typ, data)
			}
			if err != nil {
				t.Fatal(err)
			}
		}
		write(helloWith(w.token(bob)))
		eventually(t, "it is here", func() bool { return len(w.routesOf(bob)) == 1 })
		body := strings.Repeat("x", 15_000)
		const n = 1200
		for range n {
			w.state.post(conv, "ann", body, bob)
		}
		var last, head int64
		for head < n {
			_, data, err := ws.Read(ctx)
			if err != nil {
				t.Fatalf("after deliver %d and head %d: %v", last, head, err)
			}
			err = protocol.DecodeServerEnvelope(enc, data, protocol.ClientLimits(), func(f *clientv1.ServerFrame) error {
				if h := f.GetHead(); h != nil {
					head = h.Seq
				}
				if d := f.GetDeliver(); d != nil {
					if seq := d.Entries[0].Seq; seq > last+1 {
						t.Errorf("deliver %d after %d", seq, last)
					} else if seq > last { // else again, because nothing is acknowledged
						last = seq
					}
				}
				return nil
			})
			if err != nil {
				t.Fatal(err)
			}
		}
		if last == 0 || last > 200 {
			t.Errorf("the last deliver is %d", last)
		}
		write(&clientv1.ClientFrame{Id: 9, Kind: &clientv1.ClientFrame_History{History: &clientv1.History{ConversationId: conv, AfterSeq: last}}})
		if _, _, err := ws.Read(ctx); err != nil {
			t.Errorf("no answer to history: %v", err)
		}
	})
}

func TestPullModeByTheWindow(t *testing.T) {
	w := begin(t, func(c *Config) { c.WindowEntries = 16 })
	both(t, func(t *testing.T, enc protocol.Encoding) {
		bob, conv := "bob-"+enc.String(), "g_"+enc.String()
		c := w.session(t, enc, bob, "d")
		for range 40 {
			w.state.post(conv, "ann", "x", bob)
		}
		for i := range 16 {
			if f := c.Take("a deliver", isDeliver); f.GetDeliver().Entries[0].Seq != int64(i+1) {
				t.Fatalf("deliver %d is %v", i, f)
			}
		}
		c.Take("the head", func(f *clientv1.ServerFrame) bool { return f.GetHead().GetSeq() == 40 })
		if f := c.TakeWithin(100*time.Millisecond, isDeliver); f != nil {
			t.Errorf("a deliver above the window: %v", f)
		}
		p := c.History(&clientv1.History{ConversationId: conv, AfterSeq: 16})
		if len(p.Entries) != 24 || !p.End {
			t.Errorf("history has %d entries", len(p.Entries))
		}
		c.Write(ackOf(conv, 0, 40))
		eventually(t, "delivers again", func() bool {
			w.state.post(conv, "ann", "y", bob)
			return c.TakeWithin(100*time.Millisecond, func(f *clientv1.ServerFrame) bool {
				return isDeliver(f) && f.GetDeliver().Entries[0].Seq > 40 // not one of before the acknowledgement
			}) != nil
		})
	})
}

func TestSilenceAfterAPingCloses(t *testing.T) {
	t.Parallel()
	// An answer has a second, so that a machine that is slow for a moment is no silence.
	w := begin(t, func(c *Config) { c.PingInterval, c.PongTimeout = 300*time.Millisecond, time.Second })
	both(t, func(t *testing.T, enc protocol.Encoding) {
		live := w.session(t, enc, "live", "d")
		dead, _, err := testenv.TryDial(t, w.base(), enc, testenv.DialOptions{})
		if err != nil {
			t.Fatal(err)
		}
		dead.Silence()
		dead.Write(helloWith(w.token("dead")))
		wantBye(t, dead, "idle")
		if live.Pings() == 0 || live.Closed() {
			t.Errorf("the live one: %d pings, closed %v", live.Pings(), live.Closed())
		}
	})
}

func TestTokens(t *testing.T) {
	t.Parallel()
	w := begin(t)
	both(t, func(t *testing.T, enc protocol.Encoding) {
		u := "u-" + enc.String()
		refresh := func(c *testenv.Client, token string) *clientv1.ServerFrame {
			return c.Request(&clientv1.ClientFrame{Kind: &clientv1.ClientFrame_RefreshToken{RefreshToken: &clientv1.RefreshToken{Token: token}}})
		}
		silent, kept := w.session(t, enc, u, "silent", expires(time.Minute)), w.session(t, enc, u, "kept", expires(time.Minute))
		of := func(c *testenv.Client) *session {
			all := w.g.hub.of(im.UserID(u))
			return all[slices.IndexFunc(all, func(s *session) bool { return string(s.id) == c.Welcome.SessionId })]
		}
		ends := func(c *testenv.Client) time.Time {
			s := of(c)
			s.mu.Lock()
			defer s.mu.Unlock()
			return s.expires
		}
		for _, bad := range []string{"garbage", w.token("other", login("l-"+u)), w.token(u, login("l2")), w.token(u, expires(-time.Hour))} {
			if f := refresh(kept, bad); f.GetError().GetReason() != "bad_token" {
				t.Errorf("refresh is answered with %v", f)
			}
		}
		tok := w.token(u)
		if f := refresh(kept, tok); f.GetRefreshResult().GetTokenExpireMs() < time.Now().Add(50*time.Minute).UnixMilli() {
			t.Errorf("refresh is answered with %v", f)
		}
		if left := time.Until(ends(kept)); left < 50*time.Minute {
			t.Errorf("the refreshed session ends in %v", left)
		}
		if left := time.Until(ends(silent)); left > time.Minute {
			t.Errorf("the other one ends in %v", left)
		}
		s := of(silent)
		s.mu.Lock() // the minute is over
		s.expires = time.Now()
		s.wakeLocked(s.expires)
		s.mu.Unlock()
		wantBye(t, silent, "token_expired")
	})
}

func TestOneSessionALoginAndDevice(t *testing.T) {
	w := begin(t)
	both(t, func(t *testing.T, enc protocol.Encoding) {
		u := "u-" + enc.String()
		old, other := w.session(t, enc, u, "d1"), w.session(t, enc, u, "d2")
		w.session(t, enc, u, "d1")
		wantBye(t, old, "superseded")
		if other.Closed() {
			t.Error("another device was closed")
		}
		eventually(t, "two routes", func() bool { return len(w.routesOf(u)) == 2 })
	})
}

func TestLoginPolicies(t *testing.T) {
	t.Run("kick_old", func(t *testing.T) {
		w := begin(t, func(c *Config) { c.Login.Mode = "kick_old" })
		both(t, func(t *testing.T, enc protocol.Encoding) {
			u := "u-" + enc.String()
			old := w.session(t, enc, u, "d1", login(u+"-1"))
			w.session(t, enc, u, "d2", login(u+"-2"))
			wantBye(t, old, "replaced")
			c := testenv.Dial(t, w.base(), enc)
			c.Write(helloWith(w.token(u, login(u+"-1"))))
			wantBye(t, c, "replaced")
			if r := w.routesOf(u); len(r) != 1 || string(r[0].Login) != u+"-2" {
				t.Errorf("routes: %v", r)
			}
		})
	})
	t.Run("reject_new", func(t *testing.T) {
		w := begin(t, func(c *Config) { c.Login.Mode = "reject_new" })
		old := w.session(t, protocol.JSON, "u", "d1", login("l1"))
		c := testenv.Dial(t, w.base(), protocol.JSON)
		c.Write(&clientv1.ClientFrame{Id: 7, Kind: &clientv1.ClientFrame_Hello{Hello: &clientv1.Hello{Version: 1, Token: w.token("u", login("l2")), DeviceId: "d2", Class: "bot"}}})
		wantBye(t, c, "login_refused")
		if old.Closed() {
			t.Error("the old one was closed")
		}
	})
	t.Run("multi", func(t *testing.T) {
		w := begin(t, func(c *Config) { c.Login.Multi = 2 })
		old := w.session(t, protocol.JSON, "u", "d1", login("l1"))
		w.session(t, protocol.JSON, "u", "d2", login("l2"))
		w.session(t, protocol.JSON, "u", "d3", login("l3"))
		wantBye(t, old, "replaced")
	})
}

func TestWithoutARouteStoreNewcomersAreLetIn(t *testing.T) {
	w := begin(t, func(c *Config) { c.AntiEntropy.Interval = 200 * time.Millisecond })
	w.state.set(func(s *fakeState) { s.noRoute = true })
	c := w.session(t, protocol.Proto, "ann", "d")
	if len(w.routesOf("ann")) != 0 {
		t.Fatal("a route came from nowhere")
	}
	c.MustSend(testenv.ToUser("bob", "x"))
	w.state.set(func(s *fakeState) { s.noRoute = false })
	eventually(t, "the route is claimed later", func() bool { return len(w.routesOf("ann")) == 1 })

	strict := begin(t, func(c *Config) { c.Login.Mode = "reject_new" })
	strict.state.set(func(s *fakeState) { s.noRoute = true })
	d := testenv.Dial(t, strict.base(), protocol.Proto)
	d.Write(helloWith(strict.token("ann")))
	if b := wantBye(t, d, "busy"); b.RetryAfterMs == 0 {
		t.Error("busy without retry_after_ms")
	}
}

// A revocation between the first look at the login and the claim is seen by
// the second look; who was displaced for nothing is told to come back.
func TestARevocationWhileASessionBegins(t *testing.T) {
	w := begin(t, func(c *Config) { c.Login.Mode = "kick_old" })
	old := w.session(t, protocol.Proto, "ann", "d1", login("l1"))
	w.state.set(func(s *fakeState) {
		at := s.admits + 2
		s.onAdmit = func(n int) {
			if n == at {
				w.state.set(func(s *fakeState) { s.refused["l2"] = "revoked" })
			}
		}
	})
	c := testenv.Dial(t, w.base(), protocol.Proto)
	c.Write(&clientv1.ClientFrame{Id: 7, Kind: &clientv1.ClientFrame_Hello{Hello: &clientv1.Hello{Version: 1, Token: w.token("ann", login("l2")), DeviceId: "d2", Class: "bot"}}})
	wantBye(t, c, "revoked")
	wantBye(t, old, "busy")
	eventually(t, "no route is left", func() bool { return len(w.routesOf("ann")) == 0 })
	w.state.set(func(s *fakeState) { s.onAdmit = nil })
	w.session(t, protocol.Proto, "ann", "d1", login("l1"))
}

// What is committed while a session begins is delivered behind its welcome.
func TestDeliveriesWhileASessionBegins(t *testing.T) {
	w := begin(t)
	both(t, func(t *testing.T, enc protocol.Encoding) {
		for _, n := range []int{3, maxEarly + 50} {
			bob, conv := fmt.Sprintf("bob-%v-%d", enc, n), fmt.Sprintf("g_%v-%d", enc, n)
			w.state.set(func(s *fakeState) {
				at := s.admits + 2 // the session is registered by then
				s.onAdmit = func(k int) {
					for i := 0; k == at && i < n; i++ {
						w.state.post(conv, "ann", fmt.Sprint("early", i), bob)
					}
				}
			})
			c := testenv.Dial(t, w.base(), enc)
			c.Write(helloWith(w.token(bob)))
			f := c.Take("anything", func(*clientv1.ServerFrame) bool { return true })
			if f.GetWelcome() == nil {
				t.Fatalf("%v came before welcome", f)
			}
			if n <= maxEarly {
				for i := range n {
					if f := c.Take("a deliver", isDeliver); textOf(f) != fmt.Sprint("early", i) {
						t.Errorf("deliver %d is %v", i, f)
					}
				}
			} else {
				c.Take("word of the newest", func(f *clientv1.ServerFrame) bool {
					return f.GetHead().GetSeq() == int64(n) || textOf(f) == fmt.Sprint("early", n-1)
				})
			}
			w.state.set(func(s *fakeState) { s.onAdmit = nil })
		}
	})
}

func TestHeadsAreCompared(t *testing.T) {
	t.Parallel()
	w := begin(t, func(c *Config) { c.AntiEntropy.Interval = 200 * time.Millisecond })
	both(t, func(t *testing.T, enc protocol.Encoding) {
		bob, conv := "bob-"+enc.String(), "g_"+enc.String()
		c := w.session(t, enc, bob, "d")
		w.state.post(conv, "ann", "arrives", bob)
		c.Take("the deliver", isDeliver)
		w.state.set(func(s *fakeState) {
			s.mute = true
			s.heads = []*v1.UserHead{{UserId: bob, ConversationId: conv, Seq: 1}}
		})
		if f := c.TakeWithin(600*time.Millisecond, isHead); f != nil {
			t.Errorf("a head for what was delivered: %v", f)
		}
		w.state.post(conv, "ann", "is lost", bob)
		w.state.set(func(s *fakeState) { s.heads = []*v1.UserHead{{UserId: bob, ConversationId: conv, Seq: 2}} })
		c.Take("the head", func(f *clientv1.ServerFrame) bool { return f.GetHead().GetSeq() == 2 })
		if f := c.TakeWithin(600*time.Millisecond, isHead); f != nil {
			t.Errorf("the same head again: %v", f)
		}
		w.state.set(func(s *fakeState) { s.mute, s.heads = false, nil })
	})
	c := w.session(t, protocol.JSON, "carl", "d")
	w.state.set(func(s *fakeState) { s.epoch = "e2" })
	wantBye(t, c, "resync")
	if c := w.session(t, protocol.JSON, "carl", "d"); c.Welcome.DataEpoch != "e2" {
		t.Errorf("welcome names %s", c.Welcome.DataEpoch)
	}
}

func TestLateAndRepeatedDeliveries(t *testing.T) {
	w := begin(t)
	c := w.session(t, protocol.Proto, "bob", "d")
	id := string(w.routesOf("bob")[0].Session)
	delivery := func(seq int64, author string, ids ...string) *v1.Delivery {
		frame, _ := proto.Marshal(&clientv1.ServerFrame{Kind: &clientv1.ServerFrame_Deliver{Deliver: &clientv1.Deliver{
			ConversationId: "g_1", Entries: []*clientv1.Entry{{Seq: seq, Kind: clientv1.EntryKind_ENTRY_KIND_MESSAGE, Content: testenv.Text(fmt.Sprint(seq))}}}}})
		return &v1.Delivery{ConversationId: "g_1", Seq: seq, Frame: frame, SessionIds: ids, Acked: true, ExcludeSessionId: author}
	}
	send := func(d *v1.Delivery) *v1.DeliverResponse {
		res, err := w.peers.Gateway(testNode).Deliver(context.Background(), &v1.DeliverRequest{Deliveries: []*v1.Delivery{d}})
		if err != nil {
			t.Fatal(err)
		}
		return res
	}
	deliver := func(seq int64, ids ...string) *v1.DeliverResponse { return send(delivery(seq, "", ids...)) }
	for _, seq := range []int64{1, 2, 2, 5, 4, 5, 6} {
		deliver(seq, id)
	}
	for _, want := range []string{"1", "2", "5", "6"} {
		if f := c.Take("a deliver", isDeliver); textOf(f) != want {
			t.Errorf("got %v, want %s", f, want)
		}
	}
	if res := deliver(7, "nobody", id); len(res.NotHere) != 1 || res.NotHere[0] != "nobody" {
		t.Errorf("not here: %v", res.NotHere)
	}
	c.Take("a deliver", isDeliver)
	several := delivery(8, "", id) // of which the last but one is its own
	several.Following = []*v1.Delivery{delivery(9, "another"), delivery(10, id), delivery(11, "")}
	send(several)
	for _, want := range []string{"8", "9", "11"} {
		if f := c.Take("a deliver", isDeliver); textOf(f) != want {
			t.Errorf("got %v, want %s", f, want)
		}
	}
	c.Close()
	eventually(t, "the session is not here any more", func() bool { return len(deliver(12, id).NotHere) == 1 })
}

func TestKick(t *testing.T) {
	w := begin(t)
	kick := func(r *v1.KickRequest) int32 {
		res, err := w.peers.Gateway(testNode).Kick(context.Background(), r)
		if err != nil {
			t.Fatal(err)
		}
		return res.Ended
	}
	a1, a2, b := w.session(t, protocol.JSON, "ann", "d1", login("l1")), w.session(t, protocol.JSON, "ann", "d2", login("l2")), w.session(t, protocol.JSON, "bob", "d")
	if n := kick(&v1.KickRequest{UserId: "ann", LoginId: "l1", Reason: "revoked"}); n != 1 {
		t.Errorf("%d ended, want 1", n)
	}
	wantBye(t, a1, "revoked")
	if n := kick(&v1.KickRequest{UserId: "ann", Reason: "not_member"}); n != 1 { // no reason to close for
		t.Errorf("%d ended, want 1", n)
	}
	wantBye(t, a2, "kicked")
	if b.Closed() {
		t.Error("another user was kicked")
	}
	if n := kick(&v1.KickRequest{SessionIds: []string{b.Welcome.SessionId, "nobody"}, Reason: "superseded"}); n != 1 {
		t.Errorf("%d ended, want 1", n)
	}
	wantBye(t, b, "superseded")
}

func TestDrain(t *testing.T) {
	const grace = 30 * time.Second
	w := begin(t, func(c *Config) { c.Drain.Grace = grace })
	stays, moves := w.session(t, protocol.JSON, "ann", "d"), w.session(t, protocol.Proto, "bob", "d")
	waiting := testenv.Dial(t, w.base(), protocol.JSON) // no hello: nobody to tell
	ctx, over := context.WithCancel(t.Context())
	defer over()
	done := make(chan error, 1)
	go func() { done <- w.g.Drain(ctx) }()
	for _, c := range []*testenv.Client{stays, moves} {
		d := c.Take("drain", func(f *clientv1.ServerFrame) bool { return f.GetDrain() != nil }).GetDrain()
		if d.CloseAfterMs == 0 || d.CloseAfterMs > millis(grace+200*time.Millisecond) || d.ReconnectAfterMs > 200 {
			t.Errorf("drain says %v", d)
		}
	}
	if res := refusedWith(t, w, testenv.DialOptions{}, 503); res.Header.Get("Retry-After") == "" {
		t.Error("no Retry-After")
	}
	if s := w.g.ready(ctx); s.Ready {
		t.Error("still ready")
	}
	stays.MustSend(testenv.ToUser("bob", "while draining"))
	moves.Take("a deliver while draining", isDeliver)
	moves.Close()
	over() // the time for the stop
	wantBye(t, stays, "drain")
	wantBye(t, waiting, "drain")
	if err := <-done; err != nil {
		t.Errorf("Drain: %v", err)
	}
	eventually(t, "no routes are left", func() bool { return len(w.routesOf("ann"))+len(w.routesOf("bob")) == 0 })
}

// Who has not moved when the time for it is over is sent away.
func TestDrainEnds(t *testing.T) {
	w := begin(t)
	c := w.session(t, protocol.JSON, "ann", "d")
	if err := w.g.Drain(t.Context()); err != nil {
		t.Errorf("Drain: %v", err)
	}
	wantBye(t, c, "drain")
}

// Whoever logs in after the others were asked is asked as well.
func TestDrainAsksWhoComesLate(t *testing.T) {
	w := begin(t)
	by := time.Now().Add(time.Minute)
	w.g.leaveBy.Store(&by)
	c := w.session(t, protocol.JSON, "ann", "d")
	d := c.Take("drain", func(f *clientv1.ServerFrame) bool { return f.GetDrain() != nil }).GetDrain()
	if d.ReconnectAfterMs != 0 || d.CloseAfterMs == 0 {
		t.Errorf("drain says %v", d)
	}
}

// Who moves is not cut off before the welcome of the new session has had time to
// arrive, nor kept for long behind it.
func TestWhoMovesKeepsTheOldSessionForAMoment(t *testing.T) {
	by := time.Now().Add(time.Hour)
	leaving := func(moment time.Duration) *world {
		w := beginTuned(t, func(g *Gateway) { g.yieldTime = moment })
		w.g.leaveBy.Store(&by)
		return w
	}
	w := leaving(time.Minute)
	old := w.session(t, protocol.JSON, "ann", "d", login("l"))
	w.session(t, protocol.Proto, "ann", "d", login("l"))
	old.MustSend(testenv.ToUser("bob", "on the old one"))
	if old.Closed() {
		t.Error("cut off before its moment is over")
	}
	w = leaving(10 * time.Millisecond)
	old = w.session(t, protocol.JSON, "ann", "d", login("l"))
	w.session(t, protocol.Proto, "ann", "d", login("l"))
	wantBye(t, old, "superseded")
}

func TestStoppingWithoutDrainSaysBye(t *testing.T) {
	w := begin(t)
	c := w.session(t, protocol.JSON, "ann", "d")
	w.stop()
	wantBye(t, c, "drain")
	if len(w.routesOf("ann")) != 0 {
		t.Error("the route is left")
	}
}

func TestRates(t *testing.T) {
	w := begin(t, func(c *Config) {
		c.Limits.ConnectionRate, c.Limits.ConnectionBurst = 0.01, 20 // no more than the burst, however slow the machine is
		c.Limits.UserRate, c.Limits.UserBurst = 0.01, 5
	})
	both(t, func(t *testing.T, enc protocol.Encoding) {
		c := w.session(t, enc, "ann-"+enc.String(), "d")
		ok, limited := 0, 0
		for i := range 12 {
			c.Write(sendOf(uint32(100+i), numbered(i, fmt.Sprint("p", i))))
		}
		for i := range 12 {
			a := c.Answer(uint32(100 + i)).GetSendAck()
			switch {
			case a.Status == clientv1.Ack_ACK_OK:
				ok++
			case a.Error.Reason == "rate_limited" && a.Status == clientv1.Ack_ACK_RETRY && a.Error.RetryAfterMs >= 1000 && a.Error.Retryable:
				limited++
			default:
				t.Errorf("answered %v", a)
			}
		}
		if ok != 5 || limited != 7 {
			t.Errorf("%d passed and %d did not, want 5 and 7", ok, limited)
		}
		limited = 0
		for range 12 {
			f := c.Request(&clientv1.ClientFrame{Kind: &clientv1.ClientFrame_Sync{Sync: &clientv1.Sync{}}})
			if e := f.GetError(); e != nil {
				limited++
				if e.Reason != "rate_limited" || e.RetryAfterMs < 1000 {
					t.Errorf("answered %v", e)
				}
			}
		}
		if limited < 3 {
			t.Errorf("%d requests above the rate were refused", limited)
		}
	})
	w.g.Limits().SetOff(true)
	c := w.session(t, protocol.Proto, "bob", "d")
	for i := range 50 {
		if a := c.Send(numbered(i, "carl")); a.Status != clientv1.Ack_ACK_OK {
			t.Fatalf("rates are off, and send %d is answered with %v", i, a)
		}
	}
}

// A connection that floods for too long is closed with 4004.
func TestAFloodIsClosed(t *testing.T) {
	t.Parallel()
	w := beginTuned(t, func(g *Gateway) { g.overloadTime = overloadGap / 2 },
		func(c *Config) { c.Limits.ConnectionRate, c.Limits.ConnectionBurst = 1, 1 })
	both(t, func(t *testing.T, enc protocol.Encoding) {
		c := testenv.Dial(t, w.base(), enc)
		c.Write(helloWith(w.token("ann")))
		c.Answer(7)
		pong := &clientv1.ClientFrame{Kind: &clientv1.ClientFrame_Pong{Pong: &clientv1.Pong{}}}
		eventually(t, "the flood is closed", func() bool { _ = c.TryWrite(pong); return c.Closed() })
		wantBye(t, c, "rate_limited")
	})
}

func TestSixteenRequestsAtOnce(t *testing.T) {
	w := begin(t)
	c := w.session(t, protocol.Proto, "ann", "d")
	body := strings.Repeat("x", 12_000)
	for range 50 {
		w.state.post("g_1", "bob", body, "ann")
	}
	var frames []*clientv1.ClientFrame
	for i := range 64 {
		frames = append(frames, &clientv1.ClientFrame{Id: uint32(1000 + i), Kind: &clientv1.ClientFrame_History{History: &clientv1.History{ConversationId: "g_1", Limit: 500}}})
	}
	c.Write(frames...)
	for i := range 64 {
		f := c.Answer(uint32(1000 + i))
		if p := f.GetHistoryResult().GetPage(); p == nil || len(p.Entries) == 0 {
			t.Fatalf("answered %v", f)
		}
		if n := proto.Size(f); n > protocol.ServerEnvelope {
			t.Errorf("a result of %d bytes", n)
		}
	}
}

func TestTheLastWordsAreWritten(t *testing.T) {
	w := begin(t)
	both(t, func(t *testing.T, enc protocol.Encoding) {
		c := w.session(t, enc, "ann", "d")
		c.Write(sendOf(100, numbered(1, "bob")), &clientv1.ClientFrame{Id: 101, Kind: &clientv1.ClientFrame_Hello{Hello: &clientv1.Hello{}}})
		c.Take("bye", func(f *clientv1.ServerFrame) bool { return f.GetBye().GetReason() == "bad_frame" })
	})
}

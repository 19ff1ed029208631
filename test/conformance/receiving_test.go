package conformance

import (
	"fmt"
	"slices"
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
		statement{21, "every session but the sending one gets a deliver", nil, false, everySession},
		statement{22, "delivers rise in seq and name the seq before", nil, false, rising},
		statement{number: 24, text: "an ack of a later range moves nothing over the missing", waits: true, test: laterRange},
		statement{number: 25, text: "an entry committed while a session begins is in its sync, delivered, or both", waits: true, test: beginning},
		statement{26, "sync names every changed conversation, 200 a page", nil, false, syncPages},
		statement{27, "with page_limit a page begins after the cursor or holds the newest", nil, false, syncWithPages},
		statement{28, "history gives each entry once for any limit and direction", nil, false, historyPages},
		statement{29, "over hidden stretches the page range closes up", nil, false, hiddenStretches},
		statement{30, "members see from ADDED to REMOVED", nil, false, borders},
		statement{31, "who may not send gets ACK_FAIL and leaves nothing", nil, false, permissions},
		statement{33, "read positions and unread counts", nil, false, reading},
	)
}

const changes = "imd.v1.ConversationService/"

// change calls a ConversationService method; the test fails unless it is done.
func (s *suite) change(t *testing.T, user, method, conv string, fields map[string]any) int64 {
	t.Helper()
	body := map[string]any{"conversationId": conv, "requestId": uuid.NewString()}
	for k, v := range fields {
		body[k] = v
	}
	out := testenv.MustPost(t, s.URL(), changes+method, s.Token(s.user(user)), body)
	var seq int64
	_, _ = fmt.Sscan(out["seq"].(string), &seq)
	return seq
}

// group makes a group owned by the first user.
func (s *suite) group(t *testing.T, owner string, others ...string) string {
	t.Helper()
	for i := range others {
		others[i] = s.user(others[i])
	}
	return testenv.Group(t, s.URL(), s.Token(s.user(owner)), "team", others...)
}

func everySession(t *testing.T, s *suite) {
	conv := s.group(t, "ann", "bob", "carl")
	a1, a2 := s.login(t, "ann", "d1"), s.login(t, "ann", "d2")
	b1, b2, c := s.login(t, "bob", "d1"), s.login(t, "bob", "d2"), s.login(t, "carl", "d1")
	dan := s.login(t, "dan", "d1")
	ack := a1.MustSend(testenv.To(conv, "hi"))
	for name, x := range map[string]*testenv.Client{"a2": a2, "b1": b1, "b2": b2, "c": c} {
		e := x.Entry("a deliver for "+name, func(cv string, e *clientv1.Entry) bool { return cv == conv && e.Seq == ack.Seq })
		if e.MessageId != ack.MessageId || e.Sender != s.user("ann") || e.Content.GetText() != "hi" || !e.Countable || e.ServerTimeMs != ack.ServerTimeMs {
			t.Errorf("%s got %v", name, e)
		}
	}
	for name, x := range map[string]*testenv.Client{"the sender": a1, "a stranger": dan} {
		if f := x.TakeWithin(200*time.Millisecond, func(f *clientv1.ServerFrame) bool {
			return f.GetDeliver() != nil && f.GetDeliver().Entries[0].Seq == ack.Seq
		}); f != nil {
			t.Errorf("%s got %v", name, f)
		}
	}
}

func rising(t *testing.T, s *suite) {
	conv := s.group(t, "ann", "bob", "carl")
	a, c, b := s.login(t, "ann", "d"), s.login(t, "carl", "d"), s.login(t, "bob", "d")
	done := make(chan bool)
	for _, x := range []*testenv.Client{a, c} {
		go func() {
			defer func() { done <- true }() // also if it fails
			var sends []*clientv1.Send
			for i := range 100 {
				m := testenv.To(conv, fmt.Sprint(i))
				m.ClientMessageId = uuid.NewString()
				sends = append(sends, m)
			}
			x.SendAll(sends)
		}()
	}
	<-done
	<-done
	all, _ := a.Walk(conv, 500, false)
	last, have := int64(0), map[int64]bool{}
	for _, e := range all {
		if e.PrevSeq != last {
			t.Fatalf("%d names %d before it, history has %d", e.Seq, e.PrevSeq, last)
		}
		last = e.Seq
	}
	seen := int64(1)
	for len(have) < 200 {
		f := b.Take("a deliver", func(f *clientv1.ServerFrame) bool { return f.GetDeliver().GetConversationId() == conv })
		for _, e := range f.GetDeliver().Entries {
			if e.Seq == 1 {
				continue // that the group was made may still have been on its way when bob came
			}
			if e.Seq <= seen && !have[e.Seq] {
				t.Fatalf("%d came after %d", e.Seq, seen)
			}
			have[e.Seq] = true
			seen = max(seen, e.Seq)
			if e.PrevSeq != e.Seq-1 {
				t.Errorf("%d names %d before it", e.Seq, e.PrevSeq)
			}
		}
		b.Write(ackFrame(conv, 1, seen))
	}
}

func laterRange(t *testing.T, s *suite) {
	a, b := s.login(t, "ann", "d"), s.login(t, "bob", "d")
	for i := range 25 {
		a.MustSend(testenv.ToUser(s.user("bob"), fmt.Sprint(i)))
	}
	conv := protocol.DirectID(s.user("ann"), s.user("bob"))
	receipt := func(limit time.Duration, seq int64) *clientv1.ServerFrame {
		return a.Await(limit, func(f *clientv1.ServerFrame) bool {
			return f.GetReceipt().GetUserId() == s.user("bob") && f.GetReceipt().DeliveredSeq == seq
		})
	}
	b.Write(ackFrame(conv, 0, 10))
	if receipt(5*time.Second, 10) == nil {
		t.Fatal("no receipt for 10")
	}
	b.Write(ackFrame(conv, 20, 25))
	if f := a.TakeWithin(1500*time.Millisecond, func(f *clientv1.ServerFrame) bool { return f.GetReceipt().GetDeliveredSeq() > 10 }); f != nil {
		t.Fatalf("delivered moved over what is missing: %v", f)
	}
	b.Write(ackFrame(conv, 10, 25))
	if receipt(5*time.Second, 25) == nil {
		t.Error("no receipt for 25")
	}
	b.Write(ackFrame(conv, 0, 1_000_000))
	if f := a.TakeWithin(1500*time.Millisecond, func(f *clientv1.ServerFrame) bool { return f.GetReceipt().GetDeliveredSeq() > 25 }); f != nil {
		t.Errorf("delivered moved past the head: %v", f)
	}
}

func beginning(t *testing.T, s *suite) {
	a := s.login(t, "ann", "d")
	stop, sent := make(chan struct{}), make(chan int, 1)
	go func() {
		defer close(sent) // also if it fails
		n := 0
		for {
			select {
			case <-stop:
				sent <- n
				return
			default:
				a.MustSend(testenv.ToUser(s.user("bob"), fmt.Sprint(n)))
				n++
				time.Sleep(10 * time.Millisecond)
			}
		}
	}()
	conv := protocol.DirectID(s.user("ann"), s.user("bob"))
	for i := range 15 {
		b := s.login(t, "bob", fmt.Sprint("d", i))
		time.Sleep(30 * time.Millisecond)
		have := int64(0)
		for _, st := range b.Synced.Conversations {
			have = st.HeadSeq
		}
		for until := time.Now().Add(100 * time.Millisecond); ; {
			f := b.TakeWithin(time.Until(until), func(f *clientv1.ServerFrame) bool { return f.GetDeliver().GetConversationId() == conv })
			if f == nil {
				break
			}
			for _, e := range f.GetDeliver().Entries {
				if e.PrevSeq > have {
					t.Fatalf("session %d: %d was in neither the sync nor a deliver before %d", i, e.PrevSeq, e.Seq)
				}
				have = max(have, e.Seq)
			}
		}
		b.Close()
	}
	close(stop)
	<-sent
}

func syncPages(t *testing.T, s *suite) {
	a := s.login(t, "ann", "d")
	want := map[string]int64{}
	for i := range 230 {
		ack := a.MustSend(testenv.ToUser(s.user(fmt.Sprint("x", i)), "hi"))
		want[ack.ConversationId] = ack.Seq
	}
	pages, token := 0, ""
	got := map[string]int64{}
	for {
		r := a.Sync(&clientv1.Sync{SyncToken: token})
		pages++
		if len(r.Conversations) > 200 || !r.Full {
			t.Errorf("page %d has %d states, full %v", pages, len(r.Conversations), r.Full)
		}
		for _, st := range r.Conversations {
			if _, twice := got[st.ConversationId]; twice {
				t.Errorf("%s is listed twice", st.ConversationId)
			}
			got[st.ConversationId] = st.HeadSeq
		}
		token = r.SyncToken
		if !r.More {
			break
		}
		if pages > 100 {
			t.Fatal("no end")
		}
	}
	for conv, head := range want {
		if got[conv] != head {
			t.Errorf("%s has head %d, want %d", conv, got[conv], head)
		}
	}
	ack := a.MustSend(testenv.ToUser(s.user("x7"), "again"))
	r := a.Sync(&clientv1.Sync{SyncToken: token})
	if len(r.Conversations) != 1 || r.Conversations[0].ConversationId != ack.ConversationId || r.Conversations[0].HeadSeq != ack.Seq || r.More || r.Full {
		t.Errorf("after one more message: %v", r)
	}
	r = a.Sync(&clientv1.Sync{SyncToken: r.SyncToken})
	if len(r.Conversations) != 0 {
		t.Errorf("nothing changed, but %v", r)
	}
	other := protocol.DirectID(s.user("ann"), s.user("x3"))
	r = a.Sync(&clientv1.Sync{SyncToken: r.SyncToken, Cursors: []*clientv1.Cursor{{ConversationId: other, Have: 0}, {ConversationId: "g_gone", Have: 4}}})
	listed := map[string]clientv1.Role{}
	for _, st := range r.Conversations {
		listed[st.ConversationId] = st.Role
	}
	if role, ok := listed[other]; !ok || role != clientv1.Role_ROLE_MEMBER {
		t.Errorf("a cursor below the head is not listed: %v", r)
	}
	if role, ok := listed["g_gone"]; !ok || role != clientv1.Role_ROLE_UNSPECIFIED {
		t.Errorf("a cursor of a conversation the user is not in is not listed: %v", r)
	}
}

func syncWithPages(t *testing.T, s *suite) {
	a, b := s.login(t, "ann", "d"), s.login(t, "bob", "d")
	for i := range 30 {
		a.MustSend(testenv.ToUser(s.user("bob"), fmt.Sprint(i+1)))
	}
	conv := protocol.DirectID(s.user("ann"), s.user("bob"))
	state := func(sync *clientv1.Sync) *clientv1.ConversationState {
		t.Helper()
		r := b.Sync(sync)
		if len(r.GetConversations()) != 1 {
			t.Fatalf("sync: %v", r)
		}
		return r.Conversations[0]
	}
	st := state(&clientv1.Sync{PageLimit: 5})
	if p := st.Page; texts(p.GetEntries()) != "26 27 28 29 30" || p.CompleteTo != 30 || p.CompleteFrom != 26 || p.End {
		t.Errorf("the newest: %v", p)
	}
	if st.PeerId != s.user("ann") || st.Kind != clientv1.ConversationKind_CONVERSATION_KIND_DIRECT || st.LastMessage.GetContent().GetText() != "30" || st.UnreadCount != 30 || st.HeadSeq != 30 {
		t.Errorf("the state: %v", st)
	}
	st = state(&clientv1.Sync{PageLimit: 5, Cursors: []*clientv1.Cursor{{ConversationId: conv, Have: 10}}})
	if p := st.Page; texts(p.GetEntries()) != "11 12 13 14 15" || p.CompleteFrom != 11 || p.CompleteTo != 15 || p.End {
		t.Errorf("after a cursor: %v", p)
	}
	st = state(&clientv1.Sync{PageLimit: 50, Cursors: []*clientv1.Cursor{{ConversationId: conv, Have: 28}}})
	if p := st.Page; texts(p.GetEntries()) != "29 30" || !p.End || p.CompleteTo != 30 {
		t.Errorf("near the end: %v", p)
	}
	wantReason(t, b.Request(syncFrame(&clientv1.Sync{PageLimit: -1})), "bad_request")
	var many []*clientv1.Cursor
	for i := range 257 {
		many = append(many, &clientv1.Cursor{ConversationId: fmt.Sprint("g_", i)})
	}
	wantReason(t, b.Request(syncFrame(&clientv1.Sync{Cursors: many})), "bad_request")
}

func historyPages(t *testing.T, s *suite) {
	a := s.login(t, "ann", "d")
	var sends []*clientv1.Send
	for i := range 300 {
		m := testenv.ToUser(s.user("bob"), fmt.Sprint(i))
		m.ClientMessageId = uuid.NewString()
		sends = append(sends, m)
	}
	a.SendAll(sends)
	conv := protocol.DirectID(s.user("ann"), s.user("bob"))
	for _, limit := range []int32{1, 7, 100, 500} {
		for _, backward := range []bool{false, true} {
			if limit == 1 && backward {
				continue // 300 more calls prove nothing new
			}
			all, calls := a.Walk(conv, limit, backward)
			if len(all) != 300 || calls > 300/int(limit)+3 {
				t.Errorf("limit %d backward %v: %d entries in %d calls", limit, backward, len(all), calls)
			}
			for i, e := range all {
				if e.Content.GetText() != fmt.Sprint(i) {
					t.Fatalf("limit %d backward %v: %q at %d", limit, backward, e.Content.GetText(), i)
				}
			}
		}
	}
	wantReason(t, a.Request(historyFrame(&clientv1.History{ConversationId: conv, Limit: -1})), "bad_request")
	wantReason(t, a.Request(historyFrame(&clientv1.History{ConversationId: conv, AfterSeq: -1})), "bad_request")
	wantReason(t, a.Request(historyFrame(&clientv1.History{ConversationId: "g_none"})), "not_member")
	if p := a.History(&clientv1.History{ConversationId: conv}); len(p.Entries) != 100 {
		t.Errorf("no limit gives %d", len(p.Entries))
	}
	if p := a.History(&clientv1.History{ConversationId: conv, Limit: 1_000_000}); len(p.Entries) < 200 || len(p.Entries) > 500 {
		t.Errorf("a huge limit gives %d", len(p.Entries)) // as JSON 300 entries do not fit one frame
	}
	if p := a.History(&clientv1.History{ConversationId: conv, AfterSeq: 10, BeforeSeq: 13}); texts(p.Entries) != "10 11" || p.CompleteFrom != 11 || p.CompleteTo != 12 || !p.End {
		t.Errorf("between 10 and 13: %v", p)
	}
	// Large entries make a page shorter than asked, never empty.
	for range 12 {
		m := testenv.ToUser(s.user("carl"), strings.Repeat("\"", 16_000))
		a.MustSend(m)
	}
	all, _ := a.Walk(protocol.DirectID(s.user("ann"), s.user("carl")), 500, false)
	if len(all) != 12 {
		t.Errorf("%d of 12 large entries", len(all))
	}
}

func hiddenStretches(t *testing.T, s *suite) {
	conv := s.group(t, "ann", "bob")
	a, b := s.login(t, "ann", "d"), s.login(t, "bob", "d")
	for range 5 {
		a.MustSend(testenv.To(conv, "seen"))
	}
	s.change(t, "ann", "RemoveMembers", conv, map[string]any{"userIds": []string{s.user("bob")}})
	for range 20 {
		a.MustSend(testenv.To(conv, "hidden"))
	}
	s.change(t, "ann", "AddMembers", conv, map[string]any{"userIds": []string{s.user("bob")}})
	a.MustSend(testenv.To(conv, "seen"))
	for _, backward := range []bool{false, true} {
		all, calls := b.Walk(conv, 100, backward)
		if calls != 1 || strings.Contains(texts(all), "hidden") || len(all) != 1+5+1+1+1 {
			t.Errorf("backward %v: %d entries in %d calls: %s", backward, len(all), calls, texts(all))
		}
	}
	p := b.History(&clientv1.History{ConversationId: conv, AfterSeq: 10, BeforeSeq: 20})
	if len(p.Entries) != 0 || p.CompleteFrom != 11 || p.CompleteTo != 19 || !p.End {
		t.Errorf("inside a hidden stretch: %v", p)
	}
}

func borders(t *testing.T, s *suite) {
	conv := s.group(t, "ann")
	a, m := s.login(t, "ann", "d"), s.login(t, "mia", "d")
	say := func(text string) { a.MustSend(testenv.To(conv, text)) }
	mia := map[string]any{"userIds": []string{s.user("mia")}}
	say("before")
	joined := s.change(t, "ann", "AddMembers", conv, mia)
	say("first")
	left := s.change(t, "mia", "Leave", conv, nil)
	say("between")
	wantReason(t, m.Request(sendFrame(0, testenv.To(conv, "x"))), "not_member")
	again := s.change(t, "ann", "AddMembers", conv, mia)
	say("second")
	all, _ := m.Walk(conv, 100, false)
	if texts(all) != "first second" {
		t.Errorf("mia sees %q", texts(all))
	}
	var seqs []int64
	for _, e := range all {
		seqs = append(seqs, e.Seq)
	}
	if want := []int64{joined, joined + 1, left, again, again + 1}; !slices.Equal(seqs, want) {
		t.Errorf("mia sees %v, want %v", seqs, want)
	}
	s.change(t, "ann", "RemoveMembers", conv, mia)
	say("after")
	all, _ = m.Walk(conv, 100, false)
	if texts(all) != "first second" || all[len(all)-1].MemberChange.GetAction() != clientv1.MemberAction_MEMBER_ACTION_REMOVED {
		t.Errorf("after the removal mia sees %q", texts(all))
	}
	if f := m.TakeWithin(200*time.Millisecond, func(f *clientv1.ServerFrame) bool {
		return f.GetDeliver() != nil && texts(f.GetDeliver().Entries) == "after"
	}); f != nil {
		t.Errorf("mia got %v", f)
	}
	// Cleared history stays hidden, in a group open to newcomers too.
	out := testenv.MustPost(t, s.URL(), changes+"Create", s.Token(s.user("ann")), map[string]any{"requestId": uuid.NewString(), "name": "open", "openHistory": true})
	open := out["conversationId"].(string)
	a.MustSend(testenv.To(open, "old"))
	s.change(t, "ann", "AddMembers", open, mia)
	if all, _ := m.Walk(open, 100, false); texts(all) != "old" {
		t.Errorf("a newcomer sees %q of an open history", texts(all))
	}
	testenv.MustPost(t, s.URL(), changes+"ClearHistory", s.Token(s.user("mia")), map[string]any{"conversationId": open, "upToSeq": "2"})
	a.MustSend(testenv.To(open, "new"))
	if all, _ := m.Walk(open, 100, false); texts(all) != "new" {
		t.Errorf("after clearing mia sees %q", texts(all))
	}
}

func permissions(t *testing.T, s *suite) {
	conv := s.group(t, "ann", "bob")
	a, b, x := s.login(t, "ann", "d"), s.login(t, "bob", "d"), s.login(t, "xena", "d")
	fails := func(c *testenv.Client, m *clientv1.Send, reason string) {
		t.Helper()
		if ack := c.Decide(m); ack.Status != clientv1.Ack_ACK_FAIL || ack.Error.Reason != reason {
			t.Errorf("want %s, got %v", reason, ack)
		}
	}
	fails(x, testenv.To(conv, "x"), "not_member")
	fails(x, testenv.To(protocol.DirectID(s.user("ann"), s.user("bob")), "x"), "not_member")
	stored := testenv.To(conv, "kept")
	first := b.MustSend(stored)
	s.change(t, "ann", "RemoveMembers", conv, map[string]any{"userIds": []string{s.user("bob")}})
	fails(b, testenv.To(conv, "x"), "not_member")
	stored.Resend = true
	if again := b.MustSend(stored); !again.Duplicate || again.Seq != first.Seq {
		t.Errorf("a stored one of a removed sender: %v", again)
	}
	s.change(t, "ann", "Close", conv, nil)
	fails(a, testenv.To(conv, "x"), "conversation_closed")
	all, _ := a.Walk(conv, 100, false)
	if texts(all) != "kept" {
		t.Errorf("history has %q", texts(all))
	}
	for _, pair := range [][2]string{{"ann", "bob"}, {"bob", "ann"}} {
		s := &suite{Node: s.Node, enc: s.enc, prefix: s.prefix + pair[0] + "-"}
		blocker, blocked := s.login(t, pair[0], "d"), s.login(t, pair[1], "d")
		testenv.MustPost(t, s.URL(), "imd.v1.UserService/Block", s.Token(s.user(pair[0])), map[string]any{"userId": s.user(pair[1])})
		fails(blocked, testenv.ToUser(s.user(pair[0]), "x"), "forbidden")
		blocker.MustSend(testenv.ToUser(s.user(pair[1]), "y"))
		testenv.MustPost(t, s.URL(), "imd.v1.UserService/Unblock", s.Token(s.user(pair[0])), map[string]any{"userId": s.user(pair[1])})
		blocked.MustSend(testenv.ToUser(s.user(pair[0]), "z"))
	}
}

func reading(t *testing.T, s *suite) {
	a, b1, b2 := s.login(t, "ann", "d"), s.login(t, "bob", "d1"), s.login(t, "bob", "d2")
	conv := protocol.DirectID(s.user("ann"), s.user("bob"))
	for range 3 {
		a.MustSend(testenv.ToUser(s.user("bob"), "x"))
	}
	read := func(c *testenv.Client, seq int64) *clientv1.Receipt {
		t.Helper()
		f := c.Request(readFrame(conv, seq))
		if f.GetReceipt() == nil || f.GetReceipt().UnreadCount == nil {
			t.Fatalf("read was answered with %v", f)
		}
		return f.GetReceipt()
	}
	unread := func(c *testenv.Client) uint32 {
		t.Helper()
		for _, st := range c.Sync(&clientv1.Sync{}).Conversations {
			if st.ConversationId == conv {
				return st.UnreadCount
			}
		}
		t.Fatal("not listed")
		return 0
	}
	if r := read(b1, 3); r.ReadSeq != 3 || r.DeliveredSeq != 3 || *r.UnreadCount != 0 {
		t.Errorf("read 3: %v", r)
	}
	b2.Take("the own receipt on the other session", func(f *clientv1.ServerFrame) bool {
		r := f.GetReceipt()
		return f.Id == 0 && r.GetUserId() == s.user("bob") && r.GetReadSeq() == 3 && r.UnreadCount != nil && *r.UnreadCount == 0
	})
	a.Take("the read receipt", func(f *clientv1.ServerFrame) bool {
		r := f.GetReceipt()
		return r.GetUserId() == s.user("bob") && r.GetReadSeq() == 3 && r.UnreadCount == nil
	})
	b1.MustSend(testenv.ToUser(s.user("ann"), "y"))
	b1.MustSend(testenv.ToUser(s.user("ann"), "y"))
	if got := [3]uint32{unread(a), unread(b1), unread(b2)}; got != [3]uint32{2, 0, 0} {
		t.Errorf("unread ann, bob, bob: %v", got)
	}
	for range 4 {
		a.MustSend(testenv.ToUser(s.user("bob"), "x"))
	}
	if got := [2]uint32{unread(b1), unread(b2)}; got != [2]uint32{4, 4} {
		t.Errorf("unread of bob: %v", got)
	}
	if r := read(b2, 1_000); r.ReadSeq != 9 || *r.UnreadCount != 0 {
		t.Errorf("read past the head: %v", r)
	}
	if r := read(b1, 2); r.ReadSeq != 9 {
		t.Errorf("an older mark moved it back: %v", r)
	}
	if got := [2]uint32{unread(b1), unread(b2)}; got != [2]uint32{0, 0} {
		t.Errorf("unread of bob at the end: %v", got)
	}
	wantReason(t, a.Request(readFrame("g_none", 1)), "not_member")
}

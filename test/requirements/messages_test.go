package requirements

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/imdhq/imd/pkg/faultproxy"
	"github.com/imdhq/imd/pkg/testenv"
	"github.com/imdhq/imd/sdk/go/gen/clientv1"
	"github.com/imdhq/imd/sdk/go/protocol"
)

// Answers are lost with their link; every repeat gets the first answer, even
// of one who is no member any more.
func TestR01ResendsGetTheFirstAnswer(t *testing.T) {
	t.Parallel()
	n := node(t, once)
	p, base := proxy(t, n)
	for _, enc := range []protocol.Encoding{protocol.Proto, protocol.JSON} {
		t.Run(enc.String(), func(t *testing.T) {
			conv := testenv.Group(t, n.URL(), n.Token("own"), "team", "ann", "bob")
			b := login(t, n, "bob", "d")
			a := testenv.Login(t, base, enc, n.Token("ann"), "d")
			p.Set(faultproxy.Mode{DropReplies: true})
			sends := numbered(3, toGroup(conv))
			a.Write(sendFrame(a.ID(), sends[0]), sendFrame(a.ID(), sends[1]), sendFrame(a.ID(), sends[2]))
			var first []*clientv1.Entry
			for i := range sends {
				first = append(first, b.Entry("a message", func(cv string, e *clientv1.Entry) bool { return cv == conv && e.Content.GetText() == fmt.Sprint(i+1) }))
			}
			if f := a.TakeWithin(0, func(f *clientv1.ServerFrame) bool { return f.GetSendAck() != nil }); f != nil {
				t.Fatalf("an answer was not lost: %v", f)
			}
			p.Reset()
			p.Set(faultproxy.Mode{})
			a = testenv.Login(t, base, enc, n.Token("ann"), "d")
			again := func(i int) {
				t.Helper()
				m := &clientv1.Send{To: sends[i].To, ClientMessageId: sends[i].ClientMessageId, Content: sends[i].Content, Resend: true}
				got := a.Decide(m)
				if got.Status != clientv1.Ack_ACK_OK || got.MessageId != first[i].MessageId || got.Seq != first[i].Seq || !got.Duplicate {
					t.Errorf("the repeat of %d got %v, it was first %v", i+1, got, first[i])
				}
			}
			for _, i := range []int{0, 0, 0, 1, 2, 0} {
				again(i)
			}
			change(t, n, "own", "RemoveMembers", conv, map[string]any{"userIds": []string{"ann"}})
			for _, i := range []int{2, 0, 1} {
				again(i)
			}
			wantFail(t, a, testenv.To(conv, "4"), "not_member")
			all, _ := b.Walk(conv, 100, false)
			wantTexts(t, "history", messages(all), upTo(3))
			if f := b.TakeWithin(300*time.Millisecond, func(f *clientv1.ServerFrame) bool {
				return isDeliver(f) && len(messages(f.GetDeliver().Entries)) > 0
			}); f != nil {
				t.Errorf("delivered twice: %v", f)
			}
		})
	}
}

// The same client message id of another user, or to another conversation, is
// another message, and what is acknowledged is there.
func TestR02IdsAreScopedBySenderAndConversation(t *testing.T) {
	t.Parallel()
	n := node(t)
	a, c := login(t, n, "ann", "d"), login(t, n, "carl", "d")
	id := uuid.NewString()
	acks := map[int64]bool{}
	for _, s := range []struct {
		from *testenv.Client
		to   string
	}{{a, "xena"}, {c, "yves"}, {a, "yves"}} {
		m := testenv.ToUser(s.to, "x")
		m.ClientMessageId = id
		ack := s.from.MustSend(m)
		if ack.Duplicate || acks[ack.MessageId] {
			t.Errorf("to %s: %v", s.to, ack)
		}
		acks[ack.MessageId] = true
		all, _ := s.from.Walk(ack.ConversationId, 100, false)
		if len(all) != 1 || all[0].MessageId != ack.MessageId || all[0].ClientMessageId != id {
			t.Errorf("the conversation with %s has %v", s.to, all)
		}
	}
}

// 500 messages written without a pause keep their order for 20 who are online,
// over links with random delays, and 5 who come later.
func TestR03OrderOfOneSender(t *testing.T) {
	t.Parallel()
	n := node(t, unhurried...)
	p, base := proxy(t, n)
	p.Set(faultproxy.Mode{Delay: 50 * time.Millisecond})
	var users []string
	for i := range 25 {
		users = append(users, fmt.Sprint("r", i))
	}
	conv := testenv.Group(t, n.URL(), n.Token("ann"), "team", users...)
	a := testenv.Login(t, base, protocol.JSON, n.Token("ann"), "d")
	var wg sync.WaitGroup
	for i, u := range users[:20] {
		r := &reader{c: testenv.Login(t, base, protocol.Encoding(i%2), n.Token(u), "d"), conv: conv, have: 1}
		wg.Go(func() {
			r.until(500)
			wantTexts(t, u, messages(r.shown), upTo(500))
		})
	}
	seqs := a.SendAll(numbered(500, toGroup(conv)))
	for i := 1; i < len(seqs); i++ {
		if seqs[i] <= seqs[i-1] {
			t.Fatalf("message %d has seq %d behind %d", i+1, seqs[i], seqs[i-1])
		}
	}
	wg.Wait()
	for _, u := range users[20:] {
		all, _ := login(t, n, u, "d").Walk(conv, 500, false)
		wantTexts(t, u, messages(all), upTo(500))
	}
}

// While the store is stalled and every queue full, each send is answered in
// time and never OK; afterwards each message is stored once.
func TestR04NothingIsAcknowledgedThatIsNotStored(t *testing.T) {
	t.Parallel()
	const clients, each = 25, 64
	n := node(t, unhurried...)
	conns := make([]*testenv.Client, clients)
	for i := range conns {
		conns[i] = login(t, n, fmt.Sprint("a", i), "d")
		conns[i].MustSend(testenv.ToUser(fmt.Sprint("b", i), "0"))
	}
	rss := n.Resident()
	release := stall(t, n)
	clock := testenv.NewClock(t)
	sends := make([][]*clientv1.Send, clients)
	var wg sync.WaitGroup
	for i, c := range conns {
		sends[i] = numbered(each, toUser(fmt.Sprint("b", i)))
		wg.Go(func() {
			var ids []uint32
			var frames []*clientv1.ClientFrame
			for _, m := range sends[i] {
				ids = append(ids, c.ID())
				frames = append(frames, sendFrame(ids[len(ids)-1], m))
			}
			began := clock.Now()
			if err := c.TryWrite(frames...); err != nil {
				t.Error(err)
				return
			}
			for _, id := range ids {
				f := c.Await(testenv.Patience, func(f *clientv1.ServerFrame) bool { return f.Id == id })
				if s := f.GetSendAck().GetStatus(); s != clientv1.Ack_ACK_RETRY {
					t.Errorf("with a stalled store: %v", f)
					return
				}
			}
			if took := clock.Since(began); took > 2500*time.Millisecond {
				t.Errorf("the answers took %v", took)
			}
		})
	}
	wg.Wait()
	if grown := n.Resident() - rss; grown > 200<<20 {
		t.Errorf("memory grew by %d MiB", grown>>20)
	}
	release()
	for i, c := range conns {
		wg.Go(func() {
			for _, m := range sends[i] {
				m.Resend = true
			}
			c.SendAll(sends[i])
			all, _ := c.Walk(protocol.DirectID(fmt.Sprint("a", i), fmt.Sprint("b", i)), 500, false)
			wantTexts(t, fmt.Sprint("history ", i), messages(all), append([]string{"0"}, upTo(each)...))
		})
	}
	wg.Wait()
}

// A process killed while it stores a message: the repeat is stored once, soon
// after the restart.
func TestR05KilledBetweenAcceptingAndFinishing(t *testing.T) {
	t.Parallel()
	const rounds = 20
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	rng := rand.New(rand.NewPCG(seed, 0))
	n := node(t)
	conv := protocol.DirectID("ann", "bob")
	for round := range rounds {
		a := login(t, n, "ann", "d")
		release := func() {}
		if round%2 == 0 && round > 0 { // nothing is stored yet when it dies
			release = stall(t, n)
		}
		m := testenv.ToUser("bob", fmt.Sprint(round+1))
		m.ClientMessageId = uuid.NewString()
		id := a.ID()
		a.Write(sendFrame(id, m))
		time.Sleep(time.Duration(rng.IntN(8)) * time.Millisecond)
		n.Kill()
		release()
		before := a.TakeWithin(0, func(f *clientv1.ServerFrame) bool { return f.Id == id }).GetSendAck()
		n.Start()
		a = login(t, n, "ann", "d")
		m.Resend = true
		ack := a.Send(m)
		for l := testenv.NewLimit(10 * time.Second); ack.Status == clientv1.Ack_ACK_RETRY && !l.Over(); {
			time.Sleep(100 * time.Millisecond)
			ack = a.Send(m)
		}
		if ack.Status != clientv1.Ack_ACK_OK {
			t.Fatalf("round %d: %v", round, ack)
		}
		if before.GetStatus() == clientv1.Ack_ACK_OK && (before.Seq != ack.Seq || before.MessageId != ack.MessageId || !ack.Duplicate) {
			t.Errorf("round %d: first %v, then %v", round, before, ack)
		}
		all, _ := a.Walk(conv, 500, false)
		wantTexts(t, "history", messages(all), upTo(round+1))
	}
}

// What was written to a link that has silently stopped is not delivered; the
// next session gets it, and the dead one goes.
func TestR06OnlyAnAckIsDelivery(t *testing.T) {
	t.Parallel()
	const ping, pong = 2 * time.Second, 4 * time.Second // those who answer may be stopped for two by the machine
	n := node(t, fmt.Sprint("gateway.ping_interval=", ping), fmt.Sprint("gateway.pong_timeout=", pong), "gateway.redeliver_after=200ms")
	p, base := proxy(t, n)
	a := login(t, n, "ann", "d")
	conv := a.MustSend(testenv.ToUser("bob", "1")).ConversationId
	token := n.Token("bob")
	dead := testenv.Login(t, base, protocol.JSON, token, "d")
	dead.Write(ackFrame(conv, 0, 1))
	a.Take("the receipt", func(f *clientv1.ServerFrame) bool { return f.GetReceipt().GetDeliveredSeq() == 1 })
	connections := n.Metric("imd_gateway_connections")
	p.Set(faultproxy.Mode{Blackhole: true})
	cut := time.Now()
	for i := range 20 {
		a.MustSend(testenv.ToUser("bob", fmt.Sprint(i+2)))
	}
	eventually(t, "the dead session goes", (ping+pong)*2, func() bool { return n.Metric("imd_gateway_connections") < connections })
	t.Logf("the dead session went after %v", time.Since(cut).Round(time.Millisecond))
	if f := a.TakeWithin(0, func(f *clientv1.ServerFrame) bool { return f.GetReceipt() != nil }); f != nil {
		t.Errorf("marked without an ack: %v", f)
	}
	b := testenv.Login(t, n.URL(), protocol.Proto, n.Token("bob"), "d2")
	st := state(t, b, conv)
	if st.UnreadCount != 21 || st.ReadSeq != 0 || st.HeadSeq != 21 {
		t.Errorf("bob's state: %v", st)
	}
	page := b.History(&clientv1.History{ConversationId: conv, AfterSeq: 1})
	wantTexts(t, "after the last acknowledged", messages(page.Entries), upTo(21)[1:])
	b.Write(ackFrame(conv, 1, 21))
	a.Take("the receipt for all", func(f *clientv1.ServerFrame) bool { return f.GetReceipt().GetDeliveredSeq() == 21 })
}

// Redelivery is a device's own: those that acknowledged get nothing twice, and
// the one that vanished gets a bounded number of copies.
func TestR07RedeliveryIsPerDeviceAndBounded(t *testing.T) {
	t.Parallel()
	const most = 5
	n := node(t, "gateway.redeliver_after=100ms")
	p, base := proxy(t, n)
	a := login(t, n, "ann", "d")
	conv := protocol.DirectID("ann", "bob")
	d1, d2 := login(t, n, "bob", "d1"), testenv.Login(t, n.URL(), protocol.JSON, n.Token("bob"), "d2")
	token := n.Token("bob")
	d3 := testenv.Login(t, base, protocol.Proto, token, "d3")
	acking := []*copies{count(d1, conv, 0), count(d2, conv, 0)}
	a.SendAll(numbered(50, toUser("bob")))
	type sight struct{ id, seq int64 }
	seen := map[sight]int{}
	take := func() {
		for _, e := range d3.TakeWithin(100*time.Millisecond, isDeliver).GetDeliver().GetEntries() {
			seen[sight{e.MessageId, e.Seq}]++
		}
	}
	eventually(t, "a copy of each of 50 messages", testenv.Patience, func() bool { take(); return len(seen) == 50 })
	for deadline := time.Now().Add(4 * time.Second); time.Now().Before(deadline); { // all redeliveries take 1.8 s at most
		take()
	}
	p.Set(faultproxy.Mode{Blackhole: true})
	if len(seen) != 50 {
		t.Errorf("%d different copies of 50 messages", len(seen))
	}
	again := 0
	for s, times := range seen {
		again += times - 1
		if times > 1+most {
			t.Errorf("seq %d came %d times without an ack", s.seq, times)
		}
	}
	extra := 0
	for _, k := range acking {
		k.all(t, "an acknowledging device", 1, 50)
		extra += k.again(1)
	}
	wantCounted(t, "the acknowledging devices", extra, redeliveries(n)-again)
	back := testenv.Login(t, n.URL(), protocol.Proto, token, "d3")
	page := back.History(&clientv1.History{ConversationId: conv})
	wantTexts(t, "the vanished device", messages(page.Entries), upTo(50))
	back.Write(ackFrame(conv, 0, 50))
	if f := back.TakeWithin(time.Second, isDeliver); f != nil {
		t.Errorf("after its sync it got %v", f)
	}
	if !slices.Equal(messages(page.Entries), upTo(50)) || !page.End {
		t.Errorf("its history: %v", page)
	}
}

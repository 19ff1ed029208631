package imd

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/imdhq/imd/sdk/go/gen/clientv1"
	"github.com/imdhq/imd/sdk/go/protocol"
)

// bubble runs a test with a clock of its own, and fails if a goroutine stays.
func bubble(t *testing.T, test func(t *testing.T, f *fakeServer)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		f := newFakeServer()
		test(t, f)
		f.each(func(s *fakeSession) { s.conn.close(0) })
	})
}

func connect(t *testing.T, opts Options) *Client {
	t.Helper()
	c, err := Connect(t.Context(), "ws://server", opts)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	return c
}

func acked(t *testing.T, o *Outgoing) Stored {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	s, err := o.Acked(ctx)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// texts reads messages until there are n.
func texts(t *testing.T, events func(func(Event, error) bool), n int) []string {
	t.Helper()
	var got []string
	for ev, err := range events {
		if err != nil {
			t.Fatalf("after %v: %v", got, err)
		}
		if e, ok := ev.(*EntryEvent); ok {
			if got = append(got, e.Text()); len(got) == n {
				break
			}
		}
	}
	return got
}

func within(t *testing.T, d time.Duration) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), d)
	t.Cleanup(cancel)
	return ctx
}

func TestSendAndReceive(t *testing.T) {
	bubble(t, func(t *testing.T, f *fakeServer) {
		alice, bob := connect(t, f.options("alice")), connect(t, f.options("bob"))
		events := bob.Events(within(t, time.Minute))
		stored := acked(t, alice.SendTo(t.Context(), "bob", Text("hello")))
		if stored.Seq != 1 || stored.Duplicate || stored.ConversationID != protocol.DirectID("alice", "bob") || stored.MessageID == 0 {
			t.Errorf("stored %+v", stored)
		}
		if got := texts(t, events, 1); got[0] != "hello" {
			t.Errorf("bob got %v", got)
		}
		time.Sleep(time.Second)
		acks := snapshot(f, func() []*clientv1.AckRange { return slices.Clone(f.acks) })
		if !slices.ContainsFunc(acks, func(r *clientv1.AckRange) bool { return r.Seq == 1 && r.AfterSeq == 0 }) {
			t.Errorf("acks %v", acks)
		}
		if items := alice.Direct("bob").Items(); len(items) != 1 || items[0].State.String() != "sent" {
			t.Errorf("alice sees %v", items)
		}
		if all := bob.Conversations(); len(all) != 1 || all[0].ID != stored.ConversationID || all[0].HeadSeq != 1 {
			t.Errorf("bob's conversations %+v", all)
		}
	})
}

func TestOrderOverRefusals(t *testing.T) {
	bubble(t, func(t *testing.T, f *fakeServer) {
		f.log("g_1", "alice", "bob")
		f.onSend = func(*fakeSession, *clientv1.Send) (*clientv1.Error, clientv1.Ack) {
			if rand.IntN(3) == 0 {
				return protocol.NewError("busy", "", 50*time.Millisecond), clientv1.Ack_ACK_RETRY
			}
			return nil, 0
		}
		alice := connect(t, f.options("alice"))
		var outs []*Outgoing
		for i := range 100 {
			outs = append(outs, alice.Conversation("g_1").Send(Text(fmt.Sprint(i))))
		}
		for i, o := range outs {
			if s := acked(t, o); s.Seq != int64(i+1) {
				t.Fatalf("message %d has seq %d", i, s.Seq)
			}
		}
	})
}

// Why a message is refused for now is told to people who wait for it.
func TestARefusalIsTold(t *testing.T) {
	bubble(t, func(t *testing.T, f *fakeServer) {
		f.log("g_1", "alice", "bob")
		busy := true
		f.onSend = func(*fakeSession, *clientv1.Send) (*clientv1.Error, clientv1.Ack) {
			if busy {
				busy = false
				return protocol.NewError(protocol.ReasonBusy, "later", time.Second), clientv1.Ack_ACK_RETRY
			}
			return nil, clientv1.Ack_ACK_OK
		}
		out := connect(t, f.options("alice")).Conversation("g_1").Send(Text("x"))
		time.Sleep(500 * time.Millisecond)
		if r := out.Refused(); r == nil || r.Reason != protocol.ReasonBusy || r.Message != "later" {
			t.Errorf("refused with %v", r)
		}
		if _, err := out.Acked(t.Context()); err != nil {
			t.Error(err)
		}
	})
}

func TestRefusedForGood(t *testing.T) {
	bubble(t, func(t *testing.T, f *fakeServer) {
		alice := connect(t, f.options("alice"))
		_, err := alice.Conversation("g_x").Send(Text("hi")).Acked(within(t, time.Minute))
		var e *Error
		if !errors.As(err, &e) || e.Reason != protocol.ReasonNotMember || e.Retryable {
			t.Errorf("error %v", err)
		}
		items := alice.Conversation("g_x").Items()
		if len(items) != 1 || items[0].Reason != protocol.ReasonNotMember {
			t.Errorf("items %v", items)
		}
		for _, o := range []*Outgoing{
			alice.SendTo(t.Context(), "no such id", Text("x")),
			alice.SendTo(t.Context(), "bob", nil),
			alice.SendTo(t.Context(), "bob", Text(string(make([]byte, protocol.MaxContent+1)))),
			alice.Conversation("g_x").SendWithID("not a uuid", Text("x")),
		} {
			if _, err := o.Acked(t.Context()); ReasonOf(err) == "" {
				t.Errorf("taken, or %v", err)
			}
		}
	})
}

// The connection breaks at random around every send, delivers are lost, sends
// are refused: all is stored once, in order, and both sides see the same.
func TestChaos(t *testing.T) {
	bubble(t, func(t *testing.T, f *fakeServer) {
		f.log("g_1", "alice", "bob")
		f.lose = func() bool { return rand.IntN(5) == 0 }
		f.breakAt = func() bool { return rand.IntN(12) == 0 }
		f.onSend = func(*fakeSession, *clientv1.Send) (*clientv1.Error, clientv1.Ack) {
			if rand.IntN(10) == 0 {
				return protocol.NewError("unavailable", "", 0), clientv1.Ack_ACK_RETRY
			}
			return nil, 0
		}
		alice, bob := connect(t, f.options("alice")), connect(t, f.options("bob"))
		const n = 200
		var want []string
		seqs := make(map[string]int64)
		var wg sync.WaitGroup
		var mu sync.Mutex
		for i := range n {
			text := fmt.Sprint(i)
			want = append(want, text)
			o := alice.Conversation("g_1").Send(Text(text))
			wg.Go(func() {
				s, err := o.Acked(within(t, time.Hour))
				if err != nil {
					t.Errorf("%s: %v", text, err)
				}
				mu.Lock()
				seqs[text] = s.Seq
				mu.Unlock()
			})
		}
		// The last entry may be lost: the server's comparison of heads heals it.
		wg.Go(func() {
			for range 1000 {
				time.Sleep(5 * time.Second)
				f.each(func(s *fakeSession) {
					s.send(&clientv1.ServerFrame{Kind: &clientv1.ServerFrame_Head{Head: &clientv1.Head{ConversationId: "g_1", Seq: f.logs["g_1"].head()}}})
				})
				if alice.OutboxLen() == 0 {
					return
				}
			}
		})
		for name, c := range map[string]*Client{"alice": alice, "bob": bob} {
			wg.Go(func() {
				var got []string
				last := int64(0)
				for ev, err := range c.Conversation("g_1").Events(within(t, time.Hour), After(0)) {
					if err != nil {
						t.Errorf("%s after %d: %v", name, len(got), err)
						return
					}
					e, ok := ev.(*EntryEvent)
					if !ok {
						continue
					}
					if e.Entry.Seq <= last {
						t.Errorf("%s: %d after %d", name, e.Entry.Seq, last)
					}
					last = e.Entry.Seq
					mu.Lock()
					if want, known := seqs[e.Text()]; known && want != last {
						t.Errorf("%s: %s has seq %d, its ack said %d", name, e.Text(), last, want)
					}
					mu.Unlock()
					if got = append(got, e.Text()); len(got) == n {
						break
					}
				}
				if !slices.Equal(got, want) {
					t.Errorf("%s sees %v", name, got)
				}
			})
		}
		wg.Wait()
		if len(f.logs["g_1"].entries) != n {
			t.Errorf("%d entries stored, want %d", len(f.logs["g_1"].entries), n)
		}
	})
}

func TestResumeNamesCursors(t *testing.T) {
	bubble(t, func(t *testing.T, f *fakeServer) {
		f.log("g_1", "alice")
		for i := range 30 {
			f.post("g_1", "bob", fmt.Sprint(i))
		}
		opts := f.options("alice")
		var mu sync.Mutex
		var states []State
		opts.OnState = func(s StateChange) {
			mu.Lock()
			defer mu.Unlock()
			states = append(states, s.To)
		}
		alice := connect(t, opts)
		events := alice.Conversation("g_1").Events(within(t, time.Hour))
		f.each(func(s *fakeSession) { s.conn.close(0) })
		synctest.Wait()
		for i := range 70 {
			f.post("g_1", "bob", fmt.Sprint("away ", i))
		}
		if got := texts(t, events, 70); got[0] != "away 0" || got[69] != "away 69" {
			t.Errorf("got %v", got)
		}
		last := snapshot(f, func() *clientv1.Sync { return f.syncs[len(f.syncs)-1] })
		if len(last.Cursors) != 1 || last.Cursors[0].Have != 30 || last.SyncToken != "end" || last.PageLimit != 20 {
			t.Errorf("sync %v", last)
		}
		_ = alice.Close()
		synctest.Wait()
		mu.Lock()
		defer mu.Unlock()
		if want := []State{Joining, Online, Waiting, Joining, Online, Idle}; !slices.Equal(states, want) {
			t.Errorf("states %v, want %v", states, want)
		}
	})
}

func TestSyncOverSeveralPages(t *testing.T) {
	bubble(t, func(t *testing.T, f *fakeServer) {
		for i := range 8 {
			id := fmt.Sprint("g_", i)
			f.log(id, "alice")
			f.post(id, "bob", "x")
		}
		if got := len(connect(t, f.options("alice")).Conversations()); got != 8 {
			t.Errorf("%d conversations, want 8", got)
		}
	})
}

// A listing goes on over a break. What its earlier pages named stays, and what
// changed in it during the break is asked for once it has ended.
func TestSyncGoesOnOverABreak(t *testing.T) {
	bubble(t, func(t *testing.T, f *fakeServer) {
		for i := range 8 {
			id := fmt.Sprint("g_", i)
			f.log(id, "alice")
			f.post(id, "bob", "x")
		}
		broken := false
		f.onSync = func(s *fakeSession, in *clientv1.Sync) bool {
			if in.SyncToken != "more3" || broken {
				return true
			}
			broken = true
			s.conn.close(0)
			l := f.logs["g_0"] // on the page that was answered
			f.append(l, "g_0", nil, &clientv1.Entry{Sender: "bob", Content: Text("meanwhile"), ClientMessageId: NewID()})
			return false
		}
		alice := connect(t, f.options("alice"))
		if got := len(alice.Conversations()); got != 8 {
			t.Errorf("%d conversations, want 8", got)
		}
		items := alice.Conversation("g_0").Items()
		if n := len(items); n != 2 || items[n-1].Entry.Content.GetText() != "meanwhile" {
			t.Errorf("%d items, want what was written meanwhile", n)
		}
	})
}

// A server that cannot answer a sync now is asked again on the same session: a
// client that came back instead would keep a storm of them going.
func TestRefusedSyncIsAskedAgain(t *testing.T) {
	bubble(t, func(t *testing.T, f *fakeServer) {
		f.log("g_1", "alice")
		f.post("g_1", "bob", "x")
		f.refuseSyncs = 3
		if got := len(connect(t, f.options("alice")).Conversations()); got != 1 {
			t.Errorf("%d conversations, want 1", got)
		}
		if f.dials != 1 {
			t.Errorf("%d connections, want 1", f.dials)
		}
	})
}

// A conversation that is new begins with its first message, however many come
// before the client knows it.
func TestNewConversationBeginsWithItsFirstMessage(t *testing.T) {
	bubble(t, func(t *testing.T, f *fakeServer) {
		alice, bob := connect(t, f.options("alice")), connect(t, f.options("bob"))
		events := bob.Events(within(t, time.Minute))
		for i := range 100 {
			alice.SendTo(t.Context(), "bob", Text(fmt.Sprint(i)))
		}
		if got := texts(t, events, 100); got[0] != "0" || got[99] != "99" {
			t.Errorf("got %v", got)
		}
	})
}

func TestPullMode(t *testing.T) {
	bubble(t, func(t *testing.T, f *fakeServer) {
		f.log("g_1", "alice")
		f.headsOnly = true
		f.post("g_1", "bob", "first")
		alice := connect(t, f.options("alice"))
		events := alice.Events(within(t, time.Minute))
		for i := range 120 {
			f.post("g_1", "bob", fmt.Sprint(i))
		}
		if got := texts(t, events, 120); got[0] != "0" || got[119] != "119" {
			t.Errorf("got %v", got)
		}
	})
}

func TestSlowReaderIsToldAndServedFromHistory(t *testing.T) {
	bubble(t, func(t *testing.T, f *fakeServer) {
		f.log("g_1", "alice")
		f.post("g_1", "bob", "0")
		opts := f.options("alice")
		opts.KeepItems = 10
		alice := connect(t, opts)
		next := int64(2)
		lagged := false
		events := alice.Events(within(t, time.Minute))
		f.post("g_1", "bob", "1")
		for ev, err := range events {
			if err != nil {
				t.Fatal(err)
			}
			switch ev := ev.(type) {
			case *LaggedEvent:
				lagged = true
			case *EntryEvent:
				if ev.Entry.Seq != next {
					t.Fatalf("seq %d, want %d", ev.Entry.Seq, next)
				}
				if next == 2 { // falls asleep over the first one
					for i := range 100 {
						f.post("g_1", "bob", fmt.Sprint(i))
					}
					time.Sleep(time.Second)
				}
				next++
			}
			if next > 100 {
				break
			}
		}
		if !lagged {
			t.Error("the reader was not told")
		}
	})
}

func TestEventsFromTheBeginning(t *testing.T) {
	bubble(t, func(t *testing.T, f *fakeServer) {
		f.log("g_1", "alice")
		for i := range 130 {
			f.post("g_1", "bob", fmt.Sprint(i))
		}
		alice := connect(t, f.options("alice"))
		events := alice.Conversation("g_1").Events(within(t, time.Minute), After(0))
		if got := texts(t, events, 130); got[0] != "0" || got[129] != "129" {
			t.Errorf("got %v", got)
		}
		if _, more := alice.Conversation("g_none").Info(); more {
			t.Error("an unknown conversation is known")
		}
		for _, err := range alice.Conversation("g_none").Events(within(t, time.Minute)) {
			if ReasonOf(err) != protocol.ReasonNotMember {
				t.Errorf("error %v", err)
			}
		}
	})
}

func TestHistory(t *testing.T) {
	bubble(t, func(t *testing.T, f *fakeServer) {
		f.log("g_1", "alice")
		for i := range 120 {
			f.post("g_1", "bob", fmt.Sprint(i+1))
		}
		g := connect(t, f.options("alice")).Conversation("g_1")
		read := func(opts ...Option) (seqs []int64) {
			for e, err := range g.History(within(t, time.Minute), opts...) {
				if err != nil {
					t.Fatal(err)
				}
				seqs = append(seqs, e.Seq)
			}
			return seqs
		}
		if got := read(); len(got) != 120 || got[0] != 1 || got[119] != 120 {
			t.Errorf("forward %v", got)
		}
		if got := read(Backward()); len(got) != 120 || got[0] != 120 || got[119] != 1 {
			t.Errorf("backward %v", got)
		}
		if got := read(Backward(), Before(11), Limit(3)); !slices.Equal(got, []int64{10, 9, 8}) {
			t.Errorf("three before 11: %v", got)
		}
		if got := read(After(118)); !slices.Equal(got, []int64{119, 120}) {
			t.Errorf("after 118: %v", got)
		}
		if n := len(g.Items()); n != 20 {
			t.Errorf("%d items", n)
		}
		for more := true; more; {
			var err error
			if more, err = g.LoadOlder(within(t, time.Minute)); err != nil {
				t.Fatal(err)
			}
		}
		if items := g.Items(); len(items) != 120 || items[0].Entry.Seq != 1 {
			t.Errorf("%d items after all older pages", len(items))
		}
	})
}

func TestDrainMovesWithoutABreak(t *testing.T) {
	bubble(t, func(t *testing.T, f *fakeServer) {
		f.log("g_1", "alice", "bob")
		alice := connect(t, f.options("alice"))
		events := alice.Events(within(t, time.Hour))
		f.each(func(s *fakeSession) {
			s.send(&clientv1.ServerFrame{Kind: &clientv1.ServerFrame_Drain{Drain: &clientv1.Drain{ReconnectAfterMs: 1840, CloseAfterMs: 9000}}})
		})
		synctest.Wait()
		if alice.State() != Draining {
			t.Errorf("state %v", alice.State())
		}
		acked(t, alice.Conversation("g_1").Send(Text("on the old one")))
		f.post("g_1", "bob", "also")
		time.Sleep(1900 * time.Millisecond)
		if n := snapshot(f, func() int { return len(f.hellos) }); n != 2 || alice.State() != Online {
			t.Fatalf("%d hellos, state %v", n, alice.State())
		}
		acked(t, alice.Conversation("g_1").Send(Text("on the new one")))
		if got := texts(t, events, 3); !slices.Equal(got, []string{"on the old one", "also", "on the new one"}) {
			t.Errorf("got %v", got)
		}
		time.Sleep(time.Minute / 2)
		if alice.Err() != nil || alice.State() != Online {
			t.Errorf("after superseded: %v, %v", alice.State(), alice.Err())
		}
	})
}

func TestEndsForGood(t *testing.T) {
	for _, reason := range []string{"replaced", "kicked", "revoked", "superseded"} {
		bubble(t, func(t *testing.T, f *fakeServer) {
			alice := connect(t, f.options("alice"))
			f.each(func(s *fakeSession) { s.bye(protocol.NewBye(reason, "why", 0)) })
			<-alice.Done()
			synctest.Wait()
			if ReasonOf(alice.Err()) != reason || alice.State() != Idle {
				t.Errorf("%v, %v", alice.State(), alice.Err())
			}
			if _, err := alice.SendTo(t.Context(), "bob", Text("x")).Acked(t.Context()); ReasonOf(err) != reason {
				t.Errorf("a later send: %v", err)
			}
			for _, err := range alice.Events(t.Context()) {
				if ReasonOf(err) != reason {
					t.Errorf("events: %v", err)
				}
			}
			if err := alice.Direct("bob").MarkRead(t.Context(), 1); ReasonOf(err) != reason {
				t.Errorf("read: %v", err)
			}
		})
	}
}

func TestConnectFails(t *testing.T) {
	bubble(t, func(t *testing.T, f *fakeServer) {
		f.refuseHello = func(*clientv1.Hello) *clientv1.Bye { return protocol.NewBye("bad_token", "no", 0) }
		if _, err := Connect(t.Context(), "ws://server", f.options("alice")); ReasonOf(err) != "bad_token" {
			t.Errorf("error %v", err)
		}
		f.refuseHello = func(*clientv1.Hello) *clientv1.Bye { return protocol.NewBye("busy", "", 0) }
		began := time.Now()
		_, err := Connect(within(t, 10*time.Second), "ws://server", f.options("alice"))
		if !errors.Is(err, context.DeadlineExceeded) || ReasonOf(err) != "busy" || time.Since(began) != 10*time.Second {
			t.Errorf("error %v after %v", err, time.Since(began))
		}
		if n := len(f.hellos); n < 20 {
			t.Errorf("%d attempts, told to come after 400 ms", n)
		}
		for _, bad := range []Options{{}, {Token: "x", Device: "a b"}, {Token: "x", Name: string(make([]byte, 65))}} {
			if _, err := Connect(t.Context(), "ws://server", bad); err == nil {
				t.Errorf("%+v was taken", bad)
			}
		}
		if _, err := Connect(t.Context(), "ftp://server", Options{Token: "x"}); err == nil {
			t.Error("the address was taken")
		}
	})
}

func TestSilenceIsADeadConnection(t *testing.T) {
	bubble(t, func(t *testing.T, f *fakeServer) {
		alice := connect(t, f.options("alice"))
		time.Sleep(34 * time.Second)
		if n := snapshot(f, func() int { return f.dials }); n != 1 {
			t.Errorf("%d connections after 34 s", n)
		}
		time.Sleep(3 * time.Second)
		if n := snapshot(f, func() int { return f.dials }); n != 2 || alice.State() != Online {
			t.Errorf("%d connections after 37 s, %v", n, alice.State())
		}
	})
}

func TestPingIsAnsweredAndHoldsTheConnection(t *testing.T) {
	bubble(t, func(t *testing.T, f *fakeServer) {
		connect(t, f.options("alice"))
		for range 10 {
			time.Sleep(20 * time.Second)
			f.each(func(s *fakeSession) {
				s.send(&clientv1.ServerFrame{Kind: &clientv1.ServerFrame_Ping{Ping: &clientv1.Ping{IntervalMs: 20000}}})
			})
		}
		if n := snapshot(f, func() int { return f.dials }); n != 1 {
			t.Errorf("%d connections", n)
		}
	})
}

func TestUnansweredSendIsADeadConnection(t *testing.T) {
	bubble(t, func(t *testing.T, f *fakeServer) {
		f.log("g_1", "alice")
		alice := connect(t, f.options("alice"))
		snapshot(f, func() bool { f.silent = true; return true })
		out := alice.Conversation("g_1").Send(Text("x"))
		time.Sleep(9 * time.Second)
		snapshot(f, func() bool { f.silent = false; return true })
		if s := acked(t, out); s.Seq != 1 {
			t.Errorf("stored %+v", s)
		}
		resent := snapshot(f, func() *clientv1.Send { return f.sends[len(f.sends)-1] })
		if !resent.Resend || f.dials != 2 {
			t.Errorf("%v on connection %d", resent, f.dials)
		}
	})
}

func TestTokenIsRefreshedInTime(t *testing.T) {
	bubble(t, func(t *testing.T, f *fakeServer) {
		f.tokenLife = 100 * time.Second
		n := 0
		opts := f.options("")
		opts.TokenFunc = func(context.Context) (string, error) { n++; return fmt.Sprint("alice/", n), nil }
		connect(t, opts)
		go func() { // keeps the connection alive
			for range 20 {
				time.Sleep(10 * time.Second)
				f.each(func(s *fakeSession) {
					s.send(&clientv1.ServerFrame{Kind: &clientv1.ServerFrame_Ping{Ping: &clientv1.Ping{}}})
				})
			}
		}()
		time.Sleep(170 * time.Second)
		got := snapshot(f, func() []string { return slices.Clone(f.tokens) })
		if !slices.Equal(got, []string{"alice/2", "alice/3"}) || f.dials != 1 {
			t.Errorf("refreshed %v on %d connections", got, f.dials)
		}
		time.Sleep(time.Minute)
	})
}

func TestExpiredTokenIsReplaced(t *testing.T) {
	bubble(t, func(t *testing.T, f *fakeServer) {
		n := 0
		opts := f.options("")
		opts.TokenFunc = func(context.Context) (string, error) { n++; return fmt.Sprint("alice/", n), nil }
		connect(t, opts)
		f.each(func(s *fakeSession) { s.bye(protocol.NewBye("token_expired", "", 0)) })
		time.Sleep(time.Second)
		if got := snapshot(f, func() string { return f.hellos[len(f.hellos)-1].Token }); got != "alice/2" {
			t.Errorf("reconnected with %q", got)
		}
	})
}

func TestExpiredFixedTokenEnds(t *testing.T) {
	bubble(t, func(t *testing.T, f *fakeServer) {
		alice := connect(t, f.options("alice"))
		f.each(func(s *fakeSession) { s.bye(protocol.NewBye("token_expired", "", 0)) })
		<-alice.Done()
		if ReasonOf(alice.Err()) != "token_expired" {
			t.Errorf("%v", alice.Err())
		}
	})
}

func TestTokenSourceGivesUp(t *testing.T) {
	bubble(t, func(t *testing.T, f *fakeServer) {
		opts := f.options("")
		opts.TokenFunc = func(context.Context) (string, error) { return "", fmt.Errorf("signed out: %w", ErrUnauthorized) }
		if _, err := Connect(t.Context(), "ws://server", opts); !errors.Is(err, ErrUnauthorized) {
			t.Errorf("error %v", err)
		}
	})
}

func TestAnotherDataEpoch(t *testing.T) {
	bubble(t, func(t *testing.T, f *fakeServer) {
		f.log("g_1", "alice")
		for i := range 5 {
			f.post("g_1", "bob", fmt.Sprint("old ", i))
		}
		alice := connect(t, f.options("alice"))
		events := alice.Conversation("g_1").Events(within(t, time.Minute))
		snapshot(f, func() bool {
			f.epoch, f.logs = "e2", map[string]*fakeLog{}
			f.log("g_1", "alice")
			return true
		})
		f.post("g_1", "bob", "new")
		f.each(func(s *fakeSession) { s.bye(protocol.NewBye("resync", "", 0)) })
		var got []string
		for ev, err := range events {
			if err != nil {
				t.Fatalf("after %v: %v", got, err)
			}
			switch ev := ev.(type) {
			case *ResyncEvent:
				got = append(got, "resync")
			case *EntryEvent:
				got = append(got, ev.Text())
			}
			if got[len(got)-1] == "new" && slices.Contains(got, "resync") {
				break
			}
		}
		if want := []string{"resync", "new"}; !slices.Equal(got[len(got)-2:], want) {
			t.Errorf("got %v", got)
		}
		if items := alice.Conversation("g_1").Items(); len(items) != 1 {
			t.Errorf("%d items", len(items))
		}
	})
}

// A store that is restored while a session lives answers its syncs from the new
// history. Such an answer must not be taken for one of the old.
func TestAnotherDataEpochInASyncEndsTheSession(t *testing.T) {
	bubble(t, func(t *testing.T, f *fakeServer) {
		f.log("g_1", "alice")
		f.post("g_1", "bob", "x")
		changed := false
		f.onSync = func(*fakeSession, *clientv1.Sync) bool {
			if !changed {
				changed, f.epoch = true, "another"
			}
			return true
		}
		alice := connect(t, f.options("alice"))
		if f.dials != 2 {
			t.Errorf("%d connections, want 2", f.dials)
		}
		if last := f.syncs[len(f.syncs)-1]; last.SyncToken != "" {
			t.Errorf("syncs from %q", last.SyncToken)
		}
		if got := len(alice.Conversation("g_1").Items()); got != 1 {
			t.Errorf("%d items, want 1", got)
		}
	})
}

func TestReadAndReceipts(t *testing.T) {
	bubble(t, func(t *testing.T, f *fakeServer) {
		f.log("g_1", "alice", "bob")
		f.post("g_1", "bob", "x")
		alice, bob := connect(t, f.options("alice")), connect(t, f.options("bob"))
		events := bob.Events(within(t, time.Minute))
		if err := alice.Conversation("g_1").MarkRead(within(t, time.Minute), 1); err != nil {
			t.Fatal(err)
		}
		if info, ok := alice.Conversation("g_1").Info(); !ok || info.ReadSeq != 1 || info.Unread != 0 {
			t.Errorf("info %+v", info)
		}
		for ev, err := range events {
			r, ok := ev.(*ReceiptEvent)
			if err != nil || !ok || r.UserID != "alice" || r.ReadSeq != 1 || r.Conversation() != "g_1" {
				t.Errorf("%v, %v", ev, err)
			}
			break
		}
	})
}

func TestWithdraw(t *testing.T) {
	bubble(t, func(t *testing.T, f *fakeServer) {
		f.log("g_1", "alice")
		f.onSend = func(_ *fakeSession, s *clientv1.Send) (*clientv1.Error, clientv1.Ack) {
			if s.Content.GetText() == "a" {
				return protocol.NewError("busy", "", time.Minute), clientv1.Ack_ACK_RETRY
			}
			return nil, 0
		}
		g := connect(t, f.options("alice")).Conversation("g_1")
		a, b := g.Send(Text("a")), g.Send(Text("b"))
		synctest.Wait()
		time.Sleep(time.Second)
		a.Withdraw()
		a.Withdraw()
		if _, err := a.Acked(t.Context()); err != ErrWithdrawn {
			t.Errorf("withdrawn: %v", err)
		}
		if s := acked(t, b); s.Seq != 1 {
			t.Errorf("the next one: %+v", s)
		}
		time.Sleep(time.Second) // the sync for the new conversation is over
		if again := g.SendWithID(b.ClientMessageID, Text("b")); acked(t, again).Seq != 1 || !acked(t, again).Duplicate {
			t.Error("the same id was not a duplicate")
		}
	})
}

func TestCloseEndsWhatWaits(t *testing.T) {
	bubble(t, func(t *testing.T, f *fakeServer) {
		f.log("g_1", "alice")
		alice := connect(t, f.options("alice"))
		snapshot(f, func() bool { f.silent = true; return true })
		out := alice.Conversation("g_1").Send(Text("x"))
		var wg sync.WaitGroup
		wg.Go(func() {
			for _, err := range alice.Events(t.Context()) {
				if !errors.Is(err, ErrClosed) {
					t.Errorf("events end with %v", err)
				}
			}
		})
		wg.Go(func() {
			for _, err := range alice.Conversation("g_1").History(t.Context()) {
				if !errors.Is(err, ErrClosed) {
					t.Errorf("history ends with %v", err)
				}
			}
		})
		synctest.Wait()
		_ = alice.Close()
		_ = alice.Close()
		if _, err := out.Acked(t.Context()); !errors.Is(err, ErrClosed) {
			t.Errorf("send ends with %v", err)
		}
		wg.Wait()
	})
}

func TestAcksAreCollected(t *testing.T) {
	bubble(t, func(t *testing.T, f *fakeServer) {
		f.log("g_1", "alice")
		f.post("g_1", "bob", "0")
		connect(t, f.options("alice"))
		time.Sleep(time.Second)
		for i := range 10 {
			f.post("g_1", "bob", fmt.Sprint(i))
		}
		time.Sleep(240 * time.Millisecond)
		n := snapshot(f, func() int { return len(f.acks) })
		time.Sleep(20 * time.Millisecond)
		got := snapshot(f, func() []*clientv1.AckRange { return slices.Clone(f.acks[n:]) })
		if n != 1 || len(got) != 1 || got[0].AfterSeq != 1 || got[0].Seq != 11 {
			t.Errorf("%d acks before, then %v", n, got)
		}
		for i := range 40 {
			f.post("g_1", "bob", fmt.Sprint(i))
		}
		synctest.Wait()
		if got := snapshot(f, func() int { return len(f.acks) }); got < 3 {
			t.Error("32 entries were not acknowledged at once")
		}
	})
}

// In a large group acks may wait longer, and no further than any others by count.
func TestAcksOfALargeGroup(t *testing.T) {
	bubble(t, func(t *testing.T, f *fakeServer) {
		f.log("g_1", "alice")
		f.post("g_1", "bob", "0")
		alice := connect(t, f.options("alice"))
		alice.mu.Lock()
		alice.convs["g_1"].state.MemberCount = protocol.LargeGroup + 1
		alice.convs["g_1"].most = protocol.AckEntries / 2 // in place of what is drawn
		alice.mu.Unlock()
		time.Sleep(3 * time.Second)
		n := snapshot(f, func() int { return len(f.acks) })
		f.post("g_1", "bob", "1")
		time.Sleep(900 * time.Millisecond)
		if got := snapshot(f, func() int { return len(f.acks) }); got != n {
			t.Error("an entry was acknowledged before 1 s")
		}
		for i := range protocol.AckEntries {
			f.post("g_1", "bob", fmt.Sprint(i))
		}
		synctest.Wait()
		if got := snapshot(f, func() int { return len(f.acks) }); got != n+1 {
			t.Errorf("%d acks after %d entries, want 1", got-n, protocol.AckEntries)
		}
	})
}

func TestSendOnly(t *testing.T) {
	bubble(t, func(t *testing.T, f *fakeServer) {
		f.log("g_1", "alice")
		f.post("g_1", "bob", "x")
		opts := f.options("alice")
		opts.SendOnly = true
		alice := connect(t, opts)
		f.post("g_1", "bob", "y")
		if s := acked(t, alice.Conversation("g_1").Send(Text("z"))); s.Seq != 3 {
			t.Errorf("stored %+v", s)
		}
		time.Sleep(5 * time.Second)
		f.each(func(s *fakeSession) { s.conn.close(0) })
		synctest.Wait()
		acked(t, alice.SendTo(t.Context(), "bob", Text("after a break")))
		if n := snapshot(f, func() int { return len(f.syncs) + len(f.acks) }); n != 0 || len(alice.Conversations()) != 0 {
			t.Errorf("%d syncs and acks, conversations %v", n, alice.Conversations())
		}
		for e, err := range alice.Conversation("g_1").History(within(t, time.Minute), After(2)) {
			if err != nil || e.Seq != 3 {
				t.Errorf("history %v, %v", e, err)
			}
		}
	})
}

package imd

import (
	"fmt"
	"iter"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/imdhq/imd/sdk/go/gen/clientv1"
	"github.com/imdhq/imd/sdk/go/protocol"
)

// drainAll asks the sessions of a user to move.
func (f *fakeServer) drainAll(user string, after time.Duration) {
	f.each(func(s *fakeSession) {
		if s.user == user {
			s.send(&clientv1.ServerFrame{Kind: &clientv1.ServerFrame_Drain{Drain: &clientv1.Drain{
				ReconnectAfterMs: uint32(after.Milliseconds()), CloseAfterMs: 60_000}}})
		}
	})
}

// session is the one that is written to.
func (c *Client) session() *session {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.cur
}

// Both sides of a conversation move from node to node while they write: nobody is
// without a connection in between, everything is stored and shown once and in
// order, and all of it is acknowledged.
func TestMovingUnderLoad(t *testing.T) {
	bubble(t, func(t *testing.T, f *fakeServer) {
		f.log("g_1", "alice", "bob")
		var states sync.Map
		clients := map[string]*Client{}
		for _, name := range []string{"alice", "bob"} {
			opts := f.options(name)
			opts.Device = name
			opts.OnState = func(s StateChange) {
				if s.To == Waiting {
					states.Store(name, s)
				}
			}
			clients[name] = connect(t, opts)
		}
		const n, moves = 150, 12
		var wg sync.WaitGroup
		for name, c := range clients {
			wg.Go(func() {
				for i := range n {
					time.Sleep(rand.N(40 * time.Millisecond))
					o := c.Conversation("g_1").Send(Text(fmt.Sprintf("%s %d", name, i)))
					wg.Go(func() { acked(t, o) })
				}
			})
			wg.Go(func() {
				for range moves {
					time.Sleep(rand.N(300 * time.Millisecond))
					f.drainAll(name, rand.N(100*time.Millisecond))
				}
			})
			wg.Go(func() {
				next, last := map[string]int{}, int64(0)
				for ev, err := range c.Conversation("g_1").Events(within(t, time.Hour), After(0)) {
					if err != nil {
						t.Errorf("%s: %v", name, err)
						return
					}
					e, ok := ev.(*EntryEvent)
					if !ok {
						continue
					}
					if e.Entry.Seq <= last {
						t.Errorf("%s is shown %d after %d", name, e.Entry.Seq, last)
					}
					last = e.Entry.Seq
					from := e.Entry.Sender
					if want := fmt.Sprintf("%s %d", from, next[from]); e.Text() != want {
						t.Errorf("%s is shown %q, want %q", name, e.Text(), want)
					}
					if next[from]++; next["alice"]+next["bob"] == 2*n {
						return
					}
				}
			})
		}
		wg.Wait()
		time.Sleep(time.Second)
		states.Range(func(name, s any) bool {
			t.Errorf("%v was without a connection: %+v", name, s)
			return true
		})
		f.mu.Lock()
		defer f.mu.Unlock()
		if stored := len(f.logs["g_1"].entries); stored != 2*n {
			t.Errorf("%d entries are stored, want %d", stored, 2*n)
		}
		if len(f.hellos) < 2+moves {
			t.Errorf("only %d sessions", len(f.hellos))
		}
	})
}

// What the session that was left still says does not reach what the next one
// does: its frames have the same numbers. It may also end before the next one is
// welcome.
func TestTheLeftSessionIsNotTakenForTheNext(t *testing.T) {
	t.Run("as it comes", func(t *testing.T) { leftSession(t, false) })
	t.Run("it ends first", func(t *testing.T) { leftSession(t, true) })
}

func leftSession(t *testing.T, endsFirst bool) {
	bubble(t, func(t *testing.T, f *fakeServer) {
		f.log("g_1", "alice", "bob")
		f.online = []*clientv1.UserPresence{{UserId: "bob", LastSeenMs: 7}}
		f.hold = func(s *clientv1.Send) bool { return s.Content.GetText() != "one" }
		alice := connect(t, f.options("alice"))
		w := alice.WatchPresence("bob")
		acked(t, alice.Conversation("g_1").Send(Text("one")))
		two := alice.Conversation("g_1").Send(Text("two"))
		synctest.Wait()
		old := alice.session()
		three := alice.Conversation("g_1").Send(Text("three"))
		var welcome func()
		if endsFirst {
			snapshot(f, func() bool {
				f.later = func(in *clientv1.ClientFrame, answer func()) bool {
					if in.GetHello() == nil {
						return false
					}
					welcome = answer
					return true
				}
				return true
			})
		}
		f.drainAll("alice", 0)
		time.Sleep(10 * time.Millisecond)
		if endsFirst {
			f.each(func(s *fakeSession) { s.conn.close(0) }) // the next one is not among them yet
			synctest.Wait()
			if alice.session() != nil {
				t.Fatal("it has not ended")
			}
			snapshot(f, func() bool { f.later = nil; welcome(); return true })
			synctest.Wait()
		}
		if s := alice.session(); s == nil || s == old {
			t.Fatal("it has not moved")
		}
		for id := range uint32(8) {
			for _, status := range []clientv1.Ack{clientv1.Ack_ACK_FAIL, clientv1.Ack_ACK_RETRY} {
				alice.received(old, []*clientv1.ServerFrame{{Id: id, Kind: &clientv1.ServerFrame_SendAck{SendAck: &clientv1.SendAck{
					Status: status, Error: protocol.NewError(protocol.ReasonBusy, "", time.Hour)}}}})
			}
		}
		alice.received(old, []*clientv1.ServerFrame{{Kind: &clientv1.ServerFrame_Presence{Presence: &clientv1.Presence{
			Users: []*clientv1.UserPresence{{UserId: "bob", Online: true}}}}}})
		if p, ok := w.Get("bob"); !ok || p.Online {
			t.Errorf("bob is %+v, known: %v", p, ok)
		}
		f.mu.Lock()
		f.hold = nil
		f.mu.Unlock()
		f.each(func(s *fakeSession) { s.conn.close(0) }) // and all of it is written again
		began := time.Now()
		acked(t, two)
		acked(t, three)
		if took := time.Since(began); took > time.Minute {
			t.Errorf("held back for %v", took)
		}
	})
}

// Whoever types and watches goes on to do so on the next node.
func TestTypingAndWatchesMove(t *testing.T) {
	bubble(t, func(t *testing.T, f *fakeServer) {
		f.log("g_1", "alice", "bob")
		f.post("g_1", "bob", "x")
		f.online = []*clientv1.UserPresence{{UserId: "bob", Online: true}}
		alice := connect(t, f.options("alice"))
		w := alice.WatchPresence("bob")
		next, stop := iter.Pull2(w.Events(t.Context()))
		defer stop()
		if got := presences(t, next, 1); got != "bob:true:false" {
			t.Errorf("told %s", got)
		}
		alice.Conversation("g_1").Typing()
		synctest.Wait()
		f.drainAll("alice", 0)
		time.Sleep(10 * time.Millisecond)
		alice.Conversation("g_1").Typing()
		synctest.Wait()
		f.mu.Lock()
		if n := len(f.watches); n != 2 || !slices.Equal(f.watches[1].UserIds, []string{"bob"}) || f.typed != 2 {
			t.Errorf("watched %v, typed %d times", f.watches, f.typed)
		}
		f.online = []*clientv1.UserPresence{{UserId: "bob", LastSeenMs: 8}}
		f.mu.Unlock()
		f.each(func(s *fakeSession) { f.tellPresence(s, 0) })
		for p := range w.Events(t.Context()) {
			if !p.Online {
				break
			}
		}
	})
}

// An ack that was taken for the session that was left, and did not leave with it,
// goes on the next one, so that nothing stays unacknowledged in between.
func TestAcksMove(t *testing.T) {
	bubble(t, func(t *testing.T, f *fakeServer) {
		f.log("g_1", "alice", "bob")
		f.post("g_1", "bob", "0")
		alice := connect(t, f.options("alice"))
		for i := range 200 {
			f.post("g_1", "bob", fmt.Sprint(i+1))
			if i%20 == 10 {
				f.drainAll("alice", time.Duration(i)*time.Millisecond)
			}
			time.Sleep(11 * time.Millisecond)
		}
		time.Sleep(time.Second)
		_ = alice.Close()
		f.mu.Lock()
		defer f.mu.Unlock()
		delivered := int64(0)
		for _, r := range f.acks {
			if r.AfterSeq <= delivered {
				delivered = max(delivered, r.Seq)
			}
		}
		if head := f.logs["g_1"].head(); delivered != head {
			t.Errorf("acknowledged up to %d of %d: %v", delivered, head, f.acks)
		}
	})
}

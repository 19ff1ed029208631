package imd

import (
	"context"
	"fmt"
	"iter"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/imdhq/imd/sdk/go/gen/clientv1"
	"github.com/imdhq/imd/sdk/go/protocol"
)

// presences takes the next n of a watch, in short.
func presences(t *testing.T, next func() (Presence, error, bool), n int) string {
	t.Helper()
	var out []string
	for range n {
		p, err, ok := next()
		if err != nil || !ok {
			t.Fatalf("after %v: %v", out, err)
		}
		out = append(out, fmt.Sprintf("%s:%v:%v", p.UserID, p.Online, !p.LastSeen.IsZero()))
	}
	slices.Sort(out)
	return strings.Join(out, " ")
}

func TestWatchingOverConnections(t *testing.T) {
	bubble(t, func(t *testing.T, f *fakeServer) {
		f.online = []*clientv1.UserPresence{{UserId: "bob", Online: true, Classes: []string{"web"}}, {UserId: "carl", LastSeenMs: 7}}
		alice := connect(t, f.options("alice"))
		w := alice.WatchPresence("bob", "carl")
		next, stop := iter.Pull2(w.Events(t.Context()))
		defer stop()
		if got := presences(t, next, 2); got != "bob:true:false carl:false:true" {
			t.Errorf("told %s", got)
		}
		other := alice.WatchPresence("bob")
		if p, ok := other.Get("bob"); !ok || !p.Online || p.Classes[0] != "web" {
			t.Errorf("known of bob: %+v %v", p, ok)
		}
		synctest.Wait()
		f.each(func(s *fakeSession) {
			f.online = []*clientv1.UserPresence{{UserId: "bob", LastSeenMs: 8}}
			f.tellPresence(s, 0)
		})
		synctest.Wait()
		f.each(func(s *fakeSession) { s.conn.close(0) })
		time.Sleep(time.Minute) // it is asked again on the next connection
		f.mu.Lock()
		n := len(f.watches)
		if got := f.watches[n-1].UserIds; !slices.Equal(got, []string{"bob", "carl"}) {
			t.Errorf("watched: %v", got)
		}
		f.mu.Unlock()
		for p, err := range other.Events(t.Context()) {
			if err != nil || p.UserID != "bob" || p.Online {
				t.Errorf("told %+v %v", p, err)
			}
			break
		}
		other.Close()
		other.Close()
		for range other.Events(t.Context()) {
			t.Error("a closed watch tells something")
		}
		room := alice.Conversation("g_1").WatchPresence()
		synctest.Wait()
		f.mu.Lock()
		if last := f.watches[len(f.watches)-1]; !slices.Equal(last.UserIds, []string{"bob", "carl"}) || !slices.Equal(last.ConversationIds, []string{"g_1"}) {
			t.Errorf("watched: %v", last)
		}
		f.mu.Unlock()
		room.Close()
		w.Close()
		synctest.Wait()
		if _, ok := w.Get("bob"); ok {
			t.Error("who is not watched is still known")
		}
	})
}

func TestARefusedWatch(t *testing.T) {
	bubble(t, func(t *testing.T, f *fakeServer) {
		alice := connect(t, f.options("alice"))
		f.mu.Lock()
		f.refuseWatch = protocol.NewError(protocol.ReasonUnavailable, "", 0)
		f.mu.Unlock()
		w := alice.WatchPresence("bob")
		time.Sleep(10 * time.Second)
		f.mu.Lock()
		if len(f.watches) < 2 {
			t.Errorf("asked %d times", len(f.watches))
		}
		f.refuseWatch = protocol.NewError(protocol.ReasonForbidden, "", 0)
		f.mu.Unlock()
		for _, err := range w.Events(t.Context()) {
			if ReasonOf(err) != protocol.ReasonForbidden {
				t.Errorf("told %v", err)
			}
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		f.mu.Lock()
		f.refuseWatch = nil
		f.mu.Unlock()
		w.Close()
		for _, err := range alice.WatchPresence("carl").Events(ctx) {
			if err != context.DeadlineExceeded {
				t.Errorf("told %v", err)
			}
		}
	})
}

func TestTyping(t *testing.T) {
	bubble(t, func(t *testing.T, f *fakeServer) {
		f.log("g_1", "alice", "bob")
		f.post("g_1", "bob", "x")
		alice, bob := connect(t, f.options("alice")), connect(t, f.options("bob"))
		next, stop := iter.Pull2(bob.Conversation("g_1").Events(t.Context()))
		defer stop()
		go func() {
			synctest.Wait()
			for range 10 {
				alice.Conversation("g_1").Typing()
			}
		}()
		ev, err, _ := next()
		if e, ok := ev.(*TypingEvent); err != nil || !ok || e.UserID != "alice" || e.Conversation() != "g_1" {
			t.Errorf("told %v, %v", ev, err)
		}
		time.Sleep(typingEvery)
		alice.Conversation("g_1").Typing()
		alice.Conversation("g_none").Typing()
		synctest.Wait()
		if f.typed != 2 {
			t.Errorf("told %d times", f.typed)
		}
		alice.Conversation("g_1").Send(Text("what was typed"))
		alice.Conversation("g_1").Typing()
		synctest.Wait()
		if f.typed != 3 {
			t.Errorf("after a message told %d times", f.typed)
		}
		bob.mu.Lock()
		defer bob.mu.Unlock()
		bob.noteTyping(&clientv1.Typing{ConversationId: "g_1", UserId: "bob"}, time.Now())
		for i := range maxTyping + 10 {
			bob.noteTyping(&clientv1.Typing{ConversationId: "g_1", UserId: fmt.Sprint("u", i)}, time.Now())
		}
		if n := len(bob.convs["g_1"].typing); n != maxTyping {
			t.Errorf("%d type", n)
		}
		bob.noteTyping(&clientv1.Typing{ConversationId: "g_1", UserId: "late"}, time.Now().Add(time.Minute))
		if n := len(bob.convs["g_1"].typing); n != 1 {
			t.Errorf("%d type after a minute", n)
		}
	})
}

package outbox

import (
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/imdhq/imd/pkg/im"
	"github.com/imdhq/imd/pkg/store"
	"github.com/imdhq/imd/sdk/go/protocol"
)

// change applies a change of a conversation.
func (s *site) change(c store.Change) {
	s.t.Helper()
	n := s.sent.Add(1)
	c.RequestID, c.MessageID = im.ClientMessageID(fmt.Sprintf("%08x-0000-4000-8000-00000000000c", n)), im.MessageID(1000+n)
	if _, err := s.messages.Change(s.t.Context(), c); err != nil {
		s.t.Fatal(err)
	}
}

func with(user im.UserID) im.ConversationID {
	return im.ConversationID(protocol.DirectID("ann", string(user)))
}

// Every commit is told, in the order of its conversation, to those who want to hear
// of it, whatever becomes of other receivers: one that hangs and one that is not
// there delay nobody.
func TestEventsAreTold(t *testing.T) {
	t.Parallel()
	s := newSite(t, yes)
	members, hangs, broken := newReceiver(t, yes), newReceiver(t, func(told) int { return 0 }), newReceiver(t, func(told) int { return 503 })
	s.add("members", members, "member.changed")
	s.add("hangs", hangs)
	s.add("broken", broken)
	s.warm()
	s.lead(fault{})
	var want []string
	began := time.Now()
	s.change(store.Change{Conversation: "g_1", Actor: "ann", Create: &store.CreateGroup{Name: "team", Owner: "ann", Members: []im.UserID{"bob"}}})
	for range 40 {
		want = append(want, s.send("bob"), s.send("cid"))
	}
	name := "crew"
	s.change(store.Change{Conversation: "g_1", Actor: "ann", Rename: &name})
	s.change(store.Change{Conversation: "g_1", Actor: "ann", AddMembers: []im.UserID{"cid"}})
	got := s.hooks.wait(len(want) + 3)
	if took := time.Since(began); took > 5*time.Second {
		t.Errorf("beside a receiver that hangs it took %v", took)
	}
	have := texts(got)
	slices.Sort(have)
	slices.Sort(want)
	if !slices.Equal(have, want) {
		t.Errorf("told %v, want %v", have, want)
	}
	s.hooks.ordered()
	if kinds := types(got); !slices.Equal(kinds, []string{"conversation.changed", "member.changed", "message.committed"}) {
		t.Errorf("types %v", kinds)
	}
	if some := members.wait(2); len(some) != 2 || !slices.Equal(types(some), []string{"member.changed"}) {
		t.Errorf("who wants to hear of members was told %+v", some)
	}
	if n := s.hooks.requests(); n != len(got) {
		t.Errorf("%d requests for %d events", n, len(got))
	}
}

// Dead letters that are asked for are told once more and are dead no more; a
// receiver that is put back is told all since, with the same ids.
func TestToldOnceMore(t *testing.T) {
	t.Parallel()
	s := newSite(t, yes)
	s.warm()
	first := s.lead(fault{})
	for range 5 {
		s.send("bob")
	}
	s.hooks.wait(5)
	row := func() store.Receiver {
		rows, err := s.messages.Receivers(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		return rows[slices.IndexFunc(rows, func(r store.Receiver) bool { return r.Name == "shop" })]
	}
	s.await("all is settled", func() bool { r := row(); return r.Cursor == 5 && len(r.Open) == 0 })
	first.close()
	r := row()
	if ok, err := s.messages.SaveReceiver(t.Context(), first.proof, r, store.Settled{Dead: []store.DeadLetter{{Position: 2}, {Position: 4}}}); err != nil || !ok {
		t.Fatal(ok, err)
	}
	second := s.lead(fault{})
	if n, err := s.messages.Rewind(t.Context(), "shop", 0, true); err != nil || n != 2 {
		t.Fatal(n, err)
	}
	s.await("dead letters are told", func() bool { return s.hooks.requests() == 7 && row().Dead == 0 })
	if _, err := s.messages.Rewind(t.Context(), "shop", 3, false); err != nil {
		t.Fatal(err)
	}
	s.await("it is told once more", func() bool { return s.hooks.requests() == 9 })
	second.close()
	s.hooks.mu.Lock()
	defer s.hooks.mu.Unlock()
	var cursors []string
	for i, one := range s.hooks.all {
		cursors = append(cursors, one.Cursor)
		if one.replay != (i >= 5) || s.hooks.first[one.ID].Cursor != one.Cursor {
			t.Errorf("request %d: %+v", i, one)
		}
	}
	if got := strings.Join(cursors, " "); got != "1 2 3 4 5 2 4 4 5" {
		t.Errorf("told %s", got)
	}
}

// Users whose devices are not connected are notified at once, those whose devices
// are silent a little later, each once for each conversation; who has muted it or
// has acknowledged is not. What is read elsewhere is taken back.
func TestOfflineUsersAreNotified(t *testing.T) {
	t.Parallel()
	s := newSite(t, yes)
	s.after = time.Second
	s.warm()
	for _, u := range []im.UserID{"silent", "acks"} {
		s.live[u] = true
	}
	s.send("muted")
	if err := s.messages.SetMute(t.Context(), with("muted"), "muted", time.Now().Add(time.Hour)); err != nil {
		t.Fatal(err)
	}
	began := time.Now()
	for range 3 {
		for _, u := range []im.UserID{"bob", "muted", "silent", "acks"} {
			s.send(u)
		}
	}
	if _, err := s.messages.SavePositions(t.Context(), []store.Position{{Conversation: with("acks"), User: "acks", Delivered: 3}}); err != nil {
		t.Fatal(err)
	}
	s.lead(fault{}) // who leads finds all of it, however long it took to write
	led := time.Now()
	one := s.pushes.wait(1)[0]
	if took := time.Since(led); one.UserID != "bob" || one.Seq != "3" || one.Badge != 3 || one.Type != "push" || !strings.Contains(string(one.Content), "text") || took > 4*time.Second {
		t.Errorf("after %v: %+v", took, one)
	}
	if _, err := s.messages.SavePositions(t.Context(), []store.Position{{Conversation: with("bob"), User: "bob", Read: 3}}); err != nil {
		t.Fatal(err)
	}
	if two := s.pushes.wait(2)[1]; two.UserID != "bob" || two.Type != "withdraw" || two.Badge != 0 || two.Seq != "3" || len(two.Content) != 0 {
		t.Errorf("read elsewhere: %+v", two)
	}
	if three := s.pushes.wait(3)[2]; three.UserID != "silent" || three.Seq != "3" || time.Since(began) < time.Second {
		t.Errorf("whose device is silent: %+v", three)
	}
	if n := s.pushes.requests(); n != 3 {
		t.Errorf("%d notices", n)
	}
}

// A receiver of notices that is away is told when it is back, once for each
// conversation.
func TestNoticesWait(t *testing.T) {
	t.Parallel()
	s := newSite(t, yes)
	var away atomic.Bool
	away.Store(true)
	s.pushes.answer = func(told) int {
		if away.Load() {
			return 503
		}
		return 200
	}
	s.warm()
	s.lead(fault{})
	for i := range 8 {
		s.send(im.UserID(fmt.Sprint("user", i)))
	}
	s.await("pushes are due", func() bool {
		n, err := s.messages.PushCounts(t.Context())
		return err == nil && n[store.PushDue] == 8
	})
	time.Sleep(500 * time.Millisecond) // some tries
	away.Store(false)
	s.pushes.wait(8)
	s.await("all are told", func() bool {
		n, err := s.messages.PushCounts(t.Context())
		return err == nil && n[store.PushSent] == 8
	})
}

package imd

import (
	"fmt"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/imdhq/imd/sdk/go/gen/clientv1"
	"github.com/imdhq/imd/sdk/go/protocol"
)

// summing answers syncs as a server that gives digests does: with a token, what
// is above the cursors, and never what is lost.
type summing struct {
	*fakeServer
	lost   string // the conversation that no list of changes names
	wrong  bool   // the digest is not that of the heads
	lists  []string
	pageOf []int32
}

func (f *summing) answer(s *fakeSession, in *clientv1.Sync) *clientv1.SyncResult {
	f.lists, f.pageOf = append(f.lists, in.SyncToken), append(f.pageOf, in.PageLimit)
	out := f.sync(s.user, in)
	if in.SyncToken == "end" {
		out.Full, out.More, out.SyncToken = false, false, "end"
		have := map[string]int64{}
		for _, c := range in.Cursors {
			have[c.ConversationId] = c.Have
		}
		out.Conversations = slices.DeleteFunc(out.Conversations, func(st *clientv1.ConversationState) bool {
			return st.ConversationId == f.lost || st.HeadSeq <= have[st.ConversationId]
		})
	}
	if (in.SyncToken == "" || in.SyncToken == "end") && !out.More {
		for id, log := range f.logs {
			out.Digest += protocol.DigestTerm(id, log.head())
		}
		if f.wrong {
			out.Digest++
		}
	}
	return out
}

// summingServer has n conversations of alice.
func summingServer(f *fakeServer, n int) *summing {
	x := &summing{fakeServer: f}
	for i := range n {
		id := fmt.Sprint("g_", i)
		f.log(id, "alice")
		f.post(id, "bob", "first")
	}
	f.answerSync = x.answer
	return x
}

// away breaks the connection, writes while it is gone, and waits until all is told.
func (f *summing) away(ids ...string) {
	f.each(func(s *fakeSession) { s.conn.close(0) })
	synctest.Wait()
	for _, id := range ids {
		f.post(id, "bob", "away")
	}
	time.Sleep(12 * time.Second) // and the next connection comes soon
	synctest.Wait()
}

// A head that no list of changes names is found by the digest, and one list of all
// heads, which brings no entries again, puts it right.
func TestDigestFindsALostHead(t *testing.T) {
	for n, want := range map[int][]string{ // a list of one page, which has a digest, and one of two
		3: {"", "end", "", "end", "end"},
		5: {"", "more3", "end", "", "more3", "end", "end"},
	} {
		t.Run(fmt.Sprint(n, " conversations"), func(t *testing.T) {
			bubble(t, func(t *testing.T, f *fakeServer) {
				x := summingServer(f, n)
				alice := connect(t, f.options("alice"))
				x.lost = "g_1"
				x.away("g_0", "g_1")
				if got := alice.Conversation("g_1").Items(); len(got) != 2 || got[1].Entry.Content.GetText() != "away" {
					t.Errorf("%d items where the head was lost", len(got))
				}
				x.lost = ""
				x.away("g_2")
				x.away()
				if !slices.Equal(x.lists, want) {
					t.Errorf("asked from %q, want %q", x.lists, want)
				}
				for i, token := range x.lists {
					if repair := i > slices.Index(want, "end") && token != "end"; (x.pageOf[i] == 0) != repair {
						t.Errorf("sync %d from %q asks for pages of %d", i, token, x.pageOf[i])
					}
				}
				if alice.Repairs() != 1 {
					t.Errorf("%d repairs", alice.Repairs())
				}
			})
		})
	}
}

// A digest that is never right makes the client ask for the full list once, and one
// that is right makes it believe the next one again.
func TestWrongDigestIsNoLoop(t *testing.T) {
	for _, n := range []int{3, 5} {
		t.Run(fmt.Sprint(n, " conversations"), func(t *testing.T) {
			bubble(t, func(t *testing.T, f *fakeServer) {
				x := summingServer(f, n)
				alice := connect(t, f.options("alice"))
				x.wrong = true
				for range 4 {
					x.away("g_0")
				}
				if alice.Repairs() != 1 {
					t.Errorf("%d repairs", alice.Repairs())
				}
				x.wrong = false
				x.away("g_0")
				x.lost = "g_2"
				x.away("g_2")
				if got := alice.Conversation("g_2").Items(); alice.Repairs() != 2 || len(got) != 2 {
					t.Errorf("%d repairs, %d items", alice.Repairs(), len(got))
				}
			})
		})
	}
}

// A repair whose answer is lost, because the next session takes over meanwhile, is
// made again by that session.
func TestARepairOutlivesAMove(t *testing.T) {
	bubble(t, func(t *testing.T, f *fakeServer) {
		x := summingServer(f, 3)
		alice := connect(t, f.options("alice"))
		hellos := false // are kept too
		var kept []func()
		f.mu.Lock()
		x.lost = "g_1"
		f.lose = func() bool { return true }
		f.later = func(in *clientv1.ClientFrame, answer func()) bool {
			if in.GetHello() != nil && !hellos {
				return false
			}
			kept = append(kept, answer)
			return true
		}
		f.mu.Unlock()
		drain := func(want int) {
			f.drainAll("alice", 0)
			time.Sleep(time.Second)
			synctest.Wait()
			if n := snapshot(f, func() int { return len(kept) }); n != want {
				t.Fatalf("%d answers are kept, want %d", n, want)
			}
		}
		answer := func(i int) {
			f.mu.Lock()
			kept[i]()
			f.mu.Unlock()
			synctest.Wait()
		}
		f.post("g_1", "bob", "unheard")
		drain(1) // the sync of the old session
		snapshot(f, func() bool { hellos = true; return true })
		drain(3) // the hello and the sync of the new one
		answer(0)
		if alice.Repairs() != 1 {
			t.Fatalf("%d repairs by the old session", alice.Repairs())
		}
		answer(1)
		answer(3) // the list of all heads, to a session that has been left
		snapshot(f, func() bool { f.later = nil; return true })
		answer(2)
		time.Sleep(time.Second)
		synctest.Wait()
		if got := alice.Conversation("g_1").Items(); alice.Repairs() != 2 || len(got) != 2 || got[1].Entry.Content.GetText() != "unheard" {
			t.Errorf("%d repairs, %d items", alice.Repairs(), len(got))
		}
	})
}

package gateway

import (
	"fmt"
	"sync"
	"testing"

	"github.com/imdhq/imd/pkg/testenv"
	"github.com/imdhq/imd/sdk/go/gen/clientv1"
	"github.com/imdhq/imd/sdk/go/protocol"
)

func syncFrame(id uint32, cursors ...*clientv1.Cursor) *clientv1.ClientFrame {
	return &clientv1.ClientFrame{Id: id, Kind: &clientv1.ClientFrame_Sync{Sync: &clientv1.Sync{Cursors: cursors, PageLimit: 20}}}
}

func isSync(f *clientv1.ServerFrame) bool { return f.GetSyncResult() != nil }

// What is committed between the beginning of a session and the reading of its sync
// is delivered, once, and behind welcome; the sync is read after that.
func TestCommitsBetweenSubscribeAndRead(t *testing.T) {
	w := begin(t)
	both(t, func(t *testing.T, enc protocol.Encoding) {
		bob, conv := "bob-"+enc.String(), "g_"+enc.String()
		w.state.set(func(s *fakeState) {
			s.onSync = func(int) {
				for i := range 3 {
					w.state.post(conv, "ann", fmt.Sprint("late", i), bob)
				}
			}
		})
		c := testenv.Dial(t, w.base(), enc)
		c.Write(helloWith(w.token(bob)), syncFrame(8))
		got := map[string]int{}
		for i := range 5 { // welcome, the result and three entries
			f := c.Take("a frame", func(*clientv1.ServerFrame) bool { return true })
			if i == 0 && f.GetWelcome() == nil {
				t.Fatalf("%v came before welcome", f)
			}
			got[fmt.Sprint(isSync(f), textOf(f))]++
		}
		for _, what := range []string{"true", "falselate0", "falselate1", "falselate2"} {
			if got[what] != 1 {
				t.Errorf("%q came %d times: %v", what, got[what], got)
			}
		}
		w.state.set(func(s *fakeState) { s.onSync = nil })
	})
}

// The answers to hello and to the sync behind it leave in one message; whoever
// writes something else, or nothing, behind hello does not wait for that.
func TestWelcomeWaitsForTheSyncBehindIt(t *testing.T) {
	w := begin(t)
	held := make(chan struct{})
	w.state.set(func(s *fakeState) { s.onSync = func(int) { <-held } })
	alone := testenv.Dial(t, w.base(), protocol.Proto)
	alone.Write(helloWith(w.token("ann")))
	alone.Take("welcome", func(f *clientv1.ServerFrame) bool { return f.GetWelcome() != nil })
	more := testenv.Dial(t, w.base(), protocol.Proto)
	more.Write(helloWith(w.token("bob")), syncFrame(8), syncFrame(9))
	more.Take("welcome", func(f *clientv1.ServerFrame) bool { return f.GetWelcome() != nil })
	slow := testenv.Dial(t, w.base(), protocol.Proto) // nobody waits for a slow store
	slow.Write(helloWith(w.token("cid")), syncFrame(8))
	slow.Take("welcome", func(f *clientv1.ServerFrame) bool { return f.GetWelcome() != nil })
	close(held)
	for _, c := range []*testenv.Client{more, slow} {
		c.Take("the result", isSync)
	}
}

// First syncs that come at once wait for their turn, go together, and before those
// of sessions that have been there.
func TestSyncsGoTogether(t *testing.T) {
	w := begin(t)
	var mu sync.Mutex
	var calls []int
	held := make(chan struct{})
	old := w.session(t, protocol.Proto, "old", "d")
	old.Request(syncFrame(old.ID()))
	w.state.set(func(s *fakeState) {
		s.onSync = func(n int) {
			mu.Lock()
			calls = append(calls, n)
			mu.Unlock()
			<-held
		}
	})
	clients := make([]*testenv.Client, syncCalls+10)
	for i := range clients {
		clients[i] = testenv.Dial(t, w.base(), protocol.Proto)
		clients[i].Write(helloWith(w.token(fmt.Sprint("u", i))), syncFrame(8))
		if i < syncCalls {
			eventually(t, "the call is out", func() bool { return w.g.syncs.busy() == i+1 })
		}
	}
	eventually(t, "the others wait", func() bool { return w.g.syncs.waits() == 10 })
	close(held)
	for _, c := range clients {
		c.Take("the result", isSync)
	}
	mu.Lock()
	defer mu.Unlock()
	if n := len(calls); n < syncCalls+1 || n > syncCalls+3 {
		t.Errorf("%d calls: %v", n, calls)
	}
}

// Who waits for longer than a request may is told to come back, and when.
func TestALateRequestIsBusy(t *testing.T) {
	w := begin(t)
	c := w.session(t, protocol.Proto, "ann", "d")
	s := w.g.hub.of("ann")[0]
	r := s.newRequest(77, "sync")
	r.refuse("late")
	e := c.Answer(77).GetError()
	if e.GetReason() != "busy" || !e.Retryable || e.RetryAfterMs < 500 || e.RetryAfterMs > 1500 {
		t.Errorf("answer %v", e)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.requests != 0 {
		t.Errorf("%d requests are open", s.requests)
	}
}

package imd

import (
	"context"
	"testing"
	"time"

	"github.com/imdhq/imd/sdk/go/gen/clientv1"
	"github.com/imdhq/imd/sdk/go/protocol"
)

// lateWorld is a server that may be slow to take a hello, and one client of it.
type lateWorld struct {
	f     *fakeServer
	alice *Client
	down  bool      // guarded by f.mu, as is last
	last  transport // the newest connection
}

func (w *lateWorld) dial(ctx context.Context) (transport, error) {
	t, err := w.f.dial(ctx)
	w.f.mu.Lock()
	defer w.f.mu.Unlock()
	if w.last = t; w.down {
		_ = t.CloseNow()
		return nil, lost("refused")
	}
	return t, err
}

// hold makes the server keep the next hello, until take.
func (w *lateWorld) hold() (take func()) {
	w.f.mu.Lock()
	defer w.f.mu.Unlock()
	var answer func()
	w.f.later = func(in *clientv1.ClientFrame, a func()) bool {
		if in.GetHello() == nil || answer != nil {
			return false
		}
		answer = a
		return true
	}
	return func() {
		w.f.mu.Lock()
		defer w.f.mu.Unlock()
		answer()
	}
}

// cut breaks the connections that are signed in.
func (w *lateWorld) cut() { w.f.each(func(s *fakeSession) { s.conn.close(0) }) }

// cutJoining breaks the newest connection.
func (w *lateWorld) cutJoining() {
	_ = snapshot(w.f, func() transport { return w.last }).CloseNow()
}

// supersede is what another program with the same login and device does.
func (w *lateWorld) supersede() {
	w.f.each(func(s *fakeSession) { s.bye(protocol.NewBye(protocol.ReasonSuperseded, "", 0)) })
}

// settle lets time pass until the client is online or has ended.
func (w *lateWorld) settle() {
	for range 60 {
		time.Sleep(time.Second)
		if st := w.alice.State(); st == Online || st == Idle {
			return
		}
	}
}

// A server may take a hello after its client has given it up, and then ends the
// client's next session with superseded. The client comes back: once for each such
// hello, and for two minutes.
func TestALateHello(t *testing.T) {
	for _, c := range []struct {
		name    string
		play    func(w *lateWorld)
		excused int // how many superseded the client still survives then
	}{
		{"nothing was given up", func(*lateWorld) {}, 0},
		{"no welcome came", func(w *lateWorld) { w.hold(); w.cut() }, 1},
		{"the connection broke before welcome", func(w *lateWorld) {
			w.hold()
			w.cut()
			time.Sleep(time.Second)
			w.cutJoining()
		}, 1},
		{"twice", func(w *lateWorld) {
			w.hold()
			w.cut()
			w.settle()
			w.hold()
			w.cut()
		}, 2},
		{"the hello was taken", func(w *lateWorld) {
			take := w.hold()
			w.cut()
			w.settle()
			take()
		}, 0},
		{"the hello was taken before the next welcome", func(w *lateWorld) {
			w.hold()
			w.cut()
			time.Sleep(time.Second)
			w.cutJoining()
			w.f.mu.Lock()
			told := false
			w.f.refuseHello = func(*clientv1.Hello) *clientv1.Bye {
				if told {
					return nil
				}
				told = true
				return protocol.NewBye(protocol.ReasonSuperseded, "", 0)
			}
			w.f.mu.Unlock()
		}, 0},
		{"it is long ago", func(w *lateWorld) {
			w.hold()
			w.cut()
			w.settle()
			time.Sleep(protocol.LateHello)
		}, 0},
		{"the hello was refused", func(w *lateWorld) {
			w.f.mu.Lock()
			refused := 0
			w.f.refuseHello = func(*clientv1.Hello) *clientv1.Bye {
				if refused++; refused > 2 {
					return nil
				}
				return protocol.NewBye(protocol.ReasonBusy, "", 0)
			}
			w.f.mu.Unlock()
			w.cut()
		}, 0},
		{"no hello was written", func(w *lateWorld) {
			snapshot(w.f, func() bool { w.down = true; return true })
			w.cut()
			time.Sleep(time.Second)
			snapshot(w.f, func() bool { w.down = false; return true })
		}, 0},
		{"it was to move", func(w *lateWorld) {
			take := w.hold()
			w.f.drainAll("alice", 0)
			time.Sleep(protocol.ClientTimeout + time.Millisecond)
			take()
		}, 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			bubble(t, func(t *testing.T, f *fakeServer) {
				w := &lateWorld{f: f}
				w.alice = connect(t, Options{Token: "alice", dial: w.dial})
				c.play(w)
				w.settle()
				for n := range c.excused + 1 {
					if w.alice.State() != Online || w.alice.Err() != nil {
						t.Fatalf("before superseded %d: %v, %v", n, w.alice.State(), w.alice.Err())
					}
					w.supersede()
					w.settle()
				}
				if ReasonOf(w.alice.Err()) != protocol.ReasonSuperseded {
					t.Errorf("after one superseded too many: %v, %v", w.alice.State(), w.alice.Err())
				}
			})
		})
	}
}

func TestUnanswered(t *testing.T) {
	now := time.Now()
	var u unanswered
	u.add(now)
	u.add(now.Add(time.Second))
	if at := now.Add(protocol.LateHello + time.Second); !u.excuse(at) || u.excuse(at) {
		t.Error("of two, one that is too old, not one excuses")
	}
	for range maxUnanswered + 1 {
		u.add(now)
	}
	for n := range maxUnanswered + 1 {
		if u.excuse(now) != (n < maxUnanswered) {
			t.Errorf("%d excuse", n)
		}
	}
}

package gateway

import (
	"fmt"
	"io"
	"net"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/imdhq/imd/pkg/im"
	"github.com/imdhq/imd/pkg/testenv"
	"github.com/imdhq/imd/sdk/go/gen/clientv1"
	"github.com/imdhq/imd/sdk/go/protocol"
)

// badClient does what it should not on a connection that has said hello, until
// the connection ends.
type badClient struct {
	name string
	act  func(net.Conn)
	prep func(w *world, user string) // before others are looked at
	dies bool                        // its session ends by itself
}

var badClients = []badClient{
	{name: "stalled: writes, and reads nothing of a megabyte", act: pongForever, prep: func(w *world, user string) {
		for range 100 {
			w.state.post("g_"+user, "someone", strings.Repeat("x", 12_000), user)
		}
	}},
	{name: "half open: neither reads nor writes", act: func(net.Conn) {}, dies: true},
	{name: "bytewise: reads and writes single bytes", act: func(c net.Conn) {
		pace := time.NewTicker(time.Millisecond)
		defer pace.Stop()
		frame := masked(1, `{"id":9,"sync":{}}`)
		buf := make([]byte, 1)
		for i := 0; ; i = (i + 1) % len(frame) {
			if _, err := io.WriteString(c, frame[i:i+1]); err != nil {
				return
			}
			if _, err := c.Read(buf); err != nil {
				return
			}
			<-pace.C
		}
	}},
	{name: "flooding: writes without end", act: func(c net.Conn) {
		var b strings.Builder
		for i := range 100 {
			b.WriteString(masked(1, fmt.Sprintf(`{"id":%d,"sync":{}}`, i+2)))
		}
		go func() { _, _ = io.Copy(io.Discard, c) }() // ends with the connection
		for {
			if _, err := io.WriteString(c, b.String()); err != nil {
				return
			}
		}
	}},
}

// pongForever keeps a connection alive.
func pongForever(c net.Conn) {
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for range tick.C {
		if _, err := io.WriteString(c, masked(1, `{"pong":{}}`)); err != nil {
			return
		}
	}
}

// neighbour is one who behaves, in a group with one who may not.
type neighbour struct {
	w           *world
	c           *testenv.Client
	user, other string
	seen        int64
}

// takes writes to the other and gets something that the other gets too, again
// and again while more holds, and returns how long that takes: the middle one.
func (n *neighbour) takes(more func(i int) bool) time.Duration {
	var all []time.Duration
	pace := time.NewTicker(5 * time.Millisecond)
	defer pace.Stop()
	text, group := strings.Repeat("x", 2000), "g_"+n.user
	for i := 0; more(i); i++ {
		var seq int64
		all = append(all, testenv.Took(func() {
			n.c.MustSend(testenv.ToUser(n.other, text))
			seq = n.w.state.post(group, "someone", text, n.other, n.user)
			n.c.Take("what was posted", func(f *clientv1.ServerFrame) bool {
				e := f.GetDeliver().GetEntries()
				return len(e) == 1 && e[0].Seq == seq && f.GetDeliver().ConversationId == group
			})
		}))
		n.c.Write(ackOf(group, n.seen, seq))
		n.seen = seq
		<-pace.C
	}
	slices.Sort(all)
	return all[len(all)/2]
}

// beside returns what a neighbour's exchanges take before the other is there
// and beside it, and what waited for the other at most.
func (b badClient) beside(t *testing.T, w *world, user, other string) (alone, beside time.Duration, frames, bytes int) {
	t.Helper()
	n := &neighbour{w: w, c: w.session(t, protocol.Proto, user, "d"), user: user, other: other}
	defer n.c.Cut()
	alone = n.takes(func(i int) bool { return i < 40 })

	hello, err := protocol.EncodeClient(protocol.JSON, helloWith(w.token(other)))
	if err != nil {
		t.Fatal(err)
	}
	c, err := dialer{w, t.Context()}.rawOpen(masked(1, string(hello)))
	if err != nil {
		t.Fatal(err)
	}
	_ = c.(*net.TCPConn).SetReadBuffer(4096)
	eventually(t, "it is online", func() bool { return len(w.g.hub.of(im.UserID(other))) == 1 })
	s := w.g.hub.of(im.UserID(other))[0]
	if b.prep != nil {
		b.prep(w, other)
	}
	var wg sync.WaitGroup
	wg.Go(func() { b.act(c) })
	limit := testenv.NewLimit(testenv.Patience)
	beside = n.takes(func(i int) bool {
		s.q.mu.Lock()
		frames, bytes = max(frames, s.q.n), max(bytes, s.q.bytes)
		s.q.mu.Unlock()
		return i < 40 || b.dies && s.live() && !limit.Over()
	})
	if live := s.live(); live != !b.dies {
		t.Errorf("it is still there: %v", live)
	}
	reset(c)
	wg.Wait()
	return alone, beside, frames, bytes
}

// A client that misbehaves costs others no more than 10 ms, and keeps no more
// waiting than its queue may hold. What the machine does besides is in both
// times that are compared, and may spoil a few of the comparisons.
func TestNeighboursOfBadClients(t *testing.T) {
	const attempts, most = 5, 10 * time.Millisecond
	w := begin(t, func(c *Config) { c.PingInterval, c.PongTimeout = 300*time.Millisecond, 3*time.Second })
	for k, b := range badClients {
		t.Run(b.name, func(t *testing.T) {
			var alone, beside time.Duration
			for i := range attempts {
				var frames, bytes int
				alone, beside, frames, bytes = b.beside(t, w, fmt.Sprintf("good%d_%d", k, i), fmt.Sprintf("bad%d_%d", k, i))
				if frames > w.g.cfg.QueueFrames+reserveFrames || bytes > w.g.cfg.QueueBytes+reserveBytes {
					t.Errorf("%d frames and %d bytes waited for it", frames, bytes)
				}
				t.Logf("alone %v, beside it %v; %d frames and %d bytes waited for it", alone, beside, frames, bytes)
				if beside <= alone+most {
					return
				}
			}
			t.Errorf("others took %v beside it, and %v alone, also in the last of %d attempts", beside, alone, attempts)
		})
	}
	eventually(t, "the half-open one ended as idle", func() bool { return testutil.ToFloat64(w.g.m.closed.WithLabelValues("idle")) >= 1 })
}

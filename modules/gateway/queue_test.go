package gateway

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/imdhq/imd/sdk/go/gen/clientv1"
	"github.com/imdhq/imd/sdk/go/protocol"
)

// slowConn is a socket whose writes wait to be let through, one by one, as
// long as their deadline allows.
type slowConn struct {
	net.Conn // nil: nothing else is called
	pass     chan struct{}

	mu       sync.Mutex
	deadline time.Time
	moved    chan struct{} // closed and renewed when the deadline moves
	written  bytes.Buffer
	writes   int
	closed   bool
}

func newSlowConn() *slowConn {
	return &slowConn{pass: make(chan struct{}, 1000), moved: make(chan struct{})}
}

type timeoutError struct{}

func (timeoutError) Error() string   { return "timeout" }
func (timeoutError) Timeout() bool   { return true }
func (timeoutError) Temporary() bool { return true }

func (c *slowConn) Write(p []byte) (int, error) {
	for {
		c.mu.Lock()
		left, moved := time.Until(c.deadline), c.moved
		c.mu.Unlock()
		t := time.NewTimer(left)
		select {
		case <-c.pass:
			t.Stop()
			c.mu.Lock()
			defer c.mu.Unlock()
			c.writes++
			return c.written.Write(p)
		case <-moved:
			t.Stop()
		case <-t.C:
			return 0, timeoutError{}
		}
	}
}

func (c *slowConn) SetWriteDeadline(t time.Time) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.deadline = t
	close(c.moved)
	c.moved = make(chan struct{})
	return nil
}

func (c *slowConn) SetReadDeadline(time.Time) error { return nil }

func (c *slowConn) Close() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.closed = true
	return nil
}

// messages cuts what was written into WebSocket frames: opcode and payload.
func (c *slowConn) messages(t *testing.T) (out []wsFrame) {
	t.Helper()
	c.mu.Lock()
	defer c.mu.Unlock()
	r := bytes.NewReader(c.written.Bytes())
	for {
		var h [2]byte
		if _, err := io.ReadFull(r, h[:]); err != nil {
			return out
		}
		n := uint64(h[1])
		switch n {
		case 126:
			var x uint16
			_ = binary.Read(r, binary.BigEndian, &x)
			n = uint64(x)
		case 127:
			_ = binary.Read(r, binary.BigEndian, &n)
		}
		p := make([]byte, n)
		if _, err := io.ReadFull(r, p); err != nil {
			t.Fatalf("a frame of %d bytes is cut", n)
		}
		out = append(out, wsFrame{h[0], p})
	}
}

type wsFrame struct {
	op      byte
	payload []byte
}

// rig is a queue on a slow socket.
type rig struct {
	*queue
	conn *slowConn
	wg   sync.WaitGroup
	lost error
}

func newRig() *rig {
	r := &rig{conn: newSlowConn()}
	r.queue = &queue{cfg: &queueConfig{enc: protocol.Proto, frames: 1024, bytes: 1 << 20, timeout: 10 * time.Second,
		m: newMetrics(prometheus.NewRegistry()), run: r.wg.Go, now: time.Now}, conn: r.conn, lost: func(err error) { r.lost = err }, room: func() {}}
	return r
}

// The rig flushes after each addition, as sessions do when they unlock.

func (r *rig) deliver(f outFrame) bool {
	defer r.flush()
	return r.queue.deliver(f)
}

func (r *rig) answer(f outFrame) bool {
	defer r.flush()
	return r.queue.answer(f)
}

func (r *rig) head(conv string, seq int64) bool {
	defer r.flush()
	return r.queue.head(conv, seq)
}

// frameOf is a frame of n bytes, its length included.
func frameOf(n int) outFrame {
	head := 1
	if n > 1<<14 {
		head = 3
	} else if n > 128 {
		head = 2
	}
	return outFrame{data: protocol.PrefixProto(make([]byte, n-head)), kind: kindDeliver}
}

func TestWhatWaitsLeavesInOneMessage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig()
		r.deliver(frameOf(100))
		synctest.Wait() // the writer has it
		for range 200 {
			r.deliver(frameOf(100))
		}
		for range 2 {
			r.conn.pass <- struct{}{}
		}
		synctest.Wait()
		m := r.conn.messages(t)
		if len(m) != 2 || len(m[0].payload) != 100 || len(m[1].payload) != 20_000 || m[1].op != opBinary {
			t.Errorf("%d messages", len(m))
		}
		if r.fill() != 0 || r.state != idle {
			t.Errorf("fill %v, state %v after all has left", r.fill(), r.state)
		}
		r.wg.Wait()
	})
}

func TestMessagesAreCut(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig()
		r.deliver(frameOf(100))
		synctest.Wait()
		for range 600 { // 600,000 bytes: more than half
			r.deliver(frameOf(1000))
		}
		r.deliver(frameOf(100_000)) // larger than a message
		for range 1000 {
			r.conn.pass <- struct{}{}
		}
		synctest.Wait()
		total := 0
		for i, m := range r.conn.messages(t) {
			n := len(m.payload)
			total += n
			switch {
			case n == 100_000:
			case n > protocol.ServerEnvelope:
				t.Errorf("message %d has %d bytes", i, n)
			case total < 50_000 && n > protocol.ServerEnvelopeLoaded:
				t.Errorf("message %d has %d bytes while the queue is more than half full", i, n)
			}
		}
		if total != 700_100 {
			t.Errorf("%d bytes left", total)
		}
		r.wg.Wait()
	})
}

func TestQueueBounds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig()
		n := 0
		for ; n < 2000 && !r.deliver(frameOf(100)); n++ {
		}
		if n != 1024 {
			t.Errorf("%d deliveries fit", n)
		}
		for n = 0; n < 2000 && !r.answer(frameOf(100)); n++ {
		}
		if n != reserveFrames {
			t.Errorf("%d answers fit beyond that", n)
		}
		for range maxHeads {
			if r.head(fmt.Sprint("g_", n), 1) {
				t.Fatal("a head does not fit")
			}
			n++
		}
		if !r.head("g_more", 1) {
			t.Error("heads are not bounded")
		}
		if r.head(fmt.Sprint("g_", n-1), 2) {
			t.Error("a newer head of the same conversation does not fit")
		}
		<-r.end(nil, 1000, "", true)
		r.wg.Wait()
	})
}

func TestHeadsOfAConversationBecomeOne(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig()
		r.deliver(frameOf(10))
		synctest.Wait()
		for seq := range int64(100) {
			r.head("g_1", seq)
			r.head("g_2", 100-seq)
		}
		r.conn.pass <- struct{}{}
		r.conn.pass <- struct{}{}
		synctest.Wait()
		m := r.conn.messages(t)
		got := map[string]int64{}
		err := protocol.DecodeServerEnvelope(protocol.Proto, m[1].payload, protocol.ClientLimits(), func(f *clientv1.ServerFrame) error {
			if _, twice := got[f.GetHead().ConversationId]; twice {
				t.Error("two heads of one conversation")
			}
			got[f.GetHead().ConversationId] = f.GetHead().Seq
			return nil
		})
		if err != nil || got["g_1"] != 99 || got["g_2"] != 100 {
			t.Errorf("%v, %v", got, err)
		}
		r.wg.Wait()
	})
}

func TestTheEndIsOrderly(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig()
		r.deliver(frameOf(10))
		synctest.Wait()
		r.deliver(frameOf(20))
		r.control([]byte{0x8a, 1, 'x'})
		r.control([]byte{0x8a, 1, 'y'}) // only the newest ping is answered
		idle := r.end(protocol.PrefixProto([]byte("bye")), 4500, "bad_frame", false)
		r.deliver(frameOf(30)) // too late
		r.control([]byte{opClose, 0})
		for range 10 {
			r.conn.pass <- struct{}{}
		}
		<-idle
		var got []string
		for _, m := range r.conn.messages(t) {
			got = append(got, fmt.Sprintf("%x:%d", m.op, len(m.payload)))
		}
		if s := fmt.Sprint(got); s != "[82:10 82:24 8a:1 88:11]" {
			t.Errorf("written: %s", s)
		}
		if r.lost != nil || r.conn.closed {
			t.Error("an orderly end is told as a loss")
		}
		r.wg.Wait()
	})
}

func TestTheEndDoesNotWaitForASlowClient(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig()
		r.deliver(frameOf(10))
		time.Sleep(time.Second) // the write has 9 s left
		begin := time.Now()
		<-r.end([]byte("bye"), 4502, "kicked", true)
		if d := time.Since(begin); d > lastWrites {
			t.Errorf("the end took %v", d)
		}
		r.wg.Wait()
		if !r.conn.closed || r.lost != nil {
			t.Errorf("closed %v, lost %v", r.conn.closed, r.lost)
		}
	})
}

func TestAWriteThatTakesTooLong(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig()
		begin := time.Now()
		r.deliver(frameOf(10))
		r.wg.Wait()
		if d := time.Since(begin); d != 10*time.Second {
			t.Errorf("given up after %v", d)
		}
		var ne net.Error
		if !errors.As(r.lost, &ne) || !ne.Timeout() || !r.conn.closed {
			t.Errorf("lost %v, closed %v", r.lost, r.conn.closed)
		}
		if r.deliver(frameOf(10)) || r.state != idle {
			t.Error("a dead queue takes frames, or says that it is full")
		}
		<-r.end(nil, 1000, "", true)
	})
}

func TestCloseFramesAreShortEnough(t *testing.T) {
	f := closeFrame(4500, string(make([]byte, 300)))
	if len(f) != 127 || f[0] != opClose || f[1] != 125 || binary.BigEndian.Uint16(f[2:]) != 4500 {
		t.Errorf("%d bytes: % x", len(f), f[:4])
	}
}

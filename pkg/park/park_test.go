//go:build linux

package park

import (
	"bytes"
	"io"
	"math/rand/v2"
	"net"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// begin runs a lot; it stops with the test.
func begin(t testing.TB) *Lot {
	t.Helper()
	l, err := New()
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan error, 1)
	go func() { done <- l.Run() }()
	t.Cleanup(func() {
		l.Stop()
		if err := <-done; err != nil {
			t.Error(err)
		}
		if err := l.Close(); err != nil {
			t.Error(err)
		}
	})
	return l
}

// pair is both ends of a TCP connection.
func pair(t testing.TB, ln net.Listener) (client net.Conn, server *net.TCPConn) {
	t.Helper()
	client, err := net.Dial("tcp", ln.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	c, err := ln.Accept()
	if err != nil {
		t.Fatal(err)
	}
	return client, c.(*net.TCPConn)
}

func listen(t testing.TB) net.Listener {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = ln.Close() })
	return ln
}

// counter counts how often it was woken.
type counter struct{ woken chan struct{} }

func newCounter() *counter { return &counter{make(chan struct{}, 100)} }

func (c *counter) Wake() { c.woken <- struct{}{} }

// within waits for a wake-up; false = none came in time.
func (c *counter) within(d time.Duration) bool {
	select {
	case <-c.woken:
		return true
	case <-time.After(d):
		return false
	}
}

// spotOf is a place for a connection.
func spotOf(t testing.TB, l *Lot, c *net.TCPConn, w Waker) *Spot {
	t.Helper()
	raw, err := c.SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	s := &Spot{}
	s.Init(l, raw, w)
	return s
}

const soon, never = 5 * time.Second, 50 * time.Millisecond

func TestWhatWakes(t *testing.T) {
	l, ln := begin(t), listen(t)
	for name, wake := range map[string]func(client net.Conn, s *Spot){
		"a byte":        func(c net.Conn, _ *Spot) { _, _ = c.Write([]byte{1}) },
		"the end":       func(c net.Conn, _ *Spot) { _ = c.Close() },
		"half an end":   func(c net.Conn, _ *Spot) { _ = c.(*net.TCPConn).CloseWrite() },
		"a reset":       func(c net.Conn, _ *Spot) { _ = c.(*net.TCPConn).SetLinger(0); _ = c.Close() },
		"a call":        func(_ net.Conn, s *Spot) { s.Wake() },
		"calls at once": func(_ net.Conn, s *Spot) { go s.Wake(); go s.Wake(); s.Wake() },
	} {
		t.Run(name, func(t *testing.T) {
			client, server := pair(t, ln)
			defer client.Close()
			defer server.Close()
			w := newCounter()
			s := spotOf(t, l, server, w)
			defer s.Leave()
			if s.Wake() || s.Parked() {
				t.Error("it was parked already")
			}
			if !s.Park() || !s.Parked() || l.Parked() != 1 {
				t.Fatal("it is not parked")
			}
			if w.within(never) {
				t.Fatal("woken by nothing")
			}
			wake(client, s)
			if !w.within(soon) || w.within(never) {
				t.Error("not woken exactly once")
			}
			if s.Parked() || l.Parked() != 0 {
				t.Error("it is still parked")
			}
		})
	}
}

// What came before wakes at once, and again and again until it is read.
func TestWhatCameBefore(t *testing.T) {
	l, ln := begin(t), listen(t)
	client, server := pair(t, ln)
	defer client.Close()
	defer server.Close()
	w := newCounter()
	s := spotOf(t, l, server, w)
	defer s.Leave()
	_, _ = client.Write([]byte("x"))
	for range 10 {
		if !s.Park() || !w.within(soon) {
			t.Fatal("a byte that came before woke nobody")
		}
	}
	_, _ = io.ReadFull(server, make([]byte, 1))
	if !s.Park() || w.within(never) {
		t.Error("woken by a byte that was read")
	}
	s.Wake()
	<-w.woken
}

func TestWhatCannotBeParked(t *testing.T) {
	l, ln := begin(t), listen(t)
	var none Spot
	none.Init(l, nil, newCounter())
	if none.Can() || none.Park() {
		t.Error("a connection without a descriptor is parked")
	}
	none.Leave()
	client, server := pair(t, ln)
	_ = client.Close()
	s := spotOf(t, l, server, newCounter())
	_ = server.Close()
	if s.Park() || s.Parked() || l.Parked() != 0 {
		t.Error("a closed connection is parked")
	}
}

// An event of a connection that has gone does not wake its successor with the
// same descriptor.
func TestADescriptorThatIsUsedAgain(t *testing.T) {
	l, err := New() // it does not run: events are played by hand
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	ln := listen(t)
	client, server := pair(t, ln)
	defer client.Close()
	old := spotOf(t, l, server, newCounter())
	old.Park()
	stale := syscall.EpollEvent{Events: syscall.EPOLLIN, Fd: old.fd, Pad: old.generation}
	if l.find(&stale) != old {
		t.Fatal("an event does not find its connection")
	}
	waiting, err := net.Dial("tcp", ln.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer waiting.Close()
	old.Wake()
	old.Leave()
	_ = server.Close()
	c, err := ln.Accept() // gets the lowest number that is free
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	next := spotOf(t, l, c.(*net.TCPConn), newCounter())
	next.Park()
	defer next.Leave()
	if next.fd != old.fd {
		t.Fatalf("descriptor %d was not given out again: %d was", old.fd, next.fd)
	}
	if s := l.find(&stale); s != nil {
		t.Error("an old event finds the new connection")
	}
	old.Leave() // late: the place is not its own any more
	if l.find(&syscall.EpollEvent{Fd: next.fd, Pad: next.generation}) != next {
		t.Error("the new connection has lost its place to the old one's end")
	}
}

// echo reads and repeats what comes, and parks whenever nothing is there.
type echo struct {
	t    *testing.T
	c    *net.TCPConn
	spot *Spot
	over *sync.WaitGroup
	busy atomic.Int32
}

func (e *echo) Wake() {
	if e.busy.Add(1) != 1 {
		e.t.Error("two goroutines have one connection")
	}
	buf := make([]byte, 1+rand.IntN(7))
	for range 1 + rand.IntN(3) { // parks with bytes in the kernel too
		n, err := e.c.Read(buf)
		if err != nil {
			e.spot.Leave()
			_ = e.c.Close()
			e.over.Done()
			return
		}
		_, _ = e.c.Write(buf[:n])
	}
	e.busy.Store(0)
	e.spot.Park()
}

// Many connections come and go, so that descriptors are used again all the
// time; nothing that was written is lost, and nobody wakes the wrong one.
func TestConnectionsThatComeAndGo(t *testing.T) {
	l, ln := begin(t), listen(t)
	var servers, clients sync.WaitGroup
	for worker := range 16 {
		clients.Go(func() {
			rng := rand.New(rand.NewPCG(uint64(worker), 1))
			for range 20 {
				client, server := net.Conn(nil), (*net.TCPConn)(nil)
				func() {
					dialing.Lock()
					defer dialing.Unlock()
					client, server = pair(t, ln)
				}()
				e := &echo{t: t, c: server, over: &servers}
				e.spot = spotOf(t, l, server, e)
				servers.Add(1)
				if !e.spot.Park() {
					t.Error("not parked")
					return
				}
				sent := make([]byte, 1+rng.IntN(60))
				for i := range sent {
					sent[i] = byte(rng.Uint32())
				}
				go func() {
					for rest := sent; len(rest) > 0; {
						n := min(len(rest), 1+rng.IntN(9))
						_, _ = client.Write(rest[:n])
						rest = rest[n:]
					}
				}()
				got := make([]byte, len(sent))
				_ = client.SetReadDeadline(time.Now().Add(20 * time.Second))
				if _, err := io.ReadFull(client, got); err != nil || !bytes.Equal(got, sent) {
					t.Errorf("%v: %d bytes came back wrong", err, len(sent))
				}
				_ = client.Close()
			}
		})
	}
	clients.Wait()
	servers.Wait()
	if n := l.Parked(); n != 0 {
		t.Errorf("%d are parked after all have gone", n)
	}
}

// dialing pairs the two ends of a connection.
var dialing sync.Mutex

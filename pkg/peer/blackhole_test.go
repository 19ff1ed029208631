package peer

import (
	"io"
	"net"
	"sync"
	"testing"
	"time"

	"github.com/imdhq/imd/pkg/control"
	"github.com/imdhq/imd/pkg/testenv/machine"
)

// hole is a way to a node that can swallow everything without a sign.
type hole struct {
	ln    net.Listener
	to    string
	mu    sync.Mutex
	shut  bool
	conns []net.Conn
	work  sync.WaitGroup
}

func dig(t *testing.T, to string) *hole {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	h := &hole{ln: ln, to: to}
	h.work.Go(h.accept)
	t.Cleanup(func() {
		_ = ln.Close()
		h.mu.Lock()
		for _, c := range h.conns {
			_ = c.Close()
		}
		h.mu.Unlock()
		h.work.Wait()
	})
	return h
}

func (h *hole) accept() {
	for {
		in, err := h.ln.Accept()
		if err != nil {
			return
		}
		out, err := net.Dial("tcp", h.to)
		if err != nil {
			_ = in.Close()
			continue
		}
		h.mu.Lock()
		h.conns = append(h.conns, in, out)
		h.mu.Unlock()
		for _, way := range [][2]net.Conn{{in, out}, {out, in}} {
			h.work.Go(func() { h.copy(way[0], way[1]) })
		}
	}
}

// copy passes on what comes, until the hole is shut; then it swallows.
func (h *hole) copy(from, to net.Conn) {
	buf := make([]byte, 32<<10)
	for {
		n, err := from.Read(buf)
		h.mu.Lock()
		shut := h.shut
		h.mu.Unlock()
		if n > 0 && !shut {
			if _, werr := to.Write(buf[:n]); werr != nil {
				return
			}
		}
		if err != nil {
			if !shut || err != io.EOF {
				_ = to.Close()
			}
			return
		}
	}
}

func (h *hole) close() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.shut = true
}

// A node behind a black hole is given up within 7 s although nobody calls it.
func TestABlackHoleIsFoundWhileIdle(t *testing.T) {
	w := newWorld(t, "a", "b")
	way := dig(t, w.nodes[0].ln.Addr().String())
	far := w.nodes[0].record()
	far.Internal = way.ln.Addr().String()
	w.caller.Update(&control.View{Nodes: []control.Node{far, w.nodes[1].record()}})
	r := w.caller.reach("a").remote
	for i := 0; r.open.Load() == 0; i++ {
		if _, err := w.caller.State().Submit(t.Context(), submit(string(rune('a'+i%26))+"_1")); err != nil {
			t.Fatal(err)
		}
	}
	way.close()
	took := machine.Took(func() {
		for end := time.Now().Add(time.Minute); r.open.Load() > 0; time.Sleep(5 * time.Millisecond) {
			if time.Now().After(end) {
				t.Fatal("the connection is never given up")
			}
		}
	})
	if took > pingAfter+pingTimeout+500*time.Millisecond {
		t.Errorf("given up after %v", took)
	}
}

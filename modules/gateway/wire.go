package gateway

import (
	"bufio"
	"bytes"
	"io"
	"net"
	"net/http"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
)

const (
	// readBuffer is what a connection has for reading while it is busy; larger
	// messages are read past it.
	readBuffer = 1024
	// controlBuffer holds one whole control frame, so that the library writes
	// each with a single call.
	controlBuffer = 256
)

// wire is the connection as the WebSocket library sees it. The library reads
// from it and writes only control frames, which go the way of all frames:
// through the queue. It notes when the last byte came. Closing it does
// nothing: the session closes the socket once what must still leave has left.
type wire struct {
	net.Conn
	lastByte atomic.Int64 // Unix nanoseconds
	control  func(frame []byte)

	// What the library reads from and writes control frames to. Both are empty
	// while the connection is parked; lent has their buffers.
	in   *bufio.Reader
	out  *bufio.Writer
	lent *lending
}

// lending is a pair of buffers that busy connections have.
type lending struct {
	in  *bufio.Reader
	out *bufio.Writer
}

var lendings = sync.Pool{New: func() any {
	return &lending{bufio.NewReaderSize(nil, readBuffer), bufio.NewWriterSize(nil, controlBuffer)}
}}

// borrow gives the connection its buffers, if it has none.
func (w *wire) borrow() {
	if w.lent != nil {
		return
	}
	w.lent = lendings.Get().(*lending)
	w.lent.in.Reset(w)
	w.lent.out.Reset(w)
	*w.in, *w.out = *w.lent.in, *w.lent.out
}

// giveBack takes them away, when nothing is in them.
func (w *wire) giveBack() {
	if w.lent == nil {
		return
	}
	*w.in, *w.out = bufio.Reader{}, bufio.Writer{}
	w.lent.in.Reset(nil)
	w.lent.out.Reset(nil)
	lendings.Put(w.lent)
	w.lent = nil
}

// Read reads from the socket.
func (w *wire) Read(p []byte) (int, error) {
	n, err := w.Conn.Read(p)
	if n > 0 {
		w.lastByte.Store(time.Now().UnixNano())
	}
	return n, err
}

// Write takes one control frame of the library.
func (w *wire) Write(p []byte) (int, error) {
	w.control(p)
	return len(p), nil
}

// Close does nothing; see wire.
func (w *wire) Close() error { return nil }

// hijacker hands the WebSocket library a wire with small buffers in place of
// the HTTP server's. Bytes that came with the handshake stay buffered, because
// the library takes what is buffered and nothing else.
type hijacker struct {
	http.ResponseWriter
	wire *wire
}

// Hijack takes the connection over from the HTTP server.
func (h *hijacker) Hijack() (net.Conn, *bufio.ReadWriter, error) {
	c, brw, err := http.NewResponseController(h.ResponseWriter).Hijack()
	if err != nil {
		return nil, nil, err
	}
	if o, ok := c.(*opened); ok && len(o.read) == 0 {
		c = o.TCPConn
	}
	early, _ := brw.Reader.Peek(brw.Reader.Buffered())
	w := h.wire
	w.Conn, w.in, w.out = c, new(bufio.Reader), new(bufio.Writer)
	if len(early) > 0 {
		w.in = bufio.NewReaderSize(io.MultiReader(bytes.NewReader(bytes.Clone(early)), w), max(readBuffer, len(early)))
		w.out = bufio.NewWriterSize(w, controlBuffer)
		if _, err := w.in.Peek(len(early)); err != nil {
			_ = c.Close()
			return nil, nil, err
		}
	} else {
		w.borrow()
	}
	return w, bufio.NewReadWriter(w.in, w.out), nil
}

// Unwrap lets response controllers reach the server's writer.
func (h *hijacker) Unwrap() http.ResponseWriter { return h.ResponseWriter }

// notSentLowat is the socket option TCP_NOTSENT_LOWAT, kernelBytes its value.
const (
	notSentLowat = 25
	kernelBytes  = 64 << 10
)

// rawOf is the way to the descriptor under a connection; nil = there is none.
// plain = what is written to the descriptor is what the connection writes: not
// so through TLS.
func rawOf(c net.Conn) (raw syscall.RawConn, plain bool) {
	plain = true
	if t, ok := c.(interface{ NetConn() net.Conn }); ok {
		c, plain = t.NetConn(), false
	}
	sc, ok := c.(syscall.Conn)
	if !ok {
		return nil, false
	}
	raw, err := sc.SyscallConn()
	if err != nil {
		return nil, false
	}
	return raw, plain
}

// cut closes the socket under a connection at once. Through TLS nothing is said
// before, which could wait for a client that does not read.
func cut(c net.Conn) error {
	if t, ok := c.(interface{ NetConn() net.Conn }); ok {
		c = t.NetConn()
	}
	return c.Close()
}

// keepWaitingHere lets the kernel take no more than it can soon send, so that
// what waits for a slow client waits in its queue, where it can still become a
// hint. Where the option does not exist the kernel takes more.
func keepWaitingHere(raw syscall.RawConn) {
	_ = raw.Control(func(fd uintptr) {
		_ = syscall.SetsockoptInt(int(fd), syscall.IPPROTO_TCP, notSentLowat, kernelBytes)
	})
}

package gateway

import (
	"bufio"
	"net"
	"net/http"
	"sync/atomic"
	"syscall"
	"time"
)

// wire is the socket of a connection, and what is needed to read from it while it
// is busy.
type wire struct {
	net.Conn
	lastByte atomic.Int64 // Unix nanoseconds
	side     *side        // nil while the connection is parked
}

// Read reads from the socket, and notes when the last byte came.
func (w *wire) Read(p []byte) (int, error) {
	n, err := w.Conn.Read(p)
	if n > 0 {
		w.lastByte.Store(time.Now().UnixNano())
	}
	return n, err
}

// hijacker hands the WebSocket library a side with small buffers in place of
// the HTTP server's. Bytes that came with the handshake stay buffered, because
// the library takes what is buffered and nothing else.
type hijacker struct {
	http.ResponseWriter
	side *side
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
	d := h.side
	d.session.wire.Conn = c
	if err := d.readFirst(early); err != nil {
		_ = c.Close()
		return nil, nil, err
	}
	return d, bufio.NewReadWriter(d.in, d.out), nil
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

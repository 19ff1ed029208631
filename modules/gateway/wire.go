package gateway

import (
	"bufio"
	"bytes"
	"io"
	"net"
	"net/http"
	"sync/atomic"
	"syscall"
	"time"
)

const (
	// readBuffer is what an idle connection keeps for reading; larger messages
	// are read past it.
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
	early, _ := brw.Reader.Peek(brw.Reader.Buffered())
	h.wire.Conn = c
	r := bufio.NewReaderSize(io.MultiReader(bytes.NewReader(bytes.Clone(early)), h.wire), max(readBuffer, len(early)))
	if _, err := r.Peek(len(early)); err != nil {
		_ = c.Close()
		return nil, nil, err
	}
	return h.wire, bufio.NewReadWriter(r, bufio.NewWriterSize(h.wire, controlBuffer)), nil
}

// Unwrap lets response controllers reach the server's writer.
func (h *hijacker) Unwrap() http.ResponseWriter { return h.ResponseWriter }

// notSentLowat is the socket option TCP_NOTSENT_LOWAT, kernelBytes its value.
const (
	notSentLowat = 25
	kernelBytes  = 64 << 10
)

// keepWaitingHere lets the kernel take no more than it can soon send, so that
// what waits for a slow client waits in its queue, where it can still become a
// hint. Where the option does not exist the kernel takes more.
func keepWaitingHere(c net.Conn) {
	sc, ok := c.(syscall.Conn)
	if !ok {
		return
	}
	rc, err := sc.SyscallConn()
	if err != nil {
		return
	}
	_ = rc.Control(func(fd uintptr) {
		_ = syscall.SetsockoptInt(int(fd), syscall.IPPROTO_TCP, notSentLowat, kernelBytes)
	})
}

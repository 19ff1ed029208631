package pipe

import (
	"bufio"
	"crypto/tls"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"github.com/imdhq/imd/pkg/peer/seal"
)

// The kinds of frames.
const (
	kindCall    = iota + 1
	kindAnswer  // body: the response
	kindRefusal // body: a code and an imd.client.v1.Error
	kindDenial  // the roles of the caller do not allow the call; body: why
	kindCancel  // nobody waits for the answer
	kindPing
	kindPong
	kindLeave // no new calls, please
)

const (
	// pingAfter is how long a connection may be silent before it is asked for a
	// sign of life, and pingTimeout how long that may take.
	pingAfter   = 5 * time.Second
	pingTimeout = 2 * time.Second
	// writeTimeout is how long a write of writePart bytes may take. It is shorter
	// than an attempt of a call.
	writeTimeout = 400 * time.Millisecond
	writePart    = 64 << 10
	// maxPending is how many bytes may wait to be written.
	maxPending = 16 << 20
	// maxKept is the largest buffer that is kept for later.
	maxKept = 256 << 10
	// rounds is how many writes a caller makes for others that came meanwhile.
	rounds = 4
	// readBuffer takes many small frames with one read.
	readBuffer = 32 << 10
)

var (
	errSilent = errors.New("pipe: the other side gives no sign of life")
	errFull   = errors.New("pipe: too much waits for the other side")
	errProof  = errors.New("pipe: a frame is not from the other side")
	errFrame  = errors.New("pipe: a frame is malformed")
)

// frame is what was read. Its body is good until free.
type frame struct {
	kind byte
	id   uint64
	body []byte
	buf  *[]byte
}

var buffers = sync.Pool{New: func() any { return new([]byte) }}

// free gives the body back.
func (f frame) free() {
	if f.buf != nil {
		release(f.buf)
	}
}

func release(b *[]byte) {
	if cap(*b) <= maxKept {
		buffers.Put(b)
	}
}

// conn is one side of a connection. Safe for concurrent use, but for read.
type conn struct {
	nc      net.Conn
	br      *bufio.Reader
	in, out *seal.Stream // nil = TLS proves what comes and goes
	max     int          // the largest frame in bytes
	done    chan struct{}
	heard   atomic.Int64 // when something came, Unix nanoseconds
	watch   *time.Timer

	mu      sync.Mutex
	pending []byte // waits to be written
	spare   []byte
	writing bool
	err     error // why it ended
}

func newConn(nc net.Conn, br *bufio.Reader, in, out *seal.Stream, limit int) *conn {
	c := &conn{nc: nc, br: br, in: in, out: out, max: limit, done: make(chan struct{})}
	c.heard.Store(time.Now().UnixNano())
	c.mu.Lock()
	defer c.mu.Unlock()
	c.watch = time.AfterFunc(pingAfter, c.look)
	return c
}

// look asks for a sign of life if nothing came for a while, and gives the
// connection up if nothing comes.
func (c *conn) look() {
	quiet := time.Since(time.Unix(0, c.heard.Load()))
	next := pingAfter - quiet
	switch {
	case quiet >= pingAfter+pingTimeout:
		c.fail(errSilent)
		return
	case quiet >= pingAfter:
		_ = c.send(kindPing, 0, nil) // if it fails the connection has ended
		next = pingAfter + pingTimeout - quiet
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.err == nil {
		c.watch.Reset(next)
	}
}

// fail ends the connection; the first reason stays.
func (c *conn) fail(err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.failed(err)
}

// failed is fail; the lock is held.
func (c *conn) failed(err error) {
	if c.err != nil {
		return
	}
	c.err = err
	c.watch.Stop()
	sever(c.nc)
	close(c.done)
}

// sever closes a connection at once. Over TLS it says no good-bye, for which it
// would wait while the other side takes nothing: frames carry their length, and
// a call without an answer has failed either way.
func sever(nc net.Conn) {
	if t, ok := nc.(*tls.Conn); ok {
		nc = t.NetConn()
	}
	_ = nc.Close() // there is nothing left that could be lost
}

// reason is why the connection ended; nil = it is open.
func (c *conn) reason() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.err
}

// send queues a frame and writes what waits, unless somebody else does. Errors:
// the connection has ended, or too much waits.
func (c *conn) send(kind byte, id uint64, body []byte) error {
	return c.queue(kind, id, body, rounds)
}

// pong answers a ping. Another goroutine writes it: two sides that write and do
// not read would wait for each other.
func (c *conn) pong() error { return c.queue(kindPong, 0, nil, 0) }

// queue is send with the number of writes that the goroutine may make.
func (c *conn) queue(kind byte, id uint64, body []byte, times int) error {
	var head [1 + binary.MaxVarintLen64]byte
	head[0] = kind
	n := 1 + binary.PutUvarint(head[1:], id)
	size := n + len(body)
	if c.out != nil {
		size += seal.TagSize
	}
	if size > c.max {
		return fmt.Errorf("pipe: a frame of %d bytes; %d are the most", size, c.max)
	}
	c.mu.Lock()
	if c.err != nil {
		defer c.mu.Unlock()
		return c.err
	}
	if len(c.pending)+size > maxPending {
		c.mu.Unlock()
		return errFull
	}
	c.pending = binary.BigEndian.AppendUint32(c.pending, uint32(size))
	at := len(c.pending)
	c.pending = append(append(c.pending, head[:n]...), body...)
	if c.out != nil {
		c.pending = c.out.Tag(c.pending, c.pending[at:])
	}
	if !c.writing {
		c.writing = true
		c.flush(times)
	}
	c.mu.Unlock()
	return nil
}

// flush writes until nothing waits, at most times writes; then another goroutine
// goes on. The lock is held, but not while it writes.
func (c *conn) flush(times int) {
	for ; len(c.pending) > 0 && c.err == nil; times-- {
		if times == 0 {
			go func() {
				c.mu.Lock()
				defer c.mu.Unlock()
				c.flush(-1)
			}()
			return
		}
		part := c.pending
		c.pending, c.spare = c.spare[:0], nil
		c.mu.Unlock()
		err := c.write(part)
		c.mu.Lock()
		if cap(part) <= maxKept {
			c.spare = part
		}
		if err != nil {
			c.failed(err)
		}
	}
	c.writing = false
}

func (c *conn) write(b []byte) error {
	for len(b) > 0 {
		n := min(len(b), writePart)
		if err := c.nc.SetWriteDeadline(time.Now().Add(writeTimeout)); err != nil {
			return err
		}
		if _, err := c.nc.Write(b[:n]); err != nil {
			return err
		}
		b = b[n:]
	}
	return nil
}

// read waits for the next frame.
func (c *conn) read() (f frame, err error) {
	var head [4]byte
	if _, err := io.ReadFull(c.br, head[:]); err != nil {
		return f, err
	}
	size := int(binary.BigEndian.Uint32(head[:]))
	if size > c.max {
		return f, errFrame
	}
	f.buf = buffers.Get().(*[]byte)
	b := *f.buf
	if cap(b) < size {
		b = make([]byte, size)
	}
	b = b[:size]
	*f.buf = b
	if _, err := io.ReadFull(c.br, b); err != nil {
		return f, err
	}
	c.heard.Store(time.Now().UnixNano())
	if c.in != nil {
		at := len(b) - seal.TagSize
		if at < 0 || !c.in.Check(b[at:], b[:at]) {
			return f, errProof
		}
		b = b[:at]
	}
	if len(b) == 0 {
		return f, errFrame
	}
	id, n := binary.Uvarint(b[1:])
	if n <= 0 {
		return f, errFrame
	}
	f.kind, f.id, f.body = b[0], id, b[1+n:]
	return f, nil
}

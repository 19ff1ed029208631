package bench

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/imdhq/imd/sdk/go/protocol"
)

// conn is one WebSocket connection of the loop. It speaks just enough of the
// protocol: masked client frames (with a zero mask, which leaves the payload as
// it is), unfragmented or fragmented server frames, pings and closes. Frames
// that are queued within one round of the loop leave in one envelope.
type conn struct {
	l      *loop
	fd     int
	serial int32
	phase  phase
	enc    protocol.Encoding
	host   string
	in     []byte // an incomplete WebSocket frame or HTTP head
	msg    []byte // fragments of a message
	env    []byte // the envelope being filled, behind room for its header; nil = none
	frames int    // in env
	out    []byte // what the kernel has not taken yet
	wantsW bool
	dirty  bool
	read   time.Duration // when the last byte came

	onOpen    func()
	onMessage func([]byte) // valid only while it runs
	onClose   func(code int, err error)
}

type phase uint8

const (
	connecting phase = iota
	handshaking
	open
	closed
)

const (
	opText   = 1
	opBinary = 2
	opClose  = 8
	opPing   = 9
	opPong   = 10
)

const (
	// headerRoom is the longest header of a client frame.
	headerRoom = 14
	// envelopeFull is when an envelope is closed; the next frame fits besides.
	envelopeFull = 40 << 10
	// maxMessage is the longest message a server may send.
	maxMessage = protocol.ClientReadLimit
	// maxHead is the longest answer to the upgrade.
	maxHead = 16 << 10
)

// upgradeError is an answer to the upgrade other than 101.
type upgradeError struct {
	status int
	line   string
	after  time.Duration // Retry-After
}

func (e *upgradeError) Error() string { return "the upgrade was refused: " + e.line }

// dial begins a connection from src (invalid = any) to dst.
func (l *loop) dial(dst netip.AddrPort, src netip.Addr, enc protocol.Encoding) (*conn, error) {
	family := unix.AF_INET
	if dst.Addr().Is6() && !dst.Addr().Is4In6() {
		family = unix.AF_INET6
	}
	fd, err := unix.Socket(family, unix.SOCK_STREAM|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("socket: %w", err)
	}
	_ = unix.SetsockoptInt(fd, unix.IPPROTO_TCP, unix.TCP_NODELAY, 1)
	if src.IsValid() {
		// Ports are chosen at connect time, so that one address serves many peers.
		_ = unix.SetsockoptInt(fd, unix.IPPROTO_IP, unix.IP_BIND_ADDRESS_NO_PORT, 1)
		if err := unix.Bind(fd, sockaddr(netip.AddrPortFrom(src, 0))); err != nil {
			unix.Close(fd)
			return nil, fmt.Errorf("bind %s: %w", src, err)
		}
	}
	if err := unix.Connect(fd, sockaddr(dst)); err != nil && !errors.Is(err, unix.EINPROGRESS) {
		unix.Close(fd)
		return nil, fmt.Errorf("connect %s: %w", dst, err)
	}
	l.serial++
	c := &conn{l: l, fd: fd, serial: l.serial, enc: enc, host: dst.String(), wantsW: true, read: l.now}
	ev := unix.EpollEvent{Events: unix.EPOLLOUT | unix.EPOLLIN | unix.EPOLLRDHUP, Fd: int32(fd), Pad: c.serial}
	if err := unix.EpollCtl(l.epfd, unix.EPOLL_CTL_ADD, fd, &ev); err != nil {
		unix.Close(fd)
		return nil, fmt.Errorf("epoll: %w", err)
	}
	for len(l.conns) <= fd {
		l.conns = append(l.conns, nil)
	}
	l.conns[fd] = c
	l.open++
	return c, nil
}

func sockaddr(a netip.AddrPort) unix.Sockaddr {
	if a.Addr().Is6() && !a.Addr().Is4In6() {
		return &unix.SockaddrInet6{Port: int(a.Port()), Addr: a.Addr().As16()}
	}
	return &unix.SockaddrInet4{Port: int(a.Port()), Addr: a.Addr().Unmap().As4()}
}

// drop ends the connection without a word.
func (c *conn) drop(err error) { c.end(0, err) }

func (c *conn) end(code int, err error) {
	if c.phase == closed {
		return
	}
	c.phase = closed
	c.l.conns[c.fd] = nil
	c.l.open--
	unix.Close(c.fd)
	c.in, c.env, c.out, c.msg = nil, nil, nil, nil
	if c.onClose != nil {
		c.onClose(code, err)
	}
}

func (c *conn) ready(events uint32) {
	if events&unix.EPOLLOUT != 0 {
		c.writable()
	}
	if c.phase != closed && events&(unix.EPOLLIN|unix.EPOLLHUP|unix.EPOLLERR|unix.EPOLLRDHUP) != 0 {
		c.readable()
	}
}

func (c *conn) writable() {
	if c.phase == connecting {
		if e, err := unix.GetsockoptInt(c.fd, unix.SOL_SOCKET, unix.SO_ERROR); err != nil || e != 0 {
			c.drop(fmt.Errorf("connect %s: %w", c.host, unix.Errno(e)))
			return
		}
		c.phase = handshaking
		c.out = fmt.Appendf(c.out, "GET %s HTTP/1.1\r\nHost: %s\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"+
			"Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Protocol: %s\r\n\r\n", protocol.Path, c.host, c.enc.Subprotocol())
	}
	c.writeOut()
}

// envelope is where the next frame is to be appended; put takes it back.
func (c *conn) envelope() []byte {
	if c.env != nil && (c.frames >= protocol.MaxClientFrames || len(c.env) >= envelopeFull) {
		c.flush()
	}
	if c.env == nil {
		c.env = c.l.buf()
	}
	return c.env
}

// put queues what was appended to envelope as one more frame.
func (c *conn) put(env []byte) {
	if c.phase != open {
		return
	}
	c.env = env
	c.frames++
	if !c.dirty {
		c.dirty = true
		c.l.dirty = append(c.l.dirty, c)
	}
}

// flush writes the envelope.
func (c *conn) flush() {
	if c.phase != open || c.frames == 0 {
		return
	}
	op := byte(opBinary)
	if c.enc == protocol.JSON {
		op = opText
	}
	env := c.env
	c.env, c.frames = nil, 0
	c.writeNow(header(env, op))
	c.l.free(env)
}

// header fills in the header of a client frame whose payload begins at
// headerRoom, with a mask of zero, and returns the frame.
func header(b []byte, op byte) []byte {
	n := len(b) - headerRoom
	at := headerRoom - 4
	copy(b[at:], "\x00\x00\x00\x00")
	switch {
	case n < 126:
		at--
		b[at] = 0x80 | byte(n)
	case n < 1<<16:
		at -= 3
		b[at] = 0x80 | 126
		binary.BigEndian.PutUint16(b[at+1:], uint16(n))
	default:
		at -= 9
		b[at] = 0x80 | 127
		binary.BigEndian.PutUint64(b[at+1:], uint64(n))
	}
	at--
	b[at] = 0x80 | op
	return b[at:]
}

// control writes a control frame.
func (c *conn) control(op byte, payload []byte) {
	c.writeNow(header(append(make([]byte, headerRoom, headerRoom+125), payload[:min(len(payload), 125)]...), op))
}

// writeNow writes data, behind what already waits.
func (c *conn) writeNow(data []byte) {
	if len(c.out) == 0 {
		n, err := unix.Write(c.fd, data)
		if err != nil && !errors.Is(err, unix.EAGAIN) {
			c.drop(fmt.Errorf("write: %w", err))
			return
		}
		data = data[max(n, 0):]
	}
	c.out = append(c.out, data...)
	c.watchWrites()
}

// writeOut gives the kernel what waits.
func (c *conn) writeOut() {
	for len(c.out) > 0 {
		n, err := unix.Write(c.fd, c.out)
		if errors.Is(err, unix.EAGAIN) {
			break
		}
		if err != nil {
			c.drop(fmt.Errorf("write: %w", err))
			return
		}
		c.out = c.out[n:]
	}
	if len(c.out) == 0 {
		c.out = nil
	}
	c.watchWrites()
}

// watchWrites asks to be told when the kernel takes more, if something waits.
func (c *conn) watchWrites() {
	want := len(c.out) > 0
	if want == c.wantsW {
		return
	}
	c.wantsW = want
	ev := unix.EpollEvent{Events: unix.EPOLLIN | unix.EPOLLRDHUP, Fd: int32(c.fd), Pad: c.serial}
	if want {
		ev.Events |= unix.EPOLLOUT
	}
	_ = unix.EpollCtl(c.l.epfd, unix.EPOLL_CTL_MOD, c.fd, &ev)
}

func (c *conn) readable() {
	for c.phase != closed {
		n, err := unix.Read(c.fd, c.l.read)
		if errors.Is(err, unix.EAGAIN) || errors.Is(err, unix.EINTR) {
			return
		}
		if err != nil || n == 0 {
			if err == nil {
				err = errors.New("end of stream")
			}
			c.drop(fmt.Errorf("the server hung up: %w", err))
			return
		}
		c.read = c.l.now
		c.take(c.l.read[:n])
		if n < len(c.l.read) {
			return
		}
	}
}

// take consumes what arrived and keeps what is incomplete.
func (c *conn) take(data []byte) {
	if len(c.in) == 0 {
		if rest := c.consume(data); len(rest) > 0 && c.phase != closed {
			c.in = append([]byte(nil), rest...)
		}
		return
	}
	c.in = append(c.in, data...)
	in := c.in
	rest := c.consume(in)
	if c.phase == closed {
		return
	}
	if len(rest) == 0 {
		c.in = nil
		return
	}
	c.in = in[:copy(in, rest)]
}

// consume takes whole units off data and returns what is left.
func (c *conn) consume(data []byte) []byte {
	if c.phase == handshaking {
		end := bytes.Index(data, []byte("\r\n\r\n"))
		if end < 0 {
			if len(data) > maxHead {
				c.drop(errors.New("the answer to the upgrade does not end"))
			}
			return data
		}
		if !bytes.HasPrefix(data, []byte("HTTP/1.1 101")) {
			c.drop(refusedUpgrade(string(data[:end])))
			return nil
		}
		c.phase = open
		data = data[end+4:]
		c.onOpen()
	}
	for c.phase == open {
		used := c.frame(data)
		if used == 0 {
			return data
		}
		data = data[used:]
	}
	return nil
}

func refusedUpgrade(head string) error {
	line, rest, _ := strings.Cut(head, "\r\n")
	e := &upgradeError{line: line}
	if f := strings.Fields(line); len(f) > 1 {
		e.status, _ = strconv.Atoi(f[1])
	}
	for h := range strings.SplitSeq(rest, "\r\n") {
		if name, v, ok := strings.Cut(h, ":"); ok && strings.EqualFold(name, "Retry-After") {
			s, _ := strconv.Atoi(strings.TrimSpace(v))
			e.after = time.Duration(min(max(s, 0), 3600)) * time.Second
		}
	}
	return e
}

// frame handles one server frame and returns its length; 0 if it is not
// complete yet.
func (c *conn) frame(data []byte) (used int) {
	if len(data) < 2 {
		return 0
	}
	n, at := uint64(data[1]&127), 2
	switch n {
	case 126:
		if len(data) < 4 {
			return 0
		}
		n, at = uint64(binary.BigEndian.Uint16(data[2:])), 4
	case 127:
		if len(data) < 10 {
			return 0
		}
		n, at = binary.BigEndian.Uint64(data[2:]), 10
	}
	if n > maxMessage || data[1]&128 != 0 {
		c.drop(fmt.Errorf("a frame of %d bytes came, or a masked one", n))
		return 0
	}
	if uint64(len(data)-at) < n {
		return 0
	}
	c.unit(data[0]&15, data[0]&128 != 0, data[at:at+int(n)])
	return at + int(n)
}

// unit handles one complete server frame.
func (c *conn) unit(op byte, fin bool, payload []byte) {
	switch {
	case op == opPing:
		c.control(opPong, payload)
	case op == opClose:
		code := 1005
		if len(payload) >= 2 {
			code = int(binary.BigEndian.Uint16(payload))
		}
		c.control(opClose, payload)
		c.end(code, fmt.Errorf("closed with %d", code))
	case op > opBinary:
	case fin && len(c.msg) == 0:
		c.onMessage(payload)
	case len(c.msg)+len(payload) > maxMessage:
		c.drop(errors.New("a message is too long"))
	default:
		c.msg = append(c.msg, payload...)
		if fin {
			msg := c.msg
			c.msg = nil
			c.onMessage(msg)
		}
	}
}

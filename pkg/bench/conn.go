package bench

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"

	"golang.org/x/sys/unix"
)

// conn is one WebSocket connection of the loop. It speaks just enough of the
// protocol: masked client frames (with a zero mask, which leaves the payload as
// it is), unfragmented or fragmented server frames, pings and closes.
type conn struct {
	l      *loop
	fd     int
	phase  phase
	sub    string // subprotocol
	host   string
	in     []byte // an incomplete WebSocket frame or HTTP head
	msg    []byte // fragments of a message
	out    []byte // what the kernel has not taken yet
	wantsW bool

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
	opContinuation = 0
	opText         = 1
	opBinary       = 2
	opClose        = 8
	opPing         = 9
	opPong         = 10
)

// dial begins a connection from src (invalid = any) to dst.
func (l *loop) dial(dst netip.AddrPort, src netip.Addr, sub string) (*conn, error) {
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
	c := &conn{l: l, fd: fd, sub: sub, host: dst.String()}
	if err := unix.EpollCtl(l.epfd, unix.EPOLL_CTL_ADD, fd, &unix.EpollEvent{Events: unix.EPOLLOUT | unix.EPOLLIN | unix.EPOLLRDHUP, Fd: int32(fd)}); err != nil {
		unix.Close(fd)
		return nil, fmt.Errorf("epoll: %w", err)
	}
	c.wantsW = true
	l.byFD[int32(fd)] = c
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
	delete(c.l.byFD, int32(c.fd))
	unix.Close(c.fd)
	c.in, c.out, c.msg = nil, nil, nil
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
		c.out = fmt.Appendf(c.out, "GET /v1/ws HTTP/1.1\r\nHost: %s\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"+
			"Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Protocol: %s\r\n\r\n", c.host, c.sub)
	}
	c.flush()
}

// flush gives the kernel what it takes, and asks to be told when it takes more.
func (c *conn) flush() {
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
	if want := len(c.out) > 0; want != c.wantsW {
		c.wantsW = want
		ev := unix.EpollEvent{Events: unix.EPOLLIN | unix.EPOLLRDHUP, Fd: int32(c.fd)}
		if want {
			ev.Events |= unix.EPOLLOUT
		}
		_ = unix.EpollCtl(c.l.epfd, unix.EPOLL_CTL_MOD, c.fd, &ev)
	}
}

// send writes one WebSocket message.
func (c *conn) send(op byte, payload []byte) {
	if c.phase != open {
		return
	}
	c.out = appendFrame(c.out, op, payload)
	if !c.wantsW {
		c.flush()
	}
}

// appendFrame appends a client frame whose mask is zero.
func appendFrame(dst []byte, op byte, payload []byte) []byte {
	dst = append(dst, 0x80|op)
	switch n := len(payload); {
	case n < 126:
		dst = append(dst, 0x80|byte(n))
	case n < 1<<16:
		dst = append(dst, 0x80|126, byte(n>>8), byte(n))
	default:
		dst = append(dst, 0x80|127)
		dst = binary.BigEndian.AppendUint64(dst, uint64(n))
	}
	dst = append(dst, 0, 0, 0, 0)
	return append(dst, payload...)
}

func (c *conn) readable() {
	for c.phase != closed {
		n, err := unix.Read(c.fd, c.l.read)
		if errors.Is(err, unix.EAGAIN) {
			return
		}
		if err != nil || n == 0 {
			c.drop(fmt.Errorf("the server hung up (%v)", err))
			return
		}
		data := c.l.read[:n]
		if len(c.in) > 0 {
			c.in = append(c.in, data...)
			data = c.in
		}
		rest := c.consume(data)
		if c.phase == closed {
			return
		}
		c.in = append(c.in[:0:0], rest...)
		if n < len(c.l.read) {
			return
		}
	}
}

// consume takes whole units off data and returns what is left.
func (c *conn) consume(data []byte) []byte {
	if c.phase == handshaking {
		end := bytes.Index(data, []byte("\r\n\r\n"))
		if end < 0 {
			return data
		}
		if !bytes.HasPrefix(data, []byte("HTTP/1.1 101")) {
			status, _, _ := bytes.Cut(data[:end], []byte("\r\n"))
			c.drop(fmt.Errorf("the upgrade was refused: %s", status))
			return nil
		}
		c.phase = open
		data = data[end+4:]
		c.onOpen()
	}
	for c.phase == open {
		used, ok := c.frame(data)
		if !ok {
			return data
		}
		data = data[used:]
	}
	return nil
}

// frame handles one server frame; false if it is not complete yet.
func (c *conn) frame(data []byte) (used int, ok bool) {
	if len(data) < 2 {
		return 0, false
	}
	n, at := int(data[1]&127), 2
	switch n {
	case 126:
		if len(data) < 4 {
			return 0, false
		}
		n, at = int(binary.BigEndian.Uint16(data[2:])), 4
	case 127:
		if len(data) < 10 {
			return 0, false
		}
		n, at = int(binary.BigEndian.Uint64(data[2:])), 10
	}
	if len(data) < at+n {
		return 0, false
	}
	payload := data[at : at+n]
	switch op := data[0] & 15; op {
	case opText, opBinary, opContinuation:
		fin := data[0]&128 != 0
		if fin && len(c.msg) == 0 {
			c.onMessage(payload)
			break
		}
		c.msg = append(c.msg, payload...)
		if fin {
			msg := c.msg
			c.msg = nil
			c.onMessage(msg)
		}
	case opPing:
		c.send(opPong, payload)
	case opClose:
		code := 1005
		if n >= 2 {
			code = int(binary.BigEndian.Uint16(payload))
		}
		c.send(opClose, payload)
		c.end(code, fmt.Errorf("closed with %d", code))
	}
	return at + n, true
}

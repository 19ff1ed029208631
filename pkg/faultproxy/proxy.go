package faultproxy

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"sync"
	"sync/atomic"
	"time"
)

// Mode is how the proxy treats connections. The zero value passes everything.
type Mode struct {
	Delay       time.Duration // before each piece, in both directions, from 0 to this long
	DropReplies bool          // what the server says is swallowed
	Blackhole   bool          // both directions are swallowed and nothing is closed; new connections hang
	Bytewise    bool          // one byte a write
	Bandwidth   int           // bytes a second and direction; 0 = no bound
	Refuse      bool          // new connections are reset at once
}

// pieceSize is how much is moved at a time; small, so that a changed mode takes
// effect soon.
const pieceSize = 16 << 10

// Proxy forwards connections from its own address to a target. Safe for
// concurrent use.
type Proxy struct {
	ln     net.Listener
	ctx    context.Context
	cancel context.CancelFunc
	wg     sync.WaitGroup

	mu      sync.Mutex
	target  string
	mode    Mode
	changed chan struct{} // closed when mode changes
	links   map[*link]struct{}
}

// link is one client connection and its way to the server.
type link struct {
	client, server net.Conn
	lossy          atomic.Bool // something was swallowed
}

// Listen starts a proxy on an address ("127.0.0.1:0" picks a port) that
// forwards to target.
func Listen(address, target string) (*Proxy, error) {
	ln, err := net.Listen("tcp", address)
	if err != nil {
		return nil, fmt.Errorf("fault proxy: %w", err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	p := &Proxy{ln: ln, ctx: ctx, cancel: cancel, target: target, changed: make(chan struct{}), links: map[*link]struct{}{}}
	p.wg.Go(p.accept)
	return p, nil
}

// Address is where clients connect.
func (p *Proxy) Address() string { return p.ln.Addr().String() }

// SetTarget changes where new connections go: a restarted server may have
// another port.
func (p *Proxy) SetTarget(target string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.target = target
}

// Set changes the mode, of live connections too.
func (p *Proxy) Set(m Mode) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.mode = m
	close(p.changed)
	p.changed = make(chan struct{})
}

// Reset cuts all live connections with a TCP reset.
func (p *Proxy) Reset() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for l := range p.links {
		l.reset()
	}
}

// Close ends everything.
func (p *Proxy) Close() {
	p.cancel()
	p.ln.Close()
	p.Reset()
	p.wg.Wait()
}

func (p *Proxy) state() (Mode, <-chan struct{}, string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.mode, p.changed, p.target
}

func (p *Proxy) accept() {
	for {
		c, err := p.ln.Accept()
		if err != nil {
			if errors.Is(err, net.ErrClosed) || p.ctx.Err() != nil {
				return
			}
			time.Sleep(time.Millisecond) // out of descriptors: some will come back
			continue
		}
		p.wg.Go(func() { p.serve(c) })
	}
}

func (p *Proxy) serve(client net.Conn) {
	l := &link{client: client}
	mode, _, target := p.state()
	if mode.Refuse {
		l.reset()
		return
	}
	p.mu.Lock()
	p.links[l] = struct{}{}
	p.mu.Unlock()
	defer func() {
		p.mu.Lock()
		delete(p.links, l)
		p.mu.Unlock()
	}()
	for mode.Blackhole { // the client sees an open connection that says nothing
		_, changed, _ := p.state()
		select {
		case <-p.ctx.Done():
			client.Close()
			return
		case <-changed:
		}
		mode, _, target = p.state()
	}
	d := net.Dialer{Timeout: 2 * time.Second}
	server, err := d.DialContext(p.ctx, "tcp", target)
	if err != nil {
		l.reset()
		return
	}
	p.mu.Lock()
	l.server = server
	p.mu.Unlock()
	var wg sync.WaitGroup
	wg.Go(func() { p.move(l, server, client, false) })
	wg.Go(func() { p.move(l, client, server, true) })
	wg.Wait()
	client.Close()
	server.Close()
}

// reset closes with RST, as a crashed peer would.
func (l *link) reset() {
	for _, c := range []net.Conn{l.client, l.server} {
		if t, ok := c.(*net.TCPConn); ok && t != nil {
			_ = t.SetLinger(0)
			t.Close()
		}
	}
}

// move copies one direction, piece by piece, as the mode says.
func (p *Proxy) move(l *link, dst, src net.Conn, reply bool) {
	buf := make([]byte, pieceSize)
	for {
		n, err := src.Read(buf)
		if n > 0 && !p.pass(l, dst, buf[:n], reply) {
			break
		}
		if err != nil {
			if !errors.Is(err, io.EOF) {
				dst.Close()
			}
			break
		}
	}
	// The other direction may go on: half-closed connections stay half-closed.
	if t, ok := dst.(*net.TCPConn); ok {
		_ = t.CloseWrite()
	}
}

// pass hands one piece on; false ends the direction. A connection of which
// something was swallowed never passes anything again, because no network lets
// a hole in a stream through: it is reset.
func (p *Proxy) pass(l *link, dst net.Conn, piece []byte, reply bool) bool {
	mode, _, _ := p.state()
	if mode.Blackhole || reply && mode.DropReplies {
		l.lossy.Store(true)
		return true
	}
	if l.lossy.Load() && !mode.DropReplies {
		l.reset()
		return false
	}
	if mode.Delay > 0 && !p.sleep(time.Duration(rand.Int64N(int64(mode.Delay)))) {
		return false
	}
	step := len(piece)
	if mode.Bytewise {
		step = 1
	}
	for len(piece) > 0 {
		n := min(step, len(piece))
		if mode.Bandwidth > 0 {
			n = min(n, max(mode.Bandwidth/20, 1))
			if !p.sleep(time.Duration(n) * time.Second / time.Duration(mode.Bandwidth)) {
				return false
			}
		}
		if _, err := dst.Write(piece[:n]); err != nil {
			return false
		}
		piece = piece[n:]
	}
	return true
}

func (p *Proxy) sleep(d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-p.ctx.Done():
		return false
	case <-t.C:
		return true
	}
}

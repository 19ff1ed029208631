package gateway

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"net"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"go.uber.org/zap"

	"github.com/imdhq/imd/pkg/obs"
	"github.com/imdhq/imd/sdk/go/protocol"
)

const (
	// headRoom is the longest request that the front reads. It is also what the HTTP
	// server reads at once, so that nothing read here is left behind there.
	headRoom = 4 << 10
	// headUsual holds nearly every upgrade whole. In a wave of reconnects there are as
	// many heads as clients that have just come.
	headUsual = 1 << 10
)

// front stands before the HTTP server and takes the upgrades of plain connections
// itself, which costs half of what the server takes for each. Everything else goes
// to the server with what was read of it: other requests, what is not as
// programs usually write it, and connections through TLS. So the server is
// what decides about all that is unusual. It is the server's listener.
type front struct {
	g     *Gateway
	ln    net.Listener
	plain bool          // connections are not through TLS
	rest  chan net.Conn // for the server
	done  chan struct{}
	end   func() error
	wg    sync.WaitGroup
	told  time.Time // when the log was told last that nothing is accepted; of run

	mu      sync.Mutex
	reading map[net.Conn]struct{} // nil = closed
}

func newFront(g *Gateway, ln net.Listener, plain bool) *front {
	f := &front{g: g, ln: ln, plain: plain, rest: make(chan net.Conn), done: make(chan struct{}), reading: map[net.Conn]struct{}{}}
	f.end = sync.OnceValue(f.close)
	return f
}

// Accept is net.Listener's: what is for the server.
func (f *front) Accept() (net.Conn, error) {
	select {
	case c := <-f.rest:
		return c, nil
	case <-f.done:
		return nil, net.ErrClosed
	}
}

// Addr is net.Listener's.
func (f *front) Addr() net.Addr { return f.ln.Addr() }

// Close is net.Listener's. Requests that were read to their end go on.
func (f *front) Close() error { return f.end() }

func (f *front) close() error {
	close(f.done)
	err := f.ln.Close()
	f.mu.Lock()
	defer f.mu.Unlock()
	for c := range f.reading {
		_ = c.Close()
	}
	f.reading = nil
	return err
}

// run takes connections until the listener is closed or fails for good; nil = it was
// closed by Close. The goroutines of what it took are in wg.
func (f *front) run() error {
	var pause acceptRest
	for {
		c, err := f.ln.Accept()
		if err != nil {
			if f.closed() {
				return nil
			}
			if !passes(err) {
				return err
			}
			f.tell(err)
			if !f.rests(pause.next()) {
				return nil
			}
			continue
		}
		pause = 0
		if t, ok := c.(*net.TCPConn); ok && f.plain {
			f.wg.Go(func() { f.serve(t) })
		} else {
			f.pass(c)
		}
	}
}

func (f *front) closed() bool {
	select {
	case <-f.done:
		return true
	default:
		return false
	}
}

// tell logs an error that may go away, once a minute at most; that there are no files
// is told by doorstep.
func (f *front) tell(err error) {
	if errors.Is(err, syscall.EMFILE) || errors.Is(err, syscall.ENFILE) {
		return
	}
	if now := time.Now(); now.Sub(f.told) > time.Minute {
		f.told = now
		f.g.Log.Warn("connections are not taken for now", obs.Err(err))
	}
}

// rests waits; false = the front was closed.
func (f *front) rests(d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-f.done:
		return false
	}
}

// pass gives a connection to the server.
func (f *front) pass(c net.Conn) {
	select {
	case f.rest <- c:
	case <-f.done:
		_ = c.Close()
	}
}

// hold notes a connection that is being read, so that Close ends it; false = it is
// too late.
func (f *front) hold(c net.Conn) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.reading == nil {
		return false
	}
	f.reading[c] = struct{}{}
	return true
}

func (f *front) letGo(c net.Conn) {
	f.mu.Lock()
	defer f.mu.Unlock()
	delete(f.reading, c)
}

// head is room for the head of a request, and to read it from.
type head struct {
	room []byte // headUsual or headRoom bytes
	from bytes.Reader
	in   *bufio.Reader
}

var headPool = sync.Pool{New: func() any { return &head{room: make([]byte, headUsual), in: bufio.NewReaderSize(nil, headUsual)} }}

// serve reads the request of a connection and serves its session, or passes it on.
func (f *front) serve(c *net.TCPConn) {
	if s := f.open(c); s != nil {
		s.begin() // here: another goroutine would have to grow its stack again
	}
}

// open reads the request and answers it, or passes the connection on; nil = there is
// no session. Like the HTTP server it outlives a request that finds a fault in it.
func (f *front) open(c *net.TCPConn) (s *session) {
	defer func() {
		if fault := recover(); fault != nil {
			s = nil
			f.g.m.handshakes.WithLabelValues("fault").Inc()
			f.g.Log.Error("a request for a session was given up", zap.Any("panic", fault), zap.Stack("stack"))
			f.letGo(c)
			_ = c.Close()
			f.g.follow(c, http.StateClosed)
		}
	}()
	if !f.hold(c) {
		_ = c.Close()
		return nil
	}
	f.g.follow(c, http.StateNew) // as the server would; it may close it
	by := time.Now().Add(headerTimeout)
	_ = c.SetReadDeadline(by)
	r, data, err := readHead(c)
	f.letGo(c)
	if err != nil {
		_ = c.Close()
		f.g.follow(c, http.StateClosed)
		return nil
	}
	if r == nil {
		f.g.follow(c, http.StateClosed) // the server counts it anew
		f.pass(&opened{TCPConn: c, read: data, by: by})
		return nil
	}
	f.g.sockets.heard(c)
	r.RemoteAddr = c.RemoteAddr().String()
	a := answer{c: c}
	s = f.g.open(&a, r)
	f.g.follow(c, a.finish())
	return s
}

// readHead reads an upgrade; without one, data is what was read. The request shares no
// memory with what it was read from, which others use while it waits for its turn.
func readHead(c net.Conn) (r *http.Request, data []byte, err error) {
	h := headPool.Get().(*head)
	defer headPool.Put(h)
	data, whole, err := h.read(c)
	if err != nil {
		return nil, nil, err
	}
	if whole {
		r = h.request(data)
	}
	if r == nil {
		return nil, bytes.Clone(data), nil
	}
	return r, nil, nil
}

// read reads until it is clear what it is; whole = it may be an upgrade, and is there
// to its end.
func (h *head) read(c net.Conn) (data []byte, whole bool, err error) {
	n := 0
	for n < headRoom {
		if n == len(h.room) {
			room := make([]byte, headRoom)
			copy(room, h.room)
			h.room = room
		}
		m, err := c.Read(h.room[n:])
		n += m
		if look := lookAt(h.room[:n]); look != unfinished {
			return h.room[:n], look == finished, nil
		}
		if err != nil {
			return nil, false, err
		}
	}
	return h.room[:n], false, nil
}

// glance is what can be told of a request from its first bytes.
type glance uint8

const (
	unfinished glance = iota // there must be more
	finished                 // it asks for the address of sockets, and ends here
	foreign                  // it does not, or something comes behind it
)

var (
	wantedLine = []byte("GET " + protocol.Path)
	headEnd    = []byte("\n\r\n")
	bareEnd    = []byte("\n\n")
)

func lookAt(data []byte) glance {
	if n := min(len(data), len(wantedLine)); !bytes.Equal(data[:n], wantedLine[:n]) {
		return foreign
	}
	switch end := bytes.Index(data, headEnd); {
	case end < 0 && !bytes.Contains(data, bareEnd):
		return unfinished
	case end < 0 || end+len(headEnd) < len(data):
		return foreign
	}
	return finished
}

// request reads an upgrade; nil = it is for the server to say what is wrong with it, if
// anything is.
func (h *head) request(data []byte) *http.Request {
	if !plainText(data) {
		return nil
	}
	h.from.Reset(data)
	h.in.Reset(&h.from)
	r, err := http.ReadRequest(h.in)
	if err != nil || r.URL.Path != protocol.Path || r.ProtoMajor != 1 || r.ProtoMinor != 1 || r.ContentLength != 0 ||
		len(r.TransferEncoding) > 0 || !plainHost(r.Host) || !hasToken(r.Header, "Upgrade", "websocket") || r.Header.Get("Expect") != "" {
		return nil
	}
	return r
}

// plainText reports whether a head has lines of printable text and names its host
// once.
func plainText(data []byte) bool {
	for i, b := range data {
		switch {
		case b == '\r':
			if i+1 >= len(data) || data[i+1] != '\n' {
				return false
			}
		case b == '\n':
			if i == 0 || data[i-1] != '\r' {
				return false
			}
		case b < ' ' && b != '\t' || b > '~':
			return false
		}
	}
	hosts := 0
	for line := range bytes.Lines(data) {
		if len(line) >= 5 && bytes.EqualFold(line[:5], []byte("host:")) {
			hosts++
		}
	}
	return hosts == 1
}

// plainHost reports whether the host is one of which the server finds nothing wrong.
func plainHost(host string) bool {
	for _, b := range []byte(host) {
		letter := b|0x20 >= 'a' && b|0x20 <= 'z'
		if !letter && (b < '0' || b > '9') && !strings.ContainsRune(".:-_[]", rune(b)) {
			return false
		}
	}
	return host != ""
}

// answer writes the answer to an upgrade: the switch of protocols, or a refusal, after
// which the connection is closed. A few hundred bytes into a new socket never wait.
type answer struct {
	c      *net.TCPConn
	header http.Header
	status int
	body   bytes.Buffer
	taken  bool // by Hijack
}

// Header is http.ResponseWriter's.
func (a *answer) Header() http.Header {
	if a.header == nil {
		a.header = http.Header{}
	}
	return a.header
}

// WriteHeader is http.ResponseWriter's.
func (a *answer) WriteHeader(status int) {
	if a.status == 0 {
		a.status = status
	}
}

// Write is http.ResponseWriter's. What is written leaves with finish.
func (a *answer) Write(p []byte) (int, error) {
	a.WriteHeader(http.StatusOK)
	return a.body.Write(p)
}

// Hijack is http.Hijacker's. It writes the head of the answer first.
func (a *answer) Hijack() (net.Conn, *bufio.ReadWriter, error) {
	a.taken = true
	_ = a.c.SetReadDeadline(time.Time{})
	if _, err := a.c.Write(a.head(nil)); err != nil {
		_ = a.c.Close()
		return nil, nil, err
	}
	return a.c, bufio.NewReadWriter(bufio.NewReaderSize(a.c, 0), nil), nil // nothing was read ahead
}

// left reports whether the client has closed its side, and so waits for no answer.
func (a *answer) left() (gone bool) {
	raw, err := a.c.SyscallConn()
	if err != nil {
		return true
	}
	err = raw.Control(func(fd uintptr) {
		var one [1]byte
		n, _, err := syscall.Recvfrom(int(fd), one[:], syscall.MSG_PEEK|syscall.MSG_DONTWAIT)
		gone = n == 0 && err == nil || err != nil && !errors.Is(err, syscall.EAGAIN) && !errors.Is(err, syscall.EINTR)
	})
	return gone || err != nil
}

// finish writes the refusal, if it is one, and closes the connection. It returns what
// has become of it.
func (a *answer) finish() http.ConnState {
	if a.taken {
		return http.StateHijacked
	}
	a.Header().Set("Connection", "close")
	a.header.Set("Content-Length", strconv.Itoa(a.body.Len()))
	a.header.Set("Date", time.Now().UTC().Format(http.TimeFormat))
	_, _ = a.c.Write(a.head(a.body.Bytes()))
	_ = a.c.Close()
	return http.StateClosed
}

// head is the status line and the header, with what follows.
func (a *answer) head(body []byte) []byte {
	b := bytes.NewBuffer(make([]byte, 0, 256+len(body)))
	fmt.Fprintf(b, "HTTP/1.1 %d %s\r\n", a.status, http.StatusText(a.status))
	_ = a.header.Write(b) // a buffer takes everything
	b.WriteString("\r\n")
	b.Write(body)
	return b.Bytes()
}

// opened is a connection that something was read from already.
type opened struct {
	*net.TCPConn
	read []byte
	by   time.Time // until when its first request must be there; zero = that was said
}

// Read is net.Conn's.
func (o *opened) Read(p []byte) (int, error) {
	if len(o.read) == 0 {
		return o.TCPConn.Read(p)
	}
	n := copy(p, o.read)
	if o.read = o.read[n:]; len(o.read) == 0 {
		o.read = nil
	}
	return n, nil
}

// SetReadDeadline is net.Conn's. The first is for the head of the first request,
// whose time began before.
func (o *opened) SetReadDeadline(t time.Time) error {
	if !o.by.IsZero() && (t.IsZero() || t.After(o.by)) {
		t = o.by
	}
	o.by = time.Time{}
	return o.TCPConn.SetReadDeadline(t)
}

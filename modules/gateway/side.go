package gateway

import (
	"bufio"
	"bytes"
	"context"
	"io"
	"math"
	"net"
	"net/http"
	"slices"
	"sync"
	"time"

	"github.com/coder/websocket"
)

const (
	// readBuffer is what a connection has for reading while it is busy; larger
	// messages are read past it.
	readBuffer = 1024
	// controlBuffer holds one whole control frame, so that the library writes
	// each with a single call.
	controlBuffer = 256
	// controlPatience is how much of the library's time for a control frame must be left
	// when it is read. The library closes the side when that time is over, and may still
	// do so just after it has answered.
	controlPatience = 4 * time.Second
	// spareShare is the part of the sides not needed for a tidyStep that is given up
	// then: a burst leaves its sides to one that comes within some ten seconds.
	spareShare = 8
)

// side is the server's side of a WebSocket as the library keeps it, with its buffers.
// Between two messages the library remembers nothing of a connection, as there is no
// compression, but that a control frame took long. So a connection that is parked has
// no side, and the next one that is woken goes on with the one it had.
//
// To the library a side is the connection: it reads from it and writes only control
// frames, which go the way of all frames: through the queue. Closing it does nothing:
// the session closes the socket once what must still leave has left. Whoever has a side
// last must end it: a finalizer of the library would keep it for good.
type side struct {
	net.Conn // of nobody; for the methods that the library does not call
	ws       *websocket.Conn
	in       *bufio.Reader
	out      *bufio.Writer
	lent     *lending // the buffers of in and out; nil = they have their own, or none
	session  *session // whose it is; nil = nobody's
	late     bool     // a control frame took so long that the library may yet close this
}

// lending is a pair of buffers that busy connections have.
type lending struct {
	in  *bufio.Reader
	out *bufio.Writer
}

var lendings = sync.Pool{New: func() any {
	return &lending{bufio.NewReaderSize(nil, readBuffer), bufio.NewWriterSize(nil, controlBuffer)}
}}

// newSide makes a side that a handshake is to complete.
func newSide(s *session) *side {
	return &side{in: new(bufio.Reader), out: new(bufio.Writer), session: s}
}

// readFirst gives the side its buffers, and has it read first what came with the
// handshake.
func (d *side) readFirst(early []byte) error {
	if len(early) == 0 {
		d.equip()
		return nil
	}
	d.in = bufio.NewReaderSize(io.MultiReader(bytes.NewReader(bytes.Clone(early)), d), max(readBuffer, len(early)))
	d.out = bufio.NewWriterSize(d, controlBuffer)
	_, err := d.in.Peek(len(early))
	return err
}

// equip gives the side buffers.
func (d *side) equip() {
	d.lent = lendings.Get().(*lending)
	d.lent.in.Reset(d)
	d.lent.out.Reset(d)
	*d.in, *d.out = *d.lent.in, *d.lent.out
}

// strip takes the buffers away, when nothing is in them.
func (d *side) strip() {
	*d.in, *d.out = bufio.Reader{}, bufio.Writer{}
	if d.lent == nil {
		return // they were made for what came with the handshake
	}
	d.lent.in.Reset(nil)
	d.lent.out.Reset(nil)
	lendings.Put(d.lent)
	d.lent = nil
}

// Read reads from the socket of the session.
func (d *side) Read(p []byte) (int, error) { return d.session.wire.Read(p) }

// Write takes one control frame of the library.
func (d *side) Write(p []byte) (int, error) {
	d.session.q.control(p)
	return len(p), nil
}

// Close does nothing; see side.
func (d *side) Close() error { return nil }

// pinged is told of each ping; false = it gets no pong.
func (d *side) pinged(ctx context.Context, _ []byte) bool {
	d.look(ctx)
	return d.session.pinged()
}

// ponged is told of each pong. Nobody waits for one.
func (d *side) ponged(ctx context.Context, _ []byte) { d.look(ctx) }

// look looks at how long the control frame has taken of which ctx is.
func (d *side) look(ctx context.Context) {
	if until, ok := ctx.Deadline(); ok && time.Until(until) < controlPatience {
		d.late = true
	}
}

// accept has the library do the handshake of a request. w is where the answer goes,
// and gives the side up to the library when it is hijacked.
func (d *side) accept(w http.ResponseWriter, r *http.Request, subprotocols ...string) (err error) {
	d.ws, err = websocket.Accept(w, r, &websocket.AcceptOptions{
		Subprotocols:       subprotocols,
		InsecureSkipVerify: true, // examine checks the origin, more strictly
		OnPingReceived:     d.pinged,
		OnPongReceived:     d.ponged,
	})
	return err
}

// admit lets messages of the session's encoding through.
func (d *side) admit() { d.ws.SetReadLimit(int64(d.session.enc.MaxEnvelope())) }

// end closes what the library has, and frees the buffers. The side is of no use then.
func (d *side) end() {
	if d.ws != nil {
		_ = d.ws.CloseNow()
	}
	d.strip()
}

// sides is the sides that parked connections have given up. Safe for concurrent use.
type sides struct {
	mu    sync.Mutex
	spare []*side
	least int // of spare since the last trim
}

// lend gives the session a side.
func (ds *sides) lend(s *session) *side {
	d := ds.take()
	if d == nil {
		d = blankSide()
	} else {
		d.equip()
	}
	d.session = s
	d.admit()
	return d
}

func (ds *sides) take() *side {
	ds.mu.Lock()
	defer ds.mu.Unlock()
	n := len(ds.spare) - 1
	if n < 0 {
		return nil
	}
	d := ds.spare[n]
	ds.spare[n], ds.spare, ds.least = nil, ds.spare[:n], min(ds.least, n)
	return d
}

// giveBack takes the side of a session that stands between two messages, with nothing
// in its buffers.
func (ds *sides) giveBack(d *side) {
	if d.late { // it is for nobody else
		d.end()
		return
	}
	d.strip()
	d.session = nil
	ds.mu.Lock()
	defer ds.mu.Unlock()
	ds.spare = append(ds.spare, d)
}

// trim gives up some of those that were not needed since the last time.
func (ds *sides) trim() {
	ds.mu.Lock()
	n := (ds.least + spareShare - 1) / spareShare
	ds.mu.Unlock()
	ds.giveUp(n)
}

// empty gives all up.
func (ds *sides) empty() { ds.giveUp(math.MaxInt) }

// giveUp ends n of the spare sides, or as many as there are.
func (ds *sides) giveUp(n int) {
	ds.mu.Lock()
	keep := max(0, len(ds.spare)-n)
	gone := slices.Clone(ds.spare[keep:])
	clear(ds.spare[keep:])
	if ds.spare = ds.spare[:keep]; keep < cap(ds.spare)/4 {
		ds.spare = slices.Clone(ds.spare) // so that the list gets shorter too
	}
	ds.least = keep
	ds.mu.Unlock()
	for _, d := range gone {
		d.end()
	}
}

// blankSide makes a side without a client. The library makes one only from
// a handshake, so it is shown one.
func blankSide() *side {
	d := newSide(nil)
	d.equip()
	if err := d.accept(&blank{header: http.Header{}, side: d}, blankRequest); err != nil {
		panic(err) // nothing in it depends on anybody
	}
	return d
}

// blankRequest is the handshake of blankSide.
var blankRequest = &http.Request{
	Method: http.MethodGet, Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1,
	Header: http.Header{
		"Connection": {"Upgrade"}, "Upgrade": {"websocket"},
		"Sec-Websocket-Version": {"13"}, "Sec-Websocket-Key": {"AAAAAAAAAAAAAAAAAAAAAA=="},
	},
}

// blank is where the answer to blankRequest goes.
type blank struct {
	header http.Header
	side   *side
}

// Header is http.ResponseWriter's.
func (b *blank) Header() http.Header { return b.header }

// WriteHeader is http.ResponseWriter's.
func (b *blank) WriteHeader(int) {}

// Write is http.ResponseWriter's.
func (b *blank) Write(p []byte) (int, error) { return len(p), nil }

// Hijack is http.Hijacker's.
func (b *blank) Hijack() (net.Conn, *bufio.ReadWriter, error) {
	return b.side, bufio.NewReadWriter(b.side.in, b.side.out), nil
}

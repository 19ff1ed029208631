package gateway

import (
	"bufio"
	"context"
	"encoding/binary"
	"fmt"
	"io"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/imdhq/imd/sdk/go/protocol"
)

// pinger is a client that speaks WebSocket itself, and pings.
type pinger struct {
	t *testing.T
	c net.Conn
	r *bufio.Reader
}

func newPinger(t *testing.T, w *world, user string) *pinger {
	t.Helper()
	data, _ := protocol.EncodeClient(protocol.JSON, helloWith(w.token(user)))
	c, err := dialer{w, t.Context()}.rawOpen(masked(1, string(data)))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	p := &pinger{t, c, bufio.NewReader(c)}
	if _, err := p.r.ReadString('\n'); err != nil { // of the status line
		t.Fatal(err)
	}
	for {
		line, err := p.r.ReadString('\n')
		if err != nil {
			t.Fatal(err)
		}
		if line == "\r\n" {
			return p
		}
	}
}

// ping pings, and returns what the pong says. The frame behind the ping lets the
// connection be parked again.
func (p *pinger) ping(say string) string {
	p.t.Helper()
	if _, err := io.WriteString(p.c, masked(9, say)+masked(1, `{"pong":{}}`)); err != nil {
		p.t.Fatal(err)
	}
	return p.next(opPong)
}

// opPong is the first byte of a pong.
const opPong = 0x8a

// next is the payload of the next frame of a kind.
func (p *pinger) next(op byte) string {
	p.t.Helper()
	for {
		var h [2]byte
		if _, err := io.ReadFull(p.r, h[:]); err != nil {
			p.t.Fatal(err)
		}
		n := int(h[1])
		if n == 126 {
			var ext [2]byte
			if _, err := io.ReadFull(p.r, ext[:]); err != nil {
				p.t.Fatal(err)
			}
			n = int(binary.BigEndian.Uint16(ext[:]))
		}
		b := make([]byte, n)
		if _, err := io.ReadFull(p.r, b); err != nil {
			p.t.Fatal(err)
		}
		if h[0] == op {
			return string(b)
		}
	}
}

// Connections that were parked go on with sides that others have had, and with new
// ones; what they say goes nowhere else.
func TestSidesGoFromOneConnectionToAnother(t *testing.T) {
	w := beginTuned(t, quietAfter(20*time.Millisecond))
	var all []*pinger
	for i := range 3 {
		all = append(all, newPinger(t, w, fmt.Sprint("u", i)))
	}
	asleep := func() {
		t.Helper()
		eventually(t, "all are parked", func() bool { return w.parked() == len(all) })
	}
	asleep()
	spare := func() int {
		ds := &w.g.sides
		ds.mu.Lock()
		defer ds.mu.Unlock()
		return len(ds.spare)
	}
	if n := spare(); n == 0 || n > len(all) { // some may have been given up meanwhile
		t.Errorf("%d sides are spare, of %d connections", n, len(all))
	}
	for round := range 3 {
		for i, p := range all { // the side of the one before, or, in a later round, a new one
			if say := fmt.Sprintf("%d in round %d", i, round); p.ping(say) != say {
				t.Errorf("the pong of %d is for another ping", i)
			}
		}
		asleep()
		w.g.sides.empty()
		if n := spare(); n != 0 {
			t.Errorf("%d sides are left", n)
		}
	}
	// The limit is that of the connection: more than the one before it, which was the
	// last to be parked, may send.
	bin := w.session(t, protocol.Proto, "bob", "d1")
	eventually(t, "all are parked", func() bool { return w.parked() == len(all)+1 })
	long := fmt.Sprintf(`{"id":7,"pad":%q}`, strings.Repeat("x", 70<<10))
	_, _ = io.WriteString(all[0].c, "\x81\xff"+string(binary.BigEndian.AppendUint64(nil, uint64(len(long))))+"\x00\x00\x00\x00"+long)
	for !strings.Contains(all[0].next(opText), `"id":7`) {
	}
	if bin.Closed() {
		t.Error("another connection was closed")
	}
}

// Sides that are not needed are given up, those that are needed now and then are not.
func TestSidesAreTrimmed(t *testing.T) {
	var ds sides
	s := &session{enc: protocol.JSON}
	var busy []*side
	for range 64 {
		busy = append(busy, ds.lend(s))
	}
	for _, d := range busy {
		ds.giveBack(d)
	}
	ds.trim() // they came just now
	if n := len(ds.spare); n != 64 {
		t.Fatalf("%d are left of 64 that were in use a moment ago", n)
	}
	for range 40 { // sixteen are needed again and again
		var now []*side
		for range 16 {
			now = append(now, ds.lend(s))
		}
		for _, d := range now {
			ds.giveBack(d)
		}
		ds.trim()
	}
	if n := len(ds.spare); n != 16 {
		t.Errorf("%d are left, and 16 needed", n)
	}
	ds.trim()
	ds.trim()
	if n := len(ds.spare); n >= 16 {
		t.Errorf("%d are left, and none needed", n)
	}
	ds.empty()
	if n := len(ds.spare); n != 0 {
		t.Errorf("%d are left of all", n)
	}
}

// The library may still close a side whose last control frame took nearly all of its
// time: nobody else gets it.
func TestASideWithASlowControlFrameIsNotLentOn(t *testing.T) {
	for _, tt := range []struct {
		left time.Duration // of the time for the frame
		kept int
	}{{5 * time.Second, 1}, {3 * time.Second, 0}, {-time.Second, 0}} {
		var ds sides
		d := ds.lend(&session{enc: protocol.JSON})
		ctx, cancel := context.WithTimeout(t.Context(), tt.left)
		d.ponged(ctx, nil)
		cancel()
		ds.giveBack(d)
		if n := len(ds.spare); n != tt.kept {
			t.Errorf("%v left: %d are kept", tt.left, n)
		}
	}
}

package bench

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"io"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/imdhq/imd/sdk/go/protocol"
)

// rawServer takes one connection, reads the upgrade and lets talk go on.
func rawServer(t *testing.T, answer string, talk func(c net.Conn, r *bufio.Reader)) netip.AddrPort {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		c, err := l.Accept()
		if err != nil {
			return
		}
		defer c.Close()
		_ = c.SetDeadline(time.Now().Add(10 * time.Second))
		r := bufio.NewReader(c)
		if _, err := http.ReadRequest(r); err != nil {
			return
		}
		_, _ = io.WriteString(c, answer)
		talk(c, r)
	}()
	t.Cleanup(func() {
		l.Close()
		<-done
	})
	return netip.MustParseAddrPort(l.Addr().String())
}

const switching = "HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\r\n"

// serverFrame is a frame as servers write it.
func serverFrame(first byte, payload []byte) []byte {
	b := []byte{first}
	switch n := len(payload); {
	case n < 126:
		b = append(b, byte(n))
	case n < 1<<16:
		b = binary.BigEndian.AppendUint16(append(b, 126), uint16(n))
	default:
		b = binary.BigEndian.AppendUint64(append(b, 127), uint64(n))
	}
	return append(b, payload...)
}

// clientFrame reads one frame of a client and undoes its mask.
func clientFrame(r *bufio.Reader) (first byte, payload []byte, err error) {
	var h [2]byte
	if _, err = io.ReadFull(r, h[:]); err != nil {
		return 0, nil, err
	}
	n := int(h[1] & 127)
	switch n {
	case 126:
		var x [2]byte
		_, err = io.ReadFull(r, x[:])
		n = int(binary.BigEndian.Uint16(x[:]))
	case 127:
		var x [8]byte
		_, err = io.ReadFull(r, x[:])
		n = int(binary.BigEndian.Uint64(x[:]))
	}
	var mask [4]byte
	if err == nil {
		_, err = io.ReadFull(r, mask[:])
	}
	payload = make([]byte, n)
	if err == nil {
		_, err = io.ReadFull(r, payload)
	}
	for i := range payload {
		payload[i] ^= mask[i%4]
	}
	return h[0], payload, err
}

// talk dials and runs a loop until the connection ends; it returns what came.
func talk(t *testing.T, addr netip.AddrPort, opened func(*conn)) (messages [][]byte, code int, err error) {
	t.Helper()
	l, lerr := newLoop()
	if lerr != nil {
		t.Fatal(lerr)
	}
	defer l.close()
	c, derr := l.dial(addr, netip.Addr{}, protocol.Proto)
	if derr != nil {
		t.Fatal(derr)
	}
	c.onOpen = func() {
		if opened != nil {
			opened(c)
		}
	}
	c.onMessage = func(m []byte) { messages = append(messages, slices.Clone(m)) }
	c.onClose = func(n int, e error) { code, err, l.stop = n, e, true }
	if lerr := l.run(10 * time.Second); lerr != nil {
		t.Fatal(lerr)
	}
	if err == nil {
		t.Fatal("the connection did not end")
	}
	return messages, code, err
}

// Messages arrive whole, however the server cuts them and the network delivers
// them, with pings between the fragments.
func TestFramesInPieces(t *testing.T) {
	want := [][]byte{{}, []byte("a"), bytes.Repeat([]byte("b"), 125), bytes.Repeat([]byte("c"), 126), bytes.Repeat([]byte("d"), 70000), []byte("efg")}
	var out []byte
	for _, m := range want[:5] {
		out = append(out, serverFrame(0x82, m)...)
	}
	out = append(out, serverFrame(0x02, []byte("e"))...)
	out = append(out, serverFrame(0x89, []byte("are you there"))...)
	out = append(out, serverFrame(0x00, []byte("f"))...)
	out = append(out, serverFrame(0x80, []byte("g"))...)
	out = append(out, serverFrame(0x88, []byte{0x0f, 0xa1, 'x'})...)
	for _, step := range []int{1, 2, 3, 1000, 1 << 20} {
		replies := make(chan []byte, 2) // pong and close
		addr := rawServer(t, switching, func(c net.Conn, r *bufio.Reader) {
			head := out[:600]
			for part := range slices.Chunk(head, min(step, 600)) {
				_, _ = c.Write(part)
			}
			for part := range slices.Chunk(out[600:], max(step, 100)) {
				_, _ = c.Write(part)
			}
			for range 2 {
				_, m, _ := clientFrame(r)
				replies <- m
			}
		})
		got, code, _ := talk(t, addr, nil)
		if !slices.EqualFunc(got, want, bytes.Equal) || code != 4001 {
			t.Fatalf("steps of %d: %d messages, code %d", step, len(got), code)
		}
		if pong, bye := <-replies, <-replies; string(pong) != "are you there" || !bytes.HasPrefix(bye, []byte{0x0f, 0xa1}) {
			t.Errorf("steps of %d: pong %q, close %x", step, pong, bye)
		}
	}
}

// What is queued in one round leaves in one envelope; the 65th frame begins
// another one.
func TestFramesLeaveInEnvelopes(t *testing.T) {
	got := make(chan []byte, 2) // the two envelopes
	addr := rawServer(t, switching, func(_ net.Conn, r *bufio.Reader) {
		for range 2 {
			_, m, err := clientFrame(r)
			if err != nil {
				return
			}
			got <- m
		}
	})
	_, _, _ = talk(t, addr, func(c *conn) {
		for range protocol.MaxClientFrames + 1 {
			c.put(append(c.envelope(), 'x'))
		}
	})
	if a, b := <-got, <-got; len(a) != protocol.MaxClientFrames || len(b) != 1 {
		t.Errorf("%d and %d frames", len(a), len(b))
	}
}

// A server that does not read makes what is written wait; nothing is lost.
func TestWritesWait(t *testing.T) {
	sum := make(chan int, 1) // bytes in all
	addr := rawServer(t, switching, func(_ net.Conn, r *bufio.Reader) {
		n := 0
		for n < 300*30000 {
			_, m, err := clientFrame(r)
			if err != nil {
				break
			}
			n += len(m)
		}
		sum <- n
	})
	_, _, _ = talk(t, addr, func(c *conn) {
		for range 300 {
			c.put(append(c.envelope(), make([]byte, 30000)...))
		}
	})
	if n := <-sum; n != 300*30000 {
		t.Errorf("%d bytes arrived", n)
	}
}

func TestBrokenServers(t *testing.T) {
	huge := []byte{0x82, 127, 0x7f, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff}
	for name, tt := range map[string]struct {
		answer, send, want string
	}{
		"a length beyond all bounds": {switching, string(huge), "frame of"},
		"a masked frame":             {switching, string([]byte{0x82, 0x81, 1, 2, 3, 4, 5}), "masked"},
		"endless fragments":          {switching, strings.Repeat(string(serverFrame(0x02, make([]byte, 60000))), 6), "too long"},
		"an endless head":            {strings.Repeat("x", maxHead+1), "", "does not end"},
		"a refusal":                  {"HTTP/1.1 503 Service Unavailable\r\nRetry-After: 7\r\n\r\n", "", "503"},
		"silence":                    {switching, "", "hung up"},
	} {
		addr := rawServer(t, tt.answer, func(c net.Conn, _ *bufio.Reader) { _, _ = io.WriteString(c, tt.send) })
		if _, _, err := talk(t, addr, nil); err == nil || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestVerdicts(t *testing.T) {
	reason, pause, stop := verdict(nil, 0, refusedUpgrade("HTTP/1.1 503 Service Unavailable\r\nretry-after: 7"))
	if reason != "http_503" || pause != 7*time.Second || stop {
		t.Errorf("%s, %v, %v", reason, pause, stop)
	}
	if _, _, stop := verdict(nil, 0, refusedUpgrade("HTTP/1.1 401 Unauthorized")); !stop {
		t.Error("401 does not stop")
	}
	if reason, _, stop := verdict(nil, 4503, io.EOF); reason != "replaced" || !stop {
		t.Errorf("%s, %v", reason, stop)
	}
	if reason, _, stop := verdict(protocol.NewBye("drain", "", time.Second), 4000, io.EOF); reason != "drain" || stop {
		t.Errorf("%s, %v", reason, stop)
	}
	if reason, _, stop := verdict(nil, 0, io.EOF); reason != "connection_lost" || stop {
		t.Errorf("%s, %v", reason, stop)
	}
}

// Timers run in the order of their times, and equal ones in the order in which
// they were set.
func TestTimers(t *testing.T) {
	l, err := newLoop()
	if err != nil {
		t.Fatal(err)
	}
	defer l.close()
	var got []int
	for i, ms := range []int{5, 1, 3, 1, 4, 1, 5, 9, 2, 6} {
		l.at(time.Duration(ms)*time.Millisecond, func() { got = append(got, ms*100+i) })
	}
	if err := l.run(20 * time.Millisecond); err != nil {
		t.Fatal(err)
	}
	if len(got) != 10 || !slices.IsSorted(got) {
		t.Errorf("order %v", got)
	}
}

// Work posted from elsewhere wakes the loop.
func TestPost(t *testing.T) {
	l, err := newLoop()
	if err != nil {
		t.Fatal(err)
	}
	defer l.close()
	done := make(chan struct{})
	go func() {
		defer close(done)
		l.post(func() { l.stop = true })
	}()
	if err := l.run(time.Minute); err != nil || l.now > 30*time.Second {
		t.Errorf("%v after %v", err, l.now)
	}
	<-done
}

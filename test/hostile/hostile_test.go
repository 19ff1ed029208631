package hostile

import (
	"bufio"
	"crypto/tls"
	"encoding/binary"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/imdhq/imd/pkg/testenv"
	"github.com/imdhq/imd/sdk/go/gen/clientv1"
	"github.com/imdhq/imd/sdk/go/protocol"
)

// soon is how long a test waits for what it does not time: it ends one that would
// wait for ever.
const soon = time.Minute

// raw is a TCP connection to the public listener.
func raw(t testing.TB, n *testenv.Node) net.Conn {
	t.Helper()
	c, err := net.DialTimeout("tcp", n.Endpoints().Public, soon)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return c
}

// upgrade makes a WebSocket of a TCP connection.
func upgrade(t testing.TB, c net.Conn) *bufio.Reader {
	t.Helper()
	fmt.Fprintf(c, "GET /v1/ws HTTP/1.1\r\nHost: x\r\nUpgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n"+
		"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Protocol: imd.v1.json\r\n\r\n")
	br := bufio.NewReader(c)
	_ = c.SetReadDeadline(time.Now().Add(soon))
	res, err := http.ReadResponse(br, nil)
	if err != nil || res.StatusCode != http.StatusSwitchingProtocols {
		t.Fatalf("no upgrade: %v %v", res, err)
	}
	return br
}

// frame is a masked WebSocket frame with a zero mask.
func frame(fin bool, op byte, payload []byte) []byte {
	b := []byte{op}
	if fin {
		b[0] |= 0x80
	}
	switch n := len(payload); {
	case n < 126:
		b = append(b, 0x80|byte(n))
	case n < 1<<16:
		b = binary.BigEndian.AppendUint16(append(b, 0x80|126), uint16(n))
	default:
		b = binary.BigEndian.AppendUint64(append(b, 0x80|127), uint64(n))
	}
	return append(append(b, 0, 0, 0, 0), payload...)
}

// closeCode reads frames until a close, and returns its code; 0 = cut without
// one, -1 = still open at the deadline.
func closeCode(c net.Conn, br *bufio.Reader, limit time.Duration) int {
	_ = c.SetReadDeadline(time.Now().Add(limit))
	for {
		head := make([]byte, 2)
		if _, err := io.ReadFull(br, head); err != nil {
			if ne, ok := err.(net.Error); ok && ne.Timeout() {
				return -1
			}
			return 0
		}
		n := int(head[1] & 127)
		if n == 126 {
			ext := make([]byte, 2)
			if _, err := io.ReadFull(br, ext); err != nil {
				return 0
			}
			n = int(binary.BigEndian.Uint16(ext))
		}
		payload := make([]byte, n)
		if _, err := io.ReadFull(br, payload); err != nil {
			return 0
		}
		if head[0]&15 == 8 {
			if n < 2 {
				return 1005
			}
			return int(binary.BigEndian.Uint16(payload))
		}
	}
}

func hello(token string) []byte {
	return fmt.Appendf(nil, `{"id":1,"hello":{"version":1,"token":"%s","deviceId":"d%d"}}`, token, rand.Uint32())
}

// What a hostile peer sends ends its own connection, with the right code, and
// nothing else.
func TestHostileInput(t *testing.T) {
	n := testenv.Start(t)
	honest := testenv.Login(t, n.URL(), protocol.JSON, n.Token("honest"), "d")
	token := n.Token("eve")
	rss := n.Resident()
	clock, stop, slowest := testenv.NewClock(t), make(chan struct{}), make(chan time.Duration, 1)
	go func() {
		defer close(slowest) // also if it fails
		worst := time.Duration(0)
		for {
			select {
			case <-stop:
				slowest <- worst
				return
			case <-time.After(20 * time.Millisecond):
				began := clock.Now()
				honest.MustSend(testenv.ToUser("friend", "x"))
				worst = max(worst, clock.Since(began))
			}
		}
	}()
	endless := make([]byte, 10)
	binary.BigEndian.PutUint64(endless[2:], 1<<63-1)
	endless[0], endless[1] = 0x81, 0xff
	fragments := frame(false, 1, []byte("{"))
	for range 140_000 {
		fragments = append(fragments, frame(false, 0, []byte(" "))...)
	}
	var pings []byte
	for range 10_000 {
		pings = append(pings, frame(true, 9, []byte("x"))...)
	}
	for name, tt := range map[string]struct {
		write []byte
		codes []int // 0 = may also just be cut, -1 = may stay open
	}{
		"a length of 2^63-1":       {append(append(endless, 0, 0, 0, 0), make([]byte, 140_000)...), []int{1009, 1002, 0}},
		"140,000 fragments":        {fragments, []int{1009, 4500, 4004, 0}},
		"a control frame too long": {frame(true, 9, make([]byte, 126)), []int{1002, 0}},
		"a reserved bit":           {[]byte{0xc1, 0x80, 0, 0, 0, 0}, []int{1002, 0}},
		"an unknown opcode":        {frame(true, 3, nil), []int{1002, 0}},
		"an unmasked frame":        {[]byte{0x81, 2, '{', '}'}, []int{1002, 0}},
		"a continuation first":     {frame(true, 0, []byte("{}")), []int{1002, 0}},
		"over the limit":           {frame(true, 1, []byte(strings.Repeat(" ", 131_073))), []int{1009}},
		"deep nesting":             {frame(true, 1, []byte(`{"x":`+strings.Repeat("[", 100_000))), []int{4500}},
		"binary noise as text":     {frame(true, 1, []byte{0xff, 0xfe, 0x00}), []int{1007}},
		"10,000 pings":             {pings, []int{-1, 4004, 1008, 0}},
	} {
		t.Run(name, func(t *testing.T) {
			limit := soon
			if slices.Contains(tt.codes, -1) {
				limit = 8 * time.Second // for the server to be busy with it
			}
			var wg sync.WaitGroup
			for range 20 {
				c := raw(t, n)
				br := upgrade(t, c)
				wg.Go(func() {
					_, _ = c.Write(frame(true, 1, hello(token)))
					go func() { _, _ = c.Write(tt.write) }()
					if got := closeCode(c, br, limit); !slices.Contains(tt.codes, got) {
						t.Errorf("closed with %d, want one of %v", got, tt.codes)
					}
					c.Close()
				})
			}
			wg.Wait()
		})
	}
	close(stop)
	if worst := <-slowest; worst > 2*time.Second {
		t.Errorf("an honest user waited %v", worst)
	}
	if grown := n.Resident() - rss; grown > 100<<20 {
		t.Errorf("memory grew by %d MiB", grown>>20)
	}
	if honest.Closed() {
		t.Error("an honest user was closed")
	}
}

// Peers that say nothing, or very slowly, are gone within 10 s, and others log
// in meanwhile.
func TestSilentPeers(t *testing.T) {
	n := testenv.Start(t, "--set", "gateway.limits.loopback_exempt=true")
	ca, dir := testenv.NewAuthority(t), t.TempDir()
	ca.Serve(t, dir, time.Now().Add(time.Hour))
	secure := testenv.Start(t, "--set", "gateway.tls.cert_file="+dir+"/cert.pem", "--set", "gateway.tls.key_file="+dir+"/key.pem")
	clock := testenv.NewClock(t)
	// gone reads what says nothing until the server ends it.
	gone := func(c net.Conn) error {
		began := clock.Now()
		_ = c.SetReadDeadline(time.Now().Add(soon))
		if _, err := c.Read(make([]byte, 1)); err == nil || os.IsTimeout(err) {
			return fmt.Errorf("a read gives %v", err)
		}
		if took := clock.Since(began); took > 12*time.Second {
			return fmt.Errorf("it ends after %v", took)
		}
		return nil
	}
	var wg sync.WaitGroup
	for range 50 { // through TLS, before its handshake and behind it
		before := raw(t, secure)
		behind := tls.Client(raw(t, secure), &tls.Config{RootCAs: ca.Pool(), ServerName: "127.0.0.1"})
		if err := behind.Handshake(); err != nil {
			t.Fatal(err)
		}
		for _, c := range []net.Conn{before, behind} {
			wg.Go(func() {
				if err := gone(c); err != nil {
					t.Errorf("a mute connection through TLS: %v", err)
				}
			})
		}
	}
	for range 100 {
		slow, mute, upgraded := raw(t, n), raw(t, n), raw(t, n)
		br := upgrade(t, upgraded)
		wg.Go(func() {
			for began := clock.Now(); clock.Since(began) < 12*time.Second; time.Sleep(400 * time.Millisecond) {
				if _, err := slow.Write([]byte("G")); err != nil {
					return
				}
			}
			t.Error("one byte at a time is still connected after 12 s")
		})
		wg.Go(func() {
			if err := gone(mute); err != nil {
				t.Errorf("a mute connection: %v", err)
			}
		})
		wg.Go(func() {
			began := clock.Now()
			if code := closeCode(upgraded, br, soon); code != 4008 || clock.Since(began) > 12*time.Second {
				t.Errorf("an unauthenticated one closed with %d after %v", code, clock.Since(began))
			}
		})
	}
	for i := range 20 {
		began := clock.Now()
		c := testenv.Login(t, n.URL(), protocol.Proto, n.Token(fmt.Sprint("u", i)), "d")
		if took := clock.Since(began); took > time.Second {
			t.Errorf("an honest login took %v", took)
		}
		c.Close()
	}
	wg.Wait()
}

// Everything a connection held is given back, however it ends.
func TestNothingLeaks(t *testing.T) {
	const cycles = 400
	const leak = 7 << 20 // the newest ends are kept for the leader, 4 to 5 MiB; the 2,000 sessions would be 4 MiB more
	n := testenv.Start(t)
	token, keep := n.Token("ann"), testenv.Login(t, n.URL(), protocol.Proto, n.Token("keep"), "d")
	reader := n.Token("reader")
	all := muchToRead(t, n, "reader")
	endings := map[string]func(i int){
		"reset during large answers": func(int) {
			c := raw(t, n)
			br := upgrade(t, c)
			_ = c.(*net.TCPConn).SetReadBuffer(4096)
			_, _ = c.Write(append(frame(true, 1, hello(reader)), frame(true, 1, all)...))
			_ = c.SetReadDeadline(time.Now().Add(soon))
			if _, err := io.CopyN(io.Discard, br, 20_000); err != nil {
				t.Errorf("nothing was written: %v", err)
			}
			_ = c.(*net.TCPConn).SetLinger(0)
			c.Close()
		},
		"clean close": func(i int) {
			testenv.Login(t, n.URL(), protocol.Encoding(i%2), n.Token("ann"), fmt.Sprint("d", i)).Close()
		},
		"cut after login": func(i int) {
			testenv.Login(t, n.URL(), protocol.Encoding(i%2), n.Token("ann"), fmt.Sprint("d", i)).Cut()
		},
		"reset after the upgrade": func(int) {
			c := raw(t, n)
			upgrade(t, c)
			_ = c.(*net.TCPConn).SetLinger(0)
			c.Close()
		},
		"reset before the upgrade": func(int) {
			c := raw(t, n)
			fmt.Fprint(c, "GET /v1/ws HTTP/1.1\r\n")
			_ = c.(*net.TCPConn).SetLinger(0)
			c.Close()
		},
		"refused token": func(int) {
			c := raw(t, n)
			br := upgrade(t, c)
			_, _ = c.Write(frame(true, 1, hello("x.y.z")))
			if code := closeCode(c, br, soon); code != 4501 {
				t.Errorf("closed with %d", code)
			}
			c.Close()
		},
		"superseded": func(int) { testenv.Login(t, n.URL(), protocol.Proto, token, "same").Cut() },
		"bad frame": func(int) {
			c := raw(t, n)
			br := upgrade(t, c)
			_, _ = c.Write(append(frame(true, 1, hello(token)), frame(true, 1, []byte("no"))...))
			if code := closeCode(c, br, soon); code != 4500 {
				t.Errorf("closed with %d", code)
			}
			c.Close()
		},
	}
	for i := range 20 { // fill caches and pools first
		for _, end := range endings {
			end(i)
		}
	}
	before := settled(t, n, 1)
	for name, end := range endings {
		t.Run(name, func(t *testing.T) {
			for i := range cycles {
				end(i)
			}
		})
	}
	before.again(t, n, leak)
	for _, user := range []string{"ann", "reader"} {
		var said string
		for l := testenv.NewLimit(testenv.Patience); !strings.Contains(said, "has no sessions"); time.Sleep(20 * time.Millisecond) {
			if l.Over() {
				t.Errorf("the routes of %s: %s", user, said)
				break
			}
			out, msg, status := n.Command("route", "show", user)
			said = fmt.Sprint(status, " ", out, msg)
		}
	}
	if f := keep.Request(&clientv1.ClientFrame{Kind: &clientv1.ClientFrame_Sync{Sync: &clientv1.Sync{}}}); f.GetSyncResult() == nil {
		t.Errorf("the one that stayed: %v", f)
	}
}

// Connections that are half open end by the heartbeat, and leave nothing. The node is
// one for them alone: so short a heartbeat would also end who answers a little late.
func TestHalfOpenOnesLeakNothing(t *testing.T) {
	const some = 1000
	n := testenv.Start(t, "--set", "gateway.ping_interval=1s", "--set", "gateway.pong_timeout=1s")
	users := 0
	halfOpen := func(many int) {
		var wg sync.WaitGroup
		for range many {
			users++
			c := raw(t, n)
			br := upgrade(t, c)
			// Each is another user, so that none ends for another's sake.
			_, _ = c.Write(frame(true, 1, hello(n.Token(fmt.Sprint("half", users)))))
			wg.Go(func() {
				if code := closeCode(c, br, soon); code != 4002 {
					t.Errorf("closed with %d", code)
				}
				c.Close()
			})
		}
		wg.Wait()
	}
	halfOpen(100)
	before := settled(t, n, 0)
	halfOpen(some)
	// The newest ends are kept, 1.5 KiB each, and the level before differs by 1.6 MiB; with
	// the sessions it would be 4.9 MiB.
	before.again(t, n, 4<<20)
}

// level is what a node holds.
type level struct{ routines, files, connections, live float64 }

func levelOf(t *testing.T, n *testenv.Node) level {
	t.Helper()
	res, err := http.Get(n.OpsURL() + "/debug/pprof/heap?gc=1") // what a collection leaves
	if err != nil {
		t.Fatal(err)
	}
	_, _ = io.Copy(io.Discard, res.Body)
	res.Body.Close()
	return level{n.Metric("go_goroutines"), n.Metric("process_open_fds"), n.Metric("imd_gateway_connections"), n.Metric("go_memstats_heap_alloc_bytes")}
}

// settled waits until the node has no more than so many connections, and gives its
// level then.
func settled(t *testing.T, n *testenv.Node, connections float64) level {
	t.Helper()
	l := testenv.NewLimit(testenv.Patience)
	for n.Metric("imd_gateway_connections") != connections {
		if l.Over() {
			t.Fatalf("%v connections, want %v", n.Metric("imd_gateway_connections"), connections)
		}
		time.Sleep(20 * time.Millisecond)
	}
	return levelOf(t, n)
}

// again waits until the node is at the level again, but for so many bytes.
func (before level) again(t *testing.T, n *testenv.Node, leak float64) {
	t.Helper()
	near := func(after, before float64) bool { return after <= max(before*1.05, before+20) }
	for l := testenv.NewLimit(time.Minute); ; time.Sleep(500 * time.Millisecond) {
		after := levelOf(t, n)
		if near(after.routines, before.routines) && near(after.files, before.files) && after.connections == before.connections && after.live <= before.live+leak {
			t.Logf("%.0f KiB live before, %.0f after", before.live/1024, after.live/1024)
			return
		}
		if l.Over() {
			t.Fatalf("before %+v, after %+v", before, after)
		}
	}
}

// muchToRead sends half a megabyte to the user and returns the frames that ask
// for several times that at once.
func muchToRead(t *testing.T, n *testenv.Node, user string) (frames []byte) {
	t.Helper()
	c := testenv.Login(t, n.URL(), protocol.Proto, n.Token("writer"), "d")
	var conv string
	for range 40 {
		conv = c.MustSend(testenv.ToUser(user, strings.Repeat("x", 12_000))).ConversationId
	}
	c.Close()
	for i := range 10 {
		frames = fmt.Appendf(frames, `{"id":%d,"history":{"conversationId":"%s","afterSeq":"%d","limit":500}}`+"\n", i+2, conv, 4*i)
	}
	return frames
}

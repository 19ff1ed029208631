package gateway

import (
	"bufio"
	"context"
	"encoding/json"
	"io"
	"net"
	"net/http"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/coder/websocket"

	"github.com/imdhq/imd/pkg/im"
	"github.com/imdhq/imd/pkg/testenv"
	"github.com/imdhq/imd/sdk/go/gen/clientv1"
	"github.com/imdhq/imd/sdk/go/protocol"
)

// refusedWith checks that an upgrade is refused with a status and a Connect
// error whose message has all the parts.
func refusedWith(t *testing.T, w *world, o testenv.DialOptions, status int, parts ...string) *http.Response {
	t.Helper()
	_, res, err := testenv.TryDial(t, w.base(), protocol.Proto, o)
	if err == nil || res == nil {
		t.Fatalf("the upgrade was not refused: %v", err)
	}
	body, _ := io.ReadAll(res.Body)
	var e struct{ Code, Message string }
	if json.Unmarshal(body, &e) != nil || e.Code == "" || e.Message == "" {
		t.Errorf("the body is no Connect error: %s", body)
	}
	if res.StatusCode != status {
		t.Errorf("status %d (%s), want %d", res.StatusCode, body, status)
	}
	for _, p := range parts {
		if !strings.Contains(e.Message, p) {
			t.Errorf("the message %q does not say %q", e.Message, p)
		}
	}
	return res
}

func header(kv ...string) http.Header {
	h := http.Header{}
	for i := 0; i < len(kv); i += 2 {
		h.Add(kv[i], kv[i+1])
	}
	return h
}

func TestUpgradeIsRefusedForAReason(t *testing.T) {
	w := begin(t, func(c *Config) { c.AllowedOrigins = []string{"https://app.example"} })
	host := w.g.Addr().String()
	refusedWith(t, w, testenv.DialOptions{Subprotocols: []string{"chat"}}, 400, protocol.SubprotocolProto, protocol.SubprotocolJSON)
	for _, o := range []string{"https://evil.example", "https://app.example.evil.example", "null", "http://" + host + "0"} {
		refusedWith(t, w, testenv.DialOptions{Header: header("Origin", o)}, 403, o, "gateway.allowed_origins")
	}
	refusedWith(t, w, testenv.DialOptions{Header: header("Origin", "https://app.example", "Origin", "https://evil.example")}, 403)
	refusedWith(t, w, testenv.DialOptions{Header: header("Authorization", "Bearer no.token.here")}, 401)
	refusedWith(t, w, testenv.DialOptions{Header: header("Authorization", "Basic abc")}, 401, "Bearer")
	refusedWith(t, w, testenv.DialOptions{Header: header("Authorization", "Bearer "+w.token("ann", expires(-time.Minute)))}, 401)
	for _, o := range []string{"https://app.example", "http://" + host} {
		c, _, err := testenv.TryDial(t, w.base(), protocol.Proto, testenv.DialOptions{Header: header("Origin", o)})
		if err != nil {
			t.Errorf("the origin %s is refused: %v", o, err)
			continue
		}
		c.Close()
	}
	res, err := http.Get(w.base() + protocol.Path)
	if err != nil || res.StatusCode != http.StatusUpgradeRequired {
		t.Errorf("a plain GET: %v, %v", res, err)
	}
	res.Body.Close()
	res, err = http.Get(w.base() + "/other")
	if err != nil || res.StatusCode != 200 {
		t.Errorf("the public handler: %v, %v", res, err)
	}
	res.Body.Close()
	http.DefaultClient.CloseIdleConnections()
}

func TestTheClientsOrderOfSubprotocolsCounts(t *testing.T) {
	w := begin(t)
	for _, list := range [][]string{{"x", protocol.SubprotocolJSON, protocol.SubprotocolProto}, {protocol.SubprotocolProto, protocol.SubprotocolJSON}} {
		want := list[0]
		if want == "x" {
			want = list[1]
		}
		c, res, err := testenv.TryDial(t, w.base(), protocol.Proto, testenv.DialOptions{Subprotocols: list})
		if err != nil {
			t.Fatal(err)
		}
		if got := res.Header.Get("Sec-WebSocket-Protocol"); got != want {
			t.Errorf("offered %v, got %s", list, got)
		}
		c.Cut()
	}
}

func TestCompressionIsNotTakenUp(t *testing.T) {
	w := begin(t)
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
	defer cancel()
	ws, res, err := websocket.Dial(ctx, w.base()+protocol.Path, &websocket.DialOptions{
		Subprotocols: []string{protocol.SubprotocolJSON}, CompressionMode: websocket.CompressionContextTakeover})
	if err != nil {
		t.Fatal(err)
	}
	defer ws.CloseNow()
	if e := res.Header.Get("Sec-WebSocket-Extensions"); e != "" {
		t.Errorf("the server took %q", e)
	}
}

func TestAdmissionOfConnections(t *testing.T) {
	w := beginTuned(t, func(g *Gateway) { g.admission.mostInLine = 0 }, func(c *Config) { c.MaxConnections, c.MaxUnauthenticated = 4, 2 })
	a, b := testenv.Dial(t, w.base(), protocol.Proto), testenv.Dial(t, w.base(), protocol.Proto)
	if res := refusedWith(t, w, testenv.DialOptions{}, 503, "hello"); res.Header.Get("Retry-After") == "" {
		t.Error("no Retry-After")
	}
	a.Cut()
	eventually(t, "room again", func() bool {
		c, _, err := testenv.TryDial(t, w.base(), protocol.Proto, testenv.DialOptions{})
		if err == nil {
			c.Cut()
		}
		return err == nil
	})
	b.Cut()
	eventually(t, "all gone", func() bool { return w.g.hub.len() == 0 })
	for i := range 4 {
		w.session(t, protocol.Proto, "ann", "d"+string(rune('0'+i)))
	}
	refusedWith(t, w, testenv.DialOptions{}, 503, "as many")
}

func TestRulesForAddresses(t *testing.T) {
	w := begin(t, func(c *Config) {
		c.Limits.LoopbackExempt, c.MaxUnauthenticatedAddress = false, 1
		c.Limits.FailedHellos = 2
		c.TrustedProxies = []string{"127.0.0.0/8"}
	})
	from := func(a string) testenv.DialOptions { return testenv.DialOptions{Header: header("X-Forwarded-For", a)} }
	if _, _, err := testenv.TryDial(t, w.base(), protocol.Proto, from("192.0.2.1")); err != nil {
		t.Fatal(err)
	}
	refusedWith(t, w, from("192.0.2.1"), 429)
	refusedWith(t, w, from("203.0.113.9, 192.0.2.1"), 429) // the client cannot put another address in front
	if _, _, err := testenv.TryDial(t, w.base(), protocol.Proto, from("192.0.2.2")); err != nil {
		t.Errorf("another address: %v", err)
	}
	for range 2 {
		o := from("192.0.2.3")
		o.Header.Set("Authorization", "Bearer bad")
		refusedWith(t, w, o, 401)
	}
	if res := refusedWith(t, w, from("192.0.2.3"), 429); res.Header.Get("Retry-After") != "60" {
		t.Errorf("Retry-After %q after too many bad tokens", res.Header.Get("Retry-After"))
	}
}

func TestClientAddr(t *testing.T) {
	c := fast()
	c.TrustedProxies = []string{"10.0.0.0/8", "::1"}
	proxies, _ := parseProxies(c.TrustedProxies)
	g := &Gateway{cfg: c, proxies: proxies}
	for _, tt := range []struct{ remote, forwarded, want string }{
		{"192.0.2.1:1", "203.0.113.1", "192.0.2.1"},
		{"10.1.1.1:1", "203.0.113.1", "203.0.113.1"},
		{"10.1.1.1:1", "203.0.113.1, 10.2.2.2", "203.0.113.1"},
		{"10.1.1.1:1", "1.1.1.1, 203.0.113.1", "203.0.113.1"},
		{"[::1]:1", "2001:db8::5", "2001:db8::5"},
		{"10.1.1.1:1", "", "10.1.1.1"},
		{"10.1.1.1:1", "garbage", "10.1.1.1"},
		{"10.1.1.1:1", "garbage, 10.2.2.2", "10.2.2.2"},
		{"[::ffff:10.1.1.1]:1", "203.0.113.1", "203.0.113.1"},
	} {
		r := &http.Request{RemoteAddr: tt.remote, Header: header("X-Forwarded-For", tt.forwarded)}
		if got := g.clientAddr(r); got != netip.MustParseAddr(tt.want) {
			t.Errorf("%s forwarded %q: %v, want %s", tt.remote, tt.forwarded, got, tt.want)
		}
	}
}

func TestAPortInUseFailsTheStart(t *testing.T) {
	w := begin(t)
	cfg := fast()
	cfg.Listen = w.g.Addr().String()
	d := w.g.Deps
	d.Reg = nopRegisterer{}
	g, err := New(cfg, d)
	if err != nil {
		t.Fatal(err)
	}
	err = g.Start(t.Context())
	if err == nil || !strings.Contains(err.Error(), cfg.Listen) || !strings.Contains(err.Error(), "gateway.listen") {
		t.Errorf("Start: %v", err)
	}
	if err := g.Close(); err != nil {
		t.Errorf("Close: %v", err)
	}
}

// handshake is an upgrade as a client writes it.
func handshake(host, subprotocol string) string {
	return "GET " + protocol.Path + " HTTP/1.1\r\nHost: " + host + "\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n" +
		"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Protocol: " + subprotocol + "\r\n\r\n"
}

// masked is a final client frame of up to 65,535 bytes, masked with zeros.
func masked(op byte, payload string) string {
	b := []byte{0x80 | op}
	if len(payload) < 126 {
		b = append(b, 0x80|byte(len(payload)))
	} else {
		b = append(b, 0x80|126, byte(len(payload)>>8), byte(len(payload)))
	}
	return string(b) + "\x00\x00\x00\x00" + payload
}

// raw connects without a library.
func raw(t *testing.T, w *world) (net.Conn, *bufio.Reader) {
	t.Helper()
	c, err := net.Dial("tcp", w.g.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	_ = c.SetDeadline(time.Now().Add(30 * time.Second))
	return c, bufio.NewReader(c)
}

// A client that writes its hello with the handshake, in one segment, loses
// nothing of it.
func TestBytesBehindTheHandshakeAreKept(t *testing.T) {
	w := begin(t)
	hello := `{"id":1,"hello":{"version":1,"token":"` + w.token("ann") + `","deviceId":"d","class":"web"}}` + "\n" + strings.Repeat(" ", 40_000)
	for range 100 {
		c, r := raw(t, w)
		if _, err := io.WriteString(c, handshake(w.g.Addr().String(), protocol.SubprotocolJSON)+masked(1, hello)); err != nil {
			t.Fatal(err)
		}
		res, err := http.ReadResponse(r, nil)
		if err != nil || res.StatusCode != 101 {
			t.Fatalf("%v, %v", res, err)
		}
		if got := readMessage(t, r); !strings.Contains(got, `"welcome"`) {
			t.Fatalf("the first frame is %s", got)
		}
		_ = c.Close()
	}
}

// readMessage reads one unfragmented message of a server, or a close frame.
func readMessage(t *testing.T, r *bufio.Reader) string {
	t.Helper()
	h := make([]byte, 2)
	if _, err := io.ReadFull(r, h); err != nil {
		t.Fatalf("no message: %v", err)
	}
	n := int(h[1])
	if n == 126 {
		x := make([]byte, 2)
		_, _ = io.ReadFull(r, x)
		n = int(x[0])<<8 | int(x[1])
	}
	b := make([]byte, n)
	if _, err := io.ReadFull(r, b); err != nil {
		t.Fatal(err)
	}
	if h[0] == opClose {
		return "close " + string(b)
	}
	return string(b)
}

func TestWebSocketPingsAreAnswered(t *testing.T) {
	w := begin(t)
	c, r := raw(t, w)
	_, _ = io.WriteString(c, handshake("x", protocol.SubprotocolJSON)+masked(9, "are you there?"))
	if res, err := http.ReadResponse(r, nil); err != nil || res.StatusCode != 101 {
		t.Fatalf("%v, %v", res, err)
	}
	if got := readMessage(t, r); got != "are you there?" {
		t.Errorf("the pong says %q", got)
	}
	for range 20_000 { // a flood ends nothing and grows nothing
		if _, err := io.WriteString(c, masked(9, "x")); err != nil {
			t.Fatalf("closed for pings: %v", err)
		}
	}
	_, _ = io.WriteString(c, masked(8, "\x03\xe8bye"))
	for {
		if got := readMessage(t, r); strings.HasPrefix(got, "close \x03\xe8") {
			return
		}
	}
}

// Input that breaks WebSocket itself ends that connection with 1002 or 1009.
func TestBrokenWebSocketFrames(t *testing.T) {
	w := begin(t)
	for name, bytes := range map[string]string{
		"reserved bits":         "\xf1\x80\x00\x00\x00\x00",
		"unknown opcode":        "\x83\x80\x00\x00\x00\x00",
		"not masked":            "\x81\x02{}",
		"long control frame":    "\x89\xfe\x00\x7e\x00\x00\x00\x00" + strings.Repeat("x", 126),
		"endless message":       "\x81\xff\x7f\xff\xff\xff\xff\xff\xff\xff\x00\x00\x00\x00" + strings.Repeat("x", 200_000),
		"fragments without end": "\x01\x81\x00\x00\x00\x00x" + strings.Repeat("\x00\x81\x00\x00\x00\x00x", 140_000),
	} {
		t.Run(name, func(t *testing.T) {
			c, r := raw(t, w)
			_, _ = io.WriteString(c, handshake("x", protocol.SubprotocolJSON))
			if res, err := http.ReadResponse(r, nil); err != nil || res.StatusCode != 101 {
				t.Fatalf("%v, %v", res, err)
			}
			go func() { _, _ = io.WriteString(c, bytes) }()
			got := readMessage(t, r)
			if !strings.HasPrefix(got, "close \x03\xea") && !strings.HasPrefix(got, "close \x03\xf1") {
				t.Errorf("got %q", got)
			}
			if _, err := r.ReadByte(); err == nil {
				t.Error("something follows the close")
			}
		})
	}
}

func TestSilentConnectionsAreDropped(t *testing.T) {
	w := begin(t, func(c *Config) { c.HelloTimeout = 300 * time.Millisecond })
	both(t, func(t *testing.T, enc protocol.Encoding) {
		c := testenv.Dial(t, w.base(), enc)
		wantBye(t, c, "auth_timeout")
	})
}

// wantBye waits for a bye with the reason and the close code that goes with it.
func wantBye(t *testing.T, c *testenv.Client, reason string) *clientv1.Bye {
	t.Helper()
	b := c.Take("bye", func(f *clientv1.ServerFrame) bool { return f.GetBye() != nil }).GetBye()
	code := protocol.CloseCode(reason)
	if b.Reason != reason || int(b.CloseCode) != code || b.Reconnect != protocol.Reconnect(code) {
		t.Errorf("bye says %v, want %s", b, reason)
	}
	if got, _ := c.WaitClosed(5 * time.Second); got != code {
		t.Errorf("closed with %d, want %d", got, code)
	}
	return b
}

func helloWith(token string, edit ...func(*clientv1.Hello)) *clientv1.ClientFrame {
	h := &clientv1.Hello{Version: 1, Token: token, DeviceId: "d", Class: "web"}
	for _, f := range edit {
		f(h)
	}
	return &clientv1.ClientFrame{Id: 7, Kind: &clientv1.ClientFrame_Hello{Hello: h}}
}

func TestHelloIsRefusedForAReason(t *testing.T) {
	w := begin(t)
	other := *w
	other.key.Secret = []byte("another secret, also 32 bytes long")
	good := w.token("ann")
	w.state.set(func(s *fakeState) { s.refused["l-gone"], s.refused["l-replaced"] = "revoked", "replaced" })
	for name, tt := range map[string]struct {
		frame  *clientv1.ClientFrame
		reason string
		text   string
	}{
		"another frame first":        {&clientv1.ClientFrame{Kind: &clientv1.ClientFrame_Sync{Sync: &clientv1.Sync{}}}, "bad_frame", "hello"},
		"a frame without kind first": {&clientv1.ClientFrame{Id: 1}, "bad_frame", "hello"},
		"version 0":                  {helloWith(good, func(h *clientv1.Hello) { h.Version = 0 }), "unsupported_version", "1 to 1"},
		"version 99":                 {helloWith(good, func(h *clientv1.Hello) { h.Version = 99 }), "unsupported_version", "1 to 1"},
		"no token":                   {helloWith(""), "bad_token", ""},
		"garbage":                    {helloWith("garbage"), "bad_token", ""},
		"wrongly signed":             {helloWith(other.token("ann")), "bad_token", ""},
		"expired":                    {helloWith(w.token("ann", expires(-time.Minute))), "token_expired", ""},
		"device":                     {helloWith(good, func(h *clientv1.Hello) { h.DeviceId = "a b" }), "bad_frame", "device_id"},
		"class":                      {helloWith(good, func(h *clientv1.Hello) { h.Class = "fridge" }), "bad_frame", "class"},
		"client":                     {helloWith(good, func(h *clientv1.Hello) { h.Client = strings.Repeat("x", 65) }), "bad_frame", "client"},
		"revoked":                    {helloWith(w.token("ann", login("l-gone"))), "revoked", ""},
		"replaced":                   {helloWith(w.token("ann", login("l-replaced"))), "replaced", "another device"},
	} {
		t.Run(name, func(t *testing.T) {
			both(t, func(t *testing.T, enc protocol.Encoding) {
				c := testenv.Dial(t, w.base(), enc)
				c.Write(tt.frame)
				if b := wantBye(t, c, tt.reason); !strings.Contains(b.Message, tt.text) {
					t.Errorf("the text %q does not say %q", b.Message, tt.text)
				}
			})
		})
	}
	eventually(t, "nothing is left", func() bool { return w.g.hub.len() == 0 && len(w.routesOf("ann")) == 0 })
}

func TestHelloIsTaken(t *testing.T) {
	w := begin(t)
	t.Run("version 99 down to 1", func(t *testing.T) {
		c := testenv.Dial(t, w.base(), protocol.JSON)
		c.Write(helloWith(w.token("ann"), func(h *clientv1.Hello) { h.Version, h.MinVersion = 99, 1 }))
		if f := c.Answer(7); f.GetWelcome().GetVersion() != 1 {
			t.Errorf("answered %v", f)
		}
	})
	t.Run("the token's device and class win", func(t *testing.T) {
		c := testenv.Dial(t, w.base(), protocol.JSON)
		c.Write(helloWith(w.token("bob", func(c *claims) { c.Device, c.Class = "tok", im.Bot })))
		wl := c.Answer(7).GetWelcome()
		if wl.GetDeviceId() != "tok" || wl.UserId != "bob" || wl.DataEpoch != "e1" || wl.PingIntervalMs != 25_000 || wl.PongTimeoutMs != 10_000 ||
			wl.TokenExpireMs < time.Now().UnixMilli() || wl.SessionId == "" {
			t.Errorf("welcome says %v", wl)
		}
		if r := w.routesOf("bob"); len(r) != 1 || r[0].Class != im.Bot || r[0].Device != "tok" || string(r[0].Session) != wl.SessionId || r[0].Node != testNode {
			t.Errorf("routes: %v", r)
		}
	})
	t.Run("the token of the header", func(t *testing.T) {
		tok := w.token("cat")
		for _, inHello := range []string{"", tok} {
			c, _, err := testenv.TryDial(t, w.base(), protocol.Proto, testenv.DialOptions{Header: header("Authorization", "Bearer "+tok)})
			if err != nil {
				t.Fatal(err)
			}
			c.Write(helloWith(inHello))
			if f := c.Answer(7); f.GetWelcome().GetUserId() != "cat" {
				t.Errorf("answered %v", f)
			}
		}
		c, _, err := testenv.TryDial(t, w.base(), protocol.Proto, testenv.DialOptions{Header: header("Authorization", "Bearer "+tok)})
		if err != nil {
			t.Fatal(err)
		}
		c.Write(helloWith(w.token("dan")))
		wantBye(t, c, "bad_token")
	})
	t.Run("no device", func(t *testing.T) {
		c := testenv.Dial(t, w.base(), protocol.JSON)
		c.Write(helloWith(w.token("eve"), func(h *clientv1.Hello) { h.DeviceId, h.Class = "", "" }))
		if f := c.Answer(7); f.GetWelcome().GetDeviceId() != "l-eve" {
			t.Errorf("answered %v", f)
		}
	})
	t.Run("only once", func(t *testing.T) {
		c := w.session(t, protocol.JSON, "fay", "d")
		c.Write(helloWith(w.token("fay")))
		wantBye(t, c, "bad_frame")
	})
}

func TestEnvelopeSizes(t *testing.T) {
	w := begin(t)
	// pad makes an envelope of exactly n bytes out of a sync.
	pad := map[protocol.Encoding]func(n int) []byte{
		protocol.JSON: func(n int) []byte {
			f := `{"id":9,"sync":{}}` + "\n"
			return []byte(f + strings.Repeat(" ", n-len(f)))
		},
		protocol.Proto: func(n int) []byte {
			// id 9, sync {}, and an unknown field 99 that fills it up.
			body := []byte{0x08, 9, 0x32, 0}
			fill := n - len(body) - 3 - 2 - 3 // frame length, tag, field length: three, two and three bytes
			body = append(body, 0x9a, 0x06, byte(fill)|0x80, byte(fill>>7)|0x80, byte(fill>>14))
			body = append(body, make([]byte, fill)...)
			return protocol.PrefixProto(body)
		},
	}
	both(t, func(t *testing.T, enc protocol.Encoding) {
		text := enc == protocol.JSON
		c := w.session(t, enc, "ann", "d-"+enc.String())
		exact := pad[enc](enc.MaxEnvelope())
		if len(exact) != enc.MaxEnvelope() {
			t.Fatalf("made %d bytes", len(exact))
		}
		if err := c.TryWriteRaw(text, exact); err != nil {
			t.Fatal(err)
		}
		if f := c.Answer(9); f.GetSyncResult() == nil {
			t.Fatalf("the largest envelope is answered with %v", f)
		}
		_ = c.TryWriteRaw(text, pad[enc](enc.MaxEnvelope()+1))
		if code, _ := c.WaitClosed(5 * time.Second); code != protocol.CloseTooBig {
			t.Errorf("a byte more closes with %d", code)
		}
	})
}

func TestWhatCannotBeDecodedCloses(t *testing.T) {
	w := begin(t)
	for _, tt := range []struct {
		name string
		enc  protocol.Encoding
		text bool
		data string
		code int
	}{
		{"text to binary", protocol.Proto, true, `{}`, 1003},
		{"binary to text", protocol.JSON, false, `{}`, 1003},
		{"bad UTF-8", protocol.JSON, true, "{\"id\":1,\"sync\":{\"syncToken\":\"\xff\"}}", 1007},
		{"bad UTF-8 in protobuf", protocol.Proto, false, "\x05\x2a\x03\x0a\x01\xff", 4500},
		{"two kinds", protocol.JSON, true, `{"id":1,"sync":{},"pong":{}}`, 4500},
		{"duplicate key", protocol.JSON, true, `{"id":1,"id":2,"sync":{}}`, 4500},
		{"rounded integer", protocol.JSON, true, `{"read":{"conversationId":"g_1","seq":9007199254740993}}`, 4500},
		{"broken length", protocol.Proto, false, "\xff\xff\xff\xff\xff\xff", 4500},
		{"65 frames", protocol.JSON, true, strings.Repeat(`{"pong":{}}`+"\n", 65), 4500},
	} {
		t.Run(tt.name, func(t *testing.T) {
			c := w.session(t, tt.enc, "ann", "d")
			_ = c.TryWriteRaw(tt.text, []byte(tt.data))
			if tt.code >= 4000 {
				wantBye(t, c, "bad_frame")
				return
			}
			if code, _ := c.WaitClosed(5 * time.Second); code != tt.code {
				t.Errorf("closed with %d, want %d", code, tt.code)
			}
		})
	}
}

package gateway

import (
	"bufio"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/imdhq/imd/pkg/testenv"
	"github.com/imdhq/imd/sdk/go/protocol"
)

func TestGlances(t *testing.T) {
	line := "GET " + protocol.Path
	for _, tt := range []struct {
		name, data string
		want       glance
	}{
		{"nothing yet", "", unfinished},
		{"the beginning", "GET /v", unfinished},
		{"another method", "P", foreign},
		{"another path", "GET /v2", foreign},
		{"the line", line, unfinished},
		{"no end", line + " HTTP/1.1\r\nHost: x\r\n", unfinished},
		{"all of it", line + " HTTP/1.1\r\nHost: x\r\n\r\n", finished},
		{"something behind it", line + " HTTP/1.1\r\nHost: x\r\n\r\n.", foreign},
	} {
		if got := lookAt([]byte(tt.data)); got != tt.want {
			t.Errorf("%s: %d, want %d", tt.name, got, tt.want)
		}
	}
}

func TestHeadsThatTheFrontReads(t *testing.T) {
	good := handshake("h", protocol.SubprotocolProto)
	for _, tt := range []struct {
		name, data string
		want       bool
	}{
		{"an upgrade", good, true},
		{"with a query", strings.Replace(good, " HTTP/1.1", "?a=b HTTP/1.1", 1), true},
		{"small letters", strings.Replace(good, "Host:", "host:", 1), true},
		{"a longer path", strings.Replace(good, " HTTP/1.1", "x HTTP/1.1", 1), false},
		{"an older protocol", strings.Replace(good, "HTTP/1.1", "HTTP/1.0", 1), false},
		{"no host", strings.Replace(good, "Host: h\r\n", "", 1), false},
		{"two hosts", strings.Replace(good, "Host: h\r\n", "Host: h\r\nHOST: h\r\n", 1), false},
		{"an empty host", strings.Replace(good, "Host: h\r\n", "Host:\r\n", 1), false},
		{"no upgrade", strings.Replace(good, "Upgrade: websocket\r\n", "", 1), false},
		{"a body", strings.Replace(good, "\r\n\r\n", "\r\nContent-Length: 3\r\n\r\n", 1), false},
		{"a body in chunks", strings.Replace(good, "\r\n\r\n", "\r\nTransfer-Encoding: chunked\r\n\r\n", 1), false},
		{"an expectation", strings.Replace(good, "\r\n\r\n", "\r\nExpect: 100-continue\r\n\r\n", 1), false},
		{"a line without an end", strings.Replace(good, "\r\nUpgrade", "\nUpgrade", 1), false},
		{"a control character", strings.Replace(good, "Host: h", "Host: h\x00", 1), false},
		{"another script", strings.Replace(good, "Host: h", "Host: hé", 1), false},
		{"a name with a blank", strings.Replace(good, "Upgrade:", "Upgrade :", 1), false},
	} {
		h := headPool.New().(*head)
		if r := h.request([]byte(tt.data)); (r != nil) != tt.want {
			t.Errorf("%s: %v", tt.name, r)
		}
	}
}

// However a request comes, it is answered as the HTTP server answers it.
func TestRequestsHoweverTheyCome(t *testing.T) {
	w := begin(t)
	host := w.g.Addr().String()
	good := handshake(host, protocol.SubprotocolJSON)
	hello := masked(1, `{"id":1,"hello":{"version":1,"token":"`+w.token("ann")+`","deviceId":"d","class":"web"}}`)
	answered := func(c net.Conn, r *bufio.Reader, status int) {
		t.Helper()
		res, err := http.ReadResponse(r, nil)
		if err != nil || res.StatusCode != status {
			t.Fatalf("%v, %v; want %d", res, err, status)
		}
		if status != http.StatusSwitchingProtocols {
			_, _ = io.Copy(io.Discard, res.Body)
			return
		}
		if _, err := io.WriteString(c, hello); err != nil {
			t.Fatal(err)
		}
		if got := readMessage(t, r); !strings.Contains(got, `"welcome"`) {
			t.Fatalf("the first frame is %s", got)
		}
	}
	for name, data := range map[string]string{
		"as programs write it":   good,
		"with a large head":      strings.Replace(good, "\r\n\r\n", "\r\nX-Large: "+strings.Repeat("x", 6000)+"\r\n\r\n", 1),
		"with unusual line ends": strings.ReplaceAll(good, "\r\n", "\n"),
	} {
		t.Run(name, func(t *testing.T) {
			c, r := raw(t, w)
			_, _ = io.WriteString(c, data)
			answered(c, r, http.StatusSwitchingProtocols)
		})
	}
	t.Run("byte by byte", func(t *testing.T) {
		c, r := raw(t, w)
		for i := range len(good) {
			_, _ = io.WriteString(c, good[i:i+1])
		}
		answered(c, r, http.StatusSwitchingProtocols)
	})
	t.Run("behind another request", func(t *testing.T) {
		c, r := raw(t, w)
		_, _ = io.WriteString(c, "GET /other HTTP/1.1\r\nHost: "+host+"\r\n\r\n")
		answered(c, r, http.StatusOK)
		_, _ = io.WriteString(c, good)
		answered(c, r, http.StatusSwitchingProtocols)
	})
	t.Run("with two hosts", func(t *testing.T) {
		c, r := raw(t, w)
		_, _ = io.WriteString(c, strings.Replace(good, "Host:", "Host: evil\r\nHost:", 1))
		answered(c, r, http.StatusBadRequest)
	})
	t.Run("with a key that is none", func(t *testing.T) {
		c, r := raw(t, w)
		_, _ = io.WriteString(c, strings.Replace(good, "dGhlIHNhbXBsZSBub25jZQ==", "short", 1))
		answered(c, r, http.StatusBadRequest)
		if _, err := r.ReadByte(); err != io.EOF {
			t.Errorf("a refused connection goes on: %v", err)
		}
	})
	eventually(t, "no socket is counted twice, or for ever", func() bool { return w.g.sockets.waits() <= 1 })
}

// What is still being read when the gateway stops does not hold it up.
func TestAStopWhileRequestsAreRead(t *testing.T) {
	w := begin(t)
	for _, begun := range []string{"", "GET /v1", "POST /x HTTP/1.1\r\n"} {
		c, _ := raw(t, w)
		_, _ = io.WriteString(c, begun)
	}
	eventually(t, "they are there", func() bool { return w.g.sockets.waits() == 3 })
	w.stop()
	eventually(t, "no socket is left", func() bool { return w.g.sockets.waits() == 0 })
}

// Several sockets listen, and the address is still taken by one program alone.
func TestAnAddressIsTakenAlone(t *testing.T) {
	ln, err := listenWide(t.Context(), "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	for name, again := range map[string]func() (net.Listener, error){
		"another gateway": func() (net.Listener, error) { return listenWide(t.Context(), ln.Addr().String()) },
		"another program": func() (net.Listener, error) { return net.Listen("tcp", ln.Addr().String()) },
	} {
		if l, err := again(); err == nil {
			_ = l.Close()
			t.Errorf("%s listens on the same address", name)
		}
	}
	const n = 40
	dialled := make([]net.Conn, n)
	for i := range dialled {
		if dialled[i], err = net.DialTimeout("tcp", ln.Addr().String(), 5*time.Second); err != nil {
			t.Fatal(err)
		}
		defer dialled[i].Close()
	}
	for range n {
		c, err := ln.Accept()
		if err != nil {
			t.Fatal(err)
		}
		_ = c.Close()
	}
	if err := ln.Close(); err != nil {
		t.Error(err)
	}
	if _, err := ln.Accept(); err == nil {
		t.Error("a closed listener accepts")
	}
	if l, err := net.Listen("tcp", ln.Addr().String()); err != nil {
		t.Errorf("the address is not given back: %v", err)
	} else {
		_ = l.Close()
	}
}

// A client that is refused is told so in a way that its library understands, and its
// connection is closed.
func TestARefusalByTheFront(t *testing.T) {
	w := begin(t, func(c *Config) { c.MaxConnections = 1 })
	w.session(t, protocol.Proto, "ann", "d")
	res := refusedWith(t, w, testenv.DialOptions{}, http.StatusServiceUnavailable, "as many")
	if res.Header.Get("Retry-After") == "" || res.Header.Get("Date") == "" || !res.Close {
		t.Errorf("the header of the refusal is %v", res.Header)
	}
}

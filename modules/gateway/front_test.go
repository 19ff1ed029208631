package gateway

import (
	"bufio"
	"errors"
	"io"
	"net"
	"net/http"
	"os"
	"strings"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"
	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"

	"github.com/imdhq/imd/pkg/auth"
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
		{"a host and its port", strings.Replace(good, "Host: h", "Host: [::1]:80", 1), true},
		{"a host that is none", strings.Replace(good, "Host: h", "Host: h<h>", 1), false},
		{"a host with a blank", strings.Replace(good, "Host: h", "Host: h h", 1), false},
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
		"with a long head":       strings.Replace(good, "\r\n\r\n", "\r\nX-Long: "+strings.Repeat("x", 2000)+"\r\n\r\n", 1),
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
	t.Run("with a host that is none", func(t *testing.T) {
		c, r := raw(t, w)
		_, _ = io.WriteString(c, strings.Replace(good, "Host: "+host, "Host: a\"b", 1))
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
	ln, err := listenWide(t.Context(), testenv.FreeAddress(t, "127.0.0.1"))
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

// failing is a listener whose Accept fails with the errors one after the other, and with
// the last one for ever.
type failing struct {
	net.Listener
	mu    sync.Mutex
	errs  []error
	asked int
}

func (f *failing) Accept() (net.Conn, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.asked++
	err := f.errs[0]
	if len(f.errs) > 1 {
		f.errs = f.errs[1:]
	}
	return nil, &net.OpError{Op: "accept", Err: os.NewSyscallError("accept4", err)}
}

func (f *failing) Close() error { return nil }

// An error of accepting that goes away is told once a minute and waited out, and one
// that does not ends the front.
func TestErrorsOfAccepting(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		seen, logs := observer.New(zap.WarnLevel)
		front := func(errs ...error) *front {
			return newFront(&Gateway{Deps: Deps{Log: zap.New(seen)}}, &failing{errs: errs}, true)
		}
		began := time.Now()
		if err := front(syscall.EINTR, syscall.ENOBUFS, syscall.EMFILE, syscall.EINVAL).run(); !errors.Is(err, syscall.EINVAL) {
			t.Errorf("it ends with %v", err)
		}
		if took := time.Since(began); took != 35*time.Millisecond || logs.Len() != 1 {
			t.Errorf("after %v, and the log has %v", took, logs.All())
		}
		f := front(syscall.ENOMEM)
		ended := make(chan error)
		go func() { ended <- f.run() }()
		time.Sleep(130 * time.Second)
		_ = f.Close()
		if err := <-ended; err != nil || logs.Len() != 1+3 {
			t.Errorf("it ends with %v, and the log has %d lines", err, logs.Len())
		}
	})
}

// Several listeners that fail rest, each of them, and what they say is not kept for
// one who asks later.
func TestErrorsOfAcceptingDoNotAddUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		all := make([]net.Listener, 4)
		for i := range all {
			all[i] = &failing{errs: []error{syscall.EMFILE, syscall.EMFILE, syscall.EMFILE, syscall.EMFILE, syscall.EMFILE, syscall.EMFILE, syscall.EINVAL}}
		}
		ln := merge(all)
		defer ln.Close()
		time.Sleep(10 * time.Second)
		for range all {
			if _, err := ln.Accept(); !errors.Is(err, syscall.EINVAL) {
				t.Errorf("a stale error: %v", err)
			}
		}
		for _, l := range all {
			if n := l.(*failing).asked; n != 7 {
				t.Errorf("it was asked %d times", n)
			}
		}
	})
}

// doubtful is a verifier with a fault.
type doubtful struct{ verifier }

func (d doubtful) Verify(token string, now time.Time) (auth.Claims, error) {
	if token == "trap" {
		panic("a fault")
	}
	return d.verifier.Verify(token, now)
}

// A request that finds a fault ends alone, and leaves nothing counted.
func TestARequestThatFindsAFaultEndsAlone(t *testing.T) {
	w := beginTuned(t, func(g *Gateway) { g.Verifier = doubtful{g.Verifier} }, func(c *Config) { c.MaxUnauthenticated = 1 })
	c, r := raw(t, w)
	_, _ = io.WriteString(c, strings.Replace(handshake("h", protocol.SubprotocolProto), "\r\n\r\n", "\r\nAuthorization: Bearer trap\r\n\r\n", 1))
	if _, err := r.ReadByte(); err == nil {
		t.Error("it was answered")
	}
	w.session(t, protocol.Proto, "ann", "d")
	if n := testutil.ToFloat64(w.g.m.handshakes.WithLabelValues("fault")); n != 1 {
		t.Errorf("%v faults", n)
	}
	eventually(t, "no socket is left", func() bool { return w.g.sockets.waits() == 0 })
}

// A client that gives up in the line is not let in.
func TestAClientThatGivesUpInTheLine(t *testing.T) {
	w := begin(t, func(c *Config) { c.MaxUnauthenticated = 1 })
	good := handshake(w.g.Addr().String(), protocol.SubprotocolProto)
	first := testenv.Dial(t, w.base(), protocol.Proto)
	waiting := func() int {
		w.g.admission.mu.Lock()
		defer w.g.admission.mu.Unlock()
		return w.g.admission.inLine
	}
	gone, _ := raw(t, w)
	_, _ = io.WriteString(gone, good)
	eventually(t, "it waits", func() bool { return waiting() == 1 })
	stays, r := raw(t, w)
	_, _ = io.WriteString(stays, good)
	eventually(t, "both wait", func() bool { return waiting() == 2 })
	_ = gone.Close()
	first.Close()
	if res, err := http.ReadResponse(r, nil); err != nil || res.StatusCode != http.StatusSwitchingProtocols {
		t.Errorf("who stays is answered %v, %v", res, err)
	}
	// It makes room before it is counted.
	eventually(t, "one has left", func() bool { return testutil.ToFloat64(w.g.m.handshakes.WithLabelValues("left")) == 1 })
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

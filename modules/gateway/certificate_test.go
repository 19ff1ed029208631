package gateway

import (
	"bufio"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"go.uber.org/zap"

	"github.com/imdhq/imd/pkg/im"
	"github.com/imdhq/imd/pkg/module"
	"github.com/imdhq/imd/pkg/testenv"
	"github.com/imdhq/imd/sdk/go/protocol"
)

// secure is a certificate of the public listener.
type secure struct {
	ca  *testenv.Authority
	dir string
}

func newSecure(t *testing.T) *secure {
	s := &secure{testenv.NewAuthority(t), t.TempDir()}
	s.ca.Serve(t, s.dir, time.Now().Add(time.Hour))
	return s
}

// use puts it into a configuration.
func (s *secure) use(c *Config) {
	c.TLS = TLSConfig{CertFile: filepath.Join(s.dir, "cert.pem"), KeyFile: filepath.Join(s.dir, "key.pem")}
}

// client trusts it.
func (s *secure) client() *tls.Config { return &tls.Config{RootCAs: s.ca.Pool()} }

// hello connects to a gateway through TLS and says hello.
func (s *secure) hello(w *world, user string) (*tls.Conn, error) {
	data, _ := protocol.EncodeClient(protocol.JSON, helloWith(w.token(user)))
	raw, err := net.Dial("tcp", w.g.Addr().String())
	if err != nil {
		return nil, err
	}
	_ = raw.(*net.TCPConn).SetReadBuffer(4096)
	cfg := s.client()
	cfg.ServerName = "127.0.0.1"
	c := tls.Client(raw, cfg)
	if _, err := io.WriteString(c, handshake("x", protocol.SubprotocolJSON)+masked(1, string(data))); err != nil {
		return nil, errors.Join(err, c.Close())
	}
	return c, nil
}

func TestTLSOnThePublicListener(t *testing.T) {
	s := newSecure(t)
	w := begin(t, s.use)
	at := w.g.Addr().String()
	for name, tt := range map[string]struct {
		edit func(*tls.Config)
		good bool
	}{
		"TLS 1.3":            {func(*tls.Config) {}, true},
		"TLS 1.2":            {func(c *tls.Config) { c.MaxVersion = tls.VersionTLS12 }, true},
		"TLS 1.1":            {func(c *tls.Config) { c.MinVersion, c.MaxVersion = tls.VersionTLS10, tls.VersionTLS11 }, false},
		"HTTP/2 or HTTP/1.1": {func(c *tls.Config) { c.NextProtos = []string{"h2", "http/1.1"} }, true},
		"HTTP/2 alone":       {func(c *tls.Config) { c.NextProtos = []string{"h2"} }, false},
	} {
		cfg := s.client()
		tt.edit(cfg)
		c, err := tls.Dial("tcp", at, cfg)
		if (err == nil) != tt.good {
			t.Errorf("%s: %v", name, err)
		}
		if err != nil {
			continue
		}
		if got := c.ConnectionState().NegotiatedProtocol; cfg.NextProtos != nil && got != "http/1.1" {
			t.Errorf("%s: %q was chosen", name, got)
		}
		_ = c.Close()
	}
	eventually(t, "failed handshakes are counted", func() bool { return testutil.ToFloat64(w.g.m.handshakes.WithLabelValues("tls")) == 2 })
	res, err := http.Get("http://" + at + "/")
	if err != nil || res.StatusCode != http.StatusBadRequest {
		t.Errorf("without TLS: %v, %v", res, err)
	}
	res.Body.Close()
	cfg := s.client()
	cfg.ClientSessionCache = tls.NewLRUClientSessionCache(1)
	tr := &http.Transport{TLSClientConfig: cfg, DisableKeepAlives: true}
	for _, again := range []bool{false, true} {
		res, err = (&http.Client{Transport: tr}).Get("https://" + at + "/")
		if err != nil || res.StatusCode != http.StatusOK || res.TLS.DidResume != again {
			t.Fatalf("with TLS, for the second time %v: %v, %v", again, res, err)
		}
		res.Body.Close()
	}
	http.DefaultClient.CloseIdleConnections()
}

// What is above the rate of handshakes waits for its turn, and is sent away if that
// would take too long.
func TestHandshakesWaitForTheirTurn(t *testing.T) {
	s := newSecure(t)
	procs := runtime.GOMAXPROCS(0)
	for _, tt := range []struct {
		rate float64 // of the node
		late int     // of three above the burst, those who get their turn
		took time.Duration
	}{{20, 3, 145 * time.Millisecond}, {0.002, 0, 0}} {
		w := begin(t, s.use, func(c *Config) { c.Limits.TLSRate, c.Limits.TLSBurst = tt.rate/float64(procs), 1 })
		began, good := time.Now(), 0
		for range procs + 3 {
			if c, err := tls.Dial("tcp", w.g.Addr().String(), s.client()); err == nil {
				good++
				_ = c.Close()
			}
		}
		if took := time.Since(began); good != procs+tt.late || took < tt.took {
			t.Errorf("at %v a second %d of %d got through in %v, want %d in %v or more", tt.rate, good, procs+3, took, procs+tt.late, tt.took)
		}
		if refused := testutil.ToFloat64(w.g.m.handshakes.WithLabelValues("storm")); int(refused) != 3-tt.late {
			t.Errorf("%v are counted as refused", refused)
		}
		eventually(t, "no socket is left", func() bool { return w.g.sockets.waits() == 0 })
		if failed := testutil.ToFloat64(w.g.m.handshakes.WithLabelValues("tls")); failed != 0 {
			t.Errorf("%v are counted as failed too", failed)
		}
		w.stop()
	}
}

// Clients that do not read keep neither others nor a stop waiting, through TLS
// too, where closing would say so first.
func TestStalledClientsThroughTLS(t *testing.T) {
	s := newSecure(t)
	w := begin(t, s.use)
	w.g.Limits().SetOff(true)
	const stalled = 20
	users := []string{"honest"}
	for i := range stalled {
		users = append(users, fmt.Sprint("stalled", i))
		c, err := s.hello(w, users[i+1])
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
	}
	tr := &http.Transport{TLSClientConfig: s.client()}
	defer tr.CloseIdleConnections()
	honest, _, err := testenv.TryDial(t, "https://"+w.g.Addr().String(), protocol.Proto, testenv.DialOptions{HTTP: &http.Client{Transport: tr}})
	if err != nil {
		t.Fatal(err)
	}
	honest.Write(helloWith(w.token("honest")))
	eventually(t, "all are online", func() bool { return len(w.g.hub.online()) == stalled+1 })
	text, conv, seen := strings.Repeat("x", 12_000), "g_all", int64(0)
	for range 60 { // 720 KB for each, far more than the kernel takes
		seq := w.state.post(conv, "someone", text, users...)
		honest.Take("a deliver", isDeliver)
		honest.Write(ackOf(conv, seen, seq))
		seen = seq
	}
	waits := 0
	for _, user := range users[1:] {
		for _, x := range w.g.hub.of(im.UserID(user)) {
			if x.q.waits() > 0 {
				waits++
			}
		}
	}
	if waits != stalled {
		t.Errorf("something waits for %d of %d", waits, stalled)
	}
	w.stop() // which fails if it takes longer than the last writes may
}

// Which pairs of files are taken at the start and while the gateway runs.
func TestCertificateFiles(t *testing.T) {
	s, other := newSecure(t), newSecure(t)
	cfg := fast()
	s.use(&cfg)
	reg := prometheus.NewRegistry()
	g := &Gateway{cfg: cfg, Deps: Deps{Log: zap.NewNop()}}
	g.m.watchCertificate(reg, g)
	if err := g.certificate(); err != nil {
		t.Fatal(err)
	}
	metric := func(name string) float64 {
		t.Helper()
		all, err := reg.Gather()
		if err != nil {
			t.Fatal(err)
		}
		for _, f := range all {
			if f.GetName() == name {
				return f.Metric[0].GetGauge().GetValue()
			}
		}
		t.Fatalf("there is no %s", name)
		return 0
	}
	now, cert := time.Now(), g.cert.Load()
	cert.Now = func() time.Time { return now }
	changed := func() { // times tell files apart
		now = now.Add(2 * time.Second)
		for _, name := range []string{"cert.pem", "key.pem"} {
			if err := os.Chtimes(filepath.Join(s.dir, name), now, now); err != nil {
				t.Fatal(err)
			}
		}
	}
	first := cert.Get().Leaf.SerialNumber
	s.ca.Serve(t, s.dir, now.Add(-time.Minute))
	changed()
	if got, bad := cert.Look(); got.Leaf.SerialNumber.Cmp(first) != 0 || !bad || metric("imd_gateway_certificate_bad") != 1 {
		t.Error("one that has expired replaces one that has not")
	}
	ends := now.Add(90 * 24 * time.Hour)
	second := s.ca.Serve(t, s.dir, ends)
	changed()
	if got, bad := cert.Look(); got.Leaf.SerialNumber.Cmp(second) != 0 || bad || metric("imd_gateway_certificate_bad") != 0 {
		t.Error("a renewed one is not in force")
	}
	if got := metric("imd_gateway_certificate_expiry_seconds"); int64(got) != ends.Unix() {
		t.Errorf("it ends at %v, want %d", got, ends.Unix())
	}
	other.use(&cfg)
	cfg.TLS.KeyFile = filepath.Join(s.dir, "key.pem")
	g = &Gateway{cfg: cfg, Deps: Deps{Log: zap.NewNop()}}
	var wrong *module.ConfigError
	if err := g.certificate(); !errors.As(err, &wrong) || !strings.Contains(err.Error(), "gateway.tls") {
		t.Errorf("a key of another certificate: %v", err)
	}
	for _, half := range []TLSConfig{{CertFile: "c"}, {KeyFile: "k"}} {
		cfg.TLS = half
		if err := cfg.Validate(); err == nil || !strings.Contains(err.Error(), "belong together") {
			t.Errorf("%+v: %v", half, err)
		}
	}
}

// An idle connection through TLS is parked when it has sent what is more than one
// read of it, and its end is seen.
func TestAParkedConnectionThroughTLSEnds(t *testing.T) {
	s := newSecure(t)
	w := beginTuned(t, quietAfter(20*time.Millisecond), s.use)
	for _, end := range []func(c *tls.Conn){
		func(c *tls.Conn) { _ = c.Close() },
		func(c *tls.Conn) { reset(c.NetConn()) },
		func(c *tls.Conn) { _, _ = io.WriteString(c, masked(8, "\x03\xe8")) },
	} {
		c, err := s.hello(w, "ann")
		if err != nil {
			t.Fatal(err)
		}
		_ = c.SetDeadline(time.Now().Add(20 * time.Second))
		r := bufio.NewReader(c)
		if res, err := http.ReadResponse(r, nil); err != nil || res.StatusCode != http.StatusSwitchingProtocols {
			t.Fatal(res, err)
		}
		eventually(t, "it is parked", func() bool { return w.parked() == 1 })
		// One record of 10,000 bytes, of which the reader takes a kilobyte at a time.
		many := ""
		for id := range 500 {
			many += masked(1, fmt.Sprintf(`{"id":%d}`, id+1))
		}
		_, _ = io.WriteString(c, many)
		got, last := make(chan int, 1000), 0
		go func() { defer close(got); _ = readAnswers(r, func(id int) { got <- id }) }()
		for last < 500 {
			if id, more := <-got; id != last+1 || !more {
				t.Fatalf("answer %d after %d", id, last)
			}
			last++
		}
		eventually(t, "it is parked again", func() bool { return w.parked() == 1 })
		end(c)
		eventually(t, "it is freed", func() bool { return w.g.hub.len() == 0 && w.parked() == 0 })
		_ = c.Close()
		for range got { // until the reader has ended
		}
	}
}

// Who is silent before the request is whole counts, in all and for its address, and
// does not any more once it has asked.
func TestSilentSockets(t *testing.T) {
	w := begin(t, func(c *Config) { c.Limits.LoopbackExempt, c.MaxUnauthenticatedAddress = false, 2 })
	gone := func(c net.Conn) bool {
		_ = c.SetReadDeadline(time.Now().Add(100 * time.Millisecond))
		_, err := c.Read(make([]byte, 1))
		return err != nil && !errors.Is(err, os.ErrDeadlineExceeded)
	}
	a, _ := raw(t, w)
	b, r := raw(t, w)
	if _, err := io.WriteString(a, "GET / HTTP/1.1\r\nHost: x\r\n"); err != nil { // not whole
		t.Fatal(err)
	}
	eventually(t, "both count", func() bool {
		w.g.sockets.mu.Lock()
		defer w.g.sockets.mu.Unlock()
		return len(w.g.sockets.silent) == 2
	})
	c, _ := raw(t, w)
	eventually(t, "a third is closed", func() bool { return gone(c) })
	if gone(a) {
		t.Error("the first was closed")
	}
	if _, err := io.WriteString(b, "GET / HTTP/1.1\r\nHost: x\r\n\r\n"); err != nil {
		t.Fatal(err)
	}
	if res, err := http.ReadResponse(r, nil); err != nil || res.StatusCode != http.StatusOK {
		t.Fatal(res, err)
	}
	d, _ := raw(t, w)
	if gone(d) {
		t.Error("there is no room though one has asked")
	}
	if n := testutil.ToFloat64(w.g.m.handshakes.WithLabelValues("address_full")); n != 1 {
		t.Errorf("%v are counted as refused", n)
	}
	for _, x := range []net.Conn{a, b, c, d} {
		_ = x.Close()
	}
	eventually(t, "nothing is kept", func() bool {
		s := w.g.sockets
		s.mu.Lock()
		defer s.mu.Unlock()
		return s.plain == 0 && len(s.silent) == 0 && len(s.byAddr) == 0
	})
}

// The ceilings follow the limit of open files, whoever changes it.
func TestTheFileLimitIsFollowed(t *testing.T) {
	w := begin(t, func(c *Config) { c.MaxConnections = 300 })
	const spare, stores = 164, 114 // of them 64 for the yielders of two engines
	for _, tt := range []struct {
		files                uint64
		connections, sockets int
	}{{1000, 300, 1000 - stores}, {350, 350 - spare, 350 - stores}, {256, 256 - spare, 256 - stores}, {200, 50, 100}, {10, 2, 5}} {
		if got := w.g.ceiling(tt.files); got != tt.connections || w.g.sockets.most != tt.sockets {
			t.Errorf("with %d files: %d connections, %d sockets", tt.files, got, w.g.sockets.most)
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	w.g.followFiles(ctx) // ends with its context
}

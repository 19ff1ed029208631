package webhook

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/imdhq/imd/pkg/testenv/machine"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var (
	oldKey = Key(strings.Repeat("o", 32))
	newKey = Key(strings.Repeat("n", 40))
)

// target is a target with both keys.
func target(url string) Target {
	return Target{URL: url, Timeout: 2 * time.Second, Connections: 4, Keys: func() []Key { return []Key{newKey, oldKey} }, Agent: "imd/test"}
}

// A receiver that has either of the keys believes a request; one that was changed
// in any part, or is old, is not believed.
func TestSignatures(t *testing.T) {
	now := time.Unix(1_700_000_000, 0)
	body := []byte(`{"type":"test"}`)
	sig := Sign([]Key{newKey, oldKey}, "m_1", now, body)
	for name, tt := range map[string]struct {
		keys      []Key
		id, stamp string
		sig       string
		body      string
		at        time.Time
		good      bool
	}{
		"the new key":            {[]Key{newKey}, "m_1", "1700000000", sig, string(body), now, true},
		"the old key":            {[]Key{oldKey}, "m_1", "1700000000", sig, string(body), now.Add(4 * time.Minute), true},
		"a clock behind":         {[]Key{oldKey}, "m_1", "1700000000", sig, string(body), now.Add(-4 * time.Minute), true},
		"another key":            {[]Key{Key(strings.Repeat("x", 32))}, "m_1", "1700000000", sig, string(body), now, false},
		"another id":             {[]Key{newKey}, "m_2", "1700000000", sig, string(body), now, false},
		"another time":           {[]Key{newKey}, "m_1", "1700000001", sig, string(body), now, false},
		"another body":           {[]Key{newKey}, "m_1", "1700000000", sig, string(body) + " ", now, false},
		"an old request":         {[]Key{newKey}, "m_1", "1700000000", sig, string(body), now.Add(6 * time.Minute), false},
		"no time":                {[]Key{newKey}, "m_1", "soon", sig, string(body), now, false},
		"no signature":           {[]Key{newKey}, "m_1", "1700000000", "", string(body), now, false},
		"another scheme":         {[]Key{newKey}, "m_1", "1700000000", strings.ReplaceAll(sig, "v1,", "v2,"), string(body), now, false},
		"what is no base64":      {[]Key{newKey}, "m_1", "1700000000", "v1,***", string(body), now, false},
		"the parts run together": {[]Key{newKey}, "m", "_1.1700000000", sig, string(body), now, false},
	} {
		if err := Verify(tt.keys, tt.id, tt.stamp, tt.sig, []byte(tt.body), tt.at); (err == nil) != tt.good || err != nil && !errors.Is(err, ErrSignature) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestKeys(t *testing.T) {
	path := filepath.Join(t.TempDir(), "key")
	for text, n := range map[string]int{
		string(newKey) + "\n": 1, "\n" + string(newKey) + "\r\n" + string(oldKey): 2, "": 0, "short\n": 0,
		string(newKey) + "\n" + string(oldKey) + "\n" + string(newKey): 0,
	} {
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if keys, err := ReadKeys(path); len(keys) != n || (err == nil) != (n > 0) {
			t.Errorf("%q: %d keys, %v", text, len(keys), err)
		}
	}
	if _, err := ReadKeys(path + "x"); err == nil {
		t.Error("a file that is not there has keys")
	}
}

func TestURLs(t *testing.T) {
	for raw, good := range map[string][2]bool{ // without and with plain text allowed
		"https://shop.example.org/hook?x=1": {true, true}, "http://shop.example.org/": {false, true}, "http://127.0.0.1:8080/": {true, true},
		"http://localhost/": {true, true}, "http://[::1]:1/": {true, true}, "http://10.0.0.1/": {false, true},
		"ftp://x/": {}, "https://": {}, "https://a:b@x/": {}, "https://x/#f": {}, "://": {}, "x": {},
	} {
		for i, plain := range []bool{false, true} {
			if err := CheckURL(raw, plain); (err == nil) != good[i] {
				t.Errorf("%s with plain %v: %v", raw, plain, err)
			}
		}
	}
}

// A request carries what a receiver needs to believe it and to know a repeat.
func TestSend(t *testing.T) {
	var mu sync.Mutex
	var got []*http.Request
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		mu.Lock()
		defer mu.Unlock()
		got = append(got, r)
		h := r.Header
		if err := Verify([]Key{oldKey}, h.Get("webhook-id"), h.Get("webhook-timestamp"), h.Get("webhook-signature"), body, time.Now()); err != nil {
			t.Errorf("%v: %s", err, body)
		}
		fmt.Fprint(w, strings.Repeat("thanks ", 10_000)) // more than anybody reads
	}))
	defer srv.Close()
	s := New(target(srv.URL))
	defer s.Close()
	for _, m := range []Message{{ID: "m_1", Body: []byte(`{"a":1}`)}, {ID: "m_1", Body: []byte(`{"a":1}`), Replay: true}} {
		if r := s.Send(t.Context(), m); r.Outcome != Taken || r.Status != 200 || r.Reason != "" {
			t.Fatalf("%+v", r)
		}
	}
	if h := got[0].Header; got[0].Method != http.MethodPost || h.Get("Content-Type") != "application/json" || h.Get("User-Agent") != "imd/test" || h.Get("Imd-Replay") != "" || got[1].Header.Get("Imd-Replay") != "true" {
		t.Errorf("headers: %v", h)
	}
	none := target(srv.URL)
	none.Keys = func() []Key { return nil }
	if r := New(none).Send(t.Context(), Message{ID: "m_2"}); r.Outcome != Failed || len(got) != 2 {
		t.Errorf("without a key: %+v", r)
	}
}

// What the answer means.
func TestAnswers(t *testing.T) {
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var code int
		fmt.Sscan(r.URL.Path[1:], &code)
		w.Header().Set("Retry-After", r.URL.Query().Get("after"))
		w.Header().Set("Location", "/200")
		w.WriteHeader(code)
	}))
	defer srv.Close()
	for path, want := range map[string]Result{
		"/204": {Taken, 204, "", 0}, "/500": {Failed, 500, "status 500", 0}, "/503?after=7": {Failed, 503, "status 503", 7 * time.Second},
		"/429?after=99999": {Failed, 429, "status 429", maxAfter}, "/400": {Refused, 400, "status 400", 0}, "/410": {Refused, 410, "status 410", 0},
		"/302": {Failed, 0, errRedirect.Error(), 0}, "/304": {Failed, 304, "status 304: " + errRedirect.Error(), 0}, "/408": {Failed, 408, "status 408", 0},
	} {
		s := New(target(srv.URL + path))
		if r := s.Send(t.Context(), Message{ID: "m_1"}); r != want {
			t.Errorf("%s: %+v, want %+v", path, r, want)
		}
		s.Close()
	}
}

// raw is a receiver that does what handle does with each connection.
func raw(t *testing.T, handle func(net.Conn)) string {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	wg.Go(func() {
		for {
			c, err := ln.Accept()
			if err != nil {
				return
			}
			wg.Go(func() {
				defer c.Close()
				handle(c)
			})
		}
	})
	t.Cleanup(func() { ln.Close(); wg.Wait() })
	return "http://" + ln.Addr().String()
}

// A receiver that hangs costs the timeout and no more, at whatever point it hangs.
func TestReceiverThatHangs(t *testing.T) {
	for name, handle := range map[string]func(net.Conn){
		"before it reads":   func(c net.Conn) { time.Sleep(400 * time.Millisecond) },
		"before it answers": func(c net.Conn) { _, _ = io.Copy(io.Discard, c) },
		"in its headers":    func(c net.Conn) { fmt.Fprint(c, "HTTP/1.1 200 OK\r\n"); _, _ = io.Copy(io.Discard, c) },
		"in endless headers": func(c net.Conn) {
			fmt.Fprint(c, "HTTP/1.1 200 OK\r\n")
			for {
				if _, err := fmt.Fprintf(c, "X-%s: 1\r\n", strings.Repeat("y", 1000)); err != nil {
					return
				}
			}
		},
	} {
		tt := target(raw(t, handle))
		tt.Timeout = 300 * time.Millisecond
		s := New(tt)
		var r Result
		took := machine.Took(func() { r = s.Send(t.Context(), Message{ID: "m_1", Body: []byte("{}")}) })
		if r.Outcome != Failed || took > 3*time.Second {
			t.Errorf("%s: %+v after %v", name, r, took)
		}
		s.Close()
	}
}

// A receiver that says yes before it has read, and one that answers twice, confuse
// nothing: the second answer is not taken for that of the next request.
func TestReceiverThatLies(t *testing.T) {
	answers := raw(t, func(c net.Conn) {
		in := bufio.NewReader(c)
		for n := 0; ; n++ {
			req, err := http.ReadRequest(in)
			if err != nil {
				return
			}
			_, _ = io.Copy(io.Discard, req.Body)
			if req.URL.Path == "/second" {
				fmt.Fprint(c, "HTTP/1.1 500 No\r\nContent-Length: 0\r\n\r\n")
				continue
			}
			fmt.Fprint(c, "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")
		}
	})
	first, second := target(answers+"/first"), target(answers+"/second")
	s := New(first)
	defer s.Close()
	if r := s.Send(t.Context(), Message{ID: "m_1"}); r.Outcome != Taken {
		t.Errorf("answered twice: %+v", r)
	}
	s.t = second // over the same connections, if they are used again
	for range 3 {
		if r := s.Send(t.Context(), Message{ID: "m_2"}); r.Outcome != Failed {
			t.Fatalf("the answer to another request was taken: %+v", r)
		}
	}
	early := raw(t, func(c net.Conn) { fmt.Fprint(c, "HTTP/1.1 200 OK\r\nContent-Length: 0\r\nConnection: close\r\n\r\n") })
	e := New(target(early))
	defer e.Close()
	if r := e.Send(t.Context(), Message{ID: "m_3", Body: make([]byte, 1<<20)}); r.Outcome != Taken && r.Outcome != Failed {
		t.Errorf("answered before reading: %+v", r)
	}
}

// With the policy, private addresses are refused whatever the name.
func TestPrivateAddresses(t *testing.T) {
	srv := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { t.Error("it was called") }))
	defer srv.Close()
	for _, url := range []string{srv.URL, strings.Replace(srv.URL, "127.0.0.1", "localhost", 1)} {
		tt := target(url)
		tt.PublicOnly = true
		if r := New(tt).Send(t.Context(), Message{ID: "m_1"}); r.Outcome != Failed || r.Reason != errPrivate.Error() {
			t.Errorf("%s: %+v", url, r)
		}
	}
	for address, good := range map[string]bool{
		"93.184.216.34:443": true, "[2606:2800:220:1::1]:443": true, "10.1.2.3:80": false, "192.168.1.1:80": false, "172.16.0.1:80": false,
		"169.254.169.254:80": false, "100.64.0.1:80": false, "0.0.0.0:80": false, "[::ffff:10.0.0.1]:80": false, "[fd00::1]:80": false, "[fe80::1]:80": false, "224.0.0.1:80": false, "x": false,
	} {
		if err := public("tcp", address, nil); (err == nil) != good {
			t.Errorf("%s: %v", address, err)
		}
	}
}

func TestUnreachable(t *testing.T) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ln.Close()
	s := New(target("http://" + ln.Addr().String()))
	if r := s.Send(t.Context(), Message{ID: "m_1"}); r.Outcome != Failed || r.Reason != "the connection is refused" {
		t.Errorf("%+v", r)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if r := s.Send(ctx, Message{ID: "m_1"}); r.Outcome != Failed {
		t.Errorf("%+v", r)
	}
}

package gateway

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/coder/websocket"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/imdhq/imd/sdk/go/gen/clientv1"
	"github.com/imdhq/imd/sdk/go/protocol"
)

// dialer opens connections fast, without the comfort of a test client.
type dialer struct {
	w   *world
	ctx context.Context
}

// open upgrades and, if a token is given, says hello and waits for the first
// frame.
func (d dialer) open(token, device string) (*websocket.Conn, string, error) {
	ws, _, err := websocket.Dial(d.ctx, d.w.base()+protocol.Path, &websocket.DialOptions{Subprotocols: []string{protocol.SubprotocolJSON}})
	if err != nil || token == "" {
		return ws, "", err
	}
	data, err := protocol.EncodeClient(protocol.JSON, helloWith(token, func(h *clientv1.Hello) { h.DeviceId = device }))
	if err != nil {
		return ws, "", err
	}
	if err := ws.Write(d.ctx, websocket.MessageText, data); err != nil {
		return ws, "", err
	}
	_, got, err := ws.Read(d.ctx)
	return ws, string(got), err
}

// reset closes a TCP connection with RST.
func reset(c net.Conn) {
	_ = c.(*net.TCPConn).SetLinger(0)
	_ = c.Close()
}

// rawOpen upgrades without the library and returns the bare connection.
func (d dialer) rawOpen(behind string) (net.Conn, error) {
	c, err := net.Dial("tcp", d.w.g.Addr().String())
	if err != nil {
		return nil, err
	}
	_ = c.SetDeadline(time.Now().Add(20 * time.Second))
	if _, err := io.WriteString(c, handshake("x", protocol.SubprotocolJSON)+behind); err != nil {
		return c, err
	}
	buf := make([]byte, 12)
	if _, err := io.ReadFull(c, buf); err != nil {
		return c, err
	}
	if string(buf) != "HTTP/1.1 101" {
		return c, fmt.Errorf("answered %q", buf)
	}
	return c, nil
}

func openFiles(t *testing.T) int {
	list, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	return len(list)
}

// However a connection ends, everything it held comes back.
func TestEverythingIsGivenBack(t *testing.T) {
	w := begin(t, func(c *Config) {
		c.PingInterval, c.PongTimeout, c.WriteTimeout = 200*time.Millisecond, time.Second, 200*time.Millisecond
		c.MaxUnauthenticated, c.MaxUnauthenticatedAddress = 100_000, 100_000
	})
	w.g.Limits().SetOff(true)
	eventually(t, "it serves, with all its goroutines", w.g.serving.Load)
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	d := dialer{w, ctx}
	hello := func(user string) string {
		data, _ := protocol.EncodeClient(protocol.JSON, helloWith(w.token(user)))
		return masked(1, string(data))
	}
	const cycles = 1000
	kinds := []struct {
		name string
		ways int // how many go on at once
		once func(n int) error
	}{
		{"clean close", 8, func(n int) error {
			ws, got, err := d.open(w.token(fmt.Sprint("a", n%50)), fmt.Sprint("d", n))
			if err != nil || !strings.Contains(got, "welcome") {
				return fmt.Errorf("%s, %v", got, err)
			}
			return ws.Close(websocket.StatusNormalClosure, "")
		}},
		{"refused token", 8, func(n int) error {
			ws, got, err := d.open("bad", "d")
			if err != nil || !strings.Contains(got, "bad_token") {
				return fmt.Errorf("%s, %v", got, err)
			}
			_, _, err = ws.Read(d.ctx)
			if websocket.CloseStatus(err) != 4501 {
				return err
			}
			return nil
		}},
		{"reset before the upgrade", 8, func(n int) error {
			c, err := net.Dial("tcp", w.g.Addr().String())
			if err == nil {
				reset(c)
			}
			return err
		}},
		{"reset after the upgrade", 8, func(n int) error {
			c, err := d.rawOpen("")
			if c != nil {
				reset(c)
			}
			return err
		}},
		{"reset of a session", 8, func(n int) error {
			c, err := d.rawOpen(hello(fmt.Sprint("b", n%50)))
			if c != nil {
				reset(c)
			}
			return err
		}},
		{"reset during a large push", 8, func(n int) error {
			user, conv := fmt.Sprint("c", n), fmt.Sprint("g_", n)
			c, err := d.rawOpen(hello(user))
			for range 4 {
				w.state.post(conv, "x", strings.Repeat("x", 60_000), user)
			}
			if c != nil {
				reset(c)
			}
			return err
		}},
		{"half open until the heartbeat ends it", 500, func(n int) error {
			c, err := d.rawOpen(hello(fmt.Sprint("e", n)))
			if c == nil {
				return err
			}
			defer c.Close()
			if err == nil {
				_, err = io.Copy(io.Discard, c) // until the server closes
			}
			return err
		}},
	}
	// With the first session, everything that the gateway runs is up.
	if err := kinds[0].once(0); err != nil {
		t.Fatal(err)
	}
	eventually(t, "no connection is left", func() bool { return w.g.hub.len() == 0 })
	http.DefaultClient.CloseIdleConnections()
	goroutines, files := runtime.NumGoroutine(), openFiles(t)
	for _, k := range kinds {
		t.Run(k.name, func(t *testing.T) {
			var wg sync.WaitGroup
			work := make(chan int)
			for range k.ways {
				wg.Go(func() {
					for n := range work {
						if err := k.once(n); err != nil {
							t.Errorf("cycle %d: %v", n, err)
						}
					}
				})
			}
			for n := range cycles {
				work <- n
			}
			close(work)
			wg.Wait()
			// A session leaves the hub first and is counted out last.
			eventually(t, "no connection is left", func() bool { return w.g.hub.len() == 0 })
			eventually(t, "all are counted out", func() bool {
				w.g.admission.mu.Lock()
				defer w.g.admission.mu.Unlock()
				a := w.g.admission
				return a.total == 0 && a.pending == 0 && len(a.byAddr) == 0 && testutil.ToFloat64(w.g.m.connections) == 0
			})
			eventually(t, "goroutines and files are back", func() bool {
				return runtime.NumGoroutine() <= goroutines+5 && openFiles(t) <= files+5
			})
			if _, sessions, users := w.g.hub.counts(); users != 0 || sessions != 0 {
				t.Errorf("the hub knows %d sessions and %d users", sessions, users)
			}
		})
	}
	for _, u := range []string{"a1", "b1", "c1", "e1"} {
		if r := w.routesOf(u); len(r) != 0 {
			t.Errorf("routes of %s are left: %v", u, r)
		}
	}
}

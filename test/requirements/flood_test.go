package requirements

import (
	"fmt"
	"net"
	"net/http"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/imdhq/imd/pkg/testenv"
	"github.com/imdhq/imd/sdk/go/gen/clientv1"
	"github.com/imdhq/imd/sdk/go/protocol"
)

// hops is how many turns of processes a send takes from its client and back: two
// gateways, state, a store, and the test, there and back.
const hops = 10

// machine measures how long the machine lets a process wait for its turn, which
// is no matter of the node, until the returned function is called.
func machine(t *testing.T, clock *testenv.Clock) (turns func() []time.Duration) {
	t.Helper()
	echo := exec.Command("cat")
	in, err := echo.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := echo.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := echo.Start(); err != nil {
		t.Fatal(err)
	}
	var all []time.Duration
	stop, done := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(done)
		for b := []byte("x"); ; {
			select {
			case <-stop:
				return
			case <-time.After(20 * time.Millisecond):
			}
			began := clock.Now()
			if _, err := in.Write(b); err != nil {
				return
			}
			if _, err := out.Read(b); err != nil {
				return
			}
			all = append(all, clock.Since(began))
		}
	}()
	return func() []time.Duration {
		close(stop)
		<-done
		_ = in.Close()
		_ = echo.Wait() // it has nothing to say
		return all
	}
}

// 100 hostile connections at once end alone: memory stays, an honest user is
// served, and exactly the limit passes.
func TestR44HostileFramesEndAlone(t *testing.T) {
	t.Parallel()
	n := node(t, "gateway.limits.connection_rate=50", "gateway.limits.connection_burst=100", "gateway.limits.loopback_exempt=false",
		"gateway.max_unauthenticated_address=1000")
	honest := login(t, n, "honest", "d")
	token := n.Token("eve")
	clock := testenv.NewClock(t)
	var normal []time.Duration
	for range 50 {
		began := clock.Now()
		honest.MustSend(testenv.ToUser("friend", "x"))
		normal = append(normal, clock.Since(began))
		time.Sleep(20 * time.Millisecond)
	}
	rss := n.Resident()
	endless := append([]byte{0x81, 0xff}, 0x7f, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0, 0, 0, 0)
	endless = append(endless, make([]byte, protocol.MaxTextEnvelope+1)...)
	fragments := wsFrame(false, 1, []byte("{"))
	for range protocol.MaxTextEnvelope + 1 {
		fragments = append(fragments, wsFrame(false, 0, []byte(" "))...)
	}
	var flood, pings []byte // of 100 ms
	for range 100 {
		pings = append(pings, wsFrame(true, 9, []byte("x"))...)
		flood = append(flood, wsFrame(true, 1, []byte(`{"id":5,"history":{"conversationId":"g_1"}}`))...)
	}
	over := wsFrame(true, 1, []byte(strings.Repeat(" ", protocol.MaxTextEnvelope+1)))
	deflated := wsFrame(true, 1, []byte(strings.Repeat("\x00", 1000)))
	deflated[0] |= 0x40
	kinds := []struct {
		name  string
		write []byte
		codes []int // 0 = it may just be cut
	}{
		{"a byte over the limit", over, []int{1009}},
		{"a length of 2^63-1", endless, []int{1009, 1002, 0}},
		{"endless fragments", fragments, []int{1009, 4500, 0}},
		{"what says it is compressed", deflated, []int{1002, 0}},
		{"a control frame too long", wsFrame(true, 9, make([]byte, 126)), []int{1002, 0}},
		{"deep nesting", wsFrame(true, 1, []byte(`{"x":`+strings.Repeat("[", 100_000))), []int{4500}},
		{"a flood of requests", flood, []int{4004, 0}},
		{"a flood of pings", pings, []int{4004, 0}},
	}
	var wg sync.WaitGroup
	began := time.Now()
	for i := range 100 {
		k := kinds[i%len(kinds)]
		c := rawUpgrade(t, n, token)
		wg.Go(func() {
			go func() {
				for _, err := c.Write(k.write); err == nil && strings.HasPrefix(k.name, "a flood"); _, err = c.Write(k.write) {
					time.Sleep(100 * time.Millisecond)
				}
			}()
			// Ten seconds of a flood end it. They begin anew whenever the machine holds it up
			// for more than half a second.
			if got := c.closeCode(time.Minute); !slices.Contains(k.codes, got) {
				t.Errorf("%s closes with %d, want one of %v", k.name, got, k.codes)
			}
			c.Close()
		})
	}
	done := make(chan struct{})
	go func() { wg.Wait(); close(done) }()
	var under []time.Duration
	turns := machine(t, clock)
	for waiting := true; waiting; {
		select {
		case <-done:
			waiting = false
		case <-time.After(20 * time.Millisecond):
			sent := clock.Now()
			honest.Send(testenv.ToUser("friend", "x"))
			under = append(under, clock.Since(sent))
		}
	}
	turn := nearlySlowest(turns())
	t.Logf("all had ended after %v; an honest user's acks: %v before, %v meanwhile; the machine lets a process wait %v for its turn", time.Since(began).Round(time.Millisecond),
		nearlySlowest(normal).Round(time.Millisecond), nearlySlowest(under).Round(time.Millisecond), turn.Round(time.Millisecond))
	if p99 := nearlySlowest(under); p99 > max(2*nearlySlowest(normal), 500*time.Millisecond)+min(hops*turn, 500*time.Millisecond) {
		t.Errorf("an honest user waited %v, before %v", p99, nearlySlowest(normal))
	}
	if grown := n.Resident() - rss; grown > 50<<20 {
		t.Errorf("memory grew by %d MiB", grown>>20)
	}
	exact := rawUpgrade(t, n, n.Token("exact"))
	question := `{"id":7,"history":{"conversationId":"g_1"}}`
	_, _ = exact.Write(wsFrame(true, 1, []byte(question+strings.Repeat(" ", protocol.MaxTextEnvelope-len(question)))))
	_ = exact.SetReadDeadline(time.Now().Add(testenv.Patience))
	for {
		op, payload, err := exact.frame()
		if err != nil || op == 8 {
			t.Fatalf("an envelope of the limit: %v", err)
		}
		if strings.Contains(string(payload), `"not_member"`) {
			break
		}
	}
}

// Silent and slow peers go within ten seconds; honest ones from elsewhere are
// in within one. A proxy's word counts only if it is trusted.
func TestR46SilentPeers(t *testing.T) {
	t.Parallel()
	// The places of those who do not authenticate are full for as long as a hello may
	// take: long enough to fill them and to ask for more on a machine that is stopped
	// for seconds, and short enough that all of them go within ten.
	const each, allowed, hello = 150, 50, 8 * time.Second
	n := node(t, "gateway.limits.loopback_exempt=false", fmt.Sprint("gateway.max_unauthenticated_address=", allowed),
		"gateway.limits.address_burst=5000", "gateway.limits.failed_hellos=1000", "gateway.ping_interval=2s", "gateway.pong_timeout=2s",
		"gateway.trusted_proxies=127.0.0.9", fmt.Sprint("gateway.hello_timeout=", hello))
	clock := testenv.NewClock(t)
	const evil = "127.0.0.2"
	var wg, answered sync.WaitGroup
	for i := range allowed { // authenticated, but never answering a ping
		c := rawUpgradeFrom(t, n, evil, n.Token(fmt.Sprint("eve", i)))
		answered.Add(1)
		wg.Go(func() {
			_ = c.SetReadDeadline(time.Now().Add(testenv.Patience))
			_, _ = c.br.Peek(1)
			answered.Done()
			if code := c.closeCode(10 * time.Second); code != 4002 {
				t.Errorf("one that answers no ping closes with %d", code)
			}
		})
	}
	answered.Wait() // all of them have authenticated
	refused := 0
	for range each { // upgraded, without authentication
		c, status := handshake(t, dialFrom(t, n, evil), "")
		switch status {
		case http.StatusSwitchingProtocols:
			wg.Go(func() {
				if code := c.closeCode(10 * time.Second); code != 4008 {
					t.Errorf("one that does not authenticate closes with %d", code)
				}
			})
		case http.StatusTooManyRequests:
			refused++
		default:
			t.Errorf("an upgrade is answered with %d", status)
		}
	}
	if refused != each-allowed {
		t.Errorf("%d of %d were refused early, want %d", refused, each, each-allowed)
	}
	// The evil address is full. Whoever says to come for somebody else is
	// believed only if it is the proxy.
	forwarded := "X-Forwarded-For: 10.1.2.3\r\n"
	if _, status := handshake(t, dialFrom(t, n, evil), forwarded); status != http.StatusTooManyRequests {
		t.Errorf("a made-up address is answered with %d", status)
	}
	if _, status := handshake(t, dialFrom(t, n, "127.0.0.9"), "X-Forwarded-For: "+evil+"\r\n"); status != http.StatusTooManyRequests {
		t.Errorf("the full address behind the proxy is answered with %d", status)
	}
	if _, status := handshake(t, dialFrom(t, n, "127.0.0.9"), forwarded); status != http.StatusSwitchingProtocols {
		t.Errorf("another address behind the proxy is answered with %d", status)
	}
	silent := time.Now()
	for range each { // a byte a second
		c := dialFrom(t, n, evil)
		wg.Go(func() {
			began := clock.Now()
			for _, b := range []byte("GET /v1/ws HTTP/1.1\r\n") {
				if _, err := c.Write([]byte{b}); err != nil {
					return
				}
				if clock.Since(began) > 11*time.Second {
					t.Error("one byte a second is still connected")
					return
				}
				time.Sleep(time.Second)
			}
		})
	}
	for range each { // nothing at all
		c := dialFrom(t, n, evil)
		wg.Go(func() {
			defer limitReads(c, 10*time.Second)()
			if _, err := c.Read(make([]byte, 1)); err == nil || isTimeout(err) {
				t.Errorf("a mute connection: %v", err)
			}
		})
	}
	// A request has 5 s to come: when these are over, as many may come again.
	places := allowed * (1 + int(time.Since(silent)/(5*time.Second)))
	slowest := time.Duration(0)
	for i := range 50 {
		began := clock.Now()
		c := login(t, n, fmt.Sprint("honest", i), "d")
		slowest = max(slowest, clock.Since(began))
		c.Close()
	}
	t.Logf("the slowest honest login took %v", slowest.Round(time.Millisecond))
	if slowest > time.Second {
		t.Errorf("an honest login took %v", slowest)
	}
	// Those who are silent before the upgrade have the same ceiling.
	eventually(t, "the others are turned away early", testenv.Patience, func() bool {
		return n.Metric(`imd_gateway_handshakes_total{result="address_full"}`) >= float64(each-allowed+2+2*each-places)
	})
	wg.Wait()
	honest := login(t, n, "honest", "d")
	if f := honest.Ask(syncFrame(&clientv1.Sync{})); f.GetSyncResult() == nil {
		t.Errorf("afterwards: %v", f)
	}
}

func isTimeout(err error) bool {
	ne, ok := err.(net.Error)
	return ok && ne.Timeout()
}

package requirements

import (
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/imdhq/imd/pkg/testenv"
	"github.com/imdhq/imd/sdk/go/gen/clientv1"
	"github.com/imdhq/imd/sdk/go/protocol"
)

// A client that reads steadily, but slower than a burst comes, gets all of it
// in order and is never disconnected. 2,000 messages of 1 KB come at once, and
// again; the client reads 400 a second.
func TestR23ShortBursts(t *testing.T) {
	t.Parallel()
	const burst, pace = 2000, time.Second / 400
	n := node(t, unhurried...)
	a := login(t, n, "ann", "d")
	conv := a.MustSend(testenv.ToUser("bob", "0")).ConversationId
	b := testenv.Login(t, n.URL(), protocol.JSON, n.Token("bob"), "d")
	r := &reader{c: b, conv: conv, have: 1}
	rss := n.Resident()
	for round := range 2 {
		sent := make(chan struct{})
		go func() {
			defer close(sent)
			pad := strings.Repeat("x", 1000)
			a.SendAll(numbered(burst, func(s string) *clientv1.Send { return testenv.ToUser("bob", s+" "+pad) }))
		}()
		for want := (round + 1) * burst; r.count() < want; {
			f := b.Take("what comes", func(f *clientv1.ServerFrame) bool { return isDeliver(f) || f.GetHead() != nil })
			before := r.count()
			if isDeliver(f) {
				r.take(f)
			}
			for h := f.GetHead().GetSeq(); r.have < h; {
				p := b.History(&clientv1.History{ConversationId: conv, AfterSeq: r.have, Limit: 50})
				for _, e := range p.Entries {
					r.show(e)
				}
				time.Sleep(time.Duration(len(p.Entries)) * pace)
				b.Write(ackFrame(conv, 0, r.have))
				before = r.count()
			}
			time.Sleep(time.Duration(r.count()-before) * pace)
			b.Write(ackFrame(conv, 0, r.have))
		}
		<-sent
	}
	for i, e := range r.shown {
		if got, _, _ := strings.Cut(e.Content.GetText(), " "); got != fmt.Sprint(i%burst+1) {
			t.Fatalf("message %d is %q", i, got)
		}
	}
	if b.Closed() {
		t.Error("it was disconnected")
	}
	if grown := n.Resident() - rss; grown > 100<<20 {
		t.Errorf("memory grew by %d MiB", grown>>20)
	}
}

// With few descriptors, connections over the ceiling are refused at once, those
// that are there go on, and newcomers are taken when some have gone.
func TestR26FewDescriptors(t *testing.T) {
	t.Parallel()
	for _, most := range []int{200, 1000} {
		t.Run(fmt.Sprint("max_connections ", most), func(t *testing.T) {
			n := &testenv.Node{Dir: t.TempDir() + "/data", Under: []string{"sh", "-c", `ulimit -n 256; exec "$0" "$@"`},
				Args: set(fmt.Sprint("gateway.max_connections=", most), "gateway.hello_timeout=30s")}
			n.Begin(t)
			n.AwaitLog("more connections are allowed than the process may open files")
			clock := testenv.NewClock(t)
			var chatting []*testenv.Client
			for i := range 20 {
				chatting = append(chatting, login(t, n, fmt.Sprint("u", i), "d"))
			}
			stop, slowest := make(chan struct{}), make(chan time.Duration, 1)
			go func() {
				defer close(slowest) // also if it fails
				worst := time.Duration(0)
				for i := 0; ; i++ {
					select {
					case <-stop:
						slowest <- worst
						return
					case <-time.After(10 * time.Millisecond):
						began := clock.Now()
						chatting[i%20].MustSend(testenv.ToUser("friend", "x"))
						worst = max(worst, clock.Since(began))
					}
				}
			}()
			var open []*testenv.Client
			refused := 0
			for range 400 {
				began := clock.Now()
				c, res, err := testenv.TryDial(t, n.URL(), protocol.Proto, testenv.DialOptions{})
				if took := clock.Since(began); took > 2*time.Second {
					t.Errorf("an answer took %v", took)
				}
				switch {
				case err == nil:
					open = append(open, c)
				case res == nil || res.StatusCode != 503:
					t.Errorf("refused with %v, %v", res, err)
				default:
					refused++
				}
			}
			t.Logf("%d open, %d refused", len(open), refused)
			if refused == 0 || len(open) == 0 {
				t.Errorf("%d open, %d refused", len(open), refused)
			}
			cpu, from := n.Metric("process_cpu_seconds_total"), time.Now()
			time.Sleep(time.Second)
			if share := (n.Metric("process_cpu_seconds_total") - cpu) / time.Since(from).Seconds(); share > .5 {
				t.Errorf("the process spends %.2f s of CPU a second", share)
			}
			for _, c := range open[len(open)/4:] {
				c.Cut()
			}
			began := time.Now()
			eventually(t, "a new connection", 2*time.Second, func() bool {
				_, _, err := testenv.TryDial(t, n.URL(), protocol.Proto, testenv.DialOptions{})
				return err == nil
			})
			t.Logf("new ones are taken %v after some have gone", time.Since(began).Round(time.Millisecond))
			var closed atomic.Int64
			var wg sync.WaitGroup
			for _, c := range mute(t, n, 300) {
				wg.Go(func() {
					defer limitReads(c, 2*time.Second)()
					if _, err := c.Read(make([]byte, 1)); !os.IsTimeout(err) {
						closed.Add(1)
					}
					c.Close()
				})
			}
			wg.Wait()
			if closed.Load() == 0 {
				t.Error("300 connections that say nothing may all stay")
			}
			close(stop)
			if worst := <-slowest; worst > time.Second {
				t.Errorf("one that was there waited %v", worst)
			}
		})
	}
}

// mute opens connections that say nothing.
func mute(t *testing.T, n *testenv.Node, count int) (all []net.Conn) {
	t.Helper()
	for range count {
		c, err := net.DialTimeout("tcp", n.Endpoints().Public, testenv.Patience)
		if err != nil {
			t.Error(err)
			continue
		}
		t.Cleanup(func() { c.Close() })
		all = append(all, c)
	}
	return all
}

// 3,000 clients come at once, for the first time and again after a kill; all
// are in within 30 s, and those who were first are served all the time.
func TestR53AReconnectWave(t *testing.T) { // not beside others: it takes all there is
	const size = 3000
	if limit := descriptors(t); limit < size+500 {
		t.Fatalf("%d clients need more than the %d files that may be open", size, limit)
	}
	n := node(t)
	tokens := make([]string, size)
	for i := range tokens {
		tokens[i] = n.Token(fmt.Sprint("w", i))
	}
	for _, name := range []string{"new users", "after a kill"} {
		w := &wave{t: t, base: n.URL(), tokens: tokens, clock: testenv.NewClock(t)}
		first := login(t, n, "first", "d")
		stop, worst := make(chan struct{}), make(chan time.Duration, 1)
		go func() {
			defer close(worst) // also if it fails
			var all []time.Duration
			for {
				select {
				case <-stop:
					worst <- nearlySlowest(all)
					return
				case <-time.After(10 * time.Millisecond):
					began := w.clock.Now()
					if ack := first.Send(testenv.ToUser("friend", "x")); ack.Status == clientv1.Ack_ACK_OK {
						all = append(all, w.clock.Since(began))
					}
				}
			}
		}()
		began := time.Now()
		took := w.come()
		slowness := max(1, time.Since(began).Seconds()/took.Seconds())
		close(stop)
		slowest := <-worst
		t.Logf("%s: %d clients in %v, %d refusals on the way, acks of one who was there within %v", name, w.in.Load(),
			took.Round(time.Millisecond), w.refused.Load(), slowest.Round(time.Millisecond))
		if w.in.Load() != size || took > 30*time.Second {
			t.Errorf("%s: %d of %d were in after %v", name, w.in.Load(), size, took)
		}
		// The clients share the processors with the server, and perhaps with other
		// tests, so the time on this side says little: the server's own counts, as far as
		// the machine gave it any. Who had to stand in line would wait as long as the wave
		// takes.
		second := "1"
		for _, le := range []float64{1, 2.5, 5, 10} { // the bounds that the server counts by
			if second = fmt.Sprint(le); le >= slowness {
				break
			}
		}
		if all, quick := n.Metric("imd_message_send_seconds_count"), n.Metric(`imd_message_send_seconds_bucket{le="`+second+`"}`); quick < all*.99 {
			t.Errorf("%s: only %v of %v sends were answered within %s s on a machine that was %.1f times slower", name, quick, all, second, slowness)
		}
		if slowest > max(time.Second, took) {
			t.Errorf("%s: one who was there waited %v", name, slowest)
		}
		n.Kill()
		n.Start()
	}
}

// wave is many clients who connect at once and wait as they are told.
type wave struct {
	t           *testing.T
	base        string
	tokens      []string
	clock       *testenv.Clock
	in, refused atomic.Int64
}

// come lets all connect and says how long it took until all were in, by the clock.
func (w *wave) come() time.Duration {
	var wg sync.WaitGroup
	began := w.clock.Now()
	for _, token := range w.tokens {
		wg.Go(func() {
			for w.clock.Since(began) < 30*time.Second {
				wait, ok := w.try(token)
				if ok {
					w.in.Add(1)
					return
				}
				w.refused.Add(1)
				time.Sleep(wait + time.Duration(rand.Int64N(int64(time.Second))))
			}
		})
	}
	wg.Wait()
	return w.clock.Since(began)
}

// try makes one attempt; wait is how long to stay away after a refusal.
func (w *wave) try(token string) (wait time.Duration, ok bool) {
	c, res, err := testenv.TryDial(w.t, w.base, protocol.Proto, testenv.DialOptions{})
	if err != nil {
		if res != nil && res.StatusCode != 503 && res.StatusCode != 429 {
			w.t.Errorf("refused with %d: %v", res.StatusCode, err)
		}
		return time.Second, false
	}
	id := c.ID()
	_ = c.TryWrite(helloFrame(id, token, "d"))
	f := c.Await(testenv.Patience, func(f *clientv1.ServerFrame) bool { return f.Id == id })
	if bye := f.GetBye(); bye != nil && bye.Reason != "busy" {
		w.t.Errorf("refused with %v", bye)
	}
	return time.Duration(f.GetBye().GetRetryAfterMs()) * time.Millisecond, f.GetWelcome() != nil
}

// nearlySlowest is the 99th percentile.
func nearlySlowest(all []time.Duration) time.Duration {
	if len(all) == 0 {
		return 0
	}
	sorted := slices.Sorted(slices.Values(all))
	return sorted[len(sorted)*99/100]
}

// descriptors is how many files this process may open.
func descriptors(t *testing.T) int {
	t.Helper()
	data, err := os.ReadFile("/proc/self/limits")
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.SplitSeq(string(data), "\n") {
		if rest, ok := strings.CutPrefix(line, "Max open files"); ok {
			var soft int
			if _, err := fmt.Sscan(rest, &soft); err == nil {
				return soft
			}
		}
	}
	t.Fatal("no limit of open files is known")
	return 0
}

package gateway

import (
	"bufio"
	"crypto/tls"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/imdhq/imd/pkg/im"
	"github.com/imdhq/imd/pkg/testenv"
	"github.com/imdhq/imd/sdk/go/gen/clientv1"
	"github.com/imdhq/imd/sdk/go/protocol"
)

// quietAfter makes a gateway park what is quiet for that long.
func quietAfter(d time.Duration) func(*Gateway) {
	return func(g *Gateway) { g.quietTime = d }
}

func (w *world) parked() int { return w.g.lot.Parked() }

// readers counts the goroutines that read from sessions of all gateways.
func readers() int { return goroutines("gateway.(*session).serve(") }

// goroutines counts those that are in a function.
func goroutines(in string) int {
	b := make([]byte, 1<<20)
	return strings.Count(string(b[:runtime.Stack(b, true)]), in)
}

// Who waits after a login does not do so on the stack that the login has grown, and
// loses nothing by it.
func TestWaitingLeavesTheStackOfTheLogin(t *testing.T) {
	both(t, func(t *testing.T, enc protocol.Encoding) {
		w := beginTuned(t, quietAfter(time.Minute))
		ann, bob := w.session(t, enc, "ann", "d1"), w.session(t, enc, "bob", "d1")
		eventually(t, "their first goroutines end", func() bool { return goroutines("gateway.(*session).begin(") == 0 })
		eventually(t, "two goroutines read", func() bool { return readers() == 2 })
		for range 3 {
			ann.MustSend(testenv.ToUser("bob", "still there?"))
			bob.Take("a deliver", isDeliver)
		}
	})
}

// A quiet session has no goroutine, and everything goes on as if it had.
func TestQuietSessionsAreParked(t *testing.T) {
	both(t, func(t *testing.T, enc protocol.Encoding) {
		w := beginTuned(t, quietAfter(30*time.Millisecond))
		ann, bob := w.session(t, enc, "ann", "d1"), w.session(t, enc, "bob", "d1")
		eventually(t, "both are parked", func() bool { return w.parked() == 2 })
		eventually(t, "their goroutines end", func() bool { return readers() == 0 })
		ack := ann.MustSend(testenv.ToUser("bob", "are you there?")) // wakes ann
		bob.Take("a deliver", isDeliver)
		bob.Write(ackOf(ack.ConversationId, 0, ack.Seq)) // wakes bob
		eventually(t, "the ack arrives", func() bool {
			w.state.mu.Lock()
			defer w.state.mu.Unlock()
			return len(w.state.marks) > 0
		})
		eventually(t, "both are parked again", func() bool { return w.parked() == 2 })
		w.state.post(ack.ConversationId, "ann", "hello?", "ann", "bob")
		bob.Take("a deliver", isDeliver)
		if n := w.parked(); n != 2 {
			t.Errorf("a delivery woke %d readers", 2-n)
		}
	})
}

// Heartbeats go on while sessions are parked; who does not answer is closed.
func TestParkedSessionsHaveAHeartbeat(t *testing.T) {
	w := beginTuned(t, quietAfter(20*time.Millisecond), func(c *Config) { c.PingInterval, c.PongTimeout = 150*time.Millisecond, time.Second })
	alive := w.session(t, protocol.Proto, "ann", "d1") // answers pings by itself
	c, _, err := dialer{w, t.Context()}.open(w.token("bob"), "d1")
	if err != nil {
		t.Fatal(err)
	}
	defer c.CloseNow()
	eventually(t, "both are parked", func() bool { return w.parked() == 2 })
	eventually(t, "the silent one is closed", func() bool { return testutil.ToFloat64(w.g.m.closed.WithLabelValues("idle")) == 1 })
	time.Sleep(500 * time.Millisecond) // several heartbeats
	eventually(t, "the other one is parked", func() bool { return w.parked() == 1 })
	if alive.Closed() {
		t.Error("one that answers was closed")
	}
}

// However a parked session ends, it is freed.
func TestTheEndOfParkedSessions(t *testing.T) {
	for name, end := range map[string]func(w *world, c net.Conn){
		"the client closes":  func(_ *world, c net.Conn) { _, _ = io.WriteString(c, masked(8, "\x03\xe8")) },
		"the client is gone": func(_ *world, c net.Conn) { _ = c.Close() },
		"a reset":            func(_ *world, c net.Conn) { reset(c) },
		"a kick": func(w *world, _ net.Conn) {
			for _, s := range w.g.hub.of("ann") {
				s.end("kicked", "", 0)
			}
		},
		"the socket is dead": func(w *world, c net.Conn) {
			for _, s := range w.g.hub.of("ann") {
				_ = s.wire.Conn.(*net.TCPConn).CloseWrite()
				s.reply(errorFrame(1, protocol.NewError("busy", "", 0)))
			}
		},
		"the node stops": func(w *world, _ net.Conn) { w.stop() },
	} {
		t.Run(name, func(t *testing.T) {
			w := beginTuned(t, quietAfter(20*time.Millisecond))
			data, _ := protocol.EncodeClient(protocol.JSON, helloWith(w.token("ann")))
			c, err := dialer{w, t.Context()}.rawOpen(masked(1, string(data)))
			if err != nil {
				t.Fatal(err)
			}
			defer c.Close()
			eventually(t, "it is parked", func() bool { return w.parked() == 1 })
			end(w, c)
			eventually(t, "it is freed", func() bool { return w.g.hub.len() == 0 && w.parked() == 0 })
			if n := len(w.routesOf("ann")); n != 0 {
				t.Errorf("%d routes are left", n)
			}
		})
	}
}

// readAnswers reads server messages, without their order or number being of
// interest, and calls got with the id of each error frame: the answer to a
// frame without a known kind.
func readAnswers(r *bufio.Reader, got func(id int)) error {
	for {
		head := make([]byte, 2)
		if _, err := io.ReadFull(r, head); err != nil {
			return err
		}
		n := int(head[1])
		if n == 126 {
			var ext [2]byte
			if _, err := io.ReadFull(r, ext[:]); err != nil {
				return err
			}
			n = int(binary.BigEndian.Uint16(ext[:]))
		}
		payload := make([]byte, n)
		if _, err := io.ReadFull(r, payload); err != nil {
			return err
		}
		if head[0] != opText {
			continue
		}
		for line := range strings.Lines(string(payload)) {
			var f struct {
				ID    int
				Error *struct{ Reason string }
			}
			if err := json.Unmarshal([]byte(line), &f); err != nil {
				return fmt.Errorf("%q: %w", line, err)
			}
			if f.Error != nil {
				if f.Error.Reason != "unknown_kind" {
					return fmt.Errorf("answered %s", line)
				}
				got(f.ID)
			}
		}
	}
}

// nextOf makes what a client writes next: a frame that wants the next answer, two
// of them, or a ping or pong between.
func nextOf(rng *rand.Rand, id *int) string {
	ask := func() string {
		*id++
		return fmt.Sprintf(`{"id":%d,"pad":"%s"}`, *id, strings.Repeat("x", rng.IntN(3)*rng.IntN(600)))
	}
	switch rng.IntN(6) {
	case 0:
		return masked(9, "ping") + masked(1, ask())
	case 1:
		return masked(1, ask()+"\n"+ask())
	case 2:
		return masked(1, ask()) + masked(1, ask()) + masked(1, `{"pong":{}}`)
	case 3:
		return masked(1, `{"pong":{}}`)
	case 4: // in two fragments
		s := ask()
		first := []byte(masked(1, s[:5]))
		first[0] &^= 0x80
		return string(first) + masked(0, s[5:])
	}
	return masked(1, ask())
}

// Messages are answered once each and in order however their bytes are cut and
// whenever they come: at once, in one piece with others, byte by byte, or after
// the connection was parked between any two of them.
func TestMessagesArriveHoweverTheyAreCut(t *testing.T) {
	w := beginTuned(t, quietAfter(15*time.Millisecond)) // in fact up to a tick of the wheel later
	w.g.Limits().SetOff(true)
	pause := func(rng *rand.Rand) { time.Sleep(time.Duration(rng.Int64N(int64(3 * tick / 2)))) }
	most := 0
	watching := make(chan struct{})
	go func() {
		defer close(watching)
		for w.g.hub.len() > 0 || most == 0 {
			most = max(most, w.parked())
			time.Sleep(time.Millisecond)
		}
	}()
	var wg sync.WaitGroup
	for seed := range uint64(24) {
		wg.Go(func() {
			rng := rand.New(rand.NewPCG(seed, 7))
			data, _ := protocol.EncodeClient(protocol.JSON, helloWith(w.token(fmt.Sprint("u", seed))))
			c, err := dialer{w, t.Context()}.rawOpen(masked(1, string(data)))
			if err != nil {
				t.Error(err)
				return
			}
			defer c.Close()
			answered := make(chan int, 1000)
			go func() {
				r := bufio.NewReader(c)
				_, _ = r.ReadString('\n')
				for line := ""; line != "\r\n"; {
					line, _ = r.ReadString('\n')
				}
				last := 0
				err := readAnswers(r, func(id int) {
					if id != last+1 {
						t.Errorf("seed %d: answer %d after %d", seed, id, last)
					}
					last = id
					answered <- id
				})
				close(answered)
				if last == 0 {
					t.Errorf("seed %d: %v", seed, err)
				}
			}()
			asked := 0
			for range 12 {
				out := nextOf(rng, &asked)
				for len(out) > 0 {
					n := 1 + rng.IntN(len(out))
					if rng.IntN(3) == 0 {
						n = min(len(out), 1+rng.IntN(4)) // byte by byte
					}
					_, _ = io.WriteString(c, out[:n])
					out = out[n:]
					if rng.IntN(8) == 0 {
						pause(rng)
					}
				}
				if rng.IntN(2) == 0 {
					pause(rng)
				}
			}
			for last := 0; last < asked; {
				select {
				case id, ok := <-answered:
					if last = id; !ok {
						t.Errorf("seed %d: it ended before %d of %d answers", seed, last, asked)
						return
					}
				case <-time.After(5 * time.Second):
					t.Errorf("seed %d: no answer after %d of %d", seed, last, asked)
					return
				}
			}
		})
	}
	wg.Wait()
	eventually(t, "all have gone", func() bool { return w.g.hub.len() == 0 })
	<-watching
	if most < 5 {
		t.Errorf("%d were parked at once: the test tries little", most)
	}
}

// Sessions that come, are parked, and end at any moment leave nothing behind,
// and never take each other's place, though their descriptors are used again.
func TestSessionsThatEndWhileTheyAreParked(t *testing.T) {
	w := beginTuned(t, quietAfter(time.Millisecond))
	w.g.Limits().SetOff(true)
	var wg sync.WaitGroup
	for worker := range 8 {
		wg.Go(func() {
			rng := rand.New(rand.NewPCG(uint64(worker), 3))
			for round := range 12 {
				user := fmt.Sprintf("u%d-%d", worker, round)
				data, _ := protocol.EncodeClient(protocol.JSON, helloWith(w.token(user)))
				c, err := dialer{w, t.Context()}.rawOpen(masked(1, string(data)))
				if err != nil {
					t.Error(err)
					return
				}
				eventually(t, "online", func() bool { return len(w.g.hub.of(im.UserID(user))) == 1 })
				time.Sleep(time.Duration(rng.IntN(150)) * time.Millisecond) // the wheel turns every 100 ms
				switch rng.IntN(4) {
				case 0:
					w.g.hub.of(im.UserID(user))[0].end("kicked", "", 0)
				case 1:
					reset(c)
				case 2:
					_, _ = io.WriteString(c, masked(8, "\x03\xe8"))
				case 3:
					_, _ = io.WriteString(c, masked(1, "no json"))
				}
				time.Sleep(time.Duration(rng.IntN(3)) * time.Millisecond)
				_ = c.Close()
			}
		})
	}
	wg.Wait()
	eventually(t, "all are freed", func() bool { return w.g.hub.len() == 0 && w.parked() == 0 })
}

// Through TLS all is the same: what a record holds besides is not forgotten.
func TestParkingThroughTLS(t *testing.T) {
	secure := newSecure(t)
	w := beginTuned(t, quietAfter(20*time.Millisecond), secure.use)
	c, err := tls.Dial("tcp", w.g.Addr().String(), secure.client())
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	_ = c.SetDeadline(time.Now().Add(20 * time.Second))
	data, _ := protocol.EncodeClient(protocol.JSON, helloWith(w.token("ann")))
	_, _ = io.WriteString(c, handshake("x", protocol.SubprotocolJSON)+masked(1, string(data)))
	r := bufio.NewReader(c)
	res, err := http.ReadResponse(r, nil)
	if err != nil || res.StatusCode != http.StatusSwitchingProtocols {
		t.Fatal(res, err)
	}
	got := make(chan int, 100)
	go func() { defer close(got); _ = readAnswers(r, func(id int) { got <- id }) }()
	id := 0
	for range 5 {
		eventually(t, "it is parked", func() bool { return w.parked() == 1 })
		// Two messages in one record, and a third that is cut between two.
		out := masked(1, fmt.Sprintf(`{"id":%d}`, id+1)) + masked(1, fmt.Sprintf(`{"id":%d}`, id+2))
		third := masked(1, fmt.Sprintf(`{"id":%d}`, id+3))
		_, _ = io.WriteString(c, out+third[:4])
		for range 2 {
			if id++; <-got != id {
				t.Fatal("an answer is missing")
			}
		}
		time.Sleep(60 * time.Millisecond)
		if w.parked() != 0 {
			t.Fatal("parked in the middle of a message")
		}
		_, _ = io.WriteString(c, third[4:])
		if id++; <-got != id {
			t.Fatal("an answer is missing")
		}
	}
	s := w.g.hub.of("ann")[0]
	if s.q.raw != nil {
		t.Error("a connection through TLS is written to past it")
	}
	s.end("kicked", "", 0)
	eventually(t, "it is freed", func() bool { return w.g.hub.len() == 0 })
}

// One that does not read costs others nothing: what is for it waits in its
// bounded queue, and no call waits for it.
func TestAStalledClientHoldsUpNobody(t *testing.T) {
	w := begin(t, func(c *Config) { c.WriteTimeout = 700 * time.Millisecond })
	w.g.Limits().SetOff(true)
	data, _ := protocol.EncodeClient(protocol.JSON, helloWith(w.token("stalled")))
	c, err := dialer{w, t.Context()}.rawOpen(masked(1, string(data)))
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	_ = c.(*net.TCPConn).SetReadBuffer(4096)
	honest := w.session(t, protocol.Proto, "honest", "d1")
	eventually(t, "both are online", func() bool { return len(w.g.hub.online()) == 2 })
	s := w.g.hub.of("stalled")[0]
	text, conv := strings.Repeat("x", 12_000), protocol.DirectID("stalled", "honest")
	longest, most, seen := time.Duration(0), 0, int64(0)
	for s.live() {
		var seq int64
		longest = max(longest, testenv.Took(func() { seq = w.state.post(conv, "someone", text, "stalled", "honest") })) // the call of Deliver is in it
		f := honest.Take("a deliver or head", func(f *clientv1.ServerFrame) bool { return isDeliver(f) || isHead(f) })
		if e := f.GetDeliver().GetEntries(); len(e) > 0 {
			if e[0].Seq != seq {
				t.Fatalf("entry %d in place of %d", e[0].Seq, seq)
			}
			honest.Write(ackOf(conv, seen, seq))
			seen = seq
		}
		s.q.mu.Lock()
		most = max(most, s.q.bytes)
		s.q.mu.Unlock()
	}
	if longest > 500*time.Millisecond {
		t.Errorf("a delivery took %v beside a client that does not read", longest)
	}
	if limit := w.g.cfg.QueueBytes + reserveBytes; most > limit {
		t.Errorf("%d bytes waited, the bound is %d", most, limit)
	}
	eventually(t, "it is closed as slow", func() bool { return testutil.ToFloat64(w.g.m.closed.WithLabelValues("slow")) == 1 })
	if honest.Closed() || seen == 0 {
		t.Error("the honest one did not go on")
	}
}

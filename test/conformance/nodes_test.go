package conformance

import (
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/imdhq/imd/pkg/auth"
	"github.com/imdhq/imd/pkg/im"
	"github.com/imdhq/imd/pkg/testenv"
	"github.com/imdhq/imd/sdk/go/gen/clientv1"
	"github.com/imdhq/imd/sdk/go/protocol"
)

// set makes --set flags.
func set(pairs ...string) []string {
	var args []string
	for _, p := range pairs {
		args = append(args, "--set", p)
	}
	return args
}

// Statement 8.
func TestOrigins(t *testing.T) {
	t.Parallel()
	n := testenv.Start(t, set("gateway.allowed_origins=https://app.example")...)
	host := n.Endpoints().Public
	name, port, _ := strings.Cut(host, ":")
	try := func(n *testenv.Node, origins ...string) int {
		_, res, err := testenv.TryDial(t, n.URL(), protocol.JSON, testenv.DialOptions{Header: http.Header{"Origin": origins}})
		if err == nil {
			return 101
		}
		if res == nil {
			t.Fatal(err)
		}
		if res.StatusCode == http.StatusForbidden {
			body, _ := io.ReadAll(res.Body)
			var e struct{ Message string }
			if json.Unmarshal(body, &e) != nil || !strings.Contains(e.Message, "rigin") {
				t.Errorf("the refusal of %q does not say why: %s", origins, body)
			}
		}
		return res.StatusCode
	}
	for _, tt := range []struct {
		want    int
		origins []string
	}{
		{101, nil}, {101, []string{"http://" + host}}, {101, []string{"https://app.example"}},
		{403, []string{"http://" + name + ":1"}}, {403, []string{"http://app.example"}}, {403, []string{"https://app.example:8443"}},
		{403, []string{"https://evil.example"}}, {403, []string{"http://" + name + "." + "evil.example:" + port}},
		{403, []string{"https://evilapp.example"}}, {403, []string{"https://app.example.evil.example"}}, {403, []string{"null"}},
		{403, []string{"http://" + host, "https://evil.example"}},
	} {
		if got := try(n, tt.origins...); got != tt.want {
			t.Errorf("origin %q: %d, want %d", tt.origins, got, tt.want)
		}
	}
	strict := testenv.Start(t, set("gateway.require_origin=true")...)
	if got := try(strict); got != 403 {
		t.Errorf("no origin where one is required: %d", got)
	}
}

// Statement 13.
func TestAcknowledgedSurvivesKill(t *testing.T) {
	t.Parallel()
	n := testenv.Start(t)
	both(t, n, nil, func(t *testing.T, s *suite) {
		a := s.login(t, "ann", "d")
		var acks []*clientv1.SendAck
		for i := range 50 {
			acks = append(acks, a.MustSend(testenv.ToUser(s.user("bob"), fmt.Sprint(i))))
		}
		n.Kill()
		n.Start()
		b := s.login(t, "bob", "d")
		all, _ := b.Walk(acks[0].ConversationId, 100, false)
		if len(all) != len(acks) {
			t.Fatalf("%d of %d are there", len(all), len(acks))
		}
		for i, e := range all {
			if e.MessageId != acks[i].MessageId || e.Seq != acks[i].Seq || e.Content.GetText() != fmt.Sprint(i) {
				t.Errorf("entry %d is %v, its ack said %v", i, e, acks[i])
			}
		}
	})
}

// Statements 18 and 20.
func TestStalledStore(t *testing.T) {
	t.Parallel()
	n := testenv.StartSQLite(t, testenv.NoLimits()...)
	both(t, n, nil, func(t *testing.T, s *suite) {
		a := s.login(t, "ann", "d")
		a.MustSend(testenv.ToUser(s.user("bob"), "first"))
		rss := n.Resident()
		release := n.Stall()
		var sends []*clientv1.Send
		var frames []*clientv1.ClientFrame
		for i := range 1000 {
			m := testenv.ToUser(s.user("bob"), fmt.Sprint(i))
			m.ClientMessageId = uuid.NewString()
			sends = append(sends, m)
			frames = append(frames, sendFrame(a.ID(), m))
		}
		written := make(chan error, 1)
		go func() {
			for at := 0; at < len(frames); at += 50 {
				if err := a.TryWrite(frames[at : at+50]...); err != nil {
					written <- err
					return
				}
			}
			written <- nil
		}()
		clock := testenv.NewClock(t)
		ok := map[string]bool{}
		answer := func(f *clientv1.ClientFrame) *clientv1.SendAck {
			ack := a.Answer(f.Id).GetSendAck()
			if ack.Status == clientv1.Ack_ACK_OK {
				ok[ack.ClientMessageId] = true
			}
			return ack
		}
		for _, f := range frames[:64] {
			if ack := answer(f); ack.Status != clientv1.Ack_ACK_RETRY {
				t.Fatalf("with a stalled store: %v", ack)
			}
		}
		if took := clock.Now(); took > 2*time.Second {
			t.Errorf("the first answers took %v", took)
		}
		if grown := n.Resident() - rss; grown > 50<<20 {
			t.Errorf("memory grew by %d MiB", grown>>20)
		}
		release()
		for _, f := range frames[64:] {
			answer(f)
		}
		if err := <-written; err != nil {
			t.Fatal(err)
		}
		for _, m := range sends {
			m.Resend = true
		}
		seqs := a.SendAll(sends)
		for i := 1; i < len(seqs); i++ {
			if seqs[i] <= seqs[i-1] {
				t.Fatalf("send %d has seq %d behind %d", i, seqs[i], seqs[i-1])
			}
		}
		all, _ := a.Walk(protocol.DirectID(s.user("ann"), s.user("bob")), 500, false)
		if len(all) != 1001 {
			t.Errorf("history has %d entries, want 1001", len(all))
		}
	})
}

// Statement 23, with waits a tenth as long.
func TestRedelivery(t *testing.T) {
	t.Parallel()
	n := testenv.Start(t, set("gateway.redeliver_after=300ms")...)
	atOnce(t, n, nil, func(t *testing.T, s *suite) {
		a, b, acking := s.login(t, "ann", "d"), s.login(t, "bob", "d"), s.login(t, "bob", "d2")
		ack := a.MustSend(testenv.ToUser(s.user("bob"), "x"))
		entry := func(f *clientv1.ServerFrame) bool { return f.GetDeliver() != nil }
		first := acking.Take("the deliver", entry)
		acking.Write(ackFrame(ack.ConversationId, 0, ack.Seq))
		acking.History(&clientv1.History{ConversationId: ack.ConversationId, Limit: 1}) // is answered when the ack is known
		for acking.TakeWithin(0, entry) != nil {                                        // copies of before, if the ack was late
		}
		want, err := protocol.EncodeServer(s.enc, first)
		if err != nil {
			t.Fatal(err)
		}
		copies := 0
		for {
			f := b.Await(3*time.Second, entry)
			if f == nil {
				break
			}
			copies++
			if got, _ := protocol.EncodeServer(s.enc, f); sha256.Sum256(got) != sha256.Sum256(want) {
				t.Errorf("copy %d differs: %v", copies, f)
			}
		}
		if copies != 6 {
			t.Errorf("delivered %d times without an ack, want once and 5 times again", copies)
		}
		if f := acking.TakeWithin(10*time.Millisecond, entry); f != nil {
			t.Errorf("acknowledged, but delivered again: %v", f)
		}
	})
}

// Statement 34. Those who read are not to be taken for one who does not because the
// machine stops them for two seconds.
func TestSlowClients(t *testing.T) {
	t.Parallel()
	n := testenv.Start(t, append(set("gateway.write_timeout=4s"), testenv.NoLimits()...)...)
	both(t, n, nil, func(t *testing.T, s *suite) {
		conv := s.group(t, "ann", "slow", "dead", "well")
		a, well := s.login(t, "ann", "d"), s.login(t, "well", "d")
		slow := s.login(t, "slow", "d") // reads, but never acknowledges: the window fills
		dead, _, err := testenv.TryDial(t, s.URL(), s.enc, testenv.DialOptions{Paused: true})
		if err != nil {
			t.Fatal(err)
		}
		dead.Write(helloFrame(1, hello(s.Token(s.user("dead")))))
		var sends []*clientv1.Send
		for i := range 2500 {
			m := testenv.To(conv, fmt.Sprint(i)+strings.Repeat("x", 4000))
			m.ClientMessageId = uuid.NewString()
			sends = append(sends, m)
		}
		done := make(chan struct{})
		go func() { defer close(done); a.SendAll(sends) }() // also if it fails
		seen := int64(1)
		for seen < 2501 {
			f := well.Take("delivers or heads", func(f *clientv1.ServerFrame) bool { return f.GetDeliver() != nil || f.GetHead() != nil })
			// A head above what is here, or a deliver behind a gap: read what is missing.
			until := f.GetHead().GetSeq()
			for _, e := range f.GetDeliver().GetEntries() {
				if e.PrevSeq <= seen {
					seen = max(seen, e.Seq)
				} else {
					until = e.Seq
				}
			}
			for seen < until {
				p := well.History(&clientv1.History{ConversationId: conv, AfterSeq: seen, Limit: 500})
				seen = max(seen, p.CompleteTo)
			}
			well.Write(ackFrame(conv, 1, seen))
		}
		<-done
		slow.Take("a head in place of delivers", func(f *clientv1.ServerFrame) bool { return f.GetHead().GetConversationId() == conv })
		alive(t, slow)
		if well.Closed() || slow.Closed() {
			t.Error("a client that reads was closed")
		}
		l := testenv.NewLimit(15 * time.Second)
		for dead.TryWrite(&clientv1.ClientFrame{Kind: &clientv1.ClientFrame_Pong{Pong: &clientv1.Pong{}}}) == nil {
			if l.Over() {
				t.Fatal("a client that does not read is still connected")
			}
			time.Sleep(100 * time.Millisecond)
		}
	})
}

// Statement 35, with a ping every second and three to answer: one who answers may be
// stopped for two by the machine.
func TestSilenceCloses(t *testing.T) {
	t.Parallel()
	n := testenv.Start(t, set("gateway.ping_interval=1s", "gateway.pong_timeout=3s")...)
	atOnce(t, n, nil, func(t *testing.T, s *suite) {
		quiet, lively := s.login(t, "ann", "d"), s.login(t, "bob", "d")
		quiet.Silence()
		clock := testenv.NewClock(t)
		wantClosed(t, quiet, 4002, "idle", 8*time.Second)
		if took := clock.Now(); took > 6*time.Second { // the two before and after the last ping that it answered, and 1 s
			t.Errorf("closed after %v", took)
		}
		for l := testenv.NewLimit(5 * time.Second); lively.Pings() < 5 && !lively.Closed() && !l.Over(); {
			time.Sleep(20 * time.Millisecond)
		}
		if lively.Closed() || lively.Pings() < 5 {
			t.Errorf("a client that answers: closed %v after %d pings", lively.Closed(), lively.Pings())
		}
	})
}

// Statement 36.
func TestTokenLife(t *testing.T) {
	t.Parallel()
	n := testenv.Start(t)
	atOnce(t, n, nil, func(t *testing.T, s *suite) {
		short := func(login string, life time.Duration) string {
			return n.Mint(auth.Claims{User: im.UserID(s.user("ann")), Login: im.LoginID(s.prefix + login)}, life)
		}
		refresh := func(c *testenv.Client, token string) *clientv1.ServerFrame {
			return c.Request(&clientv1.ClientFrame{Kind: &clientv1.ClientFrame_RefreshToken{RefreshToken: &clientv1.RefreshToken{Token: token}}})
		}
		const life = 6 * time.Second // long enough to log in and renew on a machine that stops for seconds
		began, clock := time.Now(), testenv.NewClock(t)
		silent := testenv.Login(t, s.Door(), s.enc, short("l1", life), "d1")
		renewed := testenv.Login(t, s.Door(), s.enc, short("l2", life), "d2")
		wantReason(t, refresh(renewed, s.Token(s.user("bob"))), "bad_token")
		wantReason(t, refresh(renewed, short("other", time.Hour)), "bad_token")
		wantReason(t, refresh(renewed, "x.y.z"), "bad_token")
		if f := refresh(renewed, short("l2", time.Hour)); f.GetRefreshResult().GetTokenExpireMs() < time.Now().Add(50*time.Minute).UnixMilli() {
			t.Errorf("refresh: %v", f)
		}
		wantClosed(t, silent, 4005, "token_expired", life+5*time.Second)
		// A token tells its end in whole seconds, and the session looks within two.
		if took := time.Since(began); took < life-time.Second || clock.Now() > life+2100*time.Millisecond {
			t.Errorf("a token of %v ended its session after %v", life, took)
		}
		alive(t, renewed)
	})
}

// Statement 37.
func TestLogins(t *testing.T) {
	t.Parallel()
	t.Run("multi", func(t *testing.T) {
		both(t, testenv.Start(t, set("gateway.login.multi=2")...), nil, func(t *testing.T, s *suite) {
			token := s.Token(s.user("ann"))
			first := testenv.Login(t, s.Door(), s.enc, token, "d")
			second := testenv.Login(t, s.Door(), s.enc, token, "d")
			wantClosed(t, first, 4507, "superseded", 3*time.Second)
			other := s.login(t, "ann", "d2")
			alive(t, second)
			alive(t, other)
			third := s.login(t, "ann", "d3")
			wantClosed(t, second, 4503, "replaced", 3*time.Second)
			alive(t, third)
			alive(t, other)
		})
	})
	t.Run("kick_old", func(t *testing.T) {
		n := testenv.Start(t, set("gateway.login.mode=kick_old")...)
		both(t, n, nil, func(t *testing.T, s *suite) {
			token := s.Token(s.user("ann"))
			old := testenv.Login(t, s.Door(), s.enc, token, "d1")
			next := s.login(t, "ann", "d2")
			wantClosed(t, old, 4503, "replaced", 3*time.Second)
			for range 2 {
				c := testenv.Dial(t, s.Door(), s.enc)
				c.Write(helloFrame(1, hello(token)))
				wantClosed(t, c, 4503, "replaced", 3*time.Second)
				n.Kill()
				n.Start()
				next = s.login(t, "ann", "d2")
			}
			alive(t, next)
		})
	})
	t.Run("reject_new", func(t *testing.T) {
		both(t, testenv.Start(t, set("gateway.login.mode=reject_new")...), nil, func(t *testing.T, s *suite) {
			token := s.Token(s.user("ann"))
			old := testenv.Login(t, s.Door(), s.enc, token, "d1")
			c := testenv.Dial(t, s.Door(), s.enc)
			c.Write(helloFrame(1, &clientv1.Hello{Version: 1, Token: s.Token(s.user("ann")), DeviceId: "d2", Class: "bot"}))
			wantClosed(t, c, 4504, "login_refused", 3*time.Second)
			alive(t, old)
			moved := testenv.Login(t, s.Door(), s.enc, token, "d1")
			wantClosed(t, old, 4507, "superseded", 3*time.Second)
			alive(t, moved)
		})
	})
}

// Statement 38.
func TestDrain(t *testing.T) {
	t.Parallel()
	each(t, nil, func(t *testing.T, enc protocol.Encoding) {
		t.Parallel()
		n := testenv.Start(t)
		s := &suite{Node: n, enc: enc, prefix: "d-"}
		url, token := n.URL(), n.Token("late")
		a := testenv.Login(t, url, enc, n.Token(s.user("ann")), "d")
		n.Signal(syscall.SIGTERM)
		f := a.Take("drain", func(f *clientv1.ServerFrame) bool { return f.GetDrain() != nil })
		if d := f.GetDrain(); d.CloseAfterMs == 0 || d.CloseAfterMs < d.ReconnectAfterMs {
			t.Errorf("drain says %v", d)
		}
		a.MustSend(testenv.ToUser("d-bob", "still works"))
		_, res, err := testenv.TryDial(t, url, enc, testenv.DialOptions{Header: http.Header{"Authorization": {"Bearer " + token}}})
		if err == nil {
			t.Error("a draining node takes a new connection")
		} else if res != nil && (res.StatusCode != http.StatusServiceUnavailable || res.Header.Get("Retry-After") == "") {
			t.Errorf("a draining node answers %d", res.StatusCode)
		}
		wantClosed(t, a, 4000, "drain", 20*time.Second)
		if code := n.Wait(40 * time.Second); code != 0 {
			t.Errorf("the node ended with %d", code)
		}
	})
}

// Statement 39.
func TestRestoredStoreIsNoticed(t *testing.T) {
	t.Parallel()
	each(t, nil, func(t *testing.T, enc protocol.Encoding) {
		t.Parallel()
		n := testenv.StartSQLite(t)
		s := newSuite(n, enc)
		a := s.login(t, "ann", "d")
		a.MustSend(testenv.ToUser(s.user("bob"), "kept"))
		before := a.Welcome.DataEpoch
		if n.Stop() != 0 {
			t.Fatal("no clean stop")
		}
		backup := t.TempDir()
		copyDatabase(t, n.StoreDir(), backup)
		n.Start()
		a = s.login(t, "ann", "d")
		if a.Welcome.DataEpoch != before {
			t.Error("a restart changed the data_epoch")
		}
		a.MustSend(testenv.ToUser(s.user("bob"), "lost by the restore"))
		token := a.Sync(&clientv1.Sync{}).SyncToken
		n.Stop()
		copyDatabase(t, backup, n.StoreDir())
		n.Start()
		a = s.login(t, "ann", "d")
		if a.Welcome.DataEpoch == before {
			t.Error("a restored store has the same data_epoch")
		}
		r := a.Sync(&clientv1.Sync{SyncToken: token})
		if !r.Full || r.DataEpoch != a.Welcome.DataEpoch || len(r.Conversations) == 0 {
			t.Errorf("sync with the old token: %v", r)
		}
	})
}

// copyDatabase copies the SQLite files, but nothing else that the store keeps.
func copyDatabase(t *testing.T, from, to string) {
	t.Helper()
	for _, stale := range []string{"imd.db-wal", "imd.db-shm"} {
		_ = os.Remove(filepath.Join(to, stale))
	}
	raw, err := os.ReadFile(filepath.Join(from, "imd.db"))
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(to, "imd.db"), raw, 0o600); err != nil {
		t.Fatal(err)
	}
}

// Statement 40.
func TestRates(t *testing.T) {
	t.Parallel()
	n := testenv.Start(t)
	both(t, n, nil, func(t *testing.T, s *suite) {
		flood, calm := s.login(t, "flo", "d"), s.login(t, "ann", "d")
		stop := make(chan struct{})
		go func() {
			for {
				select {
				case <-stop:
					return
				default:
				}
				var batch []*clientv1.ClientFrame
				for range 64 {
					h := historyFrame(&clientv1.History{ConversationId: "g_none", Limit: 1})
					h.Id = 7
					batch = append(batch, h)
				}
				if flood.TryWrite(batch...) != nil {
					return
				}
			}
		}()
		defer close(stop)
		limited := flood.Take("rate_limited", func(f *clientv1.ServerFrame) bool { return f.GetError().GetReason() == "rate_limited" })
		if limited.GetError().RetryAfterMs == 0 || !limited.GetError().Retryable {
			t.Errorf("refused with %v", limited)
		}
		slowest, clock := time.Duration(0), testenv.NewClock(t)
		for range 40 {
			began := clock.Now()
			calm.MustSend(testenv.ToUser(s.user("bob"), "x"))
			slowest = max(slowest, clock.Since(began))
			time.Sleep(50 * time.Millisecond)
		}
		if slowest > time.Second {
			t.Errorf("another user waited %v", slowest)
		}
		code, _ := flood.WaitClosed(20 * time.Second)
		if code == -1 { // a write into what was closed already cuts off what was not read yet
			return
		}
		if code != 4004 {
			t.Errorf("closed with %d", code)
		}
		if f := flood.TakeWithin(0, func(f *clientv1.ServerFrame) bool { return f.GetBye() != nil }); f.GetBye().GetReason() != "rate_limited" {
			t.Errorf("bye says %v", f)
		}
	})
}

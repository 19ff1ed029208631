package gateway

import (
	"fmt"
	"github.com/imdhq/imd/pkg/im"
	"testing"
	"time"

	"go.uber.org/zap"

	"github.com/imdhq/imd/pkg/settings"
	"github.com/imdhq/imd/pkg/testenv"
	"github.com/imdhq/imd/sdk/go/gen/clientv1"
	"github.com/imdhq/imd/sdk/go/protocol"
)

// hot is settings without a control plane.
type hot struct {
	*settings.Live
	t   testing.TB
	rev int64
}

func newHot(t testing.TB) *hot {
	t.Helper()
	reg, err := settings.NewRegistry([]string{"gateway"}, declared)
	if err != nil {
		t.Fatal(err)
	}
	h := &hot{Live: settings.NewLive(reg, settings.Identity{Node: string(testNode), Roles: []string{"gateway"}}, zap.NewNop()), t: t, rev: 1}
	h.Feed(settings.Read{Revision: 1})
	return h
}

// put replaces the documents of all sections that the keys belong to. Values
// that go too far in one change come as if they had been missed.
func (h *hot) put(pairs ...string) {
	h.t.Helper()
	h.rev++
	docs := map[string]settings.Document{}
	for i := 0; i < len(pairs); i += 2 {
		d, err := h.Registry().Find(pairs[i])
		if err != nil {
			h.t.Fatal(err)
		}
		if _, ok := docs[d.Section()]; !ok {
			docs[d.Section()] = settings.Document{All: map[string]string{}}
		}
		docs[d.Section()].All[pairs[i]] = pairs[i+1]
	}
	read := settings.Read{Revision: h.rev}
	for section, d := range docs {
		read.Records = append(read.Records, settings.Record{Section: section, Version: h.rev, Mod: h.rev, Raw: d.Encode()})
	}
	h.Feed(read)
	if rev, reason := h.State().Refused(); rev != 0 {
		h.t.Fatal(reason)
	}
}

// beginHot is begin with settings.
func beginHot(t testing.TB, edit ...func(*Config)) (*world, *hot) {
	h := newHot(t)
	return beginTuned(t, func(g *Gateway) {
		g.tuned = settings.Derive(h.Live, func(now *settings.Snapshot) tuning { return tune(g.cfg, now) })
	}, edit...), h
}

// Without settings the configuration holds; every key of both has the same
// default and range there and here.
func TestDeclarationsAgreeWithTheConfiguration(t *testing.T) {
	h := newHot(t)
	if got, want := tune(DefaultConfig(), h.Current()), tune(DefaultConfig(), nil); got != want {
		t.Errorf("%+v, want %+v", got, want)
	}
	for _, d := range h.Registry().All() {
		if _, err := d.Canonical(d.Default); err != nil {
			t.Errorf("%s: %v", d.Key, err)
		}
	}
	cfg := DefaultConfig()
	cfg.PingInterval, cfg.Login.Mode, cfg.Limits.UserRate = 40*time.Second, "kick_old", 7
	got := tune(cfg, h.Current())
	if got.pingInterval != 40*time.Second || got.login.of(im.Phone).Mode != policyModes["kick_old"] || got.rates.user.PerSecond != 7 {
		t.Errorf("%+v", got)
	}
	h.put("gateway.ping_interval", "30s", "gateway.limits.user_rate", "100", "rate.factor", "0.5")
	got = tune(cfg, h.Current())
	if got.pingInterval != 30*time.Second || got.rates.user.PerSecond != 50 || got.rates.user.Burst != cfg.Limits.UserBurst/2 {
		t.Errorf("%+v", got)
	}
	if got.rates.address.PerSecond != cfg.Limits.AddressRate {
		t.Error("the factor holds for addresses")
	}
}

// A connection takes over a new heartbeat with its next ping; new ones have it
// at once.
func TestConnectionsTakeOverTheHeartbeat(t *testing.T) {
	t.Parallel()
	w, h := beginHot(t, func(c *Config) { c.PingInterval, c.PongTimeout = time.Second, 900*time.Millisecond })
	c := w.session(t, protocol.Proto, "ann", "d")
	h.put("gateway.ping_interval", "600ms", "gateway.pong_timeout", "500ms") // an answer must have time to arrive on a slow machine
	eventually(t, "pings", func() bool { return c.Pings() >= 3 })
	dead := testenv.Dial(t, w.base(), protocol.Proto)
	dead.Silence()
	dead.Write(helloWith(w.token("dead")))
	if iv := dead.Answer(7).GetWelcome().GetPingIntervalMs(); iv != 600 {
		t.Errorf("welcome says %d ms", iv)
	}
	wantBye(t, dead, "idle")
	if c.Closed() {
		t.Error("the live one was closed")
	}
}

func TestThePolicyHoldsForLoginsFromThenOn(t *testing.T) {
	t.Parallel()
	w, h := beginHot(t)
	a, b := w.session(t, protocol.JSON, "u", "d1", login("l1")), w.session(t, protocol.JSON, "u", "d2", login("l2"))
	h.put("gateway.login.mode", "kick_old")
	if a.Closed() || b.Closed() {
		t.Error("the change closed a session")
	}
	w.session(t, protocol.JSON, "u", "d3", login("l3"))
	wantBye(t, a, "replaced")
	wantBye(t, b, "replaced")
}

func TestTheFactorScalesSends(t *testing.T) {
	t.Parallel()
	w, h := beginHot(t, func(c *Config) { c.Limits.UserRate, c.Limits.UserBurst = 0.01, 10 })
	h.put("rate.factor", "0.5")
	c := w.session(t, protocol.Proto, "ann", "d")
	passed := func(from int) (n int) {
		for i := range 12 {
			if a := c.Send(numbered(from+i, fmt.Sprint("p", from+i))); a.Status == clientv1.Ack_ACK_OK {
				n++
			}
		}
		return n
	}
	if n := passed(0); n != 5 {
		t.Errorf("%d of 12 passed, want 5", n)
	}
	h.put("rate.factor", "2")
	if n := passed(100); n < 12 {
		t.Errorf("%d of 12 passed, want all", n)
	}
}

// 200 changes a second while people talk: nobody is refused or cut off, and
// every reader sees whole revisions.
func TestChangesUnderLoad(t *testing.T) {
	t.Parallel()
	w, h := beginHot(t)
	quit := make(chan struct{})
	flood := make(chan struct{})
	go func() {
		defer close(flood)
		tick := time.NewTicker(5 * time.Millisecond)
		defer tick.Stop()
		for i := 0; ; i++ {
			select {
			case <-quit:
				return
			case <-tick.C:
			}
			n := fmt.Sprint(1000 + i)
			h.put("gateway.limits.user_rate", n, "gateway.limits.user_burst", n, "gateway.ping_interval", fmt.Sprint(20+i%10, "s"),
				"gateway.login.multi", fmt.Sprint(10+i%5), "gateway.redeliver_count", fmt.Sprint(1+i%9), "rate.factor", fmt.Sprint(1+i%3))
		}
	}()
	defer func() { close(quit); <-flood }()
	both(t, func(t *testing.T, enc protocol.Encoding) {
		ann := w.session(t, enc, "ann-"+enc.String(), "d")
		bob := w.session(t, enc, "bob-"+enc.String(), "d")
		for i := range 300 {
			ann.MustSend(numbered(i, "bob-"+enc.String()))
			if i%30 == 0 {
				w.session(t, enc, fmt.Sprintf("new-%v-%d", enc, i), "d")
			}
			now := w.g.tuned.Get()
			if r := now.rates.user; int(r.PerSecond) != r.Burst && h.Current().Revision > 1 && r.Burst != 600 {
				t.Fatalf("half of a change: %+v", r)
			}
		}
		if ann.Closed() || bob.Closed() {
			t.Error("a connection was closed")
		}
	})
}

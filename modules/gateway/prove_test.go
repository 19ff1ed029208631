package gateway

import (
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/imdhq/imd/pkg/im"
	"github.com/imdhq/imd/pkg/store"
	"github.com/imdhq/imd/pkg/testenv"
	"github.com/imdhq/imd/sdk/go/gen/clientv1"
)

// beginStrict is two gateways under session.strict that find lost kicks out by
// nothing but the answers of state.
func beginStrict(t *testing.T, edit ...func(*Config)) *pair {
	p := beginPairWith(t, time.Hour, edit...)
	p.hot.put("session.strict", "true")
	p.deaf.Store(true)
	return p
}

// answerTo sends a text and returns what is said of it.
func answerTo(c *testenv.Client, id uint32, uuid, text string) *clientv1.SendAck {
	write(c, id, uuid, text)
	return c.Take("an ack", func(f *clientv1.ServerFrame) bool { return f.Id == id && f.GetSendAck() != nil }).GetSendAck()
}

func write(c *testenv.Client, id uint32, uuid, text string) {
	c.Write(&clientv1.ClientFrame{Id: id, Kind: &clientv1.ClientFrame_Send{Send: &clientv1.Send{
		To: &clientv1.Send_ToUser{ToUser: "bob"}, ClientMessageId: uuid, Content: testenv.Text(text)}}})
}

// Whoever was displaced stores nothing, although no kick has come, and hears of
// it with its first send; the newer session sends the same message.
func TestADisplacedSessionStoresNothing(t *testing.T) {
	p := beginStrict(t, func(c *Config) { c.Login.Mode = "kick_old" })
	for user, newer := range map[string][2]string{"same": {"l-same", "d"}, "other": {"l2", "d2"}} {
		old, _ := p.login(0, user, "l-"+user, "d", im.Phone)
		if a := answerTo(old, 20, uuidOf(1), "before"); a.Status != clientv1.Ack_ACK_OK {
			t.Fatalf("%s, before: %v", user, a)
		}
		next, reason := p.login(1, user, newer[0], newer[1], im.Phone)
		if reason != "" {
			t.Fatal(reason)
		}
		write(old, 21, uuidOf(2), "late")
		wantBye(t, old, map[string]string{"same": "superseded", "other": "replaced"}[user])
		if a := answerTo(next, 22, uuidOf(2), "late"); a.Status != clientv1.Ack_ACK_OK || a.Duplicate {
			t.Errorf("%s, from the newer session: %v", user, a)
		}
	}
	if got := testutil.ToFloat64(p.g.m.outranked); got != 2 {
		t.Errorf("%v sessions were outranked", got)
	}
	// Without the setting nothing is compared.
	p.hot.put("session.strict", "false")
	old, _ := p.login(0, "loose", "l", "d", im.Phone)
	p.login(1, "loose", "l", "d", im.Phone)
	if a := answerTo(old, 23, uuidOf(3), "late"); a.Status != clientv1.Ack_ACK_OK {
		t.Errorf("without the setting: %v", a)
	}
}

// A newcomer whose rank cannot be noted is told to come back, and so are those
// whom it has displaced already.
func TestARankThatCannotBeNoted(t *testing.T) {
	p := beginStrict(t, func(c *Config) { c.Login.Mode = "kick_old" })
	p.deaf.Store(false)
	old, _ := p.login(0, "u", "l1", "d1", im.Phone)
	p.state.set(func(s *fakeState) { s.onProve = func() error { return errAwayTest } })
	if _, reason := p.login(1, "u", "l2", "d2", im.Phone); reason != "busy" {
		t.Errorf("the newcomer: %q", reason)
	}
	wantBye(t, old, "busy")
	p.state.set(func(s *fakeState) { s.onProve = nil })
	if _, reason := p.login(0, "u", "l1", "d1", im.Phone); reason != "" {
		t.Errorf("the displaced one again: %q", reason)
	}
}

var errAwayTest = im.Errorf(clientv1.Reason_REASON_UNAVAILABLE, "test", "away")

// routeOf is the one route of a user.
func (p *pair) routeOf(user im.UserID) store.Route {
	p.t.Helper()
	found, err := p.store.now.Load().Lookup(p.t.Context(), []im.UserID{user})
	if err != nil || len(found) != 1 {
		p.t.Fatalf("routes of %s: %v, %v", user, found, err)
	}
	return found[0]
}

// The message store may know a higher rank than a claim has got. If the route
// store fell behind, the session claims above it; if a newer session was faster, it
// ends.
func TestARankBelowWhatIsNoted(t *testing.T) {
	p := beginStrict(t)
	ahead := uint64(time.Now().Add(time.Hour).UnixMicro())
	p.state.set(func(s *fakeState) { s.notes["u/l/d"] = note{ahead, "superseded"} })
	c, reason := p.login(0, "u", "l", "d", im.Phone)
	if reason != "" {
		t.Fatal(reason)
	}
	if r := p.routeOf("u"); r.Epoch != ahead+1 {
		t.Errorf("epoch %d, want %d", r.Epoch, ahead+1)
	}
	if a := answerTo(c, 20, uuidOf(1), "x"); a.Status != clientv1.Ack_ACK_OK {
		t.Errorf("its send: %v", a)
	}
	newer := make(chan string, 1)
	p.state.set(func(s *fakeState) {
		s.onProve = func() error {
			p.state.set(func(s *fakeState) { s.onProve = nil })
			_, reason := p.login(1, "v", "l", "d", im.Phone)
			newer <- reason
			return nil
		}
	})
	if _, reason := p.login(0, "v", "l", "d", im.Phone); reason != "superseded" {
		t.Errorf("the slower one: %q", reason)
	}
	if reason := <-newer; reason != "" {
		t.Errorf("the faster one: %q", reason)
	}
}

// While the route store is away the message store gives the ranks, and later
// claims keep them.
func TestRanksWithoutARouteStore(t *testing.T) {
	p := beginStrict(t, func(c *Config) { c.Login.Mode = "kick_old" })
	p.away[0].Store(true)
	ahead := uint64(time.Now().Add(time.Hour).UnixMicro())
	p.state.set(func(s *fakeState) { s.notes["u/l/d"] = note{ahead, "superseded"} })
	old, _ := p.login(0, "u", "l", "d", im.Phone)
	c, _ := p.login(0, "u", "l", "d", im.Phone)
	write(old, 20, uuidOf(1), "x")
	wantBye(t, old, "superseded")
	if a := answerTo(c, 21, uuidOf(2), "x"); a.Status != clientv1.Ack_ACK_OK {
		t.Errorf("its send: %v", a)
	}
	p.away[0].Store(false)
	eventually(t, "the route is claimed", func() bool {
		found, err := p.store.now.Load().Lookup(t.Context(), []im.UserID{"u"})
		return err == nil && len(found) == 1 && found[0].Epoch == ahead+2
	})
}

// A late claim that replaces another login says so to the message store.
func TestALateClaimIsProved(t *testing.T) {
	p := beginStrict(t, func(c *Config) { c.Login.Mode = "kick_old" })
	p.away[0].Store(true)
	q, _ := p.login(1, "w", "l1", "d1", im.Phone)
	late, _ := p.login(0, "w", "l2", "d2", im.Phone)
	p.away[0].Store(false)
	eventually(t, "the other login is noted", func() bool {
		p.state.mu.Lock()
		defer p.state.mu.Unlock()
		return p.state.notes["w/l1/d1"].why == "replaced"
	})
	write(q, 22, uuidOf(3), "x")
	wantBye(t, q, "replaced")
	if late.Closed() {
		t.Error("the newer login was closed")
	}
}

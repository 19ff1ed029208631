package scheduler

import (
	"errors"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"

	"github.com/imdhq/imd/pkg/im"
	"github.com/imdhq/imd/pkg/store"
	"github.com/imdhq/imd/sdk/go/gen/clientv1"
)

func (c *counting) announce(version int64, texts ...string) {
	c.set(func(c *counting) {
		c.announced.version, c.announced.list = version, nil
		for i, text := range texts {
			c.announced.list = append(c.announced.list, store.Announcement{Seq: int64(i + 1), Text: text})
		}
	})
}

func (g *fakeGateway) heard(t *testing.T, want ...string) {
	t.Helper()
	time.Sleep(1500 * time.Millisecond)
	synctest.Wait()
	g.mu.Lock()
	defer g.mu.Unlock()
	if !slices.Equal(g.proclaimed, want) {
		t.Errorf("heard %q, want %q", g.proclaimed, want)
	}
	g.proclaimed = nil
}

// Every gateway is handed what is in force once for each change, whether it was
// there before, comes later or was away for a while; each new leader hands it over
// anew, and one that a gateway refuses stands down.
func TestAllGatewaysHearAnnouncements(t *testing.T) {
	g1, g2 := newGateway(), newGateway()
	c := &counting{leads: 1, gateways: map[im.NodeID]*fakeGateway{"g1": g1, "g2": g2}}
	c.nodes(1, "g1")
	c.announce(1, "a")
	running(t, c, func(s *Scheduler, e *sole) {
		g1.heard(t, "1/1 a")
		g1.heard(t)
		c.nodes(2, "g1", "g2")
		g2.heard(t, "1/1 a")
		g2.fail(errors.New("away"))
		c.announce(2, "a", "b")
		g1.heard(t, "1/2 a b")
		if n := testutil.ToFloat64(s.unheard); n < 2 || n > 4 {
			t.Errorf("%v failures are counted", n)
		}
		g2.fail(nil)
		g2.heard(t, "1/2 a b")
		c.set(func(c *counting) { c.announced.gone = []store.Announcement{{Seq: 1, Withdrawal: 3}} })
		c.announce(3, "b")
		g1.heard(t, "1/3 b -1@3")
		g2.heard(t, "1/3 b -1@3")
		c.set(func(c *counting) { c.announced.gone = nil })
		g1.fail(im.Errorf(clientv1.Reason_REASON_FORBIDDEN, "gateway", "another node leads"))
		c.announce(4)
		time.Sleep(time.Second)
		g1.fail(nil)
		g2.mu.Lock()
		g2.proclaimed = nil
		g2.mu.Unlock()
		time.Sleep(3 * time.Second)
		synctest.Wait()
		if e.terms < 2 {
			t.Error("a leader that a gateway refuses goes on")
		}
		g1.mu.Lock()
		defer g1.mu.Unlock()
		if len(g1.proclaimed) == 0 || g1.proclaimed[len(g1.proclaimed)-1][0] == '1' {
			t.Errorf("the next leader: %q", g1.proclaimed)
		}
	})
}

// Lists between which something changed are told nobody: they could have the
// withdrawal that came last and not the announcement before it.
func TestAnnouncementsThatChangeWhileTheyAreRead(t *testing.T) {
	g := newGateway()
	c := &counting{leads: 1, gateways: map[im.NodeID]*fakeGateway{"g": g}}
	c.nodes(1, "g")
	c.announce(1, "a")
	c.set(func(c *counting) {
		c.announced.between = func() {
			c.announced.version = 3
			c.announced.list = []store.Announcement{{Seq: 2, Text: "b"}}
			c.announced.gone = []store.Announcement{{Seq: 1, Withdrawal: 3}}
		}
	})
	running(t, c, func(*Scheduler, *sole) { g.heard(t, "1/3 b -1@3") })
}

// Gateways that take no announcements are counted, and warned of once a minute.
func TestDeafGatewaysAreWarnedOf(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		core, logs := observer.New(zap.WarnLevel)
		s := New(Deps{Reg: prometheus.NewRegistry(), Log: zap.New(core)})
		p := &proclaimer{Scheduler: s}
		for range 241 {
			p.deaf("g1", errors.New("away"))
			time.Sleep(announceEvery)
		}
		if n, warned := testutil.ToFloat64(s.unheard), logs.Len(); n != 241 || warned != 3 {
			t.Errorf("%v failures in two minutes, %d warnings", n, warned)
		}
	})
}

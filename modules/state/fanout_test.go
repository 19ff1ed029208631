package state

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"go.uber.org/zap"

	"github.com/imdhq/imd/pkg/im"
	v1 "github.com/imdhq/imd/proto/gen/internalv1"
	"github.com/imdhq/imd/sdk/go/gen/clientv1"
)

func TestFanoutTriesAgainAndThenLetsGo(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := &recorder{err: im.Errorf(clientv1.Reason_REASON_BUSY, "push", "")}
		m := newMetrics(prometheus.NewRegistry(), func() bool { return false })
		f := newFanout(r, nil, zap.NewNop(), m)
		go f.run(t.Context())
		item := func(n int64) fanoutItem {
			return fanoutItem{item: &v1.FanoutItem{What: &v1.FanoutItem_Head{Head: &clientv1.Head{Seq: n}}}, bytes: 10}
		}
		f.add(item(1))
		time.Sleep(100 * time.Millisecond)
		f.add(item(2))
		r.mu.Lock()
		r.err = nil // back before the second try
		r.mu.Unlock()
		time.Sleep(2 * time.Second)
		items := r.take()
		if len(items) != 2 || items[0].GetHead().Seq != 1 || r.calls != 3 {
			t.Fatalf("%d calls, items %v", r.calls, items)
		}
		synctest.Wait()
		r.err, r.calls = im.Errorf(clientv1.Reason_REASON_UNAVAILABLE, "push", ""), 0
		f.add(item(3), item(4))
		time.Sleep(5 * time.Second)
		synctest.Wait()
		if r.calls != 3 || !f.idle() {
			t.Errorf("%d calls, idle %v", r.calls, f.idle())
		}
		if got := testutil.ToFloat64(m.fanoutDropped.WithLabelValues("push")); got != 2 {
			t.Errorf("%v dropped", got)
		}
	})
}

// pushNodes is push nodes that can be held up, and what each was handed.
type pushNodes struct {
	home map[string]im.NodeID // by conversation
	mu   sync.Mutex
	held map[im.NodeID]chan struct{}
	got  []string // "node conv seq"
	most int      // calls at once
	now  int
}

func (p *pushNodes) Fanout(_ context.Context, r *v1.FanoutRequest) (*v1.FanoutResponse, error) {
	p.mu.Lock()
	node := p.home[r.Items[0].ConversationId]
	hold := p.held[node]
	p.now++
	p.most = max(p.most, p.now)
	p.mu.Unlock()
	if hold != nil {
		<-hold
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.now--
	for _, it := range r.Items {
		p.got = append(p.got, fmt.Sprintf("%s %s %d", node, it.ConversationId, it.GetHead().GetSeq()))
	}
	return &v1.FanoutResponse{}, nil
}

func (p *pushNodes) move(conv string, node im.NodeID) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.home[conv] = node
}

// A push node that does not answer holds up its own conversations only, and a
// conversation that moves keeps its order.
func TestFanoutGoesToEachNodeByItself(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		hold := make(chan struct{})
		p := &pushNodes{home: map[string]im.NodeID{"a": "n1", "b": "n2"}, held: map[im.NodeID]chan struct{}{"n1": hold}}
		f := newFanout(p, func(conv string) im.NodeID { p.mu.Lock(); defer p.mu.Unlock(); return p.home[conv] }, zap.NewNop(), newMetrics(prometheus.NewRegistry(), func() bool { return false }))
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan struct{})
		go func() { defer close(ended); f.run(ctx) }()
		item := func(conv string, seq int64) fanoutItem {
			return fanoutItem{bytes: 1, item: &v1.FanoutItem{ConversationId: conv, What: &v1.FanoutItem_Head{Head: &clientv1.Head{Seq: seq}}}}
		}
		f.add(item("a", 1), item("b", 1))
		synctest.Wait()
		f.add(item("b", 2))
		synctest.Wait()
		p.move("a", "n2") // while its first item is on its way
		f.add(item("a", 2), item("b", 3))
		synctest.Wait()
		if want := []string{"n2 b 1", "n2 b 2", "n2 b 3"}; !slices.Equal(p.got, want) {
			t.Errorf("with one node held up: %q", p.got)
		}
		if f.idle() {
			t.Error("idle with a call on its way")
		}
		close(hold)
		synctest.Wait()
		if want := []string{"n1 a 1", "n2 a 2"}; len(p.got) != 5 || !strings.HasSuffix(p.got[3], " a 1") || !strings.HasSuffix(p.got[4], " a 2") {
			t.Errorf("afterwards %q, want %q", p.got[3:], want)
		}
		if !f.idle() || len(f.piles) != 0 || p.most != 2 {
			t.Errorf("idle %v, %d piles, %d calls at once", f.idle(), len(f.piles), p.most)
		}
		cancel()
		<-ended
	})
}

func TestFanoutQueueIsBounded(t *testing.T) {
	m := newMetrics(prometheus.NewRegistry(), func() bool { return false })
	f := newFanout(&recorder{}, nil, zap.NewNop(), m)
	for range fanoutQueueItems + 5 {
		f.add(fanoutItem{item: &v1.FanoutItem{}, bytes: 1})
	}
	if got := testutil.ToFloat64(m.fanoutDropped.WithLabelValues("full")); got != 5 {
		t.Errorf("%v dropped", got)
	}
	if got := len(f.take(f.piles[""])); got != fanoutCallItems {
		t.Errorf("%d items in a call", got)
	}
	f = newFanout(&recorder{}, nil, zap.NewNop(), m)
	f.add(fanoutItem{item: &v1.FanoutItem{}, bytes: fanoutQueueBytes}, fanoutItem{item: &v1.FanoutItem{}, bytes: 1})
	if got := len(f.take(f.piles[""])); got != 1 {
		t.Errorf("%d items", got)
	}
}

func TestCacheForgetsByTimeAndNumber(t *testing.T) {
	c := newCache[int, string](time.Second, 3)
	now := time.UnixMilli(0)
	for i := range 5 {
		c.put(i, "v", now)
	}
	for i, want := range []bool{false, false, true, true, true} {
		if _, ok := c.get(i, now); ok != want {
			t.Errorf("%d: %v, want %v", i, ok, want)
		}
	}
	if _, ok := c.get(4, now.Add(time.Second)); ok {
		t.Error("too old")
	}
	for i := range 100 {
		c.put(7, "w", now.Add(time.Duration(i)))
	}
	if len(c.order) > 7 || len(c.all) > 3 {
		t.Errorf("%d notes of %d values", len(c.order), len(c.all))
	}
	if v, ok := c.get(7, now); !ok || v != "w" {
		t.Error("the value put last is gone")
	}
	c.forget(7)
	c.drop(func(k int) bool { return k == 4 })
	if _, ok := c.get(7, now); ok {
		t.Error("not forgotten")
	}
	if _, ok := c.get(4, now); ok {
		t.Error("not dropped")
	}
}

package state

import (
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
		f := newFanout(r, zap.NewNop(), m)
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

func TestFanoutQueueIsBounded(t *testing.T) {
	m := newMetrics(prometheus.NewRegistry(), func() bool { return false })
	f := newFanout(&recorder{}, zap.NewNop(), m)
	for range fanoutQueueItems + 5 {
		f.add(fanoutItem{item: &v1.FanoutItem{}, bytes: 1})
	}
	if got := testutil.ToFloat64(m.fanoutDropped.WithLabelValues("full")); got != 5 {
		t.Errorf("%v dropped", got)
	}
	if got := len(f.take()); got != fanoutCallItems {
		t.Errorf("%d items in a call", got)
	}
	f = newFanout(&recorder{}, zap.NewNop(), m)
	f.add(fanoutItem{item: &v1.FanoutItem{}, bytes: fanoutQueueBytes}, fanoutItem{item: &v1.FanoutItem{}, bytes: 1})
	if got := len(f.take()); got != 1 {
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

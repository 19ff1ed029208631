package gateway

import (
	"context"
	"fmt"
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

// hearer is a gateway that takes its time, and may be away.
type hearer struct {
	nobody
	takes time.Duration
	away  time.Time // until when

	mu    sync.Mutex
	calls []*v1.KickRequest
}

func (h *hearer) Kick(_ context.Context, r *v1.KickRequest) (*v1.KickResponse, error) {
	time.Sleep(h.takes)
	h.mu.Lock()
	defer h.mu.Unlock()
	h.calls = append(h.calls, r)
	if time.Now().Before(h.away) {
		return nil, im.Errorf(clientv1.Reason_REASON_UNAVAILABLE, "test", "away")
	}
	return &v1.KickResponse{}, nil
}

func newKicks(t *testing.T, h *hearer) *kicks {
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	t.Cleanup(func() { wg.Wait(); cancel() })
	return &kicks{peer: func(im.NodeID) peerClient { return h }, m: newMetrics(prometheus.NewRegistry()), log: zap.NewNop(), ctx: ctx,
		run: func(f func()) bool { wg.Go(f); return true }, closing: func() bool { return false }}
}

// While a gateway is slow, what is to be told gathers and goes in few calls; nobody
// waits for it, and each session is told once with its reason.
func TestKicksGather(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := &hearer{takes: 100 * time.Millisecond}
		k := newKicks(t, h)
		began := time.Now()
		for i := range 2500 {
			k.add("n2", []string{"superseded", "replaced"}[i%2], []string{fmt.Sprint(i)})
		}
		if took := time.Since(began); took > 0 {
			t.Errorf("telling took %v", took)
		}
		time.Sleep(time.Minute)
		synctest.Wait()
		told := map[string]string{}
		for _, r := range h.calls {
			if len(r.SessionIds) > kickSessions {
				t.Errorf("%d sessions in a call", len(r.SessionIds))
			}
			for _, id := range r.SessionIds {
				if told[id] != "" {
					t.Errorf("%s was told twice", id)
				}
				told[id] = r.Reason
			}
		}
		if len(told) != 2500 || told["0"] != "superseded" || told["1"] != "replaced" || len(h.calls) > 6 || len(k.waiting) != 0 {
			t.Errorf("%d told in %d calls", len(told), len(h.calls))
		}
	})
}

// A gateway that comes back soon is told; one that does not is given up, and what
// cannot wait any more is counted.
func TestKicksAreTriedAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := &hearer{away: time.Now().Add(time.Second)}
		k := newKicks(t, h)
		k.add("n2", "superseded", []string{"a"})
		time.Sleep(time.Minute)
		synctest.Wait()
		if n := len(h.calls); n < 3 || testutil.ToFloat64(k.m.kicksLost) != 0 {
			t.Errorf("%d calls, %v lost", n, testutil.ToFloat64(k.m.kicksLost))
		}
		h.away = time.Now().Add(time.Hour)
		k.add("n2", "superseded", []string{"b", "c"})
		time.Sleep(time.Minute)
		synctest.Wait()
		if lost := testutil.ToFloat64(k.m.kicksLost); lost != 2 || len(k.waiting) != 0 {
			t.Errorf("%v lost", lost)
		}
		h.takes = time.Minute
		k.add("n2", "superseded", []string{"d"})
		synctest.Wait()
		k.add("n2", "superseded", make([]string, kicksWaiting))
		k.add("n2", "superseded", []string{"e"})
		if lost := testutil.ToFloat64(k.m.kicksLost); lost != 3 {
			t.Errorf("%v lost of what does not fit", lost)
		}
		k.run = func(func()) bool { return false }
		k.add("n3", "superseded", []string{"f"})
		if lost := testutil.ToFloat64(k.m.kicksLost); lost != 4 || len(k.waiting) != 1 {
			t.Errorf("%v lost at the end", lost)
		}
		h.mu.Lock()
		h.away = time.Time{}
		h.mu.Unlock()
	})
}

// Those who come first have their turn first; who waits for too long has none.
func TestTurns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		all := make(turns, 2)
		var mu sync.Mutex
		var order []int
		for i := range 6 {
			go func() {
				if all.take(t.Context(), 3500*time.Millisecond) {
					mu.Lock()
					order = append(order, i)
					mu.Unlock()
					time.Sleep(2 * time.Second)
					all.give()
				}
			}()
			time.Sleep(time.Millisecond)
		}
		time.Sleep(time.Minute)
		synctest.Wait()
		if fmt.Sprint(order) != "[0 1 2 3]" {
			t.Errorf("turns of %v", order)
		}
		all <- struct{}{}
		all <- struct{}{}
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		if all.take(ctx, time.Hour) {
			t.Error("one whose time was over had a turn")
		}
	})
}

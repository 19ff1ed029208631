package gateway

import (
	"context"
	"sync"
	"time"

	"go.uber.org/zap"

	"github.com/imdhq/imd/pkg/obs"
	v1 "github.com/imdhq/imd/proto/gen/internalv1"
)

const (
	// markPause is the shortest time between two calls.
	markPause = 100 * time.Millisecond
	// markBatch is how many positions one call carries.
	markBatch = 500
	// maxMarks is how many positions may wait.
	maxMarks = 20_000
	// maxSpans is how many separate stretches of one position may wait.
	maxSpans = 8
)

// mark names a member's position in a conversation.
type mark struct{ conv, user string }

// span is (after, seq].
type span struct{ after, seq int64 }

// markClient is what the collector asks of the state role.
type markClient interface {
	Mark(context.Context, *v1.MarkRequest) (*v1.MarkResponse, error)
}

// marks collects the acks of all connections and sends them on in batches. A
// batch that fails goes once more and is then dropped: newer acks say the same
// and more. Safe for concurrent use.
type marks struct {
	state  markClient
	m      *metrics
	log    *zap.Logger
	signal chan struct{} // holds one: something waits

	mu      sync.Mutex
	waiting map[mark][]span
}

func newMarks(state markClient, m *metrics, log *zap.Logger) *marks {
	return &marks{state: state, m: m, log: log, signal: make(chan struct{}, 1), waiting: map[mark][]span{}}
}

// add notes that a device of the member holds a stretch.
func (c *marks) add(k mark, s span) {
	c.mu.Lock()
	list, there := c.waiting[k]
	if !there && len(c.waiting) >= maxMarks {
		c.mu.Unlock()
		c.m.marksLost.Inc()
		return
	}
	c.waiting[k] = join(list, s)
	c.mu.Unlock()
	select {
	case c.signal <- struct{}{}:
	default:
	}
}

// join adds s to the stretches, as one with those that it touches. The oldest
// goes if there are too many.
func join(list []span, s span) []span {
	kept := list[:0]
	for _, o := range list {
		if o.after <= s.seq && s.after <= o.seq {
			s = span{min(o.after, s.after), max(o.seq, s.seq)}
			continue
		}
		kept = append(kept, o)
	}
	kept = append(kept, s)
	if len(kept) > maxSpans {
		kept = append(kept[:0], kept[1:]...)
	}
	return kept
}

// run sends what waits until ctx is done.
func (c *marks) run(ctx context.Context) {
	var again []*v1.Mark
	t := time.NewTimer(0)
	defer t.Stop()
	<-t.C
	for {
		select {
		case <-ctx.Done():
			return
		case <-c.signal:
		}
		t.Reset(markPause) // before the call: what comes meanwhile goes with it
		select {
		case <-ctx.Done():
			return
		case <-t.C:
		}
		again = c.flush(ctx, again)
		if len(again) > 0 {
			select {
			case c.signal <- struct{}{}:
			default:
			}
		}
	}
}

// flush sends what waits and what failed last time. It returns what failed for
// the first time.
func (c *marks) flush(ctx context.Context, again []*v1.Mark) (failed []*v1.Mark) {
	c.send(ctx, again, func(lost []*v1.Mark, err error) {
		c.m.marksLost.Add(float64(len(lost)))
		c.log.Warn("delivery acks did not reach state", zap.Int("marks", len(lost)), obs.Err(err))
	})
	c.send(ctx, c.take(), func(lost []*v1.Mark, _ error) { failed = append(failed, lost...) })
	return failed
}

func (c *marks) take() []*v1.Mark {
	c.mu.Lock()
	defer c.mu.Unlock()
	out := make([]*v1.Mark, 0, len(c.waiting))
	for k, list := range c.waiting {
		for _, s := range list {
			out = append(out, &v1.Mark{ConversationId: k.conv, UserId: k.user, AfterSeq: s.after, Seq: s.seq})
		}
	}
	c.waiting = map[mark][]span{}
	return out
}

func (c *marks) send(ctx context.Context, list []*v1.Mark, lost func([]*v1.Mark, error)) {
	for len(list) > 0 {
		n := min(len(list), markBatch)
		if _, err := c.state.Mark(ctx, &v1.MarkRequest{Marks: list[:n]}); err != nil {
			lost(list[:n], err)
		}
		list = list[n:]
	}
}

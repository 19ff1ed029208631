package scheduler

import (
	"context"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/imdhq/imd/pkg/im"
	"github.com/imdhq/imd/pkg/presence"
	"github.com/imdhq/imd/pkg/tally"
	v1 "github.com/imdhq/imd/proto/gen/internalv1"
	"github.com/imdhq/imd/sdk/go/gen/clientv1"
)

// far is a node that the leader asks.
type far struct {
	book *tally.Book

	mu    sync.Mutex
	stale bool
	asked int
}

func (f *far) tally(_ context.Context, r *v1.TallyRequest) ([]tally.Answer, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.asked++
	if f.stale {
		f.stale = false
		return nil, im.Errorf(clientv1.Reason_REASON_FORBIDDEN, "test", "another node leads")
	}
	f.book.Keep(r.Cluster)
	told := f.book.Tell()
	told.BootId = "b"
	if r.Cluster == nil {
		told.Cluster = f.book.Cluster()
	}
	return []tally.Answer{{Node: "n", Told: told}, {Node: "m", Silent: "unavailable"}}, nil
}

// A leader that follows begins with what was counted before, and one that was
// followed ends.
func TestWhatIsCountedOutlivesALeader(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &far{book: tally.New(time.Now)}
		f.book.Keep(&v1.Tally{Token: 0, Minutes: []*v1.TallyTotal{{Minute: time.Now().Unix()/60 - 2, Stored: 41}}})
		during(t, &counting{tally: f.tally}, func(s *Scheduler, e *sole) {
			s.showStats(presence.Stats{Users: 9, Followed: 1})
			f.book.Stored(3)
			time.Sleep(time.Second)
			synctest.Wait()
			if got := f.book.Cluster(); got.GetToken() != 1 || got.Minutes[0].Stored != 41 {
				t.Errorf("after the first round: %v", got)
			}
			time.Sleep(2 * tallyEvery)
			synctest.Wait()
			got := f.book.Cluster()
			if got.GetToken() != 1 || got.NodeId != "n" || len(got.Minutes) != 3 || got.Minutes[0].Stored != 41 || got.Minutes[2].Stored != 3 {
				t.Errorf("kept %v", got)
			}
			f.mu.Lock()
			f.stale = true
			f.mu.Unlock()
			time.Sleep(tallyEvery + 3*time.Second)
			synctest.Wait()
			f.mu.Lock()
			defer f.mu.Unlock()
			if e.terms != 2 || f.asked != 7 {
				t.Errorf("%d terms, asked %d times", e.terms, f.asked)
			}
		})
	})
}

// How many users are online is known when all gateways have told.
func TestUsersAreCountedWhenAllGatewaysHaveTold(t *testing.T) {
	running(t, &counting{}, func(s *Scheduler, _ *sole) {
		for _, tt := range []struct {
			st   presence.Stats
			want int64
		}{{presence.Stats{}, -1}, {presence.Stats{Users: 3, Followed: 1, Awaited: 1}, -1}, {presence.Stats{Users: 3, Followed: 2}, 3}} {
			s.showStats(tt.st)
			if got := s.online.Load(); (got == nil) != (tt.want < 0) || got != nil && *got != tt.want {
				t.Errorf("%+v: %v", tt.st, got)
			}
		}
	})
}

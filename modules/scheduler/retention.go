package scheduler

import (
	"context"
	"fmt"
	"time"

	"go.uber.org/zap"

	"github.com/imdhq/imd/pkg/control"
	"github.com/imdhq/imd/pkg/failpoint"
	"github.com/imdhq/imd/pkg/settings"
	"github.com/imdhq/imd/pkg/store"
)

const (
	// retainEvery is how often a little goes.
	retainEvery = time.Second
	// retainLooks bounds how many conversations are looked at in that time.
	retainLooks = 5000
	// retainRest is the pause between two walks through all conversations.
	retainRest = 10 * time.Minute
	// day is the unit of the settings: nobody loses a history by writing 30 for 30d.
	day = 24 * time.Hour
)

// What goes may change while a scheduler leads.
var (
	retentionDirect = settings.Int("retention.direct_days", 0, 0, 36500,
		"How long messages of direct conversations are kept; older ones are seen by nobody any more, and their content is removed for good. 0 = for ever.", settings.Unit("days"))
	retentionGroup = settings.Int("retention.group_days", 0, 0, 36500,
		"The same for messages of groups.", settings.Unit("days"))
	retentionPace = settings.Int("retention.pace", 1000, 10, 20000,
		"How many entries go at most a second, so that those who send do not notice.", settings.Unit("entries/s"))
)

// ageing is where a leader stands in its walks through all conversations. A new
// leader begins with the first one: what has gone does not go again.
type ageing struct {
	after int64
	rest  time.Time // nothing is looked at before it
	gone  int       // in this walk
	ages  [2]int    // settings that the walk was made with
}

// retains are the rounds of one term.
func (s *Scheduler) retains() round {
	w := &ageing{}
	return func(ctx context.Context, t control.Term) error { return s.retain(ctx, t, w) }
}

// retain lets go as much as one round may.
func (s *Scheduler) retain(ctx context.Context, t control.Term, w *ageing) error {
	now := s.current()
	ages := [2]int{retentionDirect.In(now), retentionGroup.In(now)}
	if ages != w.ages {
		*w = ageing{ages: ages}
	}
	at := time.Now()
	if ages == [2]int{} || at.Before(w.rest) {
		return nil
	}
	st, err := s.Store()
	if err != nil {
		return err
	}
	r := store.Retain{Direct: before(at, ages[0]), Group: before(at, ages[1])}
	for pace, looks := retentionPace.In(now), retainLooks; pace > 0 && looks > 0; {
		r.After, r.Looks, r.Entries = w.after, min(looks, store.MaxRetainLooks), min(pace, store.MaxRetain)
		failpoint.HitJob("retain")
		got, err := st.Retain(ctx, t.Proof(), r)
		if err != nil {
			return fmt.Errorf("let old messages go: %w", err)
		}
		s.retained.Add(float64(got.Entries))
		w.after, w.gone = got.Next, w.gone+got.Entries
		pace, looks = pace-got.Entries, looks-max(got.Looked, 1)
		if got.End {
			if w.gone > 0 {
				s.Log.Info("old messages have gone", zap.Int("entries", w.gone), zap.Int("direct_days", ages[0]), zap.Int("group_days", ages[1]))
			}
			*w = ageing{ages: ages, rest: at.Add(retainRest)}
			return nil
		}
	}
	return nil
}

// before is the time before which everything goes; zero = nothing does.
func before(now time.Time, days int) time.Time {
	if days == 0 {
		return time.Time{}
	}
	return now.Add(-time.Duration(days) * day)
}

package scheduler

import (
	"errors"
	"fmt"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"
	"go.uber.org/zap"

	"github.com/imdhq/imd/pkg/settings"
	"github.com/imdhq/imd/pkg/store"
)

// attic is a store of conversations with old entries.
type attic struct {
	due   []int // of each conversation
	calls []store.Retain
	err   error // of the next call
}

func (a *attic) retain(r store.Retain) (out store.Retained, err error) {
	if err, a.err = a.err, nil; err != nil {
		return out, err
	}
	a.calls = append(a.calls, r)
	out.Next = r.After
	for out.Looked < r.Looks && out.Next < int64(len(a.due)) {
		n := min(a.due[out.Next], r.Entries-out.Entries)
		a.due[out.Next] -= n
		out.Entries, out.Looked = out.Entries+n, out.Looked+1
		if out.Entries == r.Entries {
			return out, nil
		}
		out.Next++
	}
	out.End = out.Looked < r.Looks
	return out, nil
}

// keeping are settings in which only those of retention are set.
func keeping(t *testing.T, direct, group, pace int) settings.Source {
	t.Helper()
	reg, err := settings.NewRegistry([]string{"scheduler"}, declared)
	if err != nil {
		t.Fatal(err)
	}
	l := settings.NewLive(reg, settings.Identity{Node: "n"}, zap.NewNop())
	l.Feed(settings.Read{Revision: 2, Records: []settings.Record{{Section: "retention", Version: 1, Mod: 2, Raw: fmt.Appendf(nil,
		`{"all":{"retention.direct_days":"%d","retention.group_days":"%d","retention.pace":"%d"}}`, direct, group, pace)}}})
	return l
}

// Nothing goes unless somebody wants it; then no more a second than is allowed,
// in the end all of it, and then there is a rest.
func TestOldMessagesGo(t *testing.T) {
	due := []int{700, 0, 3, 0}
	c := &counting{attic: attic{due: due}}
	asked := func() (calls []store.Retain) {
		c.set(func(c *counting) { calls = slices.Clone(c.attic.calls) })
		return calls
	}
	synctest.Test(t, func(t *testing.T) {
		during(t, c, func(s *Scheduler, _ *sole) {
			time.Sleep(time.Hour)
			synctest.Wait()
			if calls := asked(); len(calls) != 0 {
				t.Errorf("without a setting the store is asked %+v", calls)
			}
		})
	})
	synctest.Test(t, func(t *testing.T) {
		c = &counting{attic: attic{due: due}, settings: keeping(t, 0, 30, 300)}
		during(t, c, func(s *Scheduler, _ *sole) {
			time.Sleep(500 * time.Millisecond)
			synctest.Wait()
			if got := testutil.ToFloat64(s.retained); got != 300 {
				t.Errorf("%v entries went at once, want 300", got)
			}
			if r := asked()[0]; !r.Direct.IsZero() || time.Since(r.Group).Round(time.Hour) != 30*day || r.Entries != store.MaxRetain || r.Looks != store.MaxRetainLooks {
				t.Errorf("the store is asked %+v", r)
			}
			c.set(func(c *counting) { c.attic.err = errors.New("away") })
			time.Sleep(5 * time.Second)
			synctest.Wait()
			if got := testutil.ToFloat64(s.retained); got != 703 {
				t.Errorf("%v entries went, want 703", got)
			}
			before := len(asked())
			time.Sleep(retainRest - 10*time.Second)
			synctest.Wait()
			if n := len(asked()); n != before {
				t.Errorf("%d calls in the rest", n-before)
			}
			time.Sleep(20 * time.Second)
			synctest.Wait()
			if calls := asked()[before:]; len(calls) != 1 || calls[0].After != 0 {
				t.Errorf("after the rest: %+v", calls)
			}
		})
	})
}

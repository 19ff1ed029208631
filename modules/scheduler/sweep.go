package scheduler

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"time"

	"go.uber.org/zap"

	"github.com/imdhq/imd/pkg/control"
	"github.com/imdhq/imd/pkg/failpoint"
	"github.com/imdhq/imd/pkg/obs"
	"github.com/imdhq/imd/pkg/store"
)

const (
	// sweepEvery is how often the leader looks for gateways that ended.
	sweepEvery = 2 * time.Second
	// sweepAfter is how long a process must be missing before its routes go. A
	// process has routes only after it was registered.
	sweepAfter = 3 * time.Second
)

// absence says since when processes that have routes are missing in the view.
type absence map[store.Home]time.Time

// dead takes one look and returns the processes that have been missing for long
// enough. A view that may be old says nothing.
func (a absence) dead(homes []store.Home, v *control.View, now time.Time) []store.Home {
	if v.Revision == 0 || v.Stale {
		clear(a)
		return nil
	}
	missing := absence{}
	var out []store.Home
	for _, h := range homes {
		if n, ok := v.Node(h.Node); ok && n.BootID == h.Boot {
			continue
		}
		since, known := a[h]
		if !known {
			since = now
		}
		missing[h] = since
		if now.Sub(since) >= sweepAfter {
			out = append(out, h)
		}
	}
	clear(a)
	maps.Copy(a, missing)
	return out
}

// sweep is one look for gateways that ended without giving their routes back.
// Its error has been dealt with, except for ErrFenced.
func (s *Scheduler) sweep(ctx context.Context, t control.Term, a absence, now time.Time) error {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	routes, err := s.Routes()
	if err != nil {
		return nil // routes in the memory of another process end with it
	}
	homes, err := routes.Homes(ctx)
	if err != nil {
		s.runs.WithLabelValues("sweep", "failed").Inc()
		return err // its reader says so itself, and the routes end by themselves
	}
	dead := a.dead(homes, s.View(), now)
	if len(dead) == 0 {
		return nil
	}
	failpoint.Hit(failpoint.BeforeEffect)
	if err := s.leads(ctx, t); err != nil {
		s.runs.WithLabelValues("sweep", "fenced").Inc()
		s.Log.Warn("routes were not swept", obs.Err(err))
		return err
	}
	for _, h := range dead {
		n, err := routes.Sweep(ctx, h)
		s.swept.Add(float64(n))
		if err != nil {
			s.runs.WithLabelValues("sweep", "failed").Inc()
			s.Log.Warn("the routes of a gateway that ended stay until the next look", obs.Peer(string(h.Node)), obs.Err(err))
			continue
		}
		s.runs.WithLabelValues("sweep", "ok").Inc()
		s.Log.Info("the routes of a gateway that ended were removed", obs.Peer(string(h.Node)), zap.String("boot", h.Boot), zap.Int("routes", n))
	}
	return nil
}

// leads asks the message store whether this node still leads. The route store
// knows no fence; it needs none, as a process that is gone never comes back
// under its boot id, and one that is not gone puts its routes back.
func (s *Scheduler) leads(ctx context.Context, t control.Term) error {
	st, err := s.Store()
	if err != nil {
		return err
	}
	want := t.Proof()
	have, err := st.Fence(ctx, want.Name)
	if err != nil {
		return fmt.Errorf("ask who leads: %w", err)
	}
	if have.Proof() != want && !failpoint.Bad(failpoint.NoFence) {
		return errors.Join(store.ErrFenced, fmt.Errorf("token %d leads", have.Token))
	}
	return nil
}

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
	sweepEvery = time.Second
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

// sweeps are the looks of one term.
func (a absence) sweeps(s *Scheduler) round {
	return func(ctx context.Context, t control.Term) error { return s.sweep(ctx, t, a) }
}

// sweep is one look for gateways that ended without giving their routes back.
func (s *Scheduler) sweep(ctx context.Context, t control.Term, a absence) error {
	routes, err := s.Routes()
	if err != nil {
		return nil // routes in the memory of another process end with it
	}
	homes, err := routes.Homes(ctx)
	if err != nil {
		return fmt.Errorf("list the gateways that have routes: %w", err)
	}
	dead := a.dead(homes, s.View(), time.Now())
	if len(dead) == 0 {
		return nil
	}
	failpoint.HitJob("sweep")
	if err := s.leads(ctx, t); err != nil {
		return err
	}
	var errs []error
	for _, h := range dead {
		n, err := routes.Sweep(ctx, h)
		s.swept.Add(float64(n))
		if err != nil {
			errs = append(errs, fmt.Errorf("sweep the routes of %s: %w", h.Node, err))
			continue
		}
		s.Log.Info("the routes of a gateway that ended were removed", obs.Peer(string(h.Node)), zap.String("boot", h.Boot), zap.Int("routes", n))
	}
	return errors.Join(errs...)
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

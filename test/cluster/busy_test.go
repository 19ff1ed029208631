package cluster

import (
	"context"
	"sync"
	"testing"

	"github.com/imdhq/imd/pkg/control"
	"github.com/imdhq/imd/pkg/control/controltest"
	"github.com/imdhq/imd/pkg/store"
)

// busy makes a node hold a worker number, a lock, and the place in an election
// of that name, until the end of the test.
func busy(t testing.TB, p *process, name string) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	t.Cleanup(func() { cancel(); wg.Wait() })
	fences := controltest.NewFences()
	wg.Go(func() {
		_ = p.Campaign(ctx, control.Candidacy{ // it has no error but for a wrong name
			Name:   name,
			Fences: func() (store.Fences, error) { return fences, nil },
			Lead:   func(ctx context.Context, _ control.Term) error { <-ctx.Done(); return nil },
		})
	})
	for _, take := range []func() error{
		func() error { _, err := p.Lease(ctx, anyNumber); return err },
		func() error { _, err := p.Lock(ctx, control.LockRequest{Name: name}); return err },
	} {
		if err := insist(take); err != nil {
			t.Fatal(err)
		}
	}
}

// anyNumber takes any worker number.
func anyNumber(context.Context, int) (bool, error) { return true, nil }

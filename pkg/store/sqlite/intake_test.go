package sqlite

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/imdhq/imd/pkg/im"
	"github.com/imdhq/imd/pkg/store"
)

// Users who come at once are made known together.
func TestIntake(t *testing.T) {
	s := openAt(t, filepath.Join(t.TempDir(), "imd.db"))
	defer s.Close()
	const users = 500
	var wg sync.WaitGroup
	for i := range users {
		for range 2 {
			wg.Go(func() {
				id := im.UserID(fmt.Sprint("u", i))
				if u, err := s.PutUser(t.Context(), id); err != nil || u.ID != id || u.Created.IsZero() || u.Disabled {
					t.Errorf("put: %+v, %v", u, err)
				}
			})
		}
	}
	wg.Wait()
	s.w.turn <- struct{}{}
	commits := s.w.commits
	<-s.w.turn
	if commits > users/4 {
		t.Errorf("%d commits for %d users", commits, users)
	}
	for _, i := range []int{0, users - 1} {
		if _, err := s.User(t.Context(), im.UserID(fmt.Sprint("u", i))); err != nil {
			t.Error(err)
		}
	}
}

// While the writer is busy a caller's time ends with an unknown outcome; the
// next ones are served.
func TestIntakeWaits(t *testing.T) {
	s := openAt(t, filepath.Join(t.TempDir(), "imd.db"))
	defer s.Close()
	s.w.turn <- struct{}{}
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	if _, err := s.PutUser(ctx, "a"); !errors.Is(err, store.ErrUnknownOutcome) || !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("put: %v", err)
	}
	<-s.w.turn
	if u, err := s.PutUser(t.Context(), "b"); err != nil || u.ID != "b" {
		t.Errorf("put: %+v, %v", u, err)
	}
}

package rules

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/imdhq/imd/pkg/im"
	"github.com/imdhq/imd/pkg/store"
	"github.com/imdhq/imd/sdk/go/gen/clientv1"
)

// Users who come while a transaction is under way wait for the next one
// together, and each gets its own row.
func TestIntake(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var batches []int
		q := &Intake{Know: func(_ context.Context, ids []im.UserID) (map[im.UserID]store.User, error) {
			batches = append(batches, len(ids))
			time.Sleep(time.Second)
			out := map[im.UserID]store.User{}
			for _, id := range ids {
				out[id] = store.User{ID: id, Created: time.Now()}
			}
			return out, nil
		}}
		var wg sync.WaitGroup
		put := func(i int) {
			wg.Go(func() {
				id := im.UserID(fmt.Sprint("u", i))
				if u, err := q.Put(t.Context(), id); err != nil || u.ID != id || u.Created.IsZero() {
					t.Errorf("put: %+v, %v", u, err)
				}
			})
		}
		put(0)
		synctest.Wait()
		for i := range intakeRows + 1 {
			put(i)
		}
		wg.Wait()
		if fmt.Sprint(batches) != fmt.Sprint([]int{1, intakeRows, 1}) {
			t.Errorf("batches of %v", batches)
		}
	})
}

// One whose time is over hears that the outcome is open; the others hear what
// the transaction says, which ends by itself.
func TestIntakeWaits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := &Intake{Know: func(ctx context.Context, _ []im.UserID) (map[im.UserID]store.User, error) {
			<-ctx.Done()
			return nil, store.ErrFull
		}}
		var wg sync.WaitGroup
		wg.Go(func() {
			ctx, cancel := context.WithTimeout(t.Context(), intakeTime/2)
			defer cancel()
			if _, err := q.Put(ctx, "a"); !errors.Is(err, store.ErrUnknownOutcome) || !errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("put: %v", err)
			}
		})
		wg.Go(func() {
			if _, err := q.Put(t.Context(), "a"); !errors.Is(err, store.ErrFull) {
				t.Errorf("put: %v", err)
			}
		})
		wg.Wait()
		time.Sleep(2 * intakeTime) // until nothing is written any more
	})
}

// While the store hangs, those who wait stay as many as there is room for.
func TestIntakeIsBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := &Intake{Know: func(ctx context.Context, _ []im.UserID) (map[im.UserID]store.User, error) {
			<-ctx.Done()
			return nil, store.ErrFull
		}}
		gone, cancel := context.WithCancel(t.Context())
		cancel()
		if _, err := q.Put(gone, "first"); !errors.Is(err, store.ErrUnknownOutcome) {
			t.Fatal(err)
		}
		synctest.Wait() // it is being written
		for range intakeQueue {
			if _, err := q.Put(gone, "u"); !errors.Is(err, store.ErrUnknownOutcome) {
				t.Fatal(err)
			}
		}
		if _, err := q.Put(gone, "one too many"); im.ReasonOf(err) != clientv1.Reason_REASON_BUSY {
			t.Errorf("one too many: %v", err)
		}
		time.Sleep(time.Duration(intakeQueue/intakeRows+2) * intakeTime)
		q.mu.Lock()
		defer q.mu.Unlock()
		if q.writing || len(q.waiting) != 0 {
			t.Errorf("%d wait for ever", len(q.waiting))
		}
	})
}

// Close waits for what is being written and turns away what waits and what comes.
func TestIntakeCloses(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		written := 0
		q := &Intake{Know: func(_ context.Context, ids []im.UserID) (map[im.UserID]store.User, error) {
			time.Sleep(time.Second)
			written += len(ids)
			return map[im.UserID]store.User{"first": {ID: "first"}}, nil
		}}
		var wg sync.WaitGroup
		wg.Go(func() {
			if u, err := q.Put(t.Context(), "first"); err != nil || u.ID != "first" {
				t.Errorf("what is being written: %+v, %v", u, err)
			}
		})
		synctest.Wait()
		wg.Go(func() {
			if _, err := q.Put(t.Context(), "waits"); im.ReasonOf(err) != clientv1.Reason_REASON_UNAVAILABLE {
				t.Errorf("what waits: %v", err)
			}
		})
		synctest.Wait()
		q.Close()
		if written != 1 {
			t.Errorf("%d users are written when it is closed, want the first", written)
		}
		if _, err := q.Put(t.Context(), "late"); im.ReasonOf(err) != clientv1.Reason_REASON_UNAVAILABLE {
			t.Errorf("what comes late: %v", err)
		}
		wg.Wait()
		q.Close()
	})
}

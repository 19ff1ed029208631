package sqlite

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/imdhq/imd/pkg/im"
	"github.com/imdhq/imd/pkg/store"
)

const (
	// intakeRows is how many users are made known in one transaction.
	intakeRows = 200
	// intakeTime bounds one of these transactions.
	intakeTime = 2 * time.Second
)

// intake makes users known who were never seen before. While one transaction is
// under way those who come wait for the next one together, because in a wave of
// first logins a commit for each would keep the messages waiting. Safe for
// concurrent use.
type intake struct {
	run func(context.Context, func(*tx) error) error

	mu      sync.Mutex
	waiting []*arrival
	writing bool
}

// arrival is one user to be made known.
type arrival struct {
	user store.User
	err  error
	done chan struct{} // closed when user or err is there
}

// put makes the user known. Errors: those of writer.run; ErrUnknownOutcome when
// ctx is done first.
func (q *intake) put(ctx context.Context, id im.UserID) (store.User, error) {
	a := &arrival{user: store.User{ID: id}, done: make(chan struct{})}
	q.mu.Lock()
	q.waiting = append(q.waiting, a)
	if !q.writing {
		q.writing = true
		go q.write()
	}
	q.mu.Unlock()
	select {
	case <-a.done:
		return a.user, a.err
	case <-ctx.Done():
		return store.User{}, fmt.Errorf("%w: %w", store.ErrUnknownOutcome, ctx.Err())
	}
}

// write writes until nobody waits.
func (q *intake) write() {
	for {
		q.mu.Lock()
		n := min(len(q.waiting), intakeRows)
		batch := q.waiting[:n:n]
		q.waiting = q.waiting[n:]
		q.writing = n > 0
		q.mu.Unlock()
		if n == 0 {
			return
		}
		q.store(batch)
	}
}

// store writes one batch and answers who waits for it.
func (q *intake) store(batch []*arrival) {
	ctx, cancel := context.WithTimeout(context.Background(), intakeTime)
	defer cancel()
	users := make([]store.User, len(batch))
	err := q.run(ctx, func(t *tx) error {
		for i, a := range batch {
			if err := t.know(a.user.ID); err != nil {
				return err
			}
			var ms int64
			if err := t.row(sqlUser, []any{string(a.user.ID)}, &ms, &users[i].Disabled); err != nil {
				return err
			}
			users[i].ID, users[i].Created = a.user.ID, time.UnixMilli(ms)
		}
		return nil
	})
	for i, a := range batch {
		if a.err = err; err == nil { // else the transaction may still be writing to users
			a.user = users[i]
		}
		close(a.done)
	}
}

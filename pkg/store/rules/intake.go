package rules

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/imdhq/imd/pkg/im"
	"github.com/imdhq/imd/pkg/store"
	"github.com/imdhq/imd/sdk/go/gen/clientv1"
)

const (
	// intakeRows is how many users are made known in one transaction.
	intakeRows = 200
	// intakeTime bounds one of these transactions.
	intakeTime = 2 * time.Second
	// intakeQueue is how many may wait; who has given up waiting still counts.
	intakeQueue = 10_000
)

// Intake makes users known who were never seen before. While one transaction is
// under way those who come wait for the next one together, because in a wave of
// first logins a commit for each would keep the messages waiting. Ready once
// Know is set; safe for concurrent use.
type Intake struct {
	// Know makes users known in one transaction and returns them all; ids may
	// have one of them twice.
	Know func(ctx context.Context, ids []im.UserID) (map[im.UserID]store.User, error)

	mu      sync.Mutex
	waiting []*arrival
	writing bool
	closed  bool
	writer  sync.WaitGroup // counts while writing
}

// arrival is one user to be made known.
type arrival struct {
	user store.User
	err  error
	done chan struct{} // closed when user or err is there
}

// Put makes the user known. Errors: those of Know; store.ErrUnknownOutcome when
// ctx is done first; busy, and nothing was done, when too many wait already;
// unavailable, and nothing was done, after Close.
func (q *Intake) Put(ctx context.Context, id im.UserID) (store.User, error) {
	a := &arrival{user: store.User{ID: id}, done: make(chan struct{})}
	q.mu.Lock()
	switch {
	case q.closed:
		q.mu.Unlock()
		return store.User{}, errClosed()
	case len(q.waiting) >= intakeQueue:
		q.mu.Unlock()
		return store.User{}, im.Errorf(clientv1.Reason_REASON_BUSY, "store.PutUser", "%d users wait to be made known", intakeQueue)
	}
	q.waiting = append(q.waiting, a)
	if !q.writing {
		q.writing = true
		q.writer.Go(q.write)
	}
	q.mu.Unlock()
	select {
	case <-a.done:
		return a.user, a.err
	case <-ctx.Done():
		return store.User{}, fmt.Errorf("%w: %w", store.ErrUnknownOutcome, ctx.Err())
	}
}

// Close tells those who wait that the store closes, and returns when nothing is
// written any more: after 2 s at most.
func (q *Intake) Close() {
	q.mu.Lock()
	q.closed = true
	for _, a := range q.waiting {
		a.err = errClosed()
		close(a.done)
	}
	q.waiting = nil
	q.mu.Unlock()
	q.writer.Wait()
}

func errClosed() error {
	return im.Errorf(clientv1.Reason_REASON_UNAVAILABLE, "store.PutUser", "the message store is closed")
}

// write writes until nobody waits.
func (q *Intake) write() {
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
func (q *Intake) store(batch []*arrival) {
	ctx, cancel := context.WithTimeout(context.Background(), intakeTime)
	defer cancel()
	ids := make([]im.UserID, len(batch))
	for i, a := range batch {
		ids[i] = a.user.ID
	}
	users, err := q.Know(ctx, ids)
	for _, a := range batch {
		if a.err = err; err == nil {
			a.user = users[a.user.ID]
		}
		close(a.done)
	}
}

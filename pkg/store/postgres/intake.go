package postgres

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"

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
	know func(context.Context, []im.UserID) (map[im.UserID]store.User, error)

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

// put makes the user known. Errors: those of know; ErrUnknownOutcome when ctx
// is done first.
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
	ids := make([]im.UserID, len(batch))
	for i, a := range batch {
		ids[i] = a.user.ID
	}
	users, err := q.know(ctx, ids)
	for _, a := range batch {
		if a.err = err; err == nil {
			a.user = users[a.user.ID]
		}
		close(a.done)
	}
}

const sqlUsers = `SELECT id, created_ms, disabled FROM account WHERE id = ANY ($1)`

// knowAll makes users known and returns them.
func (s *Store) knowAll(ctx context.Context, ids []im.UserID) (map[im.UserID]store.User, error) {
	return change(ctx, s, func(ctx context.Context, c *pgx.Conn) (map[im.UserID]store.User, error) {
		if _, err := c.Exec(ctx, sqlKnow, texts(ids), time.Now().UnixMilli()); err != nil {
			return nil, err
		}
		rows, err := c.Query(ctx, sqlUsers, texts(ids))
		if err != nil {
			return nil, err
		}
		defer rows.Close()
		out := make(map[im.UserID]store.User, len(ids))
		for rows.Next() {
			var u store.User
			var ms int64
			if err := rows.Scan(&u.ID, &ms, &u.Disabled); err != nil {
				return nil, err
			}
			u.Created = time.UnixMilli(ms)
			out[u.ID] = u
		}
		rows.Close()
		return out, rows.Err()
	})
}

package postgres

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"

	"github.com/imdhq/imd/pkg/im"
	"github.com/imdhq/imd/pkg/store"
	"github.com/imdhq/imd/pkg/store/rules"
)

const (
	sqlSaveSeen = `SELECT imd_save_seen($1, $2, $3, $4, $5)`
	sqlSeenAt   = `SELECT user_id, at_ms FROM seen WHERE user_id = ANY ($1)`
	sqlVisible  = `SELECT o FROM unnest($1::text[]) AS o
  WHERE EXISTS (SELECT 1 FROM member b JOIN member a ON a.user_id = $2 AND a.conversation_id = b.conversation_id AND a.role > 0
    WHERE b.user_id = o AND b.role > 0)
  AND NOT EXISTS (SELECT 1 FROM block WHERE user_id = $2 AND blocked = o)
  AND NOT EXISTS (SELECT 1 FROM block WHERE user_id = o AND blocked = $2)`
)

// SaveSeen is store.Presence's.
func (s *Store) SaveSeen(ctx context.Context, p store.Proof, seen []store.Seen) error {
	const op = "store.SaveSeen"
	if len(seen) > store.MaxSeen {
		return fmt.Errorf("%s: %d users", op, len(seen))
	}
	users, times := make([]string, len(seen)), make([]int64, len(seen))
	for i, x := range seen {
		users[i], times[i] = string(x.User), millis(x.At)
	}
	leads, err := change(ctx, s, func(ctx context.Context, c *pgx.Conn) (leads bool, err error) {
		err = c.QueryRow(ctx, sqlSaveSeen, p.Name, p.Token, p.Holder, users, times).Scan(&leads)
		return leads, err
	})
	if err == nil && !leads {
		err = fmt.Errorf("token %d of %q: %w", p.Token, p.Name, store.ErrFenced)
	}
	return fault(op, err)
}

// Seen is store.Presence's.
func (s *Store) Seen(ctx context.Context, users []im.UserID) ([]store.Seen, error) {
	const op = "store.Seen"
	if len(users) > store.MaxSeen {
		return nil, fmt.Errorf("%s: %d users", op, len(users))
	}
	out, err := read(ctx, s, func(ctx context.Context, c *pgx.Conn) ([]store.Seen, error) {
		rows, err := c.Query(ctx, sqlSeenAt, rules.Texts(users))
		if err != nil {
			return nil, err
		}
		return pgx.CollectRows(rows, func(row pgx.CollectableRow) (store.Seen, error) {
			var x store.Seen
			var ms int64
			err := row.Scan(&x.User, &ms)
			x.At = moment(ms)
			return x, err
		})
	})
	return out, fault(op, err)
}

// Visible is store.Presence's.
func (s *Store) Visible(ctx context.Context, user im.UserID, others []im.UserID) ([]im.UserID, error) {
	const op = "store.Visible"
	if len(others) > store.MaxSeen {
		return nil, fmt.Errorf("%s: %d users", op, len(others))
	}
	out, err := read(ctx, s, func(ctx context.Context, c *pgx.Conn) ([]im.UserID, error) {
		rows, err := c.Query(ctx, sqlVisible, rules.Texts(others), string(user))
		if err != nil {
			return nil, err
		}
		return pgx.CollectRows(rows, pgx.RowTo[im.UserID])
	})
	return out, fault(op, err)
}

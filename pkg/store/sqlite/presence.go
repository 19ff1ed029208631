package sqlite

import (
	"context"
	"encoding/json"
	"fmt"

	"github.com/imdhq/imd/pkg/im"
	"github.com/imdhq/imd/pkg/store"
)

const (
	sqlSaveSeen = `INSERT INTO seen (user_id, at_ms) VALUES (?, ?)
  ON CONFLICT (user_id) DO UPDATE SET at_ms = excluded.at_ms WHERE excluded.at_ms > at_ms`
	sqlSeenAt  = `SELECT s.user_id, s.at_ms FROM json_each(?) j JOIN seen s ON s.user_id = j.value`
	sqlVisible = `SELECT j.value FROM json_each(?1) j
  WHERE EXISTS (SELECT 1 FROM member b JOIN member a ON a.user_id = ?2 AND a.conversation_id = b.conversation_id AND a.role > 0
    WHERE b.user_id = j.value AND b.role > 0)
  AND NOT EXISTS (SELECT 1 FROM block WHERE user_id = ?2 AND blocked = j.value)
  AND NOT EXISTS (SELECT 1 FROM block WHERE user_id = j.value AND blocked = ?2)`
)

// SaveSeen is store.Presence's.
func (s *Store) SaveSeen(ctx context.Context, p store.Proof, seen []store.Seen) error {
	const op = "store.SaveSeen"
	if len(seen) > store.MaxSeen {
		return fmt.Errorf("%s: %d users", op, len(seen))
	}
	return fault(op, s.w.run(ctx, func(t *tx) error {
		if err := t.prove(p); err != nil {
			return err
		}
		for _, x := range seen {
			n, err := t.exec(sqlSaveSeen, string(x.User), millis(x.At))
			if err != nil {
				return err
			}
			t.changed = t.changed || n > 0
		}
		return nil
	}))
}

// Seen is store.Presence's.
func (s *Store) Seen(ctx context.Context, users []im.UserID) ([]store.Seen, error) {
	var out []store.Seen
	err := s.names(ctx, users, sqlSeenAt, nil, func(scan func(...any) error) error {
		var x store.Seen
		var ms int64
		if err := scan(&x.User, &ms); err != nil {
			return err
		}
		x.At = moment(ms)
		out = append(out, x)
		return nil
	})
	return out, fault("store.Seen", err)
}

// Visible is store.Presence's.
func (s *Store) Visible(ctx context.Context, user im.UserID, others []im.UserID) ([]im.UserID, error) {
	var out []im.UserID
	err := s.names(ctx, others, sqlVisible, []any{string(user)}, func(scan func(...any) error) error {
		var u im.UserID
		if err := scan(&u); err != nil {
			return err
		}
		out = append(out, u)
		return nil
	})
	return out, fault("store.Visible", err)
}

// names runs a query over a list of users, which is its first argument.
func (s *Store) names(ctx context.Context, users []im.UserID, query string, rest []any, row func(scan func(...any) error) error) error {
	if len(users) == 0 {
		return nil
	}
	if len(users) > store.MaxSeen {
		return fmt.Errorf("%d users", len(users))
	}
	list, err := json.Marshal(users)
	if err != nil {
		return err
	}
	return s.read(ctx, func(c *conn) error { return c.each(ctx, query, append([]any{string(list)}, rest...), row) })
}

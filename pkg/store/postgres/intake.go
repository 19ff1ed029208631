package postgres

import (
	"context"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/imdhq/imd/pkg/im"
	"github.com/imdhq/imd/pkg/store"
	"github.com/imdhq/imd/pkg/store/rules"
)

const sqlUsers = `SELECT id, created_ms, disabled FROM account WHERE id = ANY ($1)`

// knowAll makes users known and returns them.
func (s *Store) knowAll(ctx context.Context, ids []im.UserID) (map[im.UserID]store.User, error) {
	return change(ctx, s, func(ctx context.Context, c *pgx.Conn) (map[im.UserID]store.User, error) {
		if _, err := c.Exec(ctx, sqlKnow, rules.Texts(ids), time.Now().UnixMilli()); err != nil {
			return nil, err
		}
		rows, err := c.Query(ctx, sqlUsers, rules.Texts(ids))
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

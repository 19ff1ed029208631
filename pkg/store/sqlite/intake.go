package sqlite

import (
	"context"
	"time"

	"github.com/imdhq/imd/pkg/im"
	"github.com/imdhq/imd/pkg/store"
)

// knowAll makes users known and returns them.
func (s *Store) knowAll(ctx context.Context, ids []im.UserID) (map[im.UserID]store.User, error) {
	users := make(map[im.UserID]store.User, len(ids))
	err := s.w.run(ctx, func(t *tx) error {
		for _, id := range ids {
			if err := t.know(id); err != nil {
				return err
			}
			u := store.User{ID: id}
			var ms int64
			if err := t.row(sqlUser, []any{string(id)}, &ms, &u.Disabled); err != nil {
				return err
			}
			u.Created = time.UnixMilli(ms)
			users[id] = u
		}
		return nil
	})
	if err != nil {
		return nil, err // not users: the transaction may still be writing to it
	}
	return users, nil
}

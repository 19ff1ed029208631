package postgres

import (
	"context"

	"github.com/jackc/pgx/v5"

	"github.com/imdhq/imd/pkg/store"
)

const sqlRetain = `SELECT proven, next, ended, looked, taken FROM imd_retain($1, $2, $3, $4, $5, $6, $7, $8)`

// Retain is store.Retention's.
func (s *Store) Retain(ctx context.Context, p store.Proof, r store.Retain) (store.Retained, error) {
	var proven bool
	out, err := change(ctx, s, func(ctx context.Context, c *pgx.Conn) (out store.Retained, err error) {
		p := shown(ctx, c, p)
		err = c.QueryRow(ctx, sqlRetain, p.Name, p.Token, p.Holder, r.After, millis(r.Direct), millis(r.Group),
			min(max(r.Looks, 1), store.MaxRetainLooks), min(max(r.Entries, 1), store.MaxRetain)).Scan(&proven, &out.Next, &out.End, &out.Looked, &out.Entries)
		return out, err
	})
	if err == nil && !proven {
		err = stale(p)
	}
	return out, fault("store.Retain", err)
}

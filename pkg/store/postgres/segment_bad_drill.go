//go:build drill

package postgres

import (
	"context"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/imdhq/imd/pkg/failpoint"
	"github.com/imdhq/imd/pkg/segment"
	"github.com/imdhq/imd/pkg/store"
)

// weaken takes out of the server's functions what keeps numbers in order, in the
// known-bad builds: the lock on the fence in plain-read-fence, and in both the
// look at the head, which would otherwise stop what comes through.
func (o *owner) weaken(ctx context.Context) error {
	cut := map[string]string{"WHEN firsts[p.ci] <= heads[p.ci] THEN imd_overtaken(p.ci, heads[p.ci])": ""}
	switch {
	case failpoint.Bad(failpoint.PlainReadFence):
		cut["FOR SHARE OF s"] = ""
	case !failpoint.Bad(failpoint.EarlyHead):
		return nil
	}
	_, err := call(ctx, o.pool, true, func(ctx context.Context, c *pgx.Conn) (struct{}, error) {
		if _, err := c.Exec(ctx, `SELECT pg_advisory_lock(1)`); err != nil {
			return struct{}{}, err
		}
		defer func() { _, _ = c.Exec(ctx, `SELECT pg_advisory_unlock(1)`) }() // a session that is gone has none
		for old, with := range cut {
			rows, err := c.Query(ctx, `SELECT pg_get_functiondef(oid) FROM pg_proc WHERE proname LIKE 'imd%' AND position($1 in prosrc) > 0`, old)
			if err != nil {
				return struct{}{}, err
			}
			defs, err := pgx.CollectRows(rows, pgx.RowTo[string])
			if err != nil {
				return struct{}{}, err
			}
			for _, def := range defs {
				if _, err := c.Exec(ctx, strings.ReplaceAll(def, old, with)); err != nil {
					return struct{}{}, err
				}
			}
		}
		return struct{}{}, nil
	})
	return err
}

// early reserves, in the known-bad build head-before-takeover, above where
// conversations have come to before their shards are taken over; after is for
// when they are.
func (o *owner) early(ctx context.Context, needs []segment.Need) (after func()) {
	if !failpoint.Bad(failpoint.EarlyHead) {
		return func() {}
	}
	convs, counts := make([]string, len(needs)), make([]int64, len(needs))
	for i, n := range needs {
		convs[i], counts[i] = n.Conv, n.Rows+10
	}
	got, err := call(ctx, o.pool, true, func(ctx context.Context, c *pgx.Conn) ([]segment.Reserved, error) {
		rows, err := c.Query(ctx, sqlReserve, []int32{}, []int64{}, convs, counts) // proves nothing
		if err != nil {
			return nil, err
		}
		return pgx.CollectRows(rows, func(row pgx.CollectableRow) (r segment.Reserved, err error) {
			return r, row.Scan(&r.Conv, &r.After, &r.Upto)
		})
	})
	if err != nil {
		return func() {}
	}
	time.Sleep(window)
	return func() {
		for _, g := range got {
			for _, n := range needs {
				if n.Conv != g.Conv {
					continue
				}
				if fx := o.step(store.Ring{}, segment.Want{Needs: []segment.Need{n}}); len(fx.Reserve) == 1 {
					g.Shard, g.Fence = n.Shard, fx.Reserve[0].Fence
					o.step(store.Ring{}, g)
				}
			}
		}
	}
}

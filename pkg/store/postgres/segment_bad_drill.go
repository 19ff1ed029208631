//go:build drill

package postgres

import (
	"context"
	"slices"
	"strings"
	"sync"
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

// tooEarly are the numbers that the known-bad build head-before-takeover has
// reserved and not used, by conversation.
var tooEarly = struct {
	sync.Mutex
	of map[string]segment.Reserved
}{of: map[string]segment.Reserved{}}

// early reserves, in the known-bad build head-before-takeover, above where
// conversations have come to before their shards are taken over.
func (o *owner) early(ctx context.Context, needs []segment.Need) {
	if !failpoint.Bad(failpoint.EarlyHead) {
		return
	}
	tooEarly.Lock()
	defer tooEarly.Unlock()
	var convs []string
	var counts []int64
	for _, n := range needs {
		if _, ok := tooEarly.of[n.Conv]; !ok {
			convs, counts = append(convs, n.Conv), append(counts, n.Rows+10)
		}
	}
	if len(convs) == 0 {
		return
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
		return
	}
	for _, g := range got {
		tooEarly.of[g.Conv] = g
	}
	o.outrun(ctx, got)
}

// reserved gives what was reserved too early to those who ask for numbers, and
// returns what is still to be reserved.
func (o *owner) reserved(list []segment.Reservation) []segment.Reservation {
	tooEarly.Lock()
	defer tooEarly.Unlock()
	return slices.DeleteFunc(list, func(f segment.Reservation) bool {
		g, ok := tooEarly.of[f.Conv]
		if ok {
			delete(tooEarly.of, f.Conv)
			g.Shard, g.Fence = f.Shard, f.Fence
			o.step(store.Ring{}, g)
		}
		return ok
	})
}

// outrunIn is how long a defect waits for the present owner.
const outrunIn = 2 * time.Second

// outrun waits until the present owner of a conversation that is being written has
// gone above numbers that were reserved too early, so that the defect does not
// depend on who is faster.
func (o *owner) outrun(ctx context.Context, early []segment.Reserved) {
	convs, upto := make([]string, len(early)), make([]int64, len(early))
	for i, g := range early {
		convs[i], upto[i] = g.Conv, g.Upto
	}
	for end := time.Now().Add(outrunIn); time.Now().Before(end) && ctx.Err() == nil; time.Sleep(10 * time.Millisecond) {
		passed, err := call(ctx, o.pool, true, func(ctx context.Context, c *pgx.Conn) (passed bool, err error) {
			err = c.QueryRow(ctx, `SELECT coalesce(bool_or(c.head > e.upto), true) FROM conversation c, unnest($1::text[], $2::bigint[]) AS e (id, upto)
			  WHERE c.id = e.id AND c.head > 0`, convs, upto).Scan(&passed)
			return passed, err
		})
		if passed || err != nil {
			return
		}
	}
}

package postgres

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/imdhq/imd/pkg/failpoint"
	"github.com/imdhq/imd/pkg/store"
)

const (
	sqlFence = `SELECT token, holder, cluster, revision, claimed_ms FROM fence WHERE name = $1`
	sqlClaim = `SELECT token, holder, cluster, revision, claimed_ms, given FROM imd_claim($1, $2, $3, $4, $5)`
)

// Fence is store.Fences'.
func (s *Store) Fence(ctx context.Context, name string) (store.Fence, error) {
	f, err := read(ctx, s, func(ctx context.Context, c *pgx.Conn) (store.Fence, error) {
		f := store.Fence{Name: name}
		err := missing(scanFence(c.QueryRow(ctx, sqlFence, name), &f))
		if err != nil {
			err = fmt.Errorf("fence %q: %w", name, err)
		}
		return f, err
	})
	return f, fault("store.Fence", err)
}

func scanFence(row scanner, f *store.Fence, more ...any) error {
	var ms int64
	err := row.Scan(append([]any{&f.Token, &f.Holder, &f.Cluster, &f.Revision, &ms}, more...)...)
	f.Claimed = moment(ms)
	return err
}

// ClaimFence is store.Fences'. The row's lock waits for effects that have proved
// the former token.
func (s *Store) ClaimFence(ctx context.Context, c store.FenceClaim) (store.Fence, error) {
	const op = "store.ClaimFence"
	if c.Name == "" || len(c.Name) > 128 || c.Holder == "" {
		return store.Fence{}, fmt.Errorf("%s: a claim of %q for %q", op, c.Name, c.Holder)
	}
	type claimed struct {
		store.Fence
		given bool
	}
	f, err := change(ctx, s, func(ctx context.Context, conn *pgx.Conn) (claimed, error) {
		f := claimed{Fence: store.Fence{Name: c.Name}}
		err := scanFence(conn.QueryRow(ctx, sqlClaim, c.Name, c.Holder, c.Cluster, c.Revision, c.Over), &f.Fence, &f.given)
		return f, err
	})
	if err == nil && !f.given {
		err = store.ErrFenced
	}
	return f.Fence, fault(op, err)
}

const (
	sqlExpire        = `SELECT imd_expire($1, $2, $3, $4)`
	sqlExpireNoFence = `WITH d AS (DELETE FROM revocation WHERE until_ms <= $1 RETURNING 1) SELECT count(*) FROM d`
)

// Expire is store.Directory's.
func (s *Store) Expire(ctx context.Context, p store.Proof, now time.Time) (int, error) {
	query, args := sqlExpire, []any{p.Name, p.Token, p.Holder, now.UnixMilli()}
	if failpoint.Bad(failpoint.NoFence) {
		query, args = sqlExpireNoFence, args[3:]
	}
	n, err := change(ctx, s, func(ctx context.Context, c *pgx.Conn) (n int, err error) {
		err = c.QueryRow(ctx, query, args...).Scan(&n)
		return n, err
	})
	if err == nil && n < 0 {
		n, err = 0, fmt.Errorf("token %d of %q: %w", p.Token, p.Name, store.ErrFenced)
	}
	return max(n, 0), fault("store.Expire", err)
}

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

const sqlExpire = `SELECT imd_expire($1, $2, $3, $4, $5)`

// Expire is store.Directory's.
func (s *Store) Expire(ctx context.Context, p store.Proof, now time.Time) (int, error) {
	n, err := change(ctx, s, func(ctx context.Context, c *pgx.Conn) (n int, err error) {
		p := shown(ctx, c, p)
		err = c.QueryRow(ctx, sqlExpire, p.Name, p.Token, p.Holder, now.UnixMilli(), store.MaxExpire).Scan(&n)
		return n, err
	})
	if err == nil && n < 0 {
		n, err = 0, stale(p)
	}
	return max(n, 0), fault("store.Expire", err)
}

// shown is the proof that an effect shows. In a known-bad build it is whatever
// holds, as if nobody had looked.
func shown(ctx context.Context, c *pgx.Conn, p store.Proof) store.Proof {
	if !failpoint.Bad(failpoint.NoFence) {
		return p
	}
	f := store.Fence{Name: p.Name}
	if scanFence(c.QueryRow(ctx, sqlFence, p.Name), &f) != nil {
		return p
	}
	return f.Proof()
}

// stale says that the fence is not any more as p says.
func stale(p store.Proof) error {
	return fmt.Errorf("token %d of %q: %w", p.Token, p.Name, store.ErrFenced)
}

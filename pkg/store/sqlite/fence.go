package sqlite

import (
	"context"
	"database/sql"
	"errors"
	"fmt"

	"github.com/imdhq/imd/pkg/failpoint"
	"github.com/imdhq/imd/pkg/store"
)

const (
	sqlFence    = `SELECT token, holder, cluster, revision, claimed_ms FROM fence WHERE name = ?`
	sqlPutFence = `INSERT INTO fence (name, token, holder, cluster, revision, claimed_ms) VALUES (?, ?, ?, ?, ?, ?)
  ON CONFLICT (name) DO UPDATE SET token = excluded.token, holder = excluded.holder, cluster = excluded.cluster,
  revision = excluded.revision, claimed_ms = excluded.claimed_ms`
	sqlProve = `SELECT EXISTS (SELECT 1 FROM fence WHERE name = ? AND token = ? AND holder = ?)`
)

// fence reads a fence; the zero Fence if there is none.
func (c *conn) fence(name string) (store.Fence, error) {
	f := store.Fence{Name: name}
	var ms int64
	err := c.row(sqlFence, []any{name}, &f.Token, &f.Holder, &f.Cluster, &f.Revision, &ms)
	if errors.Is(err, sql.ErrNoRows) {
		return store.Fence{}, nil
	}
	f.Claimed = moment(ms)
	return f, err
}

// Fence is store.Fences'.
func (s *Store) Fence(ctx context.Context, name string) (store.Fence, error) {
	var f store.Fence
	err := s.read(ctx, func(c *conn) (err error) {
		f, err = c.fence(name)
		return err
	})
	if err == nil && f.Token == 0 {
		err = fmt.Errorf("fence %q: %w", name, store.ErrNotFound)
	}
	return f, fault("store.Fence", err)
}

// ClaimFence is store.Fences'. There is one writer, so no effect that has proved
// the former token is under way.
func (s *Store) ClaimFence(ctx context.Context, c store.FenceClaim) (store.Fence, error) {
	const op = "store.ClaimFence"
	if c.Name == "" || len(c.Name) > 128 || c.Holder == "" {
		return store.Fence{}, fmt.Errorf("%s: a claim of %q for %q", op, c.Name, c.Holder)
	}
	var f store.Fence
	err := s.w.run(ctx, func(t *tx) error {
		had, err := t.fence(c.Name)
		if err != nil {
			return err
		}
		switch {
		case had.Token != 0 && had.Cluster == c.Cluster && had.Revision == c.Revision && had.Holder == c.Holder:
			f = had // the same claim once more
			return nil
		case had.Token != 0 && had.Token != c.Over && had.Cluster == c.Cluster && had.Revision >= c.Revision:
			f = had
			return store.ErrFenced
		}
		f = store.Fence{Name: c.Name, Token: had.Token + 1, Holder: c.Holder, Cluster: c.Cluster, Revision: c.Revision, Claimed: t.now}
		t.changed = true
		_, err = t.exec(sqlPutFence, f.Name, f.Token, f.Holder, f.Cluster, f.Revision, f.Claimed.UnixMilli())
		return err
	})
	if errors.Is(err, store.ErrUnknownOutcome) {
		return store.Fence{}, fault(op, err) // f may still be written to
	}
	return f, fault(op, err)
}

// prove fails with ErrFenced unless the fence still is as p says.
func (t *tx) prove(p store.Proof) error {
	var ok bool
	if err := t.row(sqlProve, []any{p.Name, p.Token, p.Holder}, &ok); err != nil {
		return err
	}
	if !ok && !failpoint.Bad(failpoint.NoFence) {
		return fmt.Errorf("token %d of %q: %w", p.Token, p.Name, store.ErrFenced)
	}
	return nil
}

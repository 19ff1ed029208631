//go:build drill

package sqlite

import (
	"context"
	"database/sql"
	"time"

	"github.com/imdhq/imd/pkg/failpoint"
	"github.com/imdhq/imd/pkg/store"
	"github.com/imdhq/imd/pkg/store/rules"
)

// early lets the caller go on before the transaction is durable, in the
// known-bad build ack-before-commit.
func early(fn func(*tx) error, done chan<- error) func(*tx) error {
	if !failpoint.Bad(failpoint.AckBeforeCommit) {
		return fn
	}
	return func(t *tx) error {
		err := fn(t)
		if err == nil && t.changed {
			done <- nil
		}
		return err
	}
}

// spoil takes away the index that keeps a key from being stored twice, in the
// known-bad build no-dedup-index.
func spoil(ctx context.Context, db *sql.DB) error {
	if !failpoint.Bad(failpoint.NoDedupIndex) {
		return nil
	}
	_, err := db.ExecContext(ctx, "DROP INDEX IF EXISTS entry_key")
	return err
}

// window is between reading and taking the token in the known-bad build
// sync-without-overlap.
const window = 300 * time.Millisecond

// late takes the token of a finished sync after what it stands for was read, in
// the known-bad build sync-without-overlap.
func (s *Store) late(_ context.Context, p *store.SyncPage) {
	if !failpoint.Bad(failpoint.SyncWithoutOverlap) || p.More {
		return
	}
	time.Sleep(window)
	p.Token = tokens.Format(rules.Token{Epoch: s.w.epoch, Since: s.w.committed.Load()})
	if n := len(p.TokenAfter); n > 0 {
		p.TokenAfter[n-1] = p.Token
	}
}

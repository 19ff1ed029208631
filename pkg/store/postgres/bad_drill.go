//go:build drill

package postgres

import (
	"context"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/imdhq/imd/pkg/failpoint"
	"github.com/imdhq/imd/pkg/store"
	"github.com/imdhq/imd/pkg/store/rules"
)

// window is between reading and taking the token in the known-bad build
// sync-without-overlap.
const window = 300 * time.Millisecond

// late takes the token of a finished sync after what it stands for was read, in
// the known-bad build sync-without-overlap.
func (s *Store) late(ctx context.Context, p *store.SyncPage) {
	if !failpoint.Bad(failpoint.SyncWithoutOverlap) || p.More {
		return
	}
	time.Sleep(window)
	n, err := read(ctx, s, func(ctx context.Context, c *pgx.Conn) (n int64, err error) {
		err = c.QueryRow(ctx, `SELECT imd_horizon()`).Scan(&n)
		return n, err
	})
	if err != nil {
		return
	}
	p.Token = tokens.Format(rules.Token{Epoch: s.DataEpoch(), Since: n})
	if n := len(p.TokenAfter); n > 0 {
		p.TokenAfter[n-1] = p.Token
	}
}

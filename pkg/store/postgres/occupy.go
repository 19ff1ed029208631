package postgres

import (
	"context"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/imdhq/imd/pkg/store"
)

var _ store.Occupiable = (*Store)(nil)

// row is where the leases of worker numbers keep who has a seat; no worker has such a
// number.
func row(seat store.Seat) int { return -1 - int(seat) }

const sqlOccupy = `INSERT INTO worker_lease AS l (id, holder, until_ms) VALUES ($1, $2, imd_now_ms() + $3)
  ON CONFLICT (id) DO UPDATE SET
    holder = CASE WHEN l.holder = excluded.holder OR l.until_ms <= imd_now_ms() THEN excluded.holder ELSE l.holder END,
    until_ms = CASE WHEN l.holder = excluded.holder OR l.until_ms <= imd_now_ms() THEN excluded.until_ms ELSE l.until_ms END
  RETURNING holder, until_ms`

// Occupy is store.Occupiable's.
func (s *Store) Occupy(ctx context.Context, seat store.Seat, who string, ttl time.Duration) (by string, until time.Time, err error) {
	ms, err := change(ctx, s, func(ctx context.Context, c *pgx.Conn) (ms int64, err error) {
		err = c.QueryRow(ctx, sqlOccupy, row(seat), who, ttl.Milliseconds()).Scan(&by, &ms)
		return ms, err
	})
	return by, moment(ms), fault("store.Occupy", err)
}

// Vacate is store.Occupiable's.
func (s *Store) Vacate(ctx context.Context, seat store.Seat, who string) error {
	_, err := s.exec(ctx, "store.Vacate", sqlFreeWorker, row(seat), who)
	return err
}

package postgres

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/imdhq/imd/pkg/store"
)

// WorkerMark is store.Workers'.
func (s *Store) WorkerMark(ctx context.Context, worker int) (time.Time, error) {
	mark, err := read(ctx, s, func(ctx context.Context, c *pgx.Conn) (time.Time, error) {
		var us int64
		err := c.QueryRow(ctx, `SELECT mark_us FROM worker WHERE id = $1`, worker).Scan(&us)
		if errors.Is(err, pgx.ErrNoRows) {
			return time.Time{}, nil
		}
		return time.UnixMicro(us), err
	})
	return mark, fault("store.WorkerMark", err)
}

// MoveWorkerMark is store.Workers'.
func (s *Store) MoveWorkerMark(ctx context.Context, worker int, from, to time.Time) (bool, error) {
	const op = "store.MoveWorkerMark"
	var n int64
	var err error
	if from.IsZero() {
		n, err = s.exec(ctx, op, `INSERT INTO worker (id, mark_us) VALUES ($1, $2) ON CONFLICT (id) DO NOTHING`, worker, to.UnixMicro())
	} else {
		n, err = s.exec(ctx, op, `UPDATE worker SET mark_us = $2 WHERE id = $1 AND mark_us = $3`, worker, to.UnixMicro(), from.UnixMicro())
	}
	return n > 0, err
}

const (
	sqlTakeWorker = `INSERT INTO worker_lease AS l (id, holder, until_ms) VALUES ($1, $2, imd_now_ms() + $3)
  ON CONFLICT (id) DO UPDATE SET holder = excluded.holder, until_ms = excluded.until_ms
  WHERE l.holder = excluded.holder OR l.until_ms <= imd_now_ms()`
	sqlRenewWorker = `UPDATE worker_lease SET until_ms = imd_now_ms() + $3 WHERE id = $1 AND holder = $2`
	sqlFreeWorker  = `DELETE FROM worker_lease WHERE id = $1 AND holder = $2`
)

// TakeWorker is store.Workers'.
func (s *Store) TakeWorker(ctx context.Context, worker int, holder string, ttl time.Duration) (bool, error) {
	if worker < 0 || worker >= store.FallbackWorkers {
		return false, fmt.Errorf("store.TakeWorker: worker %d is not within 0 and %d", worker, store.FallbackWorkers-1)
	}
	n, err := s.exec(ctx, "store.TakeWorker", sqlTakeWorker, worker, holder, ttl.Milliseconds())
	return n > 0, err
}

// RenewWorker is store.Workers'.
func (s *Store) RenewWorker(ctx context.Context, worker int, holder string, ttl time.Duration) (bool, error) {
	n, err := s.exec(ctx, "store.RenewWorker", sqlRenewWorker, worker, holder, ttl.Milliseconds())
	return n > 0, err
}

// FreeWorker is store.Workers'.
func (s *Store) FreeWorker(ctx context.Context, worker int, holder string) error {
	_, err := s.exec(ctx, "store.FreeWorker", sqlFreeWorker, worker, holder)
	return err
}

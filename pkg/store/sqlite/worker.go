package sqlite

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"time"

	"github.com/imdhq/imd/pkg/store"
)

// WorkerMark is store.Workers'.
func (s *Store) WorkerMark(ctx context.Context, worker int) (time.Time, error) {
	var mark time.Time
	err := s.read(ctx, func(c *conn) error {
		var us int64
		err := c.row(`SELECT mark_us FROM worker WHERE id = ?`, []any{worker}, &us)
		if errors.Is(err, sql.ErrNoRows) {
			return nil
		}
		mark = time.UnixMicro(us)
		return err
	})
	return mark, fault("store.WorkerMark", err)
}

// MoveWorkerMark is store.Workers'.
func (s *Store) MoveWorkerMark(ctx context.Context, worker int, from, to time.Time) (bool, error) {
	const op = "store.MoveWorkerMark"
	var n int64
	var err error
	if from.IsZero() {
		n, err = s.write(ctx, op, `INSERT INTO worker (id, mark_us) VALUES (?, ?) ON CONFLICT (id) DO NOTHING`, worker, to.UnixMicro())
	} else {
		n, err = s.write(ctx, op, `UPDATE worker SET mark_us = ? WHERE id = ? AND mark_us = ?`, to.UnixMicro(), worker, from.UnixMicro())
	}
	return n > 0, err
}

const (
	sqlTakeWorker = `INSERT INTO worker_lease (id, holder, until_ms) VALUES (?, ?, ?)
  ON CONFLICT (id) DO UPDATE SET holder = excluded.holder, until_ms = excluded.until_ms
  WHERE worker_lease.holder = excluded.holder OR worker_lease.until_ms <= ?`
	sqlRenewWorker = `UPDATE worker_lease SET until_ms = ? WHERE id = ? AND holder = ?`
)

// TakeWorker is store.Workers'.
func (s *Store) TakeWorker(ctx context.Context, worker int, holder string, ttl time.Duration) (bool, error) {
	if worker < 0 || worker >= store.FallbackWorkers {
		return false, fmt.Errorf("store.TakeWorker: worker %d is not within 0 and %d", worker, store.FallbackWorkers-1)
	}
	return s.lease(ctx, "store.TakeWorker", func(t *tx) (int64, error) {
		return t.exec(sqlTakeWorker, worker, holder, t.now.Add(ttl).UnixMilli(), t.now.UnixMilli())
	})
}

// RenewWorker is store.Workers'.
func (s *Store) RenewWorker(ctx context.Context, worker int, holder string, ttl time.Duration) (bool, error) {
	return s.lease(ctx, "store.RenewWorker", func(t *tx) (int64, error) {
		return t.exec(sqlRenewWorker, t.now.Add(ttl).UnixMilli(), worker, holder)
	})
}

// lease runs a statement that needs the server time.
func (s *Store) lease(ctx context.Context, op string, exec func(*tx) (int64, error)) (bool, error) {
	var rows int64
	err := s.w.run(ctx, func(t *tx) (err error) {
		rows, err = exec(t)
		t.changed = rows > 0
		return err
	})
	if err != nil {
		return false, fault(op, err)
	}
	return rows > 0, nil
}

// FreeWorker is store.Workers'.
func (s *Store) FreeWorker(ctx context.Context, worker int, holder string) error {
	_, err := s.write(ctx, "store.FreeWorker", `DELETE FROM worker_lease WHERE id = ? AND holder = ?`, worker, holder)
	return err
}

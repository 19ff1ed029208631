package postgres

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"

	"github.com/imdhq/imd/pkg/store"
)

const sqlSaveJob = `SELECT imd_save_job($1, $2, $3, $4, $5, $6)`

// SaveJob is store.Jobs'.
func (s *Store) SaveJob(ctx context.Context, p store.Proof, j store.JobRow) error {
	const op = "store.SaveJob"
	if j.Name == "" || len(j.Name) > 64 {
		return fmt.Errorf("%s: a job %q", op, j.Name)
	}
	proven, err := change(ctx, s, func(ctx context.Context, c *pgx.Conn) (ok bool, err error) {
		p := shown(ctx, c, p)
		err = c.QueryRow(ctx, sqlSaveJob, p.Name, p.Token, p.Holder, j.Name, millis(j.Ran), j.Rounds).Scan(&ok)
		return ok, err
	})
	if err == nil && !proven {
		err = stale(p)
	}
	return fault(op, err)
}

const sqlJobs = `SELECT name, token, holder, ran_ms, rounds FROM job ORDER BY name`

// Jobs is store.Jobs'.
func (s *Store) Jobs(ctx context.Context) ([]store.JobRow, error) {
	out, err := read(ctx, s, func(ctx context.Context, c *pgx.Conn) ([]store.JobRow, error) {
		rows, err := c.Query(ctx, sqlJobs)
		if err != nil {
			return nil, err
		}
		return pgx.CollectRows(rows, func(row pgx.CollectableRow) (store.JobRow, error) {
			var j store.JobRow
			var ms int64
			err := row.Scan(&j.Name, &j.Token, &j.Holder, &ms, &j.Rounds)
			j.Ran = moment(ms)
			return j, err
		})
	})
	return out, fault("store.Jobs", err)
}

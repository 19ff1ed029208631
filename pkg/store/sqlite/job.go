package sqlite

import (
	"context"
	"fmt"

	"github.com/imdhq/imd/pkg/store"
)

const sqlSaveJob = `INSERT INTO job (name, token, holder, ran_ms, rounds) VALUES (?, ?, ?, ?, ?)
ON CONFLICT (name) DO UPDATE SET token = excluded.token, holder = excluded.holder, ran_ms = excluded.ran_ms, rounds = excluded.rounds`

// SaveJob is store.Jobs'.
func (s *Store) SaveJob(ctx context.Context, p store.Proof, j store.JobRow) error {
	const op = "store.SaveJob"
	if j.Name == "" || len(j.Name) > 64 {
		return fmt.Errorf("%s: a job %q", op, j.Name)
	}
	return fault(op, s.w.run(ctx, func(t *tx) error {
		if err := t.prove(p); err != nil {
			return err
		}
		t.changed = true
		_, err := t.exec(sqlSaveJob, j.Name, p.Token, p.Holder, millis(j.Ran), j.Rounds)
		return err
	}))
}

const sqlJobs = `SELECT name, token, holder, ran_ms, rounds FROM job ORDER BY name`

// Jobs is store.Jobs'.
func (s *Store) Jobs(ctx context.Context) ([]store.JobRow, error) {
	var out []store.JobRow
	err := s.read(ctx, func(c *conn) error {
		return c.each(ctx, sqlJobs, nil, func(scan func(...any) error) error {
			var j store.JobRow
			var ms int64
			if err := scan(&j.Name, &j.Token, &j.Holder, &ms, &j.Rounds); err != nil {
				return err
			}
			j.Ran = moment(ms)
			out = append(out, j)
			return nil
		})
	})
	return out, fault("store.Jobs", err)
}

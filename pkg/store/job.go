package store

import (
	"context"
	"time"
)

// Jobs keeps a row for each job of a leader, so that who follows goes on where
// the one before stood.
type Jobs interface {
	// SaveJob stores the row of a job in place of the former, with the token and
	// the holder of p. Errors: ErrFenced if the proof does not hold in the same
	// transaction; ErrUnknownOutcome: run it again.
	SaveJob(ctx context.Context, p Proof, j JobRow) error
	// Jobs lists the rows by name.
	Jobs(ctx context.Context) ([]JobRow, error)
}

// JobRow is where one job stands.
type JobRow struct {
	Name   string    // of the job, 1 to 64 bytes
	Token  int64     // of the leader that wrote the row; set by the store, never falls
	Holder string    // that leader; set by the store
	Ran    time.Time // when the last round that did its work began, whole milliseconds; zero = never
	Rounds int64     // such rounds in all
}

//go:build !drill

package sqlite

import (
	"context"
	"database/sql"

	"github.com/imdhq/imd/pkg/store"
)

// What known-bad builds do wrong; here nothing.

func early(fn func(*tx) error, _ chan<- error) func(*tx) error { return fn }

func spoil(context.Context, *sql.DB) error { return nil }

func (s *Store) late(context.Context, *store.SyncPage) {}

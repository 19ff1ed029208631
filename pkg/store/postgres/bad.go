//go:build !drill

package postgres

import (
	"context"

	"github.com/imdhq/imd/pkg/store"
)

// What known-bad builds do wrong; here nothing.

func (s *Store) late(context.Context, *store.SyncPage) {}

//go:build !drill

package postgres

import (
	"context"

	"github.com/imdhq/imd/pkg/segment"
)

// What known-bad builds do wrong under the allocator segment; here nothing.

func (o *owner) weaken(context.Context) error { return nil }

func (o *owner) early(context.Context, []segment.Need) {}

func (o *owner) reserved(list []segment.Reservation) []segment.Reservation { return list }

package store

import (
	"context"
	"errors"
	"time"
)

// ErrOtherServer says that another server uses the store.
var ErrOtherServer = errors.New("another server uses the database")

// Occupiable is a MessageStore that servers which do not know of each other could
// open. A server is all nodes that share a control plane.
type Occupiable interface {
	// Occupy notes for ttl from now, by the store's clock, that a server uses the
	// store, and returns which one does, until when: server itself, or another whose
	// time is not over. For a server that has it already it counts anew.
	Occupy(ctx context.Context, server string, ttl time.Duration) (by string, until time.Time, err error)
	// Vacate ends the time of a server; of another one it does nothing.
	Vacate(ctx context.Context, server string) error
}

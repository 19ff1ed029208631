package store

import (
	"context"
	"errors"
	"time"
)

// ErrOtherServer says that another server uses the store.
var ErrOtherServer = errors.New("another server uses the database")

// Seat is what one at a time has of a store.
type Seat int

const (
	// SeatServer is for the server that uses the store: all nodes that share a control
	// plane, by its name.
	SeatServer Seat = iota
	// SeatPlane is for that control plane, by what only its nodes know.
	SeatPlane
)

// Occupiable is a MessageStore that servers which do not know of each other could
// open.
type Occupiable interface {
	// Occupy notes for ttl from now, by the store's clock, that somebody has a seat,
	// and returns who has it, until when: who itself, or another whose time is not
	// over. For one that has it already it counts anew.
	Occupy(ctx context.Context, seat Seat, who string, ttl time.Duration) (by string, until time.Time, err error)
	// Vacate ends the time of who has a seat; of another one it does nothing.
	Vacate(ctx context.Context, seat Seat, who string) error
}

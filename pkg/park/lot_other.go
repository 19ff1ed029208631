//go:build !linux

package park

import (
	"errors"
	"sync"
	"sync/atomic"
)

// errNone refuses to park where that is not possible.
var errNone = errors.New("connections cannot be parked on this system")

// Lot parks nothing on this system.
type Lot struct {
	parked atomic.Int64
	once   sync.Once
	over   chan struct{}
}

// New makes an empty lot; it never fails.
func New() (*Lot, error) { return &Lot{over: make(chan struct{})}, nil }

// Parked is how many connections are parked: none.
func (l *Lot) Parked() int { return 0 }

func (l *Lot) works() bool { return false }

func (l *Lot) arm(*Spot) error { return errNone }

func (l *Lot) forget(*Spot) {}

// Run waits until Stop is called.
func (l *Lot) Run() error {
	<-l.over
	return nil
}

// Stop ends Run.
func (l *Lot) Stop() { l.once.Do(func() { close(l.over) }) }

// Close has nothing to free.
func (l *Lot) Close() error { return nil }

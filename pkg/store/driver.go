package store

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/url"
	"slices"
	"strings"

	"go.uber.org/zap"
)

// Why a store could not be opened. The error that wraps one of these is a
// sentence for the operator.
var (
	// ErrSchema says that what is stored has another form than this program
	// works with, older or newer: a fault of the installation, exit status 78.
	ErrSchema = errors.New("the schema is not the one that this program needs")
	// ErrUnsafe says that the server of the store is set up so that it could lose
	// or mix up messages: a fault of the installation, exit status 78.
	ErrUnsafe = errors.New("the server of the store is not set up for messages")
	// ErrClock says that this machine's clock is far behind the newest stored
	// entry: a fault of the installation, exit status 78.
	ErrClock = errors.New("the clock is behind the store")
	// ErrDSN says that a data source name is malformed or that no driver is
	// linked for it: a fault of the configuration, exit status 78.
	ErrDSN = errors.New("bad data source name")
	// ErrAllocator says that the store gives out seqs in another way than this
	// node is set to: a fault of the configuration, exit status 78.
	ErrAllocator = errors.New("the allocator is another one")
	// ErrCorrupt says that what is stored is damaged. Nothing was changed.
	ErrCorrupt = errors.New("the store is damaged")
	// ErrReadOnly says that the store can be read but not written.
	ErrReadOnly = errors.New("the store cannot be written")
	// ErrFull says that there is no space left. Also calls on an open store may
	// return it; they succeed again when there is space.
	ErrFull = errors.New("no space left")
	// ErrAway says that the server of the store does not answer now, or takes nobody:
	// it is off, starts, or the way to it is cut. Trying again helps.
	ErrAway = errors.New("the store is away")
	// ErrLocked says that another process uses the store and does not share it.
	ErrLocked = errors.New("the store is in use by another process")
)

// Opener connects to the store that dsn names. It returns only when the store
// has answered once. log gets what the operator should know later; never nil.
type Opener[S any] func(ctx context.Context, dsn *url.URL, log *zap.Logger) (S, error)

// Drivers maps the scheme of a data source name to its driver. It is a value
// that the command builds, so that one place shows what is linked.
type Drivers[S any] map[string]Opener[S]

// Open picks the driver by dsn's scheme, as in "sqlite:data/imd.db" or
// "memory:". Errors: ErrDSN, and what the driver says.
func (d Drivers[S]) Open(ctx context.Context, dsn string, log *zap.Logger) (S, error) {
	var none S
	u, err := url.Parse(dsn)
	if err != nil {
		return none, fmt.Errorf("%w: not of the form scheme:address", ErrDSN) // the text may hold a password
	}
	open, ok := d[u.Scheme]
	if !ok {
		return none, fmt.Errorf("%w: no driver for %q (there is %s)", ErrDSN, u.Scheme, strings.Join(slices.Sorted(maps.Keys(d)), ", "))
	}
	s, err := open(ctx, u, log)
	if err != nil {
		shown := *u
		shown.RawQuery = "" // it may hold a password too
		return none, fmt.Errorf("open %s: %w", shown.Redacted(), err)
	}
	return s, nil
}

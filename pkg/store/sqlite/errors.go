package sqlite

import (
	"context"
	"errors"
	"fmt"

	driver "modernc.org/sqlite"
	lib "modernc.org/sqlite/lib"

	"github.com/imdhq/imd/pkg/im"
	"github.com/imdhq/imd/pkg/store"
	"github.com/imdhq/imd/sdk/go/gen/clientv1"
)

var errClosed = errors.New("the store is closed")

// cause names what a failure of SQLite means; nil if it has no name.
func cause(err error) error {
	var se *driver.Error
	if !errors.As(err, &se) {
		return nil
	}
	switch se.Code() & 0xff {
	case lib.SQLITE_FULL:
		return store.ErrFull
	case lib.SQLITE_READONLY:
		return store.ErrReadOnly
	case lib.SQLITE_CORRUPT, lib.SQLITE_NOTADB:
		return store.ErrCorrupt
	case lib.SQLITE_BUSY, lib.SQLITE_LOCKED:
		return store.ErrLocked
	}
	return nil
}

// doubtful reports whether a failed COMMIT may still take effect: after an I/O
// error its last page may be on the disk and be found by a recovery. All other
// failures leave nothing behind.
func doubtful(err error) bool {
	var se *driver.Error
	return !errors.As(err, &se) || se.Code()&0xff == lib.SQLITE_IOERR
}

// fault is how a failure of the store leaves an open store: unavailable to
// clients, with the cause for the log. Errors that a client should hear and
// ended contexts pass unchanged, as do the port's own words.
func fault(op string, err error) error {
	if err == nil {
		return nil
	}
	if e := (*im.Error)(nil); errors.As(err, &e) {
		return err
	}
	if errors.Is(err, store.ErrNotFound) || errors.Is(err, store.ErrFenced) || errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded) {
		return err
	}
	if c := cause(err); c != nil && !errors.Is(err, c) {
		err = fmt.Errorf("%w: %w", c, err)
	}
	return &im.Error{Reason: clientv1.Reason_REASON_UNAVAILABLE, Op: op, Msg: "the message store cannot do this now", Err: err}
}

// refuse is an error that a client hears.
func refuse(r im.Reason, op, format string, args ...any) *im.Error {
	return im.Errorf(r, op, format, args...)
}

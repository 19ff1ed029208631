package sqlite

import (
	"context"
	"errors"
	"net/url"
	"os"
	"path/filepath"
	"sync/atomic"
	"time"

	"go.uber.org/zap"

	"github.com/imdhq/imd/pkg/store"
	"github.com/imdhq/imd/pkg/store/rules"
)

// Options say which database to open.
type Options struct {
	Path string      // of the database file; its folder must exist
	Log  *zap.Logger // nil = silent

	filling bool // it may be half a copy
}

// Store is a store.MessageStore.
type Store struct {
	w       *writer
	readers chan *conn // those that are free
	all     []*conn    // every reader
	intake  rules.Intake
	closing atomic.Bool

	checkpoints *checkpointer
	calmer      *calmer
}

var _ store.MessageStore = (*Store)(nil)

// OpenURL is the driver's store.Opener: "sqlite:" and a path.
func OpenURL(ctx context.Context, u *url.URL, log *zap.Logger) (store.MessageStore, error) {
	path, err := Path(u)
	if err != nil {
		return nil, err
	}
	s, err := Open(ctx, Options{Path: path, Log: log})
	if err != nil {
		return nil, err // not s: a nil *Store in the interface
	}
	return s, nil
}

// Path is the database file that a data source name means. Errors: store.ErrDSN.
func Path(u *url.URL) (string, error) {
	path := u.Path
	if u.Opaque != "" {
		var err error
		if path, err = url.PathUnescape(u.Opaque); err != nil {
			return "", errors.Join(store.ErrDSN, err)
		}
	}
	if path == "" {
		return "", errors.Join(store.ErrDSN, errors.New("no path of the database file"))
	}
	return filepath.Clean(path), nil
}

// read gives fn a connection with a snapshot of the newest commit.
func (s *Store) read(ctx context.Context, fn func(*conn) error) error {
	var c *conn
	select {
	case c = <-s.readers:
	case <-ctx.Done():
		return ctx.Err()
	}
	defer func() { s.readers <- c }()
	if s.closing.Load() {
		return errClosed
	}
	if err := ctx.Err(); err != nil {
		return err
	}
	if err := c.open(ctx); err != nil {
		return err
	}
	if err := c.fit(&s.w.bustle); err != nil {
		return errors.Join(err, c.drop())
	}
	if _, err := c.exec("BEGIN"); err != nil {
		return errors.Join(err, c.drop())
	}
	defer func() {
		if _, err := c.exec("ROLLBACK"); err != nil {
			_ = c.drop() // a fresh connection next time
		}
	}()
	return fn(c)
}

// DataEpoch is store.MessageStore's. It never changes while the store is open.
func (s *Store) DataEpoch() string { return s.w.epoch }

// Newest is store.MessageStore's.
func (s *Store) Newest(ctx context.Context) (time.Time, error) {
	var ms int64
	err := s.read(ctx, func(c *conn) error {
		return c.row(`SELECT newest_ms FROM store WHERE id = 1`, nil, &ms)
	})
	return moment(ms), fault("store.Newest", err)
}

// Writers is 1: SQLite has one writer.
func (s *Store) Writers() int { return 1 }

// Ping is store.MessageStore's. A commit of the last second proves enough.
func (s *Store) Ping(ctx context.Context) error { return fault("store.Ping", s.w.ping(ctx)) }

// LogBytes is store.Logged's.
func (s *Store) LogBytes() int64 {
	n, _ := exists(s.checkpoints.data.Name() + "-wal")
	return n
}

// Close is store.MessageStore's.
func (s *Store) Close() error {
	s.closing.Store(true)
	s.intake.Close()
	s.checkpoints.end()
	s.calmer.end()
	s.w.turn <- struct{}{}
	defer func() { <-s.w.turn }()
	if s.w.closed {
		return nil
	}
	s.w.closed = true
	var errs []error
	for range s.all {
		c := <-s.readers
		errs = append(errs, c.drop())
	}
	for _, c := range s.all {
		s.readers <- c // calls that come too late are told so
	}
	errs = append(errs, s.all[0].db.Close(), s.w.stop(s.checkpoints.data))
	return errors.Join(errs...)
}

// stop marks the database as closed in order and frees everything. data, the
// checkpointer's, is closed after all connections, because that gives up the locks
// which this process has on the database, and before the next store may open it.
func (w *writer) stop(data *os.File) error {
	defer w.rest()
	var errs []error
	if err := w.open(context.Background()); err != nil {
		errs = append(errs, err)
	} else if _, err := w.exec(`UPDATE store SET clean = 1 WHERE id = 1`); err != nil && cause(err) != store.ErrFull {
		errs = append(errs, err) // on a full disk the next start checks the database, and that is all
	}
	errs = append(errs, w.drop(), w.db.Close(), data.Close(), w.side.f.Close())
	return errors.Join(errs...)
}

// exists reports whether path is there, and how large it is.
func exists(path string) (int64, bool) {
	fi, err := os.Stat(path)
	if err != nil {
		return 0, false
	}
	return fi.Size(), true
}

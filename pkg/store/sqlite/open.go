package sqlite

import (
	"context"
	"database/sql"
	"embed"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"strings"
	"time"

	"github.com/pressly/goose/v3"
	"go.uber.org/zap"

	"github.com/imdhq/imd/pkg/store"
)

//go:embed migrations/*.sql
var migrations embed.FS

const (
	// readers is how many snapshots can be read at once.
	readers = 4
	// checkLimit is how large a database may be, in bytes, to be checked whole
	// after an unclean stop.
	checkLimit = 256 << 20
	// checkTime bounds that check.
	checkTime = 5 * time.Second
)

// Open opens the database, making or migrating it, and holds it alone until
// Close. The error is one sentence; it wraps store.ErrSchema, ErrCorrupt,
// ErrReadOnly, ErrFull, ErrLocked or ErrUnfinished if it is one of these.
func Open(ctx context.Context, o Options) (_ *Store, err error) {
	if o.Log == nil {
		o.Log = zap.NewNop()
	}
	side, remembered, copied, err := openSide(o.Path) // first: only who holds the lock may touch the database
	if err != nil {
		return nil, err
	}
	w := &writer{turn: make(chan struct{}, 1), log: o.Log, side: side, cache: newCache()}
	defer func() {
		if err != nil {
			err = errors.Join(explain(o.Path, err), w.abandon())
		}
	}()
	if err := lost(o.Path, remembered); err != nil {
		return nil, err
	}
	if err := prepare(o.Path); err != nil {
		return nil, err
	}
	w.db, err = connect(o.Path, 1, "rwc", "busy_timeout(5000)", "journal_mode(WAL)", "synchronous(FULL)",
		fmt.Sprintf("wal_autocheckpoint(%d)", logPagesAtMost), "journal_size_limit(67108864)", writerRoom.pragma(), "temp_store(MEMORY)")
	if err != nil {
		return nil, err
	}
	w.room = writerRoom
	if err := migrate(ctx, w.db); err != nil {
		return nil, err
	}
	if err := spoil(ctx, w.db); err != nil {
		return nil, err
	}
	if err := w.conn.open(ctx); err != nil {
		return nil, err
	}
	if !o.filling {
		if err := unfinished(&w.conn, o.Path); err != nil {
			return nil, err
		}
	}
	if err := w.identify(ctx, o, remembered, copied); err != nil {
		return nil, err
	}
	if err := w.row(sqlFeeding, nil, &w.feeding); err != nil {
		return nil, err
	}
	rdb, err := connect(o.Path, readers, "ro", "busy_timeout(5000)", "query_only(1)", readerRoom.pragma(), "temp_store(MEMORY)")
	if err != nil {
		return nil, err
	}
	cp, err := newCheckpointer(w, o.Path, o.Log)
	if err != nil {
		return nil, errors.Join(err, rdb.Close())
	}
	go cp.run()
	s := &Store{w: w, readers: make(chan *conn, readers), checkpoints: cp}
	s.intake.Know = s.knowAll
	for range readers {
		c := &conn{db: rdb, room: readerRoom}
		s.all = append(s.all, c)
		s.readers <- c
	}
	s.calmer = newCalmer(s)
	go s.calmer.run()
	return s, nil
}

// abandon frees what a failed Open has opened.
func (w *writer) abandon() error {
	defer w.rest()
	err := w.drop()
	if w.db != nil {
		err = errors.Join(err, w.db.Close())
	}
	return errors.Join(err, w.side.f.Close())
}

// lost refuses a database that is missing or empty although there was one: all
// clients would throw away what they have for the sake of an empty store.
func lost(path string, remembered *mark) error {
	if size, _ := exists(path); remembered == nil || size > 0 {
		return nil
	}
	return fmt.Errorf("the database %s is missing or empty, but there was one with %d commits; put it back, restore it from a backup, or remove %s%s to begin with an empty one: %w",
		path, remembered.commits, path, sideSuffix, store.ErrCorrupt)
}

// prepare makes the file if there is none, for its owner only, and refuses one
// that is no database.
func prepare(path string) error {
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return fileFault(path, err)
	}
	defer f.Close() // nothing was written
	head := make([]byte, 16)
	n, err := io.ReadFull(f, head)
	if errors.Is(err, io.EOF) {
		return nil // new
	}
	if err != nil && !errors.Is(err, io.ErrUnexpectedEOF) {
		return fileFault(path, err)
	}
	if string(head[:n]) != "SQLite format 3\x00" {
		return damaged(path, "it is no SQLite database")
	}
	return nil
}

func damaged(path, how string) error {
	return fmt.Errorf("the database %s is damaged (%s); restore it from a backup: %w", path, strings.Join(strings.Fields(how), " "), store.ErrCorrupt)
}

// explain turns a failure of SQLite while opening into one sentence.
func explain(path string, err error) error {
	for _, known := range []error{store.ErrSchema, store.ErrCorrupt, store.ErrReadOnly, store.ErrFull, store.ErrLocked, store.ErrUnfinished, fs.ErrNotExist} {
		if errors.Is(err, known) {
			return err
		}
	}
	switch c := cause(err); c {
	case store.ErrCorrupt:
		return damaged(path, err.Error())
	case store.ErrReadOnly:
		return fmt.Errorf("the database %s cannot be written (read-only, or owned by another user): %w", path, c)
	case store.ErrFull:
		return fmt.Errorf("there is no space for the database %s: %w", path, c)
	case store.ErrLocked:
		return fmt.Errorf("the database %s is in use by a node or another command; stop that first: %w", path, c)
	}
	return fmt.Errorf("the database %s cannot be opened: %w", path, err)
}

// needed is the newest schema that this program knows: the number of the last
// migration.
func needed() int64 {
	files, err := migrations.ReadDir("migrations")
	if err != nil {
		panic(err) // it is embedded
	}
	newest, err := goose.NumericComponent(files[len(files)-1].Name()) // they are sorted
	if err != nil {
		panic(err) // a file has no number
	}
	return newest
}

// migrate brings the schema to the newest version that this program knows.
// Schemas only go forward.
func migrate(ctx context.Context, db *sql.DB) error {
	files, err := fs.Sub(migrations, "migrations")
	if err != nil {
		return err
	}
	p, err := goose.NewProvider(goose.DialectSQLite3, db, files, goose.WithDisableGlobalRegistry(true))
	if err != nil {
		return err
	}
	have, err := p.GetDBVersion(ctx)
	if err != nil {
		return err
	}
	if known := needed(); have > known {
		return fmt.Errorf("the database has schema %d and this program knows %d; install a newer imd: %w", have, known, store.ErrSchema)
	}
	_, err = p.Up(ctx)
	return err
}

const (
	sqlStore    = `SELECT data_epoch, commits, newest_ms, clean FROM store WHERE id = 1`
	sqlAddStore = `INSERT INTO store (id, data_epoch, commits, newest_ms, clean, probe) VALUES (1, ?, 0, 0, 1, x'')`
	sqlOpened   = `UPDATE store SET data_epoch = ?, commits = ?, clean = 0 WHERE id = 1`
)

// identify reads who the database is, decides on its data_epoch, and writes once,
// which proves that writing works. remembered and copied are those of openSide.
func (w *writer) identify(ctx context.Context, o Options, remembered *mark, copied bool) error {
	var m mark
	var clean bool
	err := w.row(sqlStore, nil, &m.epoch, &m.commits, &w.newest, &clean)
	if errors.Is(err, sql.ErrNoRows) { // the very first start
		m.epoch, clean = newEpoch(), true
		remembered = &m
		_, err = w.exec(sqlAddStore, m.epoch)
	}
	if err != nil {
		return err
	}
	if !clean {
		if err := w.check(ctx, o); err != nil {
			return err
		}
	}
	why := judge(m, remembered)
	if why == "" && copied {
		why = "the whole folder is a copy"
	}
	if why != "" {
		was := m.epoch
		m.epoch = newEpoch()
		o.Log.Warn("the store has a new data_epoch, clients will read everything anew",
			zap.String("reason", why), zap.String("was", was), zap.String("data_epoch", m.epoch))
	}
	m.commits++
	if _, err := w.exec(sqlOpened, m.epoch, m.commits); err != nil {
		return err
	}
	w.epoch, w.commits = m.epoch, m.commits
	w.committed.Store(m.commits)
	return fileFault(o.Path+sideSuffix, w.side.begin(m))
}

// check looks through a database that was not closed in order, if that can be
// done in time. SQLite repairs what a crash leaves; this finds broken hardware.
func (w *writer) check(ctx context.Context, o Options) error {
	size, _ := exists(o.Path)
	if size > checkLimit {
		o.Log.Info("large database not checked after an unclean stop", zap.Int64("bytes", size))
		return nil
	}
	bounded, cancel := context.WithTimeout(ctx, checkTime)
	defer cancel()
	var verdict string
	err := w.c.QueryRowContext(bounded, `PRAGMA quick_check(1)`).Scan(&verdict)
	if err != nil && bounded.Err() != nil && ctx.Err() == nil {
		o.Log.Warn("check of the database after an unclean stop took too long and was left")
		return nil
	}
	if err != nil {
		return err
	}
	if verdict != "ok" {
		return damaged(o.Path, verdict)
	}
	return nil
}

package sqlite

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"github.com/imdhq/imd/pkg/store"
)

// Installed says what Install has done.
type Installed struct {
	Facts         // of the database as it is in use now
	Was    string // the data_epoch that it had
	Former string // where the database is that was there before; "" = none was
	// Unread is why the former database could not be read, so that marks and
	// tokens go on from the copy alone; nil = it was, or there was none.
	Unread error
}

// Install puts the database file at from, a copy made by an Image, in the place
// of the one at path and gives it a new data_epoch, so that clients read
// everything anew instead of taking new entries for old ones. Marks of workers
// and tokens of fences go on from the higher of the two databases, marks at
// least from now, so that no message id and no token comes twice. The former
// database is kept beside path. At each moment, also after a crash, path is
// either the former database, unless that could not be read, or the new one. Both
// files must be in one file system; from is gone afterwards.
//
// Errors: one sentence; store.ErrLocked if a server uses path or somebody reads from
// it, store.ErrSchema, store.ErrCorrupt if from is damaged. Nothing at path has changed
// then.
func Install(ctx context.Context, path, from string) (_ *Installed, err error) {
	side, _, _, err := openSide(path)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, side.f.Close()) }()
	h := heights{workers: map[int]int64{}}
	var unread error
	if _, there := exists(path); there {
		unread = h.read(ctx, path) // it may be replaced because it cannot be read
	}
	in, err := renew(ctx, from, h)
	if err != nil {
		return nil, explain(from, err)
	}
	in.Unread = unread
	if _, there := exists(path); there && unread == nil {
		if err := fold(ctx, path); err != nil {
			return nil, explain(path, err)
		}
	}
	if err := ctx.Err(); err != nil {
		return nil, err // from here on it takes milliseconds
	}
	if in.Former, err = aside(path, time.Now()); err != nil {
		return nil, fileFault(path, err)
	}
	if err := os.Rename(from, path); err != nil {
		return nil, fileFault(path, err)
	}
	if err := syncFolder(path); err != nil {
		return nil, fileFault(path, err)
	}
	return in, fileFault(path+sideSuffix, side.begin(mark{in.DataEpoch, in.Commits}))
}

// heights are what must not go back.
type heights struct {
	commits int64
	workers map[int]int64 // mark in us
	fences  []store.Fence
}

// read reads them from the database at path.
func (h *heights) read(ctx context.Context, path string) error {
	return visit(ctx, path, "ro", "query_only(1)", func(c *conn) error {
		if err := c.row(`SELECT commits FROM store WHERE id = 1`, nil, &h.commits); err != nil {
			return err
		}
		err := c.each(ctx, `SELECT id, mark_us FROM worker`, nil, func(scan func(...any) error) error {
			var id int
			var us int64
			err := scan(&id, &us)
			h.workers[id] = us
			return err
		})
		if err != nil {
			return err
		}
		return c.each(ctx, `SELECT name, token, holder, cluster, revision, claimed_ms FROM fence`, nil, func(scan func(...any) error) error {
			f, err := scanFence(scan)
			h.fences = append(h.fences, f)
			return err
		})
	})
}

// fold copies what the write-ahead log of the database at path holds into it, so that
// it is whole without the log.
func fold(ctx context.Context, path string) error {
	return visit(ctx, path, "rw", "synchronous(FULL)", func(c *conn) error {
		var busy, pages, copied int64
		if err := c.row(`PRAGMA wal_checkpoint(TRUNCATE)`, nil, &busy, &pages, &copied); err != nil {
			return err
		}
		if busy != 0 {
			return fmt.Errorf("somebody reads from the database: %w", store.ErrLocked)
		}
		return nil
	})
}

// visit opens the database at path for f alone, with a mode and a pragma.
func visit(ctx context.Context, path, mode, pragma string, f func(*conn) error) (err error) {
	db, err := connect(path, 1, mode, "busy_timeout(5000)", pragma)
	if err != nil {
		return err
	}
	c := &conn{db: db}
	defer func() { err = errors.Join(err, c.drop(), db.Close()) }()
	if err := c.open(ctx); err != nil {
		return err
	}
	return f(c)
}

const (
	sqlRaiseWorkers = `UPDATE worker SET mark_us = max(mark_us, ?)`
	sqlRaiseWorker  = `INSERT INTO worker (id, mark_us) VALUES (?, ?) ON CONFLICT (id) DO UPDATE SET mark_us = max(mark_us, excluded.mark_us)`
	sqlRaiseFence   = sqlPutFence + ` WHERE excluded.token > fence.token`
)

// renew checks the copy at path and makes it a store with a history of its own.
func renew(ctx context.Context, path string, h heights) (_ *Installed, err error) {
	if err := prepare(path); err != nil {
		return nil, err
	}
	// No write-ahead log: when this is done there is one file, which can be moved.
	db, err := connect(path, 1, "rw", "busy_timeout(5000)", "journal_mode(DELETE)", "synchronous(FULL)")
	if err != nil {
		return nil, err
	}
	c := &conn{db: db}
	defer func() { err = errors.Join(err, c.drop(), db.Close()) }()
	if err := migrate(ctx, db); err != nil {
		return nil, err
	}
	if err := c.open(ctx); err != nil {
		return nil, err
	}
	if err := c.sound(ctx); err != nil {
		return nil, err
	}
	in := &Installed{}
	if in.Facts, err = c.facts(ctx); err != nil {
		return nil, err
	}
	in.Was, in.DataEpoch = in.DataEpoch, newEpoch()
	in.Commits = max(in.Commits, h.commits) + 1
	in.Bytes, _ = exists(path)
	return in, c.raise(in, h)
}

// sound looks through the whole database.
func (c *conn) sound(ctx context.Context) error {
	var verdict string
	if err := c.c.QueryRowContext(ctx, `PRAGMA quick_check(1)`).Scan(&verdict); err != nil {
		return err
	}
	if verdict != "ok" {
		return fmt.Errorf("%w: %s", store.ErrCorrupt, verdict)
	}
	return nil
}

// raise writes the new history and what must not go back, in one transaction.
func (c *conn) raise(in *Installed, h heights) (err error) {
	if _, err := c.exec("BEGIN IMMEDIATE"); err != nil {
		return err
	}
	defer func() {
		if err != nil {
			_, rerr := c.exec("ROLLBACK")
			err = errors.Join(err, rerr)
		}
	}()
	if _, err := c.exec(sqlOpened, in.DataEpoch, in.Commits); err != nil {
		return err
	}
	if _, err := c.exec(`UPDATE store SET clean = 1 WHERE id = 1`); err != nil {
		return err
	}
	if _, err := c.exec(sqlRaiseWorkers, time.Now().UnixMicro()); err != nil {
		return err
	}
	for id, us := range h.workers {
		if _, err := c.exec(sqlRaiseWorker, id, us); err != nil {
			return err
		}
	}
	for _, f := range h.fences {
		if _, err := c.exec(sqlRaiseFence, f.Name, f.Token, f.Holder, f.Cluster, f.Revision, f.Claimed.UnixMilli()); err != nil {
			return err
		}
	}
	if _, err := c.exec(`DELETE FROM worker_lease`); err != nil { // of processes that are gone
		return err
	}
	_, err = c.exec("COMMIT")
	return err
}

// aside keeps the database at path under another name, beside it. path itself
// stays until something is put over it, but for its write-ahead log: it belongs
// to the former database and must never meet another one. What it holds was folded
// in before, or path would not be whole after a crash here.
func aside(path string, now time.Time) (string, error) {
	if _, there := exists(path); !there {
		return "", remove(path+"-wal", path+"-shm")
	}
	name := path + now.UTC().Format(".before-20060102T150405.000Z")
	if err := os.Link(path, name); err != nil {
		return "", err
	}
	if err := os.Rename(path+"-wal", name+"-wal"); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return "", err
	}
	if err := remove(path + "-shm"); err != nil {
		return "", err
	}
	return name, syncFolder(path)
}

// remove removes files that may be there.
func remove(paths ...string) error {
	for _, p := range paths {
		if err := os.Remove(p); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	return nil
}

func syncFolder(path string) error {
	d, err := os.Open(filepath.Dir(path))
	if err != nil {
		return err
	}
	defer d.Close() // nothing was written through it
	return d.Sync()
}

// NewEpoch gives the database at path, which no server may be using, a new
// data_epoch: for one that was put back in a way that cannot be noticed.
//
// Errors: as Open; fs.ErrNotExist.
func NewEpoch(ctx context.Context, path string) (was, now string, err error) {
	if _, there := exists(path); !there {
		return "", "", fmt.Errorf("the database %s: %w", path, fs.ErrNotExist)
	}
	s, err := Open(ctx, Options{Path: path})
	if err != nil {
		return "", "", err
	}
	was, now = s.DataEpoch(), newEpoch()
	err = s.w.run(ctx, func(t *tx) error {
		t.changed = true
		t.epoch = now // for the mark that the commit writes
		_, err := t.exec(`UPDATE store SET data_epoch = ? WHERE id = 1`, now)
		return err
	})
	return was, now, errors.Join(err, s.Close())
}

package sqlite

import (
	"context"
	"errors"
	"os"
	"sync"
	"time"

	"go.uber.org/zap"

	"github.com/imdhq/imd/pkg/obs"
)

const (
	// checkpointPause is the time between two looks at what was committed, and
	// checkpointCommits is for how many commits one copies.
	checkpointPause   = 250 * time.Millisecond
	checkpointCommits = 16
	// logPages is how many pages the log may hold before it begins anew, in
	// which the writer waits for a moment.
	logPages = 6000
	// logPart is which part of them may be left to copy for that. More are left
	// while a reader stays at an old snapshot, and then waiting would be in vain.
	logPart = 4
	// renewWait is how long the writer waits at most for readers who use the log; it
	// doubles with each logPages more in the log, up to renewMost. So a log beside which
	// somebody always reads for longer than that ends growing when the writer waits
	// for as long as they read. renewRest times as long it then works in any case.
	renewWait = 20 * time.Millisecond
	renewMost = time.Second
	renewRest = 25
	// logPagesAtMost is when the writer itself copies, after its commit: a single
	// transaction was large, or nobody else could.
	logPagesAtMost = 32_000
)

// checkpointer copies pages from the log into the database while the writer goes
// on, so that hardly any are left when the writer has to wait: the log begins anew
// only when all of it is copied, which takes the writer's turn.
type checkpointer struct {
	w    *writer
	log  *zap.Logger
	conn conn
	// data is the database file, to flush it beside the writer. It is closed after
	// all connections: closing it gives up their locks.
	data *os.File
	seen int64 // commits at the last look
	sick bool  // the last copy failed
	// rested is when the writer may be asked to wait again.
	rested time.Time

	once       sync.Once
	quit, done chan struct{}
}

// newCheckpointer opens what copying needs; run copies.
func newCheckpointer(w *writer, path string, log *zap.Logger) (*checkpointer, error) {
	db, err := connect(path, 1, "rw", "synchronous(FULL)")
	if err != nil {
		return nil, err
	}
	data, err := os.OpenFile(path, os.O_RDWR, 0) // to flush needs the right to write on some systems
	if err != nil {
		return nil, errors.Join(fileFault(path, err), db.Close())
	}
	return &checkpointer{w: w, log: log, conn: conn{db: db}, data: data, seen: w.committed.Load(), quit: make(chan struct{}), done: make(chan struct{})}, nil
}

// end waits for a copy that is under way, and closes the connection, not the file.
func (c *checkpointer) end() {
	c.once.Do(func() { close(c.quit) })
	<-c.done
}

// run copies until end.
func (c *checkpointer) run() {
	defer close(c.done)
	tick := time.NewTicker(checkpointPause)
	defer tick.Stop()
	for {
		select {
		case <-c.quit:
			if err := errors.Join(c.conn.drop(), c.conn.db.Close()); err != nil {
				c.log.Debug("the connection for checkpoints was not closed in order", obs.Err(err))
			}
			return
		case <-tick.C:
		}
		now := c.w.committed.Load()
		if now-c.seen < checkpointCommits {
			continue
		}
		c.seen = now
		err := c.look()
		if err != nil && !c.sick { // the writer copies when the log is too long, and says what is wrong
			c.log.Warn("pages are not copied from the log into the database; the log grows until the writer does it", obs.Err(err))
		}
		c.sick = err != nil
	}
}

const (
	sqlCopy  = `PRAGMA wal_checkpoint(PASSIVE)` // waits for nobody
	sqlRenew = `PRAGMA wal_checkpoint(RESTART)` // and then waits until nobody reads from the log
)

// look copies what can be copied beside the writer, and all if the log is long.
func (c *checkpointer) look() error {
	pages, copied, err := c.copy(sqlCopy)
	if err != nil || pages < logPages || pages-copied > pages/logPart || time.Now().Before(c.rested) {
		return err
	}
	if err := c.data.Sync(); err != nil { // what is left to flush then is little
		return err
	}
	select {
	case c.w.turn <- struct{}{}:
	case <-c.quit:
		return nil
	}
	defer func() { <-c.w.turn }()
	return c.renew(patience(pages))
}

// patience is how long the writer may wait for a log of so many pages to begin anew.
func patience(pages int64) time.Duration {
	wait := renewWait
	for ; pages >= 2*logPages && wait < renewMost; pages -= logPages {
		wait *= 2
	}
	return min(wait, renewMost)
}

// renew lets the log begin anew once nobody reads from it, if that is within wait. The
// caller has the writer's turn.
func (c *checkpointer) renew(wait time.Duration) error {
	if err := c.conn.open(context.Background()); err != nil {
		return err
	}
	if err := c.conn.pragma("busy_timeout", wait.Milliseconds()); err != nil {
		return errors.Join(err, c.conn.drop())
	}
	began := time.Now()
	_, _, err := c.copy(sqlRenew)
	c.rested = time.Now().Add(renewRest * time.Since(began))
	return err
}

// copy copies pages up to the oldest that a reader still needs, and returns how
// many the log holds and how many of them are copied; -1 if somebody else copies.
func (c *checkpointer) copy(query string) (pages, copied int64, err error) {
	if err := c.conn.open(context.Background()); err != nil {
		return 0, 0, err
	}
	var busy int64
	if err := c.conn.row(query, nil, &busy, &pages, &copied); err != nil {
		return 0, 0, errors.Join(err, c.conn.drop())
	}
	return pages, copied, nil
}

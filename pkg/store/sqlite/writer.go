package sqlite

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"time"

	"go.uber.org/zap"

	"github.com/imdhq/imd/pkg/failpoint"
	"github.com/imdhq/imd/pkg/im"
	"github.com/imdhq/imd/pkg/obs"
	"github.com/imdhq/imd/pkg/store"
	"github.com/imdhq/imd/sdk/go/gen/clientv1"
)

// writer is the only one that changes the database.
type writer struct {
	turn chan struct{} // capacity 1: who puts into it may write

	committed atomic.Int64 // commits, for everybody; behind it for a moment
	bustle    bustle       // of all connections

	// All below belongs to the holder of the turn.
	conn
	log     *zap.Logger
	side    *sideFile
	epoch   string
	commits int64
	newest  int64 // ms
	cache   *cache
	feeding bool // commits leave marks for the outbox
	closed  bool
	hand    chan func() // capacity 1: what the goroutine of transactions does next; nil = there is none yet
	sick    bool        // the last write failed
	wrote   time.Time   // of the last commit that did not
}

// tx is one transaction of the writer.
type tx struct {
	*writer
	now     time.Time // the server time of its entries, whole milliseconds
	version int64     // the number of its commit
	changed bool
	newest  int64
	dirty   []*conversation          // changed in memory: flushed before, dropped if it fails
	grown   map[*conversation]im.Seq // heads before those that have new entries
	feeds   *bool                    // what feeding is to become
	proving bool                     // it changes notes of sessions
}

// run gives fn a transaction and commits it if fn changed something. fn's error
// undoes everything and is returned. When ctx is done first, run returns and
// the transaction goes on behind it: what fn writes may be read only after a
// run without error.
//
// Errors: those of fn; of ctx before the transaction has begun; ErrUnknownOutcome.
func (w *writer) run(ctx context.Context, fn func(*tx) error) error {
	select {
	case w.turn <- struct{}{}:
	case <-ctx.Done():
		return ctx.Err()
	}
	if err := w.begin(ctx); err != nil {
		<-w.turn
		return err
	}
	done := make(chan error, 2) // nobody may be waiting any more; a known-bad build answers twice
	w.do(func() {
		defer func() { <-w.turn }()
		done <- w.transact(early(fn, done))
	})
	select {
	case err := <-done:
		return err
	case <-ctx.Done():
		return fmt.Errorf("%w: %w", store.ErrUnknownOutcome, ctx.Err())
	}
}

// do has f done by the goroutine of transactions, which stays: a new one would have
// to grow its stack for each.
func (w *writer) do(f func()) {
	if w.hand == nil {
		hand := make(chan func(), 1)
		w.hand = hand
		go func() {
			for f := range hand {
				f()
			}
		}()
	}
	w.hand <- f
}

// rest ends the goroutine of transactions.
func (w *writer) rest() {
	if w.hand != nil {
		close(w.hand)
		w.hand = nil
	}
}

// begin opens a transaction. It waits until ctx is done for another process
// that holds the lock.
func (w *writer) begin(ctx context.Context) error {
	if w.closed {
		return errClosed
	}
	if err := ctx.Err(); err != nil {
		return err
	}
	if err := w.open(ctx); err != nil {
		return err
	}
	if err := w.fit(&w.bustle); err != nil {
		return errors.Join(err, w.drop())
	}
	s, err := w.stmt("BEGIN IMMEDIATE")
	if err != nil {
		return errors.Join(err, w.drop())
	}
	if _, err = s.ExecContext(ctx); err != nil {
		w.sick = w.sick || cause(err) != nil
		w.rollback() // it may have begun
	}
	return err
}

// rollback ends whatever transaction there is.
func (w *writer) rollback() {
	_, err := w.exec("ROLLBACK")
	if err != nil && !errors.Is(err, errLost) && !noTransaction(err) {
		w.log.Warn("rollback failed, reconnecting", obs.Err(errors.Join(err, w.drop())))
	}
}

// transact runs fn in the transaction that begin has opened, and ends it.
func (w *writer) transact(fn func(*tx) error) (err error) {
	t := &tx{writer: w, now: time.UnixMilli(failpoint.Now().UnixMilli()), version: w.commits + 1, newest: w.newest}
	settled := false
	defer func() {
		if p := recover(); p != nil {
			w.log.Error("panic in a transaction", zap.Any("panic", p), zap.Stack("stack"))
			err = fmt.Errorf("panic: %v", p)
		}
		if !settled {
			t.undo()
		}
	}()
	if err := fn(t); err != nil {
		w.sick = w.sick || cause(err) != nil
		return err
	}
	if !t.changed {
		return nil
	}
	if err := t.commit(); err != nil {
		return err
	}
	settled = true
	return nil
}

const sqlStamp = `UPDATE store SET commits = ?, newest_ms = ? WHERE id = 1`

// commit makes the transaction durable.
func (t *tx) commit() error {
	for _, c := range t.dirty {
		if err := t.flush(c); err != nil {
			return err
		}
	}
	if err := t.mark(); err != nil {
		return err
	}
	if _, err := t.exec(sqlStamp, t.version, t.newest); err != nil {
		return err
	}
	if err := failpoint.Error(failpoint.BeforeCommit); err != nil {
		return err
	}
	if _, err := t.exec("COMMIT"); err != nil {
		t.sick = true
		if doubtful(err) {
			return fmt.Errorf("commit: %w: %w", store.ErrUnknownOutcome, err)
		}
		return fmt.Errorf("commit: %w", err)
	}
	failpoint.Hit(failpoint.AfterCommit)
	t.writer.commits, t.writer.newest = t.version, t.newest
	t.committed.Store(t.version)
	if t.feeds != nil {
		t.feeding = *t.feeds
	}
	t.sick, t.wrote = false, time.Now()
	if err := t.side.write(mark{t.epoch, t.version}); err != nil {
		// The next commit writes it again; until then a restored copy could pass
		// unnoticed, which is no reason to deny what is stored.
		t.log.Warn("mark beside the database not written", obs.Err(err))
	}
	for _, c := range t.dirty {
		c.dirty = false
	}
	t.cache.trim()
	return nil
}

// undo takes everything back, in memory too.
func (t *tx) undo() {
	for _, c := range t.dirty {
		t.cache.remove(c)
	}
	t.rollback()
	t.cache.trim()
}

// noTransaction reports that a failed COMMIT has already ended the transaction.
func noTransaction(err error) bool {
	return strings.Contains(err.Error(), "no transaction is active")
}

const (
	sqlProbe = `UPDATE store SET probe = zeroblob(?) WHERE id = 1`
	// probeSize is what must fit before a store that failed counts as well again.
	probeSize = 64 << 10
	// pingPause is how long a commit stands for a ping.
	pingPause = time.Second
)

// ping proves that writing works: a commit of the last second is proof; after a
// failed one there must be space for a larger write.
func (w *writer) ping(ctx context.Context) error {
	recent, size := false, 0
	err := w.run(ctx, func(t *tx) error {
		if recent = !t.sick && time.Since(t.wrote) < pingPause; recent {
			return nil
		}
		if t.sick {
			size = probeSize
		}
		t.changed = true
		_, err := t.exec(sqlProbe, size)
		return err
	})
	if err != nil || size == 0 {
		return err
	}
	return w.run(ctx, func(t *tx) error {
		t.changed = true
		_, err := t.exec(sqlProbe, 0)
		return err
	})
}

// entry is an entry to write, with the hash of a send.
type entry struct {
	im.Entry
	hash []byte // nil for changes
}

const sqlInsertEntry = `INSERT INTO entry (conv, seq, prev_seq, kind, countable, sender, message_id,
  client_message_id, server_time_ms, target_seq, changed_seq, body_hash, change, content)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, 0, ?, ?, ?) ON CONFLICT DO NOTHING`

// insert writes e behind the head of c and sets its seq, predecessor and time.
// It returns false if its key or its seq is taken; nothing has changed then.
func (t *tx) insert(c *conversation, e *entry) (bool, error) {
	e.Seq, e.PrevSeq, e.ServerTime = c.Head+1, c.Head, t.now
	n, err := t.exec(sqlInsertEntry, c.num, e.Seq, e.PrevSeq, e.Kind, e.Countable, string(e.Sender), e.MessageID,
		key(e.ClientMessageID), e.ServerTime.UnixMilli(), e.TargetSeq, e.hash, e.Change, e.Content)
	if err != nil || n == 0 {
		return false, err
	}
	t.touch(c)
	if t.feeding {
		t.grows(c)
	}
	t.newest = max(t.newest, t.now.UnixMilli())
	c.Head, c.headVersion = e.Seq, t.version
	return true, nil
}

// grows remembers where the head of c was before the transaction.
func (t *tx) grows(c *conversation) {
	if t.grown == nil {
		t.grown = map[*conversation]im.Seq{}
	}
	if _, ok := t.grown[c]; !ok {
		t.grown[c] = c.Head
	}
}

const sqlTop = `SELECT seq FROM entry WHERE conv = ? ORDER BY seq DESC LIMIT 1`

// heal moves the head of c past an entry that somebody else has written above
// it, so that numbering goes on. False if that is not what was wrong.
func (t *tx) heal(c *conversation) (bool, error) {
	var top im.Seq
	if err := t.row(sqlTop, []any{c.num}, &top); err != nil && !errors.Is(err, sql.ErrNoRows) {
		return false, err
	}
	if top <= c.Head {
		return false, nil
	}
	t.log.Error("head of a conversation was behind its log", obs.Conv(c.ID), obs.Seq(top),
		zap.Int64("head", int64(c.Head)))
	t.touch(c)
	if t.feeding {
		t.grows(c)
	}
	c.Head, c.headVersion = top, t.version
	return true, nil
}

// number inserts an entry that make builds for a given seq. False if its key
// is taken.
func (t *tx) number(c *conversation, make func(im.Seq) *entry) (*entry, bool, error) {
	for range 2 {
		e := make(c.Head + 1)
		if ok, err := t.insert(c, e); ok || err != nil {
			return e, ok, err
		}
		if healed, err := t.heal(c); !healed || err != nil {
			return nil, false, err
		}
	}
	return nil, false, refuse(clientv1.Reason_REASON_UNAVAILABLE, "sqlite.number", "the next number is taken")
}

package postgres

import (
	"context"
	"runtime"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
	"go.uber.org/zap"

	"github.com/imdhq/imd/pkg/store"
	"github.com/imdhq/imd/pkg/store/rules"
)

// Store is a store.MessageStore.
type Store struct {
	appends *pool // Append and Change, and few other changes at a time
	reads   *pool
	side    chan struct{} // who puts into it may make another change; its capacity is what appends leave free
	writers int
	// allocator is the one that the node is set to, "" = any; recorded is that of
	// the store.
	allocator string
	recorded  atomic.Value // string
	log       *zap.Logger
	owner     *owner // who numbers under the allocator segment; nil under transaction
	intake    rules.Intake
	known     known
	epoch     atomic.Pointer[string]
	wrote     atomic.Int64 // when a change was last known to be made, Unix nanoseconds
}

var _ store.MessageStore = (*Store)(nil)

// sideCalls is how many changes other than appends are under way at once.
const sideCalls = 2

// writersFor is how many batches may usefully be under way: more of them than
// processors only wait for each other.
func writersFor(processors int) int { return min(max(processors, 2), 4) }

// readsFor is how many reads are under way at once.
func readsFor(processors int) int { return 4 * processors }

// connsFor is how many connections a node opens at most.
func connsFor(processors int) int { return writersFor(processors) + sideCalls + readsFor(processors) }

func processors() int { return runtime.GOMAXPROCS(0) }

// read runs fn on a connection of the reading pool.
func read[T any](ctx context.Context, s *Store, fn func(context.Context, *pgx.Conn) (T, error)) (T, error) {
	return call(ctx, s.reads, false, fn)
}

// change runs fn, which changes something, on a connection of the appending
// pool, of which appends keep their share.
func change[T any](ctx context.Context, s *Store, fn func(context.Context, *pgx.Conn) (T, error)) (T, error) {
	var none T
	select {
	case s.side <- struct{}{}:
	case <-ctx.Done():
		return none, ctx.Err()
	}
	c, err := s.appends.take(ctx)
	if err != nil {
		<-s.side
		return none, err
	}
	return with(ctx, s.appends, c, true, func(ctx context.Context, c *pgx.Conn) (T, error) {
		defer func() { <-s.side }()
		return fn(ctx, c)
	})
}

// exec runs one statement that changes something and returns how many rows it
// changed.
func (s *Store) exec(ctx context.Context, op, query string, args ...any) (int64, error) {
	n, err := change(ctx, s, func(ctx context.Context, c *pgx.Conn) (int64, error) {
		tag, err := c.Exec(ctx, query, args...)
		return tag.RowsAffected(), err
	})
	return n, fault(op, err)
}

// DataEpoch is store.MessageStore's. It changes while the store is open when a
// new connection finds another history.
func (s *Store) DataEpoch() string { return *s.epoch.Load() }

// Newest is store.MessageStore's.
func (s *Store) Newest(ctx context.Context) (time.Time, error) {
	n, err := read(ctx, s, func(ctx context.Context, c *pgx.Conn) (n int64, err error) {
		err = c.QueryRow(ctx, `SELECT max(newest_ms) FROM slot`).Scan(&n)
		return n, err
	})
	return moment(n), fault("store.Newest", err)
}

// Writers is store.MessageStore's.
func (s *Store) Writers() int { return s.writers }

// Pools is store.Pooled's.
func (s *Store) Pools() []store.Pool {
	return []store.Pool{s.appends.stat("append"), s.reads.stat("read")}
}

// pingPause is how long a change stands for a ping.
const pingPause = time.Second

// Ping is store.MessageStore's. A change of the last second proves enough.
func (s *Store) Ping(ctx context.Context) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	if time.Since(time.Unix(0, s.wrote.Load())) < pingPause {
		return nil
	}
	_, err := s.exec(ctx, "store.Ping", `UPDATE slot SET probes = probes + 1 WHERE id = pg_backend_pid() % 64`)
	if err == nil {
		s.wrote.Store(time.Now().UnixNano())
	}
	return err
}

// Close is store.MessageStore's.
func (s *Store) Close() error {
	s.intake.Close()
	if s.owner != nil {
		s.owner.close()
	}
	s.appends.Close()
	s.reads.Close()
	return nil
}

// millis is how times are stored; the zero time is 0.
func millis(t time.Time) int64 {
	if t.IsZero() {
		return 0
	}
	return t.UnixMilli()
}

// moment is the reverse of millis.
func moment(ms int64) time.Time {
	if ms == 0 {
		return time.Time{}
	}
	return time.UnixMilli(ms)
}

package postgres

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/imdhq/imd/pkg/store"
)

// limits bound the calls of a pool. The server ends a statement before the
// client gives the connection up, so that the outcome is known nearly always.
type limits struct {
	conns     int
	lock      time.Duration // the server's, waiting for one lock
	statement time.Duration // the server's, for one statement
	call      time.Duration // the client's, from the first byte sent
	wait      time.Duration // for a free connection
}

const (
	// idleInTransaction ends the session of a client that stopped within a
	// transaction.
	idleInTransaction = 5 * time.Second
	connectTime       = 3 * time.Second
	healthPeriod      = 5 * time.Second
	maxLifetime       = 30 * time.Minute
)

// pool is a bounded set of connections with the limits of its calls.
type pool struct {
	*pgxpool.Pool
	limits
}

// newPool makes a pool; it connects when it is used.
func newPool(base *pgxpool.Config, l limits, after func(context.Context, *pgx.Conn) error) (*pool, error) {
	c := base.Copy()
	c.MaxConns = int32(l.conns)
	c.MinConns = 0
	c.HealthCheckPeriod, c.MaxConnLifetime, c.MaxConnLifetimeJitter = healthPeriod, maxLifetime, maxLifetime/10
	c.MaxConnIdleTime = maxLifetime
	c.ConnConfig.ConnectTimeout = connectTime
	// A ping before a call would be cut off with its caller, and each cut costs a
	// connection. A dead connection shows in the call, which then runs again.
	c.ShouldPing = func(context.Context, pgxpool.ShouldPingParams) bool { return false }
	c.AfterConnect = func(ctx context.Context, conn *pgx.Conn) error {
		ctx, cancel := context.WithTimeout(ctx, connectTime)
		defer cancel()
		if err := l.apply(ctx, conn); err != nil {
			return err
		}
		return after(ctx, conn)
	}
	p, err := pgxpool.NewWithConfig(context.Background(), c)
	if err != nil {
		return nil, err
	}
	return &pool{Pool: p, limits: l}, nil
}

// apply sets up a session. They are not start-up parameters, because poolers
// refuse those that they do not know. Plans are bound to indexes: statistics of
// an empty or a foreign table must not lead to one that reads everything.
func (l limits) apply(ctx context.Context, conn *pgx.Conn) error {
	rows, err := conn.Query(ctx, `SELECT set_config(n, v, false) FROM unnest($1::text[], $2::text[]) AS s (n, v)`,
		[]string{
			"statement_timeout", "lock_timeout", "idle_in_transaction_session_timeout",
			"enable_seqscan", "enable_hashjoin", "enable_mergejoin", "jit", "plan_cache_mode", "default_transaction_isolation",
		},
		[]string{ms(l.statement), ms(l.lock), ms(idleInTransaction), "off", "off", "off", "off", "force_generic_plan", "read committed"})
	if err != nil {
		return err
	}
	rows.Close()
	return rows.Err()
}

func ms(d time.Duration) string { return fmt.Sprint(d.Milliseconds()) }

// stat says how the pool is used.
func (p *pool) stat(name string) store.Pool {
	s := p.Stat()
	return store.Pool{
		Name: name, Most: int(s.MaxConns()), Open: int(s.TotalConns()), InUse: int(s.AcquiredConns()),
		Waits: s.EmptyAcquireCount(), Waited: s.EmptyAcquireWaitTime(), GivenUp: s.CanceledAcquireCount(),
	}
}

// outcome is what a call ended with.
type outcome[T any] struct {
	value T
	err   error
}

// call gives fn a connection and returns what it returns. When ctx is done
// first, call returns and fn goes on behind it within the pool's limit, keeping
// its connection: cutting a call off costs the connection, and a server that
// stalls would get new ones for each.
//
// changes says that fn may change something; without it, fn runs once more if
// its connection turns out to be dead, as all are after a restart of the server.
// Errors: those of fn; ctx's; *unreachable if nothing was sent; with changes,
// ErrUnknownOutcome.
func call[T any](ctx context.Context, p *pool, changes bool, fn func(context.Context, *pgx.Conn) (T, error)) (T, error) {
	var none T
	for again := false; ; again = true {
		if err := ctx.Err(); err != nil {
			return none, err
		}
		c, err := p.take(ctx)
		if err != nil {
			return none, err
		}
		v, err := with(ctx, p, c, changes, fn)
		if changes || again || !gone(err) {
			return v, err
		}
	}
}

// with is call on a connection that was taken.
func with[T any](ctx context.Context, p *pool, c *pgxpool.Conn, changes bool, fn func(context.Context, *pgx.Conn) (T, error)) (T, error) {
	var none T
	done := make(chan outcome[T], 1) // nobody may be waiting any more
	go func() {
		done <- carry(ctx, p, c, changes, fn)
	}()
	select {
	case o := <-done:
		return o.value, o.err
	case <-ctx.Done():
		if changes {
			return none, unsure(ctx.Err())
		}
		return none, ctx.Err()
	}
}

// take waits for a free connection.
func (p *pool) take(ctx context.Context) (*pgxpool.Conn, error) {
	bounded, cancel := context.WithTimeout(ctx, p.wait)
	defer cancel()
	c, err := p.Acquire(bounded)
	switch {
	case err == nil:
		return c, nil
	case ctx.Err() != nil:
		return nil, ctx.Err()
	case bounded.Err() != nil:
		return nil, &unreachable{errors.New("no connection to the database was free in time")}
	}
	return nil, &unreachable{err}
}

// carry runs fn and gives the connection back.
func carry[T any](ctx context.Context, p *pool, c *pgxpool.Conn, changes bool, fn func(context.Context, *pgx.Conn) (T, error)) (o outcome[T]) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), p.call)
	defer cancel()
	defer c.Release() // closes a connection that is broken or left in a transaction
	defer func() {
		if r := recover(); r != nil {
			o.err = fmt.Errorf("panic: %v", r)
			_ = c.Conn().Close(ctx) // whatever state it is in
		}
		if gone(o.err) {
			p.Reset() // the others are dead too, or will be soon
		}
		if o.err != nil && changes && doubtful(o.err) {
			o.err = unsure(o.err)
		} else if o.err != nil && ctx.Err() != nil {
			o.err = fmt.Errorf("the database did not answer within %v", p.call)
		}
	}()
	o.value, o.err = fn(ctx, c.Conn())
	return o
}

// Package tamper does to a Postgres server what operators, mistakes and other
// programs do to it, for drills: it ends sessions while they commit, holds rows,
// and takes all connections. It also takes down who was elected and what leaders
// did, as the database decided it.
package tamper

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// callLimit bounds each call and each connecting.
const callLimit = 3 * time.Second

// mostStrangers bounds the connections that Exhaust takes.
const mostStrangers = 500

// Server is a server of a drill. Safe for concurrent use: each call has a
// connection of its own.
type Server struct {
	admin, dsn string
}

// New names a server by a data source name of its database postgres and one of
// the database that nodes use, both with all rights. It makes no call.
func New(admin, dsn string) *Server { return &Server{admin: admin, dsn: dsn} }

// connect opens a connection that is no one's but the caller's.
func connect(ctx context.Context, dsn string) (*pgx.Conn, error) {
	ctx, cancel := context.WithTimeout(ctx, callLimit)
	defer cancel()
	return pgx.Connect(ctx, dsn)
}

// with makes one call over a connection of its own.
func with(ctx context.Context, dsn string, do func(context.Context, *pgx.Conn) error) error {
	c, err := connect(ctx, dsn)
	if err != nil {
		return err
	}
	call, cancel := context.WithTimeout(ctx, callLimit)
	defer cancel()
	return errors.Join(do(call, c), hangUp(c))
}

// hangUp ends a connection, also when the drill is ending.
func hangUp(c *pgx.Conn) error {
	ctx, cancel := context.WithTimeout(context.Background(), callLimit)
	defer cancel()
	return c.Close(ctx)
}

// Ready reports whether the server takes connections.
func (s *Server) Ready(ctx context.Context) bool {
	return with(ctx, s.admin, func(ctx context.Context, c *pgx.Conn) error { return c.Ping(ctx) }) == nil
}

// Create makes an empty database. name is taken as it is.
func (s *Server) Create(ctx context.Context, name string) error {
	return s.exec(ctx, s.admin, "CREATE DATABASE "+pgx.Identifier{name}.Sanitize())
}

func (s *Server) exec(ctx context.Context, dsn, statement string, args ...any) error {
	return with(ctx, dsn, func(ctx context.Context, c *pgx.Conn) error {
		_, err := c.Exec(ctx, statement, args...)
		return err
	})
}

// Terminate ends the sessions of nodes and says how many: with atWork only those
// that carry out a statement or commit at this moment.
func (s *Server) Terminate(ctx context.Context, atWork bool) (ended int, err error) {
	err = with(ctx, s.admin, func(ctx context.Context, c *pgx.Conn) error {
		return c.QueryRow(ctx, `SELECT count(*) FROM (
			SELECT pg_terminate_backend(pid) AS done FROM pg_stat_activity WHERE application_name = 'imd' AND (state <> 'idle' OR NOT $1)) t WHERE done`, atWork).Scan(&ended)
	})
	return ended, err
}

// Hold locks the rows of conversations as a stranger would, until release is
// called. It waits for the locks for some seconds at most. Conversations that are
// not there are passed by.
func (s *Server) Hold(ctx context.Context, conversations []string) (release func() error, err error) {
	c, err := connect(ctx, s.dsn)
	if err != nil {
		return nil, err
	}
	call, cancel := context.WithTimeout(ctx, callLimit)
	defer cancel()
	if _, err = c.Exec(call, "BEGIN"); err == nil {
		_, err = c.Exec(call, "SELECT 1 FROM conversation WHERE id = ANY ($1) ORDER BY id FOR UPDATE", conversations)
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("hold conversations: %w", err), hangUp(c))
	}
	return func() error { return hangUp(c) }, nil // what is open ends with the connection
}

// Exhaust takes connections until the server has none left, and ends the sessions
// of nodes, which then find none. It holds on until ctx is done, and takes those
// that become free meanwhile. took is how many it had at most.
func (s *Server) Exhaust(ctx context.Context) (took int, err error) {
	var all []*pgx.Conn
	defer func() {
		for _, c := range all {
			err = errors.Join(err, hangUp(c))
		}
	}()
	for ended := false; ctx.Err() == nil; {
		c, err := connect(ctx, s.dsn)
		var refused *pgconn.PgError
		switch {
		case err == nil && len(all) == mostStrangers:
			return took, errors.Join(fmt.Errorf("the server has more than %d connections", mostStrangers), hangUp(c))
		case err == nil:
			all = append(all, c)
			took = len(all)
			continue
		case ctx.Err() != nil:
			return took, nil
		case !errors.As(err, &refused) || refused.Code != "53300":
			return took, err
		}
		if !ended { // by a connection that is there already
			ended = true
			if len(all) == 0 {
				return 0, errors.New("all connections are taken already")
			}
			if err := endNodes(ctx, all[0]); err != nil {
				return took, err
			}
			continue
		}
		select {
		case <-ctx.Done():
		case <-time.After(50 * time.Millisecond):
		}
	}
	return took, nil
}

func endNodes(ctx context.Context, c *pgx.Conn) error {
	ctx, cancel := context.WithTimeout(ctx, callLimit)
	defer cancel()
	_, err := c.Exec(ctx, "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'imd'")
	return err
}

// Act is one token that was given, or one effect that a leader had.
type Act struct {
	Name, Holder string
	Token        int64  // the newest at this moment
	Effect       string // of which job; "" = the token was given
	At           time.Time
}

// watching takes down tokens and effects of leaders.
const watching = `
	CREATE TABLE drill_act (id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, at timestamptz NOT NULL, name text NOT NULL, token bigint NOT NULL, holder text NOT NULL, effect text NOT NULL);
	CREATE FUNCTION drill_claimed() RETURNS trigger LANGUAGE plpgsql AS $f$
	BEGIN
	  INSERT INTO drill_act (at, name, token, holder, effect) VALUES (clock_timestamp(), NEW.name, NEW.token, NEW.holder, '');
	  RETURN NULL;
	END $f$;
	CREATE TRIGGER drill_claimed AFTER INSERT OR UPDATE ON fence FOR EACH ROW EXECUTE FUNCTION drill_claimed();
	CREATE FUNCTION drill_effect() RETURNS trigger LANGUAGE plpgsql AS $f$
	BEGIN
	  INSERT INTO drill_act (at, name, token, holder, effect)
	    SELECT clock_timestamp(), f.name, f.token, CASE WHEN split_part(f.holder, '/', 1) = session_user THEN f.holder ELSE session_user::text END, TG_ARGV[1]
	      FROM fence f WHERE f.name = TG_ARGV[0];
	  RETURN NULL;
	END $f$;`

// watched are the effects of leaders: changes of a table that only they make.
var watched = []struct{ on, when, job string }{
	{"UPDATE ON outbox", "NEW.last_pos > OLD.last_pos", "gather"},
	{"UPDATE ON outbox", "NEW.trimmed > OLD.trimmed", "trim"},
	{"UPDATE ON receiver", "NEW.generation = OLD.generation AND NEW.name NOT LIKE 'offline/%'", "webhooks"},
	{"UPDATE ON receiver", "NEW.generation = OLD.generation AND NEW.name LIKE 'offline/%'", "handover"},
	{"UPDATE ON push", "NEW.state = 2 AND OLD.state <> 2", "push"},
	{"UPDATE ON scheduled", "NEW.state IN (2, 3, 4)", "scheduled"},
	{"INSERT OR UPDATE ON job", "true", "row"},
}

// WatchLeaders lets the database take down each token that it gives from now on, and each
// effect of leaders of the election. Nodes have users of their own, which it makes: an effect
// of a node that does not hold the token has that user as the holder. The tables of nodes
// must be there.
func (s *Server) WatchLeaders(ctx context.Context, election string, nodes []string) error {
	statements := []string{watching}
	for _, n := range nodes {
		statements = append(statements, "CREATE ROLE "+pgx.Identifier{n}.Sanitize()+" SUPERUSER LOGIN")
	}
	for i, e := range watched {
		statements = append(statements, fmt.Sprintf("CREATE TRIGGER drill_effect_%d AFTER %s FOR EACH ROW WHEN (%s) EXECUTE FUNCTION drill_effect('%s', '%s')", i, e.on, e.when, election, e.job))
	}
	for _, one := range statements {
		if err := s.exec(ctx, s.dsn, one); err != nil {
			return fmt.Errorf("watch leaders: %w", err)
		}
	}
	return nil
}

// Holder is who holds the newest token of an election; "" = nobody ever did.
func (s *Server) Holder(ctx context.Context, election string) (holder string, err error) {
	err = with(ctx, s.dsn, func(ctx context.Context, c *pgx.Conn) error {
		return c.QueryRow(ctx, "SELECT coalesce(max(holder), '') FROM fence WHERE name = $1", election).Scan(&holder)
	})
	return holder, err
}

// Acts are those that were taken down, in the order in which they were decided: an
// effect keeps the token that it proves from being followed until it is done.
func (s *Server) Acts(ctx context.Context) (all []Act, err error) {
	err = with(ctx, s.dsn, func(ctx context.Context, c *pgx.Conn) error {
		rows, err := c.Query(ctx, "SELECT name, holder, token, effect, at FROM drill_act ORDER BY id")
		if err != nil {
			return err
		}
		all, err = pgx.CollectRows(rows, pgx.RowToStructByPos[Act])
		return err
	})
	return all, err
}

package sqlite

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"
	"net/url"

	_ "modernc.org/sqlite" // the driver
)

// conn is one connection with its prepared statements. Not safe for concurrent
// use. Statements run without a context, because watching one costs more than
// most of them take; callers check theirs between statements.
type conn struct {
	db    *sql.DB
	c     *sql.Conn
	stmts map[string]*sql.Stmt
	room  room // zero = what SQLite takes by itself, for ever
	calm  bool // it has the room of a calm store
}

// open connects if that is not done.
func (c *conn) open(ctx context.Context) error {
	if c.c != nil {
		return nil
	}
	sc, err := c.db.Conn(ctx)
	if err != nil {
		return err
	}
	c.c, c.stmts, c.calm = sc, map[string]*sql.Stmt{}, false
	return nil
}

// drop gives the connection up; the next open makes a new one.
func (c *conn) drop() error {
	if c.c == nil {
		return nil
	}
	for _, s := range c.stmts {
		_ = s.Close() // the connection ends anyway
	}
	_ = c.c.Raw(func(any) error { return driver.ErrBadConn }) // database/sql must not hand it out again
	err := c.c.Close()
	c.c, c.stmts = nil, nil
	if errors.Is(err, sql.ErrConnDone) {
		err = nil
	}
	return err
}

// stmt prepares query once.
func (c *conn) stmt(query string) (*sql.Stmt, error) {
	if s, ok := c.stmts[query]; ok {
		return s, nil
	}
	if c.c == nil {
		return nil, errLost
	}
	s, err := c.c.PrepareContext(context.Background(), query)
	if err != nil {
		return nil, err
	}
	c.stmts[query] = s
	return s, nil
}

// exec runs a statement and returns how many rows it changed.
func (c *conn) exec(query string, args ...any) (int64, error) {
	s, err := c.stmt(query)
	if err != nil {
		return 0, err
	}
	r, err := s.ExecContext(context.Background(), args...)
	if err != nil {
		return 0, err
	}
	return r.RowsAffected()
}

// pragma sets something of the connection. It is prepared each time, as SQLite obeys
// some of them while it prepares them.
func (c *conn) pragma(name string, to int64) error {
	_, err := c.c.ExecContext(context.Background(), fmt.Sprintf("PRAGMA %s = %d", name, to))
	return err
}

// row reads one row into dest. Errors: sql.ErrNoRows.
func (c *conn) row(query string, args []any, dest ...any) error {
	s, err := c.stmt(query)
	if err != nil {
		return err
	}
	return s.QueryRowContext(context.Background(), args...).Scan(dest...)
}

// each calls f for every row until ctx is done or f fails. f may run other
// statements of c.
func (c *conn) each(ctx context.Context, query string, args []any, f func(scan func(...any) error) error) error {
	s, err := c.stmt(query)
	if err != nil {
		return err
	}
	rows, err := s.QueryContext(context.Background(), args...)
	if err != nil {
		return err
	}
	defer rows.Close()
	for rows.Next() {
		if err := ctx.Err(); err != nil {
			return err
		}
		if err := f(rows.Scan); err != nil {
			return err
		}
	}
	return rows.Err()
}

// errLost says that the connection was given up in the middle.
var errLost = errors.New("the connection is lost")

// dsn is the data source name of the database file at path.
func dsn(path string, params url.Values) string {
	u := url.URL{Scheme: "file", Opaque: (&url.URL{Path: path}).EscapedPath(), RawQuery: params.Encode()}
	return u.String()
}

// connect makes a pool of n connections that all run the pragmas first.
func connect(path string, n int, mode string, pragmas ...string) (*sql.DB, error) {
	db, err := sql.Open("sqlite", dsn(path, url.Values{"mode": {mode}, "_pragma": pragmas}))
	if err != nil {
		return nil, fmt.Errorf("open %s: %w", path, err)
	}
	db.SetMaxOpenConns(n)
	db.SetMaxIdleConns(n)
	return db, nil
}

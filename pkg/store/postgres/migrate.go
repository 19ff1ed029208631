package postgres

import (
	"context"
	"database/sql"
	"embed"
	"errors"
	"fmt"
	"io/fs"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/stdlib"
	"github.com/pressly/goose/v3"
	"github.com/pressly/goose/v3/lock"

	"github.com/imdhq/imd/pkg/store"
)

//go:embed migrations/*.sql
var migrations embed.FS

// Migration is one step of the schema.
type Migration struct {
	Version int64     `json:"version"`
	Name    string    `json:"name"`
	Applied time.Time `json:"applied,omitzero"` // zero = not yet
	SQL     string    `json:"sql,omitempty"`    // what it runs; only of Plan
	Took    string    `json:"took,omitempty"`   // only of Migrate
}

// Schema says where the schema of a database stands.
type Schema struct {
	Have       int64       `json:"have"` // 0 = there is none
	Need       int64       `json:"need"` // by this program
	Migrations []Migration `json:"migrations"`
}

// Judge says whether this program can work with the schema. Errors:
// store.ErrSchema, with what to do.
func (s Schema) Judge() error {
	switch {
	case s.Have == 0:
		return fmt.Errorf("the database has no schema of imd; run imd migrate up: %w", store.ErrSchema)
	case s.Have < s.Need:
		return fmt.Errorf("the database has schema %d and this program needs %d; run imd migrate up: %w", s.Have, s.Need, store.ErrSchema)
	case s.Have > s.Need:
		return fmt.Errorf("the database has schema %d and this program knows %d; install a newer imd: %w", s.Have, s.Need, store.ErrSchema)
	}
	return nil
}

const (
	// migrateLock is the key of the advisory lock that migrations run under.
	migrateLock = 0x696d6400 // "imd"
	// lockTries is how many seconds a migration waits for another one.
	lockTries = 600
)

// needed is the version of the newest migration that this program knows. Numbers
// need not be without holes.
func needed() (newest int64) {
	for _, v := range versions() {
		newest = max(newest, v)
	}
	return newest
}

// versions are those of all migrations.
func versions() (all []int64) {
	files, err := fs.Glob(migrations, "migrations/*.sql")
	if err != nil {
		panic(err) // the pattern is wrong
	}
	for _, f := range files {
		v, err := goose.NumericComponent(f)
		if err != nil {
			panic(err) // a file of the program has no number
		}
		all = append(all, v)
	}
	return all
}

// migrator runs fn with a goose provider for the database of dsn.
func migrator(ctx context.Context, dsn string, fn func(*goose.Provider) error) error {
	o, err := parse(dsn)
	if err != nil {
		return err
	}
	conf := o.config.ConnConfig.Copy()
	conf.ConnectTimeout = connectTime
	db := stdlib.OpenDB(*conf)
	defer db.Close() // nothing is open
	if err := db.PingContext(ctx); err != nil {
		return explain(o.shown, err)
	}
	files, err := fs.Sub(migrations, "migrations")
	if err != nil {
		return err
	}
	locker, err := lock.NewPostgresSessionLocker(lock.WithLockID(migrateLock), lock.WithLockTimeout(1, lockTries))
	if err != nil {
		return err
	}
	p, err := goose.NewProvider(goose.DialectPostgres, db, files, goose.WithDisableGlobalRegistry(true), goose.WithSessionLocker(locker))
	if err != nil {
		return err
	}
	return fn(p)
}

// Status reads where the schema of the database stands, in a few seconds at
// most. It changes nothing. Errors: store.ErrDSN; a database that is out of reach.
func Status(ctx context.Context, dsn string) (Schema, error) {
	o, err := parse(dsn)
	if err != nil {
		return Schema{}, err
	}
	ctx, cancel := context.WithTimeout(ctx, 2*connectTime)
	defer cancel()
	conf := o.config.ConnConfig.Copy()
	conf.DefaultQueryExecMode = pgx.QueryExecModeSimpleProtocol // works through any pooler
	c, err := pgx.ConnectConfig(ctx, conf)
	if err != nil {
		return Schema{}, explain(o.shown, err)
	}
	defer c.Close(ctx) // nothing is open
	s, err := schemaOf(ctx, c)
	if err != nil {
		return Schema{}, explain(o.shown, err)
	}
	return s, nil
}

// schemaOf reads the schema's state through c.
func schemaOf(ctx context.Context, c *pgx.Conn) (Schema, error) {
	s := Schema{Need: needed()}
	applied := map[int64]time.Time{}
	rows, err := c.Query(ctx, `SELECT version_id, tstamp FROM goose_db_version WHERE is_applied ORDER BY id`)
	if err == nil {
		for rows.Next() {
			var v int64
			var at time.Time
			if err := rows.Scan(&v, &at); err != nil {
				rows.Close()
				return s, err
			}
			applied[v] = at
			s.Have = max(s.Have, v)
		}
		err = rows.Err()
	}
	if err != nil && codeOf(err) != codeNoTable {
		return s, err
	}
	files, err := fs.ReadDir(migrations, "migrations")
	if err != nil {
		return s, err
	}
	for _, f := range files {
		m := Migration{}
		if _, err := fmt.Sscanf(f.Name(), "%d_", &m.Version); err != nil {
			return s, err
		}
		m.Name = strings.TrimSuffix(f.Name(), ".sql")
		m.Applied = applied[m.Version]
		s.Migrations = append(s.Migrations, m)
	}
	return s, nil
}

// Plan is Status with the statements of what is not applied yet. Errors: those
// of Status; store.ErrSchema if the schema is newer than this program.
func Plan(ctx context.Context, dsn string) (Schema, error) {
	s, err := Status(ctx, dsn)
	if err != nil {
		return s, err
	}
	if s.Have > s.Need {
		return s, s.Judge()
	}
	for i := range s.Migrations {
		if m := &s.Migrations[i]; m.Version > s.Have {
			text, err := fs.ReadFile(migrations, "migrations/"+m.Name+".sql")
			if err != nil {
				return s, err
			}
			m.SQL = string(text)
		}
	}
	return s, nil
}

// Migrate brings the schema to the newest version that this program knows and
// returns what it did. Each step is a transaction, and all run under a lock that
// goes with the session: several at once wait for each other, and one that is
// killed leaves whole steps. Errors: store.ErrSchema if the schema is newer than
// this program; store.ErrUnsafe if the server is a standby, or behind a pooler
// that takes sessions, and so the lock, apart; store.ErrDSN; a database that is out
// of reach or refuses.
func Migrate(ctx context.Context, dsn string) ([]Migration, error) {
	o, err := parse(dsn)
	if err != nil {
		return nil, err
	}
	facts, err := examine(ctx, o)
	if err != nil {
		return nil, explain(o.shown, err)
	}
	switch {
	case facts.Standby:
		return nil, explain(o.shown, errStandby)
	case facts.Pooled:
		return nil, fmt.Errorf("the database %s is reached through a pooler in transaction mode; connect to the server itself: %w", o.shown, store.ErrUnsafe)
	case facts.Schema.Have > facts.Schema.Need:
		return nil, facts.Schema.Judge()
	}
	var out []Migration
	err = migrator(ctx, dsn, func(p *goose.Provider) error {
		results, err := p.Up(ctx)
		if err != nil && !errors.Is(err, sql.ErrNoRows) {
			return err
		}
		for _, r := range results {
			out = append(out, Migration{
				Version: r.Source.Version, Name: strings.TrimSuffix(r.Source.Path, ".sql"), Applied: time.Now(),
				Took: r.Duration.Round(time.Millisecond).String(),
			})
		}
		return nil
	})
	return out, err
}

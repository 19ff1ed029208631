package postgres

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"go.uber.org/zap"

	"github.com/imdhq/imd/pkg/store"
)

// unsafeParameter, with the value yes in a data source name, accepts a server
// that may lose what it has acknowledged.
const unsafeParameter = "imd_unsafe"

// Options say which database to open.
type Options struct {
	DSN string      // postgres://user:password@host/database?sslmode=verify-full&sslrootcert=FILE
	Log *zap.Logger // nil = silent
	// Numbering is how seqs are given out. It is recorded at the first start; the
	// zero value is what is recorded, and transaction for a new store.
	Numbering store.Numbering

	tracer pgx.QueryTracer // of tests that count statements
}

// source is a data source name that was read.
type source struct {
	config    *pgxpool.Config
	shown     string // without the password
	unsafely  bool
	numbering store.Numbering
}

// parse reads a data source name. The error repeats none of it.
func parse(dsn string) (source, error) {
	u, err := url.Parse(dsn)
	if err != nil || u.Scheme != "postgres" && u.Scheme != "postgresql" {
		return source{}, fmt.Errorf("not of the form postgres://user:password@host/database: %w", store.ErrDSN)
	}
	q := u.Query()
	s := source{unsafely: q.Get(unsafeParameter) == "yes"}
	q.Del(unsafeParameter)
	if s.numbering, err = store.TakeNumbering(q); err != nil {
		return source{}, err
	}
	u.RawQuery = q.Encode()
	if s.config, err = pgxpool.ParseConfig(u.String()); err != nil {
		return source{}, fmt.Errorf("%s: %w", withoutSecrets(err, u), store.ErrDSN)
	}
	c := s.config.ConnConfig
	hosts := []string{fmt.Sprintf("%s:%d", c.Host, c.Port)}
	for _, f := range c.Fallbacks {
		if host := fmt.Sprintf("%s:%d", f.Host, f.Port); !slices.Contains(hosts, host) {
			hosts = append(hosts, host)
		}
	}
	s.shown = c.Database + " at " + strings.Join(hosts, ", ")
	c.RuntimeParams["application_name"] = "imd"
	c.RuntimeParams["client_encoding"] = "UTF8"
	return s, nil
}

// withoutSecrets is the text of err without the password of u, in any form.
func withoutSecrets(err error, u *url.URL) string {
	text := err.Error()
	if i := strings.LastIndex(text, "`: "); i >= 0 { // what went wrong comes behind the name
		text = text[i+3:]
	}
	secrets := []string{u.Query().Get("password"), u.Query().Get("sslpassword")}
	if p, ok := u.User.Password(); ok {
		secrets = append(secrets, p, url.QueryEscape(p), url.PathEscape(p))
	}
	for _, s := range secrets {
		if s != "" {
			text = strings.ReplaceAll(text, s, "xxxxx")
		}
	}
	return text
}

// OpenURL is the driver's store.Opener: a name as libpq takes it. What it
// leaves out comes from the PG* variables.
func OpenURL(ctx context.Context, u *url.URL, log *zap.Logger) (store.MessageStore, error) {
	s, err := Open(ctx, Options{DSN: u.String(), Log: log})
	if err != nil {
		return nil, err // not s: a nil *Store in the interface
	}
	return s, nil
}

// Open connects to a database whose schema is the one that this program needs,
// and whose server keeps what it acknowledges. The error is one sentence; it
// wraps store.ErrDSN, ErrSchema, ErrUnsafe or ErrAway if it is one of these.
func Open(ctx context.Context, o Options) (_ *Store, err error) {
	if o.Log == nil {
		o.Log = zap.NewNop()
	}
	src, err := parse(o.DSN)
	if err != nil {
		return nil, err
	}
	if o.Numbering == (store.Numbering{}) {
		o.Numbering = src.numbering
	}
	facts, err := examine(ctx, src)
	if err != nil {
		return nil, explain(src.shown, err)
	}
	if err := facts.admit(src, o.Log); err != nil {
		return nil, err
	}
	s := &Store{writers: writersFor(processors()), side: make(chan struct{}, sideCalls), log: o.Log, allocator: o.Numbering.Allocator}
	s.intake.Know = s.knowAll
	defer func() {
		if err != nil {
			err = explain(src.shown, err)
			s.closePools()
		}
	}()
	src.config.ConnConfig.Tracer = o.tracer
	appends := limits{
		conns: s.writers + sideCalls, lock: 300 * time.Millisecond, statement: 2500 * time.Millisecond,
		call: 3500 * time.Millisecond, wait: time.Second,
	}
	reads := limits{conns: readsFor(processors()), lock: time.Second, statement: 3 * time.Second, call: 4 * time.Second, wait: time.Second}
	if s.appends, err = newPool(src.config, appends, s.identify); err != nil {
		return nil, err
	}
	if s.reads, err = newPool(src.config, reads, s.identify); err != nil {
		return nil, err
	}
	for _, p := range []*pool{s.appends, s.reads} {
		if err := p.Ping(ctx); err != nil {
			return nil, err
		}
	}
	if s.recorded.Load() == store.Segment {
		if err := s.own(ctx, src, o.Numbering.Step); err != nil {
			return nil, err
		}
	}
	return s, nil
}

func (s *Store) closePools() {
	for _, p := range []*pool{s.appends, s.reads} {
		if p != nil {
			p.Close()
		}
	}
}

var errStandby = errors.New("the server is a standby, which cannot be written")

const (
	sqlIdentity = `SELECT pg_is_in_recovery(), s.system_identifier::text || '/' ||
  CASE WHEN pg_is_in_recovery() THEN '' ELSE left(pg_walfile_name(pg_current_wal_lsn()), 8) END || '/' || 'entry'::regclass::oid,
  EXISTS (SELECT 1 FROM import WHERE finished_ms = 0) FROM pg_control_system() s`
	sqlBeginStore = `INSERT INTO store (id, data_epoch, identity, allocator) VALUES (1, $1, $2, $3) ON CONFLICT (id) DO NOTHING`
	sqlNewEpoch   = `UPDATE store SET data_epoch = $1, identity = $2 WHERE id = 1 AND identity = $3`
	sqlStore      = `SELECT data_epoch, identity, allocator FROM store WHERE id = 1`
)

// identify compares the cluster behind a new connection with the one that the
// data_epoch is for, and makes a new data_epoch if it is another.
func (s *Store) identify(ctx context.Context, c *pgx.Conn) error {
	var standby, half bool
	var now string
	if err := c.QueryRow(ctx, sqlIdentity).Scan(&standby, &now, &half); err != nil {
		return err
	}
	switch {
	case standby:
		return errStandby
	case half:
		return fmt.Errorf("the database is half a copy of another store; run imd store copy again, or begin with an empty database: %w", store.ErrUnfinished)
	}
	epoch, was, how, err := storeRow(ctx, c)
	if errors.Is(err, pgx.ErrNoRows) { // the very first start
		if _, err := c.Exec(ctx, sqlBeginStore, newEpoch(), now, cmp.Or(s.allocator, store.Transaction)); err != nil {
			return err
		}
		epoch, was, how, err = storeRow(ctx, c)
	}
	if err != nil {
		return err
	}
	if s.allocator != "" && how != s.allocator {
		return fmt.Errorf("the store numbers messages with the allocator %q and this node is set to %q; set seq.allocator to %q: %w", how, s.allocator, how, store.ErrAllocator)
	}
	s.recorded.Store(how)
	if was != now {
		if _, err := c.Exec(ctx, sqlNewEpoch, newEpoch(), now, was); err != nil {
			return err
		}
		if epoch, _, _, err = storeRow(ctx, c); err != nil {
			return err
		}
		s.log.Warn("the database is a restored copy or was promoted: clients will read everything anew",
			zap.String("was", was), zap.String("is", now), zap.String("data_epoch", epoch))
	}
	s.epoch.Store(&epoch)
	return nil
}

func storeRow(ctx context.Context, c *pgx.Conn) (epoch, identity, how string, err error) {
	err = c.QueryRow(ctx, sqlStore).Scan(&epoch, &identity, &how)
	return epoch, identity, how, err
}

// newEpoch is a new data_epoch.
func newEpoch() string { return strings.ToLower(rand.Text()[:16]) }

// explain turns a failure to reach the database into one sentence.
func explain(shown string, err error) error {
	for _, known := range []error{store.ErrSchema, store.ErrDSN, store.ErrUnsafe, store.ErrUnfinished, store.ErrLocked, store.ErrAllocator} {
		if errors.Is(err, known) {
			return err
		}
	}
	text := oneLine(err)
	switch code := codeOf(err); {
	case code == "3D000":
		return fmt.Errorf("the database %s does not exist; create it with createdb: %w", shown, store.ErrDSN)
	case strings.HasPrefix(code, "28"):
		return fmt.Errorf("the database %s refuses the user or its password: %w", shown, store.ErrDSN)
	case code == "42501":
		return fmt.Errorf("the user lacks a right in the database %s (%s)", shown, text)
	case code == codeNoRoom:
		return &sentence{fmt.Sprintf("the database %s has no connection left; raise max_connections", shown), errors.Join(err, store.ErrAway)}
	case errors.Is(err, errStandby):
		return fmt.Errorf("the database %s is a standby; give the address of the primary: %w", shown, store.ErrUnsafe)
	}
	if away(err) {
		err = errors.Join(err, store.ErrAway)
	}
	return &sentence{fmt.Sprintf("the database %s cannot be reached: %s", shown, text), err}
}

// sentence is an error of several lines in one.
type sentence struct {
	text string
	err  error
}

func (s *sentence) Error() string { return s.text }
func (s *sentence) Unwrap() error { return s.err }

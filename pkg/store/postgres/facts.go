package postgres

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"go.uber.org/zap"

	"github.com/imdhq/imd/pkg/store"
)

// Verdict is how bad a finding is.
type Verdict string

// The verdicts, from best to worst.
const (
	Good    Verdict = "ok"
	Doubt   Verdict = "warn"
	Failing Verdict = "fail"
)

// Finding is what one check of a database has found.
type Finding struct {
	Check   string
	Verdict Verdict
	Text    string
	Fix     string // what to do; "" = nothing
	cause   error  // why a node refuses to start; nil = it does not
}

// Bounds of the checks.
const (
	oldestVersion = 150000
	skewDoubt     = 100 * time.Millisecond
	skewFailing   = 5 * time.Minute
	roundDoubt    = 10 * time.Millisecond
)

// Facts are what a node needs to know of a database before it trusts it.
type Facts struct {
	Version     int    // as server_version_num
	VersionText string // as server_version
	Encoding    string
	Fsync       string // the setting
	FullPages   string // full_page_writes
	SyncCommit  string // synchronous_commit, as the role and the database have it
	SyncNames   string // synchronous_standby_names
	Standbys    int    // that are connected
	Standby     bool   // it is one itself
	Pooled      bool   // two sessions share one server process
	TLS         bool
	Remote      bool          // reached over a network
	Skew        time.Duration // of its clock against this machine's
	Round       time.Duration // of one question
	Server      Room          // for connections of ordinary users to the server
	Database    Room          // for connections to the database
	Role        Room          // for connections of the user
	Needed      int           // connections that a node on this machine opens at most
	Schema      Schema
}

// Room is how many connections there may be, and are.
type Room struct {
	Most int // negative = no limit
	Used int
	Ours int // of Used: those of imd
}

// Examine collects the facts of a database. Errors: store.ErrDSN, and a sentence
// about a database that is out of reach.
func Examine(ctx context.Context, dsn string) (Facts, error) {
	src, err := parse(dsn)
	if err != nil {
		return Facts{}, err
	}
	f, err := examine(ctx, src)
	if err != nil {
		return f, explain(src.shown, err)
	}
	return f, nil
}

const sqlFacts = `SELECT current_setting('server_version_num')::int, current_setting('server_version'), current_setting('server_encoding'),
  current_setting('fsync'), current_setting('full_page_writes'), current_setting('synchronous_commit'),
  current_setting('synchronous_standby_names'), (SELECT count(*) FROM pg_stat_replication), pg_is_in_recovery(),
  coalesce((SELECT ssl FROM pg_stat_ssl WHERE pid = pg_backend_pid()), false),
  inet_server_addr() IS NOT NULL AND NOT inet_server_addr() <<= '127.0.0.0/8' AND inet_server_addr() <> '::1',
  current_setting('max_connections')::int - current_setting('superuser_reserved_connections')::int`

// sqlRoom counts connections: to the server, to the database and of the user. The
// limit of a user does not hold for one that may do everything.
const sqlRoom = `SELECT (SELECT datconnlimit FROM pg_database WHERE datname = current_database()),
  (SELECT CASE WHEN rolsuper THEN -1 ELSE rolconnlimit END FROM pg_roles WHERE rolname = current_user),
  count(*), count(*) FILTER (WHERE application_name = 'imd'),
  count(*) FILTER (WHERE datname = current_database()), count(*) FILTER (WHERE datname = current_database() AND application_name = 'imd'),
  count(*) FILTER (WHERE usename = current_user), count(*) FILTER (WHERE usename = current_user AND application_name = 'imd')
  FROM pg_stat_activity WHERE backend_type = 'client backend'`

// examine collects the facts over two connections at once: a pooler shows as
// one server process for both.
func examine(ctx context.Context, src source) (f Facts, err error) {
	conf := src.config.ConnConfig.Copy()
	conf.ConnectTimeout = connectTime
	// Prepared statements do not outlive a transaction behind some poolers.
	conf.DefaultQueryExecMode = pgx.QueryExecModeSimpleProtocol
	ctx, cancel := context.WithTimeout(ctx, 2*connectTime)
	defer cancel()
	a, err := pgx.ConnectConfig(ctx, conf)
	if err != nil {
		return f, err
	}
	defer func() { err = errors.Join(err, a.Close(ctx)) }()
	b, err := pgx.ConnectConfig(ctx, conf)
	if err != nil {
		return f, err
	}
	defer func() { err = errors.Join(err, b.Close(ctx)) }()
	if f.Pooled, err = pooled(ctx, a, b); err != nil {
		return f, err
	}
	err = a.QueryRow(ctx, sqlFacts).Scan(&f.Version, &f.VersionText, &f.Encoding, &f.Fsync, &f.FullPages, &f.SyncCommit,
		&f.SyncNames, &f.Standbys, &f.Standby, &f.TLS, &f.Remote, &f.Server.Most)
	if err != nil {
		return f, err
	}
	f.Needed = connsFor(processors())
	err = a.QueryRow(ctx, sqlRoom).Scan(&f.Database.Most, &f.Role.Most, &f.Server.Used, &f.Server.Ours,
		&f.Database.Used, &f.Database.Ours, &f.Role.Used, &f.Role.Ours)
	if err != nil {
		return f, err
	}
	var theirs time.Time
	began := time.Now()
	if err := a.QueryRow(ctx, `SELECT clock_timestamp()`).Scan(&theirs); err != nil {
		return f, err
	}
	f.Round = time.Since(began)
	f.Skew = theirs.Sub(began.Add(f.Round / 2))
	f.Schema, err = schemaOf(ctx, a)
	return f, err
}

// pooled reports whether two sessions that are both open run in one process of
// the server, or one of them in several.
func pooled(ctx context.Context, a, b *pgx.Conn) (bool, error) {
	var pids [4]int
	for i, c := range []*pgx.Conn{a, b, a, b} {
		if err := c.QueryRow(ctx, `SELECT pg_backend_pid()`).Scan(&pids[i]); err != nil {
			return false, err
		}
	}
	return pids[0] == pids[1] || pids[0] != pids[2] || pids[1] != pids[3], nil
}

// Judge turns the facts into findings.
func (f Facts) Judge() []Finding {
	var out []Finding
	add := func(check string, v Verdict, cause error, text, fix string) {
		out = append(out, Finding{check, v, text, fix, cause})
	}
	good := func(check, text string) { add(check, Good, nil, text, "") }
	if f.Version < oldestVersion {
		add("version", Failing, store.ErrUnsafe, "the server is Postgres "+f.VersionText+"; 15 is the oldest that imd works with", "upgrade the server")
	} else {
		good("version", f.VersionText)
	}
	if f.Encoding != "UTF8" {
		add("encoding", Failing, store.ErrUnsafe, "the database's encoding is "+f.Encoding+" and must be UTF8", "createdb -E UTF8 -T template0")
	} else {
		good("encoding", f.Encoding)
	}
	out = append(out, f.durability()...)
	out = append(out, f.connections())
	if f.Pooled {
		add("pooler", Failing, store.ErrUnsafe, "the database is reached through a pooler in transaction mode, where settings and prepared statements of a session are lost",
			"connect to the server itself, or set the pooler to session mode")
	} else {
		good("pooler", "sessions are our own")
	}
	switch skew := f.Skew.Abs(); {
	case skew > skewFailing:
		add("clock", Failing, store.ErrUnsafe, fmt.Sprintf("the server's clock is %v off this machine's", f.Skew.Round(time.Second)), "set the clocks, e.g. with chrony")
	case skew > skewDoubt+f.Round:
		add("clock", Doubt, nil, fmt.Sprintf("the server's clock is %v off this machine's", f.Skew.Round(time.Millisecond)), "set the clocks, e.g. with chrony")
	default:
		good("clock", fmt.Sprintf("within %v of this machine's", skewDoubt))
	}
	if f.Round > roundDoubt {
		add("distance", Doubt, nil, fmt.Sprintf("a question takes %v, which each batch of messages waits for", f.Round.Round(time.Millisecond)), "run nodes near the database")
	} else {
		good("distance", fmt.Sprintf("a question takes %v", f.Round.Round(10*time.Microsecond)))
	}
	if f.Remote && !f.TLS {
		add("tls", Doubt, nil, "messages and the password's proof cross a network in the clear", "sslmode=verify-full&sslrootcert=FILE in the data source name")
	}
	if err := f.Schema.Judge(); err != nil {
		add("schema", Failing, err, strings.TrimSuffix(err.Error(), ": "+store.ErrSchema.Error()), "")
	} else {
		good("schema", fmt.Sprint("version ", f.Schema.Have))
	}
	return out
}

// fullShare is the share of the connections above which hardly any are left.
const fullShare = 0.9

// connections judges whether there is room for those of a node. It may run
// already: what imd has open counts as what it needs.
func (f Facts) connections() Finding {
	text := fmt.Sprintf("a node on this machine opens up to %d", f.Needed)
	for _, r := range []struct {
		Room
		whose, fix string
	}{
		{f.Role, "the user", "raise its limit with ALTER ROLE ... CONNECTION LIMIT"},
		{f.Database, "the database", "raise its limit with ALTER DATABASE ... CONNECTION LIMIT"},
		{f.Server, "the server", "raise max_connections"},
	} {
		if r.Most < 0 {
			continue
		}
		have := fmt.Sprintf("%s may have %d connections and has %d, %d of them imd's", r.whose, r.Most, r.Used, r.Ours)
		switch others := r.Used - r.Ours; {
		case r.Most < f.Needed:
			return Finding{"connections", Failing, have + "; " + text, r.fix, nil}
		case r.Most-others < f.Needed, float64(r.Used) > fullShare*float64(r.Most):
			return Finding{"connections", Doubt, have + "; " + text, r.fix + ", or see who has them in pg_stat_activity", nil}
		}
		if r.whose == "the server" {
			text = have + "; " + text
		}
	}
	return Finding{Check: "connections", Verdict: Good, Text: text}
}

// durability judges whether what is acknowledged survives.
func (f Facts) durability() []Finding {
	var out []Finding
	for _, s := range []struct{ name, value string }{{"fsync", f.Fsync}, {"full_page_writes", f.FullPages}, {"synchronous_commit", f.SyncCommit}} {
		if s.value == "off" {
			out = append(out, Finding{s.name, Failing, s.name + " is off: a crash of the server loses messages that senders were told are stored", "set " + s.name + " to on", store.ErrUnsafe})
		}
	}
	if len(out) == 0 {
		out = append(out, Finding{Check: "durability", Verdict: Good, Text: "fsync, full_page_writes and synchronous_commit are on"})
	}
	switch {
	case f.Standby:
		out = append(out, Finding{"primary", Failing, "the server is a standby, which cannot be written", "give the address of the primary", store.ErrUnsafe})
	case f.Standbys > 0 && f.SyncNames == "":
		out = append(out, Finding{"standby", Doubt, "a standby is connected and synchronous_standby_names is empty: a failover can lose acknowledged messages",
			"set synchronous_standby_names; or know that clients will read everything anew after a failover", nil})
	case f.Standbys > 0:
		out = append(out, Finding{Check: "standby", Verdict: Good, Text: fmt.Sprintf("%d connected, synchronous: %s", f.Standbys, f.SyncNames)})
	}
	return out
}

// admit refuses a database that this program must not use, and logs what is
// doubtful about others.
func (f Facts) admit(src source, log *zap.Logger) error {
	for _, found := range f.Judge() {
		switch {
		case found.Verdict == Good:
		case errors.Is(found.cause, store.ErrSchema):
			return found.cause
		case found.cause != nil && (!src.unsafely || found.Check == "pooler"): // nothing works through one
			return fmt.Errorf("the database %s: %s (%s): %w", src.shown, found.Text, found.Fix, found.cause)
		default:
			log.Warn("the database is not as it should be", zap.String("check", found.Check), zap.String("found", found.Text), zap.String("fix", found.Fix))
		}
	}
	return nil
}

package postgres

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"go.uber.org/zap/zaptest"

	"github.com/imdhq/imd/pkg/store"
	"github.com/imdhq/imd/pkg/testenv"
)

// refusedAs opens a store that must be refused, in one sentence without the
// password.
func refusedAs(t *testing.T, dsn string, want error, words string) {
	t.Helper()
	s, err := Open(t.Context(), Options{DSN: dsn, Log: zaptest.NewLogger(t)})
	if err == nil {
		s.Close()
	}
	if err == nil || want != nil && !errors.Is(err, want) || !strings.Contains(err.Error(), words) || strings.ContainsAny(err.Error(), "\n") {
		t.Errorf("open: %v; want %v and %q", err, want, words)
	}
	if err != nil && strings.Contains(err.Error(), "hunter2") {
		t.Errorf("the error tells the password: %v", err)
	}
}

// A server that could lose messages, or that holds something else, is refused.
func TestStartChecks(t *testing.T) {
	server := testenv.StartPostgres(t, durable)
	good := server.Database(t)
	name := good[strings.LastIndex(good, "/")+1 : strings.Index(good, "?")]
	refusedAs(t, good, store.ErrSchema, "run imd migrate up")
	if _, err := Migrate(t.Context(), good); err != nil {
		t.Fatal(err)
	}
	openAt(t, good).Close()
	server.Exec(t, name, `INSERT INTO goose_db_version (version_id, is_applied) VALUES (999, true)`)
	refusedAs(t, good, store.ErrSchema, "install a newer imd")
	if _, err := Migrate(t.Context(), good); !errors.Is(err, store.ErrSchema) {
		t.Errorf("migrating a newer schema: %v", err)
	}
	server.Exec(t, name, `DELETE FROM goose_db_version WHERE version_id = 999`, `UPDATE goose_db_version SET version_id = -version_id WHERE version_id > 1`)
	refusedAs(t, good, store.ErrSchema, fmt.Sprintf("has schema 1 and this program needs %d; run imd migrate up", needed()))
	server.Exec(t, name, `UPDATE goose_db_version SET version_id = -version_id WHERE version_id < 0`)
	server.Exec(t, name, "ALTER DATABASE "+name+" SET synchronous_commit = off")
	refusedAs(t, good, store.ErrUnsafe, "synchronous_commit is off")
	openAt(t, unsafely(good)).Close()
	server.Exec(t, name, "ALTER DATABASE "+name+" RESET synchronous_commit")
	for _, setting := range []string{"fsync", "full_page_writes"} {
		server.Exec(t, "postgres", "ALTER SYSTEM SET "+setting+" = off", "SELECT pg_reload_conf()")
		if setting == "fsync" { // given on the command line, which is stronger
			continue
		}
		eventually(t, func() bool {
			f, err := Examine(t.Context(), good)
			return err == nil && f.FullPages == "off"
		})
		refusedAs(t, good, store.ErrUnsafe, setting+" is off")
	}
	server.Exec(t, "postgres", "ALTER SYSTEM RESET ALL", "SELECT pg_reload_conf()")
	refusedAs(t, server.DSN("nowhere"), store.ErrDSN, "does not exist")
	server.Exec(t, "postgres", `CREATE DATABASE old ENCODING 'LATIN1' LC_COLLATE 'C' LC_CTYPE 'C' TEMPLATE template0`)
	refusedAs(t, server.DSN("old"), store.ErrUnsafe, "must be UTF8")
	server.Exec(t, name, "ALTER TABLE store DROP COLUMN allocator", "ALTER TABLE store ADD allocator text NOT NULL DEFAULT 'segment'")
	refusedAs(t, numbered(good, store.Numbering{Allocator: store.Transaction}), store.ErrAllocator, `set seq.allocator to "segment"`)
}

// The checks of settings hold on the server that the other tests share.
func TestFsyncOff(t *testing.T) {
	dsn := fresh(t, testenv.SharedPostgres(t))
	refusedAs(t, strings.Replace(dsn, unsafeParameter+"=yes", "", 1), store.ErrUnsafe, "fsync is off")
}

// Passwords are in no error, whatever is wrong with the name.
func TestSecretsStay(t *testing.T) {
	server := testenv.SharedPostgres(t)
	for _, dsn := range []string{
		"postgres://imd:hunter2@127.0.0.1:1/imd", "postgres://imd:hunter2@127.0.0.1:99999/imd", "postgres://imd:hunter2@[::1/imd",
		"postgres://imd:hunter2@127.0.0.1/imd?sslmode=wrong", "postgres://imd:hunter2@127.0.0.1/imd?sslmode=verify-full&sslrootcert=/nowhere",
		"mysql://imd:hunter2@h/d", "postgres://imd:hunter2%zz@h/d", "postgres:///imd?host=127.0.0.1&port=x&password=hunter2",
		fmt.Sprintf("postgres://nobody:hunter2@127.0.0.1:%d/postgres?sslmode=disable", server.Port),
	} {
		refusedAs(t, dsn, nil, "")
		if _, err := Examine(t.Context(), dsn); err == nil || strings.Contains(err.Error(), "hunter2") {
			t.Errorf("examine: %v", err)
		}
		if _, err := Migrate(t.Context(), dsn); err == nil || strings.Contains(err.Error(), "hunter2") {
			t.Errorf("migrate: %v", err)
		}
	}
}

// verify-full wants the right authority and the right name.
func TestTLS(t *testing.T) {
	server := testenv.StartPostgres(t, testenv.PostgresOptions{TLS: true})
	dsn := fresh(t, server)
	name := dsn[strings.LastIndex(dsn, "/")+1 : strings.Index(dsn, "?")]
	good := unsafely(server.TLSDSN(name))
	openAt(t, good).Close()
	if f, err := Examine(t.Context(), good); err != nil || !f.TLS {
		t.Errorf("facts: %+v, %v", f, err)
	}
	refusedAs(t, strings.Replace(good, "localhost", "127.0.0.1", 1), nil, "certificate")
	other := testenv.StartPostgres(t, testenv.PostgresOptions{TLS: true})
	stranger := unsafely(other.TLSDSN("postgres")) + "&sslrootcert=" + server.TLSRoot()
	refusedAs(t, stranger, nil, "cannot be reached")
	if _, err := Open(t.Context(), Options{DSN: stranger}); errors.Is(err, store.ErrAway) {
		t.Errorf("a certificate that is not trusted counts as away: %v", err)
	}
}

// A standby is refused. When it was promoted, or the data is a restored copy,
// the history is another one.
func TestDataEpoch(t *testing.T) {
	server := testenv.StartPostgres(t, testenv.PostgresOptions{})
	dsn := fresh(t, server)
	s := openAt(t, dsn)
	mustAppend(t, s, sendTo("a", "b", 1))
	first := s.DataEpoch()
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	s = openAt(t, dsn)
	if s.DataEpoch() != first {
		t.Errorf("data_epoch %s, it was %s", s.DataEpoch(), first)
	}
	sync, err := s.Sync(t.Context(), store.SyncQuery{User: "a", Limit: 10})
	if err != nil {
		t.Fatal(err)
	}
	server.Stop()
	if err := os.WriteFile(filepath.Join(server.Dir, "data", "standby.signal"), nil, 0o644); err != nil {
		t.Fatal(err)
	}
	if err := server.Start(); err != nil {
		t.Fatal(err, server.Log())
	}
	refusedAs(t, dsn, store.ErrUnsafe, "standby")
	if _, err := s.Append(t.Context(), []store.AppendRow{sendTo("a", "b", 2)}); err == nil {
		t.Error("a standby was written")
	}
	server.Exec(t, "postgres", `SELECT pg_promote()`)
	eventually(t, func() bool { // an open store notices by itself
		_, err := s.Append(t.Context(), []store.AppendRow{sendTo("a", "b", 2)})
		return err == nil
	})
	if s.DataEpoch() == first {
		t.Error("a promoted standby kept the data_epoch")
	}
	if again, err := s.Sync(t.Context(), store.SyncQuery{User: "a", Limit: 10, Token: sync.Token}); err != nil || !again.Full {
		t.Errorf("a token of the history before: %+v, %v", again, err)
	}
	other := openAt(t, dsn)
	defer other.Close()
	if other.DataEpoch() != s.DataEpoch() {
		t.Errorf("two nodes have the data_epochs %s and %s", s.DataEpoch(), other.DataEpoch())
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
}

// eventually waits until ok.
func eventually(t *testing.T, ok func() bool) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), testenv.Patience)
	defer cancel()
	for !ok() {
		wait(t, ctx)
	}
}

// What the checks make of facts.
func TestJudge(t *testing.T) {
	good := Facts{Version: 150018, VersionText: "15.18", Encoding: "UTF8", Fsync: "on", FullPages: "on", SyncCommit: "on", Schema: Schema{Have: 2, Need: 2},
		Server: Room{97, 20, 12}, Database: Room{Most: -1}, Role: Room{Most: -1}, Needed: 12}
	for _, tt := range []struct {
		name    string
		change  func(*Facts)
		check   string
		verdict Verdict
	}{
		{"all is well", func(*Facts) {}, "", Good},
		{"old", func(f *Facts) { f.Version = 140009 }, "version", Failing},
		{"a pooler", func(f *Facts) { f.Pooled = true }, "pooler", Failing},
		{"an asynchronous standby", func(f *Facts) { f.Standbys = 1 }, "standby", Doubt},
		{"a synchronous standby", func(f *Facts) { f.Standbys, f.SyncNames = 1, "b" }, "standby", Good},
		{"a clock off by hours", func(f *Facts) { f.Skew = -2 * skewFailing }, "clock", Failing},
		{"a clock off by a little", func(f *Facts) { f.Skew = 2 * skewDoubt }, "clock", Doubt},
		{"a far server", func(f *Facts) { f.Round = 2 * roundDoubt }, "distance", Doubt},
		{"in the clear", func(f *Facts) { f.Remote = true }, "tls", Doubt},
		{"over TLS", func(f *Facts) { f.Remote, f.TLS = true, true }, "", Good},
		{"few connections for the user", func(f *Facts) { f.Role = Room{11, 2, 2} }, "connections", Failing},
		{"enough connections for the user", func(f *Facts) { f.Role = Room{20, 14, 14} }, "connections", Good},
		{"strangers have the user's", func(f *Facts) { f.Role = Room{20, 14, 2} }, "connections", Doubt},
		{"few connections for the database", func(f *Facts) { f.Database = Room{10, 2, 2} }, "connections", Failing},
		{"a server that is nearly full", func(f *Facts) { f.Server = Room{97, 90, 60} }, "connections", Doubt},
		{"remote_write", func(f *Facts) { f.SyncCommit = "remote_write" }, "durability", Good},
	} {
		f := good
		tt.change(&f)
		found := false
		for _, got := range f.Judge() {
			if got.Check == tt.check {
				found = true
				if got.Verdict != tt.verdict {
					t.Errorf("%s: %+v", tt.name, got)
				}
			} else if got.Verdict != Good {
				t.Errorf("%s: %+v", tt.name, got)
			}
		}
		if !found && tt.check != "" {
			t.Errorf("%s: no finding %s", tt.name, tt.check)
		}
	}
}

// wait lets a moment pass.
func wait(t *testing.T, ctx context.Context) {
	t.Helper()
	select {
	case <-ctx.Done():
		t.Fatal("it did not happen in time")
	case <-time.After(20 * time.Millisecond):
	}
}

// A pooler that gives each transaction another session is refused, even where
// other faults are accepted; one that keeps sessions apart is not.
func TestPooler(t *testing.T) {
	server := testenv.SharedPostgres(t)
	dsn := fresh(t, server)
	name := dsn[strings.LastIndex(dsn, "/")+1 : strings.Index(dsn, "?")]
	apart := unsafely(server.Pooled(t, name, "transaction"))
	refusedAs(t, apart, store.ErrUnsafe, "transaction mode")
	for range 3 { // what one session prepared must not trouble the next
		if state, err := Status(t.Context(), apart); err != nil || state.Judge() != nil {
			t.Errorf("Status() = %+v, %v; want the schema", state, err)
		}
	}
	if _, err := Migrate(t.Context(), apart); !errors.Is(err, store.ErrUnsafe) {
		t.Errorf("Migrate() = %v; want %v", err, store.ErrUnsafe)
	}
	s := openAt(t, unsafely(server.Pooled(t, name, "session")))
	mustAppend(t, s, sendTo("a", "b", 1))
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
}

// With several hosts each is named, with what it said last.
func TestSeveralHostsAreNamed(t *testing.T) {
	_, err := Status(t.Context(), "postgres://imd@127.0.0.1:1,127.0.0.2:1/imd")
	want := "the database imd at 127.0.0.1:1, 127.0.0.2:1 cannot be reached: " +
		"127.0.0.1:1 (127.0.0.1): dial error: dial tcp 127.0.0.1:1: connect: connection refused; " +
		"127.0.0.2:1 (127.0.0.2): dial error: dial tcp 127.0.0.2:1: connect: connection refused"
	if err == nil || err.Error() != want {
		t.Errorf("Status() = %v\nwant %s", err, want)
	}
}

// Who is silent, starts or is full may be there later; who refuses will go on doing so.
func TestWhoIsAway(t *testing.T) {
	server := testenv.StartPostgres(t, testenv.PostgresOptions{Settings: []string{"max_connections=5", "superuser_reserved_connections=0"}})
	silent, err := net.Listen("tcp", "127.0.0.1:0") // nobody accepts
	if err != nil {
		t.Fatal(err)
	}
	defer silent.Close()
	away := func(what, dsn string, want bool) {
		t.Helper()
		if _, err := Open(t.Context(), Options{DSN: dsn}); err == nil || errors.Is(err, store.ErrAway) != want {
			t.Errorf("%s: away %v, want %v: %v", what, !want, want, err)
		}
	}
	away("nobody there", "postgres://imd@127.0.0.1:1/imd?sslmode=disable", true)
	away("nobody answers", "postgres://imd@"+silent.Addr().String()+"/imd?sslmode=disable", true)
	away("no such host", "postgres://imd@nobody.invalid/imd?sslmode=disable", true)
	away("no such database", server.DSN("nowhere"), false)
	away("no such user", strings.Replace(server.DSN("postgres"), "imd@", "nobody@", 1), false)
	for { // those of the tries above may not have ended yet
		c, err := pgx.Connect(t.Context(), server.DSN("postgres"))
		if err != nil {
			break
		}
		defer c.Close(t.Context())
	}
	away("no connection left", server.DSN("postgres"), true)
}

// What a server says tells whether it may be there later.
func TestWhichAnswersAreAway(t *testing.T) {
	for code, want := range map[string]bool{
		"57P01": true, "57P02": true, "57P03": true, // it stops, has crashed, starts
		"53300": true,                // it is full
		"08006": true, "08P01": true, // a pooler does not reach it
		"57P04": false, // the database was dropped
		"3D000": false, // there is no such database
		"28P01": false, // a wrong password
		"42501": false, // a right is missing
		"53100": false, // no space is left
	} {
		err := fmt.Errorf("connect: %w", &pgconn.PgError{Code: code})
		if away(err) != want {
			t.Errorf("%s: away %v, want %v", code, !want, want)
		}
		if told := explain("db", err); errors.Is(told, store.ErrAway) != want {
			t.Errorf("%s is told as %v", code, told)
		}
	}
}

// One try is told without the words of the driver around it.
func TestOneHostIsTold(t *testing.T) {
	_, err := Status(t.Context(), "postgres://imd@127.0.0.1:1/imd?sslmode=disable")
	want := "the database imd at 127.0.0.1:1 cannot be reached: 127.0.0.1:1 (127.0.0.1): dial error: dial tcp 127.0.0.1:1: connect: connection refused"
	if err == nil || err.Error() != want {
		t.Errorf("Status() = %v\nwant %s", err, want)
	}
}

package postgres

import (
	"errors"
	"net/url"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"go.uber.org/zap/zaptest"

	"github.com/imdhq/imd/pkg/store"
	"github.com/imdhq/imd/pkg/testenv"
)

// named is the URL of a data source name.
func named(t testing.TB, dsn string) *url.URL {
	t.Helper()
	u, err := url.Parse(dsn)
	if err != nil {
		t.Fatal(err)
	}
	return u
}

// One copy at a time, and none beside nodes.
func TestTargetInUse(t *testing.T) {
	u := named(t, fresh(t, testenv.SharedPostgres(t)))
	s := openAt(t, u.String())
	if _, err := OpenTarget(t.Context(), u, zaptest.NewLogger(t)); !errors.Is(err, store.ErrLocked) {
		t.Errorf("beside a node: %v", err)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	g, err := OpenTarget(t.Context(), u, zaptest.NewLogger(t)) // the server ends sessions a moment after their clients
	if err != nil {
		t.Fatal(err)
	}
	defer g.Close()
	if _, err := OpenTarget(t.Context(), u, zaptest.NewLogger(t)); !errors.Is(err, store.ErrLocked) {
		t.Errorf("beside another copy: %v", err)
	}
}

// A new data_epoch reaches nodes that run.
func TestNewEpoch(t *testing.T) {
	dsn := fresh(t, testenv.SharedPostgres(t))
	if _, _, _, err := NewEpoch(t.Context(), dsn); !errors.Is(err, store.ErrNotFound) {
		t.Errorf("where no node ever was: %v", err)
	}
	s := openAt(t, dsn)
	defer s.Close()
	first := s.DataEpoch()
	was, now, ended, err := NewEpoch(t.Context(), dsn)
	if err != nil || was != first || now == first || ended == 0 {
		t.Fatalf("%s, %s, %d, %v; it was %s", was, now, ended, err, first)
	}
	for range 500 {
		if _, err := s.PutUser(t.Context(), "ann"); err == nil && s.DataEpoch() == now {
			return
		}
		time.Sleep(10 * time.Millisecond)
	}
	t.Errorf("the node has data_epoch %s, want %s", s.DataEpoch(), now)
}

// Every table is copied, or it is said why not.
func TestEveryTableIsCopiedOrLeft(t *testing.T) {
	left := map[string]string{
		"store": "who the copy is is said at its end", "import": "of the copy itself", "import_table": "the same", "goose_db_version": "of the schema",
		"worker_lease": "ends in seconds", "session": "ends with the processes that used the source", "job": "a round comes early at worst",
		"outbox": "events are not copied: receivers have been told of them", "feed": "the same", "event": "the same", "dead_letter": "of such events",
		"slot": "belongs to connections; its newest time is that of the copy", "shard": "owners take their shards anew", "conversation_seq": "numbers go on behind the head",
	}
	copied := map[string]bool{}
	for _, table := range store.Tables() {
		name, _, _ := strings.Cut(exporters[table].table, " ")
		copied[name] = true
	}
	if len(copied) != len(store.Tables()) || len(exporters) != len(copied) {
		t.Errorf("%d tables are to be copied, %d can be", len(copied), len(exporters))
	}
	c := connectTo(t, fresh(t, testenv.SharedPostgres(t)))
	rows, err := c.Query(t.Context(), `SELECT c.relname FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
	  WHERE c.relkind IN ('r', 'p') AND NOT c.relispartition AND n.nspname NOT IN ('pg_catalog', 'information_schema')`)
	if err != nil {
		t.Fatal(err)
	}
	all, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil || len(all) < 20 {
		t.Fatal(all, err)
	}
	for _, name := range all {
		if copied[name] == (left[name] != "") {
			t.Errorf("%s: copied %v, and left because: %q", name, copied[name], left[name])
		}
	}
	for name := range copied {
		if !slices.Contains(all, name) {
			t.Errorf("there is no table %s", name)
		}
	}
}

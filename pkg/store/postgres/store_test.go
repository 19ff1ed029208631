package postgres

import (
	"context"
	"testing"

	"go.uber.org/goleak"
	"go.uber.org/zap/zaptest"

	"github.com/imdhq/imd/pkg/store"
	"github.com/imdhq/imd/pkg/store/storetest"
	"github.com/imdhq/imd/pkg/testenv"
)

var background = context.Background()

func TestMain(m *testing.M) {
	if asChild() {
		return
	}
	goleak.VerifyTestMain(testenv.Tests{M: m})
}

// unsafely accepts the settings of the server that tests share.
func unsafely(dsn string) string { return dsn + "&" + unsafeParameter + "=yes" }

// fresh is a new database with the schema.
func fresh(t testing.TB, p *testenv.Postgres) string {
	t.Helper()
	dsn := unsafely(p.Database(t))
	if _, err := Migrate(t.Context(), dsn); err != nil {
		t.Fatal(err)
	}
	return dsn
}

// openAt opens the database of dsn.
func openAt(t testing.TB, dsn string) *Store {
	t.Helper()
	s, err := Open(t.Context(), Options{DSN: dsn, Log: zaptest.NewLogger(t)})
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func TestConformance(t *testing.T) { conformance(t, store.Numbering{}) }

// conformance runs the suite under an allocator.
func conformance(t *testing.T, n store.Numbering) {
	server := testenv.SharedPostgres(t)
	names := map[store.MessageStore]string{}
	storetest.TestMessages(t, storetest.Messages{
		Holes: n.Allocator == store.Segment,
		Open: func(t testing.TB) store.MessageStore {
			dsn := numbered(fresh(t, server), n)
			s := openAt(t, dsn)
			names[s] = dsn
			return s
		},
		Reopen: func(t testing.TB, s store.MessageStore) store.MessageStore {
			if err := s.Close(); err != nil {
				t.Fatal(err)
			}
			n := openAt(t, names[s])
			names[n] = names[s]
			return n
		},
	})
}

package postgres

import (
	"io/fs"
	"slices"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/pressly/goose/v3"

	"github.com/imdhq/imd/pkg/store/storetest"
	"github.com/imdhq/imd/pkg/testenv"
)

const (
	// released is the schema of the last release, and releasedSum the sum of the
	// migrations up to it; see storetest.Released.
	released    = 14
	releasedSum = "915e7d38fca51482b4e3d18189436e5a4f267863cd6abfe3a6efcf3abcac7f20"
)

// A database of the last release becomes what a new one is.
func TestUpgrade(t *testing.T) {
	files, err := fs.Sub(migrations, "migrations")
	if err != nil {
		t.Fatal(err)
	}
	storetest.Released(t, files, released, releasedSum)

	server := testenv.SharedPostgres(t)
	dsn := unsafely(server.Database(t))
	err = migrator(t.Context(), dsn, func(p *goose.Provider) error {
		_, err := p.UpTo(t.Context(), released)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := Migrate(t.Context(), dsn); err != nil {
		t.Fatal(err)
	}
	old, young := catalog(t, dsn), catalog(t, fresh(t, server))
	for _, x := range old {
		if !slices.Contains(young, x) {
			t.Errorf("only an upgraded database has %s", x)
		}
	}
	for _, x := range young {
		if !slices.Contains(old, x) {
			t.Errorf("only a new database has %s", x)
		}
	}
}

// catalog is the columns, indexes, constraints and functions of a database.
func catalog(t *testing.T, dsn string) []string {
	t.Helper()
	rows, err := connectTo(t, dsn).Query(t.Context(), `
SELECT format('%s.%s %s %s %s', table_name, column_name, data_type, is_nullable, column_default) FROM information_schema.columns WHERE table_schema = 'public'
UNION ALL SELECT indexdef FROM pg_indexes WHERE schemaname = 'public'
UNION ALL SELECT format('%s %s', conrelid::regclass, pg_get_constraintdef(oid)) FROM pg_constraint WHERE connamespace = 'public'::regnamespace
UNION ALL SELECT pg_get_functiondef(oid) FROM pg_proc WHERE pronamespace = 'public'::regnamespace`)
	if err != nil {
		t.Fatal(err)
	}
	all, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil || len(all) < 100 {
		t.Fatalf("%d things, %v", len(all), err)
	}
	return all
}

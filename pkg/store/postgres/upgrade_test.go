package postgres

import (
	"crypto/sha256"
	"fmt"
	"io/fs"
	"slices"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/pressly/goose/v3"

	"github.com/imdhq/imd/pkg/testenv"
)

const (
	// released is the schema of the last release, and releasedSum the check sum of
	// the migrations up to it. They never change after a release, and none is added
	// among them: databases that have passed them would stay without it.
	released    = 14
	releasedSum = "6a72854606079d78cb78cee773dac4af906debe73b4ab8b5de75dea8c328c2e9"
)

// A database of the last release becomes what a new one is.
func TestUpgrade(t *testing.T) {
	names, err := fs.Glob(migrations, "migrations/*.sql")
	if err != nil {
		t.Fatal(err)
	}
	sum := sha256.New()
	for _, name := range names {
		if v, err := goose.NumericComponent(name); err != nil {
			t.Fatal(err)
		} else if v > released {
			continue
		}
		text, err := fs.ReadFile(migrations, name)
		if err != nil {
			t.Fatal(err)
		}
		fmt.Fprintf(sum, "%s %d\n%s", name, len(text), text)
	}
	if got := fmt.Sprintf("%x", sum.Sum(nil)); got != releasedSum {
		t.Errorf("migrations that are released have changed: their sum is %s", got)
	}

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

package sqlite

import (
	"database/sql"
	"io/fs"
	"path/filepath"
	"slices"
	"testing"

	"github.com/pressly/goose/v3"

	"github.com/imdhq/imd/pkg/store/storetest"
)

const (
	// released is the schema of the last release, and releasedSum the sum of the
	// migrations up to it; see storetest.Released.
	released    = 13
	releasedSum = "07108baad6fd33e53886a550776c79437256faa9222c4db8ab88c9479fcad709"
)

// A database of the last release becomes what a new one is.
func TestUpgrade(t *testing.T) {
	files, err := fs.Sub(migrations, "migrations")
	if err != nil {
		t.Fatal(err)
	}
	storetest.Released(t, files, released, releasedSum)

	folder := t.TempDir()
	path := filepath.Join(folder, "old.db")
	db, err := connect(path, 1, "rwc")
	if err != nil {
		t.Fatal(err)
	}
	p, err := goose.NewProvider(goose.DialectSQLite3, db, files, goose.WithDisableGlobalRegistry(true))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := p.UpTo(t.Context(), released); err != nil {
		t.Fatal(err)
	}
	if err := db.Close(); err != nil {
		t.Fatal(err)
	}
	old, young := schemaAt(t, path), schemaAt(t, filepath.Join(folder, "new.db"))
	if !slices.Equal(old, young) {
		t.Errorf("the schema of an upgraded database is\n%q\nand that of a new one\n%q", old, young)
	}
}

// schemaAt opens a store and reads what its database has.
func schemaAt(t *testing.T, path string) (all []string) {
	t.Helper()
	s := openAt(t, path)
	defer s.Close()
	err := s.read(t.Context(), func(c *conn) error {
		return c.each(t.Context(), `SELECT type, name, sql FROM sqlite_schema ORDER BY type, name`, nil, func(scan func(...any) error) error {
			var kind, name string
			var text sql.NullString
			err := scan(&kind, &name, &text)
			all = append(all, kind+" "+name+" "+text.String)
			return err
		})
	})
	if err != nil {
		t.Fatal(err)
	}
	return all
}

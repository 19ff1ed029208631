package sqlite

import (
	"crypto/sha256"
	"database/sql"
	"fmt"
	"io/fs"
	"path/filepath"
	"slices"
	"testing"

	"github.com/pressly/goose/v3"
)

const (
	// released is the schema of the last release, and releasedSum the check sum of
	// the migrations up to it. They never change after a release, and none is added
	// among them: databases that have passed them would stay without it.
	released    = 13
	releasedSum = "07108baad6fd33e53886a550776c79437256faa9222c4db8ab88c9479fcad709"
)

// A database of the last release becomes what a new one is.
func TestUpgrade(t *testing.T) {
	files, err := fs.Sub(migrations, "migrations")
	if err != nil {
		t.Fatal(err)
	}
	names, err := fs.Glob(files, "*.sql")
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
		text, err := fs.ReadFile(files, name)
		if err != nil {
			t.Fatal(err)
		}
		fmt.Fprintf(sum, "%s %d\n%s", name, len(text), text)
	}
	if got := fmt.Sprintf("%x", sum.Sum(nil)); got != releasedSum {
		t.Errorf("migrations that are released have changed: their sum is %s", got)
	}

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

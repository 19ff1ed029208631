package sqlite

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"testing"

	"github.com/imdhq/imd/pkg/store"
)

func TestNewEpoch(t *testing.T) {
	path := filepath.Join(t.TempDir(), "imd.db")
	if _, _, err := NewEpoch(t.Context(), path); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("of no database: %v", err)
	}
	s := openAt(t, path)
	first := s.DataEpoch()
	if _, _, err := NewEpoch(t.Context(), path); !errors.Is(err, store.ErrLocked) {
		t.Errorf("of one in use: %v", err)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	was, now, err := NewEpoch(t.Context(), path)
	if err != nil || was != first || now == first {
		t.Fatalf("%s, %s, %v; it was %s", was, now, err, first)
	}
	s = openAt(t, path)
	defer s.Close()
	if s.DataEpoch() != now {
		t.Errorf("data_epoch %s, want %s", s.DataEpoch(), now)
	}
}

// A database whose process was killed has its newest commits in its log. At no moment of
// an Install does it lose them: when the log goes it is empty.
func TestAFormerDatabaseNeedsNoLog(t *testing.T) {
	dir := t.TempDir()
	path, from, alive := filepath.Join(dir, "imd.db"), filepath.Join(dir, "imd.db.part"), filepath.Join(t.TempDir(), "imd.db")
	s := openAt(t, alive)
	defer s.Close()
	for _, suffix := range []string{"", "-wal"} { // what a kill would leave
		text, err := os.ReadFile(alive + suffix)
		if err != nil || len(text) == 0 && suffix != "" {
			t.Fatalf("%d bytes, %v", len(text), err)
		}
		if err := os.WriteFile(path+suffix, text, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if err := openAt(t, from).Close(); err != nil {
		t.Fatal(err)
	}
	in, err := Install(t.Context(), path, from)
	if err != nil || in.Unread != nil {
		t.Fatal(err, in)
	}
	if log, err := os.Stat(in.Former + "-wal"); err == nil && log.Size() > 0 {
		t.Errorf("the former database was without %d bytes of its log for a moment", log.Size())
	}
	db, err := connect(in.Former, 1, "ro")
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	c := &conn{db: db}
	defer c.drop()
	var epoch string
	if err := errors.Join(c.open(t.Context()), c.row(`SELECT data_epoch FROM store WHERE id = 1`, nil, &epoch)); err != nil || epoch != s.DataEpoch() {
		t.Errorf("the former database has the data_epoch %s, it was %s; %v", epoch, s.DataEpoch(), err)
	}
}

// A database of imd without a store in it, or of something else, is no image.
func TestNoImage(t *testing.T) {
	path := filepath.Join(t.TempDir(), "imd.db")
	if _, err := OpenImage(t.Context(), path); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("no file: %v", err)
	}
	db, err := connect(path, 1, "rwc")
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	if _, err := db.Exec(`CREATE TABLE shopping (item TEXT)`); err != nil {
		t.Fatal(err)
	}
	if _, err := OpenImage(t.Context(), path); err == nil {
		t.Error("a list of shopping passed for a store")
	}
}

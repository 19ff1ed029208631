package sqlite

import (
	"errors"
	"io/fs"
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

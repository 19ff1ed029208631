package sqlite

import (
	"errors"
	"io/fs"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"go.uber.org/zap"

	"github.com/imdhq/imd/pkg/store"
)

// A source is held alone, changed by nobody, and known for what it is.
func TestSource(t *testing.T) {
	path := filepath.Join(t.TempDir(), "imd.db")
	open := func() (store.Source, error) {
		return OpenSource(t.Context(), &url.URL{Scheme: "sqlite", Path: path}, zap.NewNop())
	}
	if _, err := open(); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("no database: %v", err)
	}
	if _, err := os.Stat(path + sideSuffix); err == nil {
		t.Error("looking for a database has left a mark")
	}
	s := openAt(t, path)
	sendOne(t, s, 1)
	if _, err := open(); !errors.Is(err, store.ErrLocked) {
		t.Errorf("under a server: %v", err)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	src, err := open()
	if err != nil {
		t.Fatal(err)
	}
	first := src.Origin()
	refuseOpen(t, path, store.ErrLocked, "in use")
	if err := src.Close(); err != nil {
		t.Fatal(err)
	}
	if src, err = open(); err != nil || src.Origin() != first {
		t.Fatalf("looking at a source has changed it: %v", err)
	}
	note, err := os.ReadFile(path + sideSuffix)
	if err != nil {
		t.Fatal(err)
	}
	retired, err := src.Retire(t.Context())
	if err := errors.Join(err, src.Close()); err != nil {
		t.Fatal(err)
	}
	for _, cut := range []bool{false, true} {
		if cut { // between the database and the note beside it
			if err := os.WriteFile(path+sideSuffix, note, 0o600); err != nil {
				t.Fatal(err)
			}
		}
		if src, err = open(); err != nil {
			t.Fatal(err)
		}
		if o := src.Origin(); o.DataEpoch != retired || o.MovedEpoch != first.DataEpoch || o.MovedState != first.State {
			t.Errorf("a source that was retired: %+v", o)
		}
		if err := src.Close(); err != nil {
			t.Fatal(err)
		}
	}
	s = openAt(t, path)
	if s.DataEpoch() != retired || retired == first.DataEpoch {
		t.Errorf("data_epoch %s, want %s", s.DataEpoch(), retired)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	if src, err = open(); err != nil {
		t.Fatal(err)
	}
	if o := src.Origin(); o.MovedEpoch != first.DataEpoch || o.MovedState != "" {
		t.Errorf("a source that was used after it was retired: %+v", o)
	}
	if err := src.Close(); err != nil {
		t.Fatal(err)
	}
	if err := os.Remove(path + sideSuffix); err != nil {
		t.Fatal(err)
	}
	if _, err := open(); !errors.Is(err, store.ErrSchema) {
		t.Errorf("put back by hand: %v", err)
	}
}

// The log of a killed server belongs to what is copied.
func TestSourceAfterAKill(t *testing.T) {
	dir := t.TempDir()
	s := openAt(t, filepath.Join(dir, "imd.db"))
	sendOne(t, s, 1)
	killed := t.TempDir()
	for _, suffix := range []string{"", "-wal", sideSuffix} {
		raw, err := os.ReadFile(filepath.Join(dir, "imd.db"+suffix))
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(killed, "imd.db"+suffix), raw, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	src, err := OpenSource(t.Context(), &url.URL{Scheme: "sqlite", Path: filepath.Join(killed, "imd.db")}, zap.NewNop())
	if err != nil {
		t.Fatal(err)
	}
	defer src.Close()
	b, err := src.Export(t.Context(), store.Entries, "", 10)
	if err != nil || len(b.Entries) != 1 || !b.End {
		t.Errorf("%+v, %v", b, err)
	}
}

// Every table is copied, or it is said why not.
func TestEveryTableIsCopiedOrLeft(t *testing.T) {
	left := map[string]string{
		"store": "who the copy is is said at its end", "import": "of the copy itself", "import_table": "the same", "goose_db_version": "of the schema",
		"worker_lease": "ends in seconds", "session": "ends with the processes that used the source", "job": "a round comes early at worst",
		"outbox": "events are not copied: receivers have been told of them", "feed": "the same", "event": "the same", "dead_letter": "of such events",
	}
	copied := map[string]bool{}
	for _, table := range store.Tables() {
		name, _, _ := strings.Cut(exporters[table].table, " ")
		copied[name] = true
	}
	if len(copied) != len(store.Tables()) || len(exporters) != len(copied) {
		t.Errorf("%d tables are to be copied, %d can be", len(copied), len(exporters))
	}
	s := openAt(t, filepath.Join(t.TempDir(), "imd.db"))
	defer s.Close()
	var all []string
	err := s.w.each(background, `SELECT name FROM sqlite_schema WHERE type = 'table' AND name NOT LIKE 'sqlite_%'`, nil, func(scan func(...any) error) error {
		var name string
		err := scan(&name)
		all = append(all, name)
		return err
	})
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

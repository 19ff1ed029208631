package sqlite

import (
	"context"
	"errors"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"go.uber.org/zap"

	"github.com/imdhq/imd/pkg/store"
)

var background = context.Background()

// sendOne stores the n-th send to b.
func sendOne(t *testing.T, s *Store, n int) store.AppendResult {
	t.Helper()
	r, err := s.Append(t.Context(), []store.AppendRow{sendTo("b", n)})
	if err != nil || r[0].Err != nil {
		t.Fatalf("send %d: %+v, %v", n, r, err)
	}
	return r[0]
}

// refuseOpen opens path and wants a sentence that wraps want.
func refuseOpen(t *testing.T, path string, want error, words string) {
	t.Helper()
	s, err := Open(t.Context(), Options{Path: path})
	if err == nil {
		s.Close()
		t.Fatal("opened")
	}
	if !errors.Is(err, want) || !strings.Contains(err.Error(), words) || strings.Contains(err.Error(), "\n") {
		t.Errorf("error %q, want one line with %q that wraps %q", err, words, want)
	}
}

func TestDurability(t *testing.T) {
	s := openAt(t, filepath.Join(t.TempDir(), "imd.db"))
	defer s.Close()
	for pragma, want := range map[string]string{"journal_mode": "wal", "synchronous": "2"} {
		var got string
		if err := s.w.row("PRAGMA "+pragma, nil, &got); err != nil || got != want {
			t.Errorf("%s is %q, %v; want %q", pragma, got, err, want)
		}
	}
}

func TestFilesAreTheOwners(t *testing.T) {
	path := filepath.Join(t.TempDir(), "imd.db")
	s := openAt(t, path)
	defer s.Close()
	sendOne(t, s, 1)
	for _, suffix := range []string{"", "-wal", "-shm", sideSuffix} {
		fi, err := os.Stat(path + suffix)
		if err != nil || fi.Mode().Perm() != 0o600 {
			t.Errorf("%s: %v, %v", path+suffix, fi.Mode(), err)
		}
	}
}

func TestLocked(t *testing.T) {
	path := filepath.Join(t.TempDir(), "imd.db")
	s := openAt(t, path)
	refuseOpen(t, path, store.ErrLocked, "in use")
	sendOne(t, s, 1) // the attempt did no harm
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	if err := openAt(t, path).Close(); err != nil {
		t.Error(err)
	}
}

func TestNoDatabase(t *testing.T) {
	path := filepath.Join(t.TempDir(), "imd.db")
	if err := os.WriteFile(path, []byte("this is a letter, not a database"), 0o600); err != nil {
		t.Fatal(err)
	}
	refuseOpen(t, path, store.ErrCorrupt, "damaged")
	if b, _ := os.ReadFile(path); string(b) != "this is a letter, not a database" {
		t.Error("the file was changed")
	}
	if _, err := Open(t.Context(), Options{Path: filepath.Join(t.TempDir(), "none", "imd.db")}); err == nil {
		t.Error("a folder that is not there")
	}
}

// Pages overwritten with noise are found at the start after an unclean stop.
func TestDamagedPages(t *testing.T) {
	path := filepath.Join(t.TempDir(), "imd.db")
	s := openAt(t, path)
	for n := range 300 {
		sendOne(t, s, n)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	unclean := openAt(t, path)
	if _, err := unclean.w.exec("PRAGMA wal_checkpoint(TRUNCATE)"); err != nil {
		t.Fatal(err)
	}
	image, err := os.ReadFile(path) // as a crash would leave it
	if err != nil {
		t.Fatal(err)
	}
	if err := unclean.Close(); err != nil {
		t.Fatal(err)
	}
	for i := len(image) / 2; i < len(image)/2+3*4096; i++ {
		image[i] = 0xa5
	}
	if err := os.WriteFile(path, image, 0o600); err != nil {
		t.Fatal(err)
	}
	refuseOpen(t, path, store.ErrCorrupt, "damaged")
}

func TestNewerSchema(t *testing.T) {
	path := filepath.Join(t.TempDir(), "imd.db")
	s := openAt(t, path)
	if _, err := s.w.exec(`INSERT INTO goose_db_version (version_id, is_applied) VALUES (999, 1)`); err != nil {
		t.Fatal(err)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	refuseOpen(t, path, store.ErrSchema, "newer imd")
}

// copyStore copies the database of a closed store, without the mark.
func copyStore(t *testing.T, from, to string) {
	t.Helper()
	copyFile(t, from, to)
	_ = os.Remove(to + "-wal")
	_ = os.Remove(to + "-shm")
}

func TestDataEpoch(t *testing.T) {
	dir := t.TempDir()
	path, backup := filepath.Join(dir, "imd.db"), filepath.Join(dir, "backup.db")
	session := func(n int) (epoch string) {
		t.Helper()
		s := openAt(t, path)
		defer s.Close()
		sendOne(t, s, n)
		return s.DataEpoch()
	}
	first := session(1)
	if again := session(2); again != first {
		t.Errorf("data_epoch changed over a restart: %s, %s", first, again)
	}
	copyStore(t, path, backup)
	if again := session(3); again != first {
		t.Errorf("data_epoch changed over a copy: %s, %s", first, again)
	}
	copyStore(t, backup, path) // restore the older copy
	second := session(4)
	if second == first {
		t.Error("a restored older copy kept its data_epoch")
	}
	if again := session(5); again != second {
		t.Errorf("data_epoch changed again: %s, %s", second, again)
	}
	if err := os.Remove(path + sideSuffix); err != nil {
		t.Fatal(err)
	}
	third := session(6)
	if third == second {
		t.Error("a database without its mark kept its data_epoch")
	}
	copyStore(t, backup, path) // of another history by now
	fourth := session(7)
	if fourth == third || fourth == first {
		t.Error("a database of another history kept its data_epoch")
	}
	for _, f := range []string{path, path + "-wal", path + "-shm"} {
		_ = os.Remove(f)
	}
	if err := os.Remove(path + sideSuffix); err != nil {
		t.Fatal(err)
	}
	if fifth := session(8); fifth == fourth {
		t.Error("a wiped store kept its data_epoch")
	}
}

// A database that has vanished does not become an empty one by itself.
func TestALostDatabaseIsMissed(t *testing.T) {
	for name, lose := range map[string]func(string) error{
		"removed":   os.Remove,
		"truncated": func(path string) error { return os.Truncate(path, 0) },
	} {
		t.Run(name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "imd.db")
			s := openAt(t, path)
			sendOne(t, s, 1)
			if err := errors.Join(s.Close(), lose(path)); err != nil {
				t.Fatal(err)
			}
			refuseOpen(t, path, store.ErrCorrupt, "is missing or empty, but there was one with 2 commits")
			refuseOpen(t, path, store.ErrCorrupt, "remove "+path+".mark to begin with an empty one")
			if err := os.Remove(path + sideSuffix); err != nil {
				t.Fatal(err)
			}
			if err := openAt(t, path).Close(); err != nil {
				t.Error(err)
			}
		})
	}
}

func TestNote(t *testing.T) {
	n := note{mark{"abc", 42}, birth{7, 1_700_000_000_123_456_789}, 1_700_000_000_999}
	text := n.String()
	if got := parseNote(text); got == nil || *got != n {
		t.Errorf("parsed %v", got)
	}
	if big := (note{mark{"abc", 1 << 60}, birth{1 << 63, 1 << 60}, 1 << 60}); len(text) != len(big.String()) {
		t.Error("the length depends on the numbers")
	}
	former := summed("imd 1 abc 00000000000000000042")
	if got := parseNote(former); got == nil || *got != (note{mark: n.mark}) {
		t.Errorf("the form of older programs was read as %v", got)
	}
	for _, bad := range []string{"", "imd", text[:20], strings.Replace(text, "42", "43", 1), "imd 3" + text[5:], "imd 1" + text[5:], "imd 2" + former[5:]} {
		if got := parseNote(bad); got != nil {
			t.Errorf("%q was read as %+v", bad, *got)
		}
	}
}

func TestCopied(t *testing.T) {
	n := note{file: birth{7, 100}, written: 10_000}
	tests := []struct {
		name    string
		n       note
		file    birth
		changed int64
		want    bool
	}{
		{"the same file", n, birth{7, 100}, 10_001, false},
		{"the same file, its owner changed later", n, birth{7, 100}, 99_000, false},
		{"a copy", n, birth{8, 200}, 99_000, true},
		{"a copy that got the number of the old one", n, birth{7, 200}, 99_000, true},
		{"births made up anew, nothing written", n, birth{8, 100}, 10_004, false},
		{"births not known here", n, birth{}, 99_000, false},
		{"written by an older program", note{}, birth{8, 200}, 99_000, false},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			if got := tt.n.copied(tt.file, tt.changed); got != tt.want {
				t.Errorf("copied() = %v", got)
			}
		})
	}
}

// A folder that was put back as a whole, with its own old mark, is noticed.
func TestWholeFolderPutBack(t *testing.T) {
	dir, backup := t.TempDir(), t.TempDir()
	path := filepath.Join(dir, "imd.db")
	session := func() string {
		t.Helper()
		s := openAt(t, path)
		defer s.Close()
		sendOne(t, s, 1)
		return s.DataEpoch()
	}
	first := session()
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	b, _ := birthOf(f)
	f.Close()
	move := func(from, to string) {
		t.Helper()
		for _, suffix := range []string{"", sideSuffix} {
			raw, err := os.ReadFile(filepath.Join(from, "imd.db"+suffix))
			if err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(filepath.Join(to, "imd.db"+suffix), raw, 0o600); err != nil {
				t.Fatal(err)
			}
		}
	}
	move(dir, backup)
	for _, suffix := range []string{"", "-wal", "-shm", sideSuffix} {
		_ = os.Remove(path + suffix)
	}
	time.Sleep(2 * touchSlack * time.Millisecond) // the time between a copy and its return counts
	move(backup, dir)
	second := session()
	if second == first && b != (birth{}) { // else the file system does not tell when files were made
		t.Error("a folder that was put back kept its data_epoch")
	}
	if third := session(); third != second {
		t.Error("and it did not keep the new one")
	}
}

func TestOpenURL(t *testing.T) {
	dir := t.TempDir()
	for _, dsn := range []string{"sqlite:" + dir + "/a.db", "sqlite://" + dir + "/a.db", "sqlite:" + dir + "/with%20space.db"} {
		s, err := store.Drivers[store.MessageStore]{"sqlite": OpenURL}.Open(t.Context(), dsn, zap.NewNop())
		if err != nil {
			t.Fatalf("%s: %v", dsn, err)
		}
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	}
	if _, err := os.Stat(filepath.Join(dir, "with space.db")); err != nil {
		t.Error(err)
	}
	if _, err := OpenURL(t.Context(), &url.URL{Scheme: "sqlite"}, zap.NewNop()); !errors.Is(err, store.ErrDSN) {
		t.Errorf("no path: %v", err)
	}
}

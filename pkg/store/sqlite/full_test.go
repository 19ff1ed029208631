package sqlite

import (
	"errors"
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/imdhq/imd/pkg/im"
	"github.com/imdhq/imd/pkg/store"
	"github.com/imdhq/imd/sdk/go/gen/clientv1"
)

// full limits the database to what it has, so that writing fails as on a full
// disk; the returned function makes space.
func full(t *testing.T, s *Store) (space func()) {
	t.Helper()
	limit := func(pages any) {
		s.w.turn <- struct{}{}
		defer func() { <-s.w.turn }()
		var now int
		if err := s.w.row("PRAGMA page_count", nil, &now); err != nil {
			t.Fatal(err)
		}
		if pages == nil {
			pages = now
		}
		if err := s.w.c.QueryRowContext(background, "PRAGMA max_page_count("+anyText(pages)+")").Scan(&now); err != nil {
			t.Fatal(err)
		}
	}
	limit(nil)
	return func() { limit(1 << 30) }
}

func TestFull(t *testing.T) {
	t.Run("a database at its limit", func(t *testing.T) {
		s := openAt(t, filepath.Join(t.TempDir(), "imd.db"))
		defer s.Close()
		fillUp(t, s, func() func() { return full(t, s) })
	})
	if dir := smallDisk(t); dir != "" { // where this user may mount
		t.Run("a full disk", func(t *testing.T) {
			path := filepath.Join(dir, "imd.db")
			s := openAt(t, path)
			ballast := filepath.Join(dir, "ballast")
			fillUp(t, s, func() func() {
				writeAll(t, ballast)
				return func() {
					if err := os.Remove(ballast); err != nil {
						t.Fatal(err)
					}
				}
			})
			if err := s.Close(); err != nil {
				t.Error(err)
			}
			for _, f := range []string{path, path + sideSuffix} {
				if err := os.Remove(f); err != nil {
					t.Error(err)
				}
			}
			writeAll(t, ballast)
			refuseOpen(t, path, store.ErrFull, "no space")
		})
	}
}

// smallDisk is a folder on a disk of 4 MB; "" where none can be made.
func smallDisk(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	if err := syscall.Mount("tmpfs", dir, "tmpfs", 0, "size=4m"); err != nil {
		t.Logf("no small disk: %v", err)
		return ""
	}
	t.Cleanup(func() {
		if err := syscall.Unmount(dir, syscall.MNT_DETACH); err != nil {
			t.Error(err)
		}
	})
	return dir
}

// writeAll fills the disk with a file.
func writeAll(t *testing.T, path string) {
	t.Helper()
	f, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	for block := make([]byte, 512); ; {
		if _, err := f.Write(block); errors.Is(err, syscall.ENOSPC) {
			return
		} else if err != nil {
			t.Fatal(err)
		}
	}
}

// fillUp takes the space away from s, which is empty, and gives it back.
func fillUp(t *testing.T, s *Store, take func() (space func())) {
	t.Helper()
	first := sendOne(t, s, 0)
	space := take()
	rows := make([]store.AppendRow, 100)
	for i := range rows {
		rows[i] = sendTo("b", i+1)
		rows[i].Content = make([]byte, 4096)
	}
	for range 3 {
		_, err := s.Append(t.Context(), rows)
		if !errors.Is(err, store.ErrFull) || errors.Is(err, store.ErrUnknownOutcome) || im.ReasonOf(err) != clientv1.Reason_REASON_UNAVAILABLE {
			t.Fatalf("append: %v", err)
		}
		if err := s.Ping(t.Context()); !errors.Is(err, store.ErrFull) {
			t.Errorf("ping: %v", err)
		}
	}
	if p, err := s.History(t.Context(), store.HistoryQuery{Reader: "b", Conversation: rows[0].Conversation, Limit: 10}); err != nil || len(p.Entries) != 1 {
		t.Errorf("reading: %+v, %v", p, err)
	}
	space()
	if err := s.Ping(t.Context()); err != nil {
		t.Errorf("ping with space: %v", err)
	}
	r, err := s.Append(t.Context(), rows)
	if err != nil || r[0].Err != nil || r[0].Seq != first.Seq+1 || r[99].Seq != first.Seq+100 {
		t.Errorf("append with space: %+v, %v", r, err)
	}
}

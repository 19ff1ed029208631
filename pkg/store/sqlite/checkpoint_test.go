package sqlite

import (
	"os"
	"path/filepath"
	"testing"
)

// While commits follow each other, the log is copied beside them and begins anew,
// long before the writer has to copy it itself.
func TestTheLogBeginsAnew(t *testing.T) {
	path := filepath.Join(t.TempDir(), "imd.db")
	s := openAt(t, path)
	defer s.Close()
	if err := s.w.run(t.Context(), func(tx *tx) error {
		tx.changed = true
		_, err := tx.exec(`CREATE TABLE scratch (b BLOB)`)
		return err
	}); err != nil {
		t.Fatal(err)
	}
	const page = 4096
	var longest int64
	for range logPagesAtMost / 8 { // 9 pages or more each
		err := s.w.run(t.Context(), func(tx *tx) error {
			tx.changed = true
			_, err := tx.exec(`INSERT INTO scratch VALUES (zeroblob(?))`, 8*page)
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
		fi, err := os.Stat(path + "-wal")
		if err != nil {
			t.Fatal(err)
		}
		longest = max(longest, fi.Size()/page)
	}
	if longest > logPagesAtMost*3/4 {
		t.Errorf("the log held %d pages", longest)
	}
}

// A store whose log cannot be copied beside the writer goes on; the writer copies then.
func TestPagesThatAreNotCopied(t *testing.T) {
	s := openAt(t, filepath.Join(t.TempDir(), "imd.db"))
	defer s.Close()
	c := &checkpointer{w: s.w, conn: conn{db: s.checkpoints.conn.db}, data: s.checkpoints.data}
	s.checkpoints.end()
	if err := c.look(); err == nil {
		t.Error("a connection that is closed copies")
	}
	sendOne(t, s, 0)
}

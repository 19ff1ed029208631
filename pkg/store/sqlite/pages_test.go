package sqlite

import (
	"errors"
	"path/filepath"
	"testing"
)

func TestBustle(t *testing.T) {
	var b bustle
	some := func(n int) {
		for range n {
			b.note()
		}
	}
	steps := int(calmTime / calmStep)
	for n := range steps {
		if b.calm() {
			t.Fatalf("calm after %d steps", n)
		}
		some(calmRate - 1)
		if now := b.step(); now != (n == steps-1) {
			t.Fatalf("step %d says %v", n, now)
		}
	}
	if !b.calm() || b.step() || !b.calm() {
		t.Error("it is not calm after all its time, or becomes so twice")
	}
	some(calmRate)
	if b.calm() {
		t.Error("calm beside too many transactions, before the next step")
	}
	b.step()
	some(1)
	if b.calm() {
		t.Error("calm a step after too many transactions")
	}
}

// pagesOf is how much of the database a connection may keep, in KiB.
func pagesOf(t *testing.T, c *conn) (kib int) {
	t.Helper()
	if err := c.c.QueryRowContext(t.Context(), `PRAGMA cache_size`).Scan(&kib); err != nil {
		t.Fatal(err)
	}
	return -kib
}

// A calm store keeps little of its database in memory, and more with the first
// transactions of a bustle.
func TestACalmStoreKeepsFewPages(t *testing.T) {
	s := openAt(t, filepath.Join(t.TempDir(), "imd.db"))
	defer func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	}()
	s.calmer.end() // the test steps
	b := &s.w.bustle
	expect := func(when string, reader, writer int) {
		t.Helper()
		for range s.all {
			err := s.read(t.Context(), func(c *conn) error {
				if got := pagesOf(t, c); got != reader {
					t.Errorf("%s a reader may keep %d KiB, want %d", when, got, reader)
				}
				return nil
			})
			if err != nil {
				t.Fatal(err)
			}
		}
		err := s.w.run(t.Context(), func(tx *tx) error {
			if got := pagesOf(t, &tx.conn); got != writer {
				t.Errorf("%s the writer may keep %d KiB, want %d", when, got, writer)
			}
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	b.step()
	expect("at first", readerPages, writerPages)
	for !b.step() {
	}
	(&calmer{s: s, quit: make(chan struct{})}).calmAll()
	expect("when it is calm", readerPagesCalm, writerPagesCalm)
	for range calmRate {
		b.note()
	}
	expect("in a bustle", readerPages, writerPages)

	for !b.step() { // a connection made anew has the room of the store's state
	}
	if err := s.read(t.Context(), func(c *conn) error { return c.drop() }); err != nil && !errors.Is(err, errLost) {
		t.Fatal(err)
	}
	expect("when it is calm again", readerPagesCalm, writerPagesCalm)
}

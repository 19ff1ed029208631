package sqlite

import (
	"errors"
	"io"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/imdhq/imd/pkg/testenv/machine"
)

// fill commits rows of some pages, and looks now and then. It returns how many pages
// the log held at most.
func fill(t *testing.T, s *Store, path string, look func() error) (longest int64) {
	t.Helper()
	return fillUntil(t, s, path, 16_000, 50, new(bool), look)
}

// fillUntil is the same for that many pages, with a look after every pause commits,
// or until enough.
func fillUntil(t *testing.T, s *Store, path string, pages, pause int, enough *bool, look func() error) (longest int64) {
	t.Helper()
	const page, each = 4096, 40
	write := func(query string, args ...any) {
		t.Helper()
		if err := s.w.run(t.Context(), func(tx *tx) error {
			tx.changed = true
			_, err := tx.exec(query, args...)
			return err
		}); err != nil {
			t.Fatal(err)
		}
	}
	write(`CREATE TABLE scratch (b BLOB)`)
	for n := 0; n < pages/each && !*enough; n++ {
		write(`INSERT INTO scratch VALUES (zeroblob(?))`, each*page)
		fi, err := os.Stat(path + "-wal")
		if err != nil {
			t.Fatal(err)
		}
		longest = max(longest, fi.Size()/page)
		if n%pause == pause-1 {
			if err := look(); err != nil {
				t.Fatal(err)
			}
		}
	}
	return longest
}

// byHand ends the goroutine of the checkpoints, and gives another checkpointer,
// which looks when the test says so.
func byHand(t *testing.T, s *Store, path string) *checkpointer {
	t.Helper()
	s.checkpoints.end()
	c, err := newCheckpointer(s.w, path, s.w.log)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { // after the store is closed
		if err := errors.Join(s.Close(), c.conn.drop(), c.conn.db.Close(), c.data.Close()); err != nil {
			t.Error(err)
		}
	})
	return c
}

// While commits follow each other, the log is copied beside them and begins anew at
// the first look after it is long.
func TestTheLogBeginsAnew(t *testing.T) {
	path := filepath.Join(t.TempDir(), "imd.db")
	s := openAt(t, path)
	c := byHand(t, s, path)
	n := fill(t, s, path, c.look)
	if n > logPages*3/2 {
		t.Errorf("the log held %d pages", n)
	}
	if size := s.LogBytes(); size <= 0 || size/4096 > n {
		t.Errorf("it is said to have %d bytes", size)
	}
}

// hold begins to read at the newest snapshot, and goes on until free.
func hold(t *testing.T, s *Store) (free func()) {
	t.Helper()
	began, release, ended := make(chan struct{}), make(chan struct{}), make(chan error)
	go func() {
		ended <- s.read(t.Context(), func(c *conn) error {
			defer func() { <-release }()
			defer close(began)
			var n int64
			return c.row(`SELECT count(*) FROM sqlite_schema`, nil, &n)
		})
	}()
	<-began
	return func() {
		close(release)
		if err := <-ended; err != nil {
			t.Error(err)
		}
	}
}

// head is how the log begins: another way when it has begun anew.
func head(t *testing.T, path string) string {
	t.Helper()
	f, err := os.Open(path + "-wal")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	b := make([]byte, 32)
	if _, err := io.ReadFull(f, b); err != nil {
		t.Fatal(err)
	}
	return string(b)
}

// Where somebody always reads, and for longer than the writer waits at first, the
// longer log makes it wait longer.
func TestTheLogEndsGrowingBesideSlowReaders(t *testing.T) {
	path := filepath.Join(t.TempDir(), "imd.db")
	s := openAt(t, path)
	c := byHand(t, s, path)
	const readers, long = 3, 60 * time.Millisecond
	stop := make(chan struct{})
	var wg sync.WaitGroup
	for n := range readers {
		wg.Go(func() {
			time.Sleep(time.Duration(n) * long / readers) // so that one of them always has long to go
			for {
				select {
				case <-stop:
					return
				default:
				}
				if err := s.read(t.Context(), func(c *conn) error {
					var n int64
					err := c.row(`SELECT count(*) FROM sqlite_schema`, nil, &n)
					time.Sleep(long)
					return err
				}); err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	var first string
	var waited time.Duration
	began, anew := time.Now(), false
	longest := fillUntil(t, s, path, 40_000, 10, &anew, func() error {
		if first == "" {
			first = head(t, path)
		}
		looked := time.Now()
		c.rested = looked // a busy machine fills the log while the writer may not be asked to wait
		err := c.look()
		waited += time.Since(looked)
		anew = anew || head(t, path) != first
		return err
	})
	close(stop)
	wg.Wait()
	t.Logf("the log held %d pages at most; looks took %v of %v", longest, waited.Round(time.Millisecond), time.Since(began).Round(time.Millisecond))
	if !anew {
		t.Errorf("the log did not begin anew with %d pages", longest)
	}
}

// What the writer waits becomes shorter again.
func TestPatienceIsObeyed(t *testing.T) {
	path := filepath.Join(t.TempDir(), "imd.db")
	c := byHand(t, openAt(t, path), path)
	for _, want := range []time.Duration{renewWait, renewMost, renewWait} {
		if err := c.renew(want); err != nil {
			t.Fatal(err)
		}
		var ms int64
		if err := c.conn.row("PRAGMA busy_timeout", nil, &ms); err != nil || ms != want.Milliseconds() {
			t.Errorf("%d ms are in force, %v; want %v", ms, err, want)
		}
	}
}

// The longer the log, the longer the writer waits, within bounds.
func TestPatience(t *testing.T) {
	for pages, want := range map[int64]time.Duration{
		logPages: renewWait, 2*logPages - 1: renewWait, 2 * logPages: 2 * renewWait, 4 * logPages: 8 * renewWait, 100 * logPages: renewMost, 1 << 40: renewMost,
	} {
		if got := patience(pages); got != want {
			t.Errorf("%d pages: %v, want %v", pages, got, want)
		}
	}
}

// It does so too where somebody always reads: the writer waits a moment for those who
// still use the log.
func TestTheLogBeginsAnewBesideReaders(t *testing.T) {
	path := filepath.Join(t.TempDir(), "imd.db")
	s := openAt(t, path)
	c := byHand(t, s, path)
	fill(t, s, path, func() error { return nil })
	first := head(t, path)
	const tries = 20 // on a machine with much to do a reader may come late, but not always
	for n := range tries {
		free := hold(t, s)
		looked, committed, freed := make(chan struct{}), make(chan struct{}), make(chan struct{})
		go func() { // ends a little after the turn is taken, if that is waited for, else after the commit
			defer close(freed)
			defer free()
			for len(s.w.turn) == 0 {
				select {
				case <-looked:
					<-committed
					return
				case <-time.After(100 * time.Microsecond):
				}
			}
			select {
			case <-looked:
				<-committed
			case <-time.After(5 * time.Millisecond):
			}
		}()
		err := c.look()
		close(looked)
		if err != nil {
			t.Error(err)
		}
		sendOne(t, s, n)
		close(committed)
		<-freed
		if head(t, path) != first {
			return
		}
	}
	t.Error("the log did not begin anew")
}

// A reader that stays at a snapshot makes nobody wait: not at an old one, where the
// writer's turn is not even asked for, and hardly at one that is nearly new.
func TestTheLogBesideASlowReader(t *testing.T) {
	path := filepath.Join(t.TempDir(), "imd.db")
	s := openAt(t, path)
	c := byHand(t, s, path)
	free := hold(t, s)
	fill(t, s, path, func() error { return nil })
	s.w.turn <- struct{}{}
	if err := c.look(); err != nil { // waits for the turn for ever if it asks
		t.Error(err)
	}
	<-s.w.turn
	free()

	free = hold(t, s)
	defer free()
	sendOne(t, s, 0)
	took := machine.Took(func() {
		if err := c.look(); err != nil {
			t.Error(err)
		}
	})
	if took > 3*time.Second {
		t.Errorf("the writer waited for a reader for %v", took)
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

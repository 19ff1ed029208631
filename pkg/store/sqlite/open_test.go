package sqlite

import (
	"context"
	"errors"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"go.uber.org/zap"

	"github.com/imdhq/imd/pkg/im"
	"github.com/imdhq/imd/pkg/store"
	"github.com/imdhq/imd/sdk/go/gen/clientv1"
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
	if fifth := session(8); fifth == fourth {
		t.Error("a wiped store kept its data_epoch")
	}
}

func TestMark(t *testing.T) {
	m := mark{"abc", 42}
	if got := parseMark(m.String()); got == nil || *got != m {
		t.Errorf("parsed %v", got)
	}
	if len(m.String()) != len(mark{"abc", 1 << 60}.String()) {
		t.Error("the length depends on the counter")
	}
	for _, bad := range []string{"", "imd", m.String()[:20], strings.Replace(m.String(), "42", "43", 1), "imd 2" + m.String()[5:]} {
		if got := parseMark(bad); got != nil {
			t.Errorf("%q was read as %+v", bad, *got)
		}
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

// An entry that somebody else wrote above the head is passed by.
func TestForeignEntry(t *testing.T) {
	s := openAt(t, filepath.Join(t.TempDir(), "imd.db"))
	defer s.Close()
	conv := sendTo("b", 0).Conversation
	sendOne(t, s, 0)
	insert := func(seq int) {
		t.Helper()
		_, err := s.w.exec(`INSERT INTO entry (conv, seq, prev_seq, kind, countable, sender, message_id, client_message_id,
		  server_time_ms, target_seq, changed_seq) SELECT num, ?, 1, 1, 1, 'x', ?, ?, 0, 0, 0 FROM conversation WHERE id = ?`,
			seq, seq, "foreign", string(conv))
		if err != nil {
			t.Fatal(err)
		}
	}
	insert(2)
	r := sendOne(t, s, 1)
	if r.Seq != 3 || r.PrevSeq != 2 || r.Duplicate {
		t.Errorf("after a foreign entry: %+v", r)
	}
	if r := sendOne(t, s, 2); r.Seq != 4 || r.PrevSeq != 3 {
		t.Errorf("next: %+v", r)
	}
	if r := sendOne(t, s, 1); r.Seq != 3 || !r.Duplicate {
		t.Errorf("resend: %+v", r)
	}
}

// While another process holds the lock, calls end with their context and have
// changed nothing; reading goes on.
func TestForeignLock(t *testing.T) {
	path := filepath.Join(t.TempDir(), "imd.db")
	s := openAt(t, path)
	defer s.Close()
	sendOne(t, s, 0)
	db, err := connect(path, 1, "rw")
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	foreign := conn{db: db}
	if err := foreign.open(t.Context()); err != nil {
		t.Fatal(err)
	}
	defer foreign.drop()
	if _, err := foreign.exec("BEGIN IMMEDIATE"); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
		_, err = s.Append(ctx, []store.AppendRow{sendTo("b", 1)})
		if !errors.Is(err, context.DeadlineExceeded) || errors.Is(err, store.ErrUnknownOutcome) {
			t.Errorf("append: %v", err)
		}
		if err := s.Ping(ctx); err == nil {
			t.Error("ping: no error")
		}
		cancel()
	}
	if _, err := s.User(t.Context(), "a"); err != nil {
		t.Errorf("reading: %v", err)
	}
	if _, err := foreign.exec("ROLLBACK"); err != nil {
		t.Fatal(err)
	}
	if r := sendOne(t, s, 1); r.Seq != 2 || r.Duplicate {
		t.Errorf("afterwards: %+v", r)
	}
}

// A call whose time ends in the middle of a transaction says that the outcome
// is unknown; running it again gives the answer.
func TestSlowCommit(t *testing.T) {
	s := openAt(t, filepath.Join(t.TempDir(), "imd.db"))
	defer s.Close()
	ctx, cancel := context.WithCancel(t.Context())
	entered, leave := make(chan struct{}), make(chan struct{})
	go func() {
		<-entered
		cancel()
	}()
	err := s.w.run(ctx, func(t *tx) error {
		close(entered)
		<-leave
		row := sendTo("b", 0)
		_, err := t.send(&row)
		return err
	})
	if !errors.Is(err, store.ErrUnknownOutcome) || !errors.Is(err, context.Canceled) {
		t.Errorf("error: %v", err)
	}
	close(leave)
	if r := sendOne(t, s, 0); !r.Duplicate || r.Seq != 1 {
		t.Errorf("again: %+v", r)
	}
}

// A panic undoes its transaction and nothing else.
func TestPanic(t *testing.T) {
	s := openAt(t, filepath.Join(t.TempDir(), "imd.db"))
	defer s.Close()
	err := s.w.run(t.Context(), func(t *tx) error {
		row := sendTo("b", 0)
		if _, err := t.send(&row); err != nil {
			return err
		}
		panic("broken")
	})
	if err == nil || !strings.Contains(err.Error(), "broken") {
		t.Errorf("error: %v", err)
	}
	if r := sendOne(t, s, 0); r.Duplicate || r.Seq != 1 {
		t.Errorf("afterwards: %+v", r)
	}
}

// A transaction that fails leaves nothing behind, in memory either.
func TestFailedTransaction(t *testing.T) {
	s := openAt(t, filepath.Join(t.TempDir(), "imd.db"))
	defer s.Close()
	sendOne(t, s, 0)
	broken := errors.New("broken")
	for range 2 {
		err := s.w.run(t.Context(), func(t *tx) error {
			for n := 1; n < 5; n++ {
				row := sendTo("b", n)
				if _, err := t.send(&row); err != nil {
					return err
				}
			}
			row := sendTo("c", 9) // a new conversation
			if _, err := t.send(&row); err != nil {
				return err
			}
			return broken
		})
		if !errors.Is(err, broken) {
			t.Fatal(err)
		}
	}
	if r := sendOne(t, s, 1); r.Seq != 2 || r.PrevSeq != 1 || r.Duplicate {
		t.Errorf("after a failed transaction: %+v", r)
	}
	r, err := s.Append(t.Context(), []store.AppendRow{sendTo("c", 9)})
	if err != nil || r[0].Err != nil || r[0].Seq != 1 || r[0].Duplicate {
		t.Errorf("a conversation that was not made: %+v, %v", r, err)
	}
}

// The writer survives the loss of its connection in the middle.
func TestReconnect(t *testing.T) {
	s := openAt(t, filepath.Join(t.TempDir(), "imd.db"))
	defer s.Close()
	sendOne(t, s, 0)
	_ = s.w.run(t.Context(), func(t *tx) error {
		row := sendTo("b", 1)
		if _, err := t.send(&row); err != nil {
			return err
		}
		return errors.Join(errors.New("lost"), t.drop())
	})
	if r := sendOne(t, s, 1); r.Seq != 2 || r.Duplicate {
		t.Errorf("after the connection was lost: %+v", r)
	}
}

// A small memory gives the same answers.
func TestCacheBounds(t *testing.T) {
	h := newCache()
	for n := range 3 {
		c := &conversation{id: im.ConversationID(rune('a' + n)), members: map[im.UserID]*member{}}
		h.add(c)
		for i := range cacheWeight / 3 {
			c.members[im.UserID(anyText(i))] = nil
		}
		h.weigh(c)
	}
	h.get("a")
	h.trim()
	if h.weight > cacheWeight || h.convs["a"] == nil || h.convs["b"] != nil || h.convs["c"] == nil {
		t.Errorf("weight %d, kept %d", h.weight, len(h.convs))
	}
}

func TestClosed(t *testing.T) {
	s := openAt(t, filepath.Join(t.TempDir(), "imd.db"))
	for range 2 {
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
	}
	_, appended := s.Append(t.Context(), []store.AppendRow{sendTo("b", 1)})
	_, read := s.User(t.Context(), "a")
	for _, err := range []error{appended, read, s.Ping(t.Context())} {
		if im.ReasonOf(err) != clientv1.Reason_REASON_UNAVAILABLE {
			t.Errorf("after close: %v", err)
		}
	}
}

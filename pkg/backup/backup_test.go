package backup_test

import (
	"bytes"
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	"go.uber.org/goleak"

	"github.com/imdhq/imd/pkg/backup"
	"github.com/imdhq/imd/pkg/datadir"
	"github.com/imdhq/imd/pkg/im"
	"github.com/imdhq/imd/pkg/store"
	"github.com/imdhq/imd/pkg/store/sqlite"
	"github.com/imdhq/imd/sdk/go/gen/clientv1"
	"github.com/imdhq/imd/sdk/go/protocol"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// place is a data folder and its database.
type place struct{ dir, db string }

func newPlace(t *testing.T) place {
	dir := filepath.Join(t.TempDir(), "data")
	return place{dir, filepath.Join(dir, "imd.db")}
}

func (p place) open(t *testing.T) *sqlite.Store {
	t.Helper()
	s, err := sqlite.Open(t.Context(), sqlite.Options{Path: p.db})
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// fill starts a node's folder with a store that has n messages.
func (p place) fill(t *testing.T, n int) *sqlite.Store {
	t.Helper()
	d, err := datadir.Open(p.dir)
	if err != nil {
		t.Fatal(err)
	}
	if err := d.Close(); err != nil {
		t.Fatal(err)
	}
	s := p.open(t)
	for i := range n {
		send(t, s, i)
	}
	return s
}

func send(t *testing.T, s *sqlite.Store, n int) store.AppendResult {
	t.Helper()
	r, err := s.Append(context.Background(), []store.AppendRow{{
		Conversation: im.ConversationID(protocol.DirectID("ann", "bob")), Peer: "bob", Sender: "ann", ClientMessageID: im.ClientMessageID(uuid.NewString()),
		MessageID: im.MessageID(time.Now().UnixNano()), Kind: clientv1.EntryKind_ENTRY_KIND_MESSAGE, Content: bytes.Repeat([]byte{byte(n)}, 100), Countable: true,
	}})
	if err != nil || r[0].Err != nil {
		t.Fatalf("send %d: %+v, %v", n, r, err)
	}
	return r[0]
}

func (p place) backup(t *testing.T) string {
	t.Helper()
	to := filepath.Join(t.TempDir(), "b.tar")
	if _, err := backup.Write(t.Context(), backup.WriteOptions{Database: p.db, Folder: p.dir, To: to}); err != nil {
		t.Fatal(err)
	}
	return to
}

func (p place) restore(t *testing.T, from string, replace bool) (*backup.Restored, error) {
	t.Helper()
	d, err := datadir.Hold(p.dir)
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	return backup.Read(t.Context(), backup.ReadOptions{From: from, Dir: d, Database: p.db, Replace: replace})
}

// A backup of a store that is being written holds everything that was
// acknowledged before it began, and is sound.
func TestWhileWriting(t *testing.T) {
	p := newPlace(t)
	s := p.fill(t, 200)
	defer s.Close()
	stop := make(chan struct{})
	var wg sync.WaitGroup
	var mu sync.Mutex
	last := im.Seq(0)
	wg.Go(func() {
		for n := 0; ; n++ {
			select {
			case <-stop:
				return
			default:
			}
			r := send(t, s, n)
			mu.Lock()
			last = r.Seq
			mu.Unlock()
		}
	})
	for range 5 {
		mu.Lock()
		before := last
		mu.Unlock()
		from := p.backup(t)
		q := newPlace(t)
		r, err := q.restore(t, from, false)
		if err != nil {
			t.Fatal(err)
		}
		c := q.open(t)
		h, err := c.History(t.Context(), store.HistoryQuery{Reader: "bob", Conversation: im.ConversationID(protocol.DirectID("ann", "bob")), Limit: 1, Backward: true})
		if err != nil || len(h.Entries) != 1 {
			t.Fatal(h, err)
		}
		if head := h.Entries[0].Seq; head < before || int64(head) != r.Counts["entry"] {
			t.Errorf("the backup ends at %d, %d was stored before it; it counts %d", head, before, r.Counts["entry"])
		}
		if c.DataEpoch() != r.DataEpoch || c.DataEpoch() == s.DataEpoch() {
			t.Errorf("data_epoch %s, said to be %s, it was %s", c.DataEpoch(), r.DataEpoch, s.DataEpoch())
		}
		if err := c.Close(); err != nil {
			t.Error(err)
		}
	}
	close(stop)
	wg.Wait()
}

// What must not go back stays at the height of the database that is replaced,
// which stays readable beside the new one.
func TestNothingGoesBack(t *testing.T) {
	p := newPlace(t)
	s := p.fill(t, 3)
	claim := func(revision int64) store.Fence {
		t.Helper()
		f, err := s.ClaimFence(t.Context(), store.FenceClaim{Name: "scheduler", Holder: "h", Cluster: "c", Revision: revision})
		if err != nil {
			t.Fatal(err)
		}
		return f
	}
	far := time.Now().Add(time.Hour).Truncate(time.Microsecond)
	claim(1)
	if _, err := s.MoveWorkerMark(t.Context(), 1, time.Time{}, time.UnixMicro(1)); err != nil {
		t.Fatal(err)
	}
	from := p.backup(t)
	high := claim(2)
	if _, err := s.MoveWorkerMark(t.Context(), 2, time.Time{}, far); err != nil {
		t.Fatal(err)
	}
	send(t, s, 4)
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	began := time.Now().Truncate(time.Microsecond)
	r, err := p.restore(t, from, true)
	if err != nil {
		t.Fatal(err)
	}
	s = p.open(t)
	defer s.Close()
	if f, err := s.Fence(t.Context(), "scheduler"); err != nil || f.Token != high.Token || f.Revision != 2 {
		t.Errorf("the fence is %+v, %v; it was %+v", f, err, high)
	}
	if m, err := s.WorkerMark(t.Context(), 2); err != nil || !m.Equal(far) {
		t.Errorf("the mark of a worker that came later is %v, %v", m, err)
	}
	if m, err := s.WorkerMark(t.Context(), 1); err != nil || m.Before(began) {
		t.Errorf("an old mark is %v, %v; the restore began at %v", m, err, began)
	}
	i, err := sqlite.OpenImage(t.Context(), r.Former)
	if err != nil || i.Counts["entry"] != 4 {
		t.Fatalf("the former database: %+v, %v", i, err)
	}
	if err := i.Close(); err != nil {
		t.Error(err)
	}
}

// A former database that cannot be read is replaced all the same, and said.
func TestDamagedFormer(t *testing.T) {
	p := newPlace(t)
	s := p.fill(t, 3)
	from := p.backup(t)
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(p.db, []byte("rubbish"), 0o600); err != nil {
		t.Fatal(err)
	}
	r, err := p.restore(t, from, true)
	if err != nil || r.Unread == nil {
		t.Fatalf("%+v, %v", r, err)
	}
	if raw, err := os.ReadFile(r.Former); err != nil || string(raw) != "rubbish" {
		t.Error("the former database was not kept")
	}
	if err := p.open(t).Close(); err != nil {
		t.Error(err)
	}
}

// A file that was cut or changed anywhere is refused, and nothing is put there.
func TestDamagedBackup(t *testing.T) {
	p := newPlace(t)
	s := p.fill(t, 50)
	defer s.Close()
	good, err := os.ReadFile(p.backup(t))
	if err != nil {
		t.Fatal(err)
	}
	q := newPlace(t)
	refuse := func(name string, data []byte) {
		t.Helper()
		from := filepath.Join(t.TempDir(), "bad.tar")
		if err := os.WriteFile(from, data, 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := q.restore(t, from, false); !errors.Is(err, backup.ErrDamaged) && !errors.Is(err, store.ErrSchema) {
			t.Errorf("%s: %v", name, err)
		}
		for _, f := range []string{q.db, q.db + ".restoring", datadir.TokenKeyFile(q.dir)} {
			if _, err := os.Stat(f); !errors.Is(err, fs.ErrNotExist) {
				t.Fatalf("%s: there is %s", name, f)
			}
		}
	}
	for cut := 0; cut < len(good)-1024; cut += 1 + len(good)/40 { // the end of a tar archive is 1,024 zeros
		refuse("cut", good[:cut])
	}
	for at := 512; at < len(good)-4096; at += 1 + len(good)/60 {
		bad := bytes.Clone(good)
		bad[at] ^= 0x40
		if bytes.Equal(strip(bad), strip(good)) {
			continue // in the padding behind a file, which means nothing
		}
		refuse("changed", bad)
	}
}

// strip is an archive without what nobody reads.
func strip(data []byte) []byte { return bytes.TrimRight(data, "\x00") }

func TestOccupied(t *testing.T) {
	p := newPlace(t)
	s := p.fill(t, 2)
	from := p.backup(t)
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := p.restore(t, from, false); !errors.Is(err, backup.ErrOccupied) {
		t.Errorf("over a database: %v", err)
	}
	q := newPlace(t) // has keys of its own and no database
	d, err := datadir.Open(q.dir)
	if err != nil {
		t.Fatal(err)
	}
	d.Close()
	own, err := os.ReadFile(datadir.TokenKeyFile(q.dir))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := q.restore(t, from, false); !errors.Is(err, backup.ErrOccupied) || !strings.Contains(err.Error(), "token.key") {
		t.Errorf("over other keys: %v", err)
	}
	r, err := q.restore(t, from, true)
	if err != nil || !r.KeptKeys {
		t.Fatalf("%+v, %v", r, err)
	}
	if now, err := os.ReadFile(datadir.TokenKeyFile(q.dir)); err != nil || !bytes.Equal(now, own) {
		t.Error("the keys of the folder did not stay")
	}
}

// A restore that ended in the middle is done again.
func TestAgain(t *testing.T) {
	p := newPlace(t)
	s := p.fill(t, 2)
	defer s.Close()
	from := p.backup(t)
	q := newPlace(t)
	if err := os.MkdirAll(q.dir, 0o700); err != nil {
		t.Fatal(err)
	}
	for _, left := range []string{"lock", "imd.db.restoring", "imd.db-wal"} {
		if err := os.WriteFile(filepath.Join(q.dir, left), []byte("rubbish"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := q.restore(t, from, false); err != nil {
		t.Fatal(err)
	}
	if err := q.open(t).Close(); err != nil {
		t.Error(err)
	}
}

// A store in use is not replaced, by whatever way its folder was entered.
func TestInUse(t *testing.T) {
	p := newPlace(t)
	s := p.fill(t, 2)
	defer s.Close()
	if _, err := p.restore(t, p.backup(t), true); !errors.Is(err, store.ErrLocked) {
		t.Errorf("restored under an open store: %v", err)
	}
	send(t, s, 3)
}

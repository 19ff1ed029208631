package sqlite

import (
	"context"
	"errors"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/imdhq/imd/pkg/im"
	"github.com/imdhq/imd/pkg/store"
	"github.com/imdhq/imd/pkg/store/rules"
	"github.com/imdhq/imd/sdk/go/gen/clientv1"
)

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

// A run that is held back stays so in a batch, and holds back no other.
func TestHeldRun(t *testing.T) {
	s := openAt(t, filepath.Join(t.TempDir(), "imd.db"))
	defer s.Close()
	err := s.w.run(t.Context(), func(tx *tx) error {
		var runs store.Runs
		runs.Refused(1, refuse(clientv1.Reason_REASON_UNAVAILABLE, "test", "locked"))
		for run, behind := range []bool{false, true, false} {
			row := sendTo("b", run)
			row.Run = run
			r, err := tx.appendRow(&runs, &row)
			if err != nil || (r.Err != nil) != behind || behind && r.Err.Reason != clientv1.Reason_REASON_BEHIND {
				t.Errorf("row of run %d: %+v, %v", run, r, err)
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
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
		c := &conversation{members: map[im.UserID]*rules.Member{}}
		c.ID = im.ConversationID(rune('a' + n))
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

package postgres

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"maps"
	"runtime"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"

	"github.com/imdhq/imd/pkg/im"
	"github.com/imdhq/imd/pkg/store"
	"github.com/imdhq/imd/pkg/testenv"
	"github.com/imdhq/imd/sdk/go/gen/clientv1"
	"github.com/imdhq/imd/sdk/go/protocol"
)

// sendTo is the n-th send of a user to a peer.
func sendTo(from, peer string, n int) store.AppendRow {
	text := fmt.Sprint("text ", n)
	return store.AppendRow{
		Conversation: im.ConversationID(protocol.DirectID(from, peer)), Sender: im.UserID(from), Peer: im.UserID(peer),
		ClientMessageID: im.ClientMessageID(fmt.Sprintf("%08x-0000-4000-8000-000000000000", n)),
		BodyHash:        sha256.Sum256([]byte(text)), MessageID: im.MessageID(n + 1), Kind: clientv1.EntryKind_ENTRY_KIND_MESSAGE,
		Content: []byte(text), Countable: true,
	}
}

// mustAppend stores rows.
func mustAppend(t testing.TB, s *Store, rows ...store.AppendRow) []store.AppendResult {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), testenv.Patience)
	defer cancel()
	out, err := s.Append(ctx, rows)
	if err != nil {
		t.Fatal(err)
	}
	for i, r := range out {
		if r.Err != nil {
			t.Fatalf("row %d: %v", i, r.Err)
		}
	}
	return out
}

// durable are settings of a server whose crashes are judged.
var durable = testenv.PostgresOptions{Settings: []string{"fsync=on"}}

// writer appends batches of one user until stop, running each again until its
// outcome is known, and remembers what was acknowledged.
type writer struct {
	user  string
	acked map[int]im.Seq
	again int // outcomes that were unknown at first
	count atomic.Int64
}

const writerBatch, writerPeers = 20, 5

func (w *writer) run(t *testing.T, s *Store, stop *atomic.Bool) {
	for n := 0; !stop.Load(); n += writerBatch {
		rows := make([]store.AppendRow, writerBatch)
		for i := range rows {
			rows[i] = sendTo(w.user, fmt.Sprint("p", i%writerPeers), n+i)
		}
		for {
			res, err := s.Append(context.Background(), rows)
			// A call of its own that was given up may still hold a row: as with any, the
			// batch runs again.
			if err == nil && !slices.ContainsFunc(res, func(r store.AppendResult) bool { return r.Err != nil && im.Retryable(r.Err) }) {
				w.note(t, n, res)
				w.count.Store(int64(len(w.acked)))
				break
			}
			if stop.Load() {
				return
			}
			if errors.Is(err, store.ErrUnknownOutcome) {
				w.again++
			}
			time.Sleep(20 * time.Millisecond)
		}
	}
}

func (w *writer) note(t *testing.T, n int, res []store.AppendResult) {
	for i, r := range res {
		if r.Err != nil {
			t.Errorf("%s send %d: %v", w.user, n+i, r.Err)
			continue
		}
		if r.Duplicate && int(r.MessageID) != n+i+1 {
			t.Errorf("%s send %d is stored as message %d", w.user, n+i, r.MessageID)
		}
		w.acked[n+i] = r.Seq
	}
}

// verify sends everything again and reads the logs.
func (w *writer) verify(t *testing.T, s *Store) {
	t.Helper()
	for some := range slices.Chunk(slices.Sorted(maps.Keys(w.acked)), store.MaxAppendRows) {
		rows := make([]store.AppendRow, len(some))
		for i, n := range some {
			rows[i] = sendTo(w.user, fmt.Sprint("p", n%writerBatch%writerPeers), n)
		}
		for i, r := range mustAppend(t, s, rows...) {
			if n := some[i]; !r.Duplicate || r.Seq != w.acked[n] || int(r.MessageID) != n+1 {
				t.Fatalf("%s send %d: %+v; acknowledged with seq %d", w.user, n, r, w.acked[n])
			}
		}
	}
	for i := range writerPeers {
		conv := im.ConversationID(protocol.DirectID(w.user, fmt.Sprint("p", i)))
		for after := im.Seq(0); ; {
			p, err := s.History(t.Context(), store.HistoryQuery{Conversation: conv, After: after, Limit: store.MaxPage})
			if err != nil {
				t.Fatal(err)
			}
			for _, e := range p.Entries {
				if after++; e.Seq != after || e.PrevSeq != after-1 {
					t.Fatalf("%s: entry %d behind %d, want %d", conv, e.Seq, e.PrevSeq, after)
				}
			}
			if p.End {
				break
			}
		}
	}
}

// A server that is killed with all its processes loses nothing that was
// acknowledged, whatever was under way; the store goes on by itself.
func TestServerKilledUnderLoad(t *testing.T) {
	server := testenv.StartPostgres(t, durable)
	s := openAt(t, fresh(t, server))
	defer s.Close()
	writers := []*writer{{user: "a", acked: map[int]im.Seq{}}, {user: "b", acked: map[int]im.Seq{}}}
	var stop atomic.Bool
	var wg sync.WaitGroup
	for _, w := range writers {
		wg.Go(func() { w.run(t, s, &stop) })
	}
	end := func() { stop.Store(true); wg.Wait() }
	defer end() // also if the test fails: before the store is closed
	// go on until each writer has so many more acknowledged than before.
	more := func() {
		t.Helper()
		for _, w := range writers {
			l, from := testenv.NewLimit(testenv.Patience), w.count.Load()
			for w.count.Load() < from+100 {
				if l.Over() {
					t.Fatalf("%s does not go on behind %d sends", w.user, from)
				}
				time.Sleep(5 * time.Millisecond)
			}
		}
	}
	for range 3 {
		more()
		server.Kill()
		if err := server.Start(); err != nil {
			t.Fatal(err, server.Log())
		}
	}
	more()
	end()
	for _, w := range writers {
		t.Logf("%s: %d acknowledged, %d outcomes unknown at first", w.user, len(w.acked), w.again)
		w.verify(t, s)
	}
}

// A session that is ended while it commits leaves the outcome unknown, and the
// batch that runs again finds its rows stored.
func TestTerminatedAtCommit(t *testing.T) {
	server := testenv.StartPostgres(t, testenv.PostgresOptions{})
	s := openAt(t, fresh(t, server))
	defer s.Close()
	mustAppend(t, s, sendTo("a", "b", 1))
	// A commit that waits for a standby that never comes has been made, and its
	// caller does not know.
	server.Exec(t, "postgres", `ALTER SYSTEM SET synchronous_standby_names = 'nobody'`, `SELECT pg_reload_conf()`)
	admin := connect(t, server)
	var rows []store.AppendRow
	for n := 2; ; n += 2 { // until the server has heard of the setting
		rows = []store.AppendRow{sendTo("a", "b", n), sendTo("a", "b", n+1)}
		err := terminated(t, s, admin, rows)
		if err == nil {
			continue
		}
		if !errors.Is(err, store.ErrUnknownOutcome) {
			t.Fatalf("append: %v", err)
		}
		break
	}
	server.Exec(t, "postgres", `ALTER SYSTEM RESET synchronous_standby_names`, `SELECT pg_reload_conf()`)
	for i, r := range mustAppend(t, s, rows...) {
		if !r.Duplicate || r.MessageID != rows[i].MessageID || r.Seq != im.Seq(rows[i].MessageID)-1 {
			t.Errorf("run again: %+v", r)
		}
	}
}

// terminated appends rows and ends the session if it waits for a standby.
func terminated(t *testing.T, s *Store, admin *pgx.Conn, rows []store.AppendRow) error {
	t.Helper()
	done := make(chan error, 1)
	go func() {
		_, err := s.Append(t.Context(), rows)
		done <- err
	}()
	for {
		select {
		case err := <-done:
			return err
		case <-time.After(5 * time.Millisecond):
		}
		if _, err := admin.Exec(t.Context(), `SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE wait_event = 'SyncRep'`); err != nil {
			t.Fatal(err)
		}
	}
}

// connect opens a session that is no store's.
func connect(t *testing.T, server *testenv.Postgres) *pgx.Conn {
	t.Helper()
	return connectTo(t, server.DSN("postgres"))
}

func connectTo(t testing.TB, dsn string) *pgx.Conn {
	t.Helper()
	src, err := parse(dsn)
	if err != nil {
		t.Fatal(err)
	}
	c, err := pgx.ConnectConfig(t.Context(), src.config.ConnConfig)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close(background) }) // may have been ended
	return c
}

// A conversation that a stranger holds is refused alone, after a wait that is
// bounded, or at once where the rows ask for it.
func TestLockedByAStranger(t *testing.T) {
	dsn := fresh(t, testenv.SharedPostgres(t))
	s := openAt(t, dsn)
	defer s.Close()
	mustAppend(t, s, sendTo("a", "b", 1), sendTo("a", "c", 2))
	group := store.Change{Conversation: "g_1", Actor: "a", RequestID: "r1", MessageID: 5, Create: &store.CreateGroup{Owner: "a"}}
	if _, err := s.Change(t.Context(), group); err != nil {
		t.Fatal(err)
	}
	stranger := connectTo(t, dsn)
	tx, err := stranger.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	held := []string{protocol.DirectID("a", "b"), "g_1"}
	if _, err := tx.Exec(t.Context(), `SELECT 1 FROM conversation WHERE id = ANY ($1) FOR UPDATE`, held); err != nil {
		t.Fatal(err)
	}
	for n := 10; n < 40; n += 10 {
		rows := []store.AppendRow{sendTo("a", "b", n), sendTo("a", "c", n+1), sendTo("a", "d", n+2)}
		rows[0].NoWait, rows[1].Run, rows[2].Run = n > 10, 1, 2
		var res []store.AppendResult
		took := testenv.Took(func() { res, err = s.Append(t.Context(), rows) })
		if err != nil {
			t.Fatal(err)
		}
		if res[0].Err == nil || res[0].Err.Reason != clientv1.Reason_REASON_BUSY || res[1].Err != nil || res[2].Err != nil {
			t.Errorf("answers: %+v", res)
		}
		if n > 10 && took > s.appends.lock {
			t.Errorf("batch %d took %v: it waited for the lock", n, took)
		}
	}
	var busy *store.BusyConversationError
	if _, err := s.Change(t.Context(), store.Change{Conversation: "g_1", Actor: "a", RequestID: "r2", MessageID: 6, Close: true}); !errors.As(err, &busy) || busy.Conversations[0] != "g_1" {
		t.Errorf("change: %v", err)
	}
	if err := tx.Rollback(t.Context()); err != nil {
		t.Fatal(err)
	}
	again := sendTo("a", "b", 10)
	again.NoWait = true
	if r := mustAppend(t, s, again)[0]; r.Duplicate || r.Seq != 2 {
		t.Errorf("after the lock: %+v", r)
	}
}

// A server that stands still gets no more connections and keeps no more callers
// than the pools are large, and everything goes on when it does.
func TestStall(t *testing.T) {
	server := testenv.StartPostgres(t, testenv.PostgresOptions{})
	s := openAt(t, fresh(t, server))
	defer s.Close()
	mustAppend(t, s, sendTo("a", "b", 1))
	conv := im.ConversationID(protocol.DirectID("a", "b"))
	pools := s.appends.conns + s.reads.conns
	before := runtime.NumGoroutine()
	server.Pause()
	var wg sync.WaitGroup
	for i := range 200 {
		wg.Go(func() {
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			defer cancel()
			var err error
			if i%2 == 0 {
				_, err = s.History(ctx, store.HistoryQuery{Conversation: conv, Limit: 10})
			} else {
				_, err = s.Append(ctx, []store.AppendRow{sendTo("a", "b", 100+i)})
			}
			if err == nil {
				t.Errorf("call %d is answered", i)
			}
		})
	}
	if took := testenv.Took(wg.Wait); took > 3*time.Second {
		t.Errorf("the last call took %v", took)
	}
	if n := runtime.NumGoroutine() - before; n > 4*pools {
		t.Errorf("%d goroutines are left behind by %d connections", n, pools)
	}
	for _, p := range s.Pools() {
		if p.Open > p.Most || p.InUse > p.Open || p.GivenUp == 0 {
			t.Errorf("a stall left %+v", p)
		}
	}
	server.Resume()
	deadline := time.Now().Add(testenv.Patience)
	for {
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		_, err := s.Append(ctx, []store.AppendRow{sendTo("a", "b", 2)})
		cancel()
		if err == nil {
			break
		}
		if time.Now().After(deadline) {
			t.Fatalf("after the stall: %v", err)
		}
	}
	admin := connect(t, server)
	for {
		var n int
		if err := admin.QueryRow(t.Context(), `SELECT count(*) FROM pg_stat_activity WHERE application_name = 'imd'`).Scan(&n); err != nil {
			t.Fatal(err)
		}
		if n <= pools+1 {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("the server has %d sessions of ours, the pools have %d", n, pools)
		}
		time.Sleep(10 * time.Millisecond)
	}
}

// A number that somebody else has written is passed by, with an error in the log.
func TestForeignEntry(t *testing.T) {
	core, logs := observer.New(zap.ErrorLevel)
	dsn := fresh(t, testenv.SharedPostgres(t))
	s, err := Open(t.Context(), Options{DSN: dsn, Log: zap.New(core)})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	conv := im.ConversationID(protocol.DirectID("a", "b"))
	mustAppend(t, s, sendTo("a", "b", 1), sendTo("a", "c", 2))
	stranger := connectTo(t, dsn)
	write := func(seq int) {
		t.Helper()
		_, err := stranger.Exec(t.Context(), `INSERT INTO entry (conv, seq, message_id, server_ms, back, kind, countable, sender, client_key, body)
		  SELECT num, $2, $2, 1, 1, 1, true, 'x', $3, '' FROM conversation WHERE id = $1`, string(conv), seq, []byte(fmt.Sprint(seq)))
		if err != nil {
			t.Fatal(err)
		}
	}
	write(2)
	write(4)
	r := mustAppend(t, s, sendTo("a", "b", 3), sendTo("a", "c", 4))
	if r[0].Seq != 5 || r[0].PrevSeq != 4 || r[1].Seq != 2 {
		t.Errorf("answers: %+v", r)
	}
	if logs.FilterMessage("head of a conversation was behind its log").Len() != 1 {
		t.Errorf("log: %+v", logs.All())
	}
	g := store.Change{
		Conversation: "g_1", Actor: "a", RequestID: "r1", MessageID: 100, Create: &store.CreateGroup{Name: "n", Owner: "a"},
	}
	if _, err := s.Change(t.Context(), g); err != nil {
		t.Fatal(err)
	}
	conv = "g_1"
	write(2)
	name := "other"
	c, err := s.Change(t.Context(), store.Change{Conversation: conv, Actor: "a", RequestID: "r2", MessageID: 101, Rename: &name})
	if err != nil || c.Entry.Seq != 3 || c.Entry.PrevSeq != 2 {
		t.Errorf("change: %+v, %v", c, err)
	}
}

// A row that the server refuses for what it contains fails the call for good,
// so that splitting the batch finds it.
func TestSpoiledRow(t *testing.T) {
	s := openAt(t, fresh(t, testenv.SharedPostgres(t)))
	defer s.Close()
	bad := sendTo("a", "b", 1)
	bad.Sender = "a\x00"
	_, err := s.Append(t.Context(), []store.AppendRow{bad, sendTo("a", "c", 2)})
	if err == nil || im.Retryable(err) || errors.Is(err, store.ErrUnknownOutcome) {
		t.Errorf("append: %v", err)
	}
	mustAppend(t, s, sendTo("a", "c", 2))
}

// keys of all lengths come back as they were, and no two are the same.
func TestKeys(t *testing.T) {
	seen := map[string]im.ClientMessageID{}
	ids := []im.ClientMessageID{"00000001-0000-4000-8000-000000000000", "00000001-0000-4000-8000-00000000000A", "x\x00", ""}
	for n := range 40 {
		text := ""
		for i := range n {
			text += strconv.Itoa(i % 10)
		}
		ids = append(ids, im.ClientMessageID(text), im.ClientMessageID(text+"\x00"), im.ClientMessageID(text+"\x00\x00"))
	}
	ids = append(ids, im.ClientMessageID(key(ids[0])))
	for _, id := range ids {
		k := string(key(id))
		if was, ok := seen[k]; ok && was != id {
			t.Errorf("%q and %q have one key", was, id)
		}
		seen[k] = id
		if got := unkey([]byte(k)); got != id {
			t.Errorf("%q comes back as %q", id, got)
		}
	}
}

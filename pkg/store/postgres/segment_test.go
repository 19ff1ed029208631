package postgres

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"go.uber.org/zap"

	"github.com/imdhq/imd/pkg/im"
	"github.com/imdhq/imd/pkg/ring"
	"github.com/imdhq/imd/pkg/segment"
	"github.com/imdhq/imd/pkg/store"
	"github.com/imdhq/imd/pkg/testenv"
	"github.com/imdhq/imd/sdk/go/gen/clientv1"
)

// numbered adds an allocator to a data source name.
func numbered(dsn string, n store.Numbering) string {
	if n == (store.Numbering{}) {
		return dsn
	}
	q := url.Values{}
	n.Put(q)
	return dsn + "&" + q.Encode()
}

// The port's promises hold under segment too.
func TestConformanceSegment(t *testing.T) { conformance(t, store.Numbering{Allocator: store.Segment}) }

// A store belongs to the allocator that it was begun with.
func TestTheAllocatorIsRecorded(t *testing.T) {
	server := testenv.SharedPostgres(t)
	for _, first := range []string{store.Segment, store.Transaction} {
		other := map[string]string{store.Segment: store.Transaction, store.Transaction: store.Segment}[first]
		dsn := fresh(t, server)
		if err := openAt(t, numbered(dsn, store.Numbering{Allocator: first})).Close(); err != nil {
			t.Fatal(err)
		}
		_, err := Open(t.Context(), Options{DSN: dsn, Numbering: store.Numbering{Allocator: other}})
		if !errors.Is(err, store.ErrAllocator) || !strings.Contains(err.Error(), first) || strings.Contains(err.Error(), "\n") {
			t.Errorf("%s opened as %s: %v", first, other, err)
		}
		s := openAt(t, dsn) // whatever it is
		if s.Segmented() != (first == store.Segment) {
			t.Errorf("%s: segmented %v", first, s.Segmented())
		}
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	}
	for _, bad := range []store.Numbering{{Allocator: "dice"}, {Step: 1}, {Step: store.MaxStep + 1}} {
		if _, err := Open(t.Context(), Options{DSN: numbered(fresh(t, server), bad)}); !errors.Is(err, store.ErrDSN) {
			t.Errorf("%+v: %v", bad, err)
		}
	}
}

// party is one of several stores on a database.
type party struct {
	*Store
	t    testing.TB
	ring store.Ring
}

// parties opens stores of different nodes on one database with segments of 10.
// None of them is named by its ring yet.
func parties(t testing.TB, server *testenv.Postgres, n int) (dsn string, out []*party) {
	dsn = fresh(t, server)
	for i := range n {
		p := &party{Store: openAt(t, numbered(dsn, store.Numbering{Allocator: store.Segment, Step: 10})), t: t}
		p.ring = store.Ring{Node: im.NodeID(fmt.Sprint("n", i)), Cluster: 1}
		p.Follow(func() store.Ring { return p.ring })
		t.Cleanup(func() {
			if err := p.Close(); err != nil {
				t.Error(err)
			}
		})
		out = append(out, p)
	}
	return dsn, out
}

// named gives the party everything, as a view of the revision says.
func (p *party) named(revision int64) *party {
	p.ring.Revision, p.ring.Mine = revision, func(int) bool { return true }
	return p
}

var ids int64

// sendBy is a new row.
func sendBy(conv im.ConversationID, from, to im.UserID) store.AppendRow {
	ids++
	return store.AppendRow{
		Run: int(ids), Conversation: conv, Sender: from, Peer: to, ClientMessageID: im.ClientMessageID(fmt.Sprint("c", ids)), MessageID: im.MessageID(ids),
		BodyHash: sha256.Sum256([]byte("x")), Kind: clientv1.EntryKind_ENTRY_KIND_MESSAGE, Content: []byte("x"), Countable: true,
	}
}

func (p *party) group(name string) im.ConversationID {
	p.t.Helper()
	ids++
	r, err := p.Change(background, store.Change{
		Conversation: im.ConversationID("g_" + name), Actor: "o", RequestID: im.ClientMessageID(fmt.Sprint("c", ids)), MessageID: im.MessageID(ids),
		Create: &store.CreateGroup{Name: name, Owner: "o"},
	})
	if err != nil {
		p.t.Fatal(err)
	}
	return r.Conversation
}

// answer appends rows and returns what each got: a seq or an error.
func (p *party) answer(rows ...store.AppendRow) []store.AppendResult {
	p.t.Helper()
	ctx, cancel := context.WithTimeout(background, 10*time.Second)
	defer cancel()
	out, err := p.Append(ctx, rows)
	if err != nil {
		p.t.Fatal(err)
	}
	return out
}

// until appends the row until it is stored and returns the seq.
func (p *party) until(r store.AppendRow) im.Seq {
	p.t.Helper()
	for began := time.Now(); time.Since(began) < 10*time.Second; time.Sleep(10 * time.Millisecond) {
		if got := p.answer(r)[0]; got.Err == nil {
			return got.Seq
		}
	}
	p.t.Fatal("the row is not stored")
	return 0
}

func TestANewerRingTakesOverAndTheOldOwnerIsRefused(t *testing.T) {
	_, all := parties(t, testenv.SharedPostgres(t), 2)
	a, b := all[0], all[1]
	if got := b.answer(sendBy("g_x", "o", ""))[0]; !errors.Is(got.Err, store.ErrNotOwner) || !im.Retryable(got.Err) {
		t.Fatalf("without a ring: %+v", got)
	}
	g := a.named(5).group("x")
	if seq := a.until(sendBy(g, "o", "")); seq != 2 {
		t.Fatalf("a: %d", seq)
	}
	b.named(5) // not newer than the view that named the owner
	if got := b.answer(sendBy(g, "o", ""))[0]; !errors.Is(got.Err, store.ErrNotOwner) {
		t.Fatalf("a view that is as old takes over: %+v", got)
	}
	b.named(6)
	if seq := b.until(sendBy(g, "o", "")); seq != 11 {
		t.Fatalf("b goes on at %d, not in the next segment", seq)
	}
	for range 2 { // the second time it knows
		if got := a.answer(sendBy(g, "o", ""))[0]; !errors.Is(got.Err, store.ErrNotOwner) {
			t.Fatalf("the old owner: %+v", got)
		}
	}
	name := "y"
	_, err := a.Change(background, store.Change{Conversation: g, Actor: "o", RequestID: "r1", MessageID: 1_000_000, Rename: &name})
	if !errors.Is(err, store.ErrNotOwner) {
		t.Fatalf("a change by the old owner: %v", err)
	}
	if r, err := b.Change(background, store.Change{Conversation: g, Actor: "o", RequestID: "r1", MessageID: 1_000_001, Rename: &name}); err != nil || r.Entry.Seq != 12 || r.Entry.PrevSeq != 11 {
		t.Fatalf("a change by the owner: %+v, %v", r, err)
	}
	a.named(7)
	if seq := a.until(sendBy(g, "o", "")); seq != 21 {
		t.Fatalf("a, again, at %d", seq)
	}
	b.ring.Cluster = 2 // another etcd: its revisions begin anew
	b.named(1)
	if seq := b.until(sendBy(g, "o", "")); seq != 31 {
		t.Fatalf("b of another etcd at %d", seq)
	}
	page, err := b.History(background, store.HistoryQuery{Conversation: g, Limit: 100})
	if err != nil || len(page.Entries) != 6 {
		t.Fatalf("%+v, %v", page, err)
	}
	var before im.Seq
	for _, e := range page.Entries {
		if e.PrevSeq != before {
			t.Errorf("prev_seq of %d is %d, not %d", e.Seq, e.PrevSeq, before)
		}
		before = e.Seq
	}
}

// stranger is a session that holds what it locks until it is let go.
func stranger(t testing.TB, dsn, lock string, args ...any) (letGo func()) {
	t.Helper()
	c, err := pgx.Connect(background, strings.Split(dsn, "&")[0])
	if err != nil {
		t.Fatal(err)
	}
	tx, err := c.Begin(background)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := tx.Exec(background, lock, args...); err != nil {
		t.Fatal(err)
	}
	return func() {
		if err := errors.Join(tx.Rollback(background), c.Close(background)); err != nil {
			t.Error(err)
		}
	}
}

// A former owner that is writing holds up its own shard and nothing else.
func TestAHeldShardHoldsUpNoOther(t *testing.T) {
	dsn, all := parties(t, testenv.SharedPostgres(t), 2)
	a, b := all[0].named(5), all[1]
	held, free := a.group("held"), a.group("free")
	letGo := stranger(t, dsn, `SELECT 1 FROM shard WHERE id = $1 FOR SHARE`, ring.Shard(string(held)))
	b.named(6)
	row := sendBy(held, "o", "")
	var got []store.AppendResult
	took := testenv.Took(func() { got = b.answer(row, sendBy(free, "o", "")) })
	if took > 700*time.Millisecond {
		t.Errorf("the other conversation waited %v", took)
	}
	if got[0].Err == nil || got[0].Err.Reason != clientv1.Reason_REASON_BUSY || got[1].Err != nil {
		t.Fatalf("%+v", got)
	}
	name := "n"
	_, err := b.Change(background, store.Change{Conversation: held, Actor: "o", RequestID: "r", MessageID: 2_000_000, Rename: &name})
	if busy := (*store.BusyConversationError)(nil); !errors.As(err, &busy) {
		t.Errorf("a change: %v", err)
	}
	letGo()
	if seq := b.until(row); seq != 11 {
		t.Errorf("afterwards: %d", seq)
	}
}

// One conversation whose numbers cannot be reserved waits alone.
func TestARefillHoldsUpNoOther(t *testing.T) {
	dsn, all := parties(t, testenv.SharedPostgres(t), 1)
	a := all[0].named(5)
	held, free := a.group("held"), a.group("free")
	letGo := stranger(t, dsn, `SELECT 1 FROM conversation_seq WHERE conversation = $1 FOR UPDATE`, string(held))
	stored := 0
	for range 25 { // the segment of 10 ends
		got := a.answer(sendBy(held, "o", ""), sendBy(free, "o", ""))
		if got[1].Err != nil {
			t.Fatalf("the other conversation: %v", got[1].Err)
		}
		if got[0].Err == nil {
			stored++
		} else if got[0].Err.Reason != clientv1.Reason_REASON_BUSY {
			t.Fatalf("the held one: %v", got[0].Err)
		}
	}
	if stored == 25 {
		t.Error("it went on without numbers")
	}
	letGo()
	if seq := a.until(sendBy(held, "o", "")); seq != im.Seq(stored)+2 {
		t.Errorf("afterwards %d behind %d", seq, stored+1)
	}
}

// A call that comes when its conversation has moved on stores nothing, and one
// whose answer was lost runs again with the numbers it had.
func TestALateCallStoresNothing(t *testing.T) {
	dsn, all := parties(t, testenv.SharedPostgres(t), 1)
	a := all[0].named(5)
	g := a.group("x")
	late, lost := newBatch([]store.AppendRow{sendBy(g, "o", "")}), sendBy(g, "o", "")
	r, err := a.owner.rightsTo(background, mustNeeds(late.rows))
	if err != nil {
		t.Fatal(err)
	}
	late.proof = proofOf(late.ids, r.grants)

	letGo := stranger(t, dsn, `SELECT 1 FROM conversation WHERE id = $1 FOR UPDATE`, string(g))
	ctx, cutOff := context.WithCancel(background)
	defer cutOff()
	cut := make(chan error, 1)
	go func() {
		_, err := a.Append(ctx, []store.AppendRow{lost})
		cut <- err
	}()
	watch := connectTo(t, strings.Split(dsn, "&")[0])
	eventually(t, func() bool { return waits(t, watch) > 0 })
	cutOff()
	if err := <-cut; !errors.Is(err, store.ErrUnknownOutcome) {
		t.Fatalf("cut off: %v", err)
	}
	letGo()
	if seq := a.until(lost); seq != 2 {
		t.Errorf("again: %d", seq)
	}
	if _, err := a.try(background, late, false); codeOf(err) != codeOvertaken || overtakenBy(err).head != 2 {
		t.Fatalf("the late call: %v", err)
	}
	if seq := a.until(late.rows[0]); seq != 3 {
		t.Errorf("the late row, as a new one: %d", seq)
	}
}

func mustNeeds(rows []store.AppendRow) (needs []segment.Need) {
	needs, _ = needsOf(rows)
	return needs
}

// A copy of another store goes on behind its heads, whatever the allocator.
func TestACopyMayNumberFromSegments(t *testing.T) {
	dsn := fresh(t, testenv.SharedPostgres(t))
	g, err := OpenTarget(t.Context(), named(t, numbered(dsn, store.Numbering{Allocator: store.Segment})), zap.NewNop())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := g.Begin(t.Context(), store.Origin{DataEpoch: "e"}); err != nil {
		t.Fatal(err)
	}
	c, err := pgx.Connect(t.Context(), strings.Split(dsn, "&")[0])
	if err != nil {
		t.Fatal(err)
	}
	_, err = c.Exec(t.Context(), `INSERT INTO conversation (id, kind, name, user_a, user_b, head, version, head_version) VALUES ('g_old', 2, '', '', '', 42, 1, 1)`)
	if err := errors.Join(err, c.Close(t.Context()), g.Finish(t.Context()), g.Close()); err != nil {
		t.Fatal(err)
	}
	p := &party{Store: openAt(t, dsn), t: t}
	defer p.Close()
	got := p.answer(sendBy("g_old", "", ""))[0] // the system needs no membership
	if !p.Segmented() || got.Err != nil || got.Seq != 43 || got.PrevSeq != 42 {
		t.Errorf("segmented %v, %+v", p.Segmented(), got)
	}
}

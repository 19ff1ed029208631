package storetest

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/imdhq/imd/pkg/im"
	"github.com/imdhq/imd/pkg/store"
	"github.com/imdhq/imd/sdk/go/gen/clientv1"
)

// between waits for the store's clock to move on and returns a time that is after
// everything that is stored and not after anything that comes.
func (k *kit) between() time.Time {
	k.Helper()
	newest, err := k.s.Newest(k.ctx())
	k.must(err)
	time.Sleep(2 * time.Millisecond)
	return newest.Add(time.Millisecond)
}

// retain lets go what is due, in calls as small as r says, and returns how many
// entries went.
func (k *kit) retain(p store.Proof, r store.Retain) (gone int) {
	k.Helper()
	for range 10_000 {
		got, err := k.s.Retain(k.ctx(), p, r)
		k.must(err)
		if got.Entries > max(r.Entries, 1) || got.Looked > max(r.Looks, 1) {
			k.Fatalf("asked for %+v, got %+v", r, got)
		}
		gone += got.Entries
		if r.After = got.Next; got.End {
			return gone
		}
	}
	k.Fatal("the walk has no end")
	return 0
}

// What is old is seen by nobody and has no content; all else is as it was.
func retention(k *kit) {
	p := k.fence("x", 1).Proof()
	g := k.group("o", "m", "left")
	open := k.groupOf(store.CreateGroup{Name: "open", Owner: "o", OpenHistory: true})
	old, first := row(g, "o", "old"), to("a", "b", "old")
	k.sent(old, first, row(open, "o", "old"))
	k.fill(g, "o", 4)
	k.remove(g, "o", "left") // seq 7
	cut := k.between()
	young := k.fill(g, "o", 3)
	k.sent(to("a", "b", "young"), row(open, "o", "young"))

	if n := k.retain(p, store.Retain{Direct: cut.Add(-time.Hour), Looks: 1, Entries: 1}); n != 0 {
		k.Errorf("%d entries went that are too young, or of another kind", n)
	}
	token := k.sync(store.SyncQuery{User: "m", Limit: 10}).Token
	if n := k.retain(p, store.Retain{Group: cut, Looks: 2, Entries: 3}); n != 7+2 {
		k.Errorf("%d entries went, want 9", n)
	}
	if n := k.retain(p, store.Retain{Group: cut, Looks: 2, Entries: 3}); n != 0 {
		k.Errorf("%d entries went again", n)
	}
	rest := upTo(young-2, young)
	check := func() {
		k.Helper()
		bothWays(k, g, "m", rest)
		bothWays(k, g, "left", nil)
		bothWays(k, direct("a", "b"), "b", upTo(1, 2))
		s := k.state(g, "m")
		same(k, "a member", []any{s.Start, s.Head, s.Unread, s.Last.Seq}, []any{im.Seq(7), young, 3, young})
		s = k.state(g, "left")
		same(k, "one who left", []any{s.Start, s.Head, s.Unread, s.Last == nil}, []any{im.Seq(7), im.Seq(7), 0, true})
		at := k.position(g, "m")
		same(k, "the position", []any{at.Start, at.Delivered, at.Unread}, []any{im.Seq(7), im.Seq(7), 3})
	}
	check()
	k.s = k.d.Reopen(k.T, k.s)
	check()
	if states := k.sync(store.SyncQuery{User: "m", Token: token, Limit: 10}).States; len(states) != 1 || states[0].Start != 7 {
		k.Errorf("a sync does not tell of the border: %+v", states)
	}
	page := k.history(store.HistoryQuery{Reader: "m", Conversation: g, After: 2, Limit: 2})
	if page.CompleteFrom != 3 || page.Entries[0].Seq != 8 || page.Entries[0].PrevSeq != 7 {
		k.Errorf("a client that stands behind the border gets %+v", page)
	}
	k.leftOver(g, 7)

	r := k.append(old)[0]
	if r.Err != nil || !r.Duplicate || r.Seq != 2 || r.MessageID != old.MessageID {
		k.Errorf("a repeat is answered with %+v", r)
	}
	reused := old
	reused.BodyHash[0]++
	k.refusedRow(clientv1.Reason_REASON_ID_REUSED, reused)

	// Who comes later sees no more than the others.
	late, back := k.add(open, "o", "late"), k.add(g, "o", "left")
	bothWays(k, open, "late", []im.Seq{3, late})
	bothWays(k, g, "left", []im.Seq{back})
	if start, err := k.s.ClearHistory(k.ctx(), g, "m", 3); err != nil || start != 7 {
		k.Errorf("clearing below the border: %d, %v", start, err)
	}
	retentionStops(k, p, cut, first)
}

// leftOver looks at what the system sees of a log behind its border: all numbers,
// sends without content, changes with what they say.
func (k *kit) leftOver(conv im.ConversationID, border im.Seq) {
	k.Helper()
	for i, e := range k.history(store.HistoryQuery{Conversation: conv}).Entries {
		message := e.Kind == clientv1.EntryKind_ENTRY_KIND_MESSAGE
		if want := !message || e.Seq > border; e.Seq != im.Seq(i+1) || want != (len(e.Content)+len(e.Change) > 0) || message && e.Sender == "" {
			k.Errorf("entry %d: %+v", i+1, e)
		}
	}
}

// retentionStops lets direct conversations go too, and then all there is; a
// leader that was followed lets nothing go.
func retentionStops(k *kit, p store.Proof, cut time.Time, first store.AppendRow) {
	if n := k.retain(p, store.Retain{Direct: cut, Looks: 100, Entries: 100}); n != 1 {
		k.Errorf("%d direct entries went, want 1", n)
	}
	bothWays(k, first.Conversation, "b", upTo(2, 2))
	all := store.Retain{Direct: k.between(), Group: k.between(), Looks: 100, Entries: 100}
	k.fence("x", 2)
	if got, err := k.s.Retain(k.ctx(), p, all); !errors.Is(err, store.ErrFenced) || got != (store.Retained{}) {
		k.Errorf("a leader that was followed lets go: %+v, %v", got, err)
	}
	bothWays(k, first.Conversation, "b", upTo(2, 2))
	k.retain(k.fence("x", 3).Proof(), all)
	s := k.state(first.Conversation, "b")
	same(k, "nothing is left", []any{s.Start, s.Head, s.Unread, s.Last == nil}, []any{im.Seq(2), im.Seq(2), 0, true})
	bothWays(k, first.Conversation, "b", nil)
	last := k.sent(to("a", "b", "more"))
	bothWays(k, first.Conversation, "b", upTo(last, last))
}

// Appends go on while all that is there goes, and keep their content.
func retentionWhileWriting(k *kit) {
	p := k.fence("x", 1).Proof()
	conv := direct("a", "b")
	k.sent(to("a", "b", "0"))
	cut, stop, done := k.between(), make(chan struct{}), make(chan error, 1)
	go func() {
		for {
			select {
			case <-stop:
				done <- nil
				return
			default:
			}
			if _, err := k.s.Retain(k.ctx(), p, store.Retain{Direct: cut, Looks: 10, Entries: 10}); err != nil {
				done <- err
				return
			}
		}
	}()
	for i := range 20 {
		k.sent(to("a", "b", fmt.Sprint(i)))
	}
	close(stop)
	k.must(<-done)
	k.retain(p, store.Retain{Direct: cut, Looks: 10, Entries: 10})
	s := k.state(conv, "b")
	same(k, "what was written meanwhile", []any{s.Start, s.Unread}, []any{im.Seq(1), 20})
	k.leftOver(conv, 1)
}

// The load of BenchmarkRetain: batches that are stored, and what goes beside them.
const (
	benchOld   = 20_000 // entries that can go
	benchTime  = 8 * time.Second
	benchBatch = 20
	benchEvery = 10 * time.Millisecond
)

// BenchmarkRetain measures, with -benchtime 1x, how long 2,000 sends a second wait
// for their commit without and with 1,000 entries a second that go, and then how
// fast entries go.
func BenchmarkRetain(b *testing.B, s store.MessageStore) {
	f, err := s.ClaimFence(b.Context(), store.FenceClaim{Name: "x", Holder: "h", Cluster: "c", Revision: 1})
	if err != nil {
		b.Fatal(err)
	}
	for range benchOld / store.MaxAppendRows {
		benchRows(b, s, store.MaxAppendRows)
	}
	r := store.Retain{Direct: time.Now(), Looks: store.MaxRetainLooks, Entries: store.MaxRetain}
	b.Run("alone", func(b *testing.B) { benchWaits(b, s) })
	b.Run("beside", func(b *testing.B) {
		gone, stop := 0, time.NewTimer(benchTime)
		done := make(chan struct{})
		go func() {
			defer close(done)
			for tick := time.NewTicker(time.Second / 5); ; {
				select {
				case <-stop.C:
					tick.Stop()
					return
				case <-tick.C:
				}
				got, err := s.Retain(b.Context(), f.Proof(), r)
				if err != nil {
					b.Error(err)
					return
				}
				if r.After, gone = got.Next, gone+got.Entries; got.End {
					r.After = 0
				}
			}
		}()
		benchWaits(b, s)
		<-done
		b.ReportMetric(float64(gone)/benchTime.Seconds(), "gone/s")
	})
	b.Run("fast", func(b *testing.B) {
		began, gone := time.Now(), 0
		for end := false; !end; {
			got, err := s.Retain(b.Context(), f.Proof(), r)
			if err != nil {
				b.Fatal(err)
			}
			r.After, gone, end = got.Next, gone+got.Entries, got.End
		}
		b.ReportMetric(float64(gone)/time.Since(began).Seconds(), "gone/s")
	})
}

func benchRows(b *testing.B, s store.MessageStore, n int) {
	rows := make([]store.AppendRow, n)
	for i := range rows {
		rows[i] = to("a", im.UserID(fmt.Sprint("b", counter.Add(1)%100)), strings.Repeat("x", 128))
	}
	if _, err := s.Append(b.Context(), rows); err != nil {
		b.Fatal(err)
	}
}

// benchWaits stores batches at fixed times and reports how long after its time
// each is stored.
func benchWaits(b *testing.B, s store.MessageStore) {
	var waits []time.Duration
	for began, i := time.Now(), 0; time.Since(began) < benchTime; i++ {
		due := began.Add(time.Duration(i) * benchEvery)
		time.Sleep(time.Until(due))
		benchRows(b, s, benchBatch)
		waits = append(waits, time.Since(due))
	}
	slices.Sort(waits)
	b.ReportMetric(float64(waits[len(waits)/2].Microseconds())/1000, "p50-ms")
	b.ReportMetric(float64(waits[len(waits)*99/100].Microseconds())/1000, "p99-ms")
}

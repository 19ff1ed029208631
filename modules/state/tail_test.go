package state

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/imdhq/imd/pkg/im"
	"github.com/imdhq/imd/pkg/store"
	v1 "github.com/imdhq/imd/proto/gen/internalv1"
	"github.com/imdhq/imd/sdk/go/gen/clientv1"
)

// log is a store with one conversation.
type log struct {
	mu      sync.Mutex
	entries []im.Entry
	starts  map[im.UserID]im.Seq
	reads   int
	asks    int
	fails   bool
	onAsk   func() // before an answer about members
}

func (l *log) History(_ context.Context, q store.HistoryQuery) (p store.HistoryPage, err error) {
	time.Sleep(time.Millisecond)
	l.mu.Lock()
	defer l.mu.Unlock()
	l.reads++
	if l.fails {
		return p, errors.New("away")
	}
	p = store.HistoryPage{CompleteFrom: q.After + 1, CompleteTo: im.Seq(len(l.entries)), End: true}
	for _, e := range l.entries {
		if e.Seq > q.After {
			if len(p.Entries) == q.Limit {
				p.End, p.CompleteTo = false, p.Entries[len(p.Entries)-1].Seq
				break
			}
			p.Entries = append(p.Entries, e)
		}
	}
	return p, nil
}

func (l *log) Starts(_ context.Context, _ im.ConversationID, users []im.UserID) (map[im.UserID]im.Seq, error) {
	time.Sleep(time.Millisecond)
	if l.onAsk != nil {
		l.onAsk()
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.asks++
	out := map[im.UserID]im.Seq{}
	for _, u := range users {
		if start, ok := l.starts[u]; ok {
			out[u] = start
		}
	}
	return out, nil
}

// write adds so many entries.
func (l *log) write(n int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for range n {
		seq := im.Seq(len(l.entries) + 1)
		l.entries = append(l.entries, im.Entry{Seq: seq, PrevSeq: seq - 1, Kind: clientv1.EntryKind_ENTRY_KIND_MESSAGE})
	}
}

func newLog(members int) *log {
	l := &log{starts: map[im.UserID]im.Seq{}}
	for i := range members {
		l.starts[im.UserID(fmt.Sprint("u", i))] = 0
	}
	return l
}

func tailsOf(l *log) *tails {
	return newTails(l, newMetrics(prometheus.NewRegistry(), func() bool { return false }))
}

func reads(user string, after int64) *v1.HistoryRequest {
	return &v1.HistoryRequest{UserId: user, History: &clientv1.History{ConversationId: "g_1", AfterSeq: after}}
}

// all lets many read at once and returns their pages; nil = for the store.
func (l *log) all(ts *tails, after int64, users ...string) []*clientv1.Page {
	pages := make([]*clientv1.Page, len(users))
	var wg sync.WaitGroup
	for i, u := range users {
		wg.Go(func() {
			page, alone := ts.enter(context.Background(), reads(u, after), 500, 1<<20)
			if pages[i] = page; alone {
				time.Sleep(time.Millisecond)
				ts.leave("g_1")
			}
		})
	}
	wg.Wait()
	ts.wait()
	return pages
}

func numbered(n int) []string {
	users := make([]string, n)
	for i := range users {
		users[i] = fmt.Sprint("u", i)
	}
	return users
}

func seqsOf(p *clientv1.Page) (seqs []int64) {
	for _, e := range p.GetEntries() {
		seqs = append(seqs, e.Seq)
	}
	return seqs
}

// A thousand readers of the same entries cost a few calls to the store; what comes
// later is read alone, and who may see less, or nothing, is left to the store.
func TestManyReadersShareALook(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLog(1000)
		l.starts["u7"] = 12
		delete(l.starts, "u8")
		l.write(15)
		ts := tailsOf(l)
		different := map[*clientv1.Page]bool{}
		for _, p := range l.all(ts, 10, numbered(1000)...) {
			different[p] = true
		}
		if l.reads > 4 || l.asks > 4 || len(different) > 6 {
			t.Errorf("%d reads, %d questions and %d pages for 1,000 readers", l.reads, l.asks, len(different))
		}
		l.write(2)
		pages := l.all(ts, 15, "u1", "u7", "u8")
		for _, i := range []int{0, 1} {
			if p := pages[i]; !slices.Equal(seqsOf(p), []int64{16, 17}) || !p.End || p.CompleteFrom != 16 || p.CompleteTo != 17 {
				t.Errorf("reader %d got %v", i, p)
			}
		}
		if pages[2] != nil {
			t.Errorf("who is no member got %v", pages[2])
		}
		pages = l.all(ts, 11, "u1", "u7")
		if !slices.Equal(seqsOf(pages[0]), []int64{12, 13, 14, 15, 16, 17}) || pages[1] != nil {
			t.Errorf("from 11 on got %v and, who sees what is above 12, %v", seqsOf(pages[0]), seqsOf(pages[1]))
		}
		if p := l.all(ts, 17, "u1", "u2")[0]; p == nil || len(p.Entries) != 0 || !p.End || p.CompleteTo != 17 {
			t.Errorf("at the head got %v", p)
		}
	})
}

// Who is removed while a look is out gets nothing of it.
func TestARemovedReaderGetsNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLog(3)
		l.write(5)
		ts := tailsOf(l)
		l.all(ts, 5, numbered(3)...)
		l.write(1)
		l.onAsk = func() {
			l.mu.Lock()
			defer l.mu.Unlock()
			delete(l.starts, "u1")
		}
		if pages := l.all(ts, 5, "u1", "u2"); pages[0] != nil || !slices.Equal(seqsOf(pages[1]), []int64{6}) {
			t.Errorf("got %v and %v", pages[0], pages[1])
		}
	})
}

// An entry that a later one changes is read again, and so is everything after a
// while.
func TestWhatIsKeptOfAConversationIsFresh(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLog(3)
		l.write(5)
		ts := tailsOf(l)
		l.all(ts, 2, numbered(3)...)
		l.mu.Lock()
		l.entries[3].ChangedSeq = 6
		l.entries = append(l.entries, im.Entry{Seq: 6, PrevSeq: 5, Kind: clientv1.EntryKind_ENTRY_KIND_RECALL, TargetSeq: 4})
		l.mu.Unlock()
		for _, p := range l.all(ts, 2, "u1", "u2") {
			if !slices.Equal(seqsOf(p), []int64{3, 4, 5, 6}) || p.Entries[1].ChangedSeq != 6 {
				t.Errorf("got %v", p)
			}
		}
		l.mu.Lock()
		l.entries[2].ChangedSeq = 99
		l.mu.Unlock()
		for range 8 { // read on without a pause
			time.Sleep(tailFor / 8)
			l.all(ts, 2, "u1", "u2")
		}
		time.Sleep(time.Second)
		for _, p := range l.all(ts, 2, "u1", "u2") {
			if p.GetEntries()[0].GetChangedSeq() != 99 {
				t.Errorf("after %v it has %v", tailFor, p)
			}
		}
	})
}

// One who names a place that is not there yet spoils what is shared for nobody.
func TestAPlaceAboveTheEndIsNotKept(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLog(4)
		l.write(5)
		ts := tailsOf(l)
		l.all(ts, 1<<40, numbered(4)...)
		reads := l.reads
		pages := l.all(ts, 2, numbered(4)...)
		for _, p := range pages {
			if !slices.Equal(seqsOf(p), []int64{3, 4, 5}) {
				t.Errorf("got %v", p)
			}
		}
		if l.reads-reads > 2 {
			t.Errorf("%d reads for four readers", l.reads-reads)
		}
	})
}

// Who is far behind, who reads alone, and everybody while the store fails or too
// many conversations are read, goes to the store.
func TestWhoReadsAlone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLog(3)
		l.write(3000)
		ts := tailsOf(l)
		for after := int64(1); after < 400; after += 100 {
			if page, alone := ts.enter(context.Background(), reads("u0", after), 100, 1<<20); page != nil || !alone {
				t.Fatal("who reads alone did not go to the store")
			}
			ts.leave("g_1")
		}
		if l.reads != 0 {
			t.Error("it was looked for who reads alone")
		}
		l.all(ts, 2990, "u1", "u2")
		if p := l.all(ts, 100, "u1", "u2"); p[0] != nil {
			t.Errorf("who is far behind got %d entries", len(p[0].Entries))
		}
		l.fails = true
		if p := l.all(ts, 3000, "u1", "u2"); p[0] != nil || p[1] != nil {
			t.Error("without a store there were answers")
		}
		for i := range 2 * maxTails {
			req := reads("u0", 1)
			req.History.ConversationId = fmt.Sprint("g_", i+10)
			ts.enter(context.Background(), req, 1, 1)
		}
		if len(ts.byConv) > maxTails {
			t.Errorf("%d conversations are kept", len(ts.byConv))
		}
	})
}

// A page has no more than its reader wants.
func TestSharedPagesAreBounded(t *testing.T) {
	tl := &tail{}
	l := newLog(1)
	l.write(10)
	p, _ := l.History(context.Background(), store.HistoryQuery{Limit: 500})
	tl.clear(2, time.Now())
	p.Entries, tl.whole = p.Entries[2:], true
	tl.take(p)
	r := &tailReader{user: "u0", after: 4, limit: 3, room: 1 << 20}
	if got := tl.pageOf(r, l.starts); !slices.Equal(seqsOf(got), []int64{5, 6, 7}) || got.End || got.CompleteTo != 7 {
		t.Errorf("got %v", got)
	}
	r.limit, r.room = 100, 1
	if got := tl.pageOf(r, l.starts); !slices.Equal(seqsOf(got), []int64{5}) || got.End {
		t.Errorf("got %v", got)
	}
}

// Who wants the same gets the same page, until there is more; the pages that are kept
// are bounded.
func TestSharedPagesAreMadeOnce(t *testing.T) {
	tl, l := &tail{}, newLog(2)
	read := func(after im.Seq) {
		p, _ := l.History(t.Context(), store.HistoryQuery{After: after, Limit: 500})
		tl.take(p)
		tl.whole = p.End
	}
	reader := func(user im.UserID, after im.Seq, limit int) *clientv1.Page {
		return tl.pageOf(&tailReader{user: user, after: after, limit: limit, room: 1 << 20}, l.starts)
	}
	l.write(10)
	tl.clear(2, time.Now())
	read(2)
	part, whole := reader("u0", 4, 3), reader("u0", 4, 100)
	if reader("u1", 4, 3) != part || reader("u1", 4, 100) != whole || part == whole {
		t.Error("pages are made again")
	}
	l.write(1)
	read(10)
	if reader("u0", 4, 3) != part {
		t.Error("a page in the middle is made again")
	}
	if p := reader("u0", 4, 100); p == whole || !p.End || p.CompleteTo != 11 {
		t.Errorf("a page to the end is an old one: %v", p)
	}
	if reader("u9", 4, 3) != nil {
		t.Error("who is no member got a page")
	}
	for limit := range 2 * tailMade {
		reader("u0", 4, limit+1)
	}
	if len(tl.made) > tailMade {
		t.Errorf("%d pages are kept", len(tl.made))
	}
	if tl.clear(4, time.Now()); len(tl.made) > 0 {
		t.Error("pages outlive their entries")
	}
}

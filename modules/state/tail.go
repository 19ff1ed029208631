package state

import (
	"context"
	"sync"
	"time"

	"github.com/imdhq/imd/pkg/im"
	"github.com/imdhq/imd/pkg/store"
	v1 "github.com/imdhq/imd/proto/gen/internalv1"
	"github.com/imdhq/imd/sdk/go/gen/clientv1"
	"github.com/imdhq/imd/sdk/go/protocol"
)

// Bounds of what is kept of conversations that many read at once.
const (
	// maxTails is how many conversations there are at a time.
	maxTails = 64
	// tailEntries and tailBytes are the most of one; the oldest entries make room.
	tailEntries = 8 * store.MaxPage
	tailBytes   = 1 << 20
	// tailFor is how old entries may be that are answered, as an entry may be changed
	// in its place, which nobody is told of here. tailIdle is how long a conversation
	// is without a reader before another one may take its place.
	tailFor  = 10 * time.Second
	tailIdle = 5 * time.Second
	// tailReaders is how many readers one look at the store serves.
	tailReaders = 500
	// tailPages is how many pages of new entries one look reads, and tailBack how far
	// behind the foremost reader another one may be.
	tailPages = 8
	tailBack  = 4 * store.MaxPage
	// tailMade is how many pages are kept for others who want the same.
	tailMade = 32
	// tailCall bounds one look.
	tailCall = 2 * time.Second
)

// tailStore is what tails ask of the message store.
type tailStore interface {
	History(ctx context.Context, q store.HistoryQuery) (store.HistoryPage, error)
	Starts(ctx context.Context, conv im.ConversationID, users []im.UserID) (map[im.UserID]im.Seq, error)
}

// tails answers those who read the end of a conversation at the same moment with
// few calls to the store: the first call goes there by itself, and those that come
// while it is out share one look at what is new and at who is a member, one after
// the other. Safe for concurrent use.
type tails struct {
	store tailStore
	m     *metrics
	now   func() time.Time
	work  sync.WaitGroup // looks that are out

	mu     sync.Mutex
	byConv map[im.ConversationID]*tail
}

// tail is the end of one conversation and those who wait for it.
type tail struct {
	conv    im.ConversationID
	alone   int // readers that have gone to the store themselves
	busy    bool
	waiting []*tailReader
	used    time.Time
	only    im.UserID // who alone has read it lately; "" = several have

	// Of the look that is out, and of nobody else meanwhile.
	from, to im.Seq // all entries above from, up to to, are here; from = to = 0: none
	whole    bool   // to is the head
	entries  []tailEntry
	bytes    int
	read     time.Time                   // when the oldest of them were
	made     map[tailPage]*clientv1.Page // of them
}

// tailEntry is an entry as it is answered, and its size.
type tailEntry struct {
	entry  *clientv1.Entry
	inJSON int
	bytes  int
}

// tailReader is one who waits.
type tailReader struct {
	user  im.UserID
	after im.Seq
	limit int
	room  int
	json  bool
	done  chan *clientv1.Page // shared, read only; nil = read it from the store
}

func newTails(s tailStore, m *metrics) *tails {
	return &tails{store: s, m: m, now: time.Now, byConv: map[im.ConversationID]*tail{}}
}

// enter asks for the end of a conversation. nil, true = the reader has to go to
// the store itself, and to call leave then. nil, false: the same, without leave.
func (ts *tails) enter(ctx context.Context, req *v1.HistoryRequest, limit, room int) (page *clientv1.Page, alone bool) {
	h := req.History
	if req.UserId == "" || h.Backward || h.BeforeSeq != 0 || h.AfterSeq == 0 {
		return nil, false
	}
	r := &tailReader{user: im.UserID(req.UserId), after: im.Seq(h.AfterSeq), limit: limit, room: room, json: req.Json}
	t, alone := ts.join(im.ConversationID(h.ConversationId), r)
	if t == nil {
		return nil, alone
	}
	select {
	case page = <-r.done:
	case <-ctx.Done():
	}
	if page == nil {
		ts.m.tailReads.WithLabelValues("refused").Inc()
	} else {
		ts.m.tailReads.WithLabelValues("shared").Inc()
	}
	return page, false
}

// join makes the reader wait, if others read the conversation now.
func (ts *tails) join(conv im.ConversationID, r *tailReader) (t *tail, alone bool) {
	ts.mu.Lock()
	defer ts.mu.Unlock()
	now := ts.now()
	t = ts.byConv[conv]
	if t == nil {
		if len(ts.byConv) >= maxTails && !ts.tidy(now) {
			return nil, false
		}
		t = &tail{conv: conv}
		ts.byConv[conv] = t
	}
	if t.alone == 0 && !t.busy && (t.only == r.user || now.Sub(t.used) > tailIdle) {
		t.alone, t.used, t.only = 1, now, r.user
		return nil, true
	}
	t.used, t.only = now, ""
	r.done = make(chan *clientv1.Page, 1)
	t.waiting = append(t.waiting, r)
	if !t.busy {
		t.busy = true
		ts.work.Go(func() { ts.serve(t) })
	}
	return t, false
}

// leave ends what a reader has read by itself.
func (ts *tails) leave(conv string) {
	ts.mu.Lock()
	defer ts.mu.Unlock()
	if t := ts.byConv[im.ConversationID(conv)]; t != nil && t.alone > 0 {
		t.alone--
	}
}

// tidy forgets conversations that nobody reads, and reports whether there were
// any. ts.mu is held.
func (ts *tails) tidy(now time.Time) bool {
	n := len(ts.byConv)
	for conv, t := range ts.byConv {
		if !t.busy && t.alone == 0 && now.Sub(t.used) > tailIdle {
			delete(ts.byConv, conv)
		}
	}
	return len(ts.byConv) < n
}

// wait returns once no look is out.
func (ts *tails) wait() { ts.work.Wait() }

// serve looks until nobody waits.
func (ts *tails) serve(t *tail) {
	for {
		ts.mu.Lock()
		n := min(len(t.waiting), tailReaders)
		some := t.waiting[:n:n]
		if t.waiting = t.waiting[n:]; n == 0 {
			t.busy, t.waiting = false, nil
			ts.mu.Unlock()
			return
		}
		ts.mu.Unlock()
		ctx, cancel := context.WithTimeout(context.Background(), tailCall)
		starts, err := ts.look(ctx, t, some)
		cancel()
		ts.m.tailLooks.Inc()
		for _, r := range some {
			if err != nil {
				r.done <- nil
				continue
			}
			r.done <- t.pageOf(r, starts)
		}
	}
}

// look reads what is new, and then who of the readers is a member: who is one
// then may see all that was read before.
func (ts *tails) look(ctx context.Context, t *tail, readers []*tailReader) (map[im.UserID]im.Seq, error) {
	now, after, most := ts.now(), readers[0].after, im.Seq(0)
	users := make([]im.UserID, 0, len(readers))
	seen := make(map[im.UserID]bool, len(readers))
	for _, r := range readers {
		after, most = min(after, r.after), max(most, r.after)
		if !seen[r.user] {
			seen[r.user] = true
			users = append(users, r.user)
		}
	}
	after = max(after, most-tailBack) // who is far behind reads alone
	if t.to == 0 || now.Sub(t.read) > tailFor {
		t.clear(after, now)
	}
	t.whole = false
	for pages := 0; !t.whole && pages < tailPages; pages++ {
		p, err := ts.store.History(ctx, store.HistoryQuery{Conversation: t.conv, After: t.to, Limit: store.MaxPage, MaxBytes: tailBytes})
		if err != nil {
			t.clear(0, now)
			return nil, err
		}
		if p.End && p.CompleteTo < t.to { // a reader named a place that is not there yet
			t.clear(0, now)
			break
		}
		if t.take(p) {
			t.whole = p.End
		} else {
			t.clear(after, now) // something in it has changed
		}
	}
	return ts.store.Starts(ctx, t.conv, users)
}

// clear forgets all entries; those above after are to be read.
func (t *tail) clear(after im.Seq, now time.Time) {
	t.from, t.to, t.entries, t.bytes, t.read = after, after, nil, 0, now
	clear(t.made)
}

// take adds a page. false = it tells that an entry which is here has changed.
func (t *tail) take(p store.HistoryPage) bool {
	for i := range p.Entries {
		if at := p.Entries[i].TargetSeq; at > t.from && len(t.entries) > 0 && int64(at) <= t.entries[len(t.entries)-1].entry.Seq {
			return false
		}
	}
	for i := range p.Entries {
		w := im.WireEntry(&p.Entries[i])
		x := tailEntry{entry: w, inJSON: sizer{true}.entry(w), bytes: sizer{false}.entry(w)}
		t.entries = append(t.entries, x)
		t.bytes += x.inJSON
	}
	t.to = max(t.to, p.CompleteTo)
	for len(t.entries) > tailEntries || t.bytes > tailBytes && len(t.entries) > 1 {
		t.from = im.Seq(t.entries[0].entry.Seq)
		t.bytes -= t.entries[0].inJSON
		t.entries = t.entries[1:]
	}
	return true
}

// tailPage is what a page depends on.
type tailPage struct {
	after       im.Seq
	limit, room int
	json        bool
}

// pageOf is what a reader gets; nil = it has to read it from the store. Readers who
// want the same get the same page, so that it can be encoded once.
func (t *tail) pageOf(r *tailReader, starts map[im.UserID]im.Seq) *clientv1.Page {
	start, member := starts[r.user]
	if !member || r.after < start || r.after < t.from || r.after > t.to || r.after == t.to && !t.whole {
		return nil
	}
	k := tailPage{r.after, r.limit, r.room, r.json}
	p := t.made[k]
	if p != nil && (!p.End || p.CompleteTo == int64(t.to)) { // one to the end is good until there is more
		return p
	}
	if p = t.page(r); len(t.made) >= tailMade {
		clear(t.made)
	}
	if t.made == nil {
		t.made = map[tailPage]*clientv1.Page{}
	}
	t.made[k] = p
	return p
}

// page makes the page of a reader, whose entries are here.
func (t *tail) page(r *tailReader) *clientv1.Page {
	p := &clientv1.Page{CompleteFrom: int64(r.after) + 1, CompleteTo: int64(t.to), End: t.whole}
	i, j := 0, len(t.entries)
	for i < j { // the first above after
		if h := (i + j) / 2; t.entries[h].entry.Seq <= int64(r.after) {
			i = h + 1
		} else {
			j = h
		}
	}
	room := r.room
	for _, x := range t.entries[i:] {
		size := x.bytes
		if r.json {
			size = x.inJSON
		}
		if room -= size; len(p.Entries) == r.limit || room < 0 && len(p.Entries) > 0 {
			p.End, p.CompleteTo = false, p.Entries[len(p.Entries)-1].Seq
			break
		}
		p.Entries = append(p.Entries, x.entry)
	}
	return p
}

// readEnd reads the end of a conversation together with others; nil = it is for
// the store, after which done is called.
func (c *core) readEnd(ctx context.Context, req *v1.HistoryRequest, limit, room int) (res *v1.HistoryResponse, done func()) {
	page, alone := c.tails.enter(ctx, req, min(limit, protocol.MaxHistoryLimit), room)
	if page != nil {
		return &v1.HistoryResponse{Result: &clientv1.HistoryResult{ConversationId: req.History.ConversationId, Page: page}}, nil
	}
	if alone {
		return nil, func() { c.tails.leave(req.History.ConversationId) }
	}
	return nil, func() {}
}

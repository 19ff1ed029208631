package trace

import (
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cespare/xxhash/v2"

	"github.com/imdhq/imd/pkg/im"
)

// Bounds of what a process remembers.
const (
	// DefaultBytes is the most memory, about, that records take.
	DefaultBytes = 64 << 20
	// DefaultAge is how long a record stays.
	DefaultAge = 10 * time.Minute
	// MaxFound is the most records that one question is answered with.
	MaxFound = 1000

	chunkRecords = 2048
	recordBytes  = 112 // with the text that a note may keep alive
)

// Stage is what happened to a message.
type Stage uint8

// The stages, in the order in which they usually come.
const (
	Committed    Stage = iota + 1 // state: stored; took: since it came to its lane
	Repeated                      // state: a repeat found it stored
	Answered                      // gateway: the sender has its answer; took: since the send arrived; note: session
	HandedOn                      // state: given to push; took: the call; note: push node, "" = this process
	Fanned                        // push: members and their sessions were found; took: the look-up; count: sessions
	Delivered                     // push: given to a gateway; took: the call; note: gateway; count: sessions
	Arrived                       // gateway: it came; count: sessions that are here
	Queued                        // gateway: it waits for being written to a session; note: session
	Acknowledged                  // gateway: a device has it; note: session
)

var stageNames = [...]string{"", "committed", "repeated", "answered", "handed on", "fanned out", "delivered", "arrived", "queued", "acknowledged"}

// String is the stage as people read it.
func (s Stage) String() string {
	if int(s) < len(stageNames) {
		return stageNames[s]
	}
	return "unknown"
}

// StageOf is the reverse of String; 0 = there is none of that name.
func StageOf(name string) Stage { return Stage(max(slices.Index(stageNames[:], name), 0)) }

// Record is one stage of one message.
type Record struct {
	Stage   Stage
	Failed  bool         // it ended badly; what was handed over is found by cursors
	Count   int32        // sessions; 0 = the stage has none
	Message im.MessageID // 0 = not known there
	Conv    uint64       // Conv of the conversation id
	From    int64        // Acknowledged: the range is (From, Seq]; other stages: Seq-1
	Seq     int64
	At      time.Time // when the stage ended
	Took    time.Duration
	Note    string // a node or a session, as the stage has it

	// Trace and Parent are the context of the stage and of what it is a part of, if
	// a span is made of it; they are not remembered.
	Trace, Parent Context
}

// entry is a Record as it lies in the ring.
type entry struct {
	message im.MessageID
	conv    uint64
	from    int64
	seq     int64
	at      int64 // ns since 1970
	took    int64
	note    string
	count   int32
	stage   Stage
	failed  bool
}

// Conv is the hash by which a conversation is known in records.
func Conv(id string) uint64 { return xxhash.Sum64String(id) }

// Log is the ring of a process. A nil Log takes records and remembers none. Safe
// for concurrent use.
type Log struct {
	sink   atomic.Pointer[sink] // nil = nobody wants spans
	age    time.Duration
	most   int // chunks
	now    func() time.Time
	mu     sync.Mutex
	chunks [][]entry // oldest first; only the last one grows
}

// New makes a ring of about the given size whose records stay for age. now tells
// the time.
func New(bytes int, age time.Duration, now func() time.Time) *Log {
	return &Log{age: age, most: max(bytes/(chunkRecords*recordBytes), 2), now: now}
}

// Add remembers records. What is in them must not change any more.
func (l *Log) Add(records ...Record) {
	if l == nil || len(records) == 0 {
		return
	}
	l.keep(records)
	for i := range records {
		if r := &records[i]; r.Trace.Sampled() {
			l.Span(r.span())
		}
	}
}

func (l *Log) keep(records []Record) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for i := range records {
		r := &records[i]
		last := len(l.chunks) - 1
		if last < 0 || len(l.chunks[last]) == chunkRecords {
			l.forget()
			l.chunks = append(l.chunks, make([]entry, 0, chunkRecords))
			last = len(l.chunks) - 1
		}
		from := r.From
		if r.Stage != Acknowledged {
			from = r.Seq - 1
		}
		l.chunks[last] = append(l.chunks[last], entry{r.Message, r.Conv, from, r.Seq, r.At.UnixNano(), int64(r.Took), r.Note, r.Count, r.Stage, r.Failed})
	}
}

// forget makes room for one more chunk, and drops those that are too old.
func (l *Log) forget() {
	oldest := l.now().Add(-l.age).UnixNano()
	n := 0
	for n < len(l.chunks) && (len(l.chunks)-n >= l.most || l.chunks[n][len(l.chunks[n])-1].at < oldest) {
		n++
	}
	l.chunks = slices.Delete(l.chunks, 0, n)
}

// Query names a message by its id, by its place, or both.
type Query struct {
	Message im.MessageID // 0 = not asked for
	Conv    uint64
	Seq     int64 // 0 = not asked for
}

func (q Query) fits(e *entry) bool {
	return q.Message != 0 && e.message == q.Message || q.Seq != 0 && e.conv == q.Conv && e.from < q.Seq && q.Seq <= e.seq
}

// Find gives what is remembered of a message, the oldest MaxFound records by
// time, and the time of the oldest record of any message; zero = there are none.
func (l *Log) Find(q Query) (found []Record, since time.Time) {
	if l == nil {
		return nil, time.Time{}
	}
	l.mu.Lock()
	chunks := slices.Clone(l.chunks) // entries are written once, so they can be read without the lock
	l.mu.Unlock()
	oldest := l.now().Add(-l.age).UnixNano()
	for _, c := range chunks {
		for i := range c {
			e := &c[i]
			if e.at < oldest {
				continue
			}
			if since.IsZero() {
				since = time.Unix(0, e.at)
			}
			if len(found) < MaxFound && q.fits(e) {
				found = append(found, Record{Stage: e.stage, Failed: e.failed, Count: e.count, Message: e.message, Conv: e.conv, From: e.from, Seq: e.seq,
					At: time.Unix(0, e.at), Took: time.Duration(e.took), Note: e.note})
			}
		}
	}
	slices.SortStableFunc(found, func(a, b Record) int { return a.At.Compare(b.At) })
	return found, since
}

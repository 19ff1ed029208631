package timeline

import (
	"math/rand/v2"
	"slices"
	"testing"

	"google.golang.org/protobuf/proto"

	"github.com/imdhq/imd/sdk/go/gen/clientv1"
)

// modelLog is a log with holes, hidden entries and own messages.
type modelLog struct {
	rng     *rand.Rand
	all     []*clientv1.Entry // hidden ones included
	visible []*clientv1.Entry
}

func (l *modelLog) grow() {
	prev := int64(0)
	if n := len(l.all); n > 0 {
		prev = l.all[n-1].Seq
	}
	e := &clientv1.Entry{Seq: prev + 1 + int64(l.rng.IntN(4))*int64(l.rng.IntN(2)), PrevSeq: prev,
		Kind: clientv1.EntryKind_ENTRY_KIND_MESSAGE, Sender: "bob", Countable: true}
	l.all = append(l.all, e)
	if l.rng.IntN(6) > 0 {
		l.visible = append(l.visible, e)
	}
}

func (l *modelLog) head() int64 {
	if n := len(l.all); n > 0 {
		return l.all[n-1].Seq
	}
	return 0
}

// page answers a request as a server does that hides entries.
func (l *modelLog) page(r Request) *clientv1.Page {
	limit := 1 + l.rng.IntN(5)
	before := r.Before
	if before == 0 {
		before = l.head() + 1
	}
	var in []*clientv1.Entry
	for _, e := range l.visible {
		if e.Seq > r.After && e.Seq < before {
			in = append(in, proto.CloneOf(e))
		}
	}
	p := &clientv1.Page{CompleteFrom: r.After + 1, CompleteTo: before - 1, End: true}
	if n := len(in); n > limit {
		p.End = false
		if r.Backward {
			in = in[n-limit:]
			p.CompleteFrom = in[0].Seq
		} else {
			in = in[:limit]
			p.CompleteTo = in[limit-1].Seq
		}
	}
	p.Entries = in
	return p
}

// Whatever is lost, repeated, late or asked for at once, the timeline ends as
// the visible log, each entry shown once and in order.
func TestModel(t *testing.T) {
	for seed := range uint64(400) {
		rng := rand.New(rand.NewPCG(seed, 7))
		l := &modelLog{rng: rng}
		tl := New("me", 0)
		now := int64(0)
		var shown []int64
		var open []Request
		take := func(fx Effects) {
			for _, e := range fx.Show {
				shown = append(shown, e.Seq)
			}
			if fx.History != nil {
				open = append(open, *fx.History)
			}
		}
		for range rng.IntN(10) {
			l.grow()
		}
		take(tl.State(now, NoCursor, &clientv1.ConversationState{HeadSeq: l.head(), Page: l.page(Request{Backward: true, Jump: true})}))
		for range 150 {
			now += int64(rng.IntN(120))
			switch rng.IntN(10) {
			case 0, 1, 2, 3:
				l.grow()
				e := l.all[len(l.all)-1]
				if slices.Contains(l.visible, e) && rng.IntN(4) > 0 {
					take(tl.Deliver(now, []*clientv1.Entry{proto.CloneOf(e)}))
				}
			case 4:
				if n := len(l.visible); n > 0 {
					take(tl.Deliver(now, []*clientv1.Entry{proto.CloneOf(l.visible[rng.IntN(n)])}))
				}
			case 5:
				take(tl.Head(now, l.head()))
			case 6:
				tl.TakeAcks()
				if rng.IntN(4) == 0 {
					open = nil
					cursor := tl.Have()
					tl.Connected()
					take(tl.State(now, cursor, &clientv1.ConversationState{HeadSeq: l.head(), Page: l.page(Request{After: cursor})}))
					take(tl.Synced(now))
				}
			case 7:
				take(tl.Tick(now))
			case 8:
				if tl.Older() {
					r := tl.OlderRequest()
					take(tl.Page(now, r, l.page(r)))
				}
			default:
				for _, r := range open {
					open = nil
					if rng.IntN(8) == 0 {
						tl.HistoryFailed(now, 0)
					} else {
						take(tl.Page(now, r, l.page(r)))
					}
				}
			}
			checkInvariants(t, tl)
			if len(open) > 1 {
				t.Fatalf("seed %d: %d requests at once", seed, len(open))
			}
		}
		take(tl.Head(now, l.head()))
		for i := 0; len(open) > 0 || tl.have < l.head() && i < 1000; i++ {
			now += 20000
			take(tl.Tick(now))
			for _, r := range open {
				open = nil
				take(tl.Page(now, r, l.page(r)))
			}
		}
		for tl.Older() {
			r := tl.OlderRequest()
			take(tl.Page(now, r, l.page(r)))
		}
		if !slices.IsSorted(shown) || len(slices.Compact(slices.Clone(shown))) != len(shown) {
			t.Fatalf("seed %d: shown %v", seed, shown)
		}
		var got, want []int64
		for _, it := range tl.Items() {
			got = append(got, it.Entry.Seq)
		}
		for _, e := range l.visible {
			want = append(want, e.Seq)
		}
		if !slices.Equal(got, want) {
			t.Fatalf("seed %d: items %v, want %v", seed, got, want)
		}
		if tl.From() != 0 {
			t.Fatalf("seed %d: unbroken from %d", seed, tl.From())
		}
	}
}

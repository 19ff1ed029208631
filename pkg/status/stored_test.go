package status

import (
	"context"
	"testing"
	"time"

	"github.com/imdhq/imd/pkg/idgen"
	"github.com/imdhq/imd/pkg/im"
	v1 "github.com/imdhq/imd/proto/gen/internalv1"
	"github.com/imdhq/imd/sdk/go/gen/clientv1"
)

// log is a conversation as the state role gives it.
type log struct {
	entries []*clientv1.Entry
	calls   int
}

func (l *log) History(_ context.Context, r *v1.HistoryRequest) (*v1.HistoryResponse, error) {
	l.calls++
	p := &clientv1.Page{}
	if h := r.History; h.Backward {
		p.Entries = l.entries[max(len(l.entries)-int(h.Limit), 0):]
	} else {
		for _, e := range l.entries {
			if e.Seq > h.AfterSeq && len(p.Entries) < int(h.Limit) {
				p.Entries = append(p.Entries, e)
			}
		}
	}
	return &v1.HistoryResponse{Result: &clientv1.HistoryResult{Page: p}}, nil
}

// A message is found by the time in its id, also between holes, late commits and
// clocks that differ, with few looks into a long conversation.
func TestFindStored(t *testing.T) {
	began := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	idAt := func(at time.Time, n int) im.MessageID {
		return im.MessageID((at.UnixMilli()-idgen.Time(0).UnixMilli())<<22 | int64(n)<<10 | 7)
	}
	l := &log{}
	for i := range 100_000 { // one a minute, every third number is missing
		at := began.Add(time.Duration(i) * time.Minute)
		l.entries = append(l.entries, &clientv1.Entry{Seq: int64(i + i/2 + 1), MessageId: int64(idAt(at.Add(-time.Second), i%4096)), ServerTimeMs: at.UnixMilli(), Sender: "ann",
			Kind: clientv1.EntryKind_ENTRY_KIND_MESSAGE})
	}
	late := l.entries[5000]
	late.MessageId = int64(idAt(began.Add(4999*time.Minute), 9)) // it waited a minute for the store
	ahead := l.entries[6000]
	ahead.MessageId = int64(idAt(began.Add(6000*time.Minute+4*time.Second), 9)) // by a clock that is ahead
	for _, want := range []*clientv1.Entry{l.entries[0], l.entries[1], l.entries[777], late, ahead, l.entries[len(l.entries)-1]} {
		l.calls = 0
		id := im.MessageID(want.MessageId)
		got, err := findStored(t.Context(), l, "g_1", id, idgen.Time(id))
		if err != nil || got == nil || got.Seq != want.Seq || got.Sender != "ann" || got.Kind != "message" || got.Conversation != "g_1" {
			t.Errorf("%d: %+v, %v", want.Seq, got, err)
		}
		if l.calls > 25 {
			t.Errorf("%d: %d calls", want.Seq, l.calls)
		}
	}
	for name, id := range map[string]im.MessageID{
		"between": idAt(began.Add(90*time.Second), 1), "before all": idAt(began.Add(-time.Hour), 1), "after all": idAt(began.AddDate(1, 0, 0), 1),
	} {
		if got, err := findStored(t.Context(), l, "g_1", id, idgen.Time(id)); got != nil || err != nil {
			t.Errorf("%s: %+v, %v", name, got, err)
		}
	}
	if got, err := findStored(t.Context(), &log{}, "g_1", 7, began); got != nil || err != nil {
		t.Errorf("an empty conversation: %+v, %v", got, err)
	}
}

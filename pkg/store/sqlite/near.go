package sqlite

import (
	"context"
	"slices"

	"github.com/imdhq/imd/pkg/im"
	"github.com/imdhq/imd/pkg/store"
	"github.com/imdhq/imd/sdk/go/gen/clientv1"
)

// nearMost is how far below the head all that a state tells must lie to be read
// at once.
const nearMost = 32

// nearby is the newest entries of a conversation, rising: all that is not read,
// all that a page is about, and at least one.
type nearby []im.Entry

// near reads the newest entries of a conversation that moved a little, so that
// what is unread, the newest message and the page take one statement together;
// nil if they need more than these.
func (c *conn) near(ctx context.Context, l *listed, page store.HistoryQuery, paged bool) (nearby, error) {
	spans := l.View.Within(0, 0)
	if len(spans) != 1 {
		return nil, nil
	}
	low := max(spans[0].Start, min(l.Read, spans[0].End-1))
	switch {
	case paged && page.Backward:
		low = spans[0].Start
	case paged:
		low = max(spans[0].Start, min(low, page.After))
	}
	if spans[0].End-low > nearMost {
		return nil, nil
	}
	out := make(nearby, 0, 4)
	err := c.each(ctx, sqlUp, []any{l.num, low, spans[0].End, nearMost}, func(scan func(...any) error) error {
		var e im.Entry
		err := scanEntry(scan, &e)
		out = append(out, e)
		return err
	})
	return out, err
}

// unread counts what the user of l has not read.
func (n nearby) unread(l *listed) (count int) {
	for i := range n {
		if n[i].Seq > l.Read && n[i].Countable && n[i].Sender != l.User {
			count++
		}
	}
	return count
}

// last is the newest message; nil if it is farther away.
func (n nearby) last() *im.Entry {
	for i := range slices.Backward(n) {
		if n[i].Kind == clientv1.EntryKind_ENTRY_KIND_MESSAGE {
			e := n[i]
			return &e
		}
	}
	return nil
}

// page is the page that conn.page would read.
func (n nearby) page(l *listed, q store.HistoryQuery) store.HistoryPage {
	list := slices.Clone(n)
	if q.Backward {
		slices.Reverse(list)
	}
	p := store.HistoryPage{End: true}
	bytes := 0
	for i := range list {
		if list[i].Seq <= q.After {
			continue
		}
		bytes += len(list[i].Content) + len(list[i].Change)
		if len(p.Entries) == q.Limit || q.MaxBytes > 0 && bytes > q.MaxBytes && len(p.Entries) > 0 {
			p.End = false
			break
		}
		p.Entries = append(p.Entries, list[i])
	}
	if q.Backward {
		slices.Reverse(p.Entries)
	}
	p.CompleteFrom, p.CompleteTo = l.View.Complete(p, q)
	return p
}

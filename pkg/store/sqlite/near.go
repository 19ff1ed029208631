package sqlite

import (
	"cmp"
	"context"
	"fmt"
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

// reach is what near reads of a conversation: (low, high].
type reach struct{ num, low, high int64 }

// reachOf is what is to be read for the state of a conversation; false = more than can
// be read at once.
func reachOf(l *listed, page store.HistoryQuery, paged bool) (reach, bool) {
	spans := l.View.Within(0, 0)
	if len(spans) != 1 {
		return reach{}, false
	}
	low := max(spans[0].Start, min(l.Read, spans[0].End-1))
	switch {
	case paged && page.Backward:
		low = spans[0].Start
	case paged:
		low = max(spans[0].Start, min(low, page.After))
	}
	return reach{l.num, int64(low), int64(spans[0].End)}, spans[0].End-low <= nearMost
}

// near reads the newest entries of a conversation that moved a little, so that
// what is unread, the newest message and the page take one statement together;
// nil if they need more than these.
func (c *conn) near(ctx context.Context, l *listed, page store.HistoryQuery, paged bool) (nearby, error) {
	if l.near != nil {
		return l.near, nil
	}
	r, ok := reachOf(l, page, paged)
	if !ok {
		return nil, nil
	}
	out := make(nearby, 0, 4)
	err := c.each(ctx, sqlUp, []any{r.num, r.low, r.high, nearMost}, func(scan func(...any) error) error {
		var e im.Entry
		err := scanEntry(scan, &e)
		out = append(out, e)
		return err
	})
	return out, err
}

// aheadMost is how many entries are read ahead for one call, at most.
const aheadMost = 512

// sqlNear reads what is near in many conversations; each element of the list is which
// one it is of those asked for, its number, and between which entries.
const sqlNear = `SELECT ` + entryColumns + `, j.key FROM json_each(?) j CROSS JOIN entry
  ON conv = json_extract(j.value, '$[0]') AND seq > json_extract(j.value, '$[1]') AND seq <= json_extract(j.value, '$[2]')`

// readAhead reads what is near in all conversations of the walks in one statement, up to
// a number of entries; near reads what is beyond it.
func (c *conn) readAhead(ctx context.Context, walks []*walk) error {
	var of []*listed
	list, room := []byte{'['}, aheadMost
	for _, w := range walks {
		for _, l := range w.list {
			page, paged := pageQuery(l, w.q, w.q.MaxBytes)
			r, ok := reachOf(l, page, paged)
			if l.num == 0 || !ok || r.high <= r.low {
				continue
			}
			if room -= int(r.high - r.low); room < 0 {
				break
			}
			list = fmt.Appendf(list, "[%d,%d,%d],", r.num, r.low, r.high)
			of = append(of, l)
		}
	}
	if len(of) < 2 {
		return nil
	}
	list[len(list)-1] = ']'
	err := c.each(ctx, sqlNear, []any{string(list)}, func(scan func(...any) error) error {
		var e im.Entry
		i, err := scanNear(scan, &e)
		if err == nil {
			of[i].near = append(of[i].near, e)
		}
		return err
	})
	for _, l := range of { // they come so, but nothing says that they do
		slices.SortFunc(l.near, func(a, b im.Entry) int { return cmp.Compare(a.Seq, b.Seq) })
	}
	return err
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

// whole reports whether there is nothing farther away that the user of l may see.
func (n nearby) whole(l *listed) bool {
	spans := l.View.Within(0, 0)
	return len(n) > 0 && len(spans) == 1 && n[0].PrevSeq <= spans[0].Start
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

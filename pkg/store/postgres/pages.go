package postgres

import (
	"context"
	"slices"

	"github.com/jackc/pgx/v5"

	"github.com/imdhq/imd/pkg/im"
	"github.com/imdhq/imd/pkg/store"
)

// sqlPages reads stretches of many conversations at once, each from its lower
// end or, where down says so, from its upper one, and in all until the bodies
// have passed $7 bytes (0 = no bound), as read counts them. i says which conversation a stretch is of.
const sqlPages = `SELECT e.i, ` + entryColumns + `
FROM (SELECT s.i, s.at, s.down, x.*, sum(octet_length(x.body))
    OVER (ORDER BY s.at, CASE WHEN s.down THEN -x.seq ELSE x.seq END ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING) AS before
  FROM unnest($1::int4[], $2::int8[], $3::int8[], $4::int8[], $5::bool[]) WITH ORDINALITY AS s (i, num, low, high, down, at)
  CROSS JOIN LATERAL (
    (SELECT * FROM entry y WHERE NOT s.down AND y.conv = s.num AND y.seq > s.low AND y.seq <= s.high ORDER BY y.seq LIMIT $6)
    UNION ALL
    (SELECT * FROM entry y WHERE s.down AND y.conv = s.num AND y.seq > s.low AND y.seq <= s.high ORDER BY y.seq DESC LIMIT $6)
  ) x) e
WHERE $7 = 0 OR coalesce(e.before, 0) <= $7 ORDER BY e.at, CASE WHEN e.down THEN -e.seq ELSE e.seq END`

// stretches are what sqlPages is asked for.
type stretches struct {
	i              []int32
	num, low, high []int64
	down           []bool
}

// syncPages are the pages of a sync while they are read.
type syncPages struct {
	list  []*listed
	asked []store.HistoryQuery
	pages []*store.HistoryPage // nil = of a conversation in which there is nothing for the user
}

// addPages reads what belongs on each state.
func addPages(ctx context.Context, c *pgx.Conn, list []*listed, q store.SyncQuery, out []store.ConversationState) error {
	u := syncPages{list, make([]store.HistoryQuery, len(list)), make([]*store.HistoryPage, len(list))}
	s := u.stretches(q)
	end, err := u.read(ctx, c, s, min(q.Entries, store.MaxPage), q.MaxBytes)
	if err != nil {
		return err
	}
	for n, p := range u.pages[:end] {
		if p == nil {
			continue
		}
		if u.asked[n].Backward {
			slices.Reverse(p.Entries)
		}
		p.CompleteFrom, p.CompleteTo = list[n].View.Complete(*p, u.asked[n])
		out[n].Page = p
	}
	return nil
}

// stretches says what to read, in the order of the list.
func (u *syncPages) stretches(q store.SyncQuery) (s stretches) {
	for n, l := range u.list {
		if l.num == 0 {
			continue
		}
		have, known := q.Cursors[l.id]
		u.asked[n] = store.HistoryQuery{After: max(have, 0), Backward: !known}
		u.pages[n] = &store.HistoryPage{End: true}
		spans := l.View.Within(u.asked[n].After, 0)
		if !known {
			slices.Reverse(spans)
		}
		for _, sp := range spans {
			s.i, s.num, s.down = append(s.i, int32(n)), append(s.num, l.num), append(s.down, !known)
			s.low, s.high = append(s.low, int64(sp.Start)), append(s.high, int64(sp.End))
		}
	}
	return s
}

// read fills the pages. Those from end on have not been read to their end.
func (u *syncPages) read(ctx context.Context, c *pgx.Conn, s stretches, limit, most int) (end int, err error) {
	if len(s.i) == 0 {
		return len(u.pages), nil
	}
	rows, err := c.Query(ctx, sqlPages, s.i, s.num, s.low, s.high, s.down, limit+1, most)
	if err != nil {
		return 0, err
	}
	defer rows.Close()
	bytes := 0
	for rows.Next() {
		var n int32
		var r entryRow
		if err := rows.Scan(append([]any{&n}, r.into()...)...); err != nil {
			return 0, err
		}
		bytes += len(r.body)
		if e, ok := r.entry(); ok {
			u.take(int(n), e, limit)
		}
		if most > 0 && bytes > most {
			return int(n), nil
		}
	}
	return len(u.pages), rows.Err()
}

// take adds an entry to a page that has room for it.
func (u *syncPages) take(n int, e im.Entry, limit int) {
	p := u.pages[n]
	if len(p.Entries) == limit {
		p.End = false
		return
	}
	p.Entries = append(p.Entries, e)
}

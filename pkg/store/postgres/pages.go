package postgres

import (
	"context"
	"slices"

	"github.com/jackc/pgx/v5"

	"github.com/imdhq/imd/pkg/im"
	"github.com/imdhq/imd/pkg/store"
)

// sqlPages reads stretches of many conversations at once, each from its lower
// end or, where down says so, from its upper one, at most lim entries each, and in
// all of one walk until the bodies have passed room bytes (0 = no bound), as read
// counts them. i says which conversation a stretch is of, w which walk.
const sqlPages = `SELECT e.i, ` + entryColumns + `
FROM (SELECT s.i, s.at, s.down, s.room, x.*, sum(octet_length(x.body))
    OVER (PARTITION BY s.w ORDER BY s.at, CASE WHEN s.down THEN -x.seq ELSE x.seq END ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING) AS before
  FROM unnest($1::int4[], $2::int8[], $3::int8[], $4::int8[], $5::bool[], $6::int8[], $7::int8[], $8::int4[]) WITH ORDINALITY
    AS s (i, num, low, high, down, lim, room, w, at)
  CROSS JOIN LATERAL (
    (SELECT * FROM entry y WHERE NOT s.down AND y.conv = s.num AND y.seq > s.low AND y.seq <= s.high ORDER BY y.seq LIMIT s.lim)
    UNION ALL
    (SELECT * FROM entry y WHERE s.down AND y.conv = s.num AND y.seq > s.low AND y.seq <= s.high ORDER BY y.seq DESC LIMIT s.lim)
  ) x) e
WHERE e.room = 0 OR coalesce(e.before, 0) <= e.room ORDER BY e.at, CASE WHEN e.down THEN -e.seq ELSE e.seq END`

// stretches are what sqlPages is asked for.
type stretches struct {
	i, walk                   []int32
	num, low, high, lim, room []int64
	down                      []bool
}

// syncPages are the pages of a sync while they are read.
type syncPages struct {
	list  []*listed
	asked []store.HistoryQuery
	pages []*store.HistoryPage // nil = not asked for, not read to its end, or of a conversation in which there is nothing for the user
}

// addPages reads what belongs on each state.
func addPages(ctx context.Context, c *pgx.Conn, list []*listed, out []store.ConversationState) error {
	u := syncPages{list, make([]store.HistoryQuery, len(list)), make([]*store.HistoryPage, len(list))}
	if err := u.read(ctx, c, u.stretches()); err != nil {
		return err
	}
	for n, p := range u.pages {
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
func (u *syncPages) stretches() (s stretches) {
	for n, l := range u.list {
		q := &l.walk.q
		if l.num == 0 || q.Entries == 0 {
			continue
		}
		have, known := q.Cursors[l.id]
		u.asked[n] = store.HistoryQuery{After: max(have, 0), Backward: !known, Limit: min(q.Entries, store.MaxPage)}
		u.pages[n] = &store.HistoryPage{End: true}
		spans := l.View.Within(u.asked[n].After, 0)
		if !known {
			slices.Reverse(spans)
		}
		for _, sp := range spans {
			s.i, s.num, s.down = append(s.i, int32(n)), append(s.num, l.num), append(s.down, !known)
			s.low, s.high = append(s.low, int64(sp.Start)), append(s.high, int64(sp.End))
			s.lim, s.room, s.walk = append(s.lim, int64(u.asked[n].Limit+1)), append(s.room, int64(q.MaxBytes)), append(s.walk, l.walk.number)
		}
	}
	return s
}

// read fills the pages. It takes those away that have not been read to their end.
func (u *syncPages) read(ctx context.Context, c *pgx.Conn, s stretches) error {
	if len(s.i) == 0 {
		return nil
	}
	rows, err := c.Query(ctx, sqlPages, s.i, s.num, s.low, s.high, s.down, s.lim, s.room, s.walk)
	if err != nil {
		return err
	}
	defer rows.Close()
	for rows.Next() {
		var n int32
		var r entryRow
		if err := rows.Scan(append([]any{&n}, r.into()...)...); err != nil {
			return err
		}
		w := u.list[n].walk
		if w.full {
			continue
		}
		w.bytes += len(r.body)
		if e, ok := r.entry(); ok {
			u.take(int(n), e)
		}
		if w.q.MaxBytes > 0 && w.bytes > w.q.MaxBytes {
			w.full = true
			u.drop(int(n))
		}
	}
	rows.Close()
	return rows.Err()
}

// drop takes the page of a state away, and those of all states behind it of the
// same walk.
func (u *syncPages) drop(n int) {
	for i := n; i < len(u.list) && u.list[i].walk == u.list[n].walk; i++ {
		u.pages[i] = nil
	}
}

// take adds an entry to a page that has room for it.
func (u *syncPages) take(n int, e im.Entry) {
	p := u.pages[n]
	if len(p.Entries) == u.asked[n].Limit {
		p.End = false
		return
	}
	p.Entries = append(p.Entries, e)
}

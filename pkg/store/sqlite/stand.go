package sqlite

import (
	"cmp"
	"context"
	"encoding/json"
	"slices"
	"strconv"

	"github.com/imdhq/imd/pkg/im"
)

// standMost is how many conversations are read in one statement for many walks, at
// most. Walks that it has no room for are read one by one.
const standMost = 512

// sqlStand reads for many users what sqlStaysAsked does for one: ?1 is an object that
// has for each of them the commit after which they ask, and ?2 a list of what any of
// their cursors is about. The rows come user by user, in the order of the object.
const sqlStand = `SELECT ` + stayColumns + peerColumns + `, m.version > j.value OR m.role > 0 AND c.version > j.value
  FROM json_each(?1) j CROSS JOIN member m ON m.user_id = j.key CROSS JOIN conversation c ON c.num = m.conv` + peerTable + `
  WHERE m.version > j.value OR m.role > 0 AND c.version > j.value OR m.conversation_id IN (SELECT value FROM json_each(?2))
  LIMIT ?3`

// sqlSums reads the sums over all heads of many users: which one of the list it is, and
// its sum.
const sqlSums = `SELECT j.key, (SELECT ` + digestFunction + `(m.conversation_id, c.head)` + stayTables + `WHERE m.user_id = j.value AND m.role > 0)
  FROM json_each(?) j`

// stand reads where the users of walks stand: of those that begin together in one
// statement, of all others one by one.
func (c *conn) stand(ctx context.Context, walks []*walk) error {
	alone := walks
	if len(walks) > 1 {
		var err error
		if alone, err = c.standMany(ctx, walks); err != nil {
			return err
		}
	}
	for _, w := range alone {
		list, err := c.stays(ctx, w)
		if err != nil {
			return err
		}
		w.take(list)
	}
	return nil
}

// standMany reads many walks in one statement, and returns those that it did not: they
// go on behind a page, are the second of their user, or there was no room.
func (c *conn) standMany(ctx context.Context, walks []*walk) (others []*walk, err error) {
	q := standing{of: make(map[im.UserID]*standingOf, len(walks))}
	for _, w := range walks {
		if w.t.After != "" || q.of[w.q.User] != nil {
			others = append(others, w)
		} else {
			q.add(w)
		}
	}
	var last *standingOf // whose rows may not all have come
	rows := 0
	err = c.each(ctx, sqlStand, []any{q.users(), jsonList(q.asked), standMost}, func(scan func(...any) error) error {
		row := cellsPool.Get().(*cells)
		defer row.giveBack()
		if err := scan(row.places(listedCells)...); err != nil {
			return err
		}
		l, err := listedOf(row)
		if err != nil {
			return err
		}
		rows++
		last = q.of[l.User]
		last.add(l)
		return nil
	})
	if err != nil {
		return nil, err
	}
	whole := q.list
	if rows == standMost {
		whole = whole[:slices.Index(whole, last)]
	}
	for _, x := range q.list[len(whole):] {
		others = append(others, x.w)
	}
	for _, x := range whole {
		x.w.take(x.rows())
	}
	return others, c.sums(ctx, whole)
}

// sums reads the sums over all heads for those who want them, and whose list ends on
// this page: others are not told.
func (c *conn) sums(ctx context.Context, list []*standingOf) error {
	var of []*walk
	var users []im.UserID
	for _, x := range list {
		if x.w.summed() && !x.w.more {
			of, users = append(of, x.w), append(users, x.w.q.User)
		}
	}
	if len(of) == 0 {
		return nil
	}
	names, _ := json.Marshal(users) // texts always encode
	return c.each(ctx, sqlSums, []any{string(names)}, func(scan func(...any) error) error {
		var i, sum int64
		err := scan(&i, &sum)
		if err == nil {
			of[i].sum = uint64(sum)
		}
		return err
	})
}

// standing is a question about many walks.
type standing struct {
	list  []*standingOf
	of    map[im.UserID]*standingOf
	asked map[im.ConversationID]bool // by the cursors of any
}

// standingOf is what one walk is told.
type standingOf struct {
	w    *walk
	read []*listed
}

func (q *standing) add(w *walk) {
	x := &standingOf{w: w}
	q.list, q.of[w.q.User] = append(q.list, x), x
	for id := range w.q.Cursors {
		if q.asked == nil {
			q.asked = map[im.ConversationID]bool{}
		}
		q.asked[id] = true
	}
}

// users is the first argument of sqlStand.
func (q *standing) users() string {
	b := []byte{'{'}
	for i, x := range q.list {
		if i > 0 {
			b = append(b, ',')
		}
		name, _ := json.Marshal(x.w.q.User) // a text always encodes
		b = append(append(b, name...), ':')
		b = strconv.AppendInt(b, x.w.t.Since, 10)
	}
	return string(append(b, '}'))
}

// add takes a row, unless it is there only because another's cursor is about it.
func (x *standingOf) add(l *listed) {
	if _, asked := x.w.q.Cursors[l.ID]; asked || l.changed {
		x.read = append(x.read, l)
	}
}

// rows is what conn.stays would have read.
func (x *standingOf) rows() []*listed {
	slices.SortFunc(x.read, func(a, b *listed) int { return cmp.Compare(a.ID, b.ID) }) // they come so, but nothing says that they do
	return x.read[:min(len(x.read), x.w.reads())]
}

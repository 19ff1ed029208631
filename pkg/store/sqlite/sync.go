package sqlite

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"slices"
	"strings"

	"github.com/imdhq/imd/pkg/im"
	"github.com/imdhq/imd/pkg/store"
	"github.com/imdhq/imd/pkg/store/rules"
	"github.com/imdhq/imd/sdk/go/gen/clientv1"
)

// tokens are this driver's. They count commits.
const tokens rules.Tokens = 1

// Sync is store.Reader's; see SyncMany.
func (s *Store) Sync(ctx context.Context, q store.SyncQuery) (store.SyncPage, error) {
	pages, err := s.SyncMany(ctx, []store.SyncQuery{q})
	if err != nil {
		return store.SyncPage{}, err
	}
	return pages[0], nil
}

// SyncMany is store.Reader's. A walk lists, in order of conversation ids, what
// changed after the commit its token names. What changes while it goes on has a
// later commit than the one it began at, and so comes in the next walk, if not in
// this one already. All queries see the same snapshot. Where the users stand is one
// statement, and what is new in all conversations that moved a little is another.
func (s *Store) SyncMany(ctx context.Context, qs []store.SyncQuery) ([]store.SyncPage, error) {
	const op = "store.Sync"
	if len(qs) > store.MaxSyncs {
		return nil, refuse(clientv1.Reason_REASON_BAD_REQUEST, op, "more than %d queries", store.MaxSyncs)
	}
	pages := make([]store.SyncPage, len(qs))
	commits := s.w.committed.Load() // or a few more: what changed since comes twice
	err := s.read(ctx, func(c *conn) (err error) {
		walks := make([]*walk, len(qs))
		for i := range qs {
			walks[i] = begin(s.w.epoch, commits, qs[i])
		}
		if err := c.stand(ctx, walks); err != nil {
			return err
		}
		if err := c.readAhead(ctx, walks); err != nil {
			return err
		}
		for i, w := range walks {
			if pages[i], err = c.walk(ctx, w); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return nil, fault(op, err)
	}
	for i := range pages {
		s.late(ctx, &pages[i])
	}
	return pages, nil
}

// listed is a conversation of a walk.
type listed struct {
	stay
	other   *rules.Member // direct: the other user
	changed bool          // after the token, and not only asked for by a cursor
	near    nearby        // if it was read ahead; nil = it was not
}

// walk is a query on its way.
type walk struct {
	q    store.SyncQuery
	t    rules.Token
	list []*listed // what goes on the page
	more bool      // there is more than that
	sum  uint64    // over the heads of the user; 0 = not wanted
}

// begin makes the walk of a query. commits is the number of a commit that the snapshot
// has.
func begin(epoch string, commits int64, q store.SyncQuery) *walk {
	q.Limit = min(max(q.Limit, 1), store.MaxSyncPage)
	t, ok := tokens.Parse(q.Token)
	if void := !ok || t.Epoch != epoch || t.Since > commits || t.Upto > commits; void {
		t = rules.Token{Epoch: epoch}
		if q.Token != "" {
			q.Cursors = nil // they are of the other history too
		}
	}
	if t.Upto == 0 {
		t.Upto = commits
	}
	return &walk{q: q, t: t}
}

// take takes what was read of where the user stands.
func (w *walk) take(list []*listed) {
	w.list = wanted(list, w.q, w.t)
	if w.more = len(w.list) > w.q.Limit; w.more {
		w.list = w.list[:w.q.Limit]
	}
}

// reads is how many conversations a walk reads: more than fit on a page even if all
// cursors are of conversations that have not moved.
func (w *walk) reads() int { return w.q.Limit + len(w.q.Cursors) + 1 }

// summed reports whether the walk wants the sum over all heads: only where it begins.
func (w *walk) summed() bool { return w.q.Digest && w.t.After == "" }

// walk returns the page that a walk is about.
func (c *conn) walk(ctx context.Context, w *walk) (store.SyncPage, error) {
	q, t := w.q, w.t
	p := store.SyncPage{Full: t.Since == 0, More: w.more}
	room := q.MaxBytes
	for _, l := range w.list {
		state, err := c.state(ctx, l, q, &room)
		if err != nil {
			return store.SyncPage{}, err
		}
		p.States = append(p.States, state)
		p.TokenAfter = append(p.TokenAfter, tokens.Format(rules.Token{Epoch: t.Epoch, Since: t.Since, Upto: t.Upto, After: l.ID}))
	}
	if p.More {
		p.Token = p.TokenAfter[len(p.TokenAfter)-1]
		return p, nil
	}
	p.Token, p.Digest = tokens.Format(rules.Token{Epoch: t.Epoch, Since: t.Upto}), w.sum
	if n := len(p.TokenAfter); n > 0 {
		p.TokenAfter[n-1] = p.Token
	}
	return p, nil
}

// The next conversations of a walk: those that have changed, and those that a
// cursor asks about, each with where the other user of a direct one stands. Where
// the sum over all heads of the user is wanted too, it is the last column of the
// first row, the only one that names no user.
const (
	sqlStays       = sqlStaysBegin + `)` + sqlStaysEnd
	sqlStaysAsked  = sqlStaysBegin + ` OR m.conversation_id IN (SELECT value FROM json_each(?5)))` + sqlStaysEnd
	sqlSummed      = sqlSum + sqlStays + `)`
	sqlSummedAsked = sqlSum + sqlStaysAsked + `)`

	sqlSum = `SELECT NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL,
    NULL, NULL, NULL, NULL, NULL, NULL, NULL, ` + digestFunction + `(m.conversation_id, c.head)` + stayTables + `WHERE m.user_id = ?1 AND m.role > 0
  UNION ALL SELECT * FROM (`
	sqlStaysBegin = `SELECT ` + stayColumns + peerColumns + `, m.version > ?3 OR m.role > 0 AND c.version > ?3` + stayTables + peerTable + `
  WHERE m.user_id = ?1 AND m.conversation_id > ?2 AND (m.version > ?3 OR m.role > 0 AND c.version > ?3`
	sqlStaysEnd = ` ORDER BY m.conversation_id LIMIT ?4`

	peerColumns = `, p.role, p.start_seq, p.end_seq, p.earlier, p.cleared, p.delivered, p.read`
	peerTable   = `
  LEFT JOIN member p ON c.kind = 1 AND p.conversation_id = m.conversation_id
    AND p.user_id = CASE WHEN m.user_id = c.user_a THEN c.user_b ELSE c.user_a END`
)

// stays reads the next conversations of one walk, and the sum over all heads if it begins
// here and wants it.
func (c *conn) stays(ctx context.Context, w *walk) (list []*listed, err error) {
	args := []any{string(w.q.User), string(w.t.After), w.t.Since, w.reads()}
	if len(w.q.Cursors) > 0 {
		args = append(args, jsonList(w.q.Cursors))
	}
	err = c.each(ctx, staysOf(len(w.q.Cursors) > 0, w.summed()), args, func(scan func(...any) error) error {
		row := cellsPool.Get().(*cells)
		defer row.giveBack()
		if err := scan(row.places(listedCells)...); err != nil {
			return err
		}
		if row.list[0] == nil {
			w.sum = uint64(row.int(listedCells - 1))
			return nil
		}
		l, err := listedOf(row)
		list = append(list, l)
		return err
	})
	return list, err
}

// staysOf is the query of a walk.
func staysOf(asked, summed bool) string {
	switch {
	case asked && summed:
		return sqlSummedAsked
	case asked:
		return sqlStaysAsked
	case summed:
		return sqlSummed
	}
	return sqlStays
}

// listedCells is how many columns sqlStays has.
const listedCells = stayCells + 8

// listedOf takes a row of sqlStays.
func listedOf(c *cells) (*listed, error) {
	const peer, all = stayCells, listedCells
	l := &listed{changed: c.int(all-1) != 0}
	if err := l.from(c); err != nil || c.list[peer] == nil { // there is no other user
		return l, err
	}
	var err error
	l.other = &rules.Member{Role: clientv1.Role(c.int(peer)), Delivered: im.Seq(c.int(peer + 5)), Read: im.Seq(c.int(peer + 6))}
	l.other.View, err = viewOf(c, peer+1)
	return l, err
}

// jsonList is a JSON array of the keys of m.
func jsonList[K ~string, V any](m map[K]V) string {
	list := make([]string, 0, len(m))
	for k := range m {
		list = append(list, string(k))
	}
	b, _ := json.Marshal(list) // a list of strings always encodes
	return string(b)
}

// wanted drops what only a cursor asked about and that is not above it, and adds
// what cursors name and the user never was in. A list that is cut off says
// nothing about what comes behind it.
func wanted(list []*listed, q store.SyncQuery, t rules.Token) []*listed {
	open := make(map[im.ConversationID]bool, len(q.Cursors))
	for id := range q.Cursors {
		if id > t.After && (len(list) <= q.Limit+len(q.Cursors) || id < list[len(list)-1].ID) {
			open[id] = true
		}
	}
	keep := list[:0]
	for _, l := range list {
		delete(open, l.ID)
		if l.changed || !l.Present() || l.View.Head() > q.Cursors[l.ID] {
			keep = append(keep, l)
		}
	}
	if len(open) == 0 {
		return keep
	}
	for id := range open { // never was a member, or no such conversation
		l := &listed{}
		l.ID, l.User = id, q.User
		keep = append(keep, l)
	}
	slices.SortFunc(keep, func(a, b *listed) int { return strings.Compare(string(a.ID), string(b.ID)) })
	return keep
}

// state is what the user of l sees of its conversation. room is what is left for
// contents.
func (c *conn) state(ctx context.Context, l *listed, q store.SyncQuery, room *int) (store.ConversationState, error) {
	if l.num == 0 {
		return store.ConversationState{Conversation: l.ID}, nil
	}
	out := store.ConversationState{
		Conversation: l.ID, Kind: l.Kind, Name: l.LeftName, Peer: l.peer(l.User), Role: l.Role,
		Start: l.View.Start(), Head: l.View.Head(), Read: l.Read, Delivered: l.Here(),
	}
	if l.Present() { // who has left learns nothing of what came after
		out.Name, out.Closed, out.Members = l.Name, l.Closed, l.Count
	}
	if l.other != nil {
		l.other.User, l.other.View.Log = out.Peer, l.View.Log
		l.other.View.Keep(l.kept)
		m := l.other.Public()
		out.PeerMember = &m
	}
	page, asked := pageQuery(l, q, *room)
	near, err := c.near(ctx, l, page, asked)
	switch {
	case err != nil:
		return out, err
	case near != nil:
		out.Unread, out.Last = near.unread(l), near.last()
	default:
		if out.Unread, err = c.unread(&l.stay); err != nil {
			return out, err
		}
	}
	if out.Last == nil && !near.whole(l) {
		if out.Last, err = c.last(ctx, &l.stay); err != nil {
			return out, err
		}
	}
	if !asked {
		return out, nil
	}
	p, err := c.pageOf(ctx, l, page, near)
	for i := range p.Entries {
		*room -= len(p.Entries[i].Content) + len(p.Entries[i].Change)
	}
	if err == nil && (q.MaxBytes == 0 || *room >= 0) {
		out.Page = &p
	}
	return out, err
}

// pageQuery is what is to be read for the page of a state; false = nothing: it
// was not asked for, or there is no room.
func pageQuery(l *listed, q store.SyncQuery, room int) (store.HistoryQuery, bool) {
	if q.Entries == 0 || q.MaxBytes > 0 && room <= 0 {
		return store.HistoryQuery{}, false
	}
	have, known := q.Cursors[l.ID]
	return store.HistoryQuery{After: max(have, 0), Limit: min(q.Entries, store.MaxPage), Backward: !known, MaxBytes: max(room, 0)}, true
}

// pageOf makes the page of a state, of near entries if these are all of it.
func (c *conn) pageOf(ctx context.Context, l *listed, q store.HistoryQuery, near nearby) (store.HistoryPage, error) {
	if near != nil {
		return near.page(l, q), nil
	}
	return c.page(ctx, l.num, l.View, q)
}

const sqlHeads = `SELECT m.user_id, m.conversation_id, CASE WHEN m.end_seq > 0 THEN m.end_seq ELSE c.head END
  FROM json_each(?) j JOIN member m ON m.user_id = j.value JOIN conversation c ON c.num = m.conv
  WHERE (m.role > 0 AND c.head_version > ?) OR (m.role = 0 AND m.version > ?)`

// Heads is store.Reader's. A version of another history is void: it begins
// anew, since every client does the same. The overlap that the port allows is
// not needed with one writer.
func (s *Store) Heads(ctx context.Context, users []im.UserID, version string) ([]store.UserHead, string, error) {
	const op = "store.Heads"
	if len(users) > store.MaxHeadUsers {
		return nil, "", refuse(clientv1.Reason_REASON_BAD_REQUEST, op, "more than %d users", store.MaxHeadUsers)
	}
	var out []store.UserHead
	commits := s.w.committed.Load()
	next := tokens.Format(rules.Token{Epoch: s.w.epoch, Since: commits})
	t, ok := tokens.Parse(version)
	if !ok || t.Epoch != s.w.epoch || t.Since >= commits || len(users) == 0 {
		return nil, next, nil
	}
	err := s.read(ctx, func(c *conn) error {
		set := make(map[im.UserID]bool, len(users))
		for _, u := range users {
			set[u] = true
		}
		return c.each(ctx, sqlHeads, []any{jsonList(set), t.Since, t.Since}, func(scan func(...any) error) error {
			var h store.UserHead
			err := scan(&h.User, &h.Conversation, &h.Seq)
			out = append(out, h)
			return err
		})
	})
	return out, next, fault(op, err)
}

const sqlMembers = `SELECT ` + stayColumns + stayTables + `WHERE m.conv = ? AND m.role > 0 AND m.user_id > ?
  ORDER BY m.user_id LIMIT ?`

const sqlGroup = `SELECT num, kind, members, member_version FROM conversation WHERE id = ?`

// Members is store.Membership's.
func (s *Store) Members(ctx context.Context, conv im.ConversationID, reader, after im.UserID, limit int) (store.MemberPage, error) {
	const op = "store.Members"
	limit = min(max(limit, 1), store.MaxMemberPage)
	var p store.MemberPage
	err := s.read(ctx, func(c *conn) error {
		if reader != "" {
			if st, err := c.stayOf(op, conv, reader); err != nil {
				return err
			} else if !st.Present() {
				return rules.NotMember(op, conv)
			}
		}
		var num int64
		err := c.row(sqlGroup, []any{string(conv)}, &num, &p.Kind, &p.Count, &p.MemberVersion)
		if errors.Is(err, sql.ErrNoRows) {
			return rules.NotMember(op, conv)
		}
		if err != nil {
			return err
		}
		p.End = true
		return c.each(ctx, sqlMembers, []any{num, string(after), limit + 1}, func(scan func(...any) error) error {
			if len(p.Members) == limit {
				p.End = false
				return nil
			}
			var st stay
			if err := scanStay(scan, &st); err != nil {
				return err
			}
			p.Members = append(p.Members, st.Public())
			return nil
		})
	})
	return p, fault(op, err)
}

// Starts is store.Membership's.
func (s *Store) Starts(ctx context.Context, conv im.ConversationID, users []im.UserID) (map[im.UserID]im.Seq, error) {
	const op = "store.Starts"
	if len(users) > store.MaxMemberPage {
		return nil, refuse(clientv1.Reason_REASON_BAD_REQUEST, op, "more than %d users", store.MaxMemberPage)
	}
	out := make(map[im.UserID]im.Seq, len(users))
	err := s.read(ctx, func(c *conn) error {
		for _, u := range users {
			if err := ctx.Err(); err != nil {
				return err
			}
			st, err := c.stayOf(op, conv, u)
			switch {
			case im.ReasonOf(err) == clientv1.Reason_REASON_NOT_MEMBER:
			case err != nil:
				return err
			case st.Present():
				out[u] = st.View.Since()
			}
		}
		return nil
	})
	return out, fault(op, err)
}

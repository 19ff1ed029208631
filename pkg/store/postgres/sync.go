package postgres

import (
	"context"
	"errors"
	"maps"
	"math"
	"math/big"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5"

	"github.com/imdhq/imd/pkg/im"
	"github.com/imdhq/imd/pkg/store"
	"github.com/imdhq/imd/pkg/store/rules"
	"github.com/imdhq/imd/sdk/go/gen/clientv1"
)

// tokens are this driver's. They count transactions: Upto is the oldest one that
// was under way when the walk began.
const tokens rules.Tokens = 2

// Sync is store.Reader's; see SyncMany.
func (s *Store) Sync(ctx context.Context, q store.SyncQuery) (store.SyncPage, error) {
	pages, err := s.SyncMany(ctx, []store.SyncQuery{q})
	if err != nil {
		return store.SyncPage{}, err
	}
	return pages[0], nil
}

// SyncMany is store.Reader's. A walk lists, in order of conversation ids, what
// transactions that its token does not cover have changed. All walks together take
// one statement if nothing has, and else two: where the users stand, and what is to
// be seen there; entries are a third one. What changes while a walk goes on is of a
// transaction that was under way when it began, or of a later one, and so comes in
// the next walk, if not in this one already.
func (s *Store) SyncMany(ctx context.Context, qs []store.SyncQuery) ([]store.SyncPage, error) {
	const op = "store.Sync"
	if len(qs) > store.MaxSyncs {
		return nil, refuse(clientv1.Reason_REASON_BAD_REQUEST, op, "more than %d queries", store.MaxSyncs)
	}
	if len(qs) == 0 {
		return nil, nil
	}
	epoch := s.DataEpoch()
	pages, err := read(ctx, s, func(ctx context.Context, c *pgx.Conn) ([]store.SyncPage, error) {
		walks := make([]*walk, len(qs))
		for i := range qs {
			walks[i] = newWalk(epoch, i, qs[i])
		}
		if err := beginWalks(ctx, c, walks); err != nil {
			return nil, err
		}
		return finishWalks(ctx, c, walks)
	})
	if err != nil {
		return nil, fault(op, err)
	}
	for i := range pages {
		s.late(ctx, &pages[i])
	}
	return pages, nil
}

// sqlStays lists the next conversations of walks: those that have changed, and
// those that a cursor asks about ($5 and $6: of which walk, and which). i says
// which walk a row is of; sum is over the heads of its user, if the walk wants that
// ($7), and read in vain if the list goes on behind its page. The last column is one
// that changed.
const sqlStays = `SELECT h.x, w.i, d.sum, s.* FROM (SELECT imd_horizon() AS x) h
CROSS JOIN unnest($1::text[], $2::text[], $3::int8[], $4::int8[], $7::bool[]) WITH ORDINALITY AS w (who, after, since, most, sums, i)
LEFT JOIN LATERAL (
  SELECT sum(('x' || encode(substr(sha256(convert_to(m.conversation_id || ':' || c.head, 'UTF8')), 1, 8), 'hex'))::bit(64)::int8)::text AS sum` + stayTables + `
  WHERE w.sums AND m.user_id = w.who AND m.role > 0) d ON true
LEFT JOIN LATERAL (
  SELECT ` + stayColumns + `, p.role, p.start_seq, p.end_seq, p.earlier, p.cleared, p.delivered, p.read,
    coalesce(m.version >= w.since OR m.role > 0 AND (c.version >= w.since OR p.version >= w.since), false) AS changed` + stayTables + `
  LEFT JOIN LATERAL (SELECT * FROM member o WHERE c.kind = 1 AND o.conversation_id = m.conversation_id
    AND o.user_id = CASE WHEN m.user_id = c.user_a THEN c.user_b ELSE c.user_a END) p ON true
  WHERE m.user_id = w.who AND m.conversation_id > w.after
    AND (m.version >= w.since OR m.role > 0 AND (c.version >= w.since OR p.version >= w.since)
      OR (w.i, m.conversation_id) IN (SELECT a.i, a.id FROM unnest($5::int8[], $6::text[]) AS a (i, id)))
  ORDER BY m.conversation_id LIMIT w.most) s ON true`

// listed is a conversation of a walk.
type listed struct {
	stay
	other   *rules.Member // direct: the other user
	changed bool
	walk    *walk
}

// peerRow takes the other member, which may not be there.
type peerRow struct {
	role                                 *clientv1.Role
	start, end, cleared, delivered, read *int64
	earlier                              []byte
}

// walk is one query on its way.
type walk struct {
	number int32 // among those of the call
	q      store.SyncQuery
	t      rules.Token
	asked  []im.ConversationID // by cursors, sorted
	list   []*listed           // what goes on the page
	more   bool                // there is more than that
	bytes  int                 // of the entries read for its pages
	full   bool                // these are as many as may be
	digest uint64              // of all heads; 0 = not wanted
}

func newWalk(epoch string, number int, q store.SyncQuery) *walk {
	q.Limit = min(max(q.Limit, 1), store.MaxSyncPage)
	t, ok := tokens.Parse(q.Token)
	if !ok || t.Epoch != epoch {
		t = rules.Token{Epoch: epoch}
		if q.Token != "" {
			q.Cursors = nil // they are of the other history too
		}
	}
	w := &walk{number: int32(number), q: q, t: t}
	w.asked = slices.DeleteFunc(slices.Sorted(maps.Keys(q.Cursors)), func(id im.ConversationID) bool { return id <= t.After })
	return w
}

// beginWalks reads where the users stand.
func beginWalks(ctx context.Context, c *pgx.Conn, walks []*walk) error {
	horizon, err := stays(ctx, c, walks)
	if err != nil {
		return err
	}
	var again []*walk
	for _, w := range walks {
		if w.t.Since > horizon || w.t.Upto > horizon { // of another history
			w.t, w.q.Cursors, w.asked, w.list = rules.Token{Epoch: w.t.Epoch}, nil, nil, nil
			again = append(again, w)
		}
	}
	if len(again) > 0 {
		if _, err := stays(ctx, c, again); err != nil {
			return err
		}
	}
	for _, w := range walks {
		if w.t.Upto == 0 {
			w.t.Upto = horizon
		}
		// A list that is cut off says nothing about what comes behind it.
		full := len(w.list) > w.q.Limit+len(w.q.Cursors)
		w.list = w.wanted(full)
		if w.more = len(w.list) > w.q.Limit; w.more {
			w.list = w.list[:w.q.Limit]
		}
	}
	return nil
}

// finishWalks reads what is to be seen and makes the pages.
func finishWalks(ctx context.Context, c *pgx.Conn, walks []*walk) ([]store.SyncPage, error) {
	var list []*listed
	for _, w := range walks {
		list = append(list, w.list...)
	}
	all, err := states(ctx, c, list)
	if err != nil {
		return nil, err
	}
	if err := addPages(ctx, c, list, all); err != nil {
		return nil, err
	}
	out := make([]store.SyncPage, len(walks))
	for i, w := range walks {
		n := len(w.list)
		out[i] = w.page(all[:n:n])
		all = all[n:]
	}
	return out, nil
}

// page is the page of a walk with these states.
func (w *walk) page(states []store.ConversationState) store.SyncPage {
	t := w.t
	p := store.SyncPage{More: w.more, Full: t.Since == 0}
	if len(states) > 0 {
		p.States = states
	}
	for _, l := range w.list {
		p.TokenAfter = append(p.TokenAfter, tokens.Format(rules.Token{Epoch: t.Epoch, Since: t.Since, Upto: t.Upto, After: l.id}))
	}
	if p.More {
		p.Token = p.TokenAfter[len(p.TokenAfter)-1]
		return p
	}
	p.Token, p.Digest = tokens.Format(rules.Token{Epoch: t.Epoch, Since: t.Upto}), w.digest
	if n := len(p.TokenAfter); n > 0 {
		p.TokenAfter[n-1] = p.Token
	}
	return p
}

// stays reads the next conversations of the walks, more than fit on a page even
// if all cursors are of conversations that have not moved.
func stays(ctx context.Context, c *pgx.Conn, walks []*walk) (horizon int64, err error) {
	var who, after, asked []string
	var since, most, of []int64
	var sums []bool
	for i, w := range walks {
		who, after, since = append(who, string(w.q.User)), append(after, string(w.t.After)), append(since, w.t.Since)
		most = append(most, int64(w.q.Limit+len(w.q.Cursors)+1))
		sums = append(sums, w.q.Digest && w.t.After == "")
		for _, id := range w.asked {
			of, asked = append(of, int64(i+1)), append(asked, string(id))
		}
	}
	rows, err := c.Query(ctx, sqlStays, who, after, since, most, of, asked, sums)
	if err != nil {
		return 0, err
	}
	defer rows.Close()
	for rows.Next() {
		var i int64
		var sum *string
		l, err := scanListed(rows, &horizon, &i, &sum)
		if err != nil {
			return 0, err
		}
		w := walks[i-1]
		if sum != nil {
			w.digest = modulo(*sum)
		}
		if l != nil {
			l.walk = w
			w.list = append(w.list, l)
		}
	}
	rows.Close()
	return horizon, rows.Err()
}

// modulo is a sum of numbers with signs, in decimal, modulo 2^64.
func modulo(sum string) uint64 {
	n, ok := new(big.Int).SetString(sum, 10)
	if !ok {
		return 0
	}
	return n.And(n, new(big.Int).SetUint64(math.MaxUint64)).Uint64()
}

// scanListed reads a row of sqlStays; nil if it has only what is first: the horizon,
// the walk and its sum.
func scanListed(rows pgx.Rows, first ...any) (*listed, error) {
	if n := len(first); rows.RawValues()[n] == nil {
		return nil, rows.Scan(append(first, make([]any, len(rows.RawValues())-n)...)...)
	}
	l := &listed{}
	var p peerRow
	if err := scanStay(prefixed{rows, first}, &l.stay, &p.role, &p.start, &p.end, &p.earlier, &p.cleared, &p.delivered, &p.read, &l.changed); err != nil {
		return nil, err
	}
	if p.role == nil {
		return l, nil
	}
	l.other = &rules.Member{User: l.peer(), Role: *p.role, Delivered: im.Seq(*p.delivered), Read: im.Seq(*p.read)}
	v := &l.other.View
	v.Last, v.Cleared = store.Stretch{Start: im.Seq(*p.start), End: im.Seq(*p.end)}, im.Seq(*p.cleared)
	var err error
	v.Earlier, err = rules.DecodeStretches(p.earlier)
	return l, err
}

// prefixed reads more columns in front.
type prefixed struct {
	scanner
	first []any
}

// Scan is pgx.Row's.
func (p prefixed) Scan(dest ...any) error { return p.scanner.Scan(append(p.first, dest...)...) }

// wanted drops what only a cursor asked about and that is not above it, and adds
// what cursors name and the user never was in. full: the list is cut off.
func (w *walk) wanted(full bool) []*listed {
	last := im.ConversationID("")
	known := make(map[im.ConversationID]bool, len(w.list))
	keep := w.list[:0]
	for _, l := range w.list {
		known[l.id], last = true, l.id
		if l.changed || !l.Present() || l.View.Head() > w.q.Cursors[l.id] {
			keep = append(keep, l)
		}
	}
	for _, id := range w.asked {
		if !known[id] && (!full || id < last) {
			keep = append(keep, &listed{stay: stay{id: id, Member: rules.Member{User: w.q.User}}, walk: w})
		}
	}
	slices.SortFunc(keep, func(a, b *listed) int { return strings.Compare(string(a.id), string(b.id)) })
	return keep
}

// sqlSeen counts and finds for many conversations at once what is to be seen in
// their stretches: i says which conversation a stretch is of, least what of it is
// unread.
const sqlSeen = `SELECT s.i, u.n, ` + entryColumns + `
FROM unnest($1::int4[], $2::int8[], $3::int8[], $4::int8[], $5::int8[], $6::text[]) AS s (i, conv, low, high, least, who)
LEFT JOIN LATERAL (SELECT count(*) AS n FROM (SELECT 1 FROM (
    SELECT x.countable, x.sender FROM entry x WHERE x.conv = s.conv AND x.seq > s.least AND x.seq <= s.high ORDER BY x.seq DESC LIMIT $9
  ) z WHERE z.countable AND z.sender <> s.who LIMIT $7) y) u ON true
LEFT JOIN LATERAL (SELECT * FROM (
    SELECT * FROM entry x WHERE $8 AND x.conv = s.conv AND x.seq > s.low AND x.seq <= s.high ORDER BY x.seq DESC LIMIT $9
  ) z WHERE z.kind = 1 ORDER BY z.seq DESC LIMIT 1) e ON true`

// seenMost is how many of the newest entries of a stretch are looked at. One who
// writes much and never reads has so many that count for nothing.
const seenMost = 10_000

// sight is what a user sees in one conversation.
type sight struct {
	unread int
	last   *im.Entry // newest message
}

// seen reads what the users of list see. The newest messages are only read if
// lasts is set.
func seen(ctx context.Context, c *pgx.Conn, list []*stay, lasts bool) ([]sight, error) {
	out := make([]sight, len(list))
	var i []int32
	var conv, low, high, least []int64
	var who []string
	for n, st := range list {
		for _, sp := range st.View.Within(0, 0) {
			if !lasts && sp.End <= st.Read {
				continue
			}
			i, conv, low, high = append(i, int32(n)), append(conv, st.num), append(low, int64(sp.Start)), append(high, int64(sp.End))
			least, who = append(least, int64(max(sp.Start, st.Read))), append(who, string(st.User))
		}
	}
	if len(i) == 0 {
		return out, nil
	}
	rows, err := c.Query(ctx, sqlSeen, i, conv, low, high, least, who, store.MaxUnread, lasts, seenMost)
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	for rows.Next() {
		var n int32
		var unread int
		var r entryRow
		if err := rows.Scan(append([]any{&n, &unread}, r.into()...)...); err != nil {
			return nil, err
		}
		s := &out[n]
		s.unread = min(s.unread+unread, store.MaxUnread)
		if e, ok := r.entry(); ok && (s.last == nil || s.last.Seq < e.Seq) {
			s.last = &e
		}
	}
	rows.Close()
	return out, rows.Err()
}

// states are what the user sees of the conversations of list.
func states(ctx context.Context, c *pgx.Conn, list []*listed) ([]store.ConversationState, error) {
	if len(list) == 0 {
		return nil, nil
	}
	plain := make([]*stay, len(list))
	for i, l := range list {
		plain[i] = &l.stay
	}
	sights, err := seen(ctx, c, plain, true)
	if err != nil {
		return nil, err
	}
	out := make([]store.ConversationState, len(list))
	for i, l := range list {
		out[i] = l.state(sights[i])
	}
	return out, nil
}

// state is what the user sees of the conversation.
func (l *listed) state(s sight) store.ConversationState {
	if l.num == 0 {
		return store.ConversationState{Conversation: l.id}
	}
	out := store.ConversationState{
		Conversation: l.id, Kind: l.kind, Name: l.LeftName, Peer: l.peer(), Role: l.Role,
		Start: l.View.Start(), Head: l.View.Head(), Read: l.Read, Delivered: l.Here(), Unread: s.unread, Last: s.last,
	}
	if l.Present() { // who has left learns nothing of what came after
		out.Name, out.Closed, out.Members = l.name, l.closed, l.count
	}
	if l.other != nil {
		l.other.View.Log = l.View.Log
		l.other.View.Keep(l.kept)
		m := l.other.Public()
		out.PeerMember = &m
	}
	return out
}

const sqlHeads = `SELECT h.x, s.* FROM (SELECT imd_horizon() AS x) h LEFT JOIN LATERAL (
  SELECT m.user_id, m.conversation_id, CASE WHEN m.end_seq > 0 THEN m.end_seq ELSE c.head END AS seq
  FROM unnest($1::text[]) AS u (id) JOIN member m ON m.user_id = u.id JOIN conversation c ON c.num = m.conv
  WHERE m.role > 0 AND c.head_version >= $2 OR m.role = 0 AND m.version >= $2) s ON h.x > $2`

// Heads is store.Reader's. A version of another history is void: it begins
// anew, since every client does the same.
func (s *Store) Heads(ctx context.Context, users []im.UserID, version string) ([]store.UserHead, string, error) {
	const op = "store.Heads"
	if len(users) > store.MaxHeadUsers {
		return nil, "", refuse(clientv1.Reason_REASON_BAD_REQUEST, op, "more than %d users", store.MaxHeadUsers)
	}
	epoch := s.DataEpoch()
	t, ok := tokens.Parse(version)
	if void := !ok || t.Epoch != epoch; void {
		t, users = rules.Token{}, nil
	}
	var horizon int64
	out, err := read(ctx, s, func(ctx context.Context, c *pgx.Conn) ([]store.UserHead, error) {
		rows, err := c.Query(ctx, sqlHeads, rules.Texts(rules.Distinct(users)), t.Since)
		if err != nil {
			return nil, err
		}
		return scanHeads(rows, &horizon)
	})
	if err != nil {
		return nil, "", fault(op, err)
	}
	return out, tokens.Format(rules.Token{Epoch: epoch, Since: horizon}), nil
}

func scanHeads(rows pgx.Rows, horizon *int64) ([]store.UserHead, error) {
	defer rows.Close()
	var out []store.UserHead
	for rows.Next() {
		var user, conv *string
		var seq *int64
		if err := rows.Scan(horizon, &user, &conv, &seq); err != nil {
			return nil, err
		}
		if user != nil {
			out = append(out, store.UserHead{User: im.UserID(*user), Conversation: im.ConversationID(*conv), Seq: im.Seq(*seq)})
		}
	}
	rows.Close()
	return out, rows.Err()
}

const sqlMembers = `SELECT ` + stayColumns + stayTables + `WHERE m.conv = $1 AND m.role > 0 AND m.user_id > $2
  ORDER BY m.user_id LIMIT $3`

const sqlGroup = `SELECT num, kind, members, member_version FROM conversation WHERE id = $1`

// Members is store.Membership's.
func (s *Store) Members(ctx context.Context, conv im.ConversationID, reader, after im.UserID, limit int) (store.MemberPage, error) {
	const op = "store.Members"
	limit = min(max(limit, 1), store.MaxMemberPage)
	p, err := read(ctx, s, func(ctx context.Context, c *pgx.Conn) (store.MemberPage, error) {
		if reader != "" {
			if st, err := stayOf(ctx, c, op, conv, reader); err != nil {
				return store.MemberPage{}, err
			} else if !st.Present() {
				return store.MemberPage{}, rules.NotMember(op, conv)
			}
		}
		return memberPage(ctx, c, op, conv, after, limit)
	})
	return p, fault(op, err)
}

// memberPage reads a page of present members.
func memberPage(ctx context.Context, c *pgx.Conn, op string, conv im.ConversationID, after im.UserID, limit int) (p store.MemberPage, err error) {
	var num int64
	err = c.QueryRow(ctx, sqlGroup, string(conv)).Scan(&num, &p.Kind, &p.Count, &p.MemberVersion)
	if errors.Is(err, pgx.ErrNoRows) {
		err = rules.NotMember(op, conv)
	}
	if err != nil {
		return p, err
	}
	rows, err := c.Query(ctx, sqlMembers, num, string(after), limit+1)
	if err != nil {
		return p, err
	}
	defer rows.Close()
	p.End = true
	for rows.Next() {
		if len(p.Members) == limit {
			p.End = false
			break
		}
		var st stay
		if err := scanStay(rows, &st); err != nil {
			return p, err
		}
		p.Members = append(p.Members, st.Public())
	}
	rows.Close()
	return p, rows.Err()
}

const sqlStarts = `SELECT ` + stayColumns + stayTables + `WHERE m.user_id = ANY ($2) AND m.conversation_id = $1 AND m.role > 0`

// Starts is store.Membership's.
func (s *Store) Starts(ctx context.Context, conv im.ConversationID, users []im.UserID) (map[im.UserID]im.Seq, error) {
	if len(users) > store.MaxMemberPage {
		return nil, refuse(clientv1.Reason_REASON_BAD_REQUEST, "store.Starts", "more than %d users", store.MaxMemberPage)
	}
	out, err := read(ctx, s, func(ctx context.Context, c *pgx.Conn) (map[im.UserID]im.Seq, error) {
		rows, err := c.Query(ctx, sqlStarts, string(conv), users)
		if err != nil {
			return nil, err
		}
		defer rows.Close()
		out := make(map[im.UserID]im.Seq, len(users))
		for rows.Next() {
			var st stay
			if err := scanStay(rows, &st); err != nil {
				return nil, err
			}
			out[st.User] = st.View.Since()
		}
		rows.Close()
		return out, rows.Err()
	})
	return out, fault("store.Starts", err)
}

package sqlite

import (
	"context"
	"database/sql"
	"encoding/hex"
	"errors"
	"slices"
	"sync"
	"time"

	"github.com/imdhq/imd/pkg/im"
	"github.com/imdhq/imd/pkg/store"
	"github.com/imdhq/imd/pkg/store/rules"
	"github.com/imdhq/imd/sdk/go/gen/clientv1"
)

const entryColumns = `seq, prev_seq, kind, countable, sender, message_id, client_message_id, server_time_ms, target_seq,
  changed_seq, change, content`

// scanEntry reads entryColumns.
func scanEntry(scan func(...any) error, e *im.Entry) error {
	c := cellsPool.Get().(*cells)
	defer c.giveBack()
	if err := scan(c.places(entryCells)...); err != nil {
		return err
	}
	c.entry(e)
	return nil
}

// scanNear reads a row of sqlNear; i says which conversation it is of.
func scanNear(scan func(...any) error, e *im.Entry) (i int64, err error) {
	c := cellsPool.Get().(*cells)
	defer c.giveBack()
	if err := scan(c.places(entryCells + 1)...); err != nil {
		return 0, err
	}
	c.entry(e)
	return c.int(entryCells), nil
}

// entry takes entryColumns, the first cells of a row.
func (c *cells) entry(e *im.Entry) {
	*e = im.Entry{
		Seq: im.Seq(c.int(0)), PrevSeq: im.Seq(c.int(1)), Kind: clientv1.EntryKind(c.int(2)), Countable: c.int(3) != 0, Sender: im.UserID(c.text(4)),
		MessageID: im.MessageID(c.int(5)), ClientMessageID: unkey(c.list[6]), ServerTime: time.UnixMilli(c.int(7)), TargetSeq: im.Seq(c.int(8)),
		ChangedSeq: im.Seq(c.int(9)), Change: c.bytes(10), Content: c.bytes(11),
	}
}

// entryCells is how many columns entryColumns has.
const entryCells = 12

// cells are the values of a row as the driver gives them. Taking them apart here
// costs a fraction of having them converted one by one.
type cells struct {
	list [32]any
	to   [32]any
}

// cellsPool has cells that were given back: a row has much less in it than cells
// have room for.
var cellsPool = sync.Pool{New: func() any {
	c := &cells{}
	for i := range c.list {
		c.to[i] = &c.list[i]
	}
	return c
}}

// giveBack gives the cells back. What was taken out of them stays valid.
func (c *cells) giveBack() {
	clear(c.list[:])
	cellsPool.Put(c)
}

// places are where the first n values go.
func (c *cells) places(n int) []any { return c.to[:n] }

// int is a number; NULL is 0.
func (c *cells) int(i int) int64 {
	n, _ := c.list[i].(int64)
	return n
}

// text is a text; NULL is "".
func (c *cells) text(i int) string {
	s, _ := c.list[i].(string)
	return s
}

// bytes is a blob; NULL is nil.
func (c *cells) bytes(i int) []byte {
	b, _ := c.list[i].([]byte)
	return b
}

// uuidDashes are where a UUID has dashes.
var uuidDashes = [...]int{8, 13, 18, 23}

// key is how a client message id is stored: the 16 bytes of a UUID in its
// canonical form, else the text. Different ids have different keys.
func key(id im.ClientMessageID) any {
	s := string(id)
	if len(s) != 36 {
		return s
	}
	digits := make([]byte, 0, 32)
	for i := range len(s) {
		switch c := s[i]; {
		case slices.Contains(uuidDashes[:], i):
			if c != '-' {
				return s
			}
		case c >= 'A' && c <= 'F': // not canonical
			return s
		default:
			digits = append(digits, c)
		}
	}
	b := make([]byte, 16)
	if _, err := hex.Decode(b, digits); err != nil {
		return s
	}
	return b
}

// unkey is the reverse of key.
func unkey(v any) im.ClientMessageID {
	b, ok := v.([]byte)
	if !ok || len(b) != 16 {
		s, _ := v.(string)
		return im.ClientMessageID(s)
	}
	out := make([]byte, 0, 36)
	for i, c := range b {
		if i == 4 || i == 6 || i == 8 || i == 10 {
			out = append(out, '-')
		}
		out = hex.AppendEncode(out, []byte{c})
	}
	return im.ClientMessageID(out)
}

// stay is where a user stands in a conversation, read for an answer.
type stay struct {
	conversation
	rules.Member
}

const stayColumns = `m.user_id, m.conversation_id, m.role, m.start_seq, m.end_seq, m.earlier, m.cleared, m.delivered, m.read,
  m.left_name, c.num, c.kind, c.name, c.closed, c.user_a, c.user_b, c.head, c.kept, c.members, c.member_version`

const stayTables = ` FROM member m JOIN conversation c ON c.num = m.conv `

// scanStay reads stayColumns.
func scanStay(scan func(...any) error, s *stay) error {
	c := cellsPool.Get().(*cells)
	defer c.giveBack()
	if err := scan(c.places(stayCells)...); err != nil {
		return err
	}
	return s.from(c)
}

// stayCells is how many columns stayColumns has.
const stayCells = 20

// from takes stayColumns, the first cells of a row.
func (s *stay) from(c *cells) error {
	s.User, s.ID, s.Role = im.UserID(c.text(0)), im.ConversationID(c.text(1)), clientv1.Role(c.int(2))
	s.Delivered, s.Read, s.LeftName = im.Seq(c.int(7)), im.Seq(c.int(8)), c.text(9)
	s.num, s.Kind, s.Name, s.Closed = c.int(10), clientv1.ConversationKind(c.int(11)), c.text(12), c.int(13) != 0
	s.a, s.b, s.Head = im.UserID(c.text(14)), im.UserID(c.text(15)), im.Seq(c.int(16))
	s.kept, s.Count, s.MemberVersion = im.Seq(c.int(17)), int(c.int(18)), c.int(19)
	var err error
	s.View, err = viewOf(c, 3)
	s.View.Log = s.Head
	s.View.Keep(s.kept)
	return err
}

// viewOf takes start_seq, end_seq, earlier and cleared, the cells from i on.
func viewOf(c *cells, i int) (v rules.View, err error) {
	v.Last, v.Cleared = store.Stretch{Start: im.Seq(c.int(i)), End: im.Seq(c.int(i + 1))}, im.Seq(c.int(i+3))
	v.Earlier, err = rules.DecodeStretches(c.bytes(i + 2))
	return v, err
}

const sqlStay = `SELECT ` + stayColumns + stayTables + `WHERE m.user_id = ? AND m.conversation_id = ?`

// stayOf finds a present or former member. Errors: not_member.
func (c *conn) stayOf(op string, conv im.ConversationID, user im.UserID) (*stay, error) {
	var s stay
	err := c.each(context.Background(), sqlStay, []any{string(user), string(conv)}, func(scan func(...any) error) error {
		return scanStay(scan, &s)
	})
	if err != nil {
		return nil, err
	}
	if s.num == 0 {
		return nil, rules.NotMember(op, conv)
	}
	return &s, nil
}

// log finds a conversation for the system. Errors: not_member.
func (c *conn) log(op string, conv im.ConversationID) (num int64, v rules.View, err error) {
	err = c.row(`SELECT num, head FROM conversation WHERE id = ?`, []any{string(conv)}, &num, &v.Log)
	if errors.Is(err, sql.ErrNoRows) {
		err = rules.NotMember(op, conv)
	}
	return num, v, err
}

// History is store.Reader's.
func (s *Store) History(ctx context.Context, q store.HistoryQuery) (store.HistoryPage, error) {
	const op = "store.History"
	q.Limit = min(max(q.Limit, 1), store.MaxPage)
	q.After, q.Before = max(q.After, 0), max(q.Before, 0)
	var page store.HistoryPage
	err := s.read(ctx, func(c *conn) error {
		var num int64
		var v rules.View
		if q.Reader == "" {
			var err error
			if num, v, err = c.log(op, q.Conversation); err != nil {
				return err
			}
		} else {
			st, err := c.stayOf(op, q.Conversation, q.Reader)
			if err != nil {
				return err
			}
			num, v = st.num, st.View
		}
		var err error
		page, err = c.page(ctx, num, v, q)
		return err
	})
	return page, fault(op, err)
}

const (
	sqlUp = `SELECT ` + entryColumns + ` FROM entry WHERE conv = ? AND seq > ? AND seq <= ? ORDER BY seq LIMIT ?`
	sqlDn = `SELECT ` + entryColumns + ` FROM entry WHERE conv = ? AND seq > ? AND seq <= ? ORDER BY seq DESC LIMIT ?`
)

// errFull ends the reading of a page.
var errFull = errors.New("page is full")

// page reads the entries of the query that v shows.
func (c *conn) page(ctx context.Context, num int64, v rules.View, q store.HistoryQuery) (store.HistoryPage, error) {
	spans, query := v.Within(q.After, q.Before), sqlUp
	if q.Backward {
		slices.Reverse(spans)
		query = sqlDn
	}
	var p store.HistoryPage
	bytes := 0
	take := func(scan func(...any) error) error {
		if len(p.Entries) == q.Limit {
			return errFull
		}
		var e im.Entry
		if err := scanEntry(scan, &e); err != nil {
			return err
		}
		bytes += len(e.Content) + len(e.Change)
		if q.MaxBytes > 0 && bytes > q.MaxBytes && len(p.Entries) > 0 {
			return errFull
		}
		p.Entries = append(p.Entries, e)
		return nil
	}
	p.End = true
	for _, s := range spans {
		err := c.each(ctx, query, []any{num, s.Start, s.End, q.Limit + 1 - len(p.Entries)}, take)
		if errors.Is(err, errFull) {
			p.End = false
			break
		}
		if err != nil {
			return store.HistoryPage{}, err
		}
	}
	if q.Backward {
		slices.Reverse(p.Entries)
	}
	p.CompleteFrom, p.CompleteTo = v.Complete(p, q)
	return p, nil
}

const sqlEntry = `SELECT ` + entryColumns + ` FROM entry
  WHERE conv = (SELECT num FROM conversation WHERE id = ?) AND seq = ?`

// Entry is store.Reader's.
func (s *Store) Entry(ctx context.Context, conv im.ConversationID, seq im.Seq) (im.Entry, error) {
	var e im.Entry
	err := s.read(ctx, func(c *conn) error {
		err := c.each(ctx, sqlEntry, []any{string(conv), seq}, func(scan func(...any) error) error { return scanEntry(scan, &e) })
		if err == nil && e.Seq == 0 {
			err = store.ErrNotFound
		}
		return err
	})
	return e, fault("store.Entry", err)
}

const sqlUnread = `SELECT count(*) FROM (SELECT 1 FROM entry WHERE conv = ? AND seq > ? AND seq <= ? AND countable = 1
  AND sender <> ? LIMIT ?)`

// unread counts what the user of s has not read.
func (c *conn) unread(s *stay) (n int, err error) {
	for _, seen := range s.View.Within(s.Read, 0) {
		var more int
		if err := c.row(sqlUnread, []any{s.num, seen.Start, seen.End, string(s.User), store.MaxUnread - n}, &more); err != nil {
			return 0, err
		}
		if n += more; n == store.MaxUnread {
			break
		}
	}
	return n, nil
}

const sqlLast = `SELECT ` + entryColumns + ` FROM entry WHERE conv = ? AND seq > ? AND seq <= ? AND kind = ? ORDER BY seq DESC LIMIT 1`

// last finds the newest message that the user of s may see; nil if none.
func (c *conn) last(ctx context.Context, s *stay) (*im.Entry, error) {
	spans := s.View.Within(0, 0)
	for i := len(spans) - 1; i >= 0; i-- {
		var e im.Entry
		err := c.each(ctx, sqlLast, []any{s.num, spans[i].Start, spans[i].End, clientv1.EntryKind_ENTRY_KIND_MESSAGE},
			func(scan func(...any) error) error { return scanEntry(scan, &e) })
		if err != nil {
			return nil, err
		}
		if e.Seq != 0 {
			return &e, nil
		}
	}
	return nil, nil
}

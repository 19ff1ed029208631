package postgres

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/imdhq/imd/pkg/im"
	"github.com/imdhq/imd/pkg/store"
	"github.com/imdhq/imd/pkg/store/rules"
	"github.com/imdhq/imd/sdk/go/gen/clientv1"
)

const entryColumns = `e.seq, e.back, e.kind, e.countable, e.sender, e.message_id, e.client_key, e.server_ms, e.target_seq,
  e.changed_seq, e.body_hash IS NULL, e.body`

// scanner is one row of an answer.
type scanner interface{ Scan(dest ...any) error }

// entryRow takes entryColumns; all are NULL where a join has found nothing.
type entryRow struct {
	seq, id, ms, target, changed *int64
	back                         *int32
	kind                         *int16
	countable, change            *bool
	sender                       *string
	key, body                    []byte
}

// into are the places for entryColumns.
func (r *entryRow) into() []any {
	return []any{&r.seq, &r.back, &r.kind, &r.countable, &r.sender, &r.id, &r.key, &r.ms, &r.target, &r.changed, &r.change, &r.body}
}

// entry is the row as an entry; false if there is none.
func (r *entryRow) entry() (im.Entry, bool) {
	if r.seq == nil {
		return im.Entry{}, false
	}
	e := im.Entry{
		Seq: im.Seq(*r.seq), PrevSeq: im.Seq(*r.seq - int64(*r.back)), Kind: clientv1.EntryKind(*r.kind), Countable: *r.countable,
		Sender: im.UserID(*r.sender), MessageID: im.MessageID(*r.id), ClientMessageID: unkey(r.key), ServerTime: time.UnixMilli(*r.ms),
		TargetSeq: seqOr0(r.target), ChangedSeq: seqOr0(r.changed),
	}
	if *r.change {
		e.Change = r.body
	} else {
		e.Content = r.body
	}
	return e, true
}

func seqOr0(p *int64) im.Seq {
	if p == nil {
		return 0
	}
	return im.Seq(*p)
}

// scanEntry reads entryColumns of a row that is there.
func scanEntry(row scanner, e *im.Entry) error {
	var r entryRow
	if err := row.Scan(r.into()...); err != nil {
		return err
	}
	*e, _ = r.entry()
	return nil
}

// stay is where a user stands in a conversation, read for an answer.
type stay struct {
	rules.Member
	id            im.ConversationID
	num           int64
	kind          clientv1.ConversationKind
	name          string
	closed        bool
	a, b          im.UserID // direct: its users
	count         int
	memberVersion int64
	kept          im.Seq // nobody sees what is up to here
}

const stayColumns = `m.user_id, m.conversation_id, m.role, m.start_seq, m.end_seq, m.earlier, m.cleared, m.delivered, m.read,
  m.left_name, c.num, c.kind, c.name, c.closed, c.user_a, c.user_b, c.head, c.kept, c.members, c.member_version`

const stayTables = ` FROM member m JOIN conversation c ON c.num = m.conv `

// scanStay reads stayColumns and what comes behind them.
func scanStay(row scanner, s *stay, more ...any) error {
	var earlier []byte
	v := &s.View
	err := row.Scan(append([]any{
		&s.User, &s.id, &s.Role, &v.Last.Start, &v.Last.End, &earlier, &v.Cleared, &s.Delivered, &s.Read,
		&s.LeftName, &s.num, &s.kind, &s.name, &s.closed, &s.a, &s.b, &v.Log, &s.kept, &s.count, &s.memberVersion,
	}, more...)...)
	if err != nil {
		return err
	}
	v.Earlier, err = rules.DecodeStretches(earlier)
	v.Keep(s.kept)
	return err
}

// peer is the other user of a direct conversation; "" for groups.
func (s *stay) peer() im.UserID {
	switch {
	case s.kind != clientv1.ConversationKind_CONVERSATION_KIND_DIRECT:
		return ""
	case s.User == s.a:
		return s.b
	}
	return s.a
}

const sqlStay = `SELECT ` + stayColumns + stayTables + `WHERE m.user_id = $1 AND m.conversation_id = $2`

// stayOf finds a present or former member. Errors: not_member.
func stayOf(ctx context.Context, c *pgx.Conn, op string, conv im.ConversationID, user im.UserID) (*stay, error) {
	var s stay
	err := scanStay(c.QueryRow(ctx, sqlStay, string(user), string(conv)), &s)
	if errors.Is(err, pgx.ErrNoRows) {
		return nil, rules.NotMember(op, conv)
	}
	return &s, err
}

const sqlLog = `SELECT num, head FROM conversation WHERE id = $1`

// History is store.Reader's.
func (s *Store) History(ctx context.Context, q store.HistoryQuery) (store.HistoryPage, error) {
	const op = "store.History"
	q.Limit = min(max(q.Limit, 1), store.MaxPage)
	q.After, q.Before = max(q.After, 0), max(q.Before, 0)
	page, err := read(ctx, s, func(ctx context.Context, c *pgx.Conn) (store.HistoryPage, error) {
		num, v, err := visible(ctx, c, op, q.Conversation, q.Reader)
		if err != nil {
			return store.HistoryPage{}, err
		}
		return page(ctx, c, num, v, q)
	})
	return page, fault(op, err)
}

// visible is what reader may see of a conversation. Errors: not_member.
func visible(ctx context.Context, c *pgx.Conn, op string, conv im.ConversationID, reader im.UserID) (num int64, v rules.View, err error) {
	if reader != "" {
		st, err := stayOf(ctx, c, op, conv, reader)
		if err != nil {
			return 0, rules.View{}, err
		}
		return st.num, st.View, nil
	}
	err = c.QueryRow(ctx, sqlLog, string(conv)).Scan(&num, &v.Log)
	if errors.Is(err, pgx.ErrNoRows) {
		err = rules.NotMember(op, conv)
	}
	return num, v, err
}

const (
	sqlUp = `SELECT ` + entryColumns + ` FROM entry e WHERE e.conv = $1 AND e.seq > $2 AND e.seq <= $3 ORDER BY e.seq LIMIT $4`
	sqlDn = `SELECT ` + entryColumns + ` FROM entry e WHERE e.conv = $1 AND e.seq > $2 AND e.seq <= $3 ORDER BY e.seq DESC LIMIT $4`
)

// page reads the entries of the query that v shows.
func page(ctx context.Context, c *pgx.Conn, num int64, v rules.View, q store.HistoryQuery) (store.HistoryPage, error) {
	spans, query := v.Within(q.After, q.Before), sqlUp
	if q.Backward {
		slices.Reverse(spans)
		query = sqlDn
	}
	p := store.HistoryPage{End: true}
	bytes := 0
	for _, sp := range spans {
		full, err := fill(ctx, c, query, []any{num, int64(sp.Start), int64(sp.End), q.Limit + 1 - len(p.Entries)}, q, &p, &bytes)
		if err != nil {
			return store.HistoryPage{}, err
		}
		if full {
			p.End = false
			break
		}
	}
	if q.Backward {
		slices.Reverse(p.Entries)
	}
	p.CompleteFrom, p.CompleteTo = v.Complete(p, q)
	return p, nil
}

// fill reads one stretch into the page until it is full.
func fill(ctx context.Context, c *pgx.Conn, query string, args []any, q store.HistoryQuery, p *store.HistoryPage, bytes *int) (full bool, err error) {
	rows, err := c.Query(ctx, query, args...)
	if err != nil {
		return false, err
	}
	defer rows.Close()
	for rows.Next() {
		if len(p.Entries) == q.Limit {
			full = true
			break
		}
		var e im.Entry
		if err := scanEntry(rows, &e); err != nil {
			return false, err
		}
		*bytes += len(e.Content) + len(e.Change)
		if q.MaxBytes > 0 && *bytes > q.MaxBytes && len(p.Entries) > 0 {
			full = true
			break
		}
		p.Entries = append(p.Entries, e)
	}
	rows.Close()
	return full, rows.Err()
}

const sqlEntry = `SELECT ` + entryColumns + ` FROM entry e
  WHERE e.conv = (SELECT c.num FROM conversation c WHERE c.id = $1) AND e.seq = $2`

// Entry is store.Reader's.
func (s *Store) Entry(ctx context.Context, conv im.ConversationID, seq im.Seq) (im.Entry, error) {
	e, err := read(ctx, s, func(ctx context.Context, c *pgx.Conn) (e im.Entry, err error) {
		err = scanEntry(c.QueryRow(ctx, sqlEntry, string(conv), int64(seq)), &e)
		return e, missing(err)
	})
	return e, fault("store.Entry", err)
}

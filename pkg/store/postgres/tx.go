package postgres

import (
	"context"
	"errors"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/imdhq/imd/pkg/failpoint"
	"github.com/imdhq/imd/pkg/im"
	"github.com/imdhq/imd/pkg/store/rules"
)

// tx is the transaction of one change of a conversation. The conversation's row
// is locked, so that what it reads stays true until it commits.
type tx struct {
	pgx.Tx
	ctx context.Context
	now time.Time // the server time of its entry
	xid int64     // its number
	// first is the seq of its entry; 0 = the one behind the head.
	first im.Seq
}

// conversation is a locked row of the table.
type conversation struct {
	rules.Conversation
	num int64
}

// transact runs fn in a transaction on c and commits it. fn's error undoes
// everything and is returned.
func transact[T any](ctx context.Context, c *pgx.Conn, fn func(*tx) (T, error)) (T, error) {
	var none T
	raw, err := c.Begin(ctx)
	if err != nil {
		return none, err
	}
	t := &tx{Tx: raw, ctx: ctx}
	v, err := fn(t)
	if err == nil {
		err = failpoint.Error(failpoint.BeforeCommit)
	}
	if err != nil {
		if end := raw.Rollback(ctx); end != nil {
			_ = c.Close(ctx) // the server undoes what is left
		}
		return none, err
	}
	if err := raw.Commit(ctx); err != nil {
		return none, err
	}
	failpoint.Hit(failpoint.AfterCommit)
	return v, nil
}

// row reads one row.
func (t *tx) row(query string, args []any, dest ...any) error {
	return t.QueryRow(t.ctx, query, args...).Scan(dest...)
}

// exec runs a statement and returns how many rows it changed.
func (t *tx) exec(query string, args ...any) (int64, error) {
	tag, err := t.Exec(t.ctx, query, args...)
	return tag.RowsAffected(), err
}

const sqlBegun = `SELECT imd_now_ms(), imd_xid()`

// begun reads the time and the number of the transaction. It comes after the
// lock, so that times rise with seqs.
func (t *tx) begun() error {
	var ms int64
	err := t.row(sqlBegun, nil, &ms, &t.xid)
	t.now = time.UnixMilli(ms)
	return err
}

const sqlLock = `SELECT num, kind, name, closed, open_history, head, members, member_version
  FROM conversation WHERE id = $1 FOR NO KEY UPDATE`

// lock finds and locks a conversation; nil if there is none.
func (t *tx) lock(id im.ConversationID) (*conversation, error) {
	c := &conversation{}
	c.ID = id
	err := t.row(sqlLock, []any{string(id)}, &c.num, &c.Kind, &c.Name, &c.Closed, &c.OpenHistory, &c.Head, &c.Count, &c.MemberVersion)
	if errors.Is(err, pgx.ErrNoRows) {
		return nil, t.begun()
	}
	if err != nil {
		return nil, err
	}
	return c, t.begun()
}

const sqlAddConversation = `INSERT INTO conversation (id, kind, name, open_history, user_a, user_b, version, head_version)
  VALUES ($1, $2, $3, $4, '', '', $5, $5) ON CONFLICT (id) DO NOTHING RETURNING num`

// add makes a new group from c; false if its id is taken.
func (t *tx) add(c *conversation) (bool, error) {
	err := t.row(sqlAddConversation, []any{string(c.ID), c.Kind, c.Name, c.OpenHistory, t.xid}, &c.num)
	if errors.Is(err, pgx.ErrNoRows) {
		return false, nil
	}
	return err == nil, err
}

const sqlFlush = `WITH moved AS (
  UPDATE conversation SET name = $2, closed = $3, head = $4, members = $5, member_version = $6, version = $7, head_version = $7
  WHERE num = $1 RETURNING num, head)
INSERT INTO feed (conv, low, high) SELECT m.num, $8, m.head FROM moved m WHERE (SELECT b.feeding FROM outbox b WHERE b.id = 1)`

// flush writes c back, whose head was at low, and leaves a mark for the outbox.
func (t *tx) flush(c *conversation, low im.Seq) error {
	_, err := t.exec(sqlFlush, c.num, c.Name, c.Closed, c.Head, c.Count, c.MemberVersion, t.xid, low)
	return err
}

const sqlMembersOf = `SELECT user_id, role, start_seq, end_seq, earlier, cleared, delivered, read, left_name
  FROM member WHERE user_id = ANY ($1) AND conversation_id = $2 ORDER BY user_id FOR NO KEY UPDATE`

// members finds and locks present and former members of c among users.
func (t *tx) members(c *conversation, users ...im.UserID) (map[im.UserID]*rules.Member, error) {
	rows, err := t.Query(t.ctx, sqlMembersOf, rules.Texts(users), string(c.ID))
	if err != nil {
		return nil, err
	}
	out := make(map[im.UserID]*rules.Member, len(users))
	for rows.Next() {
		m := &rules.Member{}
		var earlier []byte
		err := rows.Scan(&m.User, &m.Role, &m.View.Last.Start, &m.View.Last.End, &earlier, &m.View.Cleared, &m.Delivered, &m.Read, &m.LeftName)
		if err == nil {
			m.View.Earlier, err = rules.DecodeStretches(earlier)
		}
		if err != nil {
			rows.Close()
			return nil, err
		}
		out[m.User] = m
	}
	return out, rows.Err()
}

const sqlPutMembers = `INSERT INTO member (user_id, conversation_id, conv, role, first_seq, start_seq, end_seq, earlier, cleared, delivered, read, left_name, version)
  SELECT u, $2, $3, r, f, s, e, x, c, d, rd, l, $4
  FROM unnest($1::text[], $5::int2[], $6::int8[], $7::int8[], $8::bytea[], $9::int8[], $10::int8[], $11::int8[], $12::text[], $13::int8[])
    AS m (u, r, s, e, x, c, d, rd, l, f) ORDER BY u
ON CONFLICT (user_id, conversation_id) DO UPDATE SET role = excluded.role, first_seq = excluded.first_seq, start_seq = excluded.start_seq,
  end_seq = excluded.end_seq, earlier = excluded.earlier, cleared = excluded.cleared, delivered = excluded.delivered,
  read = excluded.read, left_name = excluded.left_name, version = excluded.version`

// put stores members of c, which may be new.
func (t *tx) put(c *conversation, members []rules.Member) error {
	n := len(members)
	users, left, roles, earlier := make([]string, n), make([]string, n), make([]int16, n), make([][]byte, n)
	firsts, starts, ends, cleared, delivered, reads := make([]int64, n), make([]int64, n), make([]int64, n), make([]int64, n), make([]int64, n), make([]int64, n)
	for i := range members {
		m := &members[i]
		users[i], left[i], roles[i], earlier[i] = string(m.User), m.LeftName, int16(m.Role), rules.EncodeStretches(m.View.Earlier)
		firsts[i] = int64(m.View.First())
		starts[i], ends[i], cleared[i] = int64(m.View.Last.Start), int64(m.View.Last.End), int64(m.View.Cleared)
		delivered[i], reads[i] = int64(m.Delivered), int64(m.Read)
	}
	_, err := t.exec(sqlPutMembers, users, string(c.ID), c.num, t.xid, roles, starts, ends, earlier, cleared, delivered, reads, left, firsts)
	return err
}

const sqlInsertEntry = `INSERT INTO entry (conv, seq, message_id, server_ms, back, kind, countable, sender, client_key, body)
  VALUES ($1, $2, $3, $4, $5, $6, false, $7, $8, $9)`

const sqlStamp = `UPDATE slot SET newest_ms = greatest(newest_ms, $1) WHERE id = pg_backend_pid() % 64`

// insert writes the entry of a change behind the head of c, sets what the store
// decides of it and writes c back.
func (t *tx) insert(c *conversation, e *im.Entry) error {
	e.Seq, e.PrevSeq, e.ServerTime = t.following(c), c.Head, t.now
	if e.Seq <= c.Head {
		return &overtaken{head: int64(c.Head)}
	}
	_, err := t.exec(sqlInsertEntry, c.num, e.Seq, int64(e.MessageID), e.ServerTime.UnixMilli(), int32(e.Seq-e.PrevSeq), int16(e.Kind), string(e.Sender), key(e.ClientMessageID), e.Change)
	if err != nil {
		return err
	}
	c.Head = e.Seq
	if err := t.flush(c, e.PrevSeq); err != nil {
		return err
	}
	_, err = t.exec(sqlStamp, e.ServerTime.UnixMilli())
	return err
}

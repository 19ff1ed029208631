package postgres

import (
	"context"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/imdhq/imd/pkg/im"
	"github.com/imdhq/imd/pkg/store"
	"github.com/imdhq/imd/pkg/store/rules"
)

// sqlUnacked names for each event the members that have not got it. The newest
// of a conversation is the one with the highest seq.
const sqlUnacked = `SELECT DISTINCT ON (m.user_id, m.conversation_id) m.user_id, m.conversation_id, v.seq, e.message_id, e.sender
FROM event v
JOIN conversation c ON c.num = v.conv AND c.members <= $3
JOIN LATERAL (SELECT * FROM entry x WHERE x.conv = v.conv AND x.seq = v.seq) e ON e.countable
JOIN member m ON m.conv = c.num AND m.role > 0
WHERE v.pos > $1 AND v.pos <= $2 AND v.kind = 1 AND m.user_id <> e.sender
  AND m.start_seq < v.seq AND m.cleared < v.seq AND m.delivered < v.seq AND m.read < v.seq
  AND NOT EXISTS (SELECT 1 FROM mute u WHERE u.user_id = m.user_id AND u.conversation_id = m.conversation_id AND u.until_ms > imd_now_ms())
ORDER BY m.user_id, m.conversation_id, v.seq DESC`

// Unacked is store.Pushes'.
func (s *Store) Unacked(ctx context.Context, after, upto int64, members int) ([]store.Push, error) {
	out, err := read(ctx, s, func(ctx context.Context, c *pgx.Conn) ([]store.Push, error) {
		rows, err := c.Query(ctx, sqlUnacked, after, upto, members)
		if err != nil {
			return nil, err
		}
		return pgx.CollectRows(rows, func(row pgx.CollectableRow) (p store.Push, err error) {
			err = row.Scan(&p.User, &p.Conversation, &p.Seq, &p.MessageID, &p.Sender)
			return p, err
		})
	})
	return out, fault("store.Unacked", err)
}

const sqlDuePushes = `SELECT user_id, conversation_id, seq, message_id, sender, state, at_ms, due_ms, tries FROM push
  WHERE state IN (1, 3) AND due_ms <= $1 ORDER BY due_ms LIMIT $2`

// DuePushes is store.Pushes'.
func (s *Store) DuePushes(ctx context.Context, now time.Time, limit int) ([]store.Push, error) {
	out, err := read(ctx, s, func(ctx context.Context, c *pgx.Conn) ([]store.Push, error) {
		rows, err := c.Query(ctx, sqlDuePushes, millis(now), limit)
		if err != nil {
			return nil, err
		}
		return pgx.CollectRows(rows, func(row pgx.CollectableRow) (p store.Push, err error) {
			var at, due int64
			err = row.Scan(&p.User, &p.Conversation, &p.Seq, &p.MessageID, &p.Sender, &p.State, &at, &due, &p.Tries)
			p.At, p.Due = moment(at), moment(due)
			return p, err
		})
	})
	return out, fault("store.DuePushes", err)
}

const sqlSettlePushes = `SELECT imd_settle_pushes($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13)`

// SettlePushes is store.Pushes'.
func (s *Store) SettlePushes(ctx context.Context, p store.Proof, done []store.PushResult) error {
	n := len(done)
	list, states, nexts, dues, tries := make([]store.Push, n), make([]int16, n), make([]int16, n), make([]int64, n), make([]int32, n)
	tolds := make([]bool, n)
	for i, d := range done {
		list[i], states[i], nexts[i], dues[i], tries[i] = d.Push, int16(d.State), int16(d.Next), millis(d.Again), int32(d.Tries)
		tolds[i] = d.Tells()
		if d.Gone {
			nexts[i] = 0
		}
		if !d.Gone && d.Next == d.State {
			tries[i]++
		}
	}
	b := pushRows(list)
	return s.proven(ctx, "store.SettlePushes", p, sqlSettlePushes, b.users, b.convs, b.seqs, states, nexts, dues, tries, b.ids, b.senders, tolds)
}

const sqlPushCounts = `SELECT state, count(*) FROM push GROUP BY state`

// PushCounts is store.Pushes'.
func (s *Store) PushCounts(ctx context.Context) (map[store.PushState]int, error) {
	out, err := read(ctx, s, func(ctx context.Context, c *pgx.Conn) (map[store.PushState]int, error) {
		rows, err := c.Query(ctx, sqlPushCounts)
		if err != nil {
			return nil, err
		}
		out := map[store.PushState]int{}
		var state store.PushState
		var n int
		_, err = pgx.ForEachRow(rows, []any{&state, &n}, func() error {
			out[state] = n
			return nil
		})
		return out, err
	})
	return out, fault("store.PushCounts", err)
}

// sqlBadgeStays lists the conversations of users in which there may be something
// unread.
const sqlBadgeStays = `SELECT ` + stayColumns + stayTables + `WHERE m.user_id = ANY ($1) AND m.role > 0 AND c.head > m.read
  AND NOT EXISTS (SELECT 1 FROM mute u WHERE u.user_id = m.user_id AND u.conversation_id = m.conversation_id AND u.until_ms > imd_now_ms())`

// Badges is store.Pushes'.
func (s *Store) Badges(ctx context.Context, users []im.UserID) (map[im.UserID]int, error) {
	out, err := read(ctx, s, func(ctx context.Context, c *pgx.Conn) (map[im.UserID]int, error) {
		rows, err := c.Query(ctx, sqlBadgeStays, rules.Texts(rules.Distinct(users)))
		if err != nil {
			return nil, err
		}
		list, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (*stay, error) {
			st := &stay{}
			return st, scanStay(row, st)
		})
		if err != nil {
			return nil, err
		}
		sights, err := seen(ctx, c, list, false)
		if err != nil {
			return nil, err
		}
		out := map[im.UserID]int{}
		for i, st := range list {
			if n := sights[i].unread; n > 0 {
				out[st.User] = min(out[st.User]+n, store.MaxUnread)
			}
		}
		return out, nil
	})
	return out, fault("store.Badges", err)
}

const (
	sqlSetMute = `SELECT imd_mute($1, $2, $3)`
	sqlMutes   = `SELECT conversation_id, until_ms FROM mute WHERE user_id = $1 AND conversation_id > $2 AND until_ms > imd_now_ms() ORDER BY conversation_id LIMIT $3`
)

// SetMute is store.Pushes'.
func (s *Store) SetMute(ctx context.Context, conv im.ConversationID, user im.UserID, until time.Time) error {
	const op = "store.SetMute"
	member, err := change(ctx, s, func(ctx context.Context, c *pgx.Conn) (member bool, err error) {
		err = c.QueryRow(ctx, sqlSetMute, string(user), string(conv), max(millis(until), 0)).Scan(&member)
		return member, err
	})
	if err == nil && !member {
		err = rules.NotMember(op, conv)
	}
	return fault(op, err)
}

// Mutes is store.Pushes'.
func (s *Store) Mutes(ctx context.Context, user im.UserID, after im.ConversationID, limit int) ([]store.Mute, error) {
	out, err := read(ctx, s, func(ctx context.Context, c *pgx.Conn) ([]store.Mute, error) {
		rows, err := c.Query(ctx, sqlMutes, string(user), string(after), limit)
		if err != nil {
			return nil, err
		}
		return pgx.CollectRows(rows, func(row pgx.CollectableRow) (m store.Mute, err error) {
			var until int64
			err = row.Scan(&m.Conversation, &until)
			m.User, m.Until = user, moment(until)
			return m, err
		})
	})
	return out, fault("store.Mutes", err)
}

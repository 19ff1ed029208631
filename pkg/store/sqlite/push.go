package sqlite

import (
	"context"
	"time"

	"github.com/imdhq/imd/pkg/im"
	"github.com/imdhq/imd/pkg/store"
	"github.com/imdhq/imd/pkg/store/rules"
)

const sqlUnacked = `SELECT m.user_id, m.conversation_id, v.seq, e.message_id, e.sender
FROM event v
JOIN conversation c ON c.num = v.conv AND c.members <= ?
JOIN entry e ON e.conv = v.conv AND e.seq = v.seq AND e.countable = 1
JOIN member m ON m.conv = c.num AND m.role > 0
WHERE v.pos > ? AND v.pos <= ? AND v.kind = 1 AND m.user_id <> e.sender
  AND m.start_seq < v.seq AND m.cleared < v.seq AND m.delivered < v.seq AND m.read < v.seq
  AND NOT EXISTS (SELECT 1 FROM mute u WHERE u.user_id = m.user_id AND u.conversation_id = m.conversation_id AND u.until_ms > ?)
ORDER BY m.user_id, m.conversation_id, v.seq DESC`

// Unacked is store.Pushes'.
func (s *Store) Unacked(ctx context.Context, after, upto int64, members int) ([]store.Push, error) {
	var out []store.Push
	err := s.read(ctx, func(c *conn) error {
		return c.each(ctx, sqlUnacked, []any{members, after, upto, time.Now().UnixMilli()}, func(scan func(...any) error) error {
			var p store.Push
			if err := scan(&p.User, &p.Conversation, &p.Seq, &p.MessageID, &p.Sender); err != nil {
				return err
			}
			if n := len(out); n > 0 && out[n-1].User == p.User && out[n-1].Conversation == p.Conversation {
				return nil // the newest came first
			}
			out = append(out, p)
			return nil
		})
	})
	return out, fault("store.Unacked", err)
}

const sqlPutPush = `INSERT INTO push (user_id, conversation_id, seq, message_id, at_ms, due_ms, tries, state, sender)
SELECT m.user_id, m.conversation_id, ?, ?, ?, ?, 0, 1, ? FROM member m WHERE m.user_id = ? AND m.conversation_id = ? AND m.role > 0 AND m.read < ?
  AND NOT EXISTS (SELECT 1 FROM mute x WHERE x.user_id = m.user_id AND x.conversation_id = m.conversation_id AND x.until_ms > ?)
ON CONFLICT (user_id, conversation_id) DO UPDATE SET seq = excluded.seq, message_id = excluded.message_id, at_ms = excluded.at_ms,
  due_ms = CASE WHEN state = 2 OR state = 1 AND (told OR tries > 0) THEN max(excluded.due_ms, due_ms) ELSE excluded.due_ms END,
  told = told OR state IN (2, 3), tries = 0, state = 1, sender = excluded.sender WHERE seq < excluded.seq`

// putPush makes a push due, unless the conversation is muted. It takes the place of
// an older one of its conversation: told remembers that the user may have been told
// of that, which is withdrawn when the conversation is read. If the older one was
// tried, the newer one waits until the pause is over that it left in due_ms.
func (t *tx) putPush(p store.Push) error {
	now := t.now.UnixMilli()
	_, err := t.exec(sqlPutPush, p.Seq, p.MessageID, now, now, string(p.Sender), string(p.User), string(p.Conversation), p.Seq, now)
	return err
}

const (
	sqlUnsent = `DELETE FROM push WHERE user_id = ? AND conversation_id = ? AND seq <= ? AND state IN (1, 4) AND NOT told`
	sqlTaken  = `UPDATE push SET state = 3, due_ms = ?, tries = 0 WHERE user_id = ? AND conversation_id = ? AND seq <= ? AND (state = 2 OR state IN (1, 4) AND told)`
)

// withdraw takes back what a user was told of and has read now.
func (t *tx) withdraw(user im.UserID, conv im.ConversationID, read im.Seq) error {
	_, err := t.exec(sqlUnsent, string(user), string(conv), read)
	if err == nil {
		_, err = t.exec(sqlTaken, t.now.UnixMilli(), string(user), string(conv), read)
	}
	return err
}

const sqlDuePushes = `SELECT user_id, conversation_id, seq, message_id, sender, state, at_ms, due_ms, tries FROM push
  WHERE state IN (1, 3) AND due_ms <= ? ORDER BY due_ms LIMIT ?`

// DuePushes is store.Pushes'.
func (s *Store) DuePushes(ctx context.Context, now time.Time, limit int) ([]store.Push, error) {
	var out []store.Push
	err := s.read(ctx, func(c *conn) error {
		return c.each(ctx, sqlDuePushes, []any{millis(now), limit}, func(scan func(...any) error) error {
			var p store.Push
			var at, due int64
			err := scan(&p.User, &p.Conversation, &p.Seq, &p.MessageID, &p.Sender, &p.State, &at, &due, &p.Tries)
			p.At, p.Due = moment(at), moment(due)
			out = append(out, p)
			return err
		})
	})
	return out, fault("store.DuePushes", err)
}

const (
	sqlPushGone = `DELETE FROM push WHERE user_id = ? AND conversation_id = ? AND seq = ? AND state = ?`
	sqlPushMove = `UPDATE push SET state = ?, due_ms = ?, tries = ?, told = told OR ? WHERE user_id = ? AND conversation_id = ? AND seq = ? AND state = ?`
	// sqlPushNewer notes in a row with a newer message that its user may have been
	// told of the older one.
	sqlPushNewer = `UPDATE push SET due_ms = max(due_ms, ?), told = 1 WHERE user_id = ? AND conversation_id = ? AND seq > ? AND state = 1`
	// sqlPushBack brings a row back to be withdrawn that went, because it was read,
	// while its user was told.
	sqlPushBack = `INSERT INTO push (user_id, conversation_id, seq, message_id, at_ms, due_ms, tries, state, sender) VALUES (?, ?, ?, ?, ?, ?, 0, 3, ?)
  ON CONFLICT (user_id, conversation_id) DO NOTHING`
)

// SettlePushes is store.Pushes'.
func (s *Store) SettlePushes(ctx context.Context, p store.Proof, done []store.PushResult) error {
	return s.proved(ctx, "store.SettlePushes", p, func(t *tx) error {
		t.changed = len(done) > 0
		for _, d := range done {
			if err := t.settlePush(d); err != nil {
				return err
			}
		}
		return nil
	})
}

func (t *tx) settlePush(d store.PushResult) error {
	if d.Gone {
		_, err := t.exec(sqlPushGone, string(d.User), string(d.Conversation), d.Seq, d.State)
		return err
	}
	tries := d.Tries
	if d.Next == d.State {
		tries++
	}
	n, err := t.exec(sqlPushMove, d.Next, millis(d.Again), tries, d.Tells(), string(d.User), string(d.Conversation), d.Seq, d.State)
	if err != nil || n > 0 || !d.Tells() {
		return err
	}
	if n, err = t.exec(sqlPushNewer, millis(d.Again), string(d.User), string(d.Conversation), d.Seq); err != nil || n > 0 {
		return err
	}
	now := t.now.UnixMilli()
	_, err = t.exec(sqlPushBack, string(d.User), string(d.Conversation), d.Seq, d.MessageID, now, now, string(d.Sender))
	return err
}

const sqlPushCounts = `SELECT state, count(*) FROM push GROUP BY state`

// PushCounts is store.Pushes'.
func (s *Store) PushCounts(ctx context.Context) (map[store.PushState]int, error) {
	out := map[store.PushState]int{}
	err := s.read(ctx, func(c *conn) error {
		return c.each(ctx, sqlPushCounts, nil, func(scan func(...any) error) error {
			var state store.PushState
			var n int
			err := scan(&state, &n)
			out[state] = n
			return err
		})
	})
	return out, fault("store.PushCounts", err)
}

const sqlBadgeStays = `SELECT ` + stayColumns + stayTables + `WHERE m.user_id = ? AND m.role > 0 AND c.head > m.read
  AND NOT EXISTS (SELECT 1 FROM mute u WHERE u.user_id = m.user_id AND u.conversation_id = m.conversation_id AND u.until_ms > ?)`

// Badges is store.Pushes'.
func (s *Store) Badges(ctx context.Context, users []im.UserID) (map[im.UserID]int, error) {
	out := map[im.UserID]int{}
	err := s.read(ctx, func(c *conn) error {
		for _, u := range rules.Distinct(users) {
			var list []*stay
			err := c.each(ctx, sqlBadgeStays, []any{string(u), time.Now().UnixMilli()}, func(scan func(...any) error) error {
				st := &stay{}
				list = append(list, st)
				return scanStay(scan, st)
			})
			for _, st := range list {
				if err != nil || out[u] == store.MaxUnread {
					break
				}
				var n int
				if n, err = c.unread(st); n > 0 {
					out[u] = min(out[u]+n, store.MaxUnread)
				}
			}
			if err != nil {
				return err
			}
		}
		return nil
	})
	return out, fault("store.Badges", err)
}

const (
	sqlSetMute = `INSERT INTO mute (user_id, conversation_id, until_ms)
  SELECT m.user_id, m.conversation_id, ? FROM member m WHERE m.user_id = ? AND m.conversation_id = ? AND m.role > 0
  ON CONFLICT (user_id, conversation_id) DO UPDATE SET until_ms = excluded.until_ms`
	sqlUnmute  = `DELETE FROM mute WHERE user_id = ? AND conversation_id = ?`
	sqlIsHere  = `SELECT EXISTS (SELECT 1 FROM member WHERE user_id = ? AND conversation_id = ? AND role > 0)`
	sqlHush    = `DELETE FROM push WHERE user_id = ? AND conversation_id = ? AND state IN (1, 4) AND NOT told`
	sqlHushNew = `UPDATE push SET state = 2 WHERE user_id = ? AND conversation_id = ? AND state IN (1, 4)`
	sqlMutes   = `SELECT conversation_id, until_ms FROM mute WHERE user_id = ? AND conversation_id > ? AND until_ms > ? ORDER BY conversation_id LIMIT ?`
)

// SetMute is store.Pushes'.
func (s *Store) SetMute(ctx context.Context, conv im.ConversationID, user im.UserID, until time.Time) error {
	const op = "store.SetMute"
	return fault(op, s.w.run(ctx, func(t *tx) error {
		var member bool
		if err := t.row(sqlIsHere, []any{string(user), string(conv)}, &member); err != nil {
			return err
		}
		if !member {
			return rules.NotMember(op, conv)
		}
		t.changed = true
		if !until.After(t.now) {
			_, err := t.exec(sqlUnmute, string(user), string(conv))
			return err
		}
		return t.mute(conv, user, until)
	}))
}

// mute drops what is due, but keeps the mark of what the user may have been told,
// to be withdrawn.
func (t *tx) mute(conv im.ConversationID, user im.UserID, until time.Time) error {
	if _, err := t.exec(sqlSetMute, millis(until), string(user), string(conv)); err != nil {
		return err
	}
	if _, err := t.exec(sqlHush, string(user), string(conv)); err != nil {
		return err
	}
	_, err := t.exec(sqlHushNew, string(user), string(conv))
	return err
}

// Mutes is store.Pushes'.
func (s *Store) Mutes(ctx context.Context, user im.UserID, after im.ConversationID, limit int) ([]store.Mute, error) {
	var out []store.Mute
	err := s.read(ctx, func(c *conn) error {
		return c.each(ctx, sqlMutes, []any{string(user), string(after), time.Now().UnixMilli(), limit}, func(scan func(...any) error) error {
			m := store.Mute{User: user}
			var until int64
			err := scan(&m.Conversation, &until)
			m.Until = moment(until)
			out = append(out, m)
			return err
		})
	})
	return out, fault("store.Mutes", err)
}

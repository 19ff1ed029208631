package sqlite

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"time"

	"github.com/imdhq/imd/pkg/im"
	"github.com/imdhq/imd/pkg/store"
	"github.com/imdhq/imd/pkg/store/rules"
	"github.com/imdhq/imd/sdk/go/gen/clientv1"
	"github.com/imdhq/imd/sdk/go/protocol"
)

const (
	scheduledColumns = `s.id, s.due_ms, s.created_ms, s.ended_ms, s.tries, s.state, s.reason, s.message_id, s.seq, s.sender, s.conversation_id, s.peer,
  s.request_id, s.client_id, s.body_hash, s.body`
	sqlSchedule = `INSERT INTO scheduled (id, due_ms, next_ms, created_ms, ended_ms, token, tries, state, reason, message_id, seq, sender, conversation_id,
  peer, request_id, client_id, body_hash, body) VALUES (?1, ?2, ?2, ?3, 0, 0, 0, 1, 0, 0, 0, ?4, ?5, ?6, ?7, ?8, ?9, ?10)`
	sqlScheduledRequest = `SELECT ` + scheduledColumns + ` FROM scheduled s WHERE s.sender = ? AND s.request_id = ?`
	sqlScheduledOpen    = `SELECT count(*) FROM scheduled WHERE sender = ? AND state IN (1, 2)`
	sqlScheduledOne     = `SELECT ` + scheduledColumns + ` FROM scheduled s WHERE s.id = ?1 AND (?2 = '' OR s.sender = ?2)`
	sqlScheduledOf      = `SELECT ` + scheduledColumns + ` FROM scheduled s
  WHERE s.sender = ? AND (s.due_ms, s.id) > (?, ?) AND (? OR s.state IN (1, 2)) ORDER BY s.due_ms, s.id LIMIT ?`
	sqlScheduledAll = `SELECT ` + scheduledColumns + ` FROM scheduled s
  WHERE (s.due_ms, s.id) > (?, ?) AND (? OR s.state IN (1, 2)) ORDER BY s.due_ms, s.id LIMIT ?`
	sqlCancelScheduled = `UPDATE scheduled SET state = 5, ended_ms = ?1 WHERE id = ?2 AND state = 1`
	sqlReviveScheduled = `UPDATE scheduled SET next_ms = ?1 WHERE state = 2 AND next_ms > ?1 AND token <> 0`
	sqlTurnScheduled   = `SELECT ` + scheduledColumns + `, coalesce((SELECT u.disabled FROM user u WHERE u.id = s.sender), 0)
  FROM scheduled s WHERE s.state IN (1, 2) AND s.next_ms <= ? ORDER BY s.next_ms, s.id LIMIT ?`
	sqlClaimScheduled  = `UPDATE scheduled SET state = 2, token = ?, next_ms = ? WHERE id = ?`
	sqlSettleScheduled = `UPDATE scheduled SET state = ?1, reason = ?2, message_id = ?3, seq = ?4, next_ms = CASE ?1 WHEN 2 THEN ?5 ELSE next_ms END,
  token = CASE ?1 WHEN 2 THEN 0 ELSE token END, tries = tries + (?1 = 2), ended_ms = CASE ?1 WHEN 2 THEN 0 ELSE ?6 END WHERE id = ?7 AND state = 2`
	sqlTrimScheduled   = `DELETE FROM scheduled WHERE id IN (SELECT id FROM scheduled WHERE state > 2 AND ended_ms < ? ORDER BY ended_ms LIMIT ?)`
	sqlScheduledCounts = `SELECT (SELECT count(*) FROM scheduled WHERE state IN (1, 2)), coalesce((SELECT min(next_ms) FROM scheduled WHERE state IN (1, 2)), 0)`
)

// PutScheduled is store.Schedules'.
func (s *Store) PutScheduled(ctx context.Context, m store.Scheduled, most int) (store.Scheduled, bool, error) {
	const op = "store.PutScheduled"
	out, before := m, false
	err := s.w.run(ctx, func(t *tx) error {
		had, err := scheduledRow(t.row, sqlScheduledRequest, string(m.Sender), string(m.RequestID))
		if err == nil {
			out, before = had, true
			return rules.SameScheduled(op, &had, &m)
		}
		if !errors.Is(err, sql.ErrNoRows) {
			return err
		}
		if err := t.mayWriteLater(&m, most); err != nil {
			return err
		}
		t.changed, out.State = true, store.ScheduledWaiting
		_, err = t.exec(sqlSchedule, m.ID, millis(m.Due), millis(m.Created), string(m.Sender), string(m.Conversation), string(m.Peer),
			string(m.RequestID), string(m.ClientMessageID), m.BodyHash[:], m.Content)
		return err
	})
	if err != nil {
		return store.Scheduled{}, false, fault(op, err)
	}
	return out, before, nil
}

// mayWriteLater is why m cannot be scheduled; nil if it can.
func (t *tx) mayWriteLater(m *store.Scheduled, most int) error {
	const op = "store.PutScheduled"
	c, err := t.conversation(m.Conversation)
	if err != nil {
		return err
	}
	var refused *im.Error
	switch {
	case c != nil:
		refused, err = t.mayWrite(c, m.Sender)
	case !m.Conversation.Direct() || m.Peer == "" || m.Sender == "":
		refused = rules.NotMember(op, m.Conversation)
	case m.Peer == m.Sender || protocol.DirectID(string(m.Sender), string(m.Peer)) != string(m.Conversation):
		refused = refuse(clientv1.Reason_REASON_BAD_REQUEST, op, "%s is not the conversation of these users", m.Conversation)
	default:
		refused, err = t.mayReach(m.Peer, m.Sender)
	}
	if err != nil {
		return err
	}
	if refused != nil {
		return refused
	}
	if m.Sender == "" {
		return nil
	}
	var open int
	if err := t.row(sqlScheduledOpen, []any{string(m.Sender)}, &open); err != nil {
		return err
	}
	if open >= most {
		return rules.TooManyScheduled(op, most)
	}
	return nil
}

// scheduledRow reads one row.
func scheduledRow(row func(string, []any, ...any) error, query string, args ...any) (store.Scheduled, error) {
	return scanScheduled(func(dest ...any) error { return row(query, args, dest...) })
}

func scanScheduled(scan func(...any) error, more ...any) (m store.Scheduled, err error) {
	var due, created, ended int64
	var hash []byte
	err = scan(append([]any{&m.ID, &due, &created, &ended, &m.Tries, &m.State, &m.Reason, &m.MessageID, &m.Seq, &m.Sender, &m.Conversation, &m.Peer,
		&m.RequestID, &m.ClientMessageID, &hash, &m.Content}, more...)...)
	m.Due, m.Created, m.Ended = moment(due), moment(created), moment(ended)
	copy(m.BodyHash[:], hash)
	return m, err
}

// Scheduled is store.Schedules'.
func (s *Store) Scheduled(ctx context.Context, q store.ScheduledQuery) ([]store.Scheduled, error) {
	const op = "store.Scheduled"
	query, args := sqlScheduledAll, []any{millis(q.After), q.ID, q.Ended, q.Limit}
	switch {
	case q.Limit < 1 || q.Limit > store.MaxScheduledPage:
		return nil, fmt.Errorf("%s: a page of %d", op, q.Limit)
	case q.Request != "":
		query, args = sqlScheduledRequest, []any{string(q.User), string(q.Request)}
	case q.User != "":
		query, args = sqlScheduledOf, append([]any{string(q.User)}, args...)
	}
	var out []store.Scheduled
	err := s.read(ctx, func(c *conn) error {
		return c.each(ctx, query, args, func(scan func(...any) error) error {
			m, err := scanScheduled(scan)
			out = append(out, m)
			return err
		})
	})
	return out, fault(op, err)
}

// CancelScheduled is store.Schedules'.
func (s *Store) CancelScheduled(ctx context.Context, id int64, user im.UserID) (store.Scheduled, error) {
	const op = "store.CancelScheduled"
	var out store.Scheduled
	err := s.w.run(ctx, func(t *tx) error {
		m, err := scheduledRow(t.row, sqlScheduledOne, id, string(user))
		if err != nil {
			return missing(err)
		}
		if m.State == store.ScheduledWaiting {
			m.State, m.Ended, t.changed = store.ScheduledCancelled, t.now, true
			_, err = t.exec(sqlCancelScheduled, millis(t.now), id)
		}
		out = m
		return err
	})
	if err != nil {
		return store.Scheduled{}, fault(op, err)
	}
	return out, nil
}

// ClaimScheduled is store.Schedules'.
func (s *Store) ClaimScheduled(ctx context.Context, p store.Proof, q store.ScheduledClaim) ([]store.Scheduled, error) {
	const op = "store.ClaimScheduled"
	if q.Limit < 1 || q.Limit > store.MaxScheduledClaim {
		return nil, fmt.Errorf("%s: %d rows", op, q.Limit)
	}
	var out []store.Scheduled
	err := s.proved(ctx, op, p, func(t *tx) error {
		if q.First {
			n, err := t.exec(sqlReviveScheduled, millis(q.Now))
			if err != nil {
				return err
			}
			t.changed = n > 0
		}
		err := t.each(context.Background(), sqlTurnScheduled, []any{millis(q.Now), q.Limit}, func(scan func(...any) error) error {
			var disabled bool
			m, err := scanScheduled(scan, &disabled)
			m.State, m.Disabled = store.ScheduledSending, disabled
			out = append(out, m)
			return err
		})
		if err != nil {
			return err
		}
		for _, m := range out {
			t.changed = true
			if _, err := t.exec(sqlClaimScheduled, p.Token, millis(q.Until), m.ID); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return nil, err // out may still be written to
	}
	rules.SortScheduled(out)
	return out, nil
}

// SettleScheduled is store.Schedules'.
func (s *Store) SettleScheduled(ctx context.Context, p store.Proof, done []store.ScheduledResult) error {
	const op = "store.SettleScheduled"
	if len(done) > store.MaxScheduledClaim {
		return fmt.Errorf("%s: %d rows", op, len(done))
	}
	return s.proved(ctx, op, p, func(t *tx) error {
		for _, d := range done {
			n, err := t.exec(sqlSettleScheduled, d.State, d.Reason, d.MessageID, d.Seq, millis(d.Again), millis(d.At), d.ID)
			if err != nil {
				return err
			}
			t.changed = t.changed || n > 0
		}
		return nil
	})
}

// TrimScheduled is store.Schedules'.
func (s *Store) TrimScheduled(ctx context.Context, p store.Proof, before time.Time, limit int) (int, error) {
	var gone int64
	err := s.proved(ctx, "store.TrimScheduled", p, func(t *tx) error {
		n, err := t.exec(sqlTrimScheduled, millis(before), limit)
		t.changed, gone = n > 0, n
		return err
	})
	if err != nil {
		return 0, err
	}
	return int(gone), nil
}

// ScheduledCounts is store.Schedules'.
func (s *Store) ScheduledCounts(ctx context.Context) (n store.ScheduledCounts, err error) {
	err = s.read(ctx, func(c *conn) error {
		var next int64
		err := c.row(sqlScheduledCounts, nil, &n.Open, &next)
		n.Next = moment(next)
		return err
	})
	return n, fault("store.ScheduledCounts", err)
}

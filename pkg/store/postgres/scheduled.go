package postgres

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/imdhq/imd/pkg/im"
	"github.com/imdhq/imd/pkg/store"
	"github.com/imdhq/imd/pkg/store/rules"
	"github.com/imdhq/imd/sdk/go/gen/clientv1"
)

const (
	scheduledColumns = `s.id, s.due_ms, s.created_ms, s.ended_ms, s.tries, s.state, s.reason, s.message_id, s.seq, s.sender, s.conversation_id, s.peer,
  s.request_id, s.client_id, s.body_hash, s.body`
	sqlSchedule         = `SELECT imd_schedule($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12)`
	sqlScheduledRequest = `SELECT ` + scheduledColumns + ` FROM scheduled s WHERE s.sender = $1 AND s.request_id = $2`
	sqlScheduledOne     = `SELECT ` + scheduledColumns + ` FROM scheduled s WHERE s.id = $1 AND ($2 = '' OR s.sender = $2)`
	sqlScheduledOf      = `SELECT ` + scheduledColumns + ` FROM scheduled s
  WHERE s.sender = $1 AND (s.due_ms, s.id) > ($2, $3) AND ($4 OR s.state IN (1, 2)) ORDER BY s.due_ms, s.id LIMIT $5`
	sqlScheduledAll = `SELECT ` + scheduledColumns + ` FROM scheduled s
  WHERE (s.due_ms, s.id) > ($1, $2) AND ($3 OR s.state IN (1, 2)) ORDER BY s.due_ms, s.id LIMIT $4`
	sqlCancelScheduled = `UPDATE scheduled SET state = 5, ended_ms = imd_now_ms() WHERE id = $1 AND state = 1 AND ($2 = '' OR sender = $2)`
	sqlClaimScheduled  = `SELECT ` + scheduledColumns + `, coalesce(a.disabled, false) FROM imd_claim_scheduled($1, $2, $3, $4, $5, $6, $7) s
  LEFT JOIN account a ON a.id = s.sender ORDER BY s.due_ms, s.id`
	sqlSettleScheduled = `SELECT imd_settle_scheduled($1, $2, $3, $4, $5, $6, $7, $8, $9, $10)`
	sqlTrimScheduled   = `SELECT imd_trim_scheduled($1, $2, $3, $4, $5)`
	sqlScheduledCounts = `SELECT (SELECT count(*) FROM scheduled WHERE state IN (1, 2)), coalesce((SELECT min(next_ms) FROM scheduled WHERE state IN (1, 2)), 0)`
)

// What imd_schedule answers.
const (
	schedStored = iota
	schedBefore
	_
	schedNotMember
	schedClosed
	schedBlocked
	schedWrongPeer
	_
	schedTooMany
)

// PutScheduled is store.Schedules'.
func (s *Store) PutScheduled(ctx context.Context, m store.Scheduled, most int) (store.Scheduled, bool, error) {
	const op = "store.PutScheduled"
	may := makes(&store.AppendRow{Conversation: m.Conversation, Peer: m.Peer, Sender: m.Sender})
	answer, err := change(ctx, s, func(ctx context.Context, c *pgx.Conn) (n int, err error) {
		err = c.QueryRow(ctx, sqlSchedule, m.ID, millis(m.Due), millis(m.Created), string(m.Sender), string(m.Conversation), string(m.Peer), may,
			string(m.RequestID), string(m.ClientMessageID), m.BodyHash[:], m.Content, most).Scan(&n)
		return n, err
	})
	if err != nil {
		return store.Scheduled{}, false, fault(op, err)
	}
	switch answer {
	case schedStored:
		m.State = store.ScheduledWaiting
		return m, false, nil
	case schedBefore:
		had, err := s.oneScheduled(ctx, op, sqlScheduledRequest, string(m.Sender), string(m.RequestID))
		if err == nil {
			err = rules.SameScheduled(op, &had, &m)
		}
		return had, true, err
	case schedClosed:
		return store.Scheduled{}, false, rules.Closed(op, m.Conversation)
	case schedBlocked:
		return store.Scheduled{}, false, refuse(clientv1.Reason_REASON_FORBIDDEN, op, "the recipient does not take messages from you")
	case schedWrongPeer:
		return store.Scheduled{}, false, refuse(clientv1.Reason_REASON_BAD_REQUEST, op, "%s is not the conversation of these users", m.Conversation)
	case schedTooMany:
		return store.Scheduled{}, false, rules.TooManyScheduled(op, most)
	}
	return store.Scheduled{}, false, rules.NotMember(op, m.Conversation)
}

func scanScheduled(row scanner, more ...any) (m store.Scheduled, err error) {
	var due, created, ended int64
	var hash []byte
	err = row.Scan(append([]any{&m.ID, &due, &created, &ended, &m.Tries, &m.State, &m.Reason, &m.MessageID, &m.Seq, &m.Sender, &m.Conversation, &m.Peer,
		&m.RequestID, &m.ClientMessageID, &hash, &m.Content}, more...)...)
	m.Due, m.Created, m.Ended = moment(due), moment(created), moment(ended)
	copy(m.BodyHash[:], hash)
	return m, err
}

func (s *Store) oneScheduled(ctx context.Context, op, query string, args ...any) (store.Scheduled, error) {
	m, err := read(ctx, s, func(ctx context.Context, c *pgx.Conn) (store.Scheduled, error) {
		m, err := scanScheduled(c.QueryRow(ctx, query, args...))
		return m, missing(err)
	})
	return m, fault(op, err)
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
	out, err := read(ctx, s, func(ctx context.Context, c *pgx.Conn) ([]store.Scheduled, error) {
		rows, err := c.Query(ctx, query, args...)
		if err != nil {
			return nil, err
		}
		return pgx.CollectRows(rows, func(row pgx.CollectableRow) (store.Scheduled, error) { return scanScheduled(row) })
	})
	return out, fault(op, err)
}

// CancelScheduled is store.Schedules'. Whoever claims the row meanwhile waits for
// its lock, or has it: then it does not wait any more.
func (s *Store) CancelScheduled(ctx context.Context, id int64, user im.UserID) (store.Scheduled, error) {
	m, err := change(ctx, s, func(ctx context.Context, c *pgx.Conn) (store.Scheduled, error) {
		if _, err := c.Exec(ctx, sqlCancelScheduled, id, string(user)); err != nil {
			return store.Scheduled{}, err
		}
		m, err := scanScheduled(c.QueryRow(ctx, sqlScheduledOne, id, string(user)))
		return m, missing(err)
	})
	return m, fault("store.CancelScheduled", err)
}

// ClaimScheduled is store.Schedules'.
func (s *Store) ClaimScheduled(ctx context.Context, p store.Proof, q store.ScheduledClaim) ([]store.Scheduled, error) {
	const op = "store.ClaimScheduled"
	if q.Limit < 1 || q.Limit > store.MaxScheduledClaim {
		return nil, fmt.Errorf("%s: %d rows", op, q.Limit)
	}
	out, err := change(ctx, s, func(ctx context.Context, c *pgx.Conn) ([]store.Scheduled, error) {
		p := shown(ctx, c, p)
		rows, err := c.Query(ctx, sqlClaimScheduled, p.Name, p.Token, p.Holder, millis(q.Now), millis(q.Until), q.Limit, q.First)
		if err != nil {
			return nil, err
		}
		return pgx.CollectRows(rows, func(row pgx.CollectableRow) (store.Scheduled, error) {
			var disabled bool
			m, err := scanScheduled(row, &disabled)
			m.Disabled = disabled
			return m, err
		})
	})
	if codeOf(err) == codeFollowed {
		err = stale(p)
	}
	return out, fault(op, err)
}

// SettleScheduled is store.Schedules'.
func (s *Store) SettleScheduled(ctx context.Context, p store.Proof, done []store.ScheduledResult) error {
	const op = "store.SettleScheduled"
	n := len(done)
	if n > store.MaxScheduledClaim {
		return fmt.Errorf("%s: %d rows", op, n)
	}
	ids, nexts, messages, seqs, ats := make([]int64, n), make([]int64, n), make([]int64, n), make([]int64, n), make([]int64, n)
	states, reasons := make([]int16, n), make([]int16, n)
	for i, d := range done {
		ids[i], nexts[i], messages[i], seqs[i], ats[i] = d.ID, millis(d.Again), int64(d.MessageID), int64(d.Seq), millis(d.At)
		states[i], reasons[i] = int16(d.State), int16(d.Reason)
	}
	return s.proven(ctx, op, p, sqlSettleScheduled, ids, states, nexts, reasons, messages, seqs, ats)
}

// TrimScheduled is store.Schedules'.
func (s *Store) TrimScheduled(ctx context.Context, p store.Proof, before time.Time, limit int) (int, error) {
	return s.counted(ctx, "store.TrimScheduled", p, sqlTrimScheduled, millis(before), limit)
}

// ScheduledCounts is store.Schedules'.
func (s *Store) ScheduledCounts(ctx context.Context) (store.ScheduledCounts, error) {
	out, err := read(ctx, s, func(ctx context.Context, c *pgx.Conn) (n store.ScheduledCounts, err error) {
		var next int64
		err = c.QueryRow(ctx, sqlScheduledCounts).Scan(&n.Open, &next)
		n.Next = moment(next)
		return n, err
	})
	return out, fault("store.ScheduledCounts", err)
}

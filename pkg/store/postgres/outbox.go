package postgres

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/imdhq/imd/pkg/im"
	"github.com/imdhq/imd/pkg/store"
	"github.com/imdhq/imd/pkg/store/rules"
)

// proven runs a function of the server that answers whether p holds.
func (s *Store) proven(ctx context.Context, op string, p store.Proof, query string, args ...any) error {
	ok, err := change(ctx, s, func(ctx context.Context, c *pgx.Conn) (ok bool, err error) {
		p := shown(ctx, c, p)
		err = c.QueryRow(ctx, query, append([]any{p.Name, p.Token, p.Holder}, args...)...).Scan(&ok)
		return ok, err
	})
	if err == nil && !ok {
		err = stale(p)
	}
	return fault(op, err)
}

// counted runs a function of the server that answers with a number, -1 if p does
// not hold.
func (s *Store) counted(ctx context.Context, op string, p store.Proof, query string, args ...any) (int, error) {
	n, err := change(ctx, s, func(ctx context.Context, c *pgx.Conn) (n int, err error) {
		p := shown(ctx, c, p)
		err = c.QueryRow(ctx, query, append([]any{p.Name, p.Token, p.Holder}, args...)...).Scan(&n)
		return n, err
	})
	if err == nil && n < 0 {
		err = stale(p)
	}
	return max(n, 0), fault(op, err)
}

const (
	sqlSetFeed    = `SELECT imd_set_feed($1, $2, $3, $4)`
	sqlOutbox     = `SELECT feeding, trimmed + 1, last_pos, EXISTS (SELECT 1 FROM feed) FROM outbox WHERE id = 1`
	sqlGather     = `SELECT imd_gather($1, $2, $3, $4)`
	sqlPutEvents  = `SELECT imd_put_events($1, $2, $3, $4, $5, $6)`
	sqlOnline     = `SELECT user_id FROM user_online WHERE user_id > $1 ORDER BY user_id LIMIT $2`
	sqlTrimEvents = `SELECT imd_trim_events($1, $2, $3, $4, $5)`
)

// SetFeed is store.Outbox's.
func (s *Store) SetFeed(ctx context.Context, p store.Proof, on bool) error {
	return s.proven(ctx, "store.SetFeed", p, sqlSetFeed, on)
}

// OutboxState is store.Outbox's.
func (s *Store) OutboxState(ctx context.Context) (store.OutboxState, error) {
	o, err := read(ctx, s, func(ctx context.Context, c *pgx.Conn) (o store.OutboxState, err error) {
		err = c.QueryRow(ctx, sqlOutbox).Scan(&o.On, &o.First, &o.Last, &o.Marks)
		return o, err
	})
	return o, fault("store.OutboxState", err)
}

// Gather is store.Outbox's.
func (s *Store) Gather(ctx context.Context, p store.Proof, limit int) (int, error) {
	return s.counted(ctx, "store.Gather", p, sqlGather, limit)
}

// PutEvents is store.Outbox's.
func (s *Store) PutEvents(ctx context.Context, p store.Proof, events []store.Event) error {
	n := len(events)
	kinds, users, ats := make([]int16, n), make([]string, n), make([]int64, n)
	for i, e := range events {
		kinds[i], users[i], ats[i] = int16(e.Kind), string(e.User), millis(e.At)
	}
	return s.proven(ctx, "store.PutEvents", p, sqlPutEvents, kinds, users, ats)
}

// OnlineUsers is store.Outbox's.
func (s *Store) OnlineUsers(ctx context.Context, after im.UserID, limit int) ([]im.UserID, error) {
	out, err := read(ctx, s, func(ctx context.Context, c *pgx.Conn) ([]im.UserID, error) {
		rows, err := c.Query(ctx, sqlOnline, string(after), limit)
		if err != nil {
			return nil, err
		}
		return pgx.CollectRows(rows, pgx.RowTo[im.UserID])
	})
	return out, fault("store.OnlineUsers", err)
}

// TrimEvents is store.Outbox's.
func (s *Store) TrimEvents(ctx context.Context, p store.Proof, before time.Time, limit int) (int, error) {
	return s.counted(ctx, "store.TrimEvents", p, sqlTrimEvents, millis(before), limit)
}

const (
	eventColumns = `v.pos, v.kind, v.at_ms, v.conv, v.seq, v.user_id, coalesce((SELECT c.id FROM conversation c WHERE c.num = v.conv), '')`
	sqlEvents    = `SELECT ` + eventColumns + ` FROM event v WHERE v.pos > $1 ORDER BY v.pos LIMIT $2`
	sqlEventsAt  = `SELECT ` + eventColumns + `, ` + entryColumns + ` FROM event v
  LEFT JOIN LATERAL (SELECT * FROM entry x WHERE x.conv = v.conv AND x.seq = v.seq) e ON true WHERE v.pos = ANY ($1) ORDER BY v.pos`
)

// Events is store.Outbox's.
func (s *Store) Events(ctx context.Context, after int64, limit int) ([]store.Event, error) {
	return s.events(ctx, "store.Events", func(row scanner) (store.Event, error) { return scanEvent(row) }, sqlEvents, after, limit)
}

// EventsAt is store.Outbox's.
func (s *Store) EventsAt(ctx context.Context, positions []int64) ([]store.Event, error) {
	return s.events(ctx, "store.EventsAt", func(row scanner) (store.Event, error) {
		var r entryRow
		v, err := scanEvent(row, r.into()...)
		if e, ok := r.entry(); ok {
			v.Entry = &e
		}
		return v, err
	}, sqlEventsAt, positions)
}

func (s *Store) events(ctx context.Context, op string, scan func(scanner) (store.Event, error), query string, args ...any) ([]store.Event, error) {
	out, err := read(ctx, s, func(ctx context.Context, c *pgx.Conn) ([]store.Event, error) {
		rows, err := c.Query(ctx, query, args...)
		if err != nil {
			return nil, err
		}
		return pgx.CollectRows(rows, func(row pgx.CollectableRow) (store.Event, error) { return scan(row) })
	})
	return out, fault(op, err)
}

func scanEvent(row scanner, more ...any) (v store.Event, err error) {
	var ms int64
	err = row.Scan(append([]any{&v.Position, &v.Kind, &ms, &v.Key, &v.Seq, &v.User, &v.Conversation}, more...)...)
	v.At, v.Key = moment(ms), rules.EventKey(v.Key, v.User)
	return v, err
}

const (
	sqlReceivers = `SELECT r.name, r.cursor, r.reached, r.generation, r.saved_ms, r.open,
  (SELECT count(*) FROM dead_letter d WHERE d.receiver = r.name) FROM receiver r ORDER BY r.name`
	sqlSaveReceiver = `SELECT imd_save_receiver($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16, $17)`
	sqlRewind       = `SELECT imd_rewind($1, $2, $3)`
	sqlRemove       = `WITH d AS (DELETE FROM dead_letter WHERE receiver = $1) DELETE FROM receiver WHERE name = $1`
	sqlDeadLetters  = `SELECT receiver, pos, at_ms, tries, reason, again FROM dead_letter WHERE receiver = $1 AND pos > $2 ORDER BY pos LIMIT $3`
)

// Receivers is store.Outbox's.
func (s *Store) Receivers(ctx context.Context) ([]store.Receiver, error) {
	out, err := read(ctx, s, func(ctx context.Context, c *pgx.Conn) ([]store.Receiver, error) {
		rows, err := c.Query(ctx, sqlReceivers)
		if err != nil {
			return nil, err
		}
		return pgx.CollectRows(rows, func(row pgx.CollectableRow) (r store.Receiver, err error) {
			var ms int64
			var open []byte
			if err = row.Scan(&r.Name, &r.Cursor, &r.Reached, &r.Generation, &ms, &open, &r.Dead); err != nil {
				return r, err
			}
			r.Saved = moment(ms)
			r.Open, err = rules.DecodeOpen(open)
			return r, err
		})
	})
	return out, fault("store.Receivers", err)
}

// SaveReceiver is store.Outbox's.
func (s *Store) SaveReceiver(ctx context.Context, p store.Proof, r store.Receiver, settled store.Settled) (bool, error) {
	const op = "store.SaveReceiver"
	if r.Name == "" || len(r.Name) > 64 {
		return false, fmt.Errorf("%s: a receiver %q", op, r.Name)
	}
	n := len(settled.Dead)
	dead, tries, reasons := make([]int64, n), make([]int32, n), make([]string, n)
	for i, d := range settled.Dead {
		dead[i], tries[i], reasons[i] = d.Position, int32(d.Tries), d.Reason
	}
	revived := settled.Revived
	if revived == nil {
		revived = []int64{}
	}
	b := pushRows(settled.Pushes)
	left, err := s.counted(ctx, op, p, sqlSaveReceiver, r.Name, r.Cursor, r.Reached, r.Generation, rules.EncodeOpen(r.Open),
		dead, tries, reasons, revived, b.users, b.convs, b.seqs, b.ids, b.senders)
	return left == 0 && err == nil, err
}

// Rewind is store.Outbox's.
func (s *Store) Rewind(ctx context.Context, name string, after int64, dead bool) (int, error) {
	n, err := change(ctx, s, func(ctx context.Context, c *pgx.Conn) (n int, err error) {
		err = c.QueryRow(ctx, sqlRewind, name, after, dead).Scan(&n)
		return n, err
	})
	if err == nil && n < 0 {
		err = fmt.Errorf("receiver %q: %w", name, store.ErrNotFound)
	}
	return max(n, 0), fault("store.Rewind", err)
}

// RemoveReceiver is store.Outbox's.
func (s *Store) RemoveReceiver(ctx context.Context, name string) error {
	n, err := s.exec(ctx, "store.RemoveReceiver", sqlRemove, name)
	if err == nil && n == 0 {
		err = fmt.Errorf("receiver %q: %w", name, store.ErrNotFound)
	}
	return err
}

// DeadLetters is store.Outbox's.
func (s *Store) DeadLetters(ctx context.Context, name string, after int64, limit int) ([]store.DeadLetter, error) {
	out, err := read(ctx, s, func(ctx context.Context, c *pgx.Conn) ([]store.DeadLetter, error) {
		rows, err := c.Query(ctx, sqlDeadLetters, name, after, limit)
		if err != nil {
			return nil, err
		}
		return pgx.CollectRows(rows, func(row pgx.CollectableRow) (d store.DeadLetter, err error) {
			var ms int64
			err = row.Scan(&d.Receiver, &d.Position, &ms, &d.Tries, &d.Reason, &d.Again)
			d.At = moment(ms)
			return d, err
		})
	})
	return out, fault("store.DeadLetters", err)
}

// pushBatch is pushes as functions of the server take them.
type pushBatch struct {
	users, convs, senders []string
	seqs, ids             []int64
}

func pushRows(list []store.Push) pushBatch {
	n := len(list)
	b := pushBatch{make([]string, n), make([]string, n), make([]string, n), make([]int64, n), make([]int64, n)}
	for i, p := range list {
		b.users[i], b.convs[i], b.senders[i] = string(p.User), string(p.Conversation), string(p.Sender)
		b.seqs[i], b.ids[i] = int64(p.Seq), int64(p.MessageID)
	}
	return b
}

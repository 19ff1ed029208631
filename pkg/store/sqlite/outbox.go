package sqlite

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/imdhq/imd/pkg/im"
	"github.com/imdhq/imd/pkg/store"
	"github.com/imdhq/imd/pkg/store/rules"
)

const (
	sqlFeeding = `SELECT feeding FROM outbox WHERE id = 1`
	sqlMark    = `INSERT INTO feed (conv, low, high) VALUES (?, ?, ?)`
)

// mark leaves marks for what the transaction has added to conversations.
func (t *tx) mark() error {
	if !t.feeding {
		return nil
	}
	for _, c := range t.dirty {
		if low, ok := t.grown[c]; ok {
			if _, err := t.exec(sqlMark, c.num, low, c.Head); err != nil {
				return err
			}
		}
	}
	return nil
}

// proved runs fn, which changes something, if p holds.
func (s *Store) proved(ctx context.Context, op string, p store.Proof, fn func(*tx) error) error {
	return fault(op, s.w.run(ctx, func(t *tx) error {
		if err := t.prove(p); err != nil {
			return err
		}
		return fn(t)
	}))
}

// SetFeed is store.Outbox's.
func (s *Store) SetFeed(ctx context.Context, p store.Proof, on bool) error {
	return s.proved(ctx, "store.SetFeed", p, func(t *tx) error {
		if t.feeding == on {
			return nil
		}
		t.changed, t.feeds = true, &on
		if _, err := t.exec(`UPDATE outbox SET feeding = ? WHERE id = 1`, on); err != nil || on {
			return err
		}
		_, err := t.exec(`DELETE FROM feed`)
		return err
	})
}

const sqlOutbox = `SELECT feeding, trimmed + 1, last_pos, EXISTS (SELECT 1 FROM feed) FROM outbox WHERE id = 1`

// OutboxState is store.Outbox's.
func (s *Store) OutboxState(ctx context.Context) (store.OutboxState, error) {
	var o store.OutboxState
	err := s.read(ctx, func(c *conn) error { return c.row(sqlOutbox, nil, &o.On, &o.First, &o.Last, &o.Marks) })
	return o, fault("store.OutboxState", err)
}

const (
	sqlMarks  = `SELECT count(*), coalesce(max(id), 0) FROM (SELECT id FROM feed ORDER BY id LIMIT ?)`
	sqlGather = `INSERT INTO event (pos, conv, seq, at_ms, kind, user_id)
  SELECT ? + row_number() OVER (ORDER BY f.id, e.seq), e.conv, e.seq, e.server_time_ms, e.kind, ''
  FROM feed f JOIN entry e ON e.conv = f.conv AND e.seq > f.low AND e.seq <= f.high WHERE f.id <= ?`
	sqlGathered = `DELETE FROM feed WHERE id <= ?`
	sqlLastPos  = `SELECT last_pos FROM outbox WHERE id = 1`
	sqlMovePos  = `UPDATE outbox SET last_pos = ? WHERE id = 1`
)

// Gather is store.Outbox's. There is one writer: all marks are seen.
func (s *Store) Gather(ctx context.Context, p store.Proof, limit int) (int, error) {
	var marks int
	err := s.proved(ctx, "store.Gather", p, func(t *tx) error {
		var newest, base int64
		if err := t.row(sqlMarks, []any{limit}, &marks, &newest); err != nil || marks == 0 {
			return err
		}
		t.changed = true
		if err := t.row(sqlLastPos, nil, &base); err != nil {
			return err
		}
		made, err := t.exec(sqlGather, base, newest)
		if err == nil {
			_, err = t.exec(sqlGathered, newest)
		}
		if err == nil {
			_, err = t.exec(sqlMovePos, base+made)
		}
		return err
	})
	if err != nil {
		return 0, err
	}
	return marks, nil
}

const (
	sqlPutEvent  = `INSERT INTO event (pos, conv, seq, at_ms, kind, user_id) VALUES (?, 0, 0, ?, ?, ?)`
	sqlComes     = `INSERT INTO user_online (user_id) VALUES (?) ON CONFLICT DO NOTHING`
	sqlGoes      = `DELETE FROM user_online WHERE user_id = ?`
	sqlAreOnline = `SELECT user_id FROM user_online WHERE user_id > ? ORDER BY user_id LIMIT ?`
)

// PutEvents is store.Outbox's.
func (s *Store) PutEvents(ctx context.Context, p store.Proof, events []store.Event) error {
	return s.proved(ctx, "store.PutEvents", p, func(t *tx) error {
		var last int64
		if err := t.row(sqlLastPos, nil, &last); err != nil {
			return err
		}
		for _, e := range events {
			turn := sqlGoes
			if e.Kind == store.UserOnline {
				turn = sqlComes
			}
			n, err := t.exec(turn, string(e.User))
			if err != nil {
				return err
			}
			if n == 0 {
				continue
			}
			last++
			t.changed = true
			if _, err := t.exec(sqlPutEvent, last, millis(e.At), e.Kind, string(e.User)); err != nil {
				return err
			}
		}
		_, err := t.exec(sqlMovePos, last)
		return err
	})
}

// OnlineUsers is store.Outbox's.
func (s *Store) OnlineUsers(ctx context.Context, after im.UserID, limit int) ([]im.UserID, error) {
	var out []im.UserID
	err := s.read(ctx, func(c *conn) error {
		return c.each(ctx, sqlAreOnline, []any{string(after), limit}, func(scan func(...any) error) error {
			var u im.UserID
			if err := scan(&u); err != nil {
				return err
			}
			out = append(out, u)
			return nil
		})
	})
	return out, fault("store.OnlineUsers", err)
}

const (
	sqlTrimTo    = `SELECT coalesce(max(pos), 0) FROM (SELECT pos, at_ms FROM event ORDER BY pos LIMIT ?) WHERE at_ms < ?`
	sqlTrim      = `DELETE FROM event WHERE pos <= ?`
	sqlTrimDead  = `DELETE FROM dead_letter WHERE pos <= ?`
	sqlTrimmedTo = `UPDATE outbox SET trimmed = ? WHERE id = 1`
)

// TrimEvents is store.Outbox's.
func (s *Store) TrimEvents(ctx context.Context, p store.Proof, before time.Time, limit int) (int, error) {
	var n int64
	err := s.proved(ctx, "store.TrimEvents", p, func(t *tx) error {
		var upto int64
		if err := t.row(sqlTrimTo, []any{limit, millis(before)}, &upto); err != nil || upto == 0 {
			return err
		}
		t.changed = true
		_, err := t.exec(sqlTrimDead, upto)
		if err == nil {
			n, err = t.exec(sqlTrim, upto)
		}
		if err == nil {
			_, err = t.exec(sqlTrimmedTo, upto)
		}
		return err
	})
	if err != nil {
		return 0, err
	}
	return int(n), nil
}

const (
	eventColumns = `v.pos, v.kind, v.at_ms, v.conv, v.seq, v.user_id, coalesce((SELECT c.id FROM conversation c WHERE c.num = v.conv), '')`
	sqlEvents    = `SELECT ` + eventColumns + ` FROM event v WHERE v.pos > ? ORDER BY v.pos LIMIT ?`
	sqlEventsAt  = `SELECT ` + eventColumns + ` FROM event v WHERE v.pos IN (SELECT value FROM json_each(?)) ORDER BY v.pos`
	sqlEntryOf   = `SELECT ` + entryColumns + ` FROM entry WHERE conv = ? AND seq = ?`
)

// Events is store.Outbox's.
func (s *Store) Events(ctx context.Context, after int64, limit int) ([]store.Event, error) {
	var out []store.Event
	err := s.read(ctx, func(c *conn) error {
		return c.each(ctx, sqlEvents, []any{after, limit}, func(scan func(...any) error) error {
			v, _, err := scanEvent(scan)
			out = append(out, v)
			return err
		})
	})
	return out, fault("store.Events", err)
}

// EventsAt is store.Outbox's.
func (s *Store) EventsAt(ctx context.Context, positions []int64) ([]store.Event, error) {
	list, err := json.Marshal(positions)
	if err != nil {
		return nil, err
	}
	var out []store.Event
	err = s.read(ctx, func(c *conn) error {
		var nums []int64
		err := c.each(ctx, sqlEventsAt, []any{string(list)}, func(scan func(...any) error) error {
			v, num, err := scanEvent(scan)
			out, nums = append(out, v), append(nums, num)
			return err
		})
		for i := range out {
			if err != nil || nums[i] == 0 {
				continue
			}
			err = c.each(ctx, sqlEntryOf, []any{nums[i], out[i].Seq}, func(scan func(...any) error) error {
				out[i].Entry = &im.Entry{}
				return scanEntry(scan, out[i].Entry)
			})
		}
		return err
	})
	return out, fault("store.EventsAt", err)
}

func scanEvent(scan func(...any) error) (v store.Event, num int64, err error) {
	var ms int64
	err = scan(&v.Position, &v.Kind, &ms, &num, &v.Seq, &v.User, &v.Conversation)
	v.At, v.Key = moment(ms), rules.EventKey(num, v.User)
	return v, num, err
}

const (
	sqlReceivers = `SELECT r.name, r.cursor, r.reached, r.generation, r.saved_ms, r.open,
  (SELECT count(*) FROM dead_letter d WHERE d.receiver = r.name) FROM receiver r ORDER BY r.name`
	sqlAddReceiver = `INSERT INTO receiver (name, cursor, reached, generation, token, saved_ms, open) VALUES (?, ?, ?, 1, ?, ?, ?)
  ON CONFLICT (name) DO NOTHING`
	sqlPutReceiver = `UPDATE receiver SET cursor = ?, reached = max(reached, ?), token = ?, saved_ms = ?, open = ? WHERE name = ? AND generation = ?`
	sqlRevive      = `DELETE FROM dead_letter WHERE receiver = ? AND pos = ?`
	sqlPutDead     = `INSERT INTO dead_letter (receiver, pos, at_ms, tries, again, reason) VALUES (?, ?, ?, ?, 0, ?)
  ON CONFLICT (receiver, pos) DO UPDATE SET at_ms = excluded.at_ms, tries = excluded.tries, again = 0, reason = excluded.reason`
)

// Receivers is store.Outbox's.
func (s *Store) Receivers(ctx context.Context) ([]store.Receiver, error) {
	var out []store.Receiver
	err := s.read(ctx, func(c *conn) error {
		return c.each(ctx, sqlReceivers, nil, func(scan func(...any) error) error {
			var r store.Receiver
			var ms int64
			var open []byte
			err := scan(&r.Name, &r.Cursor, &r.Reached, &r.Generation, &ms, &open, &r.Dead)
			if err == nil {
				r.Open, err = rules.DecodeOpen(open)
			}
			r.Saved = moment(ms)
			out = append(out, r)
			return err
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
	saved := false
	err := s.proved(ctx, op, p, func(t *tx) error {
		n, err := t.putReceiver(p, r)
		if err != nil || n == 0 {
			return err
		}
		t.changed = true
		if err := t.settle(r.Name, settled); err != nil {
			return err
		}
		saved = true
		return nil
	})
	if err != nil {
		return false, err
	}
	return saved, nil
}

func (t *tx) putReceiver(p store.Proof, r store.Receiver) (int64, error) {
	now, open := t.now.UnixMilli(), rules.EncodeOpen(r.Open)
	if r.Generation == 0 {
		return t.exec(sqlAddReceiver, r.Name, r.Cursor, r.Reached, p.Token, now, open)
	}
	return t.exec(sqlPutReceiver, r.Cursor, r.Reached, p.Token, now, open, r.Name, r.Generation)
}

// settle stores what was settled with a receiver.
func (t *tx) settle(name string, settled store.Settled) error {
	for _, pos := range settled.Revived {
		if _, err := t.exec(sqlRevive, name, pos); err != nil {
			return err
		}
	}
	for _, d := range settled.Dead {
		if _, err := t.exec(sqlPutDead, name, d.Position, t.now.UnixMilli(), d.Tries, d.Reason); err != nil {
			return err
		}
	}
	for _, p := range settled.Pushes {
		if err := t.putPush(p); err != nil {
			return err
		}
	}
	return nil
}

const (
	sqlReceiver = `SELECT cursor FROM receiver WHERE name = ?`
	sqlRewind   = `UPDATE receiver SET generation = generation + 1, cursor = min(cursor, ?), open = x'' WHERE name = ?`
	sqlRegroup  = `UPDATE receiver SET generation = generation + 1 WHERE name = ?`
	sqlAgain    = `UPDATE dead_letter SET again = 1 WHERE receiver = ?`
	sqlRemove   = `DELETE FROM receiver WHERE name = ?`
	sqlDropDead = `DELETE FROM dead_letter WHERE receiver = ?`
)

// Rewind is store.Outbox's.
func (s *Store) Rewind(ctx context.Context, name string, after int64, dead bool) (int, error) {
	var letters int64
	err := s.w.run(ctx, func(t *tx) error {
		if err := t.receiver(name); err != nil {
			return err
		}
		t.changed = true
		if !dead {
			_, err := t.exec(sqlRewind, after, name)
			return err
		}
		_, err := t.exec(sqlRegroup, name)
		if err == nil {
			letters, err = t.exec(sqlAgain, name)
		}
		return err
	})
	if err != nil {
		return 0, fault("store.Rewind", err)
	}
	return int(letters), nil
}

// receiver fails with store.ErrNotFound if there is none of this name.
func (t *tx) receiver(name string) error {
	var cursor int64
	err := t.row(sqlReceiver, []any{name}, &cursor)
	if errors.Is(err, sql.ErrNoRows) {
		return fmt.Errorf("receiver %q: %w", name, store.ErrNotFound)
	}
	return err
}

// RemoveReceiver is store.Outbox's.
func (s *Store) RemoveReceiver(ctx context.Context, name string) error {
	return fault("store.RemoveReceiver", s.w.run(ctx, func(t *tx) error {
		if err := t.receiver(name); err != nil {
			return err
		}
		t.changed = true
		_, err := t.exec(sqlRemove, name)
		if err == nil {
			_, err = t.exec(sqlDropDead, name)
		}
		return err
	}))
}

const sqlDeadLetters = `SELECT receiver, pos, at_ms, tries, reason, again FROM dead_letter WHERE receiver = ? AND pos > ? ORDER BY pos LIMIT ?`

// DeadLetters is store.Outbox's.
func (s *Store) DeadLetters(ctx context.Context, name string, after int64, limit int) ([]store.DeadLetter, error) {
	var out []store.DeadLetter
	err := s.read(ctx, func(c *conn) error {
		return c.each(ctx, sqlDeadLetters, []any{name, after, limit}, func(scan func(...any) error) error {
			var d store.DeadLetter
			var ms int64
			err := scan(&d.Receiver, &d.Position, &ms, &d.Tries, &d.Reason, &d.Again)
			d.At = moment(ms)
			out = append(out, d)
			return err
		})
	})
	return out, fault("store.DeadLetters", err)
}

package sqlite

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"net/url"
	"slices"
	"strconv"
	"time"

	"go.uber.org/zap"

	"github.com/imdhq/imd/pkg/store"
	"github.com/imdhq/imd/pkg/store/rules"
)

// target is a store.Target.
type target struct {
	s *Store
}

// OpenTarget opens the database that u names, making it if need be, to fill it.
// Errors: as Open.
func OpenTarget(ctx context.Context, u *url.URL, log *zap.Logger) (store.Target, error) {
	path, err := Path(u)
	if err != nil {
		return nil, err
	}
	s, err := Open(ctx, Options{Path: path, Log: log, filling: true})
	if err != nil {
		return nil, err
	}
	return &target{s}, nil
}

const sqlUnfinished = `SELECT EXISTS (SELECT 1 FROM import WHERE finished_ms = 0)`

// unfinished refuses a database that a copy was begun into.
func unfinished(c *conn, path string) error {
	var open bool
	if err := c.row(sqlUnfinished, nil, &open); err != nil || !open {
		return err
	}
	return fmt.Errorf("the database %s is half a copy of another store; run imd store copy again, or remove it: %w", path, store.ErrUnfinished)
}

const (
	sqlImport     = `SELECT data_epoch, state, finished_ms FROM import WHERE id = 1`
	sqlBeginning  = `INSERT INTO import (id, data_epoch, state, newest_ms, finished_ms) VALUES (1, ?, ?, ?, 0)`
	sqlProgress   = `SELECT name, place, ended, rows, sum FROM import_table`
	sqlPutAdvance = `INSERT INTO import_table (name, place, ended, rows, sum) VALUES (?, ?, ?, ?, ?) ON CONFLICT (name) DO UPDATE
  SET place = excluded.place, ended = excluded.ended, rows = excluded.rows, sum = excluded.sum`
)

// Begin is store.Target's.
func (g *target) Begin(ctx context.Context, o store.Origin) (have store.Taken, err error) {
	err = g.s.w.run(ctx, func(t *tx) error {
		var epoch, state string
		var ended int64
		err := t.row(sqlImport, nil, &epoch, &state, &ended)
		switch {
		case errors.Is(err, sql.ErrNoRows):
			return t.beginImport(ctx, o)
		case err != nil:
			return err
		}
		have.Finished = ended != 0
		if have.Moved, err = o.Meet(epoch, state, have.Finished); err != nil {
			return err
		}
		have.Tables = map[store.Table]store.Progress{}
		return t.each(ctx, sqlProgress, nil, func(scan func(...any) error) error {
			var name store.Table
			var p store.Progress
			err := scan(&name, &p.After, &p.End, &p.Rows, &p.Sum)
			have.Tables[name] = p
			return err
		})
	})
	return have, err
}

// moreTables are those that must be empty at the beginning beside the ones that are
// counted.
var moreTables = []string{"seen", "mute", "receiver", "user_online", "push", "scheduled", "announcement"}

// beginImport notes that a copy has begun, in an empty store.
func (t *tx) beginImport(ctx context.Context, o store.Origin) error {
	for _, name := range slices.Concat(tables, moreTables) {
		if err := ctx.Err(); err != nil {
			return err
		}
		var any bool
		if err := t.row(`SELECT EXISTS (SELECT 1 FROM `+name+`)`, nil, &any); err != nil {
			return err
		}
		if any {
			return fmt.Errorf("there are rows in table %s: %w", name, store.ErrOccupied)
		}
	}
	t.changed = true
	if commits, err := strconv.ParseInt(o.State, 10, 64); err == nil {
		t.version = max(t.version, commits+1) // tokens of an SQLite source keep their meaning
	}
	_, err := t.exec(sqlBeginning, o.DataEpoch, o.State, millis(o.Newest))
	return err
}

// Import is store.Target's.
func (g *target) Import(ctx context.Context, table store.Table, b *store.Batch, p store.Progress) error {
	return g.s.w.run(ctx, func(t *tx) error {
		t.changed = true
		if err := t.importRows(b); err != nil {
			return err
		}
		_, err := t.exec(sqlPutAdvance, string(table), p.After, p.End, p.Rows, p.Sum)
		return err
	})
}

const (
	sqlImportUser         = `INSERT INTO user (id, created_ms, disabled) VALUES (?, ?, ?)`
	sqlImportBlock        = `INSERT INTO block (user_id, blocked) VALUES (?, ?)`
	sqlImportMute         = `INSERT INTO mute (user_id, conversation_id, until_ms) VALUES (?, ?, ?)`
	sqlImportFeed         = `UPDATE outbox SET feeding = 1 WHERE id = 1`
	sqlImportRevocation   = `INSERT INTO revocation (user_id, login, issued_before_ms, reason, until_ms) VALUES (?, ?, ?, ?, ?)`
	sqlImportKey          = `INSERT INTO api_key (id, name, scopes, secret_hash, created_ms, revoked_ms) VALUES (?, ?, ?, ?, ?, ?)`
	sqlImportConversation = `INSERT INTO conversation (num, id, kind, name, closed, open_history, user_a, user_b, head, kept, members,
  member_version, version, head_version) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)`
	sqlImportEntry = `INSERT INTO entry (conv, seq, prev_seq, kind, countable, sender, message_id, client_message_id, server_time_ms,
  target_seq, changed_seq, body_hash, change, content) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)`
	sqlImportWorker = `INSERT INTO worker (id, mark_us) VALUES (?, ?)`
	sqlImportOnline = `INSERT INTO user_online (user_id) VALUES (?)`
	sqlImportPush   = `INSERT INTO push (user_id, conversation_id, seq, message_id, sender, state, at_ms, due_ms, tries, told) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)`
	sqlImportLater  = `INSERT INTO scheduled (id, due_ms, next_ms, created_ms, ended_ms, token, tries, state, reason, message_id, seq, sender, conversation_id,
  peer, request_id, client_id, body_hash, body) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)`
	sqlImportPosted = `INSERT INTO announcement (seq, created_ms, expires_ms, withdrawn_ms, withdrawal, request_id, body) VALUES (?, ?, ?, ?, ?, ?, ?)`
	sqlImportUpTo   = `UPDATE announcing SET last_seq = ?, version = ? WHERE id = 1`
)

// importRows stores rows as they are.
func (t *tx) importRows(b *store.Batch) (err error) {
	put := func(query string, args ...any) {
		if err == nil {
			_, err = t.exec(query, args...)
		}
	}
	for _, r := range b.Users {
		put(sqlImportUser, string(r.ID), r.Created.UnixMilli(), r.Disabled)
	}
	for _, r := range b.Blocks {
		put(sqlImportBlock, string(r.User), string(r.Blocked))
	}
	for _, r := range b.Mutes {
		put(sqlImportMute, string(r.User), string(r.Conversation), r.Until.UnixMilli())
	}
	for _, r := range b.ReceiverNames {
		put(sqlAddReceiver, r.Name, 0, 0, 0, t.now.UnixMilli(), []byte{})
		put(sqlImportFeed)
	}
	for _, r := range b.LastSeen {
		put(sqlSaveSeen, string(r.User), millis(r.At))
	}
	for _, r := range b.Revocations {
		put(sqlImportRevocation, string(r.User), string(r.Login), millis(r.IssuedBefore), r.Reason, millis(r.Until))
	}
	for _, r := range b.Keys {
		scopes, jerr := json.Marshal(r.Scopes)
		err = errors.Join(err, jerr)
		put(sqlImportKey, r.ID, r.Name, string(scopes), r.SecretHash[:], millis(r.Created), millis(r.Revoked))
	}
	for _, r := range b.Conversations {
		put(sqlImportConversation, r.Num, string(r.ID), r.Kind, r.Name, r.Closed, r.OpenHistory, string(r.UserA), string(r.UserB),
			r.Head, r.Kept, r.Members, r.MemberVersion, t.version, t.version)
	}
	for _, r := range b.Creations {
		put(sqlAddCreation, string(r.Actor), key(r.RequestID), r.Conv)
	}
	for _, r := range b.Members {
		put(sqlPutMember, string(r.User), string(r.Conversation), r.Conv, r.Role, r.Start, r.End, rules.EncodeStretches(r.Earlier), r.Cleared,
			r.Delivered, r.Read, r.LeftName, t.version)
	}
	for i := range b.Entries {
		r := &b.Entries[i]
		put(sqlImportEntry, r.Conv, r.Seq, r.PrevSeq, r.Kind, r.Countable, string(r.Sender), r.MessageID, key(r.ClientMessageID),
			r.ServerTime.UnixMilli(), r.TargetSeq, r.ChangedSeq, r.BodyHash, r.Change, r.Content)
	}
	for _, r := range b.WorkerMarks {
		put(sqlImportWorker, r.Worker, r.Mark.UnixMicro())
	}
	for _, r := range b.FenceTokens {
		put(sqlPutFence, r.Name, r.Token, r.Holder, r.Cluster, r.Revision, r.Claimed.UnixMilli())
	}
	importLater(b, put)
	return err
}

// importLater stores rows of what is still to be told or sent.
func importLater(b *store.Batch, put func(query string, args ...any)) {
	for _, r := range b.Online {
		put(sqlImportOnline, string(r.User))
	}
	for _, r := range b.PushRows {
		put(sqlImportPush, string(r.User), string(r.Conversation), r.Seq, r.MessageID, string(r.Sender), r.State, millis(r.At), millis(r.Due), r.Tries, r.Told)
	}
	for i := range b.Later {
		r := &b.Later[i]
		put(sqlImportLater, r.ID, millis(r.Due), millis(r.Turn), millis(r.Created), millis(r.Ended), r.Token(), r.Tries, r.State, r.Reason, r.MessageID, r.Seq,
			string(r.Sender), string(r.Conversation), string(r.Peer), string(r.RequestID), string(r.ClientMessageID), r.BodyHash[:], r.Content)
	}
	for _, r := range b.Posted {
		put(sqlImportPosted, r.Seq, millis(r.Created), millis(r.Expires), millis(r.Withdrawn), r.Withdrawal, string(r.RequestID), r.Text)
	}
	for _, r := range b.PostedUpTo {
		put(sqlImportUpTo, r.Seq, r.Version)
	}
}

// Export is store.Exporter's.
func (g *target) Export(ctx context.Context, t store.Table, after string, limit int) (b *store.Batch, err error) {
	err = g.s.read(ctx, func(c *conn) error {
		b, err = c.export(ctx, t, after, limit)
		return err
	})
	return b, err
}

// Finish is store.Target's.
func (g *target) Finish(ctx context.Context) error {
	return g.s.w.run(ctx, func(t *tx) error {
		var epoch string
		if err := t.row(`SELECT data_epoch, newest_ms FROM import WHERE id = 1`, nil, &epoch, &t.newest); err != nil {
			return err
		}
		t.changed = true
		if _, err := t.exec(`UPDATE import SET finished_ms = ? WHERE id = 1`, time.Now().UnixMilli()); err != nil {
			return err
		}
		if _, err := t.exec(`UPDATE store SET data_epoch = ? WHERE id = 1`, epoch); err != nil {
			return err
		}
		t.epoch = epoch // for the mark that the commit writes
		return nil
	})
}

// Close is store.Target's.
func (g *target) Close() error { return g.s.Close() }

package postgres

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/url"
	"time"

	"github.com/jackc/pgx/v5"
	"go.uber.org/zap"

	"github.com/imdhq/imd/pkg/store"
	"github.com/imdhq/imd/pkg/store/rules"
)

const (
	// importLock is the key of the advisory lock that a copy holds.
	importLock = 0x696d6401
	// importName is what a copy calls itself to the server; nodes have another.
	importName = "imd store copy"
	// lingerTime is how long the server may still show a client that is gone; the
	// lock_timeout of the session is as long.
	lingerTime = 3 * time.Second
	// ruleTime bounds what only looks or writes a few rows.
	ruleTime = 10 * time.Second
	// analyzeTime bounds the count of what was copied for the planner.
	analyzeTime = 10 * time.Minute
)

// target is a store.Target on one connection.
type target struct {
	c        *pgx.Conn
	shown    string
	identity string
	// allocator is what the store is to be begun with.
	allocator string
}

// OpenTarget holds the database that u names, to fill it. Its schema must be the
// one that this program needs.
//
// Errors: one sentence; store.ErrLocked if nodes or another copy use it;
// store.ErrDSN, ErrSchema, ErrUnsafe.
func OpenTarget(ctx context.Context, u *url.URL, log *zap.Logger) (_ store.Target, err error) {
	src, err := parse(u.String())
	if err != nil {
		return nil, err
	}
	facts, err := examine(ctx, src)
	if err != nil {
		return nil, explain(src.shown, err)
	}
	if err := facts.admit(src, log); err != nil {
		return nil, err
	}
	g := &target{shown: src.shown, allocator: cmp.Or(src.numbering.Allocator, store.Transaction)}
	if g.c, err = single(ctx, src, importName); err != nil {
		return nil, explain(src.shown, err)
	}
	if err := g.hold(ctx); err != nil {
		return nil, errors.Join(explain(src.shown, err), g.Close())
	}
	return g, nil
}

// single is one connection outside of a pool, which calls itself name.
func single(ctx context.Context, src source, name string) (*pgx.Conn, error) {
	conf := src.config.ConnConfig.Copy()
	conf.ConnectTimeout = connectTime
	conf.RuntimeParams["application_name"] = name
	return pgx.ConnectConfig(ctx, conf)
}

const (
	// Batches need not wait for the disk one by one: what was lost with the server
	// is copied again, and Finish waits for all of it.
	sqlImportSession = `SET synchronous_commit = off; SET statement_timeout = 0; SET idle_in_transaction_session_timeout = '2min';
  SET lock_timeout = '3s'; SET enable_seqscan = off; SET enable_bitmapscan = off`
	sqlNodes = `SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND application_name = 'imd' AND pid <> pg_backend_pid()`
)

// hold keeps other copies out, and looks whether nodes are here.
func (g *target) hold(ctx context.Context) error {
	if _, err := g.c.Exec(ctx, sqlImportSession); err != nil {
		return err
	}
	switch _, err := g.c.Exec(ctx, `SELECT pg_advisory_lock($1)`, importLock); {
	case codeOf(err) == codeLockTimeout:
		return fmt.Errorf("the database %s is the target of another copy that runs now: %w", g.shown, store.ErrLocked)
	case err != nil:
		return err
	}
	if err := g.alone(ctx); err != nil {
		return err
	}
	var standby, half bool
	return g.c.QueryRow(ctx, sqlIdentity).Scan(&standby, &g.identity, &half) // a standby takes no writes: Begin fails
}

// alone waits a moment for nodes to be gone.
func (g *target) alone(ctx context.Context) error {
	for until := time.Now().Add(lingerTime); ; {
		var nodes int
		if err := g.c.QueryRow(ctx, sqlNodes).Scan(&nodes); err != nil || nodes == 0 {
			return err
		}
		if time.Now().After(until) {
			return fmt.Errorf("nodes use the database %s; stop them first: %w", g.shown, store.ErrLocked)
		}
		select {
		case <-time.After(lingerTime / 30):
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// importTables are those that must be empty at the beginning.
var importTables = []string{"account", "block", "revocation", "api_key", "conversation", "creation", "member", "entry", "worker", "fence", "seen", "mute", "receiver",
	"user_online", "push", "scheduled", "announcement"}

const (
	sqlImport     = `SELECT data_epoch, state, finished_ms FROM import WHERE id = 1`
	sqlBeginning  = `INSERT INTO import (id, data_epoch, state, newest_ms, finished_ms) VALUES (1, $1, $2, $3, 0)`
	sqlProgress   = `SELECT name, place, ended, rows, sum FROM import_table`
	sqlPutAdvance = `INSERT INTO import_table (name, place, ended, rows, sum) VALUES ($1, $2, $3, $4, $5) ON CONFLICT (name) DO UPDATE
  SET place = excluded.place, ended = excluded.ended, rows = excluded.rows, sum = excluded.sum`
)

// Begin is store.Target's.
func (g *target) Begin(ctx context.Context, o store.Origin) (have store.Taken, err error) {
	ctx, cancel := context.WithTimeout(ctx, ruleTime)
	defer cancel()
	err = pgx.BeginFunc(ctx, g.c, func(t pgx.Tx) error {
		var epoch, state string
		var ended int64
		err := t.QueryRow(ctx, sqlImport).Scan(&epoch, &state, &ended)
		switch {
		case errors.Is(err, pgx.ErrNoRows):
			return begin(ctx, t, o)
		case err != nil:
			return err
		}
		have.Finished = ended != 0
		if have.Moved, err = o.Meet(epoch, state, have.Finished); err != nil {
			return err
		}
		have.Tables, err = progress(ctx, t)
		return err
	})
	return have, err
}

// begin notes that a copy has begun, in an empty store.
func begin(ctx context.Context, t pgx.Tx, o store.Origin) error {
	for _, name := range importTables {
		var any bool
		if err := t.QueryRow(ctx, `SELECT EXISTS (SELECT 1 FROM `+name+`)`).Scan(&any); err != nil {
			return err
		}
		if any {
			return fmt.Errorf("there are rows in table %s: %w", name, store.ErrOccupied)
		}
	}
	_, err := t.Exec(ctx, sqlBeginning, o.DataEpoch, o.State, millis(o.Newest))
	return err
}

func progress(ctx context.Context, t pgx.Tx) (map[store.Table]store.Progress, error) {
	rows, err := t.Query(ctx, sqlProgress)
	if err != nil {
		return nil, err
	}
	done := map[store.Table]store.Progress{}
	var name string
	var p store.Progress
	_, err = pgx.ForEachRow(rows, []any{&name, &p.After, &p.End, &p.Rows, &p.Sum}, func() error {
		done[store.Table(name)] = p
		return nil
	})
	return done, err
}

// Import is store.Target's.
func (g *target) Import(ctx context.Context, table store.Table, b *store.Batch, p store.Progress) error {
	err := pgx.BeginFunc(ctx, g.c, func(t pgx.Tx) error {
		var xid int64
		if err := t.QueryRow(ctx, `SELECT imd_xid()`).Scan(&xid); err != nil {
			return err
		}
		if err := copyRows(ctx, t, b, xid); err != nil {
			return err
		}
		_, err := t.Exec(ctx, sqlPutAdvance, string(table), p.After, p.End, p.Rows, p.Sum)
		return err
	})
	if err != nil && doubtful(err) {
		return unsure(err)
	}
	return err
}

// load copies n rows into a table, unless there are none.
func load(ctx context.Context, t pgx.Tx, table string, columns []string, n int, row func(i int) []any) error {
	if n == 0 {
		return nil
	}
	_, err := t.CopyFrom(ctx, pgx.Identifier{table}, columns, pgx.CopyFromSlice(n, func(i int) ([]any, error) { return row(i), nil }))
	return err
}

// feeds makes commits leave marks in the target if somebody is to be told.
func feeds(ctx context.Context, t pgx.Tx, on bool) error {
	if !on {
		return nil
	}
	_, err := t.Exec(ctx, `UPDATE outbox SET feeding = true WHERE id = 1`)
	return err
}

// copyRows stores rows as they are; xid is the transaction, by which walks over
// what has changed find them.
func copyRows(ctx context.Context, t pgx.Tx, b *store.Batch, xid int64) error {
	return errors.Join(
		load(ctx, t, "account", []string{"id", "created_ms", "disabled"}, len(b.Users), func(i int) []any {
			r := &b.Users[i]
			return []any{string(r.ID), r.Created.UnixMilli(), r.Disabled}
		}),
		load(ctx, t, "block", []string{"user_id", "blocked"}, len(b.Blocks), func(i int) []any {
			return []any{string(b.Blocks[i].User), string(b.Blocks[i].Blocked)}
		}),
		load(ctx, t, "mute", []string{"user_id", "conversation_id", "until_ms"}, len(b.Mutes), func(i int) []any {
			r := &b.Mutes[i]
			return []any{string(r.User), string(r.Conversation), millis(r.Until)}
		}),
		load(ctx, t, "receiver", []string{"name", "cursor", "reached", "generation", "token", "saved_ms", "open"}, len(b.ReceiverNames), func(i int) []any {
			return []any{b.ReceiverNames[i].Name, int64(0), int64(0), int64(1), int64(0), time.Now().UnixMilli(), []byte{}}
		}),
		feeds(ctx, t, len(b.ReceiverNames) > 0),
		load(ctx, t, "seen", []string{"user_id", "at_ms"}, len(b.LastSeen), func(i int) []any {
			return []any{string(b.LastSeen[i].User), millis(b.LastSeen[i].At)}
		}),
		load(ctx, t, "revocation", []string{"user_id", "login", "issued_before_ms", "until_ms", "reason"}, len(b.Revocations), func(i int) []any {
			r := &b.Revocations[i]
			return []any{string(r.User), string(r.Login), millis(r.IssuedBefore), millis(r.Until), int32(r.Reason)}
		}),
		load(ctx, t, "api_key", []string{"id", "name", "scopes", "secret_hash", "created_ms", "revoked_ms"}, len(b.Keys), func(i int) []any {
			r := &b.Keys[i]
			return []any{r.ID, r.Name, append([]string{}, r.Scopes...), r.SecretHash[:], millis(r.Created), millis(r.Revoked)}
		}),
		load(ctx, t, "conversation", []string{"num", "head", "kept", "member_version", "version", "head_version", "members", "kind", "closed",
			"open_history", "id", "name", "user_a", "user_b"}, len(b.Conversations), func(i int) []any {
			r := &b.Conversations[i]
			return []any{r.Num, int64(r.Head), int64(r.Kept), r.MemberVersion, xid, xid, int32(r.Members), int16(r.Kind), r.Closed,
				r.OpenHistory, string(r.ID), r.Name, string(r.UserA), string(r.UserB)}
		}),
		load(ctx, t, "creation", []string{"actor", "client_key", "conv"}, len(b.Creations), func(i int) []any {
			r := &b.Creations[i]
			return []any{string(r.Actor), key(r.RequestID), r.Conv}
		}),
		load(ctx, t, "member", []string{"conv", "first_seq", "start_seq", "end_seq", "cleared", "delivered", "read", "version", "role",
			"user_id", "conversation_id", "left_name", "earlier"}, len(b.Members), func(i int) []any {
			return memberValues(&b.Members[i], xid)
		}),
		load(ctx, t, "entry", []string{"conv", "seq", "message_id", "server_ms", "back", "kind", "countable", "sender", "client_key",
			"body_hash", "body", "target_seq", "changed_seq"}, len(b.Entries), func(i int) []any {
			return entryValues(&b.Entries[i])
		}),
		load(ctx, t, "worker", []string{"id", "mark_us"}, len(b.WorkerMarks), func(i int) []any {
			return []any{int32(b.WorkerMarks[i].Worker), b.WorkerMarks[i].Mark.UnixMicro()}
		}),
		load(ctx, t, "fence", []string{"name", "token", "holder", "cluster", "revision", "claimed_ms"}, len(b.FenceTokens), func(i int) []any {
			r := &b.FenceTokens[i]
			return []any{r.Name, r.Token, r.Holder, r.Cluster, r.Revision, millis(r.Claimed)}
		}),
		copyLater(ctx, t, b),
	)
}

// copyLater stores rows of what is still to be told or sent.
func copyLater(ctx context.Context, t pgx.Tx, b *store.Batch) error {
	errs := []error{
		load(ctx, t, "user_online", []string{"user_id"}, len(b.Online), func(i int) []any { return []any{string(b.Online[i].User)} }),
		load(ctx, t, "push", []string{"user_id", "conversation_id", "seq", "message_id", "sender", "state", "at_ms", "due_ms", "tries", "told"}, len(b.PushRows), func(i int) []any {
			r := &b.PushRows[i]
			return []any{string(r.User), string(r.Conversation), int64(r.Seq), int64(r.MessageID), string(r.Sender), int16(r.State), millis(r.At), millis(r.Due), int32(r.Tries), r.Told}
		}),
		load(ctx, t, "scheduled", []string{"id", "due_ms", "next_ms", "created_ms", "ended_ms", "token", "tries", "state", "reason", "message_id", "seq",
			"sender", "conversation_id", "peer", "request_id", "client_id", "body_hash", "body"}, len(b.Later), func(i int) []any {
			r := &b.Later[i]
			return []any{r.ID, millis(r.Due), millis(r.Turn), millis(r.Created), millis(r.Ended), r.Token(), int32(r.Tries), int16(r.State), int16(r.Reason), int64(r.MessageID), int64(r.Seq),
				string(r.Sender), string(r.Conversation), string(r.Peer), string(r.RequestID), string(r.ClientMessageID), r.BodyHash[:], r.Content}
		}),
		load(ctx, t, "announcement", []string{"seq", "created_ms", "expires_ms", "withdrawn_ms", "withdrawal", "request_id", "body"}, len(b.Posted), func(i int) []any {
			r := &b.Posted[i]
			return []any{r.Seq, millis(r.Created), millis(r.Expires), millis(r.Withdrawn), r.Withdrawal, string(r.RequestID), r.Text}
		}),
	}
	for _, r := range b.PostedUpTo {
		_, err := t.Exec(ctx, `UPDATE announcing SET last_seq = $1, version = $2 WHERE id = 1`, r.Seq, r.Version)
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

func memberValues(r *store.MemberRow, xid int64) []any {
	first := r.Start
	if len(r.Earlier) > 0 {
		first = r.Earlier[0].Start
	}
	return []any{r.Conv, int64(first), int64(r.Start), int64(r.End), int64(r.Cleared), int64(r.Delivered), int64(r.Read), xid, int16(r.Role),
		string(r.User), string(r.Conversation), r.LeftName, rules.EncodeStretches(r.Earlier)}
}

func entryValues(r *store.EntryRow) []any {
	var target, changed any
	if r.TargetSeq != 0 {
		target = int64(r.TargetSeq)
	}
	if r.ChangedSeq != 0 {
		changed = int64(r.ChangedSeq)
	}
	body := r.Content
	var hash []byte
	if r.BodyHash == nil {
		body = r.Change
	} else {
		hash = r.BodyHash[:min(len(r.BodyHash), hashSize)]
	}
	return []any{r.Conv, int64(r.Seq), int64(r.MessageID), r.ServerTime.UnixMilli(), int32(r.Seq - r.PrevSeq), int16(r.Kind), r.Countable,
		string(r.Sender), key(r.ClientMessageID), hash, body, target, changed}
}

const (
	sqlFinish      = `UPDATE import SET finished_ms = imd_now_ms() WHERE id = 1 RETURNING data_epoch, newest_ms`
	sqlFinishStore = `INSERT INTO store (id, data_epoch, identity, allocator) VALUES (1, $1, $2, $3) ON CONFLICT (id) DO UPDATE
  SET data_epoch = excluded.data_epoch, identity = excluded.identity, allocator = excluded.allocator`
	sqlFinishSlot = `UPDATE slot SET newest_ms = greatest(newest_ms, $1) WHERE id = 0`
	sqlFinishNums = `SELECT setval(pg_get_serial_sequence('conversation', 'num'), greatest((SELECT max(num) FROM conversation), 1))`
)

// Finish is store.Target's.
func (g *target) Finish(ctx context.Context) error {
	bounded, cancel := context.WithTimeout(ctx, analyzeTime)
	defer cancel()
	if _, err := g.c.Exec(bounded, `ANALYZE`); err != nil {
		return err
	}
	ctx, stop := context.WithTimeout(ctx, ruleTime)
	defer stop()
	err := pgx.BeginFunc(ctx, g.c, func(t pgx.Tx) error {
		if _, err := t.Exec(ctx, `SET LOCAL synchronous_commit = on`); err != nil {
			return err
		}
		var epoch string
		var newest int64
		if err := t.QueryRow(ctx, sqlFinish).Scan(&epoch, &newest); err != nil {
			return err
		}
		if _, err := t.Exec(ctx, sqlFinishStore, epoch, g.identity, g.allocator); err != nil {
			return err
		}
		if _, err := t.Exec(ctx, sqlFinishSlot, newest); err != nil {
			return err
		}
		_, err := t.Exec(ctx, sqlFinishNums)
		return err
	})
	if err != nil && doubtful(err) {
		return unsure(err)
	}
	return err
}

// Close is store.Target's.
func (g *target) Close() error {
	ctx, cancel := context.WithTimeout(context.Background(), connectTime)
	defer cancel()
	return g.c.Close(ctx)
}

const (
	sqlRenewEpoch = `UPDATE store SET data_epoch = $1, identity = $2 WHERE id = 1`
	sqlHangUp     = `SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity
  WHERE datname = current_database() AND application_name = 'imd' AND usename = current_user AND pid <> pg_backend_pid()`
)

// NewEpoch gives the store a new data_epoch and ends the connections of all
// nodes, which look at it when they connect again: for a server that took over
// and may lack what was acknowledged. It returns how many connections it ended.
//
// Errors: store.ErrDSN, ErrSchema; store.ErrNotFound if no node ever was here.
func NewEpoch(ctx context.Context, dsn string) (was, now string, ended int, err error) {
	src, err := parse(dsn)
	if err != nil {
		return "", "", 0, err
	}
	c, err := single(ctx, src, importName)
	if err != nil {
		return "", "", 0, explain(src.shown, err)
	}
	defer func() { err = errors.Join(err, c.Close(context.WithoutCancel(ctx))) }()
	schema, err := schemaOf(ctx, c)
	if err == nil {
		err = schema.Judge()
	}
	if err != nil {
		return "", "", 0, err
	}
	var standby, half bool
	var identity string
	if err := c.QueryRow(ctx, sqlIdentity).Scan(&standby, &identity, &half); err != nil {
		return "", "", 0, explain(src.shown, err)
	}
	if standby {
		return "", "", 0, explain(src.shown, errStandby)
	}
	if was, _, _, err = storeRow(ctx, c); err != nil {
		return "", "", 0, missing(err)
	}
	now = newEpoch()
	if _, err := c.Exec(ctx, sqlRenewEpoch, now, identity); err != nil {
		return "", "", 0, err
	}
	err = c.QueryRow(ctx, sqlHangUp).Scan(&ended)
	return was, now, ended, err
}

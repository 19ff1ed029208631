package sqlite

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net/url"
	"strconv"
	"strings"
	"time"

	"go.uber.org/zap"

	"github.com/imdhq/imd/pkg/im"
	"github.com/imdhq/imd/pkg/store"
	"github.com/imdhq/imd/pkg/store/rules"
)

// source is a store.Source: the database of a node that does not run.
type source struct {
	conn
	path    string
	side    *sideFile
	origin  store.Origin
	commits int64
}

// OpenSource holds the database that u names, to copy it. It changes nothing, but
// completes a Retire that was cut short.
//
// Errors: fs.ErrNotExist; one sentence that wraps store.ErrLocked if a server
// uses it, store.ErrSchema if another version of imd must see it first.
func OpenSource(ctx context.Context, u *url.URL, _ *zap.Logger) (_ store.Source, err error) {
	path, err := Path(u)
	if err != nil {
		return nil, err
	}
	if _, there := exists(path); !there {
		return nil, fmt.Errorf("the database %s: %w", path, fs.ErrNotExist)
	}
	side, remembered, copied, err := openSide(path)
	if err != nil {
		return nil, err
	}
	s := &source{path: path, side: side}
	defer func() {
		if err != nil {
			err = errors.Join(explain(path, err), s.Close())
		}
	}()
	if s.db, err = connect(path, 1, "ro", "busy_timeout(5000)", "query_only(1)", "cache_size(-65536)"); err != nil {
		return nil, err
	}
	if err := s.open(ctx); err != nil {
		return nil, err
	}
	var schema, newest int64
	if err := s.row(`SELECT max(version_id) FROM goose_db_version WHERE is_applied`, nil, &schema); err != nil {
		return nil, err
	}
	if need := needed(); schema != need {
		return nil, fmt.Errorf("the database %s has schema %d and this program copies %d; start and stop a node of this version on it: %w", path, schema, need, store.ErrSchema)
	}
	var m, moved mark
	if err := s.row(sqlSource, nil, &m.epoch, &m.commits, &newest, &moved.epoch, &moved.commits); err != nil {
		return nil, err
	}
	untouched := m.commits == moved.commits+1 // since it was retired
	if untouched && !copied && moved.epoch != "" && judge(moved, remembered) == "" {
		if err := side.begin(m); err != nil {
			return nil, fileFault(path+sideSuffix, err)
		}
		remembered = &m
	}
	if why := judge(m, remembered); why != "" || copied {
		return nil, fmt.Errorf("the database %s was put back and no node has started on it since; start and stop one first: %w", path, store.ErrSchema)
	}
	if err := unfinished(&s.conn, path); err != nil {
		return nil, err
	}
	if err := s.untold(ctx); err != nil {
		return nil, err
	}
	s.commits = m.commits
	s.origin = store.Origin{DataEpoch: m.epoch, State: stateOf(m), Newest: moment(newest), MovedEpoch: moved.epoch}
	if moved.epoch != "" && untouched {
		s.origin.MovedState = stateOf(moved)
	}
	return s, nil
}

// stateOf is the State of an Origin.
func stateOf(m mark) string { return strconv.FormatInt(m.commits, 10) }

const (
	sqlSource = `SELECT data_epoch, commits, newest_ms, moved_epoch, moved_commits FROM store WHERE id = 1`
	sqlRetire = `UPDATE store SET moved_epoch = data_epoch, moved_commits = commits, data_epoch = ?, commits = ? WHERE id = 1`
)

const sqlUntold = `SELECT r.name FROM receiver r, outbox o WHERE r.name NOT LIKE '%/%'
  AND (r.cursor < o.last_pos OR r.open <> x'' OR EXISTS (SELECT 1 FROM feed)) ORDER BY r.name`

// untold fails if receivers have not been told of everything: events are not
// copied.
func (s *source) untold(ctx context.Context) error {
	var names []string
	err := s.each(ctx, sqlUntold, nil, func(scan func(...any) error) error {
		var name string
		err := scan(&name)
		names = append(names, name)
		return err
	})
	if err != nil || len(names) == 0 {
		return err
	}
	return fmt.Errorf("the database %s has events that receivers were not told of (%s), and events are not copied; start a node and wait until imd webhook list shows nothing behind or open, or forget the receivers with imd webhook remove",
		s.path, strings.Join(names, ", "))
}

// Origin is store.Source's.
func (s *source) Origin() store.Origin { return s.origin }

// Export is store.Exporter's.
func (s *source) Export(ctx context.Context, t store.Table, after string, limit int) (*store.Batch, error) {
	return s.export(ctx, t, after, limit)
}

// Retire is store.Source's.
func (s *source) Retire(ctx context.Context) (_ string, err error) {
	db, err := connect(s.path, 1, "rw", "busy_timeout(5000)", "synchronous(FULL)")
	if err != nil {
		return "", err
	}
	defer func() { err = errors.Join(err, db.Close()) }()
	m := mark{newEpoch(), s.commits + 1}
	if _, err := db.ExecContext(ctx, sqlRetire, m.epoch, m.commits); err != nil {
		return "", err
	}
	return m.epoch, fileFault(s.path+sideSuffix, s.side.begin(m))
}

// Close is store.Source's.
func (s *source) Close() error {
	err := s.drop()
	if s.db != nil {
		err = errors.Join(err, s.db.Close())
	}
	return errors.Join(err, s.side.f.Close())
}

// exporter reads the rows of one table.
type exporter struct {
	columns, table string
	keys           []string // by which the table is ordered
	numbers        bool     // all keys are numbers
	scan           func(b *store.Batch, scan func(...any) error) ([]string, error)
}

// export reads a batch of rows behind a place.
func (c *conn) export(ctx context.Context, t store.Table, after string, limit int) (*store.Batch, error) {
	e, ok := exporters[t]
	if !ok {
		return nil, fmt.Errorf("there is no table %q", t)
	}
	query, args := `SELECT `+e.columns+` FROM `+e.table, []any{}
	order := strings.Join(e.keys, ", ")
	if after != "" {
		keys, err := store.PlaceKeys(after, len(e.keys))
		if err != nil {
			return nil, err
		}
		for i, k := range keys {
			v := any(k)
			switch {
			case e.numbers:
				if v, err = strconv.ParseInt(k, 10, 64); err != nil {
					return nil, err
				}
			case e.keys[i] == "request_id":
				v = key(im.ClientMessageID(k))
			}
			args = append(args, v)
		}
		query += ` WHERE (` + order + `) > (?` + strings.Repeat(`, ?`, len(keys)-1) + `)`
	}
	b := &store.Batch{After: after}
	var last []string
	err := c.each(ctx, query+` ORDER BY `+order+` LIMIT ?`, append(args, limit), func(scan func(...any) error) (err error) {
		last, err = e.scan(b, scan)
		return err
	})
	if err != nil {
		return nil, err
	}
	if last != nil {
		b.After = store.Place(last...)
	}
	b.End = b.Len() < limit
	return b, nil
}

func decimal[T ~int | ~int64](n T) string { return strconv.FormatInt(int64(n), 10) }

// exporters say how each table is read.
var exporters = map[store.Table]exporter{
	store.Users: {
		"id, created_ms, disabled", "user", []string{"id"}, false,
		func(b *store.Batch, scan func(...any) error) ([]string, error) {
			var r store.User
			var ms int64
			err := scan(&r.ID, &ms, &r.Disabled)
			r.Created = time.UnixMilli(ms)
			b.Users = append(b.Users, r)
			return []string{string(r.ID)}, err
		},
	},
	store.Blocks: {
		"user_id, blocked", "block", []string{"user_id", "blocked"}, false,
		func(b *store.Batch, scan func(...any) error) ([]string, error) {
			var r store.Block
			err := scan(&r.User, &r.Blocked)
			b.Blocks = append(b.Blocks, r)
			return []string{string(r.User), string(r.Blocked)}, err
		},
	},
	store.Mutes: {
		"user_id, conversation_id, until_ms", "mute", []string{"user_id", "conversation_id"}, false,
		func(b *store.Batch, scan func(...any) error) ([]string, error) {
			var r store.Mute
			var until int64
			err := scan(&r.User, &r.Conversation, &until)
			r.Until = moment(until)
			b.Mutes = append(b.Mutes, r)
			return []string{string(r.User), string(r.Conversation)}, err
		},
	},
	store.ReceiverNames: {
		"name", "receiver", []string{"name"}, false,
		func(b *store.Batch, scan func(...any) error) ([]string, error) {
			var r store.ReceiverName
			err := scan(&r.Name)
			b.ReceiverNames = append(b.ReceiverNames, r)
			return []string{r.Name}, err
		},
	},
	store.LastSeen: {
		"user_id, at_ms", "seen", []string{"user_id"}, false,
		func(b *store.Batch, scan func(...any) error) ([]string, error) {
			var r store.Seen
			var at int64
			err := scan(&r.User, &at)
			r.At = moment(at)
			b.LastSeen = append(b.LastSeen, r)
			return []string{string(r.User)}, err
		},
	},
	store.Online: {
		"user_id", "user_online", []string{"user_id"}, false,
		func(b *store.Batch, scan func(...any) error) ([]string, error) {
			var r store.OnlineUser
			err := scan(&r.User)
			b.Online = append(b.Online, r)
			return []string{string(r.User)}, err
		},
	},
	store.PushRows: {
		"user_id, conversation_id, seq, message_id, sender, state, at_ms, due_ms, tries, told", "push", []string{"user_id", "conversation_id"}, false,
		func(b *store.Batch, scan func(...any) error) ([]string, error) {
			var r store.PushRow
			var at, due int64
			err := scan(&r.User, &r.Conversation, &r.Seq, &r.MessageID, &r.Sender, &r.State, &at, &due, &r.Tries, &r.Told)
			r.At, r.Due = moment(at), moment(due)
			b.PushRows = append(b.PushRows, r)
			return []string{string(r.User), string(r.Conversation)}, err
		},
	},
	store.Later: {
		scheduledColumns + ", s.next_ms", "scheduled s", []string{"id"}, true,
		func(b *store.Batch, scan func(...any) error) ([]string, error) {
			var turn int64
			m, err := scanScheduled(scan, &turn)
			b.Later = append(b.Later, store.ScheduledRow{Scheduled: m, Turn: moment(turn)})
			return []string{decimal(m.ID)}, err
		},
	},
	store.Posted: {
		announcementColumns, "announcement", []string{"seq"}, true,
		func(b *store.Batch, scan func(...any) error) ([]string, error) {
			a, err := scanAnnouncement(scan)
			b.Posted = append(b.Posted, a)
			return []string{decimal(a.Seq)}, err
		},
	},
	store.PostedUpTo: {
		"id, last_seq, version", "announcing", []string{"id"}, true,
		func(b *store.Batch, scan func(...any) error) ([]string, error) {
			var id int
			var r store.AnnouncedUpTo
			err := scan(&id, &r.Seq, &r.Version)
			b.PostedUpTo = append(b.PostedUpTo, r)
			return []string{decimal(id)}, err
		},
	},
	store.Revocations: {
		"user_id, login, issued_before_ms, reason, until_ms", "revocation", []string{"user_id", "login"}, false,
		func(b *store.Batch, scan func(...any) error) ([]string, error) {
			var r store.Revocation
			var before, until int64
			err := scan(&r.User, &r.Login, &before, &r.Reason, &until)
			r.IssuedBefore, r.Until = moment(before), moment(until)
			b.Revocations = append(b.Revocations, r)
			return []string{string(r.User), string(r.Login)}, err
		},
	},
	store.Keys: {
		"id, name, scopes, secret_hash, created_ms, revoked_ms", "api_key", []string{"id"}, false,
		func(b *store.Batch, scan func(...any) error) ([]string, error) {
			var r store.Key
			var scopes string
			var hash []byte
			var created, revoked int64
			if err := scan(&r.ID, &r.Name, &scopes, &hash, &created, &revoked); err != nil {
				return nil, err
			}
			copy(r.SecretHash[:], hash)
			r.Created, r.Revoked = moment(created), moment(revoked)
			b.Keys = append(b.Keys, r)
			return []string{r.ID}, json.Unmarshal([]byte(scopes), &b.Keys[len(b.Keys)-1].Scopes)
		},
	},
	store.Conversations: {
		"num, id, kind, name, closed, open_history, user_a, user_b, head, kept, members, member_version", "conversation", []string{"num"}, true,
		func(b *store.Batch, scan func(...any) error) ([]string, error) {
			var r store.ConversationRow
			err := scan(&r.Num, &r.ID, &r.Kind, &r.Name, &r.Closed, &r.OpenHistory, &r.UserA, &r.UserB, &r.Head, &r.Kept, &r.Members, &r.MemberVersion)
			b.Conversations = append(b.Conversations, r)
			return []string{decimal(r.Num)}, err
		},
	},
	store.Creations: {
		"actor, request_id, conv", "creation", []string{"actor", "request_id"}, false,
		func(b *store.Batch, scan func(...any) error) ([]string, error) {
			var r store.Creation
			var id any
			err := scan(&r.Actor, &id, &r.Conv)
			r.RequestID = unkey(id)
			b.Creations = append(b.Creations, r)
			return []string{string(r.Actor), string(r.RequestID)}, err
		},
	},
	store.Members: {
		"user_id, conversation_id, conv, role, start_seq, end_seq, earlier, cleared, delivered, read, left_name", "member",
		[]string{"user_id", "conversation_id"}, false, scanMemberRow,
	},
	store.Entries: {
		"conv, body_hash, " + entryColumns, "entry", []string{"conv", "seq"}, true,
		func(b *store.Batch, scan func(...any) error) ([]string, error) {
			var r store.EntryRow
			err := scanEntry(func(dest ...any) error { return scan(append([]any{&r.Conv, &r.BodyHash}, dest...)...) }, &r.Entry)
			b.Entries = append(b.Entries, r)
			return []string{decimal(r.Conv), decimal(r.Seq)}, err
		},
	},
	store.WorkerMarks: {
		"id, mark_us", "worker", []string{"id"}, true,
		func(b *store.Batch, scan func(...any) error) ([]string, error) {
			var r store.WorkerMark
			var us int64
			err := scan(&r.Worker, &us)
			r.Mark = time.UnixMicro(us)
			b.WorkerMarks = append(b.WorkerMarks, r)
			return []string{decimal(r.Worker)}, err
		},
	},
	store.FenceTokens: {
		"name, token, holder, cluster, revision, claimed_ms", "fence", []string{"name"}, false,
		func(b *store.Batch, scan func(...any) error) ([]string, error) {
			f, err := scanFence(scan)
			b.FenceTokens = append(b.FenceTokens, f)
			return []string{f.Name}, err
		},
	},
}

func scanMemberRow(b *store.Batch, scan func(...any) error) ([]string, error) {
	var r store.MemberRow
	var earlier []byte
	if err := scan(&r.User, &r.Conversation, &r.Conv, &r.Role, &r.Start, &r.End, &earlier, &r.Cleared, &r.Delivered, &r.Read, &r.LeftName); err != nil {
		return nil, err
	}
	var err error
	r.Earlier, err = rules.DecodeStretches(earlier)
	b.Members = append(b.Members, r)
	return []string{string(r.User), string(r.Conversation)}, err
}

// scanFence reads name, token, holder, cluster, revision and claimed_ms.
func scanFence(scan func(...any) error) (store.Fence, error) {
	var f store.Fence
	var ms int64
	err := scan(&f.Name, &f.Token, &f.Holder, &f.Cluster, &f.Revision, &ms)
	f.Claimed = moment(ms)
	return f, err
}

package postgres

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/imdhq/imd/pkg/im"
	"github.com/imdhq/imd/pkg/store"
	"github.com/imdhq/imd/pkg/store/rules"
	"github.com/imdhq/imd/sdk/go/gen/clientv1"
)

// exporter reads the rows of one table.
type exporter struct {
	columns, table string
	keys           []string // by which the table is ordered
	numbers        bool     // all keys are numbers
	scan           func(b *store.Batch, row scanner) ([]string, error)
}

// Export is store.Exporter's.
func (g *target) Export(ctx context.Context, t store.Table, after string, limit int) (*store.Batch, error) {
	e, ok := exporters[t]
	if !ok {
		return nil, fmt.Errorf("there is no table %q", t)
	}
	args, where := []any{limit}, ""
	order := strings.Join(e.keys, ", ")
	if after != "" {
		keys, err := store.PlaceKeys(after, len(e.keys))
		if err != nil {
			return nil, err
		}
		var places []string
		for i, k := range keys {
			v := any(k)
			switch {
			case e.numbers:
				if v, err = strconv.ParseInt(k, 10, 64); err != nil {
					return nil, err
				}
			case e.keys[i] == "client_key":
				v = key(im.ClientMessageID(k))
			}
			args = append(args, v)
			places = append(places, "$"+strconv.Itoa(len(args)))
		}
		where = ` WHERE (` + order + `) > (` + strings.Join(places, ", ") + `)`
	}
	rows, err := g.c.Query(ctx, `SELECT `+e.columns+` FROM `+e.table+where+` ORDER BY `+order+` LIMIT $1`, args...)
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	b := &store.Batch{After: after}
	var last []string
	for rows.Next() {
		if last, err = e.scan(b, rows); err != nil {
			return nil, err
		}
	}
	if last != nil {
		b.After = store.Place(last...)
	}
	b.End = b.Len() < limit
	return b, rows.Err()
}

func decimal[T ~int | ~int32 | ~int64](n T) string { return strconv.FormatInt(int64(n), 10) }

// exporters say how each table is read.
var exporters = map[store.Table]exporter{
	store.Users: {
		"id, created_ms, disabled", "account", []string{"id"}, false,
		func(b *store.Batch, row scanner) ([]string, error) {
			var r store.User
			var ms int64
			err := row.Scan(&r.ID, &ms, &r.Disabled)
			r.Created = time.UnixMilli(ms)
			b.Users = append(b.Users, r)
			return []string{string(r.ID)}, err
		},
	},
	store.Blocks: {
		"user_id, blocked", "block", []string{"user_id", "blocked"}, false,
		func(b *store.Batch, row scanner) ([]string, error) {
			var r store.Block
			err := row.Scan(&r.User, &r.Blocked)
			b.Blocks = append(b.Blocks, r)
			return []string{string(r.User), string(r.Blocked)}, err
		},
	},
	store.Mutes: {
		"user_id, conversation_id, until_ms", "mute", []string{"user_id", "conversation_id"}, false,
		func(b *store.Batch, row scanner) ([]string, error) {
			var r store.Mute
			var until int64
			err := row.Scan(&r.User, &r.Conversation, &until)
			r.Until = moment(until)
			b.Mutes = append(b.Mutes, r)
			return []string{string(r.User), string(r.Conversation)}, err
		},
	},
	store.ReceiverNames: {
		"name", "receiver", []string{"name"}, false,
		func(b *store.Batch, row scanner) ([]string, error) {
			var r store.ReceiverName
			err := row.Scan(&r.Name)
			b.ReceiverNames = append(b.ReceiverNames, r)
			return []string{r.Name}, err
		},
	},
	store.LastSeen: {
		"user_id, at_ms", "seen", []string{"user_id"}, false,
		func(b *store.Batch, row scanner) ([]string, error) {
			var r store.Seen
			var at int64
			err := row.Scan(&r.User, &at)
			r.At = moment(at)
			b.LastSeen = append(b.LastSeen, r)
			return []string{string(r.User)}, err
		},
	},
	store.Online: {
		"user_id", "user_online", []string{"user_id"}, false,
		func(b *store.Batch, row scanner) ([]string, error) {
			var r store.OnlineUser
			err := row.Scan(&r.User)
			b.Online = append(b.Online, r)
			return []string{string(r.User)}, err
		},
	},
	store.PushRows: {
		"user_id, conversation_id, seq, message_id, sender, state, at_ms, due_ms, tries, told", "push", []string{"user_id", "conversation_id"}, false,
		func(b *store.Batch, row scanner) ([]string, error) {
			var r store.PushRow
			var at, due int64
			err := row.Scan(&r.User, &r.Conversation, &r.Seq, &r.MessageID, &r.Sender, &r.State, &at, &due, &r.Tries, &r.Told)
			r.At, r.Due = moment(at), moment(due)
			b.PushRows = append(b.PushRows, r)
			return []string{string(r.User), string(r.Conversation)}, err
		},
	},
	store.Later: {
		scheduledColumns + ", s.next_ms", "scheduled s", []string{"id"}, true,
		func(b *store.Batch, row scanner) ([]string, error) {
			var turn int64
			m, err := scanScheduled(row, &turn)
			b.Later = append(b.Later, store.ScheduledRow{Scheduled: m, Turn: moment(turn)})
			return []string{decimal(m.ID)}, err
		},
	},
	store.Posted: {
		announcementColumns, "announcement", []string{"seq"}, true,
		func(b *store.Batch, row scanner) ([]string, error) {
			a, err := scanAnnouncement(row)
			b.Posted = append(b.Posted, a)
			return []string{decimal(a.Seq)}, err
		},
	},
	store.PostedUpTo: {
		"id, last_seq, version", "announcing", []string{"id"}, true,
		func(b *store.Batch, row scanner) ([]string, error) {
			var id int
			var r store.AnnouncedUpTo
			err := row.Scan(&id, &r.Seq, &r.Version)
			b.PostedUpTo = append(b.PostedUpTo, r)
			return []string{decimal(id)}, err
		},
	},
	store.Revocations: {
		"user_id, login, issued_before_ms, reason, until_ms", "revocation", []string{"user_id", "login"}, false,
		func(b *store.Batch, row scanner) ([]string, error) {
			var r store.Revocation
			var before, until int64
			err := row.Scan(&r.User, &r.Login, &before, &r.Reason, &until)
			r.IssuedBefore, r.Until = moment(before), moment(until)
			b.Revocations = append(b.Revocations, r)
			return []string{string(r.User), string(r.Login)}, err
		},
	},
	store.Keys: {
		"id, name, scopes, secret_hash, created_ms, revoked_ms", "api_key", []string{"id"}, false,
		func(b *store.Batch, row scanner) ([]string, error) {
			var r store.Key
			var hash []byte
			var created, revoked int64
			err := row.Scan(&r.ID, &r.Name, &r.Scopes, &hash, &created, &revoked)
			copy(r.SecretHash[:], hash)
			r.Created, r.Revoked = moment(created), moment(revoked)
			b.Keys = append(b.Keys, r)
			return []string{r.ID}, err
		},
	},
	store.Conversations: {
		"num, id, kind, name, closed, open_history, user_a, user_b, head, kept, members, member_version", "conversation", []string{"num"}, true,
		func(b *store.Batch, row scanner) ([]string, error) {
			var r store.ConversationRow
			err := row.Scan(&r.Num, &r.ID, &r.Kind, &r.Name, &r.Closed, &r.OpenHistory, &r.UserA, &r.UserB, &r.Head, &r.Kept, &r.Members, &r.MemberVersion)
			b.Conversations = append(b.Conversations, r)
			return []string{decimal(r.Num)}, err
		},
	},
	store.Creations: {
		"actor, client_key, conv", "creation", []string{"actor", "client_key"}, false,
		func(b *store.Batch, row scanner) ([]string, error) {
			var r store.Creation
			var id []byte
			err := row.Scan(&r.Actor, &id, &r.Conv)
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
		"conv, seq, message_id, server_ms, back, kind, countable, sender, client_key, body_hash, body, coalesce(target_seq, 0), coalesce(changed_seq, 0)",
		"entry", []string{"conv", "seq"}, true, scanEntryRow,
	},
	store.WorkerMarks: {
		"id, mark_us", "worker", []string{"id"}, true,
		func(b *store.Batch, row scanner) ([]string, error) {
			var r store.WorkerMark
			var us int64
			err := row.Scan(&r.Worker, &us)
			r.Mark = time.UnixMicro(us)
			b.WorkerMarks = append(b.WorkerMarks, r)
			return []string{decimal(r.Worker)}, err
		},
	},
	store.FenceTokens: {
		"token, holder, cluster, revision, claimed_ms, name", "fence", []string{"name"}, false,
		func(b *store.Batch, row scanner) ([]string, error) {
			var f store.Fence
			err := scanFence(row, &f, &f.Name)
			b.FenceTokens = append(b.FenceTokens, f)
			return []string{f.Name}, err
		},
	},
}

func scanMemberRow(b *store.Batch, row scanner) ([]string, error) {
	var r store.MemberRow
	var earlier []byte
	if err := row.Scan(&r.User, &r.Conversation, &r.Conv, &r.Role, &r.Start, &r.End, &earlier, &r.Cleared, &r.Delivered, &r.Read, &r.LeftName); err != nil {
		return nil, err
	}
	var err error
	r.Earlier, err = rules.DecodeStretches(earlier)
	b.Members = append(b.Members, r)
	return []string{string(r.User), string(r.Conversation)}, err
}

func scanEntryRow(b *store.Batch, row scanner) ([]string, error) {
	var r store.EntryRow
	var ms int64
	var back int32
	var kind int16
	var id, body []byte
	err := row.Scan(&r.Conv, &r.Seq, &r.MessageID, &ms, &back, &kind, &r.Countable, &r.Sender, &id, &r.BodyHash, &body, &r.TargetSeq, &r.ChangedSeq)
	r.PrevSeq, r.Kind, r.ServerTime, r.ClientMessageID = r.Seq-im.Seq(back), clientv1.EntryKind(kind), time.UnixMilli(ms), unkey(id)
	if r.BodyHash == nil {
		r.Change = body
	} else {
		r.Content = body
	}
	b.Entries = append(b.Entries, r)
	return []string{decimal(r.Conv), decimal(r.Seq)}, err
}

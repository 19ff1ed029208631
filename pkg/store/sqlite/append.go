package sqlite

import (
	"bytes"
	"context"
	"database/sql"
	"errors"
	"time"

	"github.com/imdhq/imd/pkg/failpoint"
	"github.com/imdhq/imd/pkg/im"
	"github.com/imdhq/imd/pkg/store"
	"github.com/imdhq/imd/pkg/store/rules"
	"github.com/imdhq/imd/sdk/go/gen/clientv1"
	"github.com/imdhq/imd/sdk/go/protocol"
)

const opAppend = "store.Append"

// hashHalf is how much there is at least of the hash of a body, in bytes: a copy of
// another store may have brought no more.
const hashHalf = 16

// Append is store.Log's.
func (s *Store) Append(ctx context.Context, rows []store.AppendRow) ([]store.AppendResult, error) {
	if len(rows) > store.MaxAppendRows {
		return nil, refuse(clientv1.Reason_REASON_BAD_REQUEST, opAppend, "more than %d rows", store.MaxAppendRows)
	}
	var out []store.AppendResult
	err := s.w.run(ctx, func(t *tx) error {
		out = make([]store.AppendResult, len(rows))
		var runs store.Runs
		for i := range rows {
			r, err := t.appendRow(&runs, &rows[i])
			if err != nil {
				return err
			}
			out[i] = r
		}
		return nil
	})
	if err != nil {
		return nil, fault(opAppend, err)
	}
	return out, nil
}

// appendRow answers one row. The error is a fault of the store.
func (t *tx) appendRow(runs *store.Runs, row *store.AppendRow) (store.AppendResult, error) {
	if e := runs.Behind(row.Run); e != nil {
		return store.AppendResult{Err: e}, nil
	}
	r, err := t.send(row)
	if e := (*im.Error)(nil); errors.As(err, &e) {
		runs.Refused(row.Run, e)
		return store.AppendResult{Err: e}, nil
	}
	return r, err
}

// send stores one row. An *im.Error is the row's, any other a fault.
func (t *tx) send(row *store.AppendRow) (store.AppendResult, error) {
	if row.ClientMessageID == "" {
		return store.AppendResult{}, refuse(clientv1.Reason_REASON_BAD_REQUEST, opAppend, "no client message id")
	}
	c, err := t.conversation(row.Conversation)
	if err == nil && c == nil {
		c, err = t.makeDirect(row)
	}
	if err != nil {
		return store.AppendResult{}, err
	}
	refused, err := t.displaced(row)
	if err == nil && refused == nil {
		refused, err = t.mayWrite(c, row.Sender)
	}
	if err != nil {
		return store.AppendResult{}, err
	}
	if refused != nil && failpoint.Bad(failpoint.PermissionBeforeDedup) {
		return store.AppendResult{}, refused
	}
	if refused == nil {
		e, ok, err := t.number(c, func(im.Seq) *entry { return entryOf(row) })
		if err != nil {
			return store.AppendResult{}, err
		}
		if ok {
			return store.AppendResult{MessageID: e.MessageID, Seq: e.Seq, PrevSeq: e.PrevSeq, ServerTime: e.ServerTime, MemberVersion: c.MemberVersion}, nil
		}
	}
	// Either the key is taken, or the sender may not write now: what is stored
	// already answers first.
	return t.stored(c, row, refused)
}

// entryOf is the entry that a row asks for.
func entryOf(row *store.AppendRow) *entry {
	return &entry{
		Entry: im.Entry{
			Kind: row.Kind, MessageID: row.MessageID, ClientMessageID: row.ClientMessageID, Sender: row.Sender,
			Content: row.Content, TargetSeq: row.TargetSeq, Countable: row.Countable,
		},
		hash: row.BodyHash[:],
	}
}

const sqlStored = `SELECT seq, prev_seq, message_id, server_time_ms, body_hash FROM entry
  WHERE conv = ? AND sender = ? AND client_message_id = ?`

// stored answers a row whose key is taken as at first; if it is not, the
// answer is otherwise.
func (t *tx) stored(c *conversation, row *store.AppendRow, otherwise *im.Error) (store.AppendResult, error) {
	r := store.AppendResult{Duplicate: true, MemberVersion: c.MemberVersion}
	var ms int64
	var hash []byte
	err := t.row(sqlStored, []any{c.num, string(row.Sender), key(row.ClientMessageID)}, &r.Seq, &r.PrevSeq, &r.MessageID, &ms, &hash)
	switch {
	case errors.Is(err, sql.ErrNoRows) && otherwise != nil:
		return store.AppendResult{}, otherwise
	case err != nil:
		return store.AppendResult{}, err
	case len(hash) < hashHalf || !bytes.HasPrefix(row.BodyHash[:], hash):
		return store.AppendResult{}, refuse(clientv1.Reason_REASON_ID_REUSED, opAppend, "this client message id was used with other content")
	}
	r.ServerTime = time.UnixMilli(ms)
	return r, nil
}

// mayWrite is why sender may not write to c now; nil if it may.
func (t *tx) mayWrite(c *conversation, sender im.UserID) (*im.Error, error) {
	if sender != "" {
		m, err := t.member(c, sender)
		if err != nil {
			return nil, err
		}
		if !m.Present() {
			return rules.NotMember(opAppend, c.ID), nil
		}
	}
	if c.Closed {
		return rules.Closed(opAppend, c.ID), nil
	}
	if peer := c.peer(sender); peer != "" && sender != "" {
		return t.mayReach(peer, sender)
	}
	return nil, nil
}

// mayReach is why sender may not write to peer directly; nil if it may.
func (t *tx) mayReach(peer, sender im.UserID) (*im.Error, error) {
	blocked, err := t.blocked(peer, sender)
	if err != nil || !blocked {
		return nil, err
	}
	return refuse(clientv1.Reason_REASON_FORBIDDEN, opAppend, "the recipient does not take messages from you"), nil
}

// makeDirect makes the direct conversation that row is for, with both users.
func (t *tx) makeDirect(row *store.AppendRow) (*conversation, error) {
	if !row.Conversation.Direct() || row.Peer == "" || row.Sender == "" {
		return nil, rules.NotMember(opAppend, row.Conversation)
	}
	if row.Peer == row.Sender || protocol.DirectID(string(row.Sender), string(row.Peer)) != string(row.Conversation) {
		return nil, refuse(clientv1.Reason_REASON_BAD_REQUEST, opAppend, "%s is not the conversation of these users", row.Conversation)
	}
	if refused, err := t.mayReach(row.Peer, row.Sender); err != nil {
		return nil, err
	} else if refused != nil {
		return nil, refused
	}
	c := &conversation{a: min(row.Sender, row.Peer), b: max(row.Sender, row.Peer)}
	c.ID, c.Kind = row.Conversation, clientv1.ConversationKind_CONVERSATION_KIND_DIRECT
	if err := t.add(c); err != nil {
		return nil, err
	}
	for _, u := range []im.UserID{c.a, c.b} {
		if err := t.know(u); err != nil {
			return nil, err
		}
		m := rules.Join(u, nil, clientv1.Role_ROLE_MEMBER, 0)
		if err := t.put(c, &m); err != nil {
			return nil, err
		}
	}
	c.Count, c.MemberVersion = 2, 1
	return c, nil
}

package sqlite

import (
	"context"
	"database/sql"
	"errors"

	"github.com/imdhq/imd/pkg/im"
	"github.com/imdhq/imd/pkg/store"
	"github.com/imdhq/imd/pkg/store/rules"
	"github.com/imdhq/imd/sdk/go/gen/clientv1"
)

// Change is store.Membership's.
func (s *Store) Change(ctx context.Context, c store.Change) (store.ChangeResult, error) {
	if err := rules.CheckChange(c); err != nil {
		return store.ChangeResult{}, err
	}
	var out store.ChangeResult
	err := s.w.run(ctx, func(t *tx) (err error) {
		if c.Create != nil {
			out, err = t.create(c)
			return err
		}
		out, err = t.change(c)
		return err
	})
	if err != nil {
		return store.ChangeResult{}, fault(rules.OpChange, err)
	}
	return out, nil
}

const (
	sqlCreation    = `SELECT c.id FROM creation r JOIN conversation c ON c.num = r.conv WHERE r.actor = ? AND r.request_id = ?`
	sqlAddCreation = `INSERT INTO creation (actor, request_id, conv) VALUES (?, ?, ?)`
)

// create makes a group, or finds the one that this request has made.
func (t *tx) create(q store.Change) (store.ChangeResult, error) {
	var id string
	switch err := t.row(sqlCreation, []any{string(q.Actor), key(q.RequestID)}, &id); {
	case err == nil:
		c, err := t.conversation(im.ConversationID(id))
		if err != nil {
			return store.ChangeResult{}, err
		}
		return t.repeated(c, q)
	case !errors.Is(err, sql.ErrNoRows):
		return store.ChangeResult{}, err
	}
	if c, err := t.conversation(q.Conversation); err != nil {
		return store.ChangeResult{}, err
	} else if c != nil {
		return store.ChangeResult{}, refuse(clientv1.Reason_REASON_BAD_REQUEST, rules.OpChange, "%s exists", q.Conversation)
	}
	group, p := rules.Found(q)
	c := &conversation{Conversation: group}
	if err := t.add(c); err != nil {
		return store.ChangeResult{}, err
	}
	if _, err := t.exec(sqlAddCreation, string(q.Actor), key(q.RequestID), c.num); err != nil {
		return store.ChangeResult{}, err
	}
	return t.apply(c, q, p)
}

// change applies everything but the making of a group.
func (t *tx) change(q store.Change) (store.ChangeResult, error) {
	c, err := t.conversation(q.Conversation)
	if err != nil {
		return store.ChangeResult{}, err
	}
	if c == nil {
		return store.ChangeResult{}, rules.NotMember(rules.OpChange, q.Conversation)
	}
	if r, err := t.repeated(c, q); err == nil || !errors.Is(err, sql.ErrNoRows) {
		return r, err
	}
	p, err := rules.Decide(&c.Conversation, q, roster{t, c})
	if err != nil {
		return store.ChangeResult{}, err
	}
	return t.apply(c, q, p)
}

// roster is the rules.Roster of a conversation.
type roster struct {
	t *tx
	c *conversation
}

// Members is rules.Roster's.
func (r roster) Members(users ...im.UserID) (map[im.UserID]*rules.Member, error) {
	out := make(map[im.UserID]*rules.Member, len(users))
	for _, u := range users {
		m, err := r.t.member(r.c, u)
		if err != nil {
			return nil, err
		}
		out[u] = m
	}
	return out, nil
}

const sqlOwners = `SELECT count(*) FROM (SELECT 1 FROM member WHERE conv = ? AND role > 0 AND role = ? LIMIT 2)`

// Owners is rules.Roster's.
func (r roster) Owners() (n int, err error) {
	err = r.t.row(sqlOwners, []any{r.c.num, clientv1.Role_ROLE_OWNER}, &n)
	return n, err
}

// apply writes what p does to c: the entry first, because its seq may not be the
// one behind the head that is stored.
func (t *tx) apply(c *conversation, q store.Change, p rules.Plan) (store.ChangeResult, error) {
	t.touch(c)
	p.Apply(&c.Conversation)
	var encoding error
	e, ok, err := t.number(c, func(seq im.Seq) *entry {
		var e entry
		e.Entry, encoding = p.Entry(q, seq-1)
		return &e
	})
	if err = errors.Join(err, encoding); err != nil {
		return store.ChangeResult{}, err
	}
	if !ok {
		return store.ChangeResult{}, refuse(clientv1.Reason_REASON_ID_REUSED, rules.OpChange, "this request id was used for something else")
	}
	for _, u := range p.Newcomers() {
		if err := t.know(u); err != nil {
			return store.ChangeResult{}, err
		}
	}
	for _, m := range p.Members(e.PrevSeq, e.Seq) {
		if err := t.put(c, &m); err != nil {
			return store.ChangeResult{}, err
		}
	}
	return rules.Result(&c.Conversation, e.Entry)
}

const sqlByKey = `SELECT ` + entryColumns + ` FROM entry WHERE conv = ? AND sender = ? AND client_message_id = ?`

// repeated answers a change that has been made before. Errors: sql.ErrNoRows.
func (t *tx) repeated(c *conversation, q store.Change) (store.ChangeResult, error) {
	var e im.Entry
	err := t.each(context.Background(), sqlByKey, []any{c.num, string(q.Actor), key(q.RequestID)}, func(scan func(...any) error) error {
		return scanEntry(scan, &e)
	})
	if err != nil {
		return store.ChangeResult{}, err
	}
	if e.Seq == 0 {
		return store.ChangeResult{}, sql.ErrNoRows
	}
	return rules.Repeat(&c.Conversation, e)
}

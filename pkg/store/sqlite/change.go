package sqlite

import (
	"context"
	"database/sql"
	"errors"

	"google.golang.org/protobuf/proto"

	"github.com/imdhq/imd/pkg/im"
	"github.com/imdhq/imd/pkg/store"
	"github.com/imdhq/imd/pkg/store/rules"
	"github.com/imdhq/imd/sdk/go/gen/clientv1"
)

// Change is store.Membership's.
func (s *Store) Change(ctx context.Context, c store.Change) (store.ChangeResult, error) {
	if err := checkChange(c); err != nil {
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

// checkChange refuses what no state of the store could make right.
func checkChange(c store.Change) error {
	n := 0
	for _, set := range []bool{c.Create != nil, c.Rename != nil, c.Close, c.AddMembers != nil, c.RemoveMembers != nil, c.SetRole != nil, c.Leave} {
		if set {
			n++
		}
	}
	bad := func(text string) error { return refuse(clientv1.Reason_REASON_BAD_REQUEST, rules.OpChange, "%s", text) }
	switch {
	case n != 1:
		return bad("not exactly one change")
	case c.RequestID == "":
		return bad("no request id")
	case c.Conversation == "":
		return bad("no conversation id")
	case c.Create != nil && c.Create.Owner == "":
		return bad("a group needs an owner")
	case c.Leave && c.Actor == "":
		return bad("the system is in no group")
	case c.SetRole != nil && clientv1.Role_name[int32(c.SetRole.Role)] == "", c.SetRole != nil && c.SetRole.Role == clientv1.Role_ROLE_UNSPECIFIED:
		return bad("no such role")
	}
	lists := [][]im.UserID{c.AddMembers, c.RemoveMembers}
	if c.Create != nil {
		lists = append(lists, c.Create.Members)
	}
	for _, l := range lists {
		if len(l) > store.MaxAddMembers {
			return refuse(clientv1.Reason_REASON_TOO_LARGE, rules.OpChange, "more than %d users", store.MaxAddMembers)
		}
		for _, u := range l {
			if u == "" {
				return bad("an empty user id")
			}
		}
	}
	return nil
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
	g := q.Create
	c := &conversation{id: q.Conversation, kind: clientv1.ConversationKind_CONVERSATION_KIND_GROUP, name: g.Name, openHistory: g.OpenHistory}
	if err := t.add(c); err != nil {
		return store.ChangeResult{}, err
	}
	if _, err := t.exec(sqlAddCreation, string(q.Actor), key(q.RequestID), c.num); err != nil {
		return store.ChangeResult{}, err
	}
	users := rules.Distinct(append([]im.UserID{g.Owner}, g.Members...))
	for i, u := range users {
		role := clientv1.Role_ROLE_MEMBER
		if i == 0 {
			role = clientv1.Role_ROLE_OWNER
		}
		if err := t.join(c, u, role, 0); err != nil {
			return store.ChangeResult{}, err
		}
	}
	c.memberVersion++
	return t.record(c, q, func(im.Seq) proto.Message {
		return &clientv1.MemberChange{
			Action: clientv1.MemberAction_MEMBER_ACTION_ADDED, UserIds: rules.Texts(users), Role: clientv1.Role_ROLE_MEMBER,
		}
	})
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
	role := clientv1.Role_ROLE_OWNER // the system may do everything
	if q.Actor != "" {
		m, err := t.member(c, q.Actor)
		if err != nil {
			return store.ChangeResult{}, err
		}
		if !m.present() {
			return store.ChangeResult{}, rules.NotMember(rules.OpChange, c.id)
		}
		role = m.role
	}
	if err := mayChange(c, q, role); err != nil {
		return store.ChangeResult{}, err
	}
	switch {
	case q.Rename != nil:
		return t.rename(c, q)
	case q.Close:
		return t.close(c, q)
	case q.AddMembers != nil:
		return t.addMembers(c, q)
	case q.RemoveMembers != nil:
		return t.removeMembers(c, q)
	case q.SetRole != nil:
		return t.setRole(c, q)
	}
	return t.leave(c, q)
}

// mayChange checks what role may do to c.
func mayChange(c *conversation, q store.Change, role clientv1.Role) error {
	if c.kind != clientv1.ConversationKind_CONVERSATION_KIND_GROUP {
		return forbidden("this conversation cannot be changed")
	}
	if c.closed {
		return rules.Closed(rules.OpChange, c.id)
	}
	need := clientv1.Role_ROLE_ADMIN
	switch {
	case q.Close, q.SetRole != nil:
		need = clientv1.Role_ROLE_OWNER
	case q.Leave:
		need = clientv1.Role_ROLE_MEMBER
	}
	if role < need {
		return forbidden("your role does not allow this")
	}
	return nil
}

func (t *tx) rename(c *conversation, q store.Change) (store.ChangeResult, error) {
	if c.name == *q.Rename {
		return store.ChangeResult{}, nothing("it has this name")
	}
	t.touch(c)
	c.name = *q.Rename
	return t.record(c, q, func(im.Seq) proto.Message { return &clientv1.ConversationChange{Name: q.Rename} })
}

func (t *tx) close(c *conversation, q store.Change) (store.ChangeResult, error) {
	t.touch(c)
	c.closed = true
	return t.record(c, q, func(im.Seq) proto.Message { return &clientv1.ConversationChange{Closed: proto.Bool(true)} })
}

func (t *tx) addMembers(c *conversation, q store.Change) (store.ChangeResult, error) {
	var users []im.UserID
	for _, u := range rules.Distinct(q.AddMembers) {
		m, err := t.member(c, u)
		if err != nil {
			return store.ChangeResult{}, err
		}
		if !m.present() {
			users = append(users, u)
		}
	}
	if len(users) == 0 {
		return store.ChangeResult{}, nothing("all are members")
	}
	if c.count+len(users) > store.MaxMembers {
		return store.ChangeResult{}, refuse(clientv1.Reason_REASON_TOO_LARGE, rules.OpChange, "a group has at most %d members", store.MaxMembers)
	}
	t.touch(c)
	c.memberVersion++
	var start im.Seq
	r, err := t.record(c, q, func(seq im.Seq) proto.Message {
		if !c.openHistory {
			start = seq - 1
		}
		return &clientv1.MemberChange{
			Action: clientv1.MemberAction_MEMBER_ACTION_ADDED, UserIds: rules.Texts(users),
			Role: clientv1.Role_ROLE_MEMBER, Start: int64(start),
		}
	})
	for i := 0; err == nil && i < len(users); i++ {
		err = t.join(c, users[i], clientv1.Role_ROLE_MEMBER, start)
	}
	return r, err
}

func (t *tx) removeMembers(c *conversation, q store.Change) (store.ChangeResult, error) {
	var users []im.UserID
	for _, u := range rules.Distinct(q.RemoveMembers) {
		m, err := t.member(c, u)
		if err != nil {
			return store.ChangeResult{}, err
		}
		if !m.present() {
			continue
		}
		if m.role == clientv1.Role_ROLE_OWNER && q.Actor != "" {
			return store.ChangeResult{}, forbidden("an owner cannot be removed")
		}
		users = append(users, u)
	}
	if len(users) == 0 {
		return store.ChangeResult{}, nothing("none is a member")
	}
	return t.part(c, q, clientv1.MemberAction_MEMBER_ACTION_REMOVED, users)
}

func (t *tx) leave(c *conversation, q store.Change) (store.ChangeResult, error) {
	if only, err := t.onlyOwner(c, q.Actor); err != nil {
		return store.ChangeResult{}, err
	} else if only {
		return store.ChangeResult{}, forbidden("the only owner cannot leave; make another member owner first")
	}
	return t.part(c, q, clientv1.MemberAction_MEMBER_ACTION_LEFT, []im.UserID{q.Actor})
}

func (t *tx) setRole(c *conversation, q store.Change) (store.ChangeResult, error) {
	user, role := q.SetRole.User, q.SetRole.Role
	m, err := t.member(c, user)
	if err != nil {
		return store.ChangeResult{}, err
	}
	if !m.present() {
		return store.ChangeResult{}, refuse(clientv1.Reason_REASON_NOT_FOUND, rules.OpChange, "no such member")
	}
	if m.role == role {
		return store.ChangeResult{}, nothing("the member has this role")
	}
	if q.Actor != "" {
		if only, err := t.onlyOwner(c, user); err != nil {
			return store.ChangeResult{}, err
		} else if only {
			return store.ChangeResult{}, forbidden("a group needs an owner; make another member owner first")
		}
	}
	t.touch(c)
	c.memberVersion++
	next := *m
	next.role = role
	if err := t.put(c, user, &next); err != nil {
		return store.ChangeResult{}, err
	}
	return t.record(c, q, func(im.Seq) proto.Message {
		return &clientv1.MemberChange{Action: clientv1.MemberAction_MEMBER_ACTION_ROLE, UserIds: []string{string(user)}, Role: role}
	})
}

const sqlOwners = `SELECT count(*) FROM (SELECT 1 FROM member WHERE conv = ? AND role > 0 AND role = ? LIMIT 2)`

// onlyOwner reports whether user is an owner of c and no other member is.
func (t *tx) onlyOwner(c *conversation, user im.UserID) (bool, error) {
	m, err := t.member(c, user)
	if err != nil || m == nil || m.role != clientv1.Role_ROLE_OWNER {
		return false, err
	}
	var n int
	err = t.row(sqlOwners, []any{c.num, clientv1.Role_ROLE_OWNER}, &n)
	return n < 2, err
}

// join makes user a present member that sees what is above start.
func (t *tx) join(c *conversation, user im.UserID, role clientv1.Role, start im.Seq) error {
	if err := t.know(user); err != nil {
		return err
	}
	former, err := t.member(c, user)
	if err != nil {
		return err
	}
	m := member{role: role, delivered: start}
	if former != nil {
		m = *former
		m.role, m.leftName = role, ""
		if start > 0 { // with open history the new stretch covers the old ones
			m.view.Earlier = append(m.view.Earlier[:len(m.view.Earlier):len(m.view.Earlier)], m.view.Last)
		} else {
			m.view.Earlier = nil
		}
	}
	m.view.Last = store.Stretch{Start: start}
	c.count++
	return t.put(c, user, &m)
}

// part ends the membership of users, who are present, with one entry.
func (t *tx) part(c *conversation, q store.Change, action clientv1.MemberAction, users []im.UserID) (store.ChangeResult, error) {
	t.touch(c)
	c.memberVersion++
	c.count -= len(users)
	r, err := t.record(c, q, func(im.Seq) proto.Message {
		return &clientv1.MemberChange{Action: action, UserIds: rules.Texts(users)}
	})
	for i := 0; err == nil && i < len(users); i++ {
		var m *member
		if m, err = t.member(c, users[i]); err != nil {
			break
		}
		next := *m
		next.role, next.view.Last.End, next.leftName = clientv1.Role_ROLE_UNSPECIFIED, r.Entry.Seq, c.name
		err = t.put(c, users[i], &next)
	}
	return r, err
}

// record writes the entry of a change; its text depends on its seq.
func (t *tx) record(c *conversation, q store.Change, text func(im.Seq) proto.Message) (store.ChangeResult, error) {
	kind := clientv1.EntryKind_ENTRY_KIND_CONVERSATION_CHANGE
	var encoding error
	e, ok, err := t.number(c, func(seq im.Seq) *entry {
		m := text(seq)
		if _, member := m.(*clientv1.MemberChange); member {
			kind = clientv1.EntryKind_ENTRY_KIND_MEMBER_CHANGE
		}
		var b []byte
		b, encoding = proto.Marshal(m)
		return &entry{Entry: im.Entry{Kind: kind, MessageID: q.MessageID, ClientMessageID: q.RequestID, Sender: q.Actor, Change: b}}
	})
	if err = errors.Join(err, encoding); err != nil {
		return store.ChangeResult{}, err
	}
	if !ok {
		return store.ChangeResult{}, refuse(clientv1.Reason_REASON_ID_REUSED, rules.OpChange, "this request id was used for something else")
	}
	return result(c, e.Entry)
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
	if e.Change == nil {
		return store.ChangeResult{}, refuse(clientv1.Reason_REASON_ID_REUSED, rules.OpChange, "this request id was used for a message")
	}
	r, err := result(c, e)
	r.Duplicate = true
	return r, err
}

// result is the answer to a change whose entry is e.
func result(c *conversation, e im.Entry) (store.ChangeResult, error) {
	r := store.ChangeResult{Conversation: c.id, Entry: e, MemberVersion: c.memberVersion}
	if e.Kind != clientv1.EntryKind_ENTRY_KIND_MEMBER_CHANGE {
		return r, nil
	}
	var m clientv1.MemberChange
	if err := proto.Unmarshal(e.Change, &m); err != nil {
		return r, err
	}
	if m.Action == clientv1.MemberAction_MEMBER_ACTION_REMOVED || m.Action == clientv1.MemberAction_MEMBER_ACTION_LEFT {
		for _, u := range m.UserIds {
			r.Removed = append(r.Removed, im.UserID(u))
		}
	}
	return r, nil
}

func forbidden(text string) *im.Error {
	return refuse(clientv1.Reason_REASON_FORBIDDEN, rules.OpChange, "%s", text)
}

func nothing(text string) *im.Error {
	return refuse(clientv1.Reason_REASON_BAD_REQUEST, rules.OpChange, "nothing to change: %s", text)
}

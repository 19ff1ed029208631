package postgres

import (
	"context"
	"errors"
	"time"

	"github.com/jackc/pgx/v5"
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
	apply := func(ctx context.Context, c store.Change) (store.ChangeResult, error) { return s.change(ctx, c, nil) }
	if s.owner != nil {
		apply = s.owner.change
	}
	out, err := apply(ctx, c)
	again := errors.Is(err, errCreatedMeanwhile) ||
		codeOf(err) == codeUnique && !errors.Is(err, store.ErrUnknownOutcome) && s.heal(ctx, []string{string(c.Conversation)}) == nil
	if again {
		out, err = apply(ctx, c)
	}
	if codeOf(err) == codeLockTimeout && !errors.Is(err, store.ErrUnknownOutcome) {
		err = &store.BusyConversationError{Conversations: []im.ConversationID{c.Conversation}, Err: err}
	}
	if err != nil {
		return store.ChangeResult{}, fault(rules.OpChange, err)
	}
	s.wrote.Store(time.Now().UnixNano())
	return out, nil
}

// change applies c in a transaction, under the right of p if it is given.
func (s *Store) change(ctx context.Context, c store.Change, p *proof) (store.ChangeResult, error) {
	return call(ctx, s.appends, true, func(ctx context.Context, conn *pgx.Conn) (store.ChangeResult, error) {
		return transact(ctx, conn, func(t *tx) (store.ChangeResult, error) {
			if err := t.prove(p); err != nil {
				return store.ChangeResult{}, err
			}
			if c.Create != nil {
				return t.create(c)
			}
			return t.change(c)
		})
	})
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
	sqlCreation    = `SELECT c.id FROM creation r JOIN conversation c ON c.num = r.conv WHERE r.actor = $1 AND r.client_key = $2`
	sqlAddCreation = `INSERT INTO creation (actor, client_key, conv) VALUES ($1, $2, $3) ON CONFLICT DO NOTHING`
)

// errCreatedMeanwhile says that another transaction has made the group of the
// same request.
var errCreatedMeanwhile = errors.New("the same request has made a group meanwhile")

// created finds the group that the request has made; nil if it has made none.
func (t *tx) created(q store.Change) (*conversation, error) {
	var id string
	err := t.row(sqlCreation, []any{string(q.Actor), key(q.RequestID)}, &id)
	if errors.Is(err, pgx.ErrNoRows) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	return t.lock(im.ConversationID(id))
}

// create makes a group, or finds the one that this request has made.
func (t *tx) create(q store.Change) (store.ChangeResult, error) {
	c, err := t.created(q)
	if err != nil {
		return store.ChangeResult{}, err
	}
	if c != nil {
		return t.repeated(c, q)
	}
	if err := t.begun(); err != nil {
		return store.ChangeResult{}, err
	}
	return t.group(q)
}

// group writes a new group, its members and its first entry.
func (t *tx) group(q store.Change) (store.ChangeResult, error) {
	g := q.Create
	c := &conversation{id: q.Conversation, kind: clientv1.ConversationKind_CONVERSATION_KIND_GROUP, name: g.Name, openHistory: g.OpenHistory}
	if ok, err := t.add(c); err != nil {
		return store.ChangeResult{}, err
	} else if !ok {
		if same, err := t.created(q); err != nil || same != nil {
			return store.ChangeResult{}, errors.Join(err, errCreatedMeanwhile)
		}
		return store.ChangeResult{}, refuse(clientv1.Reason_REASON_BAD_REQUEST, rules.OpChange, "%s exists", q.Conversation)
	}
	if n, err := t.exec(sqlAddCreation, string(q.Actor), key(q.RequestID), c.num); err != nil {
		return store.ChangeResult{}, err
	} else if n == 0 {
		return store.ChangeResult{}, errCreatedMeanwhile
	}
	users := rules.Distinct(append([]im.UserID{g.Owner}, g.Members...))
	if err := t.join(c, users, nil, 0); err != nil {
		return store.ChangeResult{}, err
	}
	owner := &member{user: g.Owner, role: clientv1.Role_ROLE_OWNER}
	if err := t.put(c, []*member{owner}); err != nil {
		return store.ChangeResult{}, err
	}
	c.memberVersion++
	return t.record(c, q, &clientv1.MemberChange{
		Action: clientv1.MemberAction_MEMBER_ACTION_ADDED, UserIds: rules.Texts(users), Role: clientv1.Role_ROLE_MEMBER,
	})
}

// change applies everything but the making of a group.
func (t *tx) change(q store.Change) (store.ChangeResult, error) {
	c, err := t.lock(q.Conversation)
	if err != nil {
		return store.ChangeResult{}, err
	}
	if c == nil {
		return store.ChangeResult{}, rules.NotMember(rules.OpChange, q.Conversation)
	}
	if r, err := t.repeated(c, q); err == nil || !errors.Is(err, pgx.ErrNoRows) {
		return r, err
	}
	role := clientv1.Role_ROLE_OWNER // the system may do everything
	if q.Actor != "" {
		all, err := t.members(c, q.Actor)
		if err != nil {
			return store.ChangeResult{}, err
		}
		m := all[q.Actor]
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
	c.name = *q.Rename
	return t.record(c, q, &clientv1.ConversationChange{Name: q.Rename})
}

func (t *tx) close(c *conversation, q store.Change) (store.ChangeResult, error) {
	c.closed = true
	return t.record(c, q, &clientv1.ConversationChange{Closed: proto.Bool(true)})
}

func (t *tx) addMembers(c *conversation, q store.Change) (store.ChangeResult, error) {
	all, err := t.members(c, q.AddMembers...)
	if err != nil {
		return store.ChangeResult{}, err
	}
	var users []im.UserID
	for _, u := range rules.Distinct(q.AddMembers) {
		if !all[u].present() {
			users = append(users, u)
		}
	}
	if len(users) == 0 {
		return store.ChangeResult{}, nothing("all are members")
	}
	if c.count+len(users) > store.MaxMembers {
		return store.ChangeResult{}, refuse(clientv1.Reason_REASON_TOO_LARGE, rules.OpChange, "a group has at most %d members", store.MaxMembers)
	}
	c.memberVersion++
	var start im.Seq
	if !c.openHistory {
		start = c.head
	}
	if err := t.join(c, users, all, start); err != nil {
		return store.ChangeResult{}, err
	}
	return t.record(c, q, &clientv1.MemberChange{
		Action: clientv1.MemberAction_MEMBER_ACTION_ADDED, UserIds: rules.Texts(users),
		Role: clientv1.Role_ROLE_MEMBER, Start: int64(start),
	})
}

func (t *tx) removeMembers(c *conversation, q store.Change) (store.ChangeResult, error) {
	all, err := t.members(c, q.RemoveMembers...)
	if err != nil {
		return store.ChangeResult{}, err
	}
	var gone []*member
	for _, u := range rules.Distinct(q.RemoveMembers) {
		m := all[u]
		if !m.present() {
			continue
		}
		if m.role == clientv1.Role_ROLE_OWNER && q.Actor != "" {
			return store.ChangeResult{}, forbidden("an owner cannot be removed")
		}
		gone = append(gone, m)
	}
	if len(gone) == 0 {
		return store.ChangeResult{}, nothing("none is a member")
	}
	return t.part(c, q, clientv1.MemberAction_MEMBER_ACTION_REMOVED, gone)
}

func (t *tx) leave(c *conversation, q store.Change) (store.ChangeResult, error) {
	if only, err := t.onlyOwner(c, q.Actor); err != nil {
		return store.ChangeResult{}, err
	} else if only {
		return store.ChangeResult{}, forbidden("the only owner cannot leave; make another member owner first")
	}
	all, err := t.members(c, q.Actor)
	if err != nil {
		return store.ChangeResult{}, err
	}
	return t.part(c, q, clientv1.MemberAction_MEMBER_ACTION_LEFT, []*member{all[q.Actor]})
}

func (t *tx) setRole(c *conversation, q store.Change) (store.ChangeResult, error) {
	user, role := q.SetRole.User, q.SetRole.Role
	all, err := t.members(c, user)
	if err != nil {
		return store.ChangeResult{}, err
	}
	m := all[user]
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
	c.memberVersion++
	m.role = role
	if err := t.put(c, []*member{m}); err != nil {
		return store.ChangeResult{}, err
	}
	return t.record(c, q, &clientv1.MemberChange{Action: clientv1.MemberAction_MEMBER_ACTION_ROLE, UserIds: []string{string(user)}, Role: role})
}

const sqlOwners = `SELECT count(*) FROM (SELECT 1 FROM member WHERE conv = $1 AND role > 0 AND role = $2 LIMIT 2) AS o`

// onlyOwner reports whether user is an owner of c and no other member is.
func (t *tx) onlyOwner(c *conversation, user im.UserID) (bool, error) {
	all, err := t.members(c, user)
	if m := all[user]; err != nil || m == nil || m.role != clientv1.Role_ROLE_OWNER {
		return false, err
	}
	var n int
	err = t.row(sqlOwners, []any{c.num, int16(clientv1.Role_ROLE_OWNER)}, &n)
	return n < 2, err
}

const sqlKnow = `SELECT imd_know($1, $2)`

// join makes users present members that see what is above start; former has the
// rows of those who were members before.
func (t *tx) join(c *conversation, users []im.UserID, former map[im.UserID]*member, start im.Seq) error {
	if _, err := t.exec(sqlKnow, rules.Texts(users), t.now.UnixMilli()); err != nil {
		return err
	}
	members := make([]*member, len(users))
	for i, u := range users {
		m := former[u]
		if m == nil {
			m = &member{user: u, delivered: start}
		} else if m.leftName = ""; start > 0 { // with open history the new stretch covers the old ones
			m.view.Earlier = append(m.view.Earlier, m.view.Last)
		} else {
			m.view.Earlier = nil
		}
		m.role, m.view.Last = clientv1.Role_ROLE_MEMBER, store.Stretch{Start: start}
		members[i] = m
	}
	c.count += len(users)
	return t.put(c, members)
}

// part ends the membership of present members with one entry.
func (t *tx) part(c *conversation, q store.Change, action clientv1.MemberAction, gone []*member) (store.ChangeResult, error) {
	c.memberVersion++
	c.count -= len(gone)
	users := make([]im.UserID, len(gone))
	for i, m := range gone {
		users[i] = m.user
		m.role, m.view.Last.End, m.leftName = clientv1.Role_ROLE_UNSPECIFIED, t.following(c), c.name
	}
	if err := t.put(c, gone); err != nil {
		return store.ChangeResult{}, err
	}
	return t.record(c, q, &clientv1.MemberChange{Action: action, UserIds: rules.Texts(users)})
}

// record writes the entry of a change, whose text it carries, and c.
func (t *tx) record(c *conversation, q store.Change, text proto.Message) (store.ChangeResult, error) {
	kind := clientv1.EntryKind_ENTRY_KIND_CONVERSATION_CHANGE
	if _, ok := text.(*clientv1.MemberChange); ok {
		kind = clientv1.EntryKind_ENTRY_KIND_MEMBER_CHANGE
	}
	body, err := proto.Marshal(text)
	if err != nil {
		return store.ChangeResult{}, err
	}
	e := im.Entry{Kind: kind, MessageID: q.MessageID, ClientMessageID: q.RequestID, Sender: q.Actor, Change: body}
	if err := t.insert(c, &e); err != nil {
		return store.ChangeResult{}, err
	}
	return result(c, e)
}

const sqlByKey = `SELECT ` + entryColumns + ` FROM entry e WHERE e.conv = $1 AND e.sender = $2 AND e.client_key = $3`

// repeated answers a change that has been made before. Errors: pgx.ErrNoRows.
func (t *tx) repeated(c *conversation, q store.Change) (store.ChangeResult, error) {
	var e im.Entry
	if err := scanEntry(t.QueryRow(t.ctx, sqlByKey, c.num, string(q.Actor), key(q.RequestID)), &e); err != nil {
		return store.ChangeResult{}, err
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

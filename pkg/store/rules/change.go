package rules

import (
	"github.com/imdhq/imd/pkg/im"
	"github.com/imdhq/imd/pkg/store"
	"github.com/imdhq/imd/sdk/go/gen/clientv1"
)

// OpChange is what errors of a change name as the failed operation.
const OpChange = "store.Change"

// CheckChange refuses what no state of the store could make right.
func CheckChange(q store.Change) error {
	n := 0
	for _, set := range []bool{q.Create != nil, q.Rename != nil, q.Close, q.AddMembers != nil, q.RemoveMembers != nil, q.SetRole != nil, q.Leave} {
		if set {
			n++
		}
	}
	switch {
	case n != 1:
		return bad("not exactly one change")
	case q.RequestID == "":
		return bad("no request id")
	case q.Conversation == "":
		return bad("no conversation id")
	case q.Create != nil && q.Create.Owner == "":
		return bad("a group needs an owner")
	case q.Leave && q.Actor == "":
		return bad("the system is in no group")
	case q.SetRole != nil && clientv1.Role_name[int32(q.SetRole.Role)] == "", q.SetRole != nil && q.SetRole.Role == clientv1.Role_ROLE_UNSPECIFIED:
		return bad("no such role")
	}
	lists := [][]im.UserID{q.AddMembers, q.RemoveMembers}
	if q.Create != nil {
		lists = append(lists, q.Create.Members)
	}
	for _, l := range lists {
		if len(l) > store.MaxAddMembers {
			return im.Errorf(clientv1.Reason_REASON_TOO_LARGE, OpChange, "more than %d users", store.MaxAddMembers)
		}
		for _, u := range l {
			if u == "" {
				return bad("an empty user id")
			}
		}
	}
	return nil
}

// Roster looks up members of the conversation that is to be changed. What it
// finds stays true until the driver has written the change.
type Roster interface {
	// Members finds present and former members among users.
	Members(users ...im.UserID) (map[im.UserID]*Member, error)
	// Owners counts those present members who are owners; above 1 it may stop.
	Owners() (int, error)
}

// Found is what makes the group of a change with Create: the group before its
// first entry, and the plan for that entry.
func Found(q store.Change) (Conversation, Plan) {
	g := q.Create
	c := Conversation{ID: q.Conversation, Kind: clientv1.ConversationKind_CONVERSATION_KIND_GROUP, Name: g.Name, OpenHistory: g.OpenHistory}
	p := add(&c, Distinct(append([]im.UserID{g.Owner}, g.Members...)), nil)
	p.owner = g.Owner
	return c, p
}

// Decide judges a change of c other than its making. Errors: what a client should
// hear, and those of r.
func Decide(c *Conversation, q store.Change, r Roster) (Plan, error) {
	d := decision{c: c, q: q, r: r}
	role := clientv1.Role_ROLE_OWNER // the system may do everything
	if q.Actor != "" {
		var err error
		if d.actor, err = d.member(q.Actor); err != nil {
			return Plan{}, err
		}
		if !d.actor.Present() {
			return Plan{}, NotMember(OpChange, c.ID)
		}
		role = d.actor.Role
	}
	if err := mayChange(c, q, role); err != nil {
		return Plan{}, err
	}
	switch {
	case q.Rename != nil:
		return d.rename()
	case q.Close:
		return d.close()
	case q.AddMembers != nil:
		return d.addMembers()
	case q.RemoveMembers != nil:
		return d.removeMembers()
	case q.SetRole != nil:
		return d.setRole()
	}
	return d.leave()
}

// mayChange checks what role may do to c.
func mayChange(c *Conversation, q store.Change, role clientv1.Role) error {
	if c.Kind != clientv1.ConversationKind_CONVERSATION_KIND_GROUP {
		return forbidden("this conversation cannot be changed")
	}
	if c.Closed {
		return Closed(OpChange, c.ID)
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

// decision is one change under judgement.
type decision struct {
	c     *Conversation
	q     store.Change
	r     Roster
	actor *Member // nil = the system
}

func (d *decision) member(user im.UserID) (*Member, error) {
	all, err := d.r.Members(user)
	return all[user], err
}

func (d *decision) rename() (Plan, error) {
	if d.c.Name == *d.q.Rename {
		return Plan{}, nothing("it has this name")
	}
	p := planFor(d.c)
	p.next.Name, p.about = *d.q.Rename, &clientv1.ConversationChange{Name: d.q.Rename}
	return p, nil
}

func (d *decision) close() (Plan, error) {
	p, yes := planFor(d.c), true
	p.next.Closed, p.about = true, &clientv1.ConversationChange{Closed: &yes}
	return p, nil
}

func (d *decision) addMembers() (Plan, error) {
	all, err := d.r.Members(d.q.AddMembers...)
	if err != nil {
		return Plan{}, err
	}
	var users []im.UserID
	for _, u := range Distinct(d.q.AddMembers) {
		if !all[u].Present() {
			users = append(users, u)
		}
	}
	if len(users) == 0 {
		return Plan{}, nothing("all are members")
	}
	if d.c.Count+len(users) > store.MaxMembers {
		return Plan{}, im.Errorf(clientv1.Reason_REASON_TOO_LARGE, OpChange, "a group has at most %d members", store.MaxMembers)
	}
	return add(d.c, users, all), nil
}

func (d *decision) removeMembers() (Plan, error) {
	all, err := d.r.Members(d.q.RemoveMembers...)
	if err != nil {
		return Plan{}, err
	}
	var gone []*Member
	for _, u := range Distinct(d.q.RemoveMembers) {
		m := all[u]
		if !m.Present() {
			continue
		}
		if m.Role == clientv1.Role_ROLE_OWNER && d.q.Actor != "" {
			return Plan{}, forbidden("an owner cannot be removed")
		}
		gone = append(gone, m)
	}
	if len(gone) == 0 {
		return Plan{}, nothing("none is a member")
	}
	return end(d.c, clientv1.MemberAction_MEMBER_ACTION_REMOVED, gone), nil
}

func (d *decision) leave() (Plan, error) {
	if only, err := d.onlyOwner(d.actor); err != nil {
		return Plan{}, err
	} else if only {
		return Plan{}, forbidden("the only owner cannot leave; make another member owner first")
	}
	return end(d.c, clientv1.MemberAction_MEMBER_ACTION_LEFT, []*Member{d.actor}), nil
}

func (d *decision) setRole() (Plan, error) {
	m, err := d.member(d.q.SetRole.User)
	if err != nil {
		return Plan{}, err
	}
	if !m.Present() {
		return Plan{}, im.Errorf(clientv1.Reason_REASON_NOT_FOUND, OpChange, "no such member")
	}
	if m.Role == d.q.SetRole.Role {
		return Plan{}, nothing("the member has this role")
	}
	if d.q.Actor != "" {
		if only, err := d.onlyOwner(m); err != nil {
			return Plan{}, err
		} else if only {
			return Plan{}, forbidden("a group needs an owner; make another member owner first")
		}
	}
	p := planFor(d.c)
	p.next.MemberVersion++
	p.action, p.role, p.members = clientv1.MemberAction_MEMBER_ACTION_ROLE, d.q.SetRole.Role, []change{{m.User, m}}
	return p, nil
}

// onlyOwner reports whether m is an owner and no other member is.
func (d *decision) onlyOwner(m *Member) (bool, error) {
	if m.Role != clientv1.Role_ROLE_OWNER {
		return false, nil
	}
	n, err := d.r.Owners()
	return n < 2, err
}

func bad(text string) *im.Error {
	return im.Errorf(clientv1.Reason_REASON_BAD_REQUEST, OpChange, "%s", text)
}

func forbidden(text string) *im.Error {
	return im.Errorf(clientv1.Reason_REASON_FORBIDDEN, OpChange, "%s", text)
}

func nothing(text string) *im.Error { return bad("nothing to change: " + text) }

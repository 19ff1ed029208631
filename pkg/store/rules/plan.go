package rules

import (
	"google.golang.org/protobuf/proto"

	"github.com/imdhq/imd/pkg/im"
	"github.com/imdhq/imd/pkg/store"
	"github.com/imdhq/imd/sdk/go/gen/clientv1"
)

// Plan is what a change that may be made does to a conversation: to its row, to
// those of members, and its entry. A driver numbers the entry and writes all of
// it in one transaction.
type Plan struct {
	next    Conversation                 // as it becomes, but for its head
	about   *clientv1.ConversationChange // nil = the members change
	action  clientv1.MemberAction
	role    clientv1.Role // that the members get
	owner   im.UserID     // who gets that of an owner instead
	members []change
}

// change is that of one member; before is nil for one who never was there.
type change struct {
	user   im.UserID
	before *Member
}

// planFor changes nothing of c yet.
func planFor(c *Conversation) Plan { return Plan{next: *c} }

// add plans that users, of whom none is present, become members.
func add(c *Conversation, users []im.UserID, former map[im.UserID]*Member) Plan {
	p := planFor(c)
	p.next.Count += len(users)
	p.next.MemberVersion++
	p.action, p.role = clientv1.MemberAction_MEMBER_ACTION_ADDED, clientv1.Role_ROLE_MEMBER
	for _, u := range users {
		p.members = append(p.members, change{u, former[u]})
	}
	return p
}

// end plans that present members are so no longer.
func end(c *Conversation, action clientv1.MemberAction, gone []*Member) Plan {
	p := planFor(c)
	p.next.Count -= len(gone)
	p.next.MemberVersion++
	p.action = action
	for _, m := range gone {
		p.members = append(p.members, change{m.User, m})
	}
	return p
}

// Apply makes c what it becomes, but for its head.
func (p Plan) Apply(c *Conversation) {
	head := c.Head
	*c = p.next
	c.Head = head
}

// Newcomers are users who become members. They may have never been seen before:
// the driver makes them known.
func (p Plan) Newcomers() []im.UserID {
	if p.action != clientv1.MemberAction_MEMBER_ACTION_ADDED {
		return nil
	}
	return p.users()
}

func (p Plan) users() []im.UserID {
	out := make([]im.UserID, len(p.members))
	for i, m := range p.members {
		out[i] = m.user
	}
	return out
}

// start is the border above which newcomers see the log, whose head is prev
// before the entry.
func (p Plan) start(prev im.Seq) im.Seq {
	if p.action != clientv1.MemberAction_MEMBER_ACTION_ADDED || p.next.OpenHistory {
		return 0
	}
	return prev
}

// Members are the rows of members as they become with the entry seq, which comes
// behind prev.
func (p Plan) Members(prev, seq im.Seq) []Member {
	out := make([]Member, len(p.members))
	for i, m := range p.members {
		switch p.action {
		case clientv1.MemberAction_MEMBER_ACTION_ADDED:
			role := p.role
			if m.user == p.owner {
				role = clientv1.Role_ROLE_OWNER
			}
			out[i] = Join(m.user, m.before, role, p.start(prev))
		case clientv1.MemberAction_MEMBER_ACTION_ROLE:
			out[i] = *m.before
			out[i].Role = p.role
		default:
			out[i] = m.before.part(&p.next, seq)
		}
	}
	return out
}

// Entry is that of the change q behind prev; the driver numbers it.
func (p Plan) Entry(q store.Change, prev im.Seq) (im.Entry, error) {
	kind, text := clientv1.EntryKind_ENTRY_KIND_CONVERSATION_CHANGE, proto.Message(p.about)
	if p.about == nil {
		kind = clientv1.EntryKind_ENTRY_KIND_MEMBER_CHANGE
		text = &clientv1.MemberChange{Action: p.action, UserIds: Texts(p.users()), Role: p.role, Start: int64(p.start(prev))}
	}
	body, err := proto.Marshal(text)
	return im.Entry{Kind: kind, MessageID: q.MessageID, ClientMessageID: q.RequestID, Sender: q.Actor, Change: body}, err
}

// Result is the answer to a change of c whose entry is e. An error means that e
// is damaged.
func Result(c *Conversation, e im.Entry) (store.ChangeResult, error) {
	r := store.ChangeResult{Conversation: c.ID, Entry: e, MemberVersion: c.MemberVersion}
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

// Repeat is the answer to a change of c whose request id is that of the stored
// entry e. Errors: id_reused when e is a message; those of Result.
func Repeat(c *Conversation, e im.Entry) (store.ChangeResult, error) {
	if e.Change == nil {
		return store.ChangeResult{}, im.Errorf(clientv1.Reason_REASON_ID_REUSED, OpChange, "this request id was used for a message")
	}
	r, err := Result(c, e)
	r.Duplicate = true
	return r, err
}

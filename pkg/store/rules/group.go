package rules

import (
	"github.com/imdhq/imd/pkg/im"
	"github.com/imdhq/imd/pkg/store"
	"github.com/imdhq/imd/sdk/go/gen/clientv1"
)

// Conversation is what is stored of a conversation and decides what may be done
// to it.
type Conversation struct {
	ID                  im.ConversationID
	Kind                clientv1.ConversationKind
	Name                string
	Closed, OpenHistory bool
	Head                im.Seq // of its newest entry; 0 = none
	Count               int    // of its present members
	MemberVersion       int64  // grows with each change of the members
}

// Member is what is stored of a present or former member of a conversation.
type Member struct {
	User            im.UserID
	Role            clientv1.Role // unspecified = not present any more
	View            View          // Log is the conversation's and not stored
	Delivered, Read im.Seq
	LeftName        string // of the conversation when the user left it
}

// Present reports whether m is a member now; m may be nil.
func (m *Member) Present() bool { return m != nil && m.Role != clientv1.Role_ROLE_UNSPECIFIED }

// Here is how far the user has what is sent; it begins at the start.
func (m *Member) Here() im.Seq { return max(m.Delivered, m.View.Start()) }

// Public is the member as others may see it.
func (m *Member) Public() store.Member {
	return store.Member{User: m.User, Role: m.Role, Start: m.View.Since(), Delivered: m.Here(), Read: m.Read}
}

// Join makes user a present member that sees what is above start. former is what
// is stored of the user, nil if that is nothing; it is not changed.
func Join(user im.UserID, former *Member, role clientv1.Role, start im.Seq) Member {
	m := Member{User: user, Delivered: start}
	if former != nil {
		m = *former
		m.LeftName = ""
		if start > 0 { // with open history the new stretch covers the old ones
			m.View.Earlier = append(m.View.Earlier[:len(m.View.Earlier):len(m.View.Earlier)], m.View.Last)
		} else {
			m.View.Earlier = nil
		}
	}
	m.Role, m.View.Last = role, store.Stretch{Start: start}
	return m
}

// part is m after it has left c with the entry seq, which it still sees.
func (m Member) part(c *Conversation, seq im.Seq) Member {
	m.Role, m.View.Last.End, m.LeftName = clientv1.Role_ROLE_UNSPECIFIED, seq, c.Name
	return m
}

package rules

import (
	"github.com/imdhq/imd/pkg/im"
	"github.com/imdhq/imd/sdk/go/gen/clientv1"
)

// NotMember is the answer to one who is not in a conversation, or asks for one
// that does not exist.
func NotMember(op string, id im.ConversationID) *im.Error {
	return im.Errorf(clientv1.Reason_REASON_NOT_MEMBER, op, "not a member of %s", id)
}

// Closed is the answer to what a closed conversation does not take.
func Closed(op string, id im.ConversationID) *im.Error {
	return im.Errorf(clientv1.Reason_REASON_CONVERSATION_CLOSED, op, "%s is closed", id)
}

// Displaced is the answer to a session that a newer one has displaced: one of its
// own login, or of a login that replaced it.
func Displaced(op string, replaced bool) *im.Error {
	if replaced {
		return im.Errorf(clientv1.Reason_REASON_REPLACED, op, "another login took the place")
	}
	return im.Errorf(clientv1.Reason_REASON_SUPERSEDED, op, "a newer session of this login and device took over")
}

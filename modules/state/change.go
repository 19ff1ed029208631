package state

import (
	"context"
	"strings"
	"unicode/utf8"

	"github.com/imdhq/imd/pkg/im"
	"github.com/imdhq/imd/pkg/lane"
	"github.com/imdhq/imd/pkg/store"
	v1 "github.com/imdhq/imd/proto/gen/internalv1"
	"github.com/imdhq/imd/sdk/go/gen/clientv1"
	"github.com/imdhq/imd/sdk/go/protocol"
)

const opChange = "state.Change"

// Change makes or changes a conversation; see StateService. It goes through
// the lane of the conversation, so that its entry reaches push in order with
// the messages around it.
func (s *State) Change(ctx context.Context, req *v1.ChangeRequest) (*v1.ChangeResponse, error) {
	change, err := changeOf(req)
	if err != nil {
		return nil, err
	}
	c, err := s.serving()
	if err != nil {
		return nil, err
	}
	if err := c.number(&change); err != nil {
		return nil, err
	}
	var (
		res    store.ChangeResult
		failed error
		done   = make(chan struct{})
	)
	run := &lane.Run{Conv: change.Conversation, Change: &change, Settled: func(r store.ChangeResult, err error) {
		res, failed = r, err
		close(done)
	}}
	l := c.laneOf(run.Conv)
	l.do(lane.Submit{Run: run})
	wait(ctx, done, func() { l.do(lane.Expire{Run: run}) })
	if failed != nil {
		return nil, storeErr(opChange, failed)
	}
	return &v1.ChangeResponse{ConversationId: string(res.Conversation), Seq: int64(res.Entry.Seq), Duplicate: res.Duplicate}, nil
}

// number gives a change the ids it may need.
func (c *core) number(change *store.Change) error {
	var err error
	if change.Create != nil {
		change.Conversation, err = c.groupID()
	}
	var id im.MessageID
	if err == nil {
		id, err = c.ids.Next()
	}
	if err != nil {
		return &im.Error{Reason: clientv1.Reason_REASON_UNAVAILABLE, Op: opChange, Msg: "no message id can be made now", Err: err}
	}
	change.MessageID = id
	return nil
}

// changeOf checks a request and makes the store's form of it.
func changeOf(req *v1.ChangeRequest) (c store.Change, err error) {
	c = store.Change{
		Conversation: im.ConversationID(req.ConversationId), Actor: im.UserID(req.UserId), RequestID: im.ClientMessageID(req.RequestId),
	}
	create := req.GetCreate() != nil
	switch {
	case req.UserId != "" && !protocol.ValidID(req.UserId):
		return c, im.Errorf(clientv1.Reason_REASON_INVALID_ID, opChange, "the user id is malformed")
	case !protocol.ValidUUID(req.RequestId):
		return c, badRequest(opChange, "request_id is not a UUID of version 4 or 7 in lower case")
	case create != (req.ConversationId == ""):
		return c, badRequest(opChange, "a conversation id is missing, or given for a new group")
	case c.Conversation.Direct():
		return c, im.Errorf(clientv1.Reason_REASON_FORBIDDEN, opChange, "a direct conversation cannot be changed")
	}
	switch ch := req.Change.(type) {
	case *v1.ChangeRequest_Create:
		c.Create = &store.CreateGroup{Name: ch.Create.Name, Owner: c.Actor, OpenHistory: ch.Create.OpenHistory}
		if err = checkName(ch.Create.Name); err == nil {
			c.Create.Members, err = userIDs(ch.Create.UserIds, c.Actor, 0)
		}
	case *v1.ChangeRequest_Rename:
		name := ch.Rename.GetName()
		c.Rename, err = &name, checkName(name)
	case *v1.ChangeRequest_Close:
		c.Close = true
	case *v1.ChangeRequest_AddMembers:
		c.AddMembers, err = userIDs(ch.AddMembers.GetUserIds(), c.Actor, 1)
	case *v1.ChangeRequest_RemoveMembers:
		c.RemoveMembers, err = userIDs(ch.RemoveMembers.GetUserIds(), c.Actor, 1)
	case *v1.ChangeRequest_SetRole:
		c.SetRole, err = roleOf(ch.SetRole)
	case *v1.ChangeRequest_Leave:
		if c.Leave = true; c.Actor == "" {
			err = badRequest(opChange, "the system cannot leave")
		}
	default:
		err = badRequest(opChange, "no change is named")
	}
	return c, err
}

func checkName(name string) error {
	if len(name) < 1 || len(name) > protocol.MaxGroupName || !utf8.ValidString(name) || strings.IndexByte(name, 0) >= 0 {
		return badRequest(opChange, "a name has 1 to %d bytes of UTF-8", protocol.MaxGroupName)
	}
	return nil
}

// userIDs checks ids and drops repeats and the actor. At least least must stay.
func userIDs(ids []string, actor im.UserID, least int) ([]im.UserID, error) {
	if len(ids) > store.MaxAddMembers {
		return nil, im.Errorf(clientv1.Reason_REASON_TOO_LARGE, opChange, "more than %d users in a call", store.MaxAddMembers)
	}
	seen := make(map[string]bool, len(ids))
	var users []im.UserID
	for _, id := range ids {
		if !protocol.ValidID(id) {
			return nil, im.Errorf(clientv1.Reason_REASON_INVALID_ID, opChange, "a user id is malformed")
		}
		if seen[id] || im.UserID(id) == actor {
			continue
		}
		seen[id] = true
		users = append(users, im.UserID(id))
	}
	if len(users) < least {
		return nil, badRequest(opChange, "nobody is named but oneself")
	}
	return users, nil
}

func roleOf(r *v1.SetRole) (*store.SetRole, error) {
	if !protocol.ValidID(r.GetUserId()) {
		return nil, im.Errorf(clientv1.Reason_REASON_INVALID_ID, opChange, "the user id is malformed")
	}
	switch r.Role {
	case clientv1.Role_ROLE_MEMBER, clientv1.Role_ROLE_ADMIN, clientv1.Role_ROLE_OWNER:
		return &store.SetRole{User: im.UserID(r.UserId), Role: r.Role}, nil
	}
	return nil, badRequest(opChange, "there is no such role")
}

package api

import (
	"context"

	"github.com/imdhq/imd/pkg/im"
	v1 "github.com/imdhq/imd/proto/gen/internalv1"
	"github.com/imdhq/imd/sdk/go/gen/clientv1"
	"github.com/imdhq/imd/sdk/go/gen/imdv1"
	"github.com/imdhq/imd/sdk/go/protocol"
)

// conversations is the ConversationService. Roles are judged where the change
// is made, in the same transaction.
type conversations struct{ a *API }

// Create makes a group.
func (s conversations) Create(ctx context.Context, r *imdv1.CreateRequest) (*imdv1.ChangeResponse, error) {
	owner, ids := actor(ctx), r.UserIds
	if err := first(checkUUID("request_id", r.RequestId), checkName(r.Name)); err != nil {
		return nil, err
	}
	if owner == "" {
		if len(ids) == 0 {
			return nil, badRequest("user_ids is empty and there is no as_user: nobody would own the group")
		}
		if err := checkID("user_ids", ids[0]); err != nil {
			return nil, err
		}
		owner, ids = im.UserID(ids[0]), ids[1:]
	}
	ids, err := distinct(ids, string(owner))
	if err != nil {
		return nil, err
	}
	create := &v1.CreateGroup{Name: r.Name, UserIds: ids, OpenHistory: r.OpenHistory}
	return s.send(ctx, &v1.ChangeRequest{UserId: string(owner), RequestId: r.RequestId, Change: &v1.ChangeRequest_Create{Create: create}})
}

// Rename changes the name of a group.
func (s conversations) Rename(ctx context.Context, r *imdv1.RenameRequest) (*imdv1.ChangeResponse, error) {
	if err := checkName(r.Name); err != nil {
		return nil, err
	}
	return s.change(ctx, r, &v1.ChangeRequest{Change: &v1.ChangeRequest_Rename{Rename: &v1.Rename{Name: r.Name}}})
}

// Close dissolves a group.
func (s conversations) Close(ctx context.Context, r *imdv1.CloseRequest) (*imdv1.ChangeResponse, error) {
	return s.change(ctx, r, &v1.ChangeRequest{Change: &v1.ChangeRequest_Close{Close: &v1.CloseGroup{}}})
}

// AddMembers adds users to a group.
func (s conversations) AddMembers(ctx context.Context, r *imdv1.AddMembersRequest) (*imdv1.ChangeResponse, error) {
	ids, err := some(r.UserIds)
	if err != nil {
		return nil, err
	}
	return s.change(ctx, r, &v1.ChangeRequest{Change: &v1.ChangeRequest_AddMembers{AddMembers: &v1.AddMembers{UserIds: ids}}})
}

// RemoveMembers removes members of a group.
func (s conversations) RemoveMembers(ctx context.Context, r *imdv1.RemoveMembersRequest) (*imdv1.ChangeResponse, error) {
	ids, err := some(r.UserIds)
	if err != nil {
		return nil, err
	}
	return s.change(ctx, r, &v1.ChangeRequest{Change: &v1.ChangeRequest_RemoveMembers{RemoveMembers: &v1.RemoveMembers{UserIds: ids}}})
}

// SetRole changes what a member may do.
func (s conversations) SetRole(ctx context.Context, r *imdv1.SetRoleRequest) (*imdv1.ChangeResponse, error) {
	if err := checkID("user_id", r.UserId); err != nil {
		return nil, err
	}
	switch r.Role {
	case clientv1.Role_ROLE_MEMBER, clientv1.Role_ROLE_ADMIN, clientv1.Role_ROLE_OWNER:
	default:
		return nil, badRequest("role is none of ROLE_MEMBER, ROLE_ADMIN, ROLE_OWNER")
	}
	return s.change(ctx, r, &v1.ChangeRequest{Change: &v1.ChangeRequest_SetRole{SetRole: &v1.SetRole{UserId: r.UserId, Role: r.Role}}})
}

// Leave removes the caller.
func (s conversations) Leave(ctx context.Context, r *imdv1.LeaveRequest) (*imdv1.ChangeResponse, error) {
	return s.change(ctx, r, &v1.ChangeRequest{Change: &v1.ChangeRequest_Leave{Leave: &v1.Leave{}}})
}

// change fills in what all changes of a group have in common and makes it.
func (s conversations) change(ctx context.Context, r interface {
	GetConversationId() string
	GetRequestId() string
}, c *v1.ChangeRequest) (*imdv1.ChangeResponse, error) {
	if err := first(checkID("conversation_id", r.GetConversationId()), checkUUID("request_id", r.GetRequestId())); err != nil {
		return nil, err
	}
	c.ConversationId, c.RequestId, c.UserId = r.GetConversationId(), r.GetRequestId(), string(actor(ctx))
	return s.send(ctx, c)
}

func (s conversations) send(ctx context.Context, c *v1.ChangeRequest) (*imdv1.ChangeResponse, error) {
	res, err := s.a.State.Change(ctx, c)
	if err != nil {
		return nil, err
	}
	return &imdv1.ChangeResponse{ConversationId: res.ConversationId, Seq: res.Seq}, nil
}

// ListMembers pages through the members by user id.
func (s conversations) ListMembers(ctx context.Context, r *imdv1.ListMembersRequest) (*imdv1.ListMembersResponse, error) {
	after, err := readPageToken(membersPage, r.PageToken)
	if err == nil && after != "" {
		err = checkID("page_token", after)
	}
	if err := first(checkID("conversation_id", r.ConversationId), notNegative("limit", int64(r.Limit)), err); err != nil {
		return nil, err
	}
	res, err := s.a.State.Members(ctx, &v1.MembersRequest{
		ConversationId: r.ConversationId, UserId: string(actor(ctx)), AfterUserId: after, Limit: pageLimit(r.Limit),
	})
	if err != nil {
		return nil, err
	}
	out := &imdv1.ListMembersResponse{}
	for _, m := range res.Members {
		out.Members = append(out.Members, &imdv1.Member{UserId: m.UserId, Role: m.Role, DeliveredSeq: m.DeliveredSeq, ReadSeq: m.ReadSeq})
	}
	if n := len(res.Members); n > 0 && !res.End {
		out.NextPageToken = pageToken(membersPage, res.Members[n-1].UserId)
	}
	return out, nil
}

// ClearHistory hides everything up to a seq from the caller.
func (s conversations) ClearHistory(ctx context.Context, r *imdv1.ClearHistoryRequest) (*imdv1.ClearHistoryResponse, error) {
	if err := first(checkID("conversation_id", r.ConversationId), checkSeq("up_to_seq", r.UpToSeq)); err != nil {
		return nil, err
	}
	res, err := s.a.State.ClearHistory(ctx, &v1.ClearHistoryRequest{ConversationId: r.ConversationId, UserId: string(actor(ctx)), UpToSeq: r.UpToSeq})
	if err != nil {
		return nil, err
	}
	return &imdv1.ClearHistoryResponse{Start: res.Start}, nil
}

// List pages through the caller's conversations. It is a sync from nothing,
// page by page.
func (s conversations) List(ctx context.Context, r *imdv1.ListRequest) (*imdv1.ListResponse, error) {
	at, err := readPageToken(listPage, r.PageToken)
	if err != nil {
		return nil, err
	}
	res, err := s.a.State.Sync(ctx, &v1.SyncRequest{UserId: string(actor(ctx)), SyncToken: at, MaxBytes: answerBytes, Json: inJSON(ctx)})
	if err != nil {
		return nil, err
	}
	out := &imdv1.ListResponse{}
	for _, c := range res.Result.GetConversations() {
		if c.Role != clientv1.Role_ROLE_UNSPECIFIED { // not a member any more
			out.Conversations = append(out.Conversations, c)
		}
	}
	if res.Result.GetMore() {
		out.NextPageToken = pageToken(listPage, res.Result.SyncToken)
	}
	return out, nil
}

func checkSeq(field string, seq int64) error {
	if seq < 0 || seq > protocol.MaxBareInteger {
		return badRequest("%s is out of range", field)
	}
	return nil
}

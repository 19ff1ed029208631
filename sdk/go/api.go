package imd

import (
	"bytes"
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"net/http"
	"time"

	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"

	"github.com/imdhq/imd/sdk/go/gen/clientv1"
	"github.com/imdhq/imd/sdk/go/gen/imdv1"
	"github.com/imdhq/imd/sdk/go/protocol"
)

// maxAPIAnswer bounds the answer of an HTTP call, in bytes.
const maxAPIAnswer = 4 << 20

// API calls the server's HTTP services as the client's user: groups, their
// members, blocks. What a call changes also arrives as entries of the
// conversation. Errors are *Error with HTTPStatus, or the network's. A change is
// safe to repeat with the same request id.
type API struct{ client *Client }

// API returns the HTTP side of the client.
func (c *Client) API() *API { return &API{c} }

// CreateGroup makes a group of the caller, who becomes its owner, and up to 500
// others. It returns the new conversation.
func (a *API) CreateGroup(ctx context.Context, name string, userIDs ...string) (*Conversation, error) {
	out, err := a.Create(ctx, &imdv1.CreateRequest{RequestId: NewID(), Name: name, UserIds: userIDs})
	if err != nil {
		return nil, err
	}
	return a.client.Conversation(out.ConversationId), nil
}

// Create makes a group; an empty request id is filled in.
func (a *API) Create(ctx context.Context, in *imdv1.CreateRequest) (*imdv1.ChangeResponse, error) {
	if in.RequestId == "" {
		in = proto.CloneOf(in)
		in.RequestId = NewID()
	}
	return a.change(ctx, "Create", in)
}

// Rename gives a group another name, 1 to 128 bytes.
func (a *API) Rename(ctx context.Context, conversationID, name string) (*imdv1.ChangeResponse, error) {
	return a.change(ctx, "Rename", &imdv1.RenameRequest{RequestId: NewID(), ConversationId: conversationID, Name: name})
}

// CloseGroup dissolves a group for good.
func (a *API) CloseGroup(ctx context.Context, conversationID string) (*imdv1.ChangeResponse, error) {
	return a.change(ctx, "Close", &imdv1.CloseRequest{RequestId: NewID(), ConversationId: conversationID})
}

// AddMembers adds users to a group.
func (a *API) AddMembers(ctx context.Context, conversationID string, userIDs ...string) (*imdv1.ChangeResponse, error) {
	return a.change(ctx, "AddMembers", &imdv1.AddMembersRequest{RequestId: NewID(), ConversationId: conversationID, UserIds: userIDs})
}

// RemoveMembers removes members of a group.
func (a *API) RemoveMembers(ctx context.Context, conversationID string, userIDs ...string) (*imdv1.ChangeResponse, error) {
	return a.change(ctx, "RemoveMembers", &imdv1.RemoveMembersRequest{RequestId: NewID(), ConversationId: conversationID, UserIds: userIDs})
}

// SetRole makes a member a member, an admin or an owner.
func (a *API) SetRole(ctx context.Context, conversationID, userID string, role clientv1.Role) (*imdv1.ChangeResponse, error) {
	return a.change(ctx, "SetRole", &imdv1.SetRoleRequest{RequestId: NewID(), ConversationId: conversationID, UserId: userID, Role: role})
}

// Leave takes the caller out of a group.
func (a *API) Leave(ctx context.Context, conversationID string) (*imdv1.ChangeResponse, error) {
	return a.change(ctx, "Leave", &imdv1.LeaveRequest{RequestId: NewID(), ConversationId: conversationID})
}

// Members returns all members of a conversation, by user id.
func (a *API) Members(ctx context.Context, conversationID string) ([]*imdv1.Member, error) {
	var all []*imdv1.Member
	in := &imdv1.ListMembersRequest{ConversationId: conversationID, Limit: protocol.MaxHistoryLimit}
	for {
		out := &imdv1.ListMembersResponse{}
		if err := a.Post(ctx, "imd.v1.ConversationService/ListMembers", in, out); err != nil {
			return nil, err
		}
		all = append(all, out.Members...)
		if out.NextPageToken == "" || out.NextPageToken == in.PageToken {
			return all, nil
		}
		in.PageToken = out.NextPageToken
	}
}

// ClearHistory hides everything up to a seq from the caller, for good.
func (a *API) ClearHistory(ctx context.Context, conversationID string, upToSeq int64) error {
	in := &imdv1.ClearHistoryRequest{ConversationId: conversationID, UpToSeq: upToSeq}
	return a.Post(ctx, "imd.v1.ConversationService/ClearHistory", in, &imdv1.ClearHistoryResponse{})
}

// Mute keeps notices of a conversation away from the caller while no device is
// connected, and leaves it out of the badge, until a time; the zero time = until
// Unmute.
func (a *API) Mute(ctx context.Context, conversationID string, until time.Time) error {
	in := &imdv1.MuteRequest{ConversationId: conversationID}
	if !until.IsZero() {
		in.UntilMs = until.UnixMilli()
	}
	return a.Post(ctx, "imd.v1.ConversationService/Mute", in, &imdv1.MuteResponse{})
}

// Unmute lifts a mute.
func (a *API) Unmute(ctx context.Context, conversationID string) error {
	return a.Post(ctx, "imd.v1.ConversationService/Unmute", &imdv1.UnmuteRequest{ConversationId: conversationID}, &imdv1.UnmuteResponse{})
}

// Mutes returns until when the caller has muted conversations; the zero time =
// until Unmute.
func (a *API) Mutes(ctx context.Context) (map[string]time.Time, error) {
	all := map[string]time.Time{}
	in := &imdv1.ListMutesRequest{Limit: protocol.MaxHistoryLimit}
	for {
		out := &imdv1.ListMutesResponse{}
		if err := a.Post(ctx, "imd.v1.ConversationService/ListMutes", in, out); err != nil {
			return nil, err
		}
		for _, m := range out.Conversations {
			all[m.ConversationId] = time.Time{}
			if m.UntilMs != 0 {
				all[m.ConversationId] = time.UnixMilli(m.UntilMs)
			}
		}
		if out.NextPageToken == "" || out.NextPageToken == in.PageToken {
			return all, nil
		}
		in.PageToken = out.NextPageToken
	}
}

// Block refuses direct messages from a user to the caller.
func (a *API) Block(ctx context.Context, userID string) error {
	return a.Post(ctx, "imd.v1.UserService/Block", &imdv1.BlockRequest{UserId: userID}, &imdv1.BlockResponse{})
}

// Unblock takes a block back.
func (a *API) Unblock(ctx context.Context, userID string) error {
	return a.Post(ctx, "imd.v1.UserService/Unblock", &imdv1.UnblockRequest{UserId: userID}, &imdv1.UnblockResponse{})
}

// Scheduled returns the caller's scheduled messages by the time at which they are
// due: those that wait and, with ended, also those that were sent, dropped or
// cancelled, as long as the server keeps them.
func (a *API) Scheduled(ctx context.Context, ended bool) ([]*imdv1.ScheduledMessage, error) {
	var all []*imdv1.ScheduledMessage
	in := &imdv1.ListScheduledRequest{Ended: ended, Limit: 200}
	for {
		out := &imdv1.ListScheduledResponse{}
		if err := a.Post(ctx, "imd.v1.MessageService/ListScheduled", in, out); err != nil {
			return nil, err
		}
		all = append(all, out.Scheduled...)
		if out.NextPageToken == "" || out.NextPageToken == in.PageToken {
			return all, nil
		}
		in.PageToken = out.NextPageToken
	}
}

// Schedule has a message sent later. An empty request id is filled in; the same
// one again is safe and gets the first answer.
func (a *API) Schedule(ctx context.Context, in *imdv1.ScheduleRequest) (*imdv1.ScheduledMessage, error) {
	if in.RequestId == "" {
		in = proto.CloneOf(in)
		in.RequestId = NewID()
	}
	out := &imdv1.ScheduleResponse{}
	if err := a.Post(ctx, "imd.v1.MessageService/Schedule", in, out); err != nil {
		return nil, err
	}
	return out.Scheduled, nil
}

// CancelScheduled cancels a scheduled message. The answer is final: cancelled, and
// it is never sent, or false with what else has become of it.
func (a *API) CancelScheduled(ctx context.Context, scheduledID int64) (cancelled bool, m *imdv1.ScheduledMessage, err error) {
	out := &imdv1.CancelScheduledResponse{}
	if err := a.Post(ctx, "imd.v1.MessageService/CancelScheduled", &imdv1.CancelScheduledRequest{ScheduledId: scheduledID}, out); err != nil {
		return false, nil, err
	}
	return out.Cancelled, out.Scheduled, nil
}

func (a *API) change(ctx context.Context, method string, in proto.Message) (*imdv1.ChangeResponse, error) {
	out := &imdv1.ChangeResponse{}
	if err := a.Post(ctx, "imd.v1.ConversationService/"+method, in, out); err != nil {
		return nil, err
	}
	return out, nil
}

// Post calls any method, named as package.Service/Method, with the client's
// token. It does not repeat by itself.
func (a *API) Post(ctx context.Context, method string, in, out proto.Message) error {
	token, err := a.client.currentToken(ctx)
	if err != nil {
		return err
	}
	return post(ctx, a.client.http, postCall{
		url:    a.client.addr.base + "/" + method,
		token:  token,
		header: a.client.opts.Header,
	}, in, out)
}

type postCall struct {
	url    string
	token  string
	header http.Header
}

func post(ctx context.Context, client *http.Client, call postCall, in, out proto.Message) error {
	body, err := protojson.Marshal(in)
	if err != nil {
		return fmt.Errorf("imd: call: %w", err)
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, call.url, bytes.NewReader(body))
	if err != nil {
		return fmt.Errorf("imd: call: %w", err)
	}
	for k, v := range call.header {
		req.Header[k] = v
	}
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("Connect-Protocol-Version", "1")
	req.Header.Set("Authorization", "Bearer "+call.token)
	resp, err := client.Do(req)
	if err != nil {
		return fmt.Errorf("imd: call: %w", err)
	}
	defer resp.Body.Close()
	data, err := io.ReadAll(io.LimitReader(resp.Body, maxAPIAnswer+1))
	switch {
	case err != nil:
		return fmt.Errorf("imd: call: %w", err)
	case len(data) > maxAPIAnswer:
		return errors.New("imd: call: the answer is too large")
	case resp.StatusCode != http.StatusOK:
		return httpError(resp, data)
	}
	if err := (protojson.UnmarshalOptions{DiscardUnknown: true}).Unmarshal(data, out); err != nil {
		return fmt.Errorf("imd: call: answer: %w", err)
	}
	return nil
}

// connectDetail is one detail of a Connect error.
type connectDetail struct {
	Type  string
	Value string // base64, padded or not
}

// decode returns the detail if it is the protocol's own error.
func (d connectDetail) decode() *clientv1.Error {
	if d.Type != string((*clientv1.Error)(nil).ProtoReflect().Descriptor().FullName()) {
		return nil
	}
	raw, err := base64.RawStdEncoding.DecodeString(trimPadding(d.Value))
	if err != nil {
		return nil
	}
	e := &clientv1.Error{}
	if proto.Unmarshal(raw, e) != nil {
		return nil
	}
	return e
}

func trimPadding(s string) string {
	for len(s) > 0 && s[len(s)-1] == '=' {
		s = s[:len(s)-1]
	}
	return s
}

package state

import (
	"context"

	"github.com/imdhq/imd/pkg/im"
	"github.com/imdhq/imd/pkg/store"
	v1 "github.com/imdhq/imd/proto/gen/internalv1"
	"github.com/imdhq/imd/sdk/go/gen/clientv1"
	"github.com/imdhq/imd/sdk/go/protocol"
)

// Sizes of answers.
const (
	// answerBytes is the size of an answer if the request names none; minAnswer
	// and maxAnswer are the bounds of what it may name.
	answerBytes = 48 << 10
	minAnswer   = 1 << 10
	maxAnswer   = 4 << 20
	// pageOverhead is what a page takes beside its entries.
	pageOverhead = 160
)

// sizer measures in one encoding, each part with what separates it from the
// next.
type sizer struct{ json bool }

func (z sizer) entry(e *clientv1.Entry) int {
	if z.json {
		return protocol.Size(protocol.JSON, e) + 1
	}
	return protocol.Size(protocol.Proto, e) + 4
}

func (z sizer) state(s *clientv1.ConversationState) int {
	if z.json {
		return protocol.Size(protocol.JSON, s) + 1
	}
	return protocol.Size(protocol.Proto, s) + 4
}

func answerSize(asked int32) int {
	if asked <= 0 {
		return answerBytes
	}
	return min(max(int(asked), minAnswer), maxAnswer)
}

// History reads entries of one conversation; see StateService.
func (s *State) History(ctx context.Context, req *v1.HistoryRequest) (*v1.HistoryResponse, error) {
	h := req.History
	if err := checkHistory(req); err != nil {
		return nil, err
	}
	c, err := s.serving()
	if err != nil {
		return nil, err
	}
	limit := int(h.Limit)
	if limit == 0 {
		limit = protocol.HistoryLimit
	}
	room := answerSize(req.MaxBytes) - pageOverhead
	shared, done := c.readEnd(ctx, req, limit, room)
	if shared != nil {
		return shared, nil
	}
	defer done()
	page, err := c.store.History(ctx, store.HistoryQuery{
		Reader: im.UserID(req.UserId), Conversation: im.ConversationID(h.ConversationId),
		After: im.Seq(h.AfterSeq), Before: im.Seq(h.BeforeSeq), Limit: min(limit, protocol.MaxHistoryLimit),
		Backward: h.Backward, MaxBytes: room,
	})
	if err != nil {
		return nil, storeErr("state.History", err)
	}
	z := sizer{req.Json}
	return &v1.HistoryResponse{Result: &clientv1.HistoryResult{
		ConversationId: h.ConversationId, Page: wirePage(&page, room, h.Backward, z.entry, im.WireEntry),
	}}, nil
}

func checkHistory(req *v1.HistoryRequest) error {
	const op = "state.History"
	h := req.History
	switch {
	case h.GetConversationId() == "":
		return badRequest(op, "no conversation is named")
	case req.UserId != "" && !protocol.ValidID(req.UserId):
		return im.Errorf(clientv1.Reason_REASON_INVALID_ID, op, "the user id is malformed")
	case h.Limit < 0, h.AfterSeq < 0, h.BeforeSeq < 0:
		return badRequest(op, "a limit or seq is negative")
	}
	return nil
}

// Members pages through the members of one conversation; see StateService.
func (s *State) Members(ctx context.Context, req *v1.MembersRequest) (*v1.MembersResponse, error) {
	if req.ConversationId == "" || req.Limit < 0 {
		return nil, badRequest("state.Members", "no conversation is named, or the limit is negative")
	}
	c, err := s.serving()
	if err != nil {
		return nil, err
	}
	limit := int(req.Limit)
	if limit == 0 {
		limit = 100
	}
	conv := im.ConversationID(req.ConversationId)
	page, err := c.store.Members(ctx, conv, im.UserID(req.UserId), im.UserID(req.AfterUserId), min(limit, 1000))
	if err != nil {
		return nil, storeErr("state.Members", err)
	}
	res := &v1.MembersResponse{
		Members: make([]*v1.Member, len(page.Members)), End: page.End, MemberVersion: page.MemberVersion,
		Kind: page.Kind, MemberCount: int32(page.Count),
	}
	for i, m := range page.Members {
		res.Members[i] = &v1.Member{
			UserId: string(m.User), Role: m.Role, Start: int64(m.Start), ReadSeq: int64(m.Read),
			DeliveredSeq: int64(c.positions.overlay(memberKey{conv, m.User}, m.Delivered)),
		}
	}
	return res, nil
}

// ClearHistory hides entries from one member; see StateService.
func (s *State) ClearHistory(ctx context.Context, req *v1.ClearHistoryRequest) (*v1.ClearHistoryResponse, error) {
	const op = "state.ClearHistory"
	if req.ConversationId == "" || req.UpToSeq < 0 {
		return nil, badRequest(op, "no conversation is named, or up_to_seq is negative")
	}
	if !protocol.ValidID(req.UserId) {
		return nil, im.Errorf(clientv1.Reason_REASON_INVALID_ID, op, "the user id is malformed")
	}
	c, err := s.serving()
	if err != nil {
		return nil, err
	}
	var start im.Seq
	err = settleCall(ctx, func() (err error) {
		start, err = c.store.ClearHistory(ctx, im.ConversationID(req.ConversationId), im.UserID(req.UserId), im.Seq(req.UpToSeq))
		return err
	})
	if err != nil {
		return nil, storeErr(op, err)
	}
	return &v1.ClearHistoryResponse{Start: int64(start)}, nil
}

// Heads tells which heads of many users' conversations changed; see
// StateService.
func (s *State) Heads(ctx context.Context, req *v1.HeadsRequest) (*v1.HeadsResponse, error) {
	if len(req.UserIds) > 1000 {
		return nil, badRequest("state.Heads", "more than 1000 users in a call")
	}
	c, err := s.serving()
	if err != nil {
		return nil, err
	}
	users := make([]im.UserID, len(req.UserIds))
	for i, u := range req.UserIds {
		users[i] = im.UserID(u)
	}
	heads, version, err := c.store.Heads(ctx, users, req.Version)
	if err != nil {
		return nil, storeErr("state.Heads", err)
	}
	res := &v1.HeadsResponse{Heads: make([]*v1.UserHead, len(heads)), Version: version, DataEpoch: c.store.DataEpoch()}
	for i, h := range heads {
		res.Heads[i] = &v1.UserHead{UserId: string(h.User), ConversationId: string(h.Conversation), Seq: int64(h.Seq)}
	}
	return res, nil
}

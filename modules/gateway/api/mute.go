package api

import (
	"context"
	"time"

	v1 "github.com/imdhq/imd/proto/gen/internalv1"
	"github.com/imdhq/imd/sdk/go/gen/imdv1"
)

// forGood is the time of mutes that last until they are lifted: the end of the
// year 9999.
var forGood = time.Date(9999, 12, 31, 23, 59, 59, 0, time.UTC).UnixMilli()

// Mute keeps notices of a conversation away from the caller.
func (s conversations) Mute(ctx context.Context, r *imdv1.MuteRequest) (*imdv1.MuteResponse, error) {
	until := r.UntilMs
	switch {
	case until == 0:
		until = forGood
	case until <= s.a.Now().UnixMilli():
		return nil, badRequest("until_ms is past; Unmute lifts a mute")
	case until > forGood:
		return nil, badRequest("until_ms is out of range; 0 mutes until it is lifted")
	}
	if err := s.mute(ctx, r.ConversationId, until); err != nil {
		return nil, err
	}
	return &imdv1.MuteResponse{}, nil
}

// Unmute lifts that.
func (s conversations) Unmute(ctx context.Context, r *imdv1.UnmuteRequest) (*imdv1.UnmuteResponse, error) {
	if err := s.mute(ctx, r.ConversationId, 0); err != nil {
		return nil, err
	}
	return &imdv1.UnmuteResponse{}, nil
}

func (s conversations) mute(ctx context.Context, conversation string, until int64) error {
	if err := checkID("conversation_id", conversation); err != nil {
		return err
	}
	_, err := s.a.Directory.SetMute(ctx, &v1.SetMuteRequest{ConversationId: conversation, UserId: string(actor(ctx)), UntilMs: until})
	return err
}

// ListMutes pages through what the caller has muted.
func (s conversations) ListMutes(ctx context.Context, r *imdv1.ListMutesRequest) (*imdv1.ListMutesResponse, error) {
	after, err := readPageToken(mutesPage, r.PageToken)
	if err == nil && after != "" {
		err = checkID("page_token", after)
	}
	if err := first(notNegative("limit", int64(r.Limit)), err); err != nil {
		return nil, err
	}
	limit := pageLimit(r.Limit)
	res, err := s.a.Directory.Mutes(ctx, &v1.MutesRequest{UserId: string(actor(ctx)), AfterConversationId: after, Limit: limit})
	if err != nil {
		return nil, err
	}
	out := &imdv1.ListMutesResponse{}
	for _, m := range res.Mutes {
		until := m.UntilMs
		if until == forGood {
			until = 0
		}
		out.Conversations = append(out.Conversations, &imdv1.MutedConversation{ConversationId: m.ConversationId, UntilMs: until})
	}
	if n := len(res.Mutes); n == int(limit) {
		out.NextPageToken = pageToken(mutesPage, res.Mutes[n-1].ConversationId)
	}
	return out, nil
}

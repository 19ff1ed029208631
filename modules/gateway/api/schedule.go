package api

import (
	"context"
	"fmt"

	v1 "github.com/imdhq/imd/proto/gen/internalv1"
	"github.com/imdhq/imd/sdk/go/gen/clientv1"
	"github.com/imdhq/imd/sdk/go/gen/imdv1"
	"github.com/imdhq/imd/sdk/go/protocol"

	"github.com/imdhq/imd/pkg/im"
)

// Schedule keeps a message that is sent at a later time.
func (s messages) Schedule(ctx context.Context, r *imdv1.ScheduleRequest) (*imdv1.ScheduleResponse, error) {
	from := actor(ctx)
	conv, peer, err := recipient(from, r)
	if err := first(err, checkUUID("request_id", r.RequestId), checkContent(r.Content), checkSeq("send_at_ms", r.SendAtMs)); err != nil {
		return nil, err
	}
	if err := s.limit(from, im.ConversationID(conv)); err != nil {
		return nil, err
	}
	hash := protocol.BodyHash(clientv1.EntryKind_ENTRY_KIND_MESSAGE, 0, r.Content)
	res, err := s.a.State.Schedule(ctx, &v1.ScheduleRequest{
		ConversationId: conv, PeerId: peer, UserId: string(from), RequestId: r.RequestId, Content: r.Content, BodyHash: hash[:], SendAtMs: r.SendAtMs,
	})
	if err != nil {
		return nil, err
	}
	return &imdv1.ScheduleResponse{Scheduled: res.Scheduled, Duplicate: res.Duplicate}, nil
}

// ListScheduled pages through scheduled messages by the time at which they are due.
func (s messages) ListScheduled(ctx context.Context, r *imdv1.ListScheduledRequest) (*imdv1.ListScheduledResponse, error) {
	at, err := readPageToken(laterPage, r.PageToken)
	if err := first(err, notNegative("limit", int64(r.Limit))); err != nil {
		return nil, err
	}
	ask := &v1.ListScheduledRequest{UserId: string(actor(ctx)), Limit: r.Limit, Ended: r.Ended}
	if at != "" {
		if _, err := fmt.Sscanf(at, "%d.%d", &ask.AfterMs, &ask.AfterId); err != nil {
			return nil, badRequest("page_token is not from the page before")
		}
	}
	res, err := s.a.State.ListScheduled(ctx, ask)
	if err != nil {
		return nil, err
	}
	out := &imdv1.ListScheduledResponse{Scheduled: res.Scheduled}
	if n := len(res.Scheduled); n > 0 && !res.End {
		last := res.Scheduled[n-1]
		out.NextPageToken = pageToken(laterPage, fmt.Sprintf("%d.%d", last.SendAtMs, last.ScheduledId))
	}
	return out, nil
}

// CancelScheduled cancels a scheduled message, unless its sending has begun.
func (s messages) CancelScheduled(ctx context.Context, r *imdv1.CancelScheduledRequest) (*imdv1.CancelScheduledResponse, error) {
	res, err := s.a.State.CancelScheduled(ctx, &v1.CancelScheduledRequest{ScheduledId: r.ScheduledId, UserId: string(actor(ctx))})
	if err != nil {
		return nil, err
	}
	return &imdv1.CancelScheduledResponse{
		Cancelled: res.Scheduled.GetState() == imdv1.ScheduledState_SCHEDULED_STATE_CANCELLED, Scheduled: res.Scheduled,
	}, nil
}

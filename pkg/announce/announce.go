// Package announce is the AnnouncementService of the public API. Gateways serve it
// to backends with an API key, and the ops listener of every node to operators.
package announce

import (
	"context"
	"strconv"

	"github.com/imdhq/imd/pkg/im"
	v1 "github.com/imdhq/imd/proto/gen/internalv1"
	"github.com/imdhq/imd/sdk/go/gen/clientv1"
	"github.com/imdhq/imd/sdk/go/gen/imdv1"
)

// Directory is what the service asks of the state role. Safe for concurrent use.
type Directory interface {
	Announce(context.Context, *v1.AnnounceRequest) (*v1.AnnounceResponse, error)
	Withdraw(context.Context, *v1.WithdrawRequest) (*v1.WithdrawResponse, error)
	ListAnnouncements(context.Context, *v1.ListAnnouncementsRequest) (*v1.ListAnnouncementsResponse, error)
}

// Service is imdv1connect.AnnouncementServiceHandler. Who may call it is decided
// in front of it. Safe for concurrent use.
type Service struct{ Directory Directory }

// Announce stores what everybody is to be told.
func (s Service) Announce(ctx context.Context, r *imdv1.AnnounceRequest) (*imdv1.AnnounceResponse, error) {
	res, err := s.Directory.Announce(ctx, &v1.AnnounceRequest{RequestId: r.RequestId, Text: r.Text, ExpiresMs: r.ExpiresMs})
	if err != nil {
		return nil, err
	}
	return &imdv1.AnnounceResponse{Announcement: res.Announcement, Duplicate: res.Duplicate}, nil
}

// Withdraw ends an announcement.
func (s Service) Withdraw(ctx context.Context, r *imdv1.WithdrawRequest) (*imdv1.WithdrawResponse, error) {
	res, err := s.Directory.Withdraw(ctx, &v1.WithdrawRequest{Seq: r.Seq})
	if err != nil {
		return nil, err
	}
	return &imdv1.WithdrawResponse{Announcement: res.Announcement}, nil
}

// ListAnnouncements pages through announcements, the newest page first. A page
// token is the number that the page ends before. A node of an older version has the
// first page only: that is unavailable.
func (s Service) ListAnnouncements(ctx context.Context, r *imdv1.ListAnnouncementsRequest) (*imdv1.ListAnnouncementsResponse, error) {
	const op = "announce.ListAnnouncements"
	ask := &v1.ListAnnouncementsRequest{Limit: r.Limit}
	if r.Limit < 0 {
		return nil, im.Errorf(clientv1.Reason_REASON_BAD_REQUEST, op, "limit is negative")
	}
	if r.PageToken != "" {
		before, err := strconv.ParseInt(r.PageToken, 10, 64)
		if err != nil || before < 1 {
			return nil, im.Errorf(clientv1.Reason_REASON_BAD_REQUEST, op, "page_token is not from the page before")
		}
		ask.BeforeSeq = before
	}
	res, err := s.Directory.ListAnnouncements(ctx, ask)
	if err != nil {
		return nil, err
	}
	if n := len(res.Announcements); ask.BeforeSeq > 0 && n > 0 && res.Announcements[n-1].Seq >= ask.BeforeSeq {
		return nil, im.Errorf(clientv1.Reason_REASON_UNAVAILABLE, op, "the state node that answered is of an older version, which knows the first page only; ask again when all nodes are updated")
	}
	out := &imdv1.ListAnnouncementsResponse{Announcements: res.Announcements}
	if res.More && len(res.Announcements) > 0 {
		out.NextPageToken = strconv.FormatInt(res.Announcements[0].Seq, 10)
	}
	return out, nil
}

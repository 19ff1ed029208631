package admin

import (
	"context"

	v1 "github.com/imdhq/imd/proto/gen/internalv1"
	"github.com/imdhq/imd/sdk/go/gen/imdv1"
)

// announcements is the AnnouncementService of the public API, for operators.
type announcements struct{ a *Admin }

// Announce stores what everybody is to be told.
func (s announcements) Announce(ctx context.Context, r *imdv1.AnnounceRequest) (*imdv1.AnnounceResponse, error) {
	res, err := s.a.Directory.Announce(ctx, &v1.AnnounceRequest{RequestId: r.RequestId, Text: r.Text, ExpiresMs: r.ExpiresMs})
	if err != nil {
		return nil, err
	}
	return &imdv1.AnnounceResponse{Announcement: res.Announcement, Duplicate: res.Duplicate}, nil
}

// Withdraw ends an announcement.
func (s announcements) Withdraw(ctx context.Context, r *imdv1.WithdrawRequest) (*imdv1.WithdrawResponse, error) {
	res, err := s.a.Directory.Withdraw(ctx, &v1.WithdrawRequest{Seq: r.Seq})
	if err != nil {
		return nil, err
	}
	return &imdv1.WithdrawResponse{Announcement: res.Announcement}, nil
}

// ListAnnouncements lists the newest announcements.
func (s announcements) ListAnnouncements(ctx context.Context, _ *imdv1.ListAnnouncementsRequest) (*imdv1.ListAnnouncementsResponse, error) {
	res, err := s.a.Directory.ListAnnouncements(ctx, &v1.ListAnnouncementsRequest{})
	if err != nil {
		return nil, err
	}
	return &imdv1.ListAnnouncementsResponse{Announcements: res.Announcements}, nil
}

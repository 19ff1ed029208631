package state

import (
	"context"
	"errors"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/imdhq/imd/pkg/im"
	"github.com/imdhq/imd/pkg/store"
	"github.com/imdhq/imd/pkg/store/rules"
	v1 "github.com/imdhq/imd/proto/gen/internalv1"
	"github.com/imdhq/imd/sdk/go/gen/clientv1"
	"github.com/imdhq/imd/sdk/go/gen/imdv1"
	"github.com/imdhq/imd/sdk/go/protocol"
)

const (
	// maxAnnouncement is the longest text of an announcement, in bytes.
	maxAnnouncement = 2000
	// announcementLife is the longest time that an announcement may be in force.
	announcementLife = 366 * 24 * time.Hour
)

// Announce stores what everybody is to be told; see DirectoryService.
func (d Directory) Announce(ctx context.Context, req *v1.AnnounceRequest) (*v1.AnnounceResponse, error) {
	const op = "directory.Announce"
	now := time.Now().Truncate(time.Millisecond)
	a := store.Announcement{RequestID: im.ClientMessageID(req.RequestId), Text: req.Text, Created: now, Expires: time.UnixMilli(req.ExpiresMs)}
	switch {
	case !protocol.ValidUUID(req.RequestId):
		return nil, badRequest(op, "request_id is not a UUID of version 4 or 7 in lower case")
	case len(a.Text) > maxAnnouncement:
		return nil, im.Errorf(clientv1.Reason_REASON_TOO_LARGE, op, "the text is longer than %d bytes", maxAnnouncement)
	case strings.TrimSpace(a.Text) == "" || !utf8.ValidString(a.Text) || strings.IndexByte(a.Text, 0) >= 0:
		return nil, badRequest(op, "the text is empty or no clean UTF-8")
	case a.Expires.After(now.Add(announcementLife)):
		return nil, badRequest(op, "expires_ms is more than 366 days ahead")
	}
	c, err := d.s.serving()
	if err != nil {
		return nil, err
	}
	if !a.Expires.After(now) {
		return announcedBefore(ctx, c, &a, badRequest(op, "expires_ms is in the past"))
	}
	var got store.Announcement // not a, which each run needs
	var before bool
	err = settleCall(ctx, func() (err error) {
		got, before, err = c.store.PutAnnouncement(ctx, a)
		return err
	})
	if err != nil {
		return nil, storeErr(op, err)
	}
	return &v1.AnnounceResponse{Announcement: wireAnnouncement(&got), Duplicate: before}, nil
}

// announcedBefore answers a call that is refused: as at first if its request was
// there before.
func announcedBefore(ctx context.Context, c *core, a *store.Announcement, refused *im.Error) (*v1.AnnounceResponse, error) {
	list, err := c.store.Announcements(ctx, store.AnnouncementQuery{Request: a.RequestID})
	if err != nil {
		return nil, storeErr(refused.Op, err)
	}
	if len(list) == 0 {
		return nil, refused
	}
	if err := rules.SameAnnouncement(refused.Op, &list[0], a); err != nil {
		return nil, err
	}
	return &v1.AnnounceResponse{Announcement: wireAnnouncement(&list[0]), Duplicate: true}, nil
}

// Withdraw ends an announcement; see DirectoryService.
func (d Directory) Withdraw(ctx context.Context, req *v1.WithdrawRequest) (*v1.WithdrawResponse, error) {
	const op = "directory.Withdraw"
	c, err := d.s.serving()
	if err != nil {
		return nil, err
	}
	var a store.Announcement
	err = settleCall(ctx, func() (err error) {
		a, err = c.store.WithdrawAnnouncement(ctx, req.Seq, time.Now().Truncate(time.Millisecond))
		return err
	})
	if errors.Is(err, store.ErrNotFound) {
		return nil, im.Errorf(clientv1.Reason_REASON_NOT_FOUND, op, "there is no such announcement")
	}
	if err != nil {
		return nil, storeErr(op, err)
	}
	return &v1.WithdrawResponse{Announcement: wireAnnouncement(&a)}, nil
}

// ListAnnouncements lists announcements; see DirectoryService.
func (d Directory) ListAnnouncements(ctx context.Context, req *v1.ListAnnouncementsRequest) (*v1.ListAnnouncementsResponse, error) {
	const op = "directory.ListAnnouncements"
	if req.Limit < 0 || req.BeforeSeq < 0 {
		return nil, badRequest(op, "before_seq or limit is negative")
	}
	c, err := d.s.serving()
	if err != nil {
		return nil, err
	}
	q := store.AnnouncementQuery{Before: req.BeforeSeq, Limit: rules.AnnouncementLimit(int(req.Limit))}
	list, err := c.store.Announcements(ctx, q)
	if err != nil {
		return nil, storeErr(op, err)
	}
	res := &v1.ListAnnouncementsResponse{More: len(list) == q.Limit}
	for i := range list {
		res.Announcements = append(res.Announcements, wireAnnouncement(&list[i]))
	}
	return res, nil
}

func wireAnnouncement(a *store.Announcement) *imdv1.AnnouncementInfo {
	return &imdv1.AnnouncementInfo{Seq: a.Seq, Text: a.Text, CreatedMs: a.Created.UnixMilli(), ExpiresMs: a.Expires.UnixMilli(), WithdrawnMs: toMilli(a.Withdrawn)}
}

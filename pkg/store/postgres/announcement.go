package postgres

import (
	"cmp"
	"context"
	"math"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/imdhq/imd/pkg/store"
	"github.com/imdhq/imd/pkg/store/rules"
)

const (
	announcementColumns    = `seq, created_ms, expires_ms, withdrawn_ms, withdrawal, request_id, body`
	announcementRows       = `SELECT ` + announcementColumns + ` FROM announcement`
	sqlAnnounce            = `SELECT imd_announce($1, $2, $3, $4, $5)`
	sqlWithdraw            = `SELECT imd_withdraw($1, $2)`
	sqlAnnouncementRequest = announcementRows + ` WHERE request_id = $1`
	sqlAnnouncementSeq     = announcementRows + ` WHERE seq = $1`
	sqlAnnouncements       = announcementRows + ` WHERE seq < $1 ORDER BY seq DESC LIMIT $2`
	sqlAnnouncementsLive   = announcementRows + ` WHERE withdrawn_ms = 0 AND expires_ms > $1 ORDER BY seq DESC LIMIT $2`
	sqlAnnouncementsGone   = announcementRows + ` WHERE withdrawal > 0 AND expires_ms > $1 ORDER BY withdrawal DESC LIMIT $2`
	sqlAnnouncementVersion = `SELECT version FROM announcing WHERE id = 1`
	sqlTrimAnnouncements   = `SELECT imd_trim_announcements($1, $2, $3, $4)`
)

// PutAnnouncement is store.Announcements'.
func (s *Store) PutAnnouncement(ctx context.Context, a store.Announcement) (store.Announcement, bool, error) {
	const op = "store.PutAnnouncement"
	seq, err := change(ctx, s, func(ctx context.Context, c *pgx.Conn) (n int64, err error) {
		err = c.QueryRow(ctx, sqlAnnounce, string(a.RequestID), a.Text, millis(a.Created), millis(a.Expires), store.MaxAnnouncements).Scan(&n)
		return n, err
	})
	switch {
	case err != nil:
		return store.Announcement{}, false, fault(op, err)
	case seq < 0:
		return store.Announcement{}, false, rules.TooManyAnnouncements(op)
	case seq > 0:
		a.Seq = seq
		return a, false, nil
	}
	list, err := s.announcements(ctx, sqlAnnouncementRequest, string(a.RequestID))
	if err == nil && len(list) == 0 {
		err = store.ErrNotFound // it was removed this moment
	}
	if err == nil {
		err = rules.SameAnnouncement(op, &list[0], &a)
	}
	if err != nil {
		return store.Announcement{}, false, fault(op, err)
	}
	return list[0], true, nil
}

// WithdrawAnnouncement is store.Announcements'.
func (s *Store) WithdrawAnnouncement(ctx context.Context, seq int64, at time.Time) (store.Announcement, error) {
	const op = "store.WithdrawAnnouncement"
	if _, err := s.exec(ctx, op, sqlWithdraw, seq, millis(at)); err != nil {
		return store.Announcement{}, err
	}
	list, err := s.announcements(ctx, sqlAnnouncementSeq, seq)
	if err == nil && len(list) == 0 {
		err = store.ErrNotFound
	}
	if err != nil {
		return store.Announcement{}, fault(op, err)
	}
	return list[0], nil
}

// Announcements is store.Announcements'.
func (s *Store) Announcements(ctx context.Context, q store.AnnouncementQuery) ([]store.Announcement, error) {
	query, key := sqlAnnouncements, any(cmp.Or(q.Before, math.MaxInt64))
	switch {
	case q.Request != "":
		query, key = sqlAnnouncementRequest, string(q.Request)
	case q.At.IsZero():
	case q.Withdrawn:
		query, key = sqlAnnouncementsGone, millis(q.At)
	default:
		query, key = sqlAnnouncementsLive, millis(q.At)
	}
	args := []any{key}
	if q.Request == "" {
		args = append(args, rules.AnnouncementLimit(q.Limit))
	}
	list, err := s.announcements(ctx, query, args...)
	slices.Reverse(list)
	return list, fault("store.Announcements", err)
}

func (s *Store) announcements(ctx context.Context, query string, args ...any) ([]store.Announcement, error) {
	return read(ctx, s, func(ctx context.Context, c *pgx.Conn) ([]store.Announcement, error) {
		rows, err := c.Query(ctx, query, args...)
		if err != nil {
			return nil, err
		}
		return pgx.CollectRows(rows, func(row pgx.CollectableRow) (store.Announcement, error) { return scanAnnouncement(row) })
	})
}

// scanAnnouncement reads announcementColumns.
func scanAnnouncement(row scanner) (a store.Announcement, err error) {
	var created, expires, withdrawn int64
	err = row.Scan(&a.Seq, &created, &expires, &withdrawn, &a.Withdrawal, &a.RequestID, &a.Text)
	a.Created, a.Expires, a.Withdrawn = moment(created), moment(expires), moment(withdrawn)
	return a, err
}

// AnnouncementVersion is store.Announcements'.
func (s *Store) AnnouncementVersion(ctx context.Context) (int64, error) {
	v, err := read(ctx, s, func(ctx context.Context, c *pgx.Conn) (v int64, err error) {
		err = c.QueryRow(ctx, sqlAnnouncementVersion).Scan(&v)
		return v, err
	})
	return v, fault("store.AnnouncementVersion", err)
}

// TrimAnnouncements is store.Announcements'.
func (s *Store) TrimAnnouncements(ctx context.Context, p store.Proof, before time.Time) (int, error) {
	return s.counted(ctx, "store.TrimAnnouncements", p, sqlTrimAnnouncements, millis(before))
}

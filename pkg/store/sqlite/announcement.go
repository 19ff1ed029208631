package sqlite

import (
	"cmp"
	"context"
	"database/sql"
	"errors"
	"math"
	"slices"
	"time"

	"github.com/imdhq/imd/pkg/store"
	"github.com/imdhq/imd/pkg/store/rules"
)

const (
	announcementColumns    = `seq, created_ms, expires_ms, withdrawn_ms, withdrawal, request_id, body`
	announcementRows       = `SELECT ` + announcementColumns + ` FROM announcement`
	sqlAnnouncementRequest = announcementRows + ` WHERE request_id = ?`
	sqlAnnouncementSeq     = announcementRows + ` WHERE seq = ?`
	sqlAnnouncements       = announcementRows + ` WHERE seq < ? ORDER BY seq DESC LIMIT ?`
	sqlAnnouncementsLive   = announcementRows + ` WHERE withdrawn_ms = 0 AND expires_ms > ? ORDER BY seq DESC LIMIT ?`
	sqlAnnouncementsGone   = announcementRows + ` WHERE withdrawal > 0 AND expires_ms > ? ORDER BY withdrawal DESC LIMIT ?`
	sqlAnnouncementsCount  = `SELECT count(*) FROM announcement WHERE withdrawn_ms = 0 AND expires_ms > ?`
	sqlAnnounce            = `INSERT INTO announcement (seq, created_ms, expires_ms, withdrawn_ms, request_id, body)
  SELECT last_seq + 1, ?, ?, 0, ?, ? FROM announcing WHERE id = 1`
	sqlAnnounced           = `UPDATE announcing SET last_seq = last_seq + 1, version = version + 1 WHERE id = 1`
	sqlWithdraw            = `UPDATE announcement SET withdrawn_ms = ?1, withdrawal = (SELECT last_seq + 1 FROM announcing WHERE id = 1) WHERE seq = ?2 AND withdrawn_ms = 0 AND expires_ms > ?1`
	sqlAnnouncementVersion = `SELECT version FROM announcing WHERE id = 1`
	sqlTrimAnnouncements   = `DELETE FROM announcement WHERE expires_ms < ?1 OR withdrawn_ms > 0 AND withdrawn_ms < ?1`
)

func scanAnnouncement(scan func(...any) error) (a store.Announcement, err error) {
	var created, expires, withdrawn int64
	err = scan(&a.Seq, &created, &expires, &withdrawn, &a.Withdrawal, &a.RequestID, &a.Text)
	a.Created, a.Expires, a.Withdrawn = moment(created), moment(expires), moment(withdrawn)
	return a, err
}

func (t *tx) announcement(query string, key any) (store.Announcement, error) {
	return scanAnnouncement(func(dest ...any) error { return t.row(query, []any{key}, dest...) })
}

// PutAnnouncement is store.Announcements'.
func (s *Store) PutAnnouncement(ctx context.Context, a store.Announcement) (store.Announcement, bool, error) {
	const op = "store.PutAnnouncement"
	out, before := store.Announcement{}, false
	err := s.w.run(ctx, func(t *tx) (err error) {
		if out, err = t.announcement(sqlAnnouncementRequest, string(a.RequestID)); err == nil {
			before = true
			return rules.SameAnnouncement(op, &out, &a)
		}
		if !errors.Is(err, sql.ErrNoRows) {
			return err
		}
		var live int
		if err := t.row(sqlAnnouncementsCount, []any{millis(a.Created)}, &live); err != nil {
			return err
		}
		if live >= store.MaxAnnouncements {
			return rules.TooManyAnnouncements(op)
		}
		t.changed = true
		if _, err := t.exec(sqlAnnounce, millis(a.Created), millis(a.Expires), string(a.RequestID), a.Text); err != nil {
			return err
		}
		if _, err := t.exec(sqlAnnounced); err != nil {
			return err
		}
		out, err = t.announcement(sqlAnnouncementRequest, string(a.RequestID))
		return err
	})
	if err != nil {
		return store.Announcement{}, false, fault(op, err)
	}
	return out, before, nil
}

// WithdrawAnnouncement is store.Announcements'.
func (s *Store) WithdrawAnnouncement(ctx context.Context, seq int64, at time.Time) (store.Announcement, error) {
	var out store.Announcement
	err := s.w.run(ctx, func(t *tx) error {
		n, err := t.exec(sqlWithdraw, millis(at), seq)
		if err == nil && n > 0 {
			t.changed = true
			_, err = t.exec(sqlAnnounced)
		}
		if err == nil {
			out, err = t.announcement(sqlAnnouncementSeq, seq)
			err = missing(err)
		}
		return err
	})
	if err != nil {
		return store.Announcement{}, fault("store.WithdrawAnnouncement", err)
	}
	return out, nil
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
	var out []store.Announcement
	err := s.read(ctx, func(c *conn) error {
		return c.each(ctx, query, args, func(scan func(...any) error) error {
			a, err := scanAnnouncement(scan)
			out = append(out, a)
			return err
		})
	})
	slices.Reverse(out)
	return out, fault("store.Announcements", err)
}

// AnnouncementVersion is store.Announcements'.
func (s *Store) AnnouncementVersion(ctx context.Context) (v int64, err error) {
	err = s.read(ctx, func(c *conn) error { return c.row(sqlAnnouncementVersion, nil, &v) })
	return v, fault("store.AnnouncementVersion", err)
}

// TrimAnnouncements is store.Announcements'.
func (s *Store) TrimAnnouncements(ctx context.Context, p store.Proof, before time.Time) (int, error) {
	var gone int64
	err := s.proved(ctx, "store.TrimAnnouncements", p, func(t *tx) error {
		n, err := t.exec(sqlTrimAnnouncements, millis(before))
		t.changed, gone = n > 0, n
		return err
	})
	if err != nil {
		return 0, err
	}
	return int(gone), nil
}

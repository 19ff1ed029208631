package imd

import (
	"time"

	"github.com/imdhq/imd/sdk/go/gen/clientv1"
)

// announcementQueue is how many announcements wait for a slow OnAnnouncement. The
// server has no more in force.
const announcementQueue = 200

// Announcement is what the operator tells everybody.
type Announcement struct {
	Seq     int64
	Text    string
	Created time.Time
	Expires time.Time // not to be shown from then on
	// Withdrawn says that it was taken back: stop showing it. There is no text then,
	// and it may be one that this device never showed.
	Withdrawn bool
	// Cursor is where the client stands with it. Who keeps it and gives it to the
	// next client of this device shows nothing twice, and hears of what was taken back
	// meanwhile.
	Cursor AnnouncementCursor
}

// AnnouncementCursor is the number of the last announcement or withdrawal that a
// device was told, in which history of the server's store.
type AnnouncementCursor struct {
	Seq   int64
	Epoch string
}

// announcement notes an announcement and hands it to the goroutine that calls
// OnAnnouncement. The lock is held.
func (c *Client) announcement(a *clientv1.Announcement) {
	if c.opts.OnAnnouncement == nil {
		return
	}
	if c.announced.Epoch != c.epoch { // numbers of another history mean nothing
		c.announced = AnnouncementCursor{Epoch: c.epoch}
	}
	n := a.Seq
	if a.Withdrawn {
		n = a.WithdrawalSeq // 0 from a server that gives withdrawals none
	}
	if n > 0 && n <= c.announced.Seq {
		return
	}
	c.announced.Seq = max(c.announced.Seq, n)
	if len(c.announcements) == announcementQueue {
		c.announcements = c.announcements[1:]
	}
	c.announcements = append(c.announcements, Announcement{
		Seq: a.Seq, Text: a.Text, Created: time.UnixMilli(a.CreatedMs), Expires: time.UnixMilli(a.ExpiresMs), Withdrawn: a.Withdrawn, Cursor: c.announced,
	})
	signal(c.announcing)
}

// tellAnnouncements calls OnAnnouncement until the client ends.
func (c *Client) tellAnnouncements() {
	for {
		select {
		case <-c.announcing:
		case <-c.ctx.Done():
			return
		}
		c.mu.Lock()
		list := c.announcements
		c.announcements = nil
		c.mu.Unlock()
		for _, a := range list {
			if c.ctx.Err() != nil {
				return
			}
			c.opts.OnAnnouncement(a)
		}
	}
}

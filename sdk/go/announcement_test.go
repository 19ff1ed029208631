package imd

import (
	"fmt"
	"slices"
	"testing"

	"github.com/imdhq/imd/sdk/go/gen/clientv1"
)

// Each announcement and each withdrawal is told once, in whatever history of the
// store, and the cursor is the highest number of both.
func TestAnnouncementsAreToldOnce(t *testing.T) {
	c := &Client{opts: Options{OnAnnouncement: func(Announcement) {}}, announcing: make(chan struct{}, 1), epoch: "e1", announced: AnnouncementCursor{Seq: 3, Epoch: "e1"}}
	say := func(seq int64) { c.announcement(&clientv1.Announcement{Seq: seq, Text: "news"}) }
	back := func(seq, number int64) {
		c.announcement(&clientv1.Announcement{Seq: seq, Withdrawn: true, WithdrawalSeq: number})
	}
	wants := func(cursor int64, want ...string) {
		t.Helper()
		var got []string
		for _, a := range c.announcements {
			got = append(got, map[bool]string{false: "+", true: "-"}[a.Withdrawn]+fmt.Sprint(a.Seq))
		}
		if !slices.Equal(got, want) || c.announced != (AnnouncementCursor{cursor, c.epoch}) {
			t.Errorf("told %v, want %v; the cursor is %+v", got, want, c.announced)
		}
		c.announcements = nil
	}
	say(3)
	say(4)
	say(4)
	say(6)
	say(5)
	back(4, 7)
	back(4, 7)
	wants(7, "+4", "+6", "-4")
	back(6, 0) // from a server that gives withdrawals no numbers
	wants(7, "-6")
	c.epoch = "e2"
	say(1)
	wants(1, "+1")
}

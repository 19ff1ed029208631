package rules

import (
	"github.com/imdhq/imd/pkg/im"
	"github.com/imdhq/imd/pkg/store"
	"github.com/imdhq/imd/sdk/go/gen/clientv1"
)

// TooManyAnnouncements is the answer to one announcement more than there may be.
func TooManyAnnouncements(op string) *im.Error {
	return im.Errorf(clientv1.Reason_REASON_RATE_LIMITED, op, "%d announcements are in force, which is the most", store.MaxAnnouncements)
}

// SameAnnouncement is why a request that was there before, and became had, cannot
// be answered with it; nil if it asks for the same.
func SameAnnouncement(op string, had, asked *store.Announcement) error {
	if had.Text == asked.Text {
		return nil
	}
	return im.Errorf(clientv1.Reason_REASON_ID_REUSED, op, "this request id stands for another announcement")
}

// AnnouncementLimit is how many announcements a query gets at most.
func AnnouncementLimit(asked int) int {
	if asked < 1 || asked > store.MaxAnnouncements {
		return store.MaxAnnouncements
	}
	return asked
}

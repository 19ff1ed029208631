package store

import (
	"context"
	"time"

	"github.com/imdhq/imd/pkg/im"
)

// MaxAnnouncements is the most announcements that may be in force at once, and the
// most that one call of Announcements returns.
const MaxAnnouncements = 100

// Announcements keeps what the operator tells everybody. Each has a number from
// one sequence for the whole site, and so has each withdrawal: what has a higher
// number was stored later.
type Announcements interface {
	// PutAnnouncement stores an announcement under the next number, which it sets.
	// The same RequestID again returns the first one, with true. Errors: id_reused
	// (the request id stands for another text); rate_limited (MaxAnnouncements are
	// in force); ErrUnknownOutcome: run it again.
	PutAnnouncement(ctx context.Context, a Announcement) (Announcement, bool, error)
	// WithdrawAnnouncement ends an announcement at a time, if it has not ended
	// before, and returns it. Errors: ErrNotFound, ErrUnknownOutcome: run it again.
	WithdrawAnnouncement(ctx context.Context, seq int64, at time.Time) (Announcement, error)
	// Announcements lists those that a query asks for, at most MaxAnnouncements of
	// them: the newest ones, in order.
	Announcements(ctx context.Context, q AnnouncementQuery) ([]Announcement, error)
	// AnnouncementVersion rises with each change.
	AnnouncementVersion(ctx context.Context) (int64, error)
	// TrimAnnouncements removes announcements that ended before a time, and returns
	// how many. Errors: ErrFenced if the proof does not hold in the same transaction.
	TrimAnnouncements(ctx context.Context, p Proof, before time.Time) (int, error)
}

// Announcement is what everybody is told. Times are whole milliseconds.
type Announcement struct {
	Seq       int64 // set by the store; 1 is the first
	RequestID im.ClientMessageID
	Text      string
	Created   time.Time
	Expires   time.Time // it is shown to nobody from then on
	Withdrawn time.Time // the same, as somebody ended it; zero = nobody has
	// Withdrawal is the number of that in the sequence; 0 = none, or withdrawn before
	// withdrawals had numbers.
	Withdrawal int64
}

// AnnouncementQuery asks for announcements, also those that have ended.
type AnnouncementQuery struct {
	At time.Time // those in force at this time; zero = of all
	// Withdrawn, with At, asks instead for those that would be in force if they were
	// not withdrawn; newest and order are those of the withdrawals.
	Withdrawn bool
	Before    int64              // with a lower number than this; 0 = any. Without At
	Request   im.ClientMessageID // the one of this request; "" = of any. Without all others
	Limit     int                // 0, or more than MaxAnnouncements = that
}

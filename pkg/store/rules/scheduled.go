package rules

import (
	"cmp"
	"slices"

	"github.com/imdhq/imd/pkg/im"
	"github.com/imdhq/imd/pkg/store"
	"github.com/imdhq/imd/sdk/go/gen/clientv1"
)

// TooManyScheduled is the answer to a sender who has as many messages scheduled
// as it may.
func TooManyScheduled(op string, most int) *im.Error {
	return im.Errorf(clientv1.Reason_REASON_RATE_LIMITED, op, "%d messages are scheduled already, which is the most that a user may have", most)
}

// SameScheduled is why a request that was there before, and became had, cannot be
// answered with it; nil if it asks for the same.
func SameScheduled(op string, had, asked *store.Scheduled) error {
	if had.BodyHash == asked.BodyHash && had.Conversation == asked.Conversation && had.Due.Equal(asked.Due) {
		return nil
	}
	return im.Errorf(clientv1.Reason_REASON_ID_REUSED, op, "this request id stands for another scheduled message")
}

// SortScheduled puts rows in the order in which they are due.
func SortScheduled(list []store.Scheduled) {
	slices.SortFunc(list, func(a, b store.Scheduled) int { return cmp.Or(a.Due.Compare(b.Due), cmp.Compare(a.ID, b.ID)) })
}

package storetest

import (
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/imdhq/imd/pkg/im"
	"github.com/imdhq/imd/pkg/store"
	"github.com/imdhq/imd/sdk/go/gen/clientv1"
)

func announcements(k *kit) {
	now := time.UnixMilli(1_800_000_000_123)
	put := func(text string, life time.Duration) store.Announcement {
		k.Helper()
		a, before, err := k.s.PutAnnouncement(k.ctx(), store.Announcement{RequestID: uuid(), Text: text, Created: now, Expires: now.Add(life)})
		if k.must(err); before {
			k.Errorf("%q was there before", text)
		}
		return a
	}
	ask := func(q store.AnnouncementQuery, want ...int64) {
		k.Helper()
		got, err := k.s.Announcements(k.ctx(), q)
		k.must(err)
		var seqs []int64
		for _, a := range got {
			seqs = append(seqs, a.Seq)
		}
		if !slices.Equal(seqs, want) {
			k.Errorf("announcements: %v, want %v", seqs, want)
		}
	}
	list := func(at time.Time, want ...int64) { k.Helper(); ask(store.AnnouncementQuery{At: at}, want...) }
	version := func() int64 {
		k.Helper()
		v, err := k.s.AnnouncementVersion(k.ctx())
		k.must(err)
		return v
	}
	if v := version(); v != 0 {
		k.Errorf("version %d of none", v)
	}
	first, second := put("a", time.Hour), put("b", time.Minute)
	if first.Seq != 1 || second.Seq != 2 || version() != 2 {
		k.Errorf("numbers %d and %d, version %d", first.Seq, second.Seq, version())
	}
	if again, before, err := k.s.PutAnnouncement(k.ctx(), first); err != nil || !before || again != first {
		k.Errorf("once more: %+v, %v, %v", again, before, err)
	}
	other := first
	other.Text = "c"
	if _, _, err := k.s.PutAnnouncement(k.ctx(), other); im.ReasonOf(err) != clientv1.Reason_REASON_ID_REUSED || version() != 2 {
		k.Errorf("another text: %v", err)
	}
	k.s = k.d.Reopen(k.T, k.s)
	list(now, 1, 2)
	list(now.Add(time.Minute), 1)
	for range 2 {
		a, err := k.s.WithdrawAnnouncement(k.ctx(), 1, now.Add(time.Second))
		if k.must(err); !a.Withdrawn.Equal(now.Add(time.Second)) || a.Withdrawal != 3 || version() != 3 {
			k.Errorf("withdrawn: %+v, version %d", a, version())
		}
	}
	if _, err := k.s.WithdrawAnnouncement(k.ctx(), 9, now); !errors.Is(err, store.ErrNotFound) {
		k.Errorf("withdrawing none: %v", err)
	}
	list(now, 2)
	list(time.Time{}, 1, 2)
	ask(store.AnnouncementQuery{At: now, Withdrawn: true}, 1)
	ask(store.AnnouncementQuery{At: now.Add(time.Hour), Withdrawn: true}) // it has expired as well
	ask(store.AnnouncementQuery{Limit: 1}, 2)
	ask(store.AnnouncementQuery{Limit: 1, Before: 2}, 1)
	ask(store.AnnouncementQuery{Before: 1})
	ask(store.AnnouncementQuery{Request: first.RequestID}, 1)
	ask(store.AnnouncementQuery{Request: uuid()})
	old := k.fence("scheduler", 1).Proof()
	lead := k.fence("scheduler", 2).Proof()
	if _, err := k.s.TrimAnnouncements(k.ctx(), old, now.Add(time.Hour)); !errors.Is(err, store.ErrFenced) {
		k.Errorf("a leader that was followed: %v", err)
	}
	if n, err := k.s.TrimAnnouncements(k.ctx(), lead, now.Add(2*time.Second)); err != nil || n != 1 {
		k.Errorf("%d went, %v", n, err)
	}
	list(time.Time{}, 2)
	// Many at once get numbers, those after the withdrawal, without a hole, in the order in which they are seen.
	var wg sync.WaitGroup
	for i := range 8 {
		a := store.Announcement{RequestID: uuid(), Text: fmt.Sprint("many ", i), Created: now, Expires: now.Add(time.Hour)}
		wg.Go(func() {
			if _, _, err := k.s.PutAnnouncement(k.ctx(), a); err != nil {
				k.Errorf("put: %v", err)
			}
		})
	}
	wg.Wait()
	list(now, 2, 4, 5, 6, 7, 8, 9, 10, 11)
	for i := 9; i < store.MaxAnnouncements; i++ {
		put("x", time.Hour)
	}
	if _, _, err := k.s.PutAnnouncement(k.ctx(), store.Announcement{RequestID: uuid(), Text: "y", Created: now, Expires: now.Add(time.Hour)}); im.ReasonOf(err) != clientv1.Reason_REASON_RATE_LIMITED {
		k.Errorf("one more than there may be: %v", err)
	}
}

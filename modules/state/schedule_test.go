package state

import (
	"context"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/imdhq/imd/pkg/im"
	"github.com/imdhq/imd/pkg/store"
	"github.com/imdhq/imd/pkg/store/rules"
	v1 "github.com/imdhq/imd/proto/gen/internalv1"
	"github.com/imdhq/imd/sdk/go/gen/clientv1"
)

// agenda is what a memStore keeps of what is to be said later.
type agenda struct {
	rows   []store.Scheduled
	posted []store.Announcement
	open   int
	slow   time.Duration // that counting takes
}

// PutScheduled returns no row with an error, as the drivers do.
func (m *memStore) PutScheduled(_ context.Context, row store.Scheduled, _ int) (got store.Scheduled, before bool, err error) {
	err = m.do("PutScheduled", func() error {
		for _, had := range m.agenda.rows {
			if had.RequestID == row.RequestID && had.Sender == row.Sender {
				got, before = had, true
				return rules.SameScheduled("store.PutScheduled", &had, &row)
			}
		}
		if row.Conversation == "" {
			return rules.NotMember("store.PutScheduled", row.Conversation)
		}
		m.agenda.rows = append(m.agenda.rows, row)
		got = row
		return nil
	})
	if err != nil {
		return store.Scheduled{}, false, err
	}
	return got, before, nil
}

func (m *memStore) Scheduled(_ context.Context, q store.ScheduledQuery) (out []store.Scheduled, err error) {
	err = m.do("Scheduled", func() error {
		for _, row := range m.agenda.rows {
			if row.RequestID == q.Request && row.Sender == q.User {
				out = append(out, row)
			}
		}
		return nil
	})
	return out, err
}

func (m *memStore) ScheduledCounts(context.Context) (n store.ScheduledCounts, err error) {
	time.Sleep(m.agenda.slow)
	err = m.do("ScheduledCounts", func() error { n.Open = m.agenda.open; return nil })
	return n, err
}

// PutAnnouncement returns none with an error, as the drivers do.
func (m *memStore) PutAnnouncement(_ context.Context, a store.Announcement) (got store.Announcement, before bool, err error) {
	err = m.do("PutAnnouncement", func() error {
		for _, had := range m.agenda.posted {
			if had.RequestID == a.RequestID {
				got, before = had, true
				return rules.SameAnnouncement("store.PutAnnouncement", &had, &a)
			}
		}
		got = a
		got.Seq = int64(len(m.agenda.posted) + 1)
		m.agenda.posted = append(m.agenda.posted, got)
		return nil
	})
	if err != nil {
		return store.Announcement{}, false, err
	}
	return got, before, nil
}

func (m *memStore) Announcements(_ context.Context, q store.AnnouncementQuery) (out []store.Announcement, err error) {
	err = m.do("Announcements", func() error {
		for _, a := range m.agenda.posted {
			if a.RequestID == q.Request || q.Request == "" && (q.Before == 0 || a.Seq < q.Before) {
				out = append(out, a)
			}
		}
		out = out[max(0, len(out)-max(q.Limit, 1)):]
		return nil
	})
	return out, err
}

func wantReason(t *testing.T, what string, err error, want clientv1.Reason) {
	t.Helper()
	if im.ReasonOf(err) != want {
		t.Errorf("%s: %v, want %s", what, err, im.ReasonName(want))
	}
}

// A request that was there before gets the first answer, also when what it asks for
// would be refused by now; another one is refused.
func TestRepeatsOfSchedules(t *testing.T) {
	serve(t, func(t *testing.T, n *node) {
		ask := func(id string, at time.Time, key string) (*v1.ScheduleResponse, error) {
			s := send(key)
			return n.Schedule(n.ctx, &v1.ScheduleRequest{ConversationId: "g_1", UserId: "ann", RequestId: id, Content: s.Content, BodyHash: s.BodyHash, SendAtMs: at.UnixMilli()})
		}
		id, at := uuid.Must(uuid.NewV7()).String(), time.Now().Add(time.Hour)
		first, err := ask(id, at, "a")
		if err != nil || first.Duplicate {
			t.Fatal(first, err)
		}
		repeat := func(what string, refused clientv1.Reason, when time.Time) {
			t.Helper()
			again, err := ask(id, at, "a")
			if err != nil || !again.Duplicate || again.Scheduled.ScheduledId != first.Scheduled.ScheduledId {
				t.Errorf("%s: %v, %v", what, again, err)
			}
			_, err = ask(id, at, "b")
			wantReason(t, what+", another message", err, clientv1.Reason_REASON_ID_REUSED)
			_, err = ask(uuid.NewString(), when, "a")
			wantReason(t, what+", another request", err, refused)
		}
		n.st.agenda.open = 1 << 20
		time.Sleep(2 * time.Second)
		repeat("the site is full", clientv1.Reason_REASON_RATE_LIMITED, at)
		time.Sleep(2 * time.Hour)
		repeat("the time is past", clientv1.Reason_REASON_BAD_REQUEST, at)
		if rows := len(n.st.agenda.rows); rows != 1 {
			t.Errorf("%d rows", rows)
		}
	})
}

// unsureOnce makes the next call of op end with an unknown outcome: before it wrote
// anything, or after it.
func (m *memStore) unsureOnce(op string, after bool) {
	var done atomic.Bool
	m.setFault(func(of string, late bool) error {
		if of == op && late == after && !done.Swap(true) {
			return store.ErrUnknownOutcome
		}
		return nil
	})
}

// A call whose outcome is unknown is run again as it was, whether or not it wrote.
func TestUnknownOutcomesOfWhatIsSaidLater(t *testing.T) {
	serve(t, func(t *testing.T, n *node) {
		for i, after := range []bool{false, true} {
			n.st.unsureOnce("PutScheduled", after)
			s := send("a")
			asked := &v1.ScheduleRequest{ConversationId: "g_1", UserId: "ann", RequestId: uuid.NewString(), Content: s.Content,
				BodyHash: s.BodyHash, SendAtMs: time.Now().Add(time.Hour).UnixMilli()}
			got, err := n.Schedule(n.ctx, asked)
			if err != nil {
				t.Fatalf("wrote %v: %v", after, err)
			}
			if rows := n.st.agenda.rows; len(rows) != i+1 || string(rows[i].RequestID) != asked.RequestId {
				t.Errorf("wrote %v: the rows are %+v", after, rows)
			}
			if m := got.Scheduled; m.Sender != "ann" || m.ConversationId != "g_1" || m.ScheduledId == 0 || got.Duplicate != after {
				t.Errorf("wrote %v: the answer is %v", after, got)
			}

			n.st.unsureOnce("PutAnnouncement", after)
			id := uuid.NewString()
			told, err := n.dir.Announce(n.ctx, &v1.AnnounceRequest{RequestId: id, Text: "soon", ExpiresMs: time.Now().Add(time.Hour).UnixMilli()})
			if err != nil {
				t.Fatalf("wrote %v: %v", after, err)
			}
			if posted := n.st.agenda.posted; len(posted) != i+1 || string(posted[i].RequestID) != id || posted[i].Text != "soon" {
				t.Errorf("wrote %v: announced are %+v", after, posted)
			}
			if told.Announcement.Text != "soon" || told.Announcement.Seq != int64(i+1) {
				t.Errorf("wrote %v: the answer is %v", after, told)
			}
		}
	})
}

// Counting what is scheduled takes a small share of the time, however much that is.
func TestCountingScheduledMessages(t *testing.T) {
	serve(t, func(t *testing.T, n *node) {
		for took, most := range map[time.Duration]int{time.Millisecond: 101, 2 * time.Second: 8} {
			n.st.agenda.slow = took
			c, before := &scheduled{}, n.st.count("ScheduledCounts")
			for range 1000 {
				if _, err := c.hold(n.ctx, n.st, 10); err != nil {
					t.Fatal(err)
				}
				c.settle(false)
				time.Sleep(100 * time.Millisecond)
			}
			if got := n.st.count("ScheduledCounts") - before; got > most || got < most*3/4 {
				t.Errorf("where counting takes %v: counted %d times in 100 s", took, got)
			}
		}
	})
}

// What is refused takes no place of those that may be scheduled, and what was
// scheduled takes one at once.
func TestPlacesOfScheduledMessages(t *testing.T) {
	serve(t, func(t *testing.T, n *node) {
		ask := func() error {
			s := send("a")
			_, err := n.Schedule(n.ctx, &v1.ScheduleRequest{ConversationId: "g_1", UserId: "ann", RequestId: uuid.NewString(), Content: s.Content,
				BodyHash: s.BodyHash, SendAtMs: time.Now().Add(time.Hour).UnixMilli()})
			return err
		}
		n.st.agenda.open = scheduleTotal.In(nil) - 2
		n.st.fault = func(op string, _ bool) error {
			if op == "PutScheduled" {
				return im.Errorf(clientv1.Reason_REASON_NOT_MEMBER, op, "")
			}
			return nil
		}
		for range 5 {
			wantReason(t, "of no member", ask(), clientv1.Reason_REASON_NOT_MEMBER)
		}
		n.st.mu.Lock()
		n.st.fault = nil
		n.st.mu.Unlock()
		for range 2 {
			if err := ask(); err != nil {
				t.Error(err)
			}
		}
		wantReason(t, "one too many", ask(), clientv1.Reason_REASON_RATE_LIMITED)
	})
}

// One that may be stored keeps its place until the messages are counted anew: whether
// it turns out to be there, or to be none, or is never known.
func TestPlacesOfUnknownOutcomes(t *testing.T) {
	for name, tt := range map[string]struct {
		fault func(n *node, leave func()) // sets it; leave ends the caller's wait
		want  clientv1.Reason
	}{
		"it is there": {fault: func(n *node, _ func()) { n.st.unsureOnce("PutScheduled", true) }},
		"it is refused then": {want: clientv1.Reason_REASON_NOT_MEMBER, fault: func(n *node, _ func()) {
			var calls atomic.Int32
			n.st.setFault(func(op string, _ bool) error {
				switch {
				case op != "PutScheduled":
					return nil
				case calls.Add(1) == 1:
					return store.ErrUnknownOutcome
				}
				return im.Errorf(clientv1.Reason_REASON_NOT_MEMBER, op, "")
			})
		}},
		"it is not known": {want: clientv1.Reason_REASON_UNAVAILABLE, fault: func(n *node, leave func()) {
			n.st.setFault(func(op string, after bool) error {
				if op == "PutScheduled" && after {
					leave()
					return store.ErrUnknownOutcome
				}
				return nil
			})
		}},
	} {
		t.Run(name, func(t *testing.T) {
			serve(t, func(t *testing.T, n *node) {
				ask := func(ctx context.Context) error {
					s := send("a")
					_, err := n.Schedule(ctx, &v1.ScheduleRequest{ConversationId: "g_1", UserId: "ann", RequestId: uuid.NewString(), Content: s.Content,
						BodyHash: s.BodyHash, SendAtMs: time.Now().Add(time.Hour).UnixMilli()})
					return err
				}
				n.st.agenda.open = scheduleTotal.In(nil) - 1
				ctx, leave := context.WithCancel(n.ctx)
				defer leave()
				tt.fault(n, leave)
				wantReason(t, "the last place", ask(ctx), tt.want)
				n.st.setFault(nil)
				wantReason(t, "one too many", ask(n.ctx), clientv1.Reason_REASON_RATE_LIMITED)
				time.Sleep(2 * time.Second) // then they are counted anew, and it is not there
				if err := ask(n.ctx); err != nil {
					t.Errorf("after a count: %v", err)
				}
			})
		})
	}
}

// Calls at the same time do not take more places than there are, also while the
// messages are counted, for the first time or again.
func TestSimultaneousSchedules(t *testing.T) {
	serve(t, func(t *testing.T, n *node) {
		n.st.agenda.open, n.st.agenda.slow = scheduleTotal.In(nil)-3, 10*time.Millisecond
		for round := range 2 {
			before := len(n.st.agenda.rows)
			results := make(chan error)
			for range 20 {
				go func() {
					s := send("a")
					_, err := n.Schedule(n.ctx, &v1.ScheduleRequest{ConversationId: "g_1", UserId: "ann", RequestId: uuid.NewString(), Content: s.Content,
						BodyHash: s.BodyHash, SendAtMs: time.Now().Add(time.Hour).UnixMilli()})
					results <- err
				}()
			}
			for range 20 {
				if err := <-results; err != nil {
					wantReason(t, "one too many", err, clientv1.Reason_REASON_RATE_LIMITED)
				}
			}
			if got := len(n.st.agenda.rows) - before; got != 3 {
				t.Errorf("round %d: %d were scheduled, there was room for 3", round, got)
			}
			time.Sleep(2 * time.Second) // then they are counted anew, and none of these is there
			if _, err := n.core.Load().scheduled.hold(n.ctx, n.st, 1<<30); err != nil {
				t.Fatal(err)
			}
			n.core.Load().scheduled.settle(false)
			time.Sleep(2 * time.Second)
		}
	})
}

// The same of announcements; and they come in pages.
func TestRepeatsOfAnnouncements(t *testing.T) {
	serve(t, func(t *testing.T, n *node) {
		id, until := uuid.Must(uuid.NewV7()).String(), time.Now().Add(time.Hour)
		ask := func(id, text string) (*v1.AnnounceResponse, error) {
			return n.dir.Announce(n.ctx, &v1.AnnounceRequest{RequestId: id, Text: text, ExpiresMs: until.UnixMilli()})
		}
		if _, err := ask(id, "a"); err != nil {
			t.Fatal(err)
		}
		if _, err := ask(uuid.NewString(), "b"); err != nil {
			t.Fatal(err)
		}
		time.Sleep(2 * time.Hour)
		again, err := ask(id, "a")
		if err != nil || !again.Duplicate || again.Announcement.Seq != 1 {
			t.Errorf("again: %v, %v", again, err)
		}
		_, err = ask(id, "c")
		wantReason(t, "another text", err, clientv1.Reason_REASON_ID_REUSED)
		_, err = ask(uuid.NewString(), "a")
		wantReason(t, "another request", err, clientv1.Reason_REASON_BAD_REQUEST)
		for before, want := range map[int64]int64{0: 2, 2: 1} {
			page, err := n.dir.ListAnnouncements(n.ctx, &v1.ListAnnouncementsRequest{BeforeSeq: before, Limit: 1})
			if err != nil || len(page.Announcements) != 1 || page.Announcements[0].Seq != want || !page.More {
				t.Errorf("before %d: %v, %v", before, page, err)
			}
		}
		if page, err := n.dir.ListAnnouncements(n.ctx, &v1.ListAnnouncementsRequest{BeforeSeq: 1, Limit: 1}); err != nil || len(page.Announcements) != 0 || page.More {
			t.Errorf("before the first: %v, %v", page, err)
		}
		_, err = n.dir.ListAnnouncements(n.ctx, &v1.ListAnnouncementsRequest{Limit: -1})
		wantReason(t, "a negative limit", err, clientv1.Reason_REASON_BAD_REQUEST)
	})
}

package scheduler

import (
	"errors"
	"fmt"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/imdhq/imd/pkg/im"
	"github.com/imdhq/imd/pkg/store"
	"github.com/imdhq/imd/sdk/go/gen/clientv1"
)

// Each batch is for one node and bounded, what is due of one conversation goes in
// order, and disabled senders go nowhere.
func TestBatchesOfScheduledMessages(t *testing.T) {
	var list []store.Scheduled
	for i := range 700 {
		list = append(list, store.Scheduled{ID: int64(i), Conversation: im.ConversationID(fmt.Sprint("g_", i%7)), Content: make([]byte, 100), Disabled: i == 5})
	}
	list[699].Content = make([]byte, dueBytes-50)
	s := &Scheduler{Deps: Deps{StateHome: func(conv string) im.NodeID { return im.NodeID(fmt.Sprint("n", int(conv[2]-'0')%2)) }}}
	at, last := map[int]int{}, map[im.ConversationID]int{}
	for n, batch := range s.dueBatches(list) {
		bytes, node := 0, s.StateHome(string(list[batch[0]].Conversation))
		for _, i := range batch {
			m := list[i]
			if _, twice := at[i]; twice || m.Disabled || s.StateHome(string(m.Conversation)) != node {
				t.Errorf("message %d in batch %d", i, n)
			}
			if l, ok := last[m.Conversation]; ok && l > i {
				t.Errorf("%d comes behind %d", i, l)
			}
			at[i], last[m.Conversation] = n, i
			bytes += len(m.Content)
		}
		if len(batch) > dueSends || bytes > dueBytes {
			t.Errorf("batch %d: %d messages, %d bytes", n, len(batch), bytes)
		}
	}
	if len(at) != 699 {
		t.Errorf("%d messages go", len(at))
	}
}

func TestWhatAnAnswerMeansForAScheduledMessage(t *testing.T) {
	now := time.UnixMilli(1_800_000_000_000)
	m := &store.Scheduled{ID: 7, Tries: 3}
	if d := settled(m, &clientv1.SendAck{Status: clientv1.Ack_ACK_OK, MessageId: 5, Seq: 6, Duplicate: true}, now); d != (store.ScheduledResult{ID: 7, State: store.ScheduledSent, MessageID: 5, Seq: 6, At: now}) {
		t.Errorf("stored: %+v", d)
	}
	if d := settled(m, &clientv1.SendAck{Status: clientv1.Ack_ACK_FAIL, Error: &clientv1.Error{Reason: "not_member"}}, now); d != (store.ScheduledResult{ID: 7, State: store.ScheduledDropped, Reason: clientv1.Reason_REASON_NOT_MEMBER, At: now}) {
		t.Errorf("refused: %+v", d)
	}
	for _, a := range []*clientv1.SendAck{nil, {Status: clientv1.Ack_ACK_RETRY, Error: &clientv1.Error{Reason: "busy"}}, {}} {
		if d := settled(m, a, now); d.State != store.ScheduledSending || d.Again.Sub(now) < dueAgain.Base/2 || d.Again.Sub(now) > 4*time.Second {
			t.Errorf("%v: %+v", a, d)
		}
	}
	if d := settled(m, &clientv1.SendAck{Status: clientv1.Ack_ACK_RETRY, Error: &clientv1.Error{RetryAfterMs: 20_000}}, now); d.Again.Sub(now) != 20*time.Second {
		t.Errorf("asked to wait: %+v", d)
	}
}

// Scheduled messages and announcements that ended long ago go, as many as there are,
// and the leader shows how many messages are open and since when the first is due.
func TestEndedScheduledMessagesGo(t *testing.T) {
	c := &counting{ended: 2*forgetMost + 7}
	running(t, c, func(s *Scheduler, _ *sole) {
		c.set(func(c *counting) {
			for i := range 3 {
				c.announced.list = append(c.announced.list, store.Announcement{Seq: int64(i + 1), Expires: time.Now().Add(forgetEvery + time.Duration(i-1)*time.Minute - announcementKept)})
			}
		})
		time.Sleep(forgetEvery + time.Second) // the first round may have come before them
		synctest.Wait()
		if left := c.ended; left != 0 {
			t.Errorf("%d are left", left)
		}
		if list := c.announced.list; len(list) != 2 || list[0].Seq != 2 {
			t.Errorf("announcements are left: %+v", list)
		}
		if open, over := testutil.ToFloat64(s.schedule.open), testutil.ToFloat64(s.schedule.over); open != 3 || over != 60 {
			t.Errorf("%v are open, the first for %v s", open, over)
		}
	})
}

// Counting what is open takes a small share of the time, and is done every minute.
func TestOpenScheduledMessagesAreCounted(t *testing.T) {
	for took, want := range map[time.Duration]int64{time.Millisecond: 60, time.Second: 12, 10 * time.Second: 10} {
		c := &counting{}
		c.slow.Store(int64(took))
		running(t, c, func(*Scheduler, *sole) {
			time.Sleep(10 * time.Minute)
			synctest.Wait()
			if n := c.counts.Load(); n < want || n > want+2 {
				t.Errorf("where counting takes %v: %d times in 10 minutes, want %d", took, n, want)
			}
		})
	}
}

// The first claim of a term, and the first one after an error, also takes what was
// claimed before: the answer may have been lost.
func TestClaimsWhoseAnswerIsLost(t *testing.T) {
	c := &counting{}
	running(t, c, func(*Scheduler, *sole) {
		during := func(what string, err error, want ...bool) {
			t.Helper()
			c.set(func(c *counting) { c.claims, c.claimErr = nil, err })
			time.Sleep(time.Duration(len(want)) * dueEvery)
			synctest.Wait()
			c.set(func(c *counting) {
				if !slices.Equal(c.claims, want) {
					t.Errorf("%s: claims of all %v, want %v", what, c.claims, want)
				}
			})
		}
		time.Sleep(dueEvery / 2) // between two rounds
		synctest.Wait()
		c.set(func(c *counting) {
			if !slices.Equal(c.claims, []bool{true}) {
				t.Errorf("the first claim: %v", c.claims)
			}
		})
		during("all is well", nil, false, false)
		during("answers are lost", errors.New("lost"), false, true, true)
		during("all is well again", nil, true, false, false)
	})
}

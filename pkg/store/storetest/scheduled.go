package storetest

import (
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/imdhq/imd/pkg/im"
	"github.com/imdhq/imd/pkg/store"
	"github.com/imdhq/imd/sdk/go/gen/clientv1"
)

// later is a message that is to be sent later.
func later(conv im.ConversationID, from, peer im.UserID, due time.Time) store.Scheduled {
	r := row(conv, from, fmt.Sprint("later ", counter.Load()))
	return store.Scheduled{
		ID: int64(mid()), RequestID: uuid(), ClientMessageID: r.ClientMessageID, Conversation: conv, Sender: from, Peer: peer,
		Content: r.Content, BodyHash: r.BodyHash, Due: due, Created: due.Add(-time.Hour),
	}
}

func (k *kit) schedule(m store.Scheduled) store.Scheduled {
	k.Helper()
	out, before, err := k.s.PutScheduled(k.ctx(), m, 100)
	if err != nil || before {
		k.Fatalf("schedule: %v, before: %v", err, before)
	}
	return out
}

func (k *kit) scheduled(q store.ScheduledQuery) []store.Scheduled {
	k.Helper()
	q.Limit = max(q.Limit, 1)
	out, err := k.s.Scheduled(k.ctx(), q)
	k.must(err)
	return out
}

// noSchedule schedules what must be refused.
func (k *kit) noSchedule(want im.Reason, m store.Scheduled, most int) {
	k.Helper()
	if _, _, err := k.s.PutScheduled(k.ctx(), m, most); im.ReasonOf(err) != want {
		k.Errorf("scheduled: %v, want %s", err, im.ReasonName(want))
	}
}

func scheduledPut(k *kit) {
	at := time.UnixMilli(1_800_000_000_123)
	g := k.group("anna", "bob")
	first := k.schedule(later(g, "anna", "", at))
	again, before, err := k.s.PutScheduled(k.ctx(), func() store.Scheduled { m := first; m.ID = 99; return m }(), 100)
	if k.must(err); !before || again.ID != first.ID {
		k.Errorf("the same request: %+v, %v", again, before)
	}
	other := first
	other.BodyHash[0]++
	k.noSchedule(clientv1.Reason_REASON_ID_REUSED, other, 100)
	k.noSchedule(clientv1.Reason_REASON_NOT_MEMBER, later(g, "eve", "", at), 100)
	k.noSchedule(clientv1.Reason_REASON_NOT_MEMBER, later("g_none", "anna", "", at), 100)
	k.noSchedule(clientv1.Reason_REASON_BAD_REQUEST, later(direct("anna", "bob"), "anna", "cid", at), 100)
	k.noSchedule(clientv1.Reason_REASON_RATE_LIMITED, later(g, "anna", "", at), 1)
	k.must(k.s.SetBlock(k.ctx(), "cid", "anna", true))
	k.noSchedule(clientv1.Reason_REASON_FORBIDDEN, later(direct("anna", "cid"), "anna", "cid", at), 100)
	k.sent(to("bob", "anna", "hi"))
	k.must(k.s.SetBlock(k.ctx(), "bob", "anna", true))
	k.noSchedule(clientv1.Reason_REASON_FORBIDDEN, later(direct("anna", "bob"), "anna", "bob", at), 100)
	k.schedule(later(direct("anna", "new"), "anna", "new", at.Add(-time.Minute)))
	k.schedule(later(g, "", "", at))
	k.change(store.Change{Conversation: g, RequestID: uuid(), MessageID: mid(), Close: true})
	k.noSchedule(clientv1.Reason_REASON_CONVERSATION_CLOSED, later(g, "anna", "", at), 100)
	k.noSchedule(clientv1.Reason_REASON_CONVERSATION_CLOSED, later(g, "", "", at), 100)

	k.s = k.d.Reopen(k.T, k.s)
	mine := k.scheduled(store.ScheduledQuery{User: "anna", Limit: 10})
	if len(mine) != 2 || mine[1].ID != first.ID || !mine[1].Due.Equal(at) || mine[1].State != store.ScheduledWaiting || !mine[1].Ended.IsZero() ||
		mine[1].BodyHash != first.BodyHash || string(mine[1].Content) != string(first.Content) || mine[1].ClientMessageID != first.ClientMessageID || mine[0].Peer != "new" {
		k.Errorf("anna's: %+v", mine)
	}
	if rest := k.scheduled(store.ScheduledQuery{User: "anna", After: mine[0].Due, ID: mine[0].ID, Limit: 10}); len(rest) != 1 || rest[0].ID != first.ID {
		k.Errorf("behind the first: %+v", rest)
	}
	if all := k.scheduled(store.ScheduledQuery{Limit: 10}); len(all) != 3 {
		k.Errorf("all: %+v", all)
	}
	n, err := k.s.ScheduledCounts(k.ctx())
	if k.must(err); n.Open != 3 || !n.Next.Equal(at.Add(-time.Minute)) {
		k.Errorf("counts: %+v", n)
	}
}

func scheduledCancel(k *kit) {
	at := time.UnixMilli(1_800_000_000_123)
	lead := k.fence("scheduler", 1).Proof()
	g := k.group("anna", "bob")
	m := k.schedule(later(g, "anna", "", at))
	if _, err := k.s.CancelScheduled(k.ctx(), m.ID, "bob"); !errors.Is(err, store.ErrNotFound) {
		k.Errorf("a stranger cancels: %v", err)
	}
	for range 2 {
		got, err := k.s.CancelScheduled(k.ctx(), m.ID, "anna")
		if k.must(err); got.State != store.ScheduledCancelled || got.Ended.IsZero() {
			k.Errorf("cancelled: %+v", got)
		}
	}
	claim := store.ScheduledClaim{Now: at, Until: at.Add(time.Minute), Limit: 10}
	if got, err := k.s.ClaimScheduled(k.ctx(), lead, claim); err != nil || len(got) != 0 {
		k.Errorf("claimed %+v, %v", got, err)
	}
	if list := k.scheduled(store.ScheduledQuery{User: "anna"}); len(list) != 0 {
		k.Errorf("open: %+v", list)
	}
	if list := k.scheduled(store.ScheduledQuery{User: "anna", Ended: true}); len(list) != 1 {
		k.Errorf("all: %+v", list)
	}
	// Of a cancel and a claim at the same moment exactly one has it.
	for range 20 {
		m := k.schedule(later(g, "", "", at))
		var wg sync.WaitGroup
		var got store.Scheduled
		var mine []store.Scheduled
		var cerr, err error
		wg.Go(func() { got, cerr = k.s.CancelScheduled(k.ctx(), m.ID, "") })
		wg.Go(func() { mine, err = k.s.ClaimScheduled(k.ctx(), lead, claim) })
		wg.Wait()
		k.must(errors.Join(cerr, err))
		if (got.State == store.ScheduledCancelled) == (len(mine) == 1) {
			k.Fatalf("cancelled: %+v, claimed: %+v", got, mine)
		}
	}
}

func scheduledClaims(k *kit) {
	at := time.UnixMilli(1_800_000_000_123)
	old := k.fence("scheduler", 1).Proof()
	g := k.group("anna", "bob")
	a, b := k.schedule(later(g, "anna", "", at)), k.schedule(later(g, "bob", "", at.Add(-time.Second)))
	c := k.schedule(later(g, "", "", at.Add(time.Second)))
	k.must(k.s.SetDisabled(k.ctx(), "bob", true))
	claim := func(p store.Proof, now time.Time, first bool, want ...int64) {
		k.Helper()
		got, err := k.s.ClaimScheduled(k.ctx(), p, store.ScheduledClaim{Now: now, Until: now.Add(time.Minute), Limit: 10, First: first})
		k.must(err)
		var ids []int64
		for _, m := range got {
			if ids = append(ids, m.ID); m.Disabled != (m.Sender == "bob") || m.State != store.ScheduledSending {
				k.Errorf("claimed: %+v", m)
			}
		}
		if fmt.Sprint(ids) != fmt.Sprint(want) {
			k.Errorf("claimed %v, want %v", ids, want)
		}
	}
	claim(old, at, true, b.ID, a.ID)
	claim(old, at, false)
	claim(old, at, true, b.ID, a.ID) // as if the answer had not come
	claim(old, at, false)
	k.must(k.s.SettleScheduled(k.ctx(), old, []store.ScheduledResult{
		{ID: b.ID, State: store.ScheduledDropped, Reason: clientv1.Reason_REASON_FORBIDDEN, At: at},
		{ID: a.ID, State: store.ScheduledSending, Again: at.Add(time.Second / 2)},
		{ID: c.ID, State: store.ScheduledSent, At: at}, // nobody has claimed it
	}))
	claim(old, at, true) // a pause is kept
	claim(old, at.Add(time.Second/2), false, a.ID)
	lead := k.fence("scheduler", 2).Proof()
	if _, err := k.s.ClaimScheduled(k.ctx(), old, store.ScheduledClaim{Now: at, Until: at, Limit: 1}); !errors.Is(err, store.ErrFenced) {
		k.Errorf("a leader that was followed claims: %v", err)
	}
	if err := k.s.SettleScheduled(k.ctx(), old, []store.ScheduledResult{{ID: a.ID, State: store.ScheduledSent}}); !errors.Is(err, store.ErrFenced) {
		k.Errorf("a leader that was followed settles: %v", err)
	}
	if _, err := k.s.TrimScheduled(k.ctx(), old, at.Add(time.Hour), 10); !errors.Is(err, store.ErrFenced) {
		k.Errorf("a leader that was followed trims: %v", err)
	}
	claim(lead, at.Add(time.Second/2), true, a.ID) // what the former one has begun comes at once
	claim(lead, at.Add(time.Second), false, c.ID)
	if got, err := k.s.CancelScheduled(k.ctx(), a.ID, "anna"); err != nil || got.State != store.ScheduledSending || got.Tries != 1 {
		k.Errorf("cancelled while it is sent: %+v, %v", got, err)
	}
	k.must(k.s.SettleScheduled(k.ctx(), lead, []store.ScheduledResult{{ID: a.ID, State: store.ScheduledSent, MessageID: 77, Seq: 5, At: at}}))
	one := k.scheduled(store.ScheduledQuery{Request: a.RequestID, User: "anna"})
	if len(one) != 1 || one[0].State != store.ScheduledSent || one[0].MessageID != 77 || one[0].Seq != 5 || !one[0].Ended.Equal(at) {
		k.Errorf("sent: %+v", one)
	}
	if none := k.scheduled(store.ScheduledQuery{Request: a.RequestID, User: "bob"}); len(none) != 0 {
		k.Errorf("the request of another user: %+v", none)
	}
	one = k.scheduled(store.ScheduledQuery{Request: b.RequestID, User: "bob"})
	if len(one) != 1 || one[0].State != store.ScheduledDropped || one[0].Reason != clientv1.Reason_REASON_FORBIDDEN {
		k.Errorf("dropped: %+v", one)
	}
	n, err := k.s.TrimScheduled(k.ctx(), lead, at.Add(time.Second), 1)
	if k.must(err); n != 1 {
		k.Errorf("%d rows went", n)
	}
	if n, err = k.s.TrimScheduled(k.ctx(), lead, at.Add(time.Second), 10); err != nil || n != 1 {
		k.Errorf("%d rows went, %v", n, err)
	}
	if all := k.scheduled(store.ScheduledQuery{Ended: true, Limit: 10}); len(all) != 1 || all[0].ID != c.ID {
		k.Errorf("left: %+v", all)
	}
}

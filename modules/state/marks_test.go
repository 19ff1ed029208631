package state

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/zap"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/imdhq/imd/pkg/im"
	"github.com/imdhq/imd/pkg/settings"
	"github.com/imdhq/imd/pkg/store"
	v1 "github.com/imdhq/imd/proto/gen/internalv1"
	"github.com/imdhq/imd/sdk/go/gen/clientv1"
)

func TestDeliveredMovesOnlyOverWhatIsDelivered(t *testing.T) {
	serve(t, func(t *testing.T, n *node) {
		n.fill(t, "g_1", 10, 10)
		for _, tt := range []struct{ after, seq, want int64 }{
			{0, 3, 3},
			{4, 6, 3}, // 4 is not there yet
			{2, 5, 5},
			{0, 4, 5}, // never back
			{5, 5, 5},
			{5, 99, 10}, // never past the head
			{0, 0, 10},  // a question
		} {
			if got := n.mark(t, "bob", tt.after, tt.seq).Receipt.GetDeliveredSeq(); got != tt.want {
				t.Errorf("(%d, %d]: delivered %d, want %d", tt.after, tt.seq, got, tt.want)
			}
		}
	})
}

func TestDeliveredIsWrittenAtMostOnceInFiveSeconds(t *testing.T) {
	serve(t, func(t *testing.T, n *node) {
		n.fill(t, "g_1", 100, 10)
		for i := range int64(100) {
			n.mark(t, "bob", i, i+1)
			time.Sleep(200 * time.Millisecond) // 20 s
		}
		time.Sleep(saveEvery + saveTick)
		synctest.Wait()
		if got := len(n.st.positions); got < 3 || got > 6 {
			t.Errorf("%d writes in 20 s", got)
		}
		if got := n.st.convs["g_1"].members["bob"].Delivered; got != 100 {
			t.Errorf("saved %d", got)
		}
		if got := n.st.count("Position"); got != 1 {
			t.Errorf("%d reads: heads committed here are known", got)
		}
	})
}

func TestDeliveredSurvivesAStoreThatIsAway(t *testing.T) {
	serve(t, func(t *testing.T, n *node) {
		n.fill(t, "g_1", 1, 10)
		n.mark(t, "bob", 0, 1)
		n.st.setFault(func(op string, after bool) error {
			if op == "SavePositions" && after {
				return store.ErrUnknownOutcome
			}
			return nil
		})
		time.Sleep(3*saveEvery + saveEvery/2) // between two saves
		n.st.setFault(nil)
		n.st.mu.Lock()
		n.st.convs["g_1"].members["bob"].Delivered = 0
		n.st.mu.Unlock()
		time.Sleep(saveEvery)
		synctest.Wait()
		if got := n.st.convs["g_1"].members["bob"].Delivered; got != 1 {
			t.Errorf("saved %d", got)
		}
	})
}

func TestMarkChecks(t *testing.T) {
	serve(t, func(t *testing.T, n *node) {
		n.fill(t, "g_1", 1, 10)
		res, err := n.calls.Mark(n.ctx, &v1.MarkRequest{Marks: []*v1.Mark{
			{UserId: "bob", Seq: 1}, {ConversationId: "g_1", Seq: 1}, {ConversationId: "g_1", UserId: "bob", Seq: -1},
			{ConversationId: "g_1", UserId: "eve", Seq: 1}, {ConversationId: "g_1", UserId: "eve", Seq: 1, Read: true},
			{ConversationId: "g_1", UserId: "bob", Seq: 1},
		}})
		if err != nil {
			t.Fatal(err)
		}
		for i, want := range []string{"bad_request", "invalid_id", "bad_request", "not_member", "not_member", ""} {
			if got := res.Results[i].GetError().GetReason(); got != want {
				t.Errorf("mark %d: %q, want %q", i, got, want)
			}
		}
		if _, err := n.calls.Mark(n.ctx, &v1.MarkRequest{Marks: make([]*v1.Mark, maxMarks+1)}); im.ReasonOf(err) != clientv1.Reason_REASON_BAD_REQUEST {
			t.Error(err)
		}
	})
}

func TestReadIsWrittenAndToldToTheUsersOtherSessions(t *testing.T) {
	serve(t, func(t *testing.T, n *node) {
		n.fill(t, "g_1", 5, 10)
		n.out.take()
		read := func(seq int64) *clientv1.Receipt {
			res, err := n.calls.Mark(n.ctx, &v1.MarkRequest{Marks: []*v1.Mark{{ConversationId: "g_1", UserId: "bob", Seq: seq, Read: true, SessionId: "s9"}}})
			if err != nil {
				t.Fatal(err)
			}
			return res.Results[0].Receipt
		}
		if r := read(3); r.ReadSeq != 3 || r.DeliveredSeq != 3 || r.UnreadCount == nil || *r.UnreadCount != 2 {
			t.Fatalf("receipt %v", r)
		}
		items := n.out.take()
		if len(items) != 2 {
			t.Fatalf("items %v", items)
		}
		own, other := items[0], items[1]
		if !slices.Equal(own.OnlyUserIds, []string{"bob"}) || own.ExcludeSession != "s9" || own.GetReceipt().GetUnreadCount() != 2 {
			t.Errorf("own %v", own)
		}
		if !slices.Equal(other.OnlyUserIds, []string{"alice"}) || other.GetReceipt().ReadSeq != 3 || other.GetReceipt().UnreadCount != nil {
			t.Errorf("other %v", other)
		}
		if r := read(1); r.ReadSeq != 3 || *r.UnreadCount != 2 {
			t.Errorf("it went back: %v", r)
		}
		if r := n.mark(t, "bob", 3, 4).Receipt; r.DeliveredSeq != 4 || r.ReadSeq != 3 {
			t.Errorf("delivered on top: %v", r)
		}
		n.st.setFault(func(string, bool) error { return im.Errorf(clientv1.Reason_REASON_BUSY, "mem", "") })
		res, err := n.calls.Mark(n.ctx, &v1.MarkRequest{Marks: []*v1.Mark{{ConversationId: "g_1", UserId: "bob", Seq: 5, Read: true}}})
		if err != nil || res.Results[0].Error.GetReason() != "busy" {
			t.Error(res, err)
		}
	})
}

func TestReceiptsLeaveAtMostOnceASecondAndTheNewestWins(t *testing.T) {
	serve(t, func(t *testing.T, n *node) {
		n.fill(t, "g_1", 50, 10)
		n.out.take()
		for i := range int64(50) {
			n.mark(t, "bob", i, i+1)
			time.Sleep(50 * time.Millisecond) // 2.5 s
		}
		time.Sleep(2 * receiptEvery)
		items := n.out.take()
		if len(items) != 4 {
			t.Fatalf("%d receipts in 2.5 s, want 4", len(items))
		}
		if items[0].GetReceipt().DeliveredSeq != 1 || items[3].GetReceipt().DeliveredSeq != 50 {
			t.Errorf("first %v, last %v", items[0], items[3])
		}
		c := n.State.core.Load()
		c.receipts.mu.Lock()
		defer c.receipts.mu.Unlock()
		if len(c.receipts.states) != 0 || len(c.receipts.queue) != 0 {
			t.Errorf("%d states are left", len(c.receipts.states))
		}
	})
}

func TestReceiptsAreForDirectConversationsAndSmallGroups(t *testing.T) {
	for members, want := range map[int]int{2: 1, 100: 1, 101: 0} {
		t.Run(fmt.Sprint(members, " members"), func(t *testing.T) {
			serve(t, func(t *testing.T, n *node) {
				users := []im.UserID{"alice", "bob"}
				for i := 2; i < members; i++ {
					users = append(users, im.UserID(fmt.Sprint("u", i)))
				}
				n.st.group("g_1", users...)
				n.submit(t, run("g_1", "a"))
				n.out.take()
				n.mark(t, "bob", 0, 1)
				items := n.out.take()
				if len(items) != want {
					t.Fatalf("%d receipts, want %d", len(items), want)
				}
				if want == 1 && (len(items[0].OnlyUserIds) != members-1 || slices.Contains(items[0].OnlyUserIds, "bob")) {
					t.Errorf("to %v", items[0].OnlyUserIds)
				}
			})
		})
	}
}

func TestTheSizeOfGroupsWithReceiptsIsASetting(t *testing.T) {
	reg, err := settings.NewRegistry(nil, declared)
	if err != nil {
		t.Fatal(err)
	}
	live := settings.NewLive(reg, settings.Identity{}, zap.NewNop())
	members := &memberList{n: 150}
	r := newReceipts(members, func() int { return receiptMembers.In(live.Current()) }, func(...fanoutItem) {})
	at := store.Position{Kind: clientv1.ConversationKind_CONVERSATION_KIND_GROUP, Members: 150}
	r.moved(memberKey{"g_1", "u1"}, at)
	if len(r.states) != 0 {
		t.Error("a receipt waits in a group above the default")
	}
	live.Feed(settings.Read{Revision: 2, Records: []settings.Record{{Section: "receipt", Version: 1, Mod: 2, Raw: []byte(`{"all":{"receipt.max_members":"200"}}`)}}})
	r.moved(memberKey{"g_1", "u1"}, at)
	if len(r.states) != 1 {
		t.Error("no receipt waits although the group is small enough now")
	}
	if others, ok := r.others(t.Context(), memberKey{"g_1", "u1"}); !ok || len(others) != 149 {
		t.Errorf("%d others, %v", len(others), ok)
	}
}

// memberList lists n members u0, u1, ... of any group.
type memberList struct{ n int }

func (d *memberList) Members(_ context.Context, _ im.ConversationID, _, _ im.UserID, limit int) (p store.MemberPage, err error) {
	for i := range min(d.n, limit) {
		p.Members = append(p.Members, store.Member{User: im.UserID(fmt.Sprint("u", i))})
	}
	return p, nil
}

// Places that must make room are written, not lost.
func TestPositionsMakeRoom(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMemStore()
		p := newPositions(m, newMetrics(prometheus.NewRegistry(), func() bool { return false }), zap.NewNop())
		users := make([]im.UserID, maxPositions+100)
		for i := range users {
			users[i] = im.UserID(fmt.Sprint("u", i))
		}
		c := m.group("g_1", users...)
		m.put("g_1", c, im.Entry{})
		for _, u := range users {
			k := memberKey{"g_1", u}
			p.merge(k, store.Position{Conversation: "g_1", User: u, Head: 1, Kind: c.kind, Members: 2})
			if _, moved, err := p.delivered(t.Context(), k, 0, 1); !moved || err != nil {
				t.Fatal(moved, err)
			}
		}
		if p.lru.Len() != maxPositions || p.spill != 100 {
			t.Fatalf("%d kept, %d to be written", p.lru.Len(), p.spill)
		}
		if at, moved, err := p.delivered(t.Context(), memberKey{"g_1", "u0"}, 0, 1); at.Delivered != 1 || moved || err != nil {
			t.Fatal("a place that waits to be written is forgotten")
		}
		if got := len(p.due(time.Now(), false)); got != 100 && got != 101 {
			t.Fatalf("%d due at once", got)
		}
		p.saveSome(t, 200)
		if p.spill != 0 {
			t.Fatalf("%d still to be written", p.spill)
		}
	})
}

// saveSome writes what is due now.
func (p *positions) saveSome(t *testing.T, limit int) {
	t.Helper()
	due := p.due(time.Now(), false)
	if len(due) > limit {
		t.Fatalf("%d due", len(due))
	}
	if err := p.save(t.Context(), due); err != nil {
		t.Fatal(err)
	}
}

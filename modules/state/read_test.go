package state

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/imdhq/imd/pkg/im"
	"github.com/imdhq/imd/pkg/store"
	v1 "github.com/imdhq/imd/proto/gen/internalv1"
	"github.com/imdhq/imd/sdk/go/gen/clientv1"
	"github.com/imdhq/imd/sdk/go/protocol"
)

// fill sends messages of some size into a group of alice and bob.
func (n *node) fill(t *testing.T, conv string, count, size int) {
	t.Helper()
	if n.st.convs[im.ConversationID(conv)] == nil {
		n.st.group(im.ConversationID(conv), "alice", "bob")
	}
	for i := range count {
		r := run(conv, fmt.Sprint(conv, i))
		r.Sends[0].Content = text(strings.Repeat("\"", size))
		if got := n.submit(t, r); !strings.HasPrefix(got[0], "ok") {
			t.Fatal(got)
		}
	}
}

func (n *node) sync(t *testing.T, req *v1.SyncRequest) *clientv1.SyncResult {
	t.Helper()
	req.UserId = "bob"
	res, err := n.calls.Sync(n.ctx, req)
	if err != nil {
		t.Fatal(err)
	}
	return res.Result
}

func seqs(p *clientv1.Page) (s []int64) {
	for _, e := range p.GetEntries() {
		s = append(s, e.Seq)
	}
	return s
}

func TestSyncGivesPagesAfterTheCursorOrTheNewest(t *testing.T) {
	serve(t, func(t *testing.T, n *node) {
		n.fill(t, "g_1", 10, 10)
		n.fill(t, "g_2", 10, 10)
		res := n.sync(t, &v1.SyncRequest{PageLimit: 3, Cursors: []*clientv1.Cursor{{ConversationId: "g_1", Have: 5}}})
		if !res.Full || res.More || res.DataEpoch != "e1" || len(res.Conversations) != 2 {
			t.Fatalf("result %v", res)
		}
		after, newest := res.Conversations[0].Page, res.Conversations[1].Page
		if !slices.Equal(seqs(after), []int64{6, 7, 8}) || after.CompleteFrom != 6 || after.CompleteTo != 8 || after.End {
			t.Errorf("after the cursor: %v", after)
		}
		if !slices.Equal(seqs(newest), []int64{8, 9, 10}) || newest.CompleteFrom != 8 || newest.CompleteTo != 10 {
			t.Errorf("newest: %v", newest)
		}
		if n.st.count("Sync") != 1 || n.st.count("History") != 0 {
			t.Errorf("%d times sync and %d times history of the store", n.st.count("Sync"), n.st.count("History"))
		}
		next := n.sync(t, &v1.SyncRequest{SyncToken: res.SyncToken})
		if next.Full || len(next.Conversations) != 0 {
			t.Errorf("nothing changed: %v", next)
		}
		foreign := n.sync(t, &v1.SyncRequest{
			SyncToken: strings.Replace(res.SyncToken, "e1", "e0", 1), PageLimit: 3,
			Cursors: []*clientv1.Cursor{{ConversationId: "g_1", Have: 5}},
		})
		if !foreign.Full || !slices.Equal(seqs(foreign.Conversations[0].Page), []int64{8, 9, 10}) {
			t.Errorf("a cursor of another history was used: %v", foreign)
		}
	})
}

// Many syncs take one call to the store; each has its own answer.
func TestSyncMany(t *testing.T) {
	serve(t, func(t *testing.T, n *node) {
		n.fill(t, "g_1", 3, 10)
		one := n.sync(t, &v1.SyncRequest{PageLimit: 3})
		const user = "bob"
		res, err := n.calls.SyncMany(n.ctx, &v1.SyncManyRequest{Requests: []*v1.SyncRequest{
			{UserId: user, PageLimit: 3}, {UserId: "?"}, {UserId: "nobody"}, {UserId: user, SyncToken: one.SyncToken},
		}})
		if err != nil || len(res.Answers) != 4 {
			t.Fatal(res, err)
		}
		if got := res.Answers[0].Result; len(got.GetConversations()) != 1 || got.SyncToken != one.SyncToken {
			t.Errorf("alone %v, among others %v", one, got)
		}
		if res.Answers[1].Error.GetReason() != "invalid_id" || res.Answers[1].Result != nil {
			t.Errorf("a bad request: %v", res.Answers[1])
		}
		for _, i := range []int{2, 3} {
			if got := res.Answers[i].Result; got == nil || len(got.Conversations) != 0 || got.DataEpoch != "e1" {
				t.Errorf("answer %d: %v", i, res.Answers[i])
			}
		}
		if _, err := n.calls.SyncMany(n.ctx, &v1.SyncManyRequest{Requests: make([]*v1.SyncRequest, store.MaxSyncs+1)}); im.ReasonOf(err) != clientv1.Reason_REASON_BAD_REQUEST {
			t.Error(err)
		}
	})
}

// What several in one call have missed in a group is made once, and each is told it.
func TestEntriesForManyAreMadeOnce(t *testing.T) {
	group := &store.ConversationState{Conversation: "g_1", Kind: clientv1.ConversationKind_CONVERSATION_KIND_GROUP}
	direct := &store.ConversationState{Conversation: "d_1", Kind: clientv1.ConversationKind_CONVERSATION_KIND_DIRECT}
	one, other := &im.Entry{Seq: 1, MessageID: 11}, &im.Entry{Seq: 2, MessageID: 12}
	made := make(alike)
	if a, b := made.of(group)(one), made.of(group)(one); a != b || a.MessageId != 11 {
		t.Errorf("made twice: %v and %v", a, b)
	}
	if w := made.of(group)(other); w.MessageId != 12 {
		t.Errorf("another entry: %v", w)
	}
	if a, b := made.of(direct)(one), made.of(direct)(one); a == b || a.MessageId != 11 || len(made) != 2 {
		t.Errorf("a direct conversation's are kept: %v", made)
	}
	if w := alike(nil).of(group)(one); w.MessageId != 11 {
		t.Errorf("without a place for it: %v", w)
	}
}

func TestSyncStaysWithinItsSize(t *testing.T) {
	for _, json := range []bool{false, true} {
		t.Run(fmt.Sprint("json ", json), func(t *testing.T) {
			serve(t, func(t *testing.T, n *node) {
				for i := range 30 {
					n.fill(t, fmt.Sprint("g_", i), 4, 300)
				}
				enc := protocol.Proto
				if json {
					enc = protocol.JSON
				}
				seen, token := map[string]int{}, ""
				for round := 0; ; round++ {
					res := n.sync(t, &v1.SyncRequest{SyncToken: token, PageLimit: 100, MaxBytes: 8 << 10, Json: json})
					if size := protocol.Size(enc, res); size > 8<<10 {
						t.Fatalf("%d bytes", size)
					}
					if len(res.Conversations) == 0 {
						t.Fatal("an empty page")
					}
					for _, c := range res.Conversations {
						seen[c.ConversationId]++
					}
					if token = res.SyncToken; !res.More {
						break
					}
					if round > 40 {
						t.Fatal("no end")
					}
				}
				if len(seen) != 30 {
					t.Errorf("%d conversations", len(seen))
				}
			})
		})
	}
}

func TestSyncChecks(t *testing.T) {
	cursors := make([]*clientv1.Cursor, protocol.MaxSyncCursors+1)
	for i := range cursors {
		cursors[i] = &clientv1.Cursor{ConversationId: fmt.Sprint("g_", i)}
	}
	for name, tt := range map[string]struct {
		req  *v1.SyncRequest
		want string
	}{
		"negative limit":  {&v1.SyncRequest{UserId: "bob", PageLimit: -1}, "bad_request"},
		"257 cursors":     {&v1.SyncRequest{UserId: "bob", Cursors: cursors}, "bad_request"},
		"256 cursors":     {&v1.SyncRequest{UserId: "bob", Cursors: cursors[1:], PageLimit: 1 << 30}, ""},
		"negative cursor": {&v1.SyncRequest{UserId: "bob", Cursors: []*clientv1.Cursor{{ConversationId: "g_1", Have: -1}}}, "bad_request"},
		"no user":         {&v1.SyncRequest{}, "invalid_id"},
	} {
		t.Run(name, func(t *testing.T) {
			if err := checkSync(tt.req); im.ReasonName(im.ReasonOf(err)) != tt.want && (err != nil || tt.want != "") {
				t.Errorf("got %v, want %q", err, tt.want)
			}
		})
	}
}

func (n *node) history(t *testing.T, h *clientv1.History, max int32, json bool) *clientv1.Page {
	t.Helper()
	h.ConversationId = "g_1"
	res, err := n.calls.History(n.ctx, &v1.HistoryRequest{UserId: "bob", History: h, MaxBytes: max, Json: json})
	if err != nil {
		t.Fatal(err)
	}
	return res.Result.Page
}

func TestHistoryGivesEachEntryOnce(t *testing.T) {
	serve(t, func(t *testing.T, n *node) {
		n.fill(t, "g_1", 60, 200)
		for _, limit := range []int32{0, 1, 7, 100, 1_000_000} {
			for _, json := range []bool{false, true} {
				var forward, backward []int64
				for h := (&clientv1.History{Limit: limit}); ; {
					p := n.history(t, h, 4<<10, json)
					forward = append(forward, seqs(p)...)
					if h.AfterSeq = p.CompleteTo; p.End {
						break
					}
				}
				for h := (&clientv1.History{Limit: limit, Backward: true}); ; {
					p := n.history(t, h, 4<<10, json)
					backward = append(seqs(p), backward...)
					if h.BeforeSeq = p.CompleteFrom; p.End {
						break
					}
				}
				if len(forward) != 60 || !slices.IsSorted(forward) || !slices.Equal(forward, backward) {
					t.Fatalf("limit %d: forward %v, backward %v", limit, forward, backward)
				}
			}
		}
	})
}

func TestHistoryHasAtLeastOneEntryHoweverLarge(t *testing.T) {
	serve(t, func(t *testing.T, n *node) {
		n.fill(t, "g_1", 3, 16000)
		p := n.history(t, &clientv1.History{}, 2000, true)
		if !slices.Equal(seqs(p), []int64{1}) || p.CompleteTo != 1 || p.End {
			t.Fatalf("page %v to %d", seqs(p), p.CompleteTo)
		}
	})
}

func TestHistoryChecks(t *testing.T) {
	serve(t, func(t *testing.T, n *node) {
		for _, h := range []*clientv1.History{nil, {}, {ConversationId: "g_1", Limit: -1}, {ConversationId: "g_1", AfterSeq: -1}, {ConversationId: "g_1", BeforeSeq: -1}} {
			if _, err := n.calls.History(n.ctx, &v1.HistoryRequest{UserId: "bob", History: h}); im.ReasonOf(err) != clientv1.Reason_REASON_BAD_REQUEST {
				t.Errorf("%v: %v", h, err)
			}
		}
		_, err := n.calls.History(n.ctx, &v1.HistoryRequest{UserId: "bob", History: &clientv1.History{ConversationId: "g_none"}})
		if im.ReasonOf(err) != clientv1.Reason_REASON_NOT_MEMBER {
			t.Error(err)
		}
		n.st.setFault(func(string, bool) error { return fmt.Errorf("disk") })
		_, err = n.calls.History(n.ctx, &v1.HistoryRequest{UserId: "bob", History: &clientv1.History{ConversationId: "g_1"}})
		if im.ReasonOf(err) != clientv1.Reason_REASON_UNAVAILABLE {
			t.Error(err)
		}
	})
}

func TestHeadsMembersAndClearHistory(t *testing.T) {
	serve(t, func(t *testing.T, n *node) {
		heads, err := n.calls.Heads(n.ctx, &v1.HeadsRequest{UserIds: []string{"bob"}, Version: "v"})
		if err != nil || heads.Version != "v+" || heads.DataEpoch != "e1" || heads.Heads[0].Seq != 4 {
			t.Error(heads, err)
		}
		if _, err = n.calls.Heads(n.ctx, &v1.HeadsRequest{UserIds: make([]string, 1001)}); im.ReasonOf(err) != clientv1.Reason_REASON_BAD_REQUEST {
			t.Error(err)
		}
		n.fill(t, "g_1", 2, 10)
		n.mark(t, "bob", 0, 2)
		members, err := n.calls.Members(n.ctx, &v1.MembersRequest{ConversationId: "g_1", UserId: "bob"})
		if err != nil || members.MemberCount != 2 || members.Members[1].DeliveredSeq != 2 {
			t.Error(members, err)
		}
		if _, err = n.calls.Members(n.ctx, &v1.MembersRequest{ConversationId: "g_1", Limit: -1}); im.ReasonOf(err) != clientv1.Reason_REASON_BAD_REQUEST {
			t.Error(err)
		}
		left := 2
		n.st.setFault(func(op string, after bool) error {
			if op != "ClearHistory" {
				return nil
			}
			if left--; left >= 0 {
				return store.ErrUnknownOutcome
			}
			return nil
		})
		cleared, err := n.calls.ClearHistory(n.ctx, &v1.ClearHistoryRequest{ConversationId: "g_1", UserId: "bob", UpToSeq: 2})
		if err != nil || cleared.Start != 2 {
			t.Error(cleared, err)
		}
		if _, err = n.calls.ClearHistory(n.ctx, &v1.ClearHistoryRequest{ConversationId: "g_1", UserId: "bob", UpToSeq: -2}); im.ReasonOf(err) != clientv1.Reason_REASON_BAD_REQUEST {
			t.Error(err)
		}
	})
}

func TestSyncShowsWhatThePeerHasReceivedAtOnce(t *testing.T) {
	serve(t, func(t *testing.T, n *node) {
		c := n.st.group("d_1", "alice", "bob")
		c.kind = clientv1.ConversationKind_CONVERSATION_KIND_DIRECT
		n.submit(t, run("d_1", "a"))
		res, err := n.calls.Mark(n.ctx, &v1.MarkRequest{Marks: []*v1.Mark{{ConversationId: "d_1", UserId: "alice", Seq: 1}}})
		if err != nil || res.Results[0].Receipt.DeliveredSeq != 1 {
			t.Fatal(res, err)
		}
		if got := n.sync(t, &v1.SyncRequest{}).Conversations[0].Receipts[0]; got.UserId != "alice" || got.DeliveredSeq != 1 {
			t.Errorf("receipt %v", got)
		}
	})
}

func TestWireEntryLeavesOutWhatIsNotForClients(t *testing.T) {
	change, _ := proto.Marshal(&clientv1.ConversationChange{Name: proto.String("n")})
	e := im.WireEntry(&im.Entry{Kind: clientv1.EntryKind_ENTRY_KIND_CONVERSATION_CHANGE, ClientMessageID: "request", Change: change, ServerTime: time.UnixMilli(5)})
	if e.ClientMessageId != "" || e.ConversationChange.GetName() != "n" || e.ServerTimeMs != 5 || e.Content != nil {
		t.Errorf("entry %v", e)
	}
	if e = im.WireEntry(&im.Entry{Kind: clientv1.EntryKind_ENTRY_KIND_MESSAGE, Seq: 3, Content: []byte{0xff}}); e.Content != nil || e.Seq != 3 {
		t.Errorf("damaged: %v", e)
	}
}

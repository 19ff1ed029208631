package timeline

import (
	"slices"
	"testing"

	"github.com/imdhq/imd/sdk/go/gen/clientv1"
)

func entry(seq, prev int64, sender, id string) *clientv1.Entry {
	return &clientv1.Entry{Seq: seq, PrevSeq: prev, Kind: clientv1.EntryKind_ENTRY_KIND_MESSAGE, Sender: sender, ClientMessageId: id, Countable: true}
}

func seqs(t *Timeline) []int64 {
	var s []int64
	for _, it := range t.Items() {
		s = append(s, it.Entry.Seq)
	}
	return s
}

// The state that answers the first sync may have been read before the head.
func TestAHeadBeforeTheStateIsNotForgotten(t *testing.T) {
	tl := New("alice", 0)
	tl.Connected()
	if fx := tl.Head(0, 7); !fx.Sync {
		t.Error("an unknown conversation does not ask for a sync")
	}
	tl.State(1, NoCursor, &clientv1.ConversationState{HeadSeq: 1, Page: &clientv1.Page{
		Entries: []*clientv1.Entry{entry(1, 0, "bob", "b1")}, CompleteFrom: 1, CompleteTo: 1, End: true,
	}})
	if fx := tl.Synced(2); fx.History == nil || fx.History.After != 1 {
		t.Errorf("asks for %+v, want what follows 1", fx.History)
	}
}

// What was acknowledged, or came above a gap, was stored in the log that is
// void now; nobody will send it again.
func TestWhatWasStoredInAVoidLogDoesNotStayPending(t *testing.T) {
	tl := New("alice", 0)
	tl.State(0, NoCursor, &clientv1.ConversationState{})
	for _, id := range []string{"acked", "above a gap", "not stored"} {
		tl.Send(&clientv1.Entry{ClientMessageId: id})
	}
	tl.SendAck(1, &clientv1.SendAck{ClientMessageId: "acked", Status: clientv1.Ack_ACK_OK, Seq: 5, PrevSeq: 4})
	tl.Deliver(1, []*clientv1.Entry{entry(6, 5, "alice", "above a gap")})
	if n := len(tl.Items()); n != 3 {
		t.Fatalf("%d items wait, want 3", n)
	}
	tl.Resync()
	if items := tl.Items(); len(items) != 1 || items[0].Entry.ClientMessageId != "not stored" {
		t.Errorf("%+v is left, want what was not stored", items)
	}
}

// A member who was away and came back sees nothing below the new start; what
// lies between it and what is shown can still be loaded.
func TestAGapAboveARaisedStartCanBeLoaded(t *testing.T) {
	tl := New("alice", 0)
	tl.State(0, NoCursor, &clientv1.ConversationState{HeadSeq: 1})
	tl.Deliver(0, []*clientv1.Entry{entry(1, 0, "bob", "b1")})
	tl.Page(1, Request{Backward: true, Jump: true}, &clientv1.Page{
		Entries: []*clientv1.Entry{entry(7, 6, "bob", "b7")}, CompleteFrom: 7, CompleteTo: 7, End: false,
	})
	tl.State(2, 7, &clientv1.ConversationState{Start: 3, HeadSeq: 7})
	if !tl.Older() {
		t.Fatalf("shows %v after %d and says that there is nothing before", seqs(tl), tl.Start())
	}
	req := tl.OlderRequest()
	tl.Page(3, req, &clientv1.Page{
		Entries:      []*clientv1.Entry{entry(4, 3, "bob", "b4"), entry(5, 4, "bob", "b5"), entry(6, 5, "bob", "b6")},
		CompleteFrom: 4, CompleteTo: 6, End: true,
	})
	if got := seqs(tl); !slices.Equal(got, []int64{4, 5, 6, 7}) {
		t.Errorf("shows %v, want 4 to 7", got)
	}
	if tl.Older() {
		t.Error("there is nothing before the start")
	}
}

// The members of a large group read at different times what one hint, or one
// lost entry, makes all of them read; what brings them on is asked for at once.
func TestPaceSpreadsWhatIsReadBecauseOfAHint(t *testing.T) {
	tl := New("alice", 0)
	tl.State(0, NoCursor, &clientv1.ConversationState{HeadSeq: 1, Page: &clientv1.Page{CompleteFrom: 1, CompleteTo: 1, End: true}})
	tl.Pace(300)
	if fx := tl.Head(1000, 5); fx.History != nil {
		t.Error("it reads at once")
	}
	if fx := tl.Head(1200, 6); fx.History != nil {
		t.Error("it reads with the second hint")
	}
	fx := tl.Tick(1300)
	if fx.History == nil {
		t.Fatal("the second hint has put it off")
	}
	req := *fx.History
	fx = tl.Page(1400, req, &clientv1.Page{Entries: []*clientv1.Entry{entry(2, 1, "bob", ""), entry(3, 2, "bob", "")}, CompleteFrom: 2, CompleteTo: 3})
	if fx.History == nil || fx.History.After != 3 {
		t.Errorf("after a page it asks for %+v, want what follows 3 at once", fx.History)
	}
	tl.Page(1500, *fx.History, &clientv1.Page{CompleteFrom: 4, CompleteTo: 6, End: true})
	tl.Deliver(2000, []*clientv1.Entry{entry(8, 7, "bob", "")})
	if at, ok := tl.WakeAt(); !ok || at != 2500 {
		t.Errorf("a gap is read at %d, want 2500", at)
	}
}

package bench

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/imdhq/imd/sdk/go/gen/clientv1"
	"github.com/imdhq/imd/sdk/go/protocol"
)

// large is a server whose user ann has a group of n entries and direct
// conversations.
func large(t *testing.T, n, direct int) *fake {
	f := newFake(t)
	g := f.conv("g_1", "ann", "bob", "cid")
	for i := range n {
		g.append(f, "bob", &clientv1.Send{ClientMessageId: fmt.Sprint("c", i)})
	}
	for i := range direct {
		peer := fmt.Sprint("peer", i)
		f.conv(protocol.DirectID("ann", peer), "ann", peer)
	}
	return f
}

func TestReadLarge(t *testing.T) {
	f := large(t, 40, 0)
	o := f.options("history", 3)
	o.Reader, o.Conversation = "ann", "g_1"
	res, err := Run(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	if res.Operations == 0 || res.Entries == 0 || res.Failed != 0 || len(f.sends) != 0 || res.Latency["page"].Count == 0 {
		t.Errorf("%d writes, %+v", len(f.sends), res)
	}
}

func TestReadLargeWantsAPage(t *testing.T) {
	f := large(t, 4, 0)
	o := f.options("history", 1)
	o.Reader, o.Conversation = "ann", "g_1"
	if _, err := Run(t.Context(), o); err == nil || !strings.Contains(err.Error(), "4 entries") {
		t.Error(err)
	}
	o.Conversation = "g_2"
	if _, err := Run(t.Context(), o); err == nil || !strings.Contains(err.Error(), protocol.ReasonNotMember) {
		t.Error(err)
	}
}

// Before each sync so many conversations have changed, and it tells of them.
func TestSyncLarge(t *testing.T) {
	f := large(t, 1, 6)
	o := f.options("sync", 1)
	o.Reader, o.Changed = "ann", 4
	res, err := Run(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	if res.Operations == 0 || res.Failed != 0 || len(res.Errors) != 0 || res.States < 4*res.Operations || res.Latency["since"].Count == 0 {
		t.Errorf("%+v", res)
	}
	if n := int64(len(f.sends)); n < 4*res.Operations || n%4 != 0 {
		t.Errorf("%d messages for %d syncs", n, res.Operations)
	}
	o.Changed = 7
	if _, err := Run(t.Context(), o); err == nil || !strings.Contains(err.Error(), "6 direct conversations") {
		t.Error(err)
	}
}

// A sync that does not tell of a change is found out.
func TestSyncLargeMisses(t *testing.T) {
	f := large(t, 1, 3)
	f.judge = func(int, *fakeConn, *clientv1.Send) *clientv1.SendAck {
		f.forget = protocol.DirectID("ann", "peer1") // after the first sync
		return nil
	}
	o := f.options("sync", 1)
	o.Reader, o.Changed = "ann", 3
	res, err := Run(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	if res.Errors["a change is missing"] == 0 {
		t.Errorf("%+v", res.Errors)
	}
}

// Repeats that the server stores again fail the operation.
func TestRepeatFindsWhatIsStoredTwice(t *testing.T) {
	f := newFake(t)
	f.judge = func(n int, c *fakeConn, s *clientv1.Send) *clientv1.SendAck {
		return &clientv1.SendAck{Status: clientv1.Ack_ACK_OK, ConversationId: protocol.DirectID(c.user, s.GetToUser()), MessageId: int64(n), Seq: int64(n), PrevSeq: int64(n - 1)}
	}
	o := f.options("repeat", 2)
	o.Settle = 3 * time.Second // a good one is waited for in vain
	res, err := Run(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	if res.Errors["stored twice"] == 0 || res.Operations != 0 {
		t.Errorf("%+v", res)
	}
}

package requirements

import (
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/imdhq/imd/pkg/faultproxy"
	"github.com/imdhq/imd/pkg/testenv"
	"github.com/imdhq/imd/sdk/go/gen/clientv1"
	"github.com/imdhq/imd/sdk/go/protocol"
)

// What comes live before the first sync hides nothing that was missed.
func TestR11WhatWasMissedIsFound(t *testing.T) {
	t.Parallel()
	n := node(t)
	a := login(t, n, "ann", "d")
	conv := protocol.DirectID("ann", "bob")
	send := func(from, to int) {
		for i := from; i <= to; i++ {
			a.MustSend(testenv.ToUser("bob", fmt.Sprint(i)))
		}
	}
	token := n.Token("bob")
	b := testenv.Login(t, n.URL(), protocol.JSON, token, "d")
	send(1, 10)
	b.Write(ackFrame(conv, 0, 10))
	delivered := func(seq int64, within time.Duration) bool {
		return a.Await(within, func(f *clientv1.ServerFrame) bool { return f.GetReceipt().GetDeliveredSeq() == seq }) != nil
	}
	if !delivered(10, testenv.Patience) {
		t.Fatal("no receipt for 10")
	}
	b.Cut()
	send(11, 20)
	b = testenv.Dial(t, n.URL(), protocol.JSON)
	if f := b.Request(helloFrame(0, token, "d")); f.GetWelcome() == nil {
		t.Fatal(f)
	}
	send(21, 25)
	for i := 21; i <= 25; i++ {
		b.Entry("a live one", func(_ string, e *clientv1.Entry) bool { return e.Seq == int64(i) })
	}
	b.Write(ackFrame(conv, 20, 25)) // the live ones only
	clock := testenv.NewClock(t)
	st := b.Sync(&clientv1.Sync{Cursors: []*clientv1.Cursor{{ConversationId: conv, Have: 10}}, PageLimit: 50})
	if took := clock.Now(); took > 2*time.Second {
		t.Errorf("the sync took %v", took)
	}
	if len(st.GetConversations()) != 1 || st.Conversations[0].HeadSeq != 25 {
		t.Fatalf("the sync says %v", st)
	}
	p := st.Conversations[0].Page
	wantTexts(t, "from 10", messages(p.GetEntries()), upTo(25)[10:])
	if p.CompleteFrom != 11 || p.CompleteTo != 25 || !p.End {
		t.Errorf("the page is %d to %d", p.CompleteFrom, p.CompleteTo)
	}
	if f := a.TakeWithin(1500*time.Millisecond, func(f *clientv1.ServerFrame) bool { return f.GetReceipt().GetDeliveredSeq() > 10 }); f != nil {
		t.Errorf("delivered went over what is missing: %v", f)
	}
	b.Write(ackFrame(conv, 10, 25))
	if !delivered(25, testenv.Patience) {
		t.Error("no receipt for 25")
	}
}

// Pages of any size give each entry once, also of one millisecond, and while
// new ones come.
func TestR12PagesGiveEachEntryOnce(t *testing.T) {
	t.Parallel()
	const count = 300
	n := node(t)
	a, b := login(t, n, "ann", "d"), login(t, n, "bob", "d")
	conv := protocol.DirectID("ann", "bob")
	a.SendAll(numbered(count, toUser("bob")))
	first, _ := b.Walk(conv, 500, false)
	times := map[int64]int{}
	for _, e := range first {
		times[e.ServerTimeMs]++
	}
	if len(times) > count/3 {
		t.Errorf("%d messages have %d different times: too few to share one", count, len(times))
	}
	stop, stopped := make(chan struct{}), make(chan int, 1)
	go func() {
		defer close(stopped) // also if it fails
		for i := 1; ; i++ {
			a.MustSend(testenv.ToUser("bob", fmt.Sprint(count+i)))
			select {
			case <-stop:
				stopped <- i
				return
			case <-time.After(25 * time.Millisecond):
			}
		}
	}()
	for _, limit := range []int32{1, 7, 50, 300} {
		for _, backward := range []bool{false, true} {
			all, _ := b.Walk(conv, limit, backward)
			if len(all) < count {
				t.Errorf("limit %d, backward %v: %d entries", limit, backward, len(all))
			}
			for i, e := range all {
				if e.Seq != int64(i+1) || e.Content.GetText() != fmt.Sprint(i+1) {
					t.Fatalf("limit %d, backward %v: %v at %d", limit, backward, e, i)
				}
			}
		}
	}
	close(stop)
	more := <-stopped
	all, _ := b.Walk(conv, 300, true)
	wantTexts(t, "at the end", messages(all), upTo(count+more))
	if f := b.Request(historyFrame(&clientv1.History{ConversationId: conv, Limit: -1})); f.GetError().GetReason() != "bad_request" {
		t.Errorf("limit -1: %v", f)
	}
	if p := b.History(&clientv1.History{ConversationId: conv}); len(p.Entries) != protocol.HistoryLimit {
		t.Errorf("limit 0 gives %d entries", len(p.Entries))
	}
	if p := b.History(&clientv1.History{ConversationId: conv, Limit: 1 << 30}); len(p.Entries) > protocol.MaxHistoryLimit {
		t.Errorf("a huge limit gives %d entries", len(p.Entries))
	}
}

// Unread counts are the same on all devices, whatever is read where and late.
func TestR13UnreadCounts(t *testing.T) {
	t.Parallel()
	n := node(t)
	conv := protocol.DirectID("ann", "bob")
	unread := func(c *testenv.Client) uint32 {
		t.Helper()
		st := state(t, c, conv)
		if st == nil {
			t.Fatal("the conversation is not listed")
		}
		return st.UnreadCount
	}
	want := func(what string, c *testenv.Client, count uint32) {
		t.Helper()
		if got := unread(c); got != count {
			t.Errorf("%s: %d unread, want %d", what, got, count)
		}
	}
	t1, t2 := n.Token("bob"), n.Token("bob")
	a, b1 := login(t, n, "ann", "d"), testenv.Login(t, n.URL(), protocol.JSON, t1, "d1")
	for range 3 {
		a.MustSend(testenv.ToUser("bob", "x"))
	}
	want("bob before reading", b1, 3)
	b1.Request(readFrame(conv, 3))
	b1.MustSend(testenv.ToUser("ann", "y"))
	b1.MustSend(testenv.ToUser("ann", "y"))
	b2 := testenv.Login(t, n.URL(), protocol.Proto, t2, "d2")
	want("bob's second device at its first connect", b2, 0)
	want("ann", a, 2)
	b1.Close()
	b2.Close()
	for range 4 {
		a.MustSend(testenv.ToUser("bob", "x"))
	}
	b1, b2 = testenv.Login(t, n.URL(), protocol.JSON, t1, "d1"), testenv.Login(t, n.URL(), protocol.Proto, t2, "d2")
	want("bob's first device, back", b1, 4)
	want("bob's second device, back", b2, 4)
	if f := b2.Request(readFrame(conv, 9)); f.GetReceipt().GetReadSeq() != 9 || f.GetReceipt().GetUnreadCount() != 0 {
		t.Errorf("reading all: %v", f)
	}
	b1.Take("the mark of the other device", func(f *clientv1.ServerFrame) bool {
		return f.GetReceipt().GetUserId() == "bob" && f.GetReceipt().GetReadSeq() == 9
	})
	if f := b1.Request(readFrame(conv, 4)); f.GetReceipt().GetReadSeq() != 9 || f.GetReceipt().GetUnreadCount() != 0 {
		t.Errorf("an older mark: %v", f)
	}
	want("bob's first device at the end", b1, 0)
	want("bob's second device at the end", b2, 0)
	if st := state(t, b2, conv); st.ReadSeq != 9 {
		t.Errorf("read up to %d", st.ReadSeq)
	}
}

// One who is thousands of messages behind on a slow link catches up while live
// traffic goes on. 6,000 messages keep the link of 1 Mbit/s busy for about
// 8 s; 20,000 take 27 s in the same way.
func TestR14CatchingUpOverASlowLink(t *testing.T) {
	t.Parallel()
	const conversations, each = 300, 20
	n := node(t, append(unhurried, "gateway.ping_interval=1s", "gateway.pong_timeout=4s")...)
	p, base := proxy(t, n)
	writer := login(t, n, "writer", "d")
	var sends []*clientv1.Send
	for i := range conversations * each {
		to := fmt.Sprint("peer", i%conversations)
		sends = append(sends, testenv.ToUser(to, fmt.Sprint(i)))
	}
	writer.SendAll(sends)
	// The device that was away is another login of the writer, so that each of
	// its conversations is one that changed.
	p.Set(faultproxy.Mode{Bandwidth: 125_000})
	live, stop := atomic.Int64{}, make(chan struct{})
	stopped := make(chan struct{})
	go func() {
		defer close(stopped)
		for {
			select {
			case <-stop:
				return
			case <-time.After(50 * time.Millisecond):
				writer.MustSend(testenv.ToUser("peer0", "live"))
				live.Add(1)
			}
		}
	}()
	began := time.Now()
	b := testenv.Dial(t, base, protocol.Proto)
	b.Write(helloFrame(b.ID(), n.Token("writer"), "d2"))
	have := map[string]int64{}
	got, largest := 0, 0
	add := func(conv string, page *clientv1.Page) {
		for _, e := range page.GetEntries() {
			if e.Seq > have[conv] {
				have[conv] = e.Seq
				got++
			}
		}
		have[conv] = max(have[conv], page.GetCompleteTo())
	}
	token, open := "", map[string]bool{}
	for {
		r := b.Ask(syncFrame(&clientv1.Sync{SyncToken: token, PageLimit: 100}))
		largest = max(largest, size(t, r))
		for _, st := range r.GetSyncResult().GetConversations() {
			if st.Page.GetCompleteFrom() <= 1 {
				add(st.ConversationId, st.Page)
			}
			if have[st.ConversationId] < st.HeadSeq {
				open[st.ConversationId] = true
			}
		}
		if token = r.GetSyncResult().GetSyncToken(); !r.GetSyncResult().GetMore() {
			break
		}
	}
	for conv := range open {
		for end := false; !end; {
			f := b.Ask(historyFrame(&clientv1.History{ConversationId: conv, AfterSeq: have[conv], Limit: 500}))
			largest = max(largest, size(t, f))
			add(conv, f.GetHistoryResult().GetPage())
			end = f.GetHistoryResult().GetPage().GetEnd()
		}
	}
	took := time.Since(began)
	close(stop)
	<-stopped
	for f := b.TakeWithin(time.Second, isDeliver); f != nil; f = b.TakeWithin(time.Second, isDeliver) {
		largest = max(largest, size(t, f))
	}
	t.Logf("%d entries in %v, %d live meanwhile, %d heartbeats, the largest frame has %d bytes", got, took.Round(time.Millisecond), live.Load(), b.Pings(), largest)
	if got < conversations*each {
		t.Errorf("%d entries of %d", got, conversations*each)
	}
	if largest > protocol.ClientReadLimit {
		t.Errorf("a frame has %d bytes", largest)
	}
	if b.Closed() {
		t.Error("it was disconnected")
	}
	if b.Pings() < int(took/time.Second)/2 {
		t.Errorf("only %d heartbeats in %v", b.Pings(), took)
	}
}

func size(t *testing.T, f *clientv1.ServerFrame) int {
	t.Helper()
	data, err := protocol.EncodeServer(protocol.Proto, f)
	if err != nil {
		t.Fatal(err)
	}
	return len(data)
}

package requirements

import (
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/imdhq/imd/pkg/testenv"
	"github.com/imdhq/imd/sdk/go/gen/clientv1"
	"github.com/imdhq/imd/sdk/go/protocol"
	"github.com/imdhq/imd/sdk/go/timeline"
)

// traveller is a device that goes from gateway to gateway and has one conversation.
type traveller struct {
	t     *testing.T
	c     *testenv.Client // of now
	began time.Time
	conv  string
	tl    *timeline.Timeline
	token string
	term  uint64 // of the digest
	shown []int64
	asked int // pages of history
}

func (v *traveller) now() int64 { return time.Since(v.began).Milliseconds() }

// do does what the timeline wants.
func (v *traveller) do(fx timeline.Effects) {
	for _, e := range fx.Show {
		v.shown = append(v.shown, e.Seq)
	}
	if req := fx.History; req != nil {
		v.asked++
		page := v.c.History(&clientv1.History{ConversationId: v.conv, AfterSeq: req.After, BeforeSeq: req.Before,
			Backward: req.Backward, Limit: 100})
		v.do(v.tl.Page(v.now(), *req, page))
	}
}

// resume syncs on a new connection, while entries come.
func (v *traveller) resume(c *testenv.Client) {
	v.c = c
	v.tl.Connected()
	for more := true; more; {
		q, cursor := &clientv1.Sync{SyncToken: v.token, PageLimit: 100}, timeline.NoCursor
		if v.token != "" {
			cursor = v.tl.Have()
			q.Cursors = []*clientv1.Cursor{{ConversationId: v.conv, Have: cursor}}
		}
		r := c.Sync(q)
		for _, st := range r.GetConversations() {
			v.term = protocol.DigestTerm(st.ConversationId, st.HeadSeq)
			v.do(v.tl.State(v.now(), cursor, st))
		}
		if v.token, more = r.SyncToken, r.More; r.Digest != v.term {
			v.t.Errorf("the digest is %d, that of what was told %d", r.Digest, v.term)
		}
	}
	v.do(v.tl.Synced(v.now()))
}

// listen takes what comes for a while.
func (v *traveller) listen(until time.Time) {
	for time.Now().Before(until) {
		f := v.c.TakeWithin(min(time.Until(until), 20*time.Millisecond), func(f *clientv1.ServerFrame) bool { return isDeliver(f) || f.GetHead() != nil })
		if d := f.GetDeliver(); d != nil {
			v.do(v.tl.Deliver(v.now(), d.Entries))
		}
		if h := f.GetHead(); h != nil {
			v.do(v.tl.Head(v.now(), h.Seq))
		}
		v.do(v.tl.Tick(v.now()))
	}
}

// A device that comes back on the other gateway, again and again and also while its
// former connection stands, while entries arrive in the middle of its syncs, shows
// each of them once and in order.
func resumesOverTwo(t *testing.T, g *gateways) {
	const rounds = 10
	ann := g.in(t, 0, "ann2", "a", "d")
	first := ann.MustSend(testenv.ToUser("bob2", "0"))
	v := &traveller{t: t, began: time.Now(), conv: first.ConversationId, tl: timeline.New("bob2", 1000)}
	stop, last := make(chan struct{}), make(chan int64, 1)
	go func() {
		seq := first.Seq
		defer func() { last <- seq; close(last) }() // also if it fails
		for n := 1; ; n++ {
			select {
			case <-stop:
				return
			case <-time.After(3 * time.Millisecond):
				seq = ann.MustSend(testenv.ToUser("bob2", fmt.Sprint(n))).Seq
			}
		}
	}()
	halt := sync.OnceFunc(func() { close(stop) })
	defer func() { halt(); <-last }() // nothing is sent behind the end of the test
	for round := range rounds {
		former := v.c
		v.resume(g.in(t, round, "bob2", "b", "d"))
		if round == rounds-1 {
			halt()
		}
		v.listen(time.Now().Add(60 * time.Millisecond))
		if former != nil && round%2 == 0 {
			former.Cut()
		}
	}
	end := <-last
	for l := testenv.NewLimit(testenv.Patience); v.tl.Have() < end && !l.Over(); {
		v.listen(time.Now().Add(20 * time.Millisecond))
	}
	want := make([]int64, end)
	for i := range want {
		want[i] = int64(i + 1)
	}
	if !slices.Equal(v.shown, want) {
		t.Errorf("of %d entries it has shown %d: %v", end, len(v.shown), v.shown)
	}
	t.Logf("%d entries in %d sessions, %d pages of history", end, rounds, v.asked)
}

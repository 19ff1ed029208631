package gateway

import (
	"fmt"
	"testing"
	"time"

	"github.com/imdhq/imd/pkg/im"
	"github.com/imdhq/imd/pkg/testenv"
	v1 "github.com/imdhq/imd/proto/gen/internalv1"
	"github.com/imdhq/imd/sdk/go/gen/clientv1"
	"github.com/imdhq/imd/sdk/go/protocol"
)

// proclaim is what a leader hands over.
func proclaim(token, version int64, epoch string, seqs ...int64) *v1.ProclaimRequest {
	r := &v1.ProclaimRequest{Leader: &v1.LeaderProof{Election: "scheduler", Token: token}, Version: version, DataEpoch: epoch}
	for _, seq := range seqs {
		r.Announcements = append(r.Announcements, &clientv1.Announcement{Seq: seq, Text: fmt.Sprint("text ", seq), ExpiresMs: time.Now().Add(time.Hour).UnixMilli()})
	}
	return r
}

// takenBack adds that announcements were taken back, each under its number.
func takenBack(r *v1.ProclaimRequest, seqs map[int64]int64) *v1.ProclaimRequest {
	for number, seq := range seqs {
		r.Withdrawn = append(r.Withdrawn, &clientv1.Announcement{Seq: seq, Withdrawn: true, WithdrawalSeq: number, ExpiresMs: time.Now().Add(time.Hour).UnixMilli()})
	}
	return r
}

// told takes the next announcement of a session; 0 = none came in a moment, below
// 0 = one was taken back.
func told(c *testenv.Client, limit time.Duration) int64 {
	f := c.TakeWithin(limit, func(f *clientv1.ServerFrame) bool { return f.GetAnnouncement() != nil })
	switch a := f.GetAnnouncement(); {
	case a == nil:
		return 0
	case a.Withdrawn:
		return -a.Seq
	default:
		return a.Seq
	}
}

func wantTold(t *testing.T, what string, c *testenv.Client, want ...int64) {
	t.Helper()
	for _, w := range want {
		if got := told(c, 5*time.Second); got != w {
			t.Fatalf("%s: told %d, want %d", what, got, w)
		}
	}
	if got := told(c, 30*time.Millisecond); got != 0 {
		t.Fatalf("%s: told %d too", what, got)
	}
}

// A client is told each announcement that it has not shown once, in order, whether
// it or the gateway or the leader came first; clients that want none are told none.
func TestAnnouncementsAreTold(t *testing.T) {
	w := begin(t)
	svc := service{w.g}
	must := func(r *v1.ProclaimRequest) {
		t.Helper()
		if _, err := svc.Proclaim(t.Context(), r); err != nil {
			t.Fatal(err)
		}
	}
	login := func(enc protocol.Encoding, device string, after int64, epoch string) *testenv.Client {
		c := testenv.Dial(t, w.base(), enc)
		c.Write(&clientv1.ClientFrame{Id: 1, Kind: &clientv1.ClientFrame_Hello{Hello: &clientv1.Hello{
			Version: 1, Token: w.token("ann"), DeviceId: device, AnnouncementSeq: &after, AnnouncementEpoch: epoch}}})
		if f := c.Answer(1); f.GetWelcome() == nil {
			t.Fatalf("hello is answered with %v", f)
		}
		return c
	}
	early, deaf := login(protocol.JSON, "d1", 0, ""), w.session(t, protocol.Proto, "bob", "d")
	must(proclaim(3, 1, "e1", 4, 5))
	wantTold(t, "who was there before", early, 4, 5)
	wantTold(t, "who comes later", login(protocol.Proto, "d2", 0, ""), 4, 5)
	wantTold(t, "who has shown the first", login(protocol.JSON, "d3", 4, "e1"), 5)
	wantTold(t, "who has shown others of another history", login(protocol.JSON, "d4", 99, "e0"), 4, 5)
	must(proclaim(3, 1, "e1", 4, 5))
	must(proclaim(4, 1, "e1", 4, 5)) // the next leader
	wantTold(t, "who knows them", early)
	if _, err := svc.Proclaim(t.Context(), proclaim(3, 9, "e1", 4, 5, 6)); err == nil {
		t.Error("a leader that was followed is heard")
	}
	must(takenBack(proclaim(4, 3, "e1", 5, 7), map[int64]int64{6: 4}))
	wantTold(t, "of one taken back and a new one", early, -4, 7)
	must(proclaim(4, 2, "e1", 4, 5)) // a call that was under way for long
	wantTold(t, "what is older", early)
	r := takenBack(proclaim(4, 4, "e1", 10), map[int64]int64{6: 4, 8: 5, 9: 7})
	r.Announcements[0].ExpiresMs = time.Now().UnixMilli()
	must(r)
	wantTold(t, "what has expired", early, -5, -7)
	wantTold(t, "who was away while one was taken back", login(protocol.JSON, "d5", 7, "e1"), -5, -7)
	wantTold(t, "who has heard of it", login(protocol.Proto, "d6", 9, "e1"))
	must(proclaim(4, 1, "e2", 1)) // the store was restored
	wantTold(t, "of another history", early, 1)
	wantTold(t, "who wants none", deaf)
	if _, err := svc.Proclaim(t.Context(), &v1.ProclaimRequest{}); err == nil {
		t.Error("a call without a leader is heard")
	}
}

// Who was behind is told once there is room, without a look at anybody else; who
// has ended meanwhile is forgotten.
func TestOnlyWhoWasBehindIsLookedAtAgain(t *testing.T) {
	w := begin(t)
	login := func(user string) (*testenv.Client, *session) {
		c := testenv.Dial(t, w.base(), protocol.Proto)
		c.Write(&clientv1.ClientFrame{Id: 1, Kind: &clientv1.ClientFrame_Hello{Hello: &clientv1.Hello{
			Version: 1, Token: w.token(user), DeviceId: "d", AnnouncementSeq: new(int64)}}})
		c.Answer(1)
		return c, w.g.hub.of(im.UserID(user))[0]
	}
	full := func(s *session, frames int) {
		s.q.mu.Lock()
		defer s.q.mu.Unlock()
		s.q.n += frames
	}
	slow, s := login("slow")
	_, gone := login("gone")
	quick, other := login("quick")
	for _, x := range []*session{s, gone} {
		full(x, w.g.cfg.QueueFrames)
	}
	if _, err := (service{w.g}).Proclaim(t.Context(), proclaim(3, 1, "e1", 4, 5)); err != nil {
		t.Fatal(err)
	}
	wantTold(t, "who has room", quick, 4, 5)
	wantTold(t, "who is behind", slow)
	full(s, -w.g.cfg.QueueFrames)
	gone.end("kicked", "", 0)

	other.mu.Lock() // whoever looks at it waits
	paid := make(chan struct{})
	go func() { w.g.announcer.pay(time.Now()); close(paid) }()
	select {
	case <-paid:
	case <-time.After(10 * time.Second):
		t.Error("sessions that were told are looked at again")
	}
	other.mu.Unlock()
	<-paid
	wantTold(t, "who was behind", slow, 4, 5)
	w.g.announcer.mu.Lock()
	defer w.g.announcer.mu.Unlock()
	if n := len(w.g.announcer.behind); n != 0 {
		t.Errorf("%d sessions are remembered", n)
	}
}

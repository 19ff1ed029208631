package conformance

import (
	"testing"
	"time"

	"github.com/imdhq/imd/pkg/testenv"
	"github.com/imdhq/imd/sdk/go/gen/clientv1"
)

// Who shares a conversation sees who is online, within a second of a clean end,
// and who types; who does not, sees nobody.
func presence(t *testing.T, s *suite) {
	ann, bob, zoe := s.login(t, "ann", "d1"), s.login(t, "bob", "d1"), s.login(t, "zoe", "d1")
	conv := ann.MustSend(testenv.ToUser(s.user("bob"), "hi")).ConversationId
	watch := &clientv1.ClientFrame{Kind: &clientv1.ClientFrame_WatchPresence{WatchPresence: &clientv1.WatchPresence{
		UserIds: []string{s.user("bob"), s.user("zoe")}}}}
	first := ann.Request(watch).GetPresence()
	if first == nil || len(first.Users) != 1 || first.Users[0].UserId != s.user("bob") || !first.Users[0].Online {
		t.Fatalf("the answer is %v", first)
	}
	wantReason(t, zoe.Request(&clientv1.ClientFrame{Kind: &clientv1.ClientFrame_WatchPresence{WatchPresence: &clientv1.WatchPresence{
		UserIds: []string{s.user("bob")}}}}), "forbidden")
	bob.Write(&clientv1.ClientFrame{Kind: &clientv1.ClientFrame_Typing{Typing: &clientv1.Typing{ConversationId: conv, UserId: s.user("zoe")}}})
	if f := ann.Take("typing", func(f *clientv1.ServerFrame) bool { return f.GetTyping() != nil }); f.GetTyping().UserId != s.user("bob") {
		t.Errorf("ann hears %v", f)
	}
	wantReason(t, zoe.Request(&clientv1.ClientFrame{Kind: &clientv1.ClientFrame_Typing{Typing: &clientv1.Typing{ConversationId: conv}}}), "not_member")
	left := time.Now()
	bob.Close()
	f := ann.Await(2*time.Second, func(f *clientv1.ServerFrame) bool { return f.GetPresence() != nil && f.Id == 0 })
	if f == nil || f.GetPresence().Users[0].Online || f.GetPresence().Users[0].LastSeenMs < left.Add(-time.Second).UnixMilli() {
		t.Errorf("after bob has left: %v", f)
	}
	if took := time.Since(left); took > time.Second {
		t.Logf("bob was seen for another %v", took)
	}
}

func TestPresence(t *testing.T) {
	both(t, testenv.Start(t), nil, presence)
}

package requirements

import (
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/imdhq/imd/pkg/testenv"
	"github.com/imdhq/imd/sdk/go/gen/clientv1"
	"github.com/imdhq/imd/sdk/go/protocol"
)

// Whoever may not send at this moment is refused for good, and nothing of it is
// stored or delivered.
func TestR20PermissionAtTheTimeOfSending(t *testing.T) {
	t.Parallel()
	n := node(t)
	own, mia, eve := login(t, n, "own", "d"), login(t, n, "mia", "d"), login(t, n, "eve", "d")
	witness := login(t, n, "wit", "d")
	conv := testenv.Group(t, n.URL(), n.Token("own"), "team", "mia", "eve", "wit")
	mia.MustSend(testenv.To(conv, "1"))
	change(t, n, "own", "RemoveMembers", conv, map[string]any{"userIds": []string{"eve"}})
	wantFail(t, eve, testenv.To(conv, "no"), "not_member")
	change(t, n, "own", "Close", conv, nil)
	for _, after := range []time.Duration{0, time.Second} {
		time.Sleep(after)
		wantFail(t, own, testenv.To(conv, "no"), "conversation_closed")
		wantFail(t, mia, testenv.To(conv, "no"), "conversation_closed")
	}
	all, _ := mia.Walk(conv, 100, false)
	wantTexts(t, "the group", messages(all), upTo(1))
	for _, pair := range [][2]string{{"ada", "zoe"}, {"zed", "abe"}} {
		blocker, blocked := login(t, n, pair[0], "d"), login(t, n, pair[1], "d")
		dc := blocked.MustSend(testenv.ToUser(pair[0], "1")).ConversationId
		testenv.MustPost(t, n.URL(), "imd.v1.UserService/Block", n.Token(pair[0]), map[string]any{"userId": pair[1]})
		wantFail(t, blocked, testenv.ToUser(pair[0], "no"), "forbidden")
		wantFail(t, blocked, testenv.To(dc, "no"), "forbidden")
		blocker.MustSend(testenv.ToUser(pair[1], "2")) // the other direction is open
		all, _ := blocker.Walk(dc, 100, false)
		wantTexts(t, fmt.Sprint(pair), messages(all), upTo(2))
		if f := blocker.TakeWithin(0, func(f *clientv1.ServerFrame) bool {
			return isDeliver(f) && f.GetDeliver().Entries[0].Content.GetText() == "no"
		}); f != nil {
			t.Errorf("%v: delivered %v", pair, f)
		}
	}
	if f := witness.TakeWithin(0, func(f *clientv1.ServerFrame) bool {
		return isDeliver(f) && f.GetDeliver().Entries[0].Content.GetText() == "no"
	}); f != nil {
		t.Errorf("delivered: %v", f)
	}
}

// A member sees from each joining to each leaving, nothing that it cleared, and
// the same after a restart.
func TestR21BordersOfWhatAMemberSees(t *testing.T) {
	t.Parallel()
	n := node(t)
	for _, open := range []bool{false, true} {
		t.Run(fmt.Sprint("open history ", open), func(t *testing.T) {
			_, answer := tryChange(t, n, "ann", "Create", "", map[string]any{"name": "g", "openHistory": open})
			conv := answer["conversationId"].(string)
			mia := map[string]any{"userIds": []string{"mia"}}
			at := 0
			say := func(count int) {
				a := login(t, n, "ann", "d")
				var sends []*clientv1.Send
				for range count {
					at++
					sends = append(sends, testenv.To(conv, fmt.Sprint(at)))
				}
				a.SendAll(sends)
				a.Close()
			}
			sees := func(when string, want ...string) {
				t.Helper()
				m := login(t, n, "mia", "d")
				for _, backward := range []bool{false, true} {
					all, _ := m.Walk(conv, 20, backward)
					wantTexts(t, when, messages(all), want)
				}
				m.Close()
			}
			all := upTo(200)
			say(10)
			change(t, n, "ann", "AddMembers", conv, mia)
			say(50)
			change(t, n, "mia", "Leave", conv, nil)
			say(50)
			want := all[10:60]
			if open {
				want = all[:60]
			}
			sees("after leaving", want...)
			change(t, n, "ann", "AddMembers", conv, mia)
			say(20)
			want = append(append([]string{}, all[10:60]...), all[110:130]...)
			if open { // a newcomer again: the time between is open too
				want = all[:130]
			}
			sees("after the return", want...)
			m := login(t, n, "mia", "d")
			m.MustSend(testenv.To(conv, "131"))
			at++
			head := state(t, m, conv).HeadSeq
			testenv.MustPost(t, n.URL(), "imd.v1.ConversationService/ClearHistory", n.Token("mia"),
				map[string]any{"conversationId": conv, "upToSeq": fmt.Sprint(head)})
			sees("after clearing")
			n.Kill()
			n.Start()
			sees("after clearing and a restart")
			say(3)
			m = login(t, n, "mia", "d")
			m.MustSend(testenv.To(conv, "135"))
			at++
			sees("then", "132", "133", "134", "135")
		})
	}
}

// Lists of members are bounded, and collapse to distinct members.
func TestR22ListsOfMembers(t *testing.T) {
	t.Parallel()
	n := node(t, once)
	token := n.Token("ann")
	create := func(ids ...string) (int, map[string]any) {
		return tryChange(t, n, "ann", "Create", "", map[string]any{"name": "g", "userIds": ids})
	}
	members := func(conv string) (ids []string) {
		page := ""
		for {
			out := testenv.MustPost(t, n.URL(), "imd.v1.ConversationService/ListMembers", token, map[string]any{"conversationId": conv, "limit": 500, "pageToken": page})
			list, _ := out["members"].([]any)
			for _, m := range list {
				ids = append(ids, m.(map[string]any)["userId"].(string))
			}
			if page, _ = out["nextPageToken"].(string); page == "" {
				return ids
			}
		}
	}
	var many []string
	for i := range 100_000 {
		many = append(many, fmt.Sprint("u", i))
	}
	clock := testenv.NewClock(t)
	status, answer := create(many...)
	if took := clock.Now(); took > time.Second || status != 400 {
		t.Errorf("100,000 members: %d after %v: %v", status, took, answer)
	}
	if list := testenv.MustPost(t, n.URL(), "imd.v1.ConversationService/List", token, map[string]any{}); list["conversations"] != nil {
		t.Errorf("something was made: %v", list)
	}
	if status, answer = create("bob", "c/d"); status != 400 || testenv.ReasonOf(answer) != "invalid_id" {
		t.Errorf("an impossible id: %d %v", status, answer)
	}
	same := []string{"ann"}
	for range 50 {
		same = append(same, "bob")
	}
	status, answer = create(same...)
	conv, _ := answer["conversationId"].(string)
	if status != 200 {
		t.Fatalf("an id 50 times, and oneself: %d %v", status, answer)
	}
	if got := fmt.Sprint(members(conv)); got != "[ann bob]" {
		t.Errorf("members are %s", got)
	}
	var wg sync.WaitGroup
	var added atomic.Int64
	for range 20 { // those that come too late are told that nothing is left to do
		wg.Go(func() {
			status, answer := tryChange(t, n, "ann", "AddMembers", conv, map[string]any{"userIds": []string{"carl", "carl", "ann"}})
			switch {
			case status == 200:
				added.Add(1)
			case testenv.ReasonOf(answer) != "bad_request":
				t.Errorf("an addition: %d %v", status, answer)
			}
		})
	}
	wg.Wait()
	if added.Load() != 1 {
		t.Errorf("carl was added %d times", added.Load())
	}
	if got := fmt.Sprint(members(conv)); got != "[ann bob carl]" {
		t.Errorf("members are %s", got)
	}
	a, b, c := login(t, n, "ann", "d"), login(t, n, "bob", "d"), testenv.Login(t, n.URL(), protocol.JSON, n.Token("carl"), "d")
	if st := state(t, a, conv); st.MemberCount != 3 {
		t.Errorf("the count is %d", st.MemberCount)
	}
	ack := a.MustSend(testenv.To(conv, "x"))
	for name, x := range map[string]*testenv.Client{"bob": b, "carl": c} {
		x.Entry("the message", func(_ string, e *clientv1.Entry) bool { return e.Seq == ack.Seq })
		if f := x.TakeWithin(200*time.Millisecond, func(f *clientv1.ServerFrame) bool {
			return isDeliver(f) && f.GetDeliver().Entries[0].Seq == ack.Seq
		}); f != nil {
			t.Errorf("%s got it twice", name)
		}
	}
}

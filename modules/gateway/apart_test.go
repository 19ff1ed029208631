package gateway

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/imdhq/imd/pkg/im"
	"github.com/imdhq/imd/pkg/testenv"
	v1 "github.com/imdhq/imd/proto/gen/internalv1"
	"github.com/imdhq/imd/sdk/go/gen/clientv1"
	"github.com/imdhq/imd/sdk/go/protocol"
)

// One question that fails every call it is in fails alone; what fails for another
// reason, or for everybody, is not asked again and again.
func TestAskApart(t *testing.T) {
	bad := im.Errorf(clientv1.Reason_REASON_INTERNAL, "t", "poison")
	fails := func(reason clientv1.Reason, poison ...int) func([]int) []failure[int] {
		return func(batch []int) []failure[int] {
			if slices.ContainsFunc(batch, func(x int) bool { return slices.Contains(poison, x) }) {
				return allFailed[int](batch, im.Errorf(reason, "t", ""))
			}
			return nil
		}
	}
	all := make([]int, 64)
	for i := range all {
		all[i] = i
	}
	const internal, away = clientv1.Reason_REASON_INTERNAL, clientv1.Reason_REASON_UNAVAILABLE
	for name, tt := range map[string]struct {
		n      int
		took   time.Duration // a call
		ask    func([]int) []failure[int]
		failed []int
		calls  int
	}{
		"nothing fails":         {64, 0, func([]int) []failure[int] { return nil }, nil, 1},
		"one of many":           {64, 0, fails(internal, 37), []int{37}, 13},
		"the last":              {64, 0, fails(away, 63), []int{63}, 13},
		"one of three":          {3, 0, fails(internal, 0), []int{0}, 3},
		"two beside each other": {64, 0, fails(internal, 2, 3), []int{2, 3}, 13},
		"an outage":             {64, 0, fails(away, all...), all, 3},
		"one alone":             {1, 0, fails(internal, 0), []int{0}, 1},
		"a node that is busy":   {64, 0, fails(clientv1.Reason_REASON_BUSY, 1), all, 1},
		"calls that take long":  {64, 1100 * time.Millisecond, fails(internal, 1), all, 1},
		"calls that take some time": {64, 300 * time.Millisecond, fails(internal, 0),
			[]int{0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15}, 5},
		"some have their answer": {8, 0, func(batch []int) (failed []failure[int]) {
			for _, x := range batch {
				switch {
				case x == 1:
					failed = append(failed, failure[int]{x, im.Errorf(clientv1.Reason_REASON_NOT_MEMBER, "t", "")})
				case x > 3 && slices.Contains(batch, 5):
					failed = append(failed, failure[int]{x, bad})
				}
			}
			return failed
		}, []int{1, 5}, 5},
	} {
		t.Run(name, func(t *testing.T) {
			clock, calls := time.Unix(1000, 0), 0
			var failed []int
			for _, f := range askApart(all[:tt.n], func() time.Time { return clock }, func(batch []int) []failure[int] {
				calls++
				clock = clock.Add(tt.took)
				return tt.ask(batch)
			}) {
				failed = append(failed, f.x)
			}
			slices.Sort(failed)
			if calls != tt.calls || !slices.Equal(failed, tt.failed) {
				t.Errorf("%d calls, failed %v; want %d and %v", calls, failed, tt.calls, tt.failed)
			}
		})
	}
}

// A user whose sync or login state cannot answer does not take others with it that
// came at the same moment.
func TestOnePoisonousUserFailsAlone(t *testing.T) {
	w := begin(t)
	held := make(chan struct{})
	w.state.set(func(s *fakeState) {
		s.poison, s.bane = "bad", "worse"
		s.onSync = func(int) { <-held }
	})
	clients := map[string]*testenv.Client{}
	for i := range syncCalls + 8 {
		user := fmt.Sprint("u", i)
		if i == syncCalls+4 {
			user = "bad"
		}
		c := testenv.Dial(t, w.base(), protocol.Proto)
		c.Write(helloWith(w.token(user)), syncFrame(8))
		clients[user] = c
		if i < syncCalls {
			eventually(t, "the call is out", func() bool { return w.g.syncs.busy() == i+1 })
		}
	}
	eventually(t, "the others wait", func() bool { return w.g.syncs.waits() == 8 })
	close(held)
	for user, c := range clients {
		if f := c.Answer(8); (f.GetSyncResult() != nil) == (user == "bad") {
			t.Errorf("%s is answered %v", user, f)
		}
	}
	who := make([]*v1.AdmitRequest, 8)
	for i := range who {
		who[i] = &v1.AdmitRequest{UserId: fmt.Sprint("u", i), LoginId: "l"}
	}
	who[5].UserId = "worse"
	for i, a := range w.g.admitMany(w.g.ctx, who) {
		if (a.err != nil) != (i == 5) || (a.res == nil) != (i == 5) {
			t.Errorf("login %d: %+v", i, a)
		}
	}
}

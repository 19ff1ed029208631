package cluster

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/imdhq/imd/pkg/control"
	"github.com/imdhq/imd/pkg/control/etcd"
	"github.com/imdhq/imd/pkg/testenv"
)

// A member is cut off from the other two, and clients still reach it: a watch on
// it is ended, because it asks for a leader, and goes on elsewhere if there is
// an elsewhere. Then clients do not reach it either, and nothing tells them so:
// silence moves the watch on.
func TestPartitionedMember(t *testing.T) {
	t.Parallel()
	testenv.InOwnNetwork(t, func(t *testing.T) {
		n := testenv.NewNetwork(t)
		hosts := []*testenv.Host{n.Host(), n.Host(), n.Host()}
		c := n.Etcd(hosts...)
		at := 0
		for c.Members[at] == c.Leader() {
			at++
		}
		lone, others := c.Members[at], append(append([]*testenv.Host{}, hosts[:at]...), hosts[at+1:]...)
		patient := func(o *etcd.Options) { quick(o); o.Stale = time.Minute } // only the member can end its watch
		follow := func(urls []string, change func(*etcd.Options)) *follower {
			f := &follower{who: fmt.Sprintf("who asks %v", urls)}
			f.process = start(t, options{id: "f", urls: urls, unlisted: true, change: kept(&f.journal, change)})
			return f
		}
		pinned, alert := follow([]string{lone.URL}, patient), follow([]string{lone.URL}, quick)
		var free []*follower // some of them watch the lone member, others another one
		for range 6 {
			free = append(free, follow(c.URLs(), patient))
		}
		w := newChurn(c, "c")
		all := func(limit time.Duration, who ...*follower) {
			t.Helper()
			for range 5 {
				w.step()
			}
			for _, f := range who {
				w.seen(t, f.process, f.who, limit)
			}
		}
		all(5*time.Second, append(free, pinned, alert)...)

		hosts[at].Cut(others...)
		began := time.Now()
		eventually(t, "the view of who can only ask the lone member is stale", 15*time.Second, func() bool { return pinned.handle.View().Stale })
		s := pinned.Stats()
		t.Logf("a watch on the lone member ended after %v: %v; %s", time.Since(began).Round(time.Millisecond), s.Resyncs, s.Trouble)
		if s.Resyncs[control.ResyncBroken] == 0 || s.Resyncs[control.ResyncStale] != 0 {
			t.Errorf("the watch was not ended by the member: %v", s.Resyncs)
		}
		all(10*time.Second, free...)
		t.Logf("%d of %d went on elsewhere", resynced(free, control.ResyncBroken), len(free))
		eventually(t, "the lone member is marked", 10*time.Second, func() bool {
			return slices.ContainsFunc(pinned.Stats().Endpoints, func(e control.EndpointStats) bool { return e.Reason == "has no leader" })
		})
		hosts[at].Heal(others...)
		began = time.Now()
		all(30*time.Second, append(free, pinned, alert)...)
		t.Logf("all were current %v after healing", time.Since(began).Round(time.Millisecond))

		var hasty []*follower
		for range 6 {
			hasty = append(hasty, follow(c.URLs(), quick))
		}
		all(5*time.Second, hasty...)
		silences := resynced([]*follower{alert}, control.ResyncStale)
		hosts[at].Cut()
		began = time.Now()
		eventually(t, "silence ends the watch", 10*time.Second, func() bool { return resynced([]*follower{alert}, control.ResyncStale) > silences })
		t.Logf("silence ended a watch after %v", time.Since(began).Round(time.Millisecond))
		all(10*time.Second, hasty...)
		t.Logf("%d of %d met silence and went on elsewhere", resynced(hasty, control.ResyncStale), len(hasty))
		hosts[at].Heal()
		free = append(append(free, hasty...), pinned, alert)
		// The member finds the others again first, between tries that the network swallowed;
		// and a watch of who is patient that got lost meanwhile is silent for a minute.
		all(100*time.Second, free...)
		for _, f := range free {
			f.journal.ordered(t, f.who)
		}
	})
}

// follower is a process that only follows, and what it was shown.
type follower struct {
	*process
	who     string
	journal journal
}

// resynced sums how often some have read everything again for a cause.
func resynced(who []*follower, cause string) (n uint64) {
	for _, f := range who {
		n += f.Stats().Resyncs[cause]
	}
	return n
}

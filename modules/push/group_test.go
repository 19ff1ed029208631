package push

import (
	"fmt"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/imdhq/imd/pkg/control"
	"github.com/imdhq/imd/pkg/im"
	v1 "github.com/imdhq/imd/proto/gen/internalv1"
	"github.com/imdhq/imd/sdk/go/gen/clientv1"
)

// thousands is a world with a group of so many members, on two gateways.
func thousands(members int) *world {
	w := newWorld()
	users := make([]string, members)
	for i := range users {
		users[i] = fmt.Sprintf("u%05d", i)
	}
	w.join("g_1", 1, users...)
	w.join("d_1", 1, users[0], users[1])
	w.online(users[0], "a", "s0")
	w.view = &control.View{Nodes: []control.Node{gatewayNode("a"), gatewayNode("b"), {ID: "c", Roles: []string{"push"}}}}
	return w
}

func gatewayNode(id im.NodeID) control.Node {
	return control.Node{ID: id, Roles: []string{"gateway"}}
}

// Every gateway is given what goes to a large group, once and without a list of
// sessions, with what the entry changes of the membership.
func TestALargeGroupIsLeftToTheGateways(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := thousands(1001)
		w.run(t, DefaultConfig(), func(p *Push) {
			put(t, p, entry("g_1", 1), entry("g_1", 2), entry("d_1", 7))
			synctest.Wait()
			added := entry("g_1", 3)
			added.MemberVersion = 2
			added.GetEntry().MemberChange = &clientv1.MemberChange{Action: clientv1.MemberAction_MEMBER_ACTION_ADDED, UserIds: []string{"new"}, Start: 2}
			removed := entry("g_1", 4)
			removed.MemberVersion, removed.AlsoUserIds = 3, []string{"u00009"}
			removed.GetEntry().MemberChange = &clientv1.MemberChange{Action: clientv1.MemberAction_MEMBER_ACTION_REMOVED, UserIds: []string{"u00009"}}
			put(t, p, added, removed)
		})
		want := []*v1.Audience{{MemberVersion: 1}, {MemberVersion: 2, Change: true, AddedUserIds: []string{"new"}, Start: 2},
			{MemberVersion: 3, Change: true, RemovedUserIds: []string{"u00009"}}}
		for _, node := range []im.NodeID{"a", "b"} {
			var got []*v1.Audience
			for _, d := range w.raw[node] {
				if d.ConversationId == "g_1" {
					got = append(got, d.Audience)
				} else if !slices.Equal(d.SessionIds, []string{"s0"}) {
					t.Errorf("the direct message went to %v", d.SessionIds)
				}
			}
			if !slices.EqualFunc(got, want, func(a, b *v1.Audience) bool { return proto.Equal(a, b) }) {
				t.Errorf("%s got audiences %v", node, got)
			}
		}
		if len(w.raw["c"]) != 0 {
			t.Error("a node that is no gateway was called")
		}
		if w.loads != 2 {
			t.Errorf("%d pages of members were read, want one of each conversation", w.loads)
		}
	})
}

// A gateway that does not answer large groups is given direct messages all the same.
func TestLargeGroupsHoldUpNobody(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := thousands(1001)
		w.bulk = make(chan struct{})
		w.run(t, DefaultConfig(), func(p *Push) {
			for seq := range int64(100) {
				put(t, p, entry("g_1", seq+1))
			}
			for i := range shards * 2 { // some share a shard with the group
				conv := fmt.Sprint("d_", i)
				w.join(conv, 1, "u00000", "u00001")
				put(t, p, entry(conv, 1))
			}
			synctest.Wait()
			w.mu.Lock()
			n := len(w.raw["a"])
			w.mu.Unlock()
			if n != shards*2 {
				t.Errorf("%d direct messages were delivered beside the group", n)
			}
			close(w.bulk)
		})
	})
}

// The devices of a busy large group get at most one hint in each interval, the last
// one about the newest entry; changes of the membership go to everyone as always.
func TestABusyLargeGroupIsRead(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := thousands(60_000)
		w.audience = 3000 // and as many on the other gateway
		began := time.Now()
		var hints []time.Duration
		w.onDeliver = func(node im.NodeID, d *v1.Delivery) {
			if node == "a" && !d.Acked {
				hints = append(hints, time.Since(began))
			}
		}
		w.run(t, DefaultConfig(), func(p *Push) {
			for seq := range int64(500) { // 100 a second
				put(t, p, entry("g_1", seq+1))
				time.Sleep(10 * time.Millisecond)
			}
			change := entry("g_1", 501)
			change.MemberVersion = 2
			change.GetEntry().MemberChange = &clientv1.MemberChange{Action: clientv1.MemberAction_MEMBER_ACTION_ROLE}
			put(t, p, change)
			synctest.Wait()
			put(t, p, entryAt("g_1", 502, 2))
			time.Sleep(20 * time.Second)
			put(t, p, entryAt("g_1", 503, 2))
		})
		for i, at := range hints[1:] {
			if at-hints[i] < time.Second {
				t.Errorf("hints %v after the start, and %v", hints[i], at)
			}
		}
		all := w.got["a"]
		newest := all[len(all)-2]
		if newest.Acked || newest.Seq != 502 {
			t.Errorf("the last but one delivery is %v, want a hint of 502", newest)
		}
		if last := all[len(all)-1]; !last.Acked || last.Seq != 503 {
			t.Errorf("a quiet group got %v, want 503 itself", last)
		}
		entries := 0
		for _, d := range all {
			if d.Acked {
				entries++
			}
		}
		if entries > 400 || len(hints) < 3 {
			t.Errorf("%d entries were delivered and %d hints", entries, len(hints))
		}
		if i := slices.IndexFunc(all, func(d *v1.Delivery) bool { return d.Acked && d.Seq == 501 }); i < 0 {
			t.Error("a change of the membership was not delivered")
		}
	})
}

// A group that grows while it is known becomes one that is read.
func TestAGroupGrowsIntoPulling(t *testing.T) {
	c := newMemberCache(nil, nil)
	c.put("g", &memberList{version: 1, large: 300, until: time.Now().Add(time.Hour)})
	c.grew("g", 9000)
	c.grew("g", -1)
	c.grew("none", 5)
	if l, err := c.at(t.Context(), "g", 1, 200); err != nil || l.large != 9299 {
		t.Errorf("%+v, %v", l, err)
	}
}

// A stopping node does not keep hints for itself.
func TestADrainingNodeHintsAtOnce(t *testing.T) {
	ps := newPulls()
	now, tune, to := time.Now(), pullTuning{sessions: 10, interval: time.Hour}, target{members: 100, nodes: []im.NodeID{"a", "b"}}
	if pulled, _ := ps.note(now, tune, hint{"g", 1, 1}, to, 1); pulled {
		t.Error("a group of which nobody is known to be here is read")
	}
	ps.heard("g", "a", 6)
	ps.heard("g", "b", 6)
	ps.heard("g", "gone", 100)
	ps.note(now, tune, hint{"g", 1, 1}, to, 1)
	if pulled, at := ps.note(now.Add(time.Second), tune, hint{"g", 2, 1}, to, 1); !pulled || at != nil {
		t.Error("the second hint does not wait")
	}
	if list, next := ps.due(now.Add(time.Minute)); len(list) != 0 || !next.Equal(now.Add(time.Hour)) {
		t.Errorf("%v is due, the next one at %v", list, next)
	}
	if ps.hurry() != 1 {
		t.Error("no hint waits")
	}
	if list, _ := ps.due(now.Add(time.Minute)); len(list) != 1 || list[0].seq != 2 {
		t.Errorf("%v is due, want the hint of 2", list)
	}
	if ps.hurry() != 1 {
		t.Error("a hint that is taken and not told yet is nobody's")
	}
	ps.told()
	if ps.hurry() != 0 {
		t.Error("a hint stays")
	}
}

func entryAt(conv string, seq, version int64) *v1.FanoutItem {
	it := entry(conv, seq)
	it.MemberVersion = version
	return it
}

// The groups that are watched are bounded.
func TestPullsAreBounded(t *testing.T) {
	ps := newPulls()
	now, tune := time.Now(), pullTuning{sessions: 10, load: 1e9, interval: time.Second}
	for i := range 2 * maxPulls {
		ps.note(now, tune, hint{fmt.Sprint(i), 1, 1}, target{members: 100}, 1)
	}
	if len(ps.byConv) != maxPulls {
		t.Errorf("%d groups are watched", len(ps.byConv))
	}
	ps.note(now.Add(2*pullIdle), tune, hint{"new", 1, 1}, target{members: 100}, 1)
	if len(ps.byConv) != 1 {
		t.Errorf("%d groups are watched, want the new one", len(ps.byConv))
	}
}

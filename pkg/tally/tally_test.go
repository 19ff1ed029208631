package tally

import (
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	v1 "github.com/imdhq/imd/proto/gen/internalv1"
)

// at is a second of minute 1000.
func at(second int) time.Time { return time.Unix(1000*60+int64(second), 0) }

func told(boot string, minutes ...*v1.TallyMinute) Answer {
	return Answer{Node: "n-" + boot, Told: &v1.TallyResponse{BootId: boot, Gateway: true, Sessions: map[string]int64{"web": 2}, Users: 1, Minutes: minutes}}
}

func minute(m, stored int64) *v1.TallyMinute {
	return &v1.TallyMinute{Minute: m, Stored: stored, Delivered: 3 * stored}
}

// stored are the messages of the minutes, the newest last.
func stored(t *v1.Tally) (out []int64) {
	for _, m := range t.Minutes {
		out = append(out, m.Stored)
	}
	return out
}

func expect(t *testing.T, what string, got *v1.Tally, want ...int64) {
	t.Helper()
	have := stored(got)
	if len(have) != len(want) {
		t.Fatalf("%s: %d, want %d", what, have, want)
	}
	for i := range want {
		if have[i] != want[i] {
			t.Fatalf("%s: %d, want %d", what, have, want)
		}
	}
}

func TestBookCountsByMinute(t *testing.T) {
	now := at(0)
	b := New(func() time.Time { return now })
	var none *Book
	none.Stored(1)
	none.Watch(nil)
	none.Keep(&v1.Tally{})
	if none.Cluster() != nil || none.Tell().Gateway {
		t.Error("no book tells something")
	}
	for m := range 2 * slots {
		now = at(60 * m)
		b.Stored(m)
		b.Delivered(2 * m)
	}
	now = now.Add(5 * time.Minute)
	got := b.Tell().Minutes
	last := int64(1000 + 2*slots - 1)
	if len(got) != Minutes+1-5 || got[len(got)-1].Minute != last || got[0].Minute != last+5-Minutes || got[0].Delivered != 2*got[0].Stored {
		t.Errorf("%d minutes, from %v to %v", len(got), got[0], got[len(got)-1])
	}
	b.Watch(func() Present { return Present{Sessions: map[string]int64{"web": 3}, Users: 2} })
	if r := b.Tell(); !r.Gateway || r.Users != 2 || r.Sessions["web"] != 3 {
		t.Errorf("told %v", r)
	}
}

func TestBookKeepsTheNewest(t *testing.T) {
	b := New(time.Now)
	for _, s := range []struct {
		token, at, want int64
	}{{3, 50, 50}, {3, 40, 50}, {2, 90, 50}, {3, 60, 60}, {4, 10, 10}} {
		b.Keep(&v1.Tally{Token: s.token, AtMs: s.at})
		if got := b.Cluster().AtMs; got != s.want {
			t.Errorf("token %d at %d: %d is kept", s.token, s.at, got)
		}
	}
}

// What was counted stays when a process ends, and when the leader changes.
func TestLedger(t *testing.T) {
	first := NewLedger()
	expect(t, "begin", first.Step(Round{At: at(5), Users: -1, Answers: []Answer{told("a", minute(1000, 7)), told("b", minute(999, 4), minute(1000, 1))}}), 4, 8)
	got := first.Step(Round{At: at(65), Users: 5, Answers: []Answer{told("a", minute(1000, 9), minute(1001, 2)), {Node: "n-b", Gateway: true, Silent: "unavailable"}}})
	expect(t, "a process is silent", got, 4, 10, 2)
	if n := got.Nodes[1]; n.Silent != "unavailable" || len(n.Sessions) != 0 {
		t.Errorf("the silent one is %v", n)
	}
	if m := got.Minutes[1]; !m.Counted || m.Users != nil || m.Sessions["web"] != 4 {
		t.Errorf("minute %v", m)
	}
	if m := got.Minutes[2]; m.GetUsers() != 5 || m.Users == nil || m.Sessions["web"] != 2 || got.Minutes[0].Counted {
		t.Errorf("minutes %v", got.Minutes)
	}

	// The leader ends; b has too, and a tells the next one what was kept.
	kept := proto.CloneOf(got)
	old := &v1.Tally{Token: -1, Minutes: []*v1.TallyTotal{{Minute: 1000, Stored: 99}}}
	second := NewLedger()
	a := told("a", minute(1000, 9), minute(1001, 6))
	a.Told.Cluster = kept
	c := told("c")
	c.Told.Cluster = old
	got = second.Step(Round{At: at(70), Users: -1, Answers: []Answer{c, a}})
	expect(t, "the next leader", got, 4, 10, 6)
	if m := got.Minutes[1]; m.Sessions["web"] != 4 || !proto.Equal(kept, a.Told.Cluster) {
		t.Errorf("minute %v", m)
	}

	// A pause, a clock that is ahead, and what is too old.
	got = second.Step(Round{At: at(60 * (Minutes + 1)), Users: -1, Answers: []Answer{told("a", minute(1001, 6), minute(5000, 1))}})
	if n := len(got.Minutes); n != Minutes+1 || got.Minutes[0].Minute != 1001 || got.Minutes[0].Stored != 6 || got.Minutes[1].Counted || got.Minutes[n-1].Minute != 1000+Minutes+1 {
		t.Errorf("after a pause: %v", got.Minutes)
	}
	if len(second.totals) > Minutes+1 || len(second.processes) != 1 {
		t.Errorf("%d minutes and %d processes are remembered", len(second.totals), len(second.processes))
	}
}

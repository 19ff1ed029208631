package segment

import (
	"reflect"
	"testing"
)

// all gives every shard to the process.
func all(rev int64) View { return View{Version{1, rev}, func(int) bool { return true }} }

func TestAConversationIsGrantedAfterItsShardAndItsNumbers(t *testing.T) {
	m := New(10)
	want := Want{[]Need{{"a", 1, 3}, {"b", 1, 1}, {"c", 2, 20}}}
	if fx := m.Step(all(5), want); !reflect.DeepEqual(fx, Effects{Take: []int{1, 2}}) {
		t.Fatalf("first: %+v", fx)
	}
	m.Step(all(5), Taken{1, 7})
	m.Step(all(5), Taken{2, 1})
	fx := m.Step(all(5), want)
	if !reflect.DeepEqual(fx.Reserve, []Reservation{{"a", 1, 7, 10}, {"b", 1, 7, 10}, {"c", 2, 1, 20}}) {
		t.Fatalf("reserve: %+v", fx)
	}
	m.Step(all(5), Reserved{"a", 1, 7, 100, 110})
	m.Step(all(5), Reserved{"b", 1, 7, 0, 10})
	m.Step(all(5), Unreserved{"c", 2})
	fx = m.Step(all(5), want)
	if !reflect.DeepEqual(fx.Grants, []Grant{{"a", 1, 7, 101}, {"b", 1, 7, 1}}) || !reflect.DeepEqual(fx.Busy, []string{"c"}) {
		t.Fatalf("grants: %+v", fx)
	}
	// A call that runs again keeps its numbers.
	if again := m.Step(all(6), Want{want.Needs[:2]}); !reflect.DeepEqual(again.Grants, fx.Grants) {
		t.Fatalf("again: %+v", again)
	}
	if fx := m.Step(all(6), Appended{"a", 1, 103}); len(fx.Refill) != 0 {
		t.Fatalf("refill with 7 of 10 left: %+v", fx)
	}
	if fx := m.Step(all(6), Appended{"a", 1, 105}); !reflect.DeepEqual(fx.Refill, []Reservation{{"a", 1, 7, 10}}) {
		t.Fatalf("no refill with 5 of 10 left: %+v", fx)
	}
	if fx := m.Step(all(6), Appended{"a", 1, 106}); len(fx.Refill) != 0 {
		t.Fatalf("two refills at once: %+v", fx)
	}
	m.Step(all(6), Reserved{"a", 1, 7, 110, 120})
	if fx := m.Step(all(6), Want{[]Need{{"a", 1, 14}}}); !reflect.DeepEqual(fx.Grants, []Grant{{"a", 1, 7, 107}}) {
		t.Fatalf("over the seam of two segments: %+v", fx)
	}
}

func TestALostShardKeepsNothing(t *testing.T) {
	m := New(10)
	m.Step(all(5), Taken{1, 7})
	m.Step(all(5), Want{[]Need{{"a", 1, 1}}})
	m.Step(all(5), Reserved{"a", 1, 7, 0, 10})
	m.Step(all(5), Fenced{1, 6}) // an older fence tells nothing
	if m.Owned() != 1 {
		t.Fatal("lost by an older fence")
	}
	m.Step(all(5), Fenced{1, 7})
	if fx := m.Step(View{Version: Version{1, 5}}, Want{[]Need{{"a", 1, 1}}}); !reflect.DeepEqual(fx, Effects{Elsewhere: []string{"a"}}) {
		t.Fatalf("without a ring: %+v", fx)
	}
	m.Step(all(5), Refused{1, Version{1, 5}})
	if fx := m.Step(all(5), Want{[]Need{{"a", 1, 1}}}); len(fx.Elsewhere) != 1 {
		t.Fatalf("asks again by the view that was refused: %+v", fx)
	}
	if fx := m.Step(all(6), Want{[]Need{{"a", 1, 1}}}); len(fx.Take) != 1 {
		t.Fatalf("a newer view: %+v", fx)
	}
	m.Step(all(6), Taken{1, 9})
	m.Step(all(6), Taken{1, 8})                 // an answer that comes late
	m.Step(all(6), Reserved{"a", 1, 7, 10, 20}) // what was reserved under the old fence
	if fx := m.Step(all(6), Want{[]Need{{"a", 1, 1}}}); !reflect.DeepEqual(fx.Reserve, []Reservation{{"a", 1, 9, 10}}) {
		t.Fatalf("numbers of the former fence: %+v", fx)
	}
}

func TestAHeldShardIsTakenInTheBackground(t *testing.T) {
	m := New(10)
	want := Want{[]Need{{"a", 1, 1}}}
	m.Step(all(5), want)
	if fx := m.Step(all(5), Held{1}); !reflect.DeepEqual(fx.Wait, []int{1}) {
		t.Fatalf("held: %+v", fx)
	}
	if fx := m.Step(all(5), Held{1}); len(fx.Wait) != 0 {
		t.Fatalf("waits twice: %+v", fx)
	}
	if fx := m.Step(all(5), want); len(fx.Busy) != 1 || len(fx.Take) != 0 {
		t.Fatalf("meanwhile: %+v", fx)
	}
	m.Step(all(5), Gone{1})
	if fx := m.Step(all(5), want); len(fx.Take) != 1 {
		t.Fatalf("given up: %+v", fx)
	}
	m.Step(all(5), Held{1})
	m.Step(all(5), Taken{1, 2})
	if fx := m.Step(all(5), want); len(fx.Reserve) != 1 {
		t.Fatalf("taken: %+v", fx)
	}
}

func TestAnOvertakenNumberIsLeftBehind(t *testing.T) {
	for head, first := range map[int64]int64{0: 1, 4: 5, 10: 11, 12: 13} {
		m := New(10)
		m.Step(all(5), Taken{1, 1})
		m.Step(all(5), Want{[]Need{{"a", 1, 1}}})
		m.Step(all(5), Reserved{"a", 1, 1, 0, 10})
		m.Step(all(5), Appended{"a", 1, 0})
		m.Step(all(5), Overtaken{"a", 1, head})
		fx := m.Step(all(5), Want{[]Need{{"a", 1, 1}}})
		if len(fx.Reserve) == 1 {
			m.Step(all(5), Reserved{"a", 1, 1, max(head, 10), max(head, 10) + 10})
			fx = m.Step(all(5), Want{[]Need{{"a", 1, 1}}})
		}
		if len(fx.Grants) != 1 || fx.Grants[0].First != first {
			t.Errorf("head %d: %+v, want %d", head, fx, first)
		}
	}
}

func TestNumbersAreKeptOfSoManyConversations(t *testing.T) {
	m := New(10)
	m.Step(all(5), Taken{1, 1})
	name := func(i int) string { return string(rune('a'+i%26)) + string(rune(i)) }
	for i := range maxBlocks + 10 {
		m.Step(all(5), Want{[]Need{{name(i), 1, 1}}})
	}
	if m.blocks > maxBlocks || len(m.shards[1].blocks) != m.blocks {
		t.Errorf("%d of %d blocks", len(m.shards[1].blocks), m.blocks)
	}
}

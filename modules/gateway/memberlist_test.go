package gateway

import (
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/imdhq/imd/pkg/im"
)

// A list is what a map would be, whatever comes and goes, in whatever order, and its
// blocks stay sorted and within their bound.
func TestAMemberListIsAMap(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	var l memberList
	want := map[string]int64{}
	user := func() string { return fmt.Sprint("u", rng.IntN(6000)) }
	for round := range 400 {
		edits := make([]memberEdit, rng.IntN(300))
		for i := range edits {
			e := memberEdit{user: user(), start: int64(rng.IntN(3)), gone: rng.IntN(10) < round/40}
			if edits[i] = e; e.gone {
				delete(want, e.user)
			} else {
				want[e.user] = e.start
			}
		}
		l.apply(edits)
		for range 100 {
			u := user()
			start, member := l.start(im.UserID(u))
			if s, is := want[u]; start != s || member != is {
				t.Fatalf("round %d: %s is %d, %v; want %d, %v", round, u, start, member, s, is)
			}
		}
		sound(t, &l, len(want))
	}
	var all []memberEdit
	for u := range want {
		all = append(all, memberEdit{user: u, gone: true})
	}
	if l.apply(all); l.len() != 0 || len(l.blocks) != 0 {
		t.Errorf("%d members in %d blocks are left of none", l.len(), len(l.blocks))
	}
}

// sound fails unless a list has n members in order.
func sound(t *testing.T, l *memberList, n int) {
	t.Helper()
	last, got := "", 0
	for i := range l.blocks {
		b := &l.blocks[i]
		if len(b.ends) == 0 || len(b.ends) > blockMembers {
			t.Fatalf("block %d has %d members", i, len(b.ends))
		}
		for k := range b.ends {
			if b.id(k) <= last {
				t.Fatalf("%q comes behind %q", b.id(k), last)
			}
			last = b.id(k)
		}
		got += len(b.ends)
	}
	if got != n || l.len() != n {
		t.Fatalf("%d members, %d are counted, want %d", got, l.len(), n)
	}
}

// A list of 100,000 takes little more than the bytes of the ids.
func TestAMemberListIsSmall(t *testing.T) {
	var l memberList
	edits := make([]memberEdit, 0, groupPage)
	for page := range 100 {
		edits = edits[:0]
		for i := range groupPage {
			edits = append(edits, memberEdit{user: fmt.Sprintf("member-%07d", page*groupPage+i), start: int64(page)})
		}
		l.apply(edits)
	}
	size := cap(l.blocks) * 72
	for i := range l.blocks {
		b := &l.blocks[i]
		size += len(b.ids) + 4*cap(b.ends) + 8*cap(b.starts)
	}
	if ids := 14 * l.len(); size > ids+5*l.len()+16*blockMembers {
		t.Errorf("%d members take %d bytes, their ids alone are %d", l.len(), size, ids)
	}
}

func BenchmarkMemberList(b *testing.B) {
	var l memberList
	users := make([]im.UserID, 100_000)
	var edits []memberEdit
	for i := range users {
		users[i] = im.UserID(fmt.Sprintf("member-%07d", i*7919%100_000))
		edits = append(edits, memberEdit{user: string(users[i])})
	}
	l.apply(edits)
	b.Run("look", func(b *testing.B) {
		b.ReportAllocs()
		for i := 0; b.Loop(); i++ {
			l.start(users[i%len(users)])
		}
	})
	b.Run("join-and-leave", func(b *testing.B) {
		b.ReportAllocs()
		for i := 0; b.Loop(); i++ {
			one := memberEdit{user: string(users[i%len(users)]) + "x"}
			l.apply([]memberEdit{one})
			one.gone = true
			l.apply([]memberEdit{one})
		}
	})
}

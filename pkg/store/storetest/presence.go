package storetest

import (
	"errors"
	"slices"
	"time"

	"github.com/imdhq/imd/pkg/im"
	"github.com/imdhq/imd/pkg/store"
)

func lastSeen(k *kit) {
	now := time.Now().Truncate(time.Millisecond)
	old := k.fence("scheduler", 1).Proof()
	lead := k.fence("scheduler", 2).Proof()
	save := func(list ...store.Seen) { k.must(k.s.SaveSeen(k.ctx(), lead, list)) }
	save(store.Seen{User: "b", At: now}, store.Seen{User: "a", At: now.Add(-time.Hour)}, store.Seen{User: "b", At: now.Add(-time.Minute)})
	save(store.Seen{User: "a", At: now.Add(-2 * time.Hour)}, store.Seen{User: "c", At: now})
	if err := k.s.SaveSeen(k.ctx(), old, []store.Seen{{User: "a", At: now}}); !errors.Is(err, store.ErrFenced) {
		k.Errorf("a leader that was followed: %v", err)
	}
	check := func() {
		k.Helper()
		got, err := k.s.Seen(k.ctx(), []im.UserID{"a", "b", "nobody"})
		k.must(err)
		if len(got) != 2 {
			k.Fatalf("seen: %+v", got)
		}
		for _, x := range got {
			if want := map[im.UserID]time.Time{"a": now.Add(-time.Hour), "b": now}[x.User]; !x.At.Equal(want) {
				k.Errorf("%s was seen %v, want %v", x.User, x.At, want)
			}
		}
	}
	check()
	save() // nothing
	if got, err := k.s.Seen(k.ctx(), nil); err != nil || len(got) != 0 {
		k.Errorf("nobody: %+v, %v", got, err)
	}
	if err := k.s.SaveSeen(k.ctx(), lead, make([]store.Seen, store.MaxSeen+1)); err == nil {
		k.Error("too many are taken")
	}
	k.s = k.d.Reopen(k.T, k.s)
	check()
}

func visible(k *kit) {
	g := k.group("anna", "bob", "carl", "dora")
	k.group("zoe", "yves")
	must := func(want ...im.UserID) {
		k.Helper()
		got, err := k.s.Visible(k.ctx(), "anna", []im.UserID{"bob", "carl", "dora", "zoe", "nobody", "it's"})
		k.must(err)
		slices.Sort(got)
		if !slices.Equal(got, want) {
			k.Errorf("anna sees %v, want %v", got, want)
		}
	}
	must("bob", "carl", "dora")
	k.must(k.s.SetBlock(k.ctx(), "bob", "anna", true))
	must("carl", "dora")
	k.must(k.s.SetBlock(k.ctx(), "bob", "anna", false))
	k.must(k.s.SetBlock(k.ctx(), "anna", "carl", true))
	must("bob", "dora")
	k.remove(g, "anna", "dora")
	must("bob")
	k.change(store.Change{Conversation: g, Actor: "bob", RequestID: uuid(), Leave: true})
	must()
	if got, err := k.s.Visible(k.ctx(), "anna", nil); err != nil || len(got) != 0 {
		k.Errorf("nobody: %v, %v", got, err)
	}
}

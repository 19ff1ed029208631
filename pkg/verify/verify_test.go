package verify_test

import (
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/imdhq/imd/pkg/verify"
	"github.com/imdhq/imd/pkg/verify/verifytest"
)

func load(t interface{ Fatal(...any) }, m *verifytest.Made) *verify.History {
	h, err := verify.New(m.Run, m.Records())
	if err != nil {
		t.Fatal(err)
	}
	return h
}

func size(t *rapid.T) verifytest.Size {
	return verifytest.Size{
		Users: rapid.IntRange(3, 12).Draw(t, "users"), Conversations: rapid.IntRange(1, 6).Draw(t, "conversations"),
		Members: rapid.IntRange(2, 8).Draw(t, "members"), Messages: rapid.IntRange(40, 400).Draw(t, "messages"),
		Faults: rapid.IntRange(-1, 4).Draw(t, "faults"), Segment: rapid.Bool().Draw(t, "segment"),
	}
}

// What a good server leaves behind is found good, by each invariant.
func TestGoodHistoriesPass(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		made := verifytest.Good(rapid.Uint64().Draw(t, "seed"), size(t))
		r := verify.Judge(load(t, made), verify.Options{})
		if !r.Good {
			var b strings.Builder
			r.Text(&b)
			t.Fatal(b.String())
		}
		for _, inv := range r.Invariants {
			if inv.Checked == 0 {
				t.Errorf("%s checked nothing", inv.ID)
			}
		}
		if r.Counts.Undecided != 0 || r.Counts.Windows == 0 {
			t.Errorf("%d windows, %d undecided", r.Counts.Windows, r.Counts.Undecided)
		}
	})
}

// Each way to break an invariant is noticed by that invariant, whatever record
// it happens to.
func TestEveryMutantIsCaught(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		made := verifytest.Good(rapid.Uint64().Draw(t, "seed"), size(t))
		m, err := verify.Mutate(load(t, made), verify.MutateOptions{Seed: rapid.Uint64().Draw(t, "choice"), Each: 2})
		if err != nil {
			t.Fatal(err)
		}
		if !m.Good {
			var b strings.Builder
			m.Text(&b)
			t.Fatal(b.String())
		}
	})
}

// A history of ordinary size can be broken in each way at all.
func TestEveryMutationIsMade(t *testing.T) {
	for _, segment := range []bool{false, true} {
		made := verifytest.Good(1, verifytest.Size{Messages: 500, Segment: segment})
		m, err := verify.Mutate(load(t, made), verify.MutateOptions{})
		if err != nil {
			t.Fatal(err)
		}
		for _, k := range m.Kinds {
			if k.Made != 3 || k.Caught != k.Made {
				t.Errorf("%s, %s: caught %d of %d: %v", k.ID, k.Kind, k.Caught, k.Made, k.Missed)
			}
		}
	}
}

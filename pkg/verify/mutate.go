package verify

import (
	"errors"
	"fmt"
	"io"
	"iter"
	"math/rand/v2"
	"slices"
	"text/tabwriter"
)

// ErrNotGood refuses to mutate a history in which there are violations already:
// whether a mutant was noticed could not be told.
var ErrNotGood = errors.New("the history is not good, so that it cannot be mutated")

// MutateOptions say how many mutants to make. The zero value makes 3 of each
// kind from seed 0.
type MutateOptions struct {
	Seed uint64 // chooses the records
	Each int    // mutants of each kind; 0 = 3
	Options
}

// Mutations tells whether the judge noticed.
type Mutations struct {
	Good  bool       `json:"good"` // each invariant had mutants, and caught all of them
	Seed  uint64     `json:"seed"`
	Kinds []Mutation `json:"kinds"`
}

// Mutation is one way to break an invariant.
type Mutation struct {
	ID     string   `json:"id"` // of the invariant
	Kind   string   `json:"kind"`
	Made   int      `json:"made"` // 0 = the history has nothing that could be broken like this
	Caught int      `json:"caught"`
	Missed []string `json:"missed,omitempty"` // what was done to records without being caught
}

// Mutate corrupts a good history in every way an invariant forbids, one mutant
// at a time, and asks that invariant alone whether it notices. The history
// itself stays as it is. It fails with [ErrNotGood].
func Mutate(h *History, opt MutateOptions) (*Mutations, error) {
	if r := Judge(h, opt.Options); !r.Good {
		return nil, fmt.Errorf("%w: %d violations", ErrNotGood, r.Found())
	}
	if opt.Each <= 0 {
		opt.Each = 3
	}
	out := &Mutations{Good: true, Seed: opt.Seed}
	source := newIndex(h)
	for _, rule := range source.rules() {
		made := 0
		for i, kind := range mutations[rule.id] {
			rng := rand.New(rand.NewPCG(opt.Seed, uint64(i)))
			m := kind.try(source, rule, rng, opt)
			out.Kinds = append(out.Kinds, m)
			out.Good = out.Good && m.Caught == m.Made
			made += m.Made
		}
		out.Good = out.Good && made > 0
	}
	return out, nil
}

// kind is one way to break an invariant. make changes the mutant and says what
// it did, or "" if the history has nothing that it could break.
type kind struct {
	name string
	make func(*mutant) string
}

func (k kind) try(source *index, r rule, rng *rand.Rand, opt MutateOptions) Mutation {
	out := Mutation{ID: r.id, Kind: k.name}
	for range opt.Each {
		broken := *source.History
		m := &mutant{History: &broken, good: source, rng: rng, opt: opt.withDefaults()}
		what := k.make(m)
		if what == "" {
			break
		}
		out.Made++
		if r.run(newIndex(m.History), m.opt).Found > 0 {
			out.Caught++
		} else {
			out.Missed = append(out.Missed, what)
		}
	}
	return out
}

// mutant is a history on its way to be broken. Its slices are the good
// history's until they are changed: change them through own and without.
type mutant struct {
	*History
	good *index
	rng  *rand.Rand
	opt  Options
}

// own makes a slice of the mutant its own.
func own[T any](s *[]T) []T {
	*s = slices.Clone(*s)
	return *s
}

// without drops the elements at the given places.
func without[T any](s *[]T, drop ...int) {
	kept := make([]T, 0, len(*s))
	for i, v := range *s {
		if !slices.Contains(drop, i) {
			kept = append(kept, v)
		}
	}
	*s = kept
}

// choose picks one element, each with the same chance; ok is false if there is
// none.
func choose[T any](rng *rand.Rand, from iter.Seq[T]) (chosen T, ok bool) {
	n := 0
	for v := range from {
		if n++; rng.IntN(n) == 0 {
			chosen, ok = v, true
		}
	}
	return chosen, ok
}

// Text writes the table caught / made, one line for each kind, and what was
// missed.
func (m *Mutations) Text(w io.Writer) {
	tw := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(tw, "INVARIANT\tMUTATION\tCAUGHT\tMADE")
	caught, made := 0, 0
	for _, k := range m.Kinds {
		fmt.Fprintf(tw, "%s\t%s\t%d\t%d\n", k.ID, k.Kind, k.Caught, k.Made)
		caught, made = caught+k.Caught, made+k.Made
	}
	fmt.Fprintf(tw, "\tall\t%d\t%d\n", caught, made)
	_ = tw.Flush()
	for _, k := range m.Kinds {
		for _, what := range k.Missed {
			fmt.Fprintf(w, "missed by %s: %s: %s\n", k.ID, k.Kind, what)
		}
	}
	for _, id := range m.untried() {
		fmt.Fprintf(w, "%s was not tried: the history has nothing that could be broken\n", id)
	}
}

// untried are the invariants of which there was no mutant.
func (m *Mutations) untried() []string {
	var ids []string
	for _, k := range m.Kinds {
		if m.made(k.ID) == 0 && !slices.Contains(ids, k.ID) {
			ids = append(ids, k.ID)
		}
	}
	return ids
}

func (m *Mutations) made(id string) int {
	n := 0
	for _, k := range m.Kinds {
		if k.ID == id {
			n += k.Made
		}
	}
	return n
}

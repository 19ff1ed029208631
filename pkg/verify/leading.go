package verify

import (
	"fmt"
	"strings"

	"github.com/imdhq/imd/pkg/history"
)

// effects is I10: leaders act one after the other, and what they do for others happens, once.
func (c *check) effects() {
	var notes []string
	for _, part := range []func(*check) string{(*check).leading, (*check).events, (*check).pushes, (*check).scheduled, (*check).announced} {
		if note := part(c); note != "" {
			notes = append(notes, note)
		}
	}
	c.inv.Note = strings.Join(notes, "; ")
}

// shownOfAJob is how many violations of one job are kept, so that each job has a place among
// those that are shown.
const shownOfAJob = 5

// leading: each token has one holder, tokens rise, and once a token was
// given, no effect with an older one takes place. The records of leader.log stand
// in the order in which the store decided. It tells how much was judged; "" = nothing.
func (c *check) leading() string {
	terms, kept := map[name]*terms{}, map[name]int{}
	refused, given := 0, 0
	for i := range c.acts {
		a := &c.acts[i]
		if a.kind != history.Claim && a.kind != history.Effect {
			continue
		}
		t := terms[a.name]
		if t == nil {
			t = newTerms()
			terms[a.name] = t
		}
		if a.ack != ackOK {
			refused++
			continue
		}
		c.inv.Checked++
		before := t.newest
		what := t.step(a)
		if a.kind == history.Claim && what == "" && t.newest != before {
			given++
		}
		if what != "" {
			if a.reason != 0 {
				what += ": " + c.names.text(a.reason)
				if kept[a.reason]++; kept[a.reason] > shownOfAJob {
					c.inv.Found++
					continue
				}
			}
			c.fail(func() []Ref {
				if before == nil {
					return []Ref{c.actRef(a)}
				}
				return []Ref{c.actRef(before), c.actRef(a)}
			}, "%s", what)
		}
	}
	if c.inv.Checked == 0 {
		return ""
	}
	return fmt.Sprintf("%d tokens were given; %d claims and effects were refused", given, refused)
}

// terms are those of one election, or of one lock.
type terms struct {
	newest *act // the claim that was given the newest token; nil = none
	holder map[int64]name
}

func newTerms() *terms { return &terms{holder: map[int64]name{}} }

// step takes in what the store let happen, and says what is wrong with it.
func (t *terms) step(a *act) string {
	holder, known := t.holder[a.n]
	if a.kind == history.Claim {
		if t.newest != nil && a.n == t.newest.n && holder == a.user {
			return "" // the same claim once more
		}
		if known || t.newest != nil && a.n <= t.newest.n {
			return fmt.Sprintf("token %d was given again", a.n)
		}
		t.newest, t.holder[a.n] = a, a.user
		return ""
	}
	switch {
	case !known:
		return fmt.Sprintf("an effect with token %d, which nobody was given", a.n)
	case holder != a.user:
		return fmt.Sprintf("an effect with the token %d of another", a.n)
	case a.n != t.newest.n:
		return fmt.Sprintf("an effect with token %d took place after token %d was given", a.n, t.newest.n)
	}
	return ""
}

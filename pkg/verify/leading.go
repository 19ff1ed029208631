package verify

import (
	"fmt"

	"github.com/imdhq/imd/pkg/history"
)

// leading is I10: each token has one holder, tokens rise, and once a token was
// given, no effect with an older one takes place. The records of leader.log stand
// in the order in which the store decided.
func (c *check) leading() {
	terms := map[name]*terms{}
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
			c.fail(func() []Ref {
				if before == nil {
					return []Ref{c.actRef(a)}
				}
				return []Ref{c.actRef(before), c.actRef(a)}
			}, "%s", what)
		}
	}
	if c.inv.Checked > 0 {
		c.inv.Note = fmt.Sprintf("%d tokens were given; %d claims and effects were refused", given, refused)
	}
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

package failpoint

import (
	"reflect"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"
)

// What is written is read again as it was.
func TestRulesAreReadAsWritten(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		r := Rules{Shift: time.Duration(rapid.Int64Range(-int64(time.Hour), int64(time.Hour)).Draw(t, "shift"))}
		for range rapid.IntRange(0, 5).Draw(t, "rules") {
			rule := Rule{Point: rapid.SampledFrom(append(Points(), InJob("gather"))).Draw(t, "point"), Action: rapid.SampledFrom([]Action{Sleep, Exit, Panic, Fail, Stop}).Draw(t, "action")}
			if rule.Action == Sleep {
				rule.For = time.Duration(rapid.Int64Range(0, int64(time.Minute)).Draw(t, "for"))
			}
			if chance := rapid.Float64Range(0, 0.99).Draw(t, "chance"); chance > 0 {
				rule.Chance = chance
			}
			r.List = append(r.List, rule)
		}
		got, err := Parse(r.String())
		if err != nil || !reflect.DeepEqual(got, r) {
			t.Fatalf("%q is read as %+v, %v", r.String(), got, err)
		}
	})
}

func TestBadRules(t *testing.T) {
	for text, want := range map[string]string{
		"state.before_append":             "line 1",
		"\nnowhere exit":                  "line 2: there is no point",
		"scheduler.before_effect/ exit":   "line 1: there is no point",
		"store.before_commit hope":        "no action",
		"store.before_commit sleep":       "wants a duration",
		"store.before_commit sleep x":     "invalid duration",
		"store.before_commit exit 2":      "no probability",
		"store.before_commit exit NaN":    "no probability",
		"store.before_commit exit 0.5 x":  "too much",
		"clock exit":                      "shift and a duration",
		"clock shift":                     "shift and a duration",
		"clock shift tomorrow":            "invalid duration",
		"store.before_commit sleep 1s 0":  "no probability",
		"store.before_commit error 1e400": "no probability",
	} {
		if _, err := Parse(text); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, want %q", text, err, want)
		}
	}
}

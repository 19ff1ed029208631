package sim

import "testing"

// known is how many schedules it may take to catch a broken rule.
const known = 1000

// TestEachBrokenRuleIsCaught breaks one rule after the other. A judge that does
// not see it is of no use.
func TestEachBrokenRuleIsCaught(t *testing.T) {
	for _, bad := range Variants {
		t.Run(bad.String(), func(t *testing.T) {
			all := Sweep(t.Context(), 1, known, bad)
			if all.Failure == nil {
				t.Fatalf("not caught in %d schedules", all.Schedules)
			}
			t.Logf("caught by schedule %d: %s", all.Failure.Seed, all.Failure.Text)
		})
	}
}

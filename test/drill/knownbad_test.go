//go:build drill

package drill

import (
	"context"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	outcome "github.com/imdhq/imd/pkg/drill"
	"github.com/imdhq/imd/pkg/failpoint"
)

// caughtWithin is how long a drill may take to notice a defect.
const caughtWithin = 5 * time.Minute

// mistake is a defect and the drill that must notice it.
type mistake struct {
	defect failpoint.Defect
	what   string
	rules  string // fail points in force all the time, to hold a window open
	args   []string
	wants  []string // what violations must speak of, all of them; none = of anything
}

// alone takes away what would mend a lost delivery later.
var alone = []string{"--antientropy", "10m"}

var mistakes = []mistake{
	{failpoint.AckBeforeCommit, "the answer to a send leaves before its transaction is durable", "", []string{"--faults", "disk,kill"}, nil},
	{failpoint.NoDedupIndex, "nothing keeps a repeated send from being stored twice", "", []string{"--faults", "drop,kill"}, nil},
	{failpoint.PermissionBeforeDedup, "a repeated send is refused because its sender may not write any more, though it is stored", "", []string{"--faults", "members"}, nil},
	{failpoint.ReadBeforeSubscribe, "a session gets deliveries only from after its sync was read", "", append([]string{"--faults", "groups,reset"}, alone...), nil},
	{failpoint.SyncWithoutOverlap, "a sync token is taken after reading what it stands for", "state.before_fanout sleep 2500ms",
		append([]string{"--faults", "groups,reset", "--rate", "60"}, alone...), nil},
	{failpoint.CacheIsAuthority, "what Redis says of a repeated send is believed, whatever its content", "", []string{"--layout", "postgres", "--faults", "redis-mix"}, nil},
	{failpoint.NoAntiEntropy, "nothing compares heads, so that a lost fan-out is never found", "state.before_fanout error 0.3", []string{"--faults", "delay", "--antientropy", "1s"}, nil},
	{failpoint.NoFence, "a leader that was replaced still has effects", "", plane("node-pause", "0.55"), nil},
	{failpoint.NoFence, "the same with the jobs of schedulers", "", []string{"--layout", "split", "--faults", "leader-pause", "--minutes", "0.6", "--conns", "20", "--users", "20", "--rate", "20"},
		[]string{"gather", "webhooks", "handover", "push", "scheduled"}},
	{failpoint.NoRequireLeader, "nothing tells a watch that its member of etcd has lost the others", "", plane("member-partition", "0.65"), nil},
	{failpoint.AbsenceWhileAway, "that etcd does not answer counts as the absence of all nodes", "", plane("etcd-outage", "0.6"), nil},
}

// plane is a drill of the control plane, with few clients.
func plane(fault, minutes string) []string {
	return []string{"--layout", "control", "--faults", fault, "--minutes", minutes, "--conns", "20", "--users", "20", "--rate", "20"}
}

// judged is a defect that a drill cannot have in it or cannot see, and the test
// that notices it.
type judged struct {
	name, what string
	pkg, test  string
	sees       bool // the test has the defect in it, and passes if it is noticed; else it is given the defect and must fail
}

var tests = []judged{
	{string(failpoint.PlainReadFence), "an owner of a shard looks at its fence and does not hold it", "./test/segment", "TestKnownBadIsCaught/plain-read-fence", true},
	{string(failpoint.EarlyHead), "an owner reserves its numbers before it has taken over", "./test/segment", "TestKnownBadIsCaught/head-before-takeover", true},
	{string(failpoint.RetryUnmarked), "calls are repeated at other nodes, whatever their method says", "./pkg/peer", "TestOnlyMarkedMethodsAreRepeated", false},
	{string(failpoint.ReleaseAnySession), "the clean-up of a connection removes the route of its successor too", "./pkg/store/redis", "TestRoutes/only_the_exact_session_is_released", false},
	{string(failpoint.EpochWithoutTime), "route epochs begin again when the route store has forgotten them", "./pkg/store/redis", "TestRoutes/route_epochs_rise_over_a_loss", false},
	{string(failpoint.AbsenceCached), "that a user has no route is remembered", "./pkg/store/redis", "TestAbsenceIsNotRemembered", false},
	{string(failpoint.ParkBuffered), "a connection is parked with bytes in its buffer", "./modules/gateway", "TestMessagesArriveHoweverTheyAreCut", false},
	{string(failpoint.RetainYoung), "retention lets go what is an hour too young", "./pkg/store/sqlite", "TestConformance/what_is_old_goes_from_everyone's_sight", false},
	{string(failpoint.UnboundedQueue), "nothing bounds what waits for a connection", "./modules/gateway", "TestQueueBounds", false},
	{"no comparison of digests", "a device believes that syncs tell of every head", "./pkg/sim", "TestEachBrokenRuleIsCaught/no_comparison_of_digests", true},
	{"run not prefix-closed", "later sends of a device go on after one was refused", "./pkg/sim", "TestEachBrokenRuleIsCaught/run_continued_after_a_retry", true},
}

// hunt runs the test until the defect is noticed, and returns the row of the
// table. What comes about by chance may take several tries, as drills do.
func (j judged) hunt(t *testing.T) string {
	t.Helper()
	how, sound, env := "the judge", "^$", []string(nil) // sound only compiles
	if !j.sees {
		how, sound, env = "fails", j.pattern(), []string{failpoint.BadVar + "=" + j.name}
	}
	if out, err := j.run(t, sound); err != nil {
		t.Errorf("%s without the defect: %v\n%s", j.pkg, err, out)
		return ""
	}
	for began := time.Now(); time.Since(began) < caughtWithin; {
		if out, err := j.run(t, j.pattern(), env...); (err == nil) == j.sees {
			return fmt.Sprintf("| `%s` | %s | test `%s` in `%s` | - | %s | %.0f s |", j.name, j.what, j.test, j.pkg, how, time.Since(began).Seconds())
		} else if !j.sees {
			t.Logf("the test passes with the defect: %s", out)
		}
	}
	t.Errorf("not noticed by %s in %s", j.test, j.pkg)
	return ""
}

func (j judged) pattern() string { return "^" + strings.ReplaceAll(j.test, "/", "$/^") + "$" }

// run runs tests of the package in a build with the tag drill.
func (j judged) run(t *testing.T, pattern string, env ...string) (string, error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), caughtWithin)
	defer cancel()
	cmd := exec.CommandContext(ctx, "go", "test", "-trimpath", "-tags", "drill", "-count=1", "-run", pattern, j.pkg)
	cmd.Dir = "../.."
	cmd.Env = append(os.Environ(), env...)
	out, err := cmd.CombinedOutput()
	return string(out), err
}

// Each defect is noticed, and without it the same drill finds nothing.
func TestKnownBad(t *testing.T) {
	if outcome.Impossible(outcome.Disk, outcome.AllInOne()) != "" {
		mistakes[0].args = []string{"--faults", "kill"}
		mistakes[0].rules = "store.before_commit sleep 20ms"
	}
	var rows []string
	for _, m := range mistakes {
		t.Run(string(m.defect), func(t *testing.T) {
			row := m.hunt(t)
			if row != "" {
				t.Log(row)
				rows = append(rows, row)
			}
		})
	}
	for _, j := range tests {
		t.Run(j.name, func(t *testing.T) {
			if row := j.hunt(t); row != "" {
				t.Log(row)
				rows = append(rows, row)
			}
		})
	}
	if len(rows) == 0 && !t.Failed() {
		t.Fatal("no case has this name")
	}
	if path := os.Getenv("IMD_TEST_TABLE"); path != "" && !t.Failed() {
		if err := writeTable(path, rows); err != nil {
			t.Fatal(err)
		}
	}
}

// hunt plays drills until the defect is noticed and returns its row of the table.
func (m mistake) hunt(t *testing.T) string {
	t.Helper()
	env := []string{}
	if m.rules != "" {
		path := filepath.Join(t.TempDir(), "points")
		if err := os.WriteFile(path, []byte(m.rules+"\n"), 0o600); err != nil {
			t.Fatal(err)
		}
		env = append(env, failpoint.FileVar+"="+path)
	}
	began, seen := time.Now(), map[string]bool{}
	for seed := 1; ; seed++ {
		left := caughtWithin - time.Since(began)
		if left < time.Minute {
			t.Errorf("not noticed in %v, up to seed %d", caughtWithin, seed)
			return ""
		}
		out := m.drill(t, left, seed, append(env, failpoint.BadVar+"="+string(m.defect)))
		if out == nil || out.Verdict.Good {
			continue // also a crash of the node is no finding of the judge
		}
		for _, inv := range out.Verdict.Invariants {
			for _, v := range inv.Violations {
				_, of, _ := strings.Cut(v.Text, ": ")
				seen[of] = true
			}
		}
		if slices.ContainsFunc(m.wants, func(w string) bool { return !seen[w] }) {
			t.Logf("of %v only %v were noticed so far", m.wants, slices.Sorted(maps.Keys(seen)))
			continue
		}
		took := time.Since(began)
		if good := m.drill(t, caughtWithin, seed, env); good == nil || !good.Good {
			t.Errorf("the same drill without the defect is not good")
			if good != nil {
				t.Log(text(good))
			}
			return ""
		}
		return m.row(out, seed, took)
	}
}

func (m mistake) drill(t *testing.T, limit time.Duration, seed int, env []string) *outcome.Outcome {
	t.Helper()
	args := append([]string{"--minutes", "0.5", "--settle", "10s", "--seed", fmt.Sprint(seed), "--keep", filepath.Join(t.TempDir(), fmt.Sprint(seed))}, m.args...)
	return play(t, limit, env, args...)
}

func (m mistake) row(out *outcome.Outcome, seed int, took time.Duration) string {
	var by []string
	for _, inv := range out.Verdict.Invariants {
		if inv.Found > 0 {
			by = append(by, fmt.Sprintf("%s (%d)", inv.ID, inv.Found))
		}
	}
	if len(m.wants) > 0 {
		by = append(by, "in the jobs "+strings.Join(m.wants, ", "))
	}
	return fmt.Sprintf("| `%s` | %s | `%s` | %d | %s | %.0f s |", m.defect, m.what, strings.Join(m.args, " "), seed, strings.Join(by, ", "), took.Seconds())
}

const (
	tableBegin = "<!-- known-bad builds: written by make known-bad -->"
	tableEnd   = "<!-- end of known-bad builds -->"
)

// writeTable puts rows into the table of a document, in place of those of the same
// cases; those of other cases stay as they are, and those of no case go.
func writeTable(path string, rows []string) error {
	doc, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	before, rest, ok := strings.Cut(string(doc), tableBegin)
	old, after, end := strings.Cut(rest, tableEnd)
	if !ok || !end {
		return fmt.Errorf("%s has no place for the table of known-bad builds", path)
	}
	rows = append(rows, strings.Split(old, "\n")...)
	var table []string
	for _, c := range cases() {
		if i := slices.IndexFunc(rows, func(r string) bool { return strings.HasPrefix(r, c) }); i >= 0 {
			table = append(table, rows[i])
		}
	}
	text := "\n\n| Defect | What is wrong | Drill | Seed | Caught by (violations) | Time to detection |\n|---|---|---|---|---|---|\n" + strings.Join(table, "\n") + "\n\n"
	return os.WriteFile(path, []byte(before+tableBegin+text+tableEnd+after), 0o644)
}

// cases are the beginnings of all rows.
func cases() (all []string) {
	for _, m := range mistakes {
		all = append(all, fmt.Sprintf("| `%s` | %s |", m.defect, m.what))
	}
	for _, j := range tests {
		all = append(all, fmt.Sprintf("| `%s` | %s |", j.name, j.what))
	}
	return all
}

package etcd

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"
)

// Verdict is the outcome of one check.
type Verdict string

// The verdicts.
const (
	Good    Verdict = "ok"
	Doubt   Verdict = "warn" // it works, but should be seen to
	Failing Verdict = "fail" // it does not work, or soon will not
)

// Finding is one check with what to do about it.
type Finding struct {
	Check   string  `json:"check"`
	Verdict Verdict `json:"verdict"`
	Text    string  `json:"text"`
	Fix     string  `json:"fix,omitempty"`
}

// Bounds of the checks.
const (
	oldestVersion = "3.5.13" // requested progress answers are right from here on
	fsyncDoubt    = 10 * time.Millisecond
	fsyncFailing  = 250 * time.Millisecond
	commitDoubt   = 25 * time.Millisecond
	commitFailing = 500 * time.Millisecond
	writeDoubt    = 50 * time.Millisecond
	writeFailing  = time.Second
	fillDoubt     = 0.6
	fillFailing   = 0.9
	skewDoubt     = 2 * time.Second
	skewFailing   = 30 * time.Second
	keptRevisions = 100_000 // without any compaction, more than this looks like none at all
	defaultQuota  = 2 << 30 // of etcd, where it does not tell
)

// Judge turns facts into findings, one for each check, in a fixed order.
func (f Facts) Judge() []Finding {
	var out []Finding
	for _, check := range []func() Finding{
		f.reach, f.quorum, f.members, f.version, f.write, f.fsync, f.commit, f.size, f.alarms, f.compaction, f.clock,
	} {
		if finding := check(); finding.Check != "" {
			out = append(out, finding)
		}
	}
	return out
}

// answering are the endpoints that answered.
func (f Facts) answering() []EndpointFacts {
	return slices.DeleteFunc(slices.Clone(f.Endpoints), func(e EndpointFacts) bool { return e.Err != nil })
}

func (f Facts) reach() Finding {
	var dead []string
	for _, e := range f.Endpoints {
		if e.Err != nil {
			dead = append(dead, fmt.Sprintf("%s (%v)", e.URL, e.Err))
		}
	}
	switch {
	case len(dead) == 0:
		return Finding{"endpoints", Good, fmt.Sprintf("all %d answer", len(f.Endpoints)), ""}
	case len(dead) == len(f.Endpoints):
		return Finding{"endpoints", Failing, "none answers: " + strings.Join(dead, ", "), "start etcd, or correct controlplane.endpoints"}
	}
	return Finding{"endpoints", Doubt, "without an answer: " + strings.Join(dead, ", "), "start that member, or take it out of controlplane.endpoints"}
}

func (f Facts) quorum() Finding {
	up := f.answering()
	if len(up) == 0 {
		return Finding{}
	}
	leaders, clusters := map[uint64]bool{}, map[uint64]bool{}
	for _, e := range up {
		leaders[e.Leader], clusters[e.Cluster] = true, true
	}
	switch {
	case len(clusters) > 1:
		return Finding{"quorum", Failing, "the endpoints belong to different clusters", "list the members of one cluster in controlplane.endpoints"}
	case leaders[0]:
		return Finding{"quorum", Failing, "there is no leader, so nothing can be written", "start the members that are missing; a majority is needed"}
	case len(leaders) > 1:
		return Finding{"quorum", Doubt, "the members name different leaders; an election is under way", "look again in a few seconds"}
	}
	return Finding{"quorum", Good, "all name one leader", ""}
}

func (f Facts) members() Finding {
	fix := "an odd number, 3 or 5, bears the most for its price"
	switch n := f.Members; {
	case errors.Is(f.MemberErr, errNotTried):
		return Finding{"members", Doubt, f.MemberErr.Error(), "see the findings above"}
	case f.MemberErr != nil:
		return Finding{"members", Doubt, "cannot be listed: " + f.MemberErr.Error(), "the user needs the role root for that"}
	case n == 1:
		return Finding{"members", Doubt, "one member: its loss stops registrations, elections and settings", fix}
	case n%2 == 0:
		return Finding{"members", Doubt, fmt.Sprintf("%d members bear no more losses than %d", n, n-1), fix}
	case n > 7:
		return Finding{"members", Doubt, fmt.Sprintf("%d members make each write slow", n), fix}
	case len(f.Endpoints) < n:
		return Finding{"members", Doubt, fmt.Sprintf("%d members, but only %d endpoints are configured", n, len(f.Endpoints)), "list all of them, or set controlplane.follow_members"}
	}
	return Finding{"members", Good, fmt.Sprintf("%d members, which bear the loss of %d", f.Members, (f.Members-1)/2), ""}
}

func (f Facts) version() Finding {
	var seen []string
	old := false
	for _, e := range f.answering() {
		if !slices.Contains(seen, e.Version) {
			seen = append(seen, e.Version)
		}
		old = old || compareVersions(e.Version, oldestVersion) < 0
	}
	slices.Sort(seen)
	text := strings.Join(seen, ", ")
	switch {
	case len(seen) == 0:
		return Finding{}
	case old:
		return Finding{"version", Failing, text + " is older than " + oldestVersion + ", whose watches may miss changes", "upgrade etcd"}
	case len(seen) > 1:
		return Finding{"version", Doubt, "mixed: " + text, "finish the upgrade"}
	}
	return Finding{"version", Good, text, ""}
}

// compareVersions compares such as 3.5.13 and 3.6.0-rc.1 by their numbers.
func compareVersions(a, b string) int {
	numbers := func(s string) []int {
		var out []int
		for _, part := range strings.Split(strings.SplitN(s, "-", 2)[0], ".") {
			n, _ := strconv.Atoi(part) // what is no number counts as 0
			out = append(out, n)
		}
		return out
	}
	return slices.CompareFunc(numbers(a), numbers(b), func(x, y int) int { return cmp.Compare(x, y) })
}

func (f Facts) write() Finding {
	if errors.Is(f.WriteErr, errNotTried) {
		return Finding{"writes", Failing, f.WriteErr.Error(), "see the findings above"}
	}
	if f.WriteErr != nil || len(f.Writes) == 0 {
		return Finding{"writes", Failing, fmt.Sprintf("cannot write: %v", f.WriteErr), "see the findings above; a user needs the right to write below the cluster's prefix"}
	}
	middle, worst := f.Writes[len(f.Writes)/2], f.Writes[len(f.Writes)-1]
	text := fmt.Sprintf("a write takes %v, at most %v of %d", round(middle), round(worst), len(f.Writes))
	return Finding{"writes", grade(middle, writeDoubt, writeFailing), text, unless(middle < writeDoubt, "look at the disks of the members and the network between them")}
}

func (f Facts) fsync() Finding {
	return f.latency("fsync", func(e EndpointFacts) time.Duration { return e.Fsync }, fsyncDoubt, fsyncFailing, "give etcd a disk of its own, best an SSD")
}

func (f Facts) commit() Finding {
	return f.latency("commit", func(e EndpointFacts) time.Duration { return e.Commit }, commitDoubt, commitFailing, "give etcd a faster disk; defragment a large database")
}

// latency judges the worst of a figure of the members.
func (f Facts) latency(check string, of func(EndpointFacts) time.Duration, doubt, failing time.Duration, fix string) Finding {
	worst, known := time.Duration(0), false
	for _, e := range f.answering() {
		known = known || e.Metrics
		worst = max(worst, of(e))
	}
	if !known {
		return Finding{check, Doubt, "not known: the members' /metrics cannot be read", "let this machine read them, or look at them elsewhere"}
	}
	return Finding{check, grade(worst, doubt, failing), fmt.Sprintf("p99 at most %v", round(worst)), unless(worst < doubt, fix)}
}

func (f Facts) size() Finding {
	fill, text := 0.0, ""
	for _, e := range f.answering() {
		quota := e.Quota
		if quota == 0 {
			quota = defaultQuota
		}
		if share := float64(e.DB) / float64(quota); text == "" || share > fill {
			fill, text = share, fmt.Sprintf("%d of %d MiB (%.0f %%)", e.DB>>20, quota>>20, share*100)
		}
	}
	if text == "" {
		return Finding{}
	}
	return Finding{"size", grade(fill, fillDoubt, fillFailing), text, unless(fill < fillDoubt, "compact and defragment; raise the quota if the data is really that large")}
}

func (f Facts) alarms() Finding {
	if len(f.Alarms) == 0 {
		return Finding{"alarms", Good, "none", ""}
	}
	return Finding{"alarms", Failing, strings.Join(f.Alarms, ", "), "NOSPACE: compact, defragment, then etcdctl alarm disarm; CORRUPT: replace that member"}
}

func (f Facts) compaction() Finding {
	known, off := false, false
	for _, e := range f.answering() {
		known = known || e.Metrics
		off = off || e.Metrics && e.Compacted <= 0 && e.Rev > keptRevisions
	}
	switch {
	case !known:
		return Finding{"compaction", Doubt, "not known: the members' /metrics cannot be read", "see that --auto-compaction-retention is set, such as to 2h"}
	case off:
		return Finding{"compaction", Doubt, "nothing was ever compacted; the database grows until writes stop", "set --auto-compaction-retention, such as to 2h"}
	}
	return Finding{"compaction", Good, "old revisions are compacted, or there are few", ""}
}

func (f Facts) clock() Finding {
	worst, at := time.Duration(0), ""
	for _, e := range f.answering() {
		if e.Metrics && e.Skew.Abs() >= worst.Abs() {
			worst, at = e.Skew, e.URL
		}
	}
	if at == "" {
		return Finding{"clock", Doubt, "not known: the members' /metrics cannot be read", "see that all machines follow one time server"}
	}
	text := fmt.Sprintf("within %v of ours", skewDoubt)
	if worst.Abs() >= skewDoubt {
		text = fmt.Sprintf("%s is %v off ours", at, worst.Round(time.Second))
	}
	return Finding{"clock", grade(worst.Abs(), skewDoubt, skewFailing), text, unless(worst.Abs() < skewDoubt, "let all machines follow one time server")}
}

func grade[T cmp.Ordered](v, doubt, failing T) Verdict {
	switch {
	case v >= failing:
		return Failing
	case v >= doubt:
		return Doubt
	}
	return Good
}

func unless(good bool, fix string) string {
	if good {
		return ""
	}
	return fix
}

func round(d time.Duration) time.Duration {
	if d < 10*time.Millisecond {
		return d.Round(10 * time.Microsecond)
	}
	return d.Round(time.Millisecond)
}

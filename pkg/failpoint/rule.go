package failpoint

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"
)

// The environment variables that builds with the tag drill read, once, at start.
const (
	// FileVar names the file of rules.
	FileVar = "IMD_TEST_POINTS"
	// BadVar names a defect.
	BadVar = "IMD_TEST_BAD"
)

// InForce is in what a process says on standard error once it follows the rules in the
// file, each time they have changed.
const InForce = "the rules are in force"

// RedisClock is the key in Redis that moves its clock for builds with the tag drill, by so
// many seconds.
const RedisClock = "imd:drill:clock"

// Point is a line of the server that rules can name.
type Point string

// The points.
const (
	BeforeAppend Point = "state.before_append"     // a lane is about to call the store
	AfterAppend  Point = "state.after_append"      // the store has committed, nobody has been told
	BeforeFanout Point = "state.before_fanout"     // senders have their answers, push knows nothing yet
	BeforeCommit Point = "store.before_commit"     // everything is written, the transaction still open
	AfterCommit  Point = "store.after_commit"      // durable, and the caller does not know it
	BeforeEffect Point = "scheduler.before_effect" // the leader is about to prove its token
	BeforeWrite  Point = "gateway.before_write"    // a message is about to go into a client's socket
	BeforeSwap   Point = "config.before_swap"      // settings were judged good and are about to be in force
)

// Points lists all points.
func Points() []Point {
	return []Point{BeforeAppend, AfterAppend, BeforeFanout, BeforeCommit, AfterCommit, BeforeEffect, BeforeWrite, BeforeSwap}
}

// InJob is BeforeEffect in one job of the leader: scheduler.before_effect/JOB.
func InJob(job string) Point { return BeforeEffect + "/" + Point(job) }

// known reports whether there is such a point.
func (p Point) known() bool {
	job, in := strings.CutPrefix(string(p), string(BeforeEffect)+"/")
	return slices.Contains(Points(), p) || in && job != ""
}

// Defect is a mistake that a drill must notice.
type Defect string

// The defects.
const (
	AckBeforeCommit       Defect = "ack-before-commit"       // the answer leaves before the transaction is durable
	NoDedupIndex          Defect = "no-dedup-index"          // nothing keeps a key from being stored twice
	PermissionBeforeDedup Defect = "permission-before-dedup" // a repeat is refused though the first copy is stored
	ReadBeforeSubscribe   Defect = "read-before-subscribe"   // a session can be found only after its sync was read
	NoFence               Defect = "no-fence"                // a leader that was replaced still has effects
	SyncWithoutOverlap    Defect = "sync-without-overlap"    // a sync token stands for more than the sync has read
	PlainReadFence        Defect = "plain-read-fence"        // an owner of a shard looks at its fence and does not hold it
	EarlyHead             Defect = "head-before-takeover"    // an owner reserves its numbers before it has taken over
	CacheIsAuthority      Defect = "cache-is-authority"      // what the dedup cache says of a repeat is not compared with it
	NoAntiEntropy         Defect = "no-anti-entropy"         // gateways never compare heads
	NoRequireLeader       Defect = "no-require-leader"       // nothing tells a watch that its member of etcd has lost the others
	RetryUnmarked         Defect = "retry-unmarked"          // calls are repeated at other nodes, whatever their method says
	AbsenceWhileAway      Defect = "absence-while-away"      // that etcd does not answer counts as the absence of all nodes
	ReleaseAnySession     Defect = "release-any-session"     // the clean-up of a connection removes the route of its successor too
	EpochWithoutTime      Defect = "epoch-without-time"      // route epochs begin again when the route store has forgotten them
	AbsenceCached         Defect = "absence-cached"          // that a user has no route is remembered
	ParkBuffered          Defect = "park-buffered"           // a connection is parked with bytes in its buffer
	RetainYoung           Defect = "retain-young"            // retention lets go what is an hour too young
	UnboundedQueue        Defect = "unbounded-queue"         // nothing bounds what waits for a connection
)

// Action is what a rule does.
type Action string

// The actions.
const (
	Sleep Action = "sleep"
	Exit  Action = "exit"
	Panic Action = "panic"
	Fail  Action = "error"
	Stop  Action = "stop"
)

// Rule is one line of the file.
type Rule struct {
	Point  Point
	Action Action
	For    time.Duration // of a sleep
	Chance float64       // 0 to 1 of being carried out when the point is reached; 0 = 1
}

// Rules are the whole file.
type Rules struct {
	List  []Rule
	Shift time.Duration // of the clock
}

// String is the form that Parse reads.
func (r Rules) String() string {
	var b strings.Builder
	for _, rule := range r.List {
		fmt.Fprintf(&b, "%s %s", rule.Point, rule.Action)
		if rule.Action == Sleep {
			fmt.Fprintf(&b, " %v", rule.For)
		}
		if rule.Chance > 0 && rule.Chance < 1 {
			fmt.Fprintf(&b, " %v", rule.Chance)
		}
		b.WriteByte('\n')
	}
	if r.Shift != 0 {
		fmt.Fprintf(&b, "clock shift %v\n", r.Shift)
	}
	return b.String()
}

// Parse reads rules. Empty lines are skipped. The error names the line.
func Parse(text string) (Rules, error) {
	var all Rules
	n := 0
	for line := range strings.Lines(text) {
		n++
		f := strings.Fields(line)
		if len(f) == 0 {
			continue
		}
		if err := all.add(f); err != nil {
			return Rules{}, fmt.Errorf("line %d: %w", n, err)
		}
	}
	return all, nil
}

func (r *Rules) add(f []string) (err error) {
	if len(f) < 2 {
		return errors.New("a point and an action are wanted")
	}
	if f[0] == "clock" {
		if f[1] != "shift" || len(f) != 3 {
			return errors.New("the clock knows shift and a duration")
		}
		r.Shift, err = time.ParseDuration(f[2])
		return err
	}
	rule := Rule{Point: Point(f[0]), Action: Action(f[1])}
	if !rule.Point.known() {
		return fmt.Errorf("there is no point %q", f[0])
	}
	rest := f[2:]
	switch rule.Action {
	case Sleep:
		if len(rest) == 0 {
			return errors.New("sleep wants a duration")
		}
		if rule.For, err = time.ParseDuration(rest[0]); err != nil {
			return err
		}
		rest = rest[1:]
	case Exit, Panic, Fail, Stop:
	default:
		return fmt.Errorf("there is no action %q", f[1])
	}
	if len(rest) > 0 {
		rule.Chance, err = strconv.ParseFloat(rest[0], 64)
		if err != nil || !(rule.Chance > 0 && rule.Chance <= 1) || math.IsNaN(rule.Chance) {
			return fmt.Errorf("%q is no probability", rest[0])
		}
		rest = rest[1:]
	}
	if len(rest) > 0 {
		return fmt.Errorf("%q is too much", rest[0])
	}
	r.List = append(r.List, rule)
	return nil
}

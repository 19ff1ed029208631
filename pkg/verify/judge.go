package verify

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"github.com/imdhq/imd/pkg/history"
)

// Options are what a verdict may depend on. The zero value means the defaults.
type Options struct {
	// Share is how much of the sends outside fault windows must be acknowledged
	// within [Prompt]; 0 = 0.95.
	Share float64
	// SearchFor bounds the search for a linear order of one window of
	// operations; 0 = 10 s.
	SearchFor time.Duration
}

func (o Options) withDefaults() Options {
	o.Share = cmp.Or(o.Share, 0.95)
	o.SearchFor = cmp.Or(o.SearchFor, 10*time.Second)
	return o
}

// Report is the verdict on a history.
type Report struct {
	Good         bool         `json:"good"` // no violation
	Run          RunFacts     `json:"run"`
	Counts       Counts       `json:"counts"`
	Availability Availability `json:"availability"`
	Invariants   []Invariant  `json:"invariants"`
}

// RunFacts say what was recorded.
type RunFacts struct {
	Seed      uint64         `json:"seed"`
	Server    string         `json:"server"`
	Allocator string         `json:"allocator"`
	Began     string         `json:"began"`
	Seconds   float64        `json:"seconds"`
	HealedAt  float64        `json:"healed_at_s"` // 0 = there were no faults
	Options   map[string]any `json:"options,omitempty"`
}

// Counts say how much was judged.
type Counts struct {
	Records       int `json:"records"`
	Sends         int `json:"sends"`    // keys
	Invokes       int `json:"invokes"`  // sends leaving, again and again
	Acked         int `json:"acked"`    // sends
	Refused       int `json:"refused"`  // sends whose last answer is ACK_FAIL
	Unknown       int `json:"unknown"`  // answers that never came, on their connection
	Retries       int `json:"retries"`  // answers ACK_RETRY
	GivenUp       int `json:"given_up"` // sends without a definite answer
	Duplicates    int `json:"duplicates"`
	Rows          int `json:"rows"`
	Messages      int `json:"messages"`
	Unrecorded    int `json:"unrecorded"` // messages of senders that were not recorded
	Conversations int `json:"conversations"`
	Users         int `json:"users"`
	Devices       int `json:"devices"`
	Settled       int `json:"settled"` // devices, after healing
	Shows         int `json:"shows"`
	Connects      int `json:"connects"`
	Resyncs       int `json:"resyncs"`
	Faults        int `json:"faults"`
	Effects       int `json:"effects,omitempty"`   // of leaders, also refused ones
	Leaders       int `json:"leaders,omitempty"`   // tokens that were given
	Puts          int `json:"puts,omitempty"`      // of settings
	Made          int `json:"ids_made,omitempty"`  // beside those of messages
	Processes     int `json:"processes,omitempty"` // of nodes that told what they saw
	Logins        int `json:"logins,omitempty"`    // of users of whom one login may be in
	RouteCalls    int `json:"route_calls,omitempty"`
	Sights        int `json:"sights,omitempty"` // changes of who was seen online
	Windows       int `json:"windows"`          // of operations whose linear order was searched
	Undecided     int `json:"undecided"`        // of them, those whose search ran out of time
}

// Invariant is the verdict on one promise.
type Invariant struct {
	ID         string      `json:"id"`
	Title      string      `json:"title"`
	Checked    int         `json:"checked"` // how many cases; 0 = the history had none
	Found      int         `json:"found"`   // violations in all
	Violations []Violation `json:"violations,omitempty"`
	Note       string      `json:"note,omitempty"`
}

// Violation is one broken promise.
type Violation struct {
	Text    string `json:"text"`
	Records []Ref  `json:"records"`
}

// maxViolations bounds the violations that are kept of each invariant.
const maxViolations = 50

// check is an invariant at work.
type check struct {
	*index
	opt Options
	inv *Invariant

	left map[key]*send // made when first needed
}

// fail notes a violation. refs is called only if the violation is kept.
func (c *check) fail(refs func() []Ref, format string, args ...any) {
	c.inv.Found++
	if len(c.inv.Violations) < maxViolations {
		c.inv.Violations = append(c.inv.Violations, Violation{fmt.Sprintf(format, args...), refs()})
	}
}

// rule is an invariant.
type rule struct {
	id, title string
	judge     func(*check)
	of        []history.Kind // only of histories with records of one of these kinds; nil = of all
}

// rules are all invariants, in the order of the report.
var rules = []rule{
	{"I1", "no acknowledged message is lost or changed", (*check).acked, nil},
	{"I2", "nothing comes from nowhere, nothing is altered", (*check).origin, nil},
	{"I3", "one answer and one row for each key", (*check).answers, nil},
	{"I4", "the log is in order and names its predecessors", (*check).order, nil},
	{"I5", "the order of the log respects real time", (*check).realTime, nil},
	{"I6", "a device's messages keep the order in which it sent them", (*check).fifo, nil},
	{"I7", "every device shows everything that it may see", (*check).complete, nil},
	{"I8", "nothing is shown twice or out of order", (*check).rising, nil},
	{"I9", "a view never goes back", (*check).back, nil},
	{"I10", "only the leader has effects, each of them once", (*check).effects, append([]history.Kind{history.Claim, history.Effect}, deedKinds...)},
	{"I11", "the route store acts as if one call came after the other", (*check).routing, []history.Kind{history.Route}},
	{"I12", "a new login ends the others, and nothing else does", (*check).logins, []history.Kind{history.Login}},
	{"I13", "who is online is seen soon", (*check).presence, []history.Kind{history.Sight}},
	{"I14", "message ids are unique", (*check).ids, nil},
	{"I15", "settings are in force as a whole, and soon everywhere", (*check).settings, []history.Kind{history.Put, history.Applied}},
	{"I16", "living nodes are used and dead ones are not", (*check).discovery, []history.Kind{history.Began, history.Seen}},
	{"I17", "nothing is shown to those who may not see it", (*check).authorisation, nil},
	{"I18", "the server stays available", (*check).available, nil},
	{"I19", "every send gets a definite answer in the end", (*check).resolved, nil},
	{"I20", "syncs tell of every head", (*check).digests, []history.Kind{history.Digest}},
}

// Judge runs every invariant over the history. It reads the history only.
func Judge(h *History, opt Options) *Report {
	x, opt := newIndex(h), opt.withDefaults()
	r := &Report{Good: true, Run: facts(h), Availability: x.availability(opt)}
	for _, rule := range x.rules() {
		inv := rule.run(x, opt)
		r.Good = r.Good && inv.Found == 0
		r.Invariants = append(r.Invariants, *inv)
	}
	r.Counts = x.counts()
	return r
}

// rules are those that the history is judged by.
func (x *index) rules() []rule {
	kinds := map[history.Kind]bool{}
	for i := range x.acts {
		kinds[x.acts[i].kind] = true
	}
	for i := range x.deeds {
		kinds[x.deeds[i].kind] = true
	}
	kinds[history.Digest] = slices.ContainsFunc(x.views, func(v view) bool { return v.digest() })
	return slices.DeleteFunc(slices.Clone(rules), func(r rule) bool {
		return r.of != nil && !slices.ContainsFunc(r.of, func(k history.Kind) bool { return kinds[k] })
	})
}

func (r rule) run(x *index, opt Options) *Invariant {
	inv := &Invariant{ID: r.id, Title: r.title}
	r.judge(&check{index: x, opt: opt, inv: inv})
	return inv
}

func facts(h *History) RunFacts {
	return RunFacts{Seed: h.Run.Seed, Server: h.Run.Server, Allocator: h.Run.Allocator, Began: h.Run.Began,
		Seconds: seconds(h.Run.Ended), HealedAt: seconds(h.Run.Healed), Options: h.Run.Options}
}

// seconds turns nanoseconds into seconds, to the millisecond.
func seconds(ns int64) float64 { return float64(ns/1e6) / 1e3 }

// Idle names the invariants for which the history held nothing to check. Their
// silence proves nothing.
func (r *Report) Idle() []string {
	var ids []string
	for _, inv := range r.Invariants {
		if inv.Checked == 0 {
			ids = append(ids, inv.ID)
		}
	}
	return ids
}

// Found is the number of violations of all invariants.
func (r *Report) Found() int {
	n := 0
	for _, inv := range r.Invariants {
		n += inv.Found
	}
	return n
}

// counts adds up the history.
func (x *index) counts() Counts {
	c := Counts{Records: len(x.ops) + len(x.views) + len(x.rows) + len(x.spans) + len(x.faults) + len(x.acts) + len(x.deeds), Sends: len(x.sends()), Rows: len(x.rows),
		Windows: x.windows, Undecided: x.undecided}
	users := x.recorded()
	c.Users = len(users)
	for i := range x.ops {
		switch x.ops[i].ack {
		case ackNone:
			c.Invokes++
		case ackRetry:
			c.Retries++
		case ackUnknown:
			c.Unknown++
		case ackOK:
			if x.ops[i].dup {
				c.Duplicates++
			}
		}
	}
	for i := range x.sendList {
		s := &x.sendList[i]
		if s.acked != never {
			c.Acked++
		}
		switch last := x.last(s); {
		case last == nil:
			c.GivenUp++
		case last.ack == ackFail:
			c.Refused++
		}
	}
	for i := range x.rows {
		if x.rows[i].entry == nameMessage {
			c.Messages++
			if !users[x.rows[i].sender] {
				c.Unrecorded++
			}
		}
	}
	_, convs := x.ordered()
	c.Conversations = len(convs)
	x.countViews(&c)
	return c
}

func (x *index) countViews(c *Counts) {
	for i := range x.views {
		switch x.views[i].kind {
		case viewShow:
			c.Shows++
		case viewConnect:
			c.Connects++
		case viewResync:
			c.Resyncs++
		}
	}
	_, wide := x.stories()
	c.Devices = len(wide)
	for _, w := range wide {
		if x.settled(w) != never {
			c.Settled++
		}
	}
	for i := range x.faults {
		if !x.faults[i].stop {
			c.Faults++
		}
	}
	for i := range x.acts {
		switch a := &x.acts[i]; a.kind {
		case history.Effect:
			c.Effects++
		case history.Claim:
			if a.ack == ackOK {
				c.Leaders++
			}
		case history.Put:
			c.Puts++
		case history.Made:
			c.Made++
		case history.Began:
			c.Processes++
		case history.Login:
			c.Logins++
		case history.Route:
			c.RouteCalls++
		case history.Sight:
			c.Sights++
		}
	}
}

// refs makes a list of records for fail.
func refs(list ...Ref) func() []Ref { return func() []Ref { return list } }

// join makes a list of lists for fail.
func join(lists ...[]Ref) []Ref { return slices.Concat(lists...) }

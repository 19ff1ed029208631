package settings

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"time"
)

var (
	interval = Duration("beat.interval", 25*time.Second, 100*time.Millisecond, 10*time.Minute, "Time between pings.", Shrink(2))
	timeout  = Duration("beat.timeout", 10*time.Second, 100*time.Millisecond, time.Minute, "Time to answer.")
	mode     = Word("login.mode", "multi", []string{"multi", "kick_old"}, "Policy.")
	factor   = Float("rate.factor", 1, 0.01, 10, "Factor.")
	members  = Int("receipt.max_members", 100, 2, 500, "Members.", Unit("members"))
	strict   = Bool("login.strict", false, "Strict.")
	left     = Int("left.n", 0, 0, 1000, "One of a pair.")
	right    = Int("right.n", 0, 0, 1000, "The other.")
)

var self = Identity{Node: "a", Zone: "eu", Roles: []string{"gateway", "state"}}

func registry(t testing.TB) *Registry {
	t.Helper()
	r, err := NewRegistry([]string{"gateway", "state", "push"}, Schema{
		Keys:  []Declared{interval, timeout, mode, factor, members, strict, left, right},
		Rules: []Rule{Below(timeout, interval)},
	})
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// record is a document with values for all nodes.
func record(section string, version, mod int64, pairs ...string) Record {
	d := Document{All: map[string]string{}}
	for i := 0; i < len(pairs); i += 2 {
		d.All[pairs[i]] = pairs[i+1]
	}
	return Record{Section: section, Version: version, Mod: mod, Raw: d.Encode()}
}

// feed takes a state through events and returns it with the last effects.
func feed(s State, events ...Event) (State, Effects) {
	var eff Effects
	for _, ev := range events {
		s, eff = s.Step(ev)
	}
	return s, eff
}

func put(rev int64, r ...Record) Changed { return Changed{Revision: rev, Puts: r} }

func TestStep(t *testing.T) {
	empty := Read{Revision: 1}
	tests := []struct {
		name        string
		events      []Event
		applied     int64
		refused     int64
		reason      string // part of it
		reread      string
		interval    time.Duration
		wantMembers int
	}{
		{name: "nothing was ever set", events: []Event{empty}, interval: 25 * time.Second, wantMembers: 100},
		{name: "a good change is taken", events: []Event{empty, put(2, record("beat", 1, 2, "beat.interval", "20s"))},
			applied: 2, interval: 20 * time.Second, wantMembers: 100},
		{name: "an unknown key refuses the revision and names the nearest", events: []Event{empty,
			put(2, record("beat", 1, 2, "beat.intervall", "20s"))},
			refused: 2, reason: "did you mean beat.interval?", interval: 25 * time.Second, wantMembers: 100},
		{name: "a key in the wrong section", events: []Event{empty, put(2, record("beat", 1, 2, "rate.factor", "2"))},
			refused: 2, reason: "does not belong", interval: 25 * time.Second, wantMembers: 100},
		{name: "a value out of range", events: []Event{empty, put(2, record("beat", 1, 2, "beat.interval", "1h"))},
			refused: 2, reason: "not within", interval: 25 * time.Second, wantMembers: 100},
		{name: "no document at all", events: []Event{empty, put(2, Record{Section: "beat", Version: 1, Mod: 2, Raw: []byte("20s")})},
			refused: 2, reason: "is no document", interval: 25 * time.Second, wantMembers: 100},
		{name: "a rule over two settings and the default of one", events: []Event{empty,
			put(2, record("beat", 1, 2, "beat.timeout", "30s"))},
			refused: 2, reason: "beat.timeout must be below beat.interval, but they would be 30s and 25s", interval: 25 * time.Second, wantMembers: 100},
		{name: "two sections of one revision: one bad, none taken", events: []Event{empty,
			put(2, record("beat", 1, 2, "beat.interval", "20s"), record("receipt", 1, 2, "receipt.max_members", "1"))},
			refused: 2, interval: 25 * time.Second, wantMembers: 100},
		{name: "what was refused does not hold up another section", events: []Event{empty,
			put(2, record("receipt", 1, 2, "receipt.max_members", "1")), put(3, record("beat", 1, 3, "beat.interval", "20s"))},
			applied: 3, refused: 2, interval: 20 * time.Second, wantMembers: 100},
		{name: "the next good document of a section ends a refusal", events: []Event{empty,
			put(2, record("receipt", 1, 2, "receipt.max_members", "1")), put(3, record("receipt", 2, 3, "receipt.max_members", "7"))},
			applied: 3, interval: 25 * time.Second, wantMembers: 7},
		{name: "a refused partner comes in when the culprit is mended", events: []Event{empty,
			put(2, record("beat", 1, 2, "beat.interval", "20s"), record("receipt", 1, 2, "receipt.max_members", "1")),
			put(3, record("receipt", 2, 3, "receipt.max_members", "7"))},
			applied: 3, interval: 20 * time.Second, wantMembers: 7},
		{name: "too long a step down", events: []Event{empty, put(2, record("beat", 1, 2, "beat.interval", "12s", "beat.timeout", "1s"))},
			refused: 2, reason: "shrink at most 2 times", interval: 25 * time.Second, wantMembers: 100},
		{name: "two steps that were both seen", events: []Event{empty,
			put(2, record("beat", 1, 2, "beat.interval", "13s")), put(3, record("beat", 2, 3, "beat.interval", "7s", "beat.timeout", "1s"))},
			applied: 3, interval: 7 * time.Second, wantMembers: 100},
		{name: "steps that were missed are taken at once", events: []Event{empty,
			Read{Revision: 9, Records: []Record{record("beat", 5, 8, "beat.interval", "1s", "beat.timeout", "500ms")}}},
			applied: 8, interval: time.Second, wantMembers: 100},
		{name: "a refused step stays refused in a read", events: []Event{empty,
			put(2, record("beat", 1, 2, "beat.interval", "1s", "beat.timeout", "500ms")),
			Read{Revision: 2, Records: []Record{record("beat", 1, 2, "beat.interval", "1s", "beat.timeout", "500ms")}}},
			refused: 2, interval: 25 * time.Second, wantMembers: 100},
		{name: "a version that leaps gives a gap away, and nothing counts until the read", events: []Event{empty,
			put(2, record("beat", 1, 2, "beat.interval", "20s")), put(9, record("beat", 3, 9, "beat.interval", "30s"))},
			applied: 2, reread: CauseGap, interval: 20 * time.Second, wantMembers: 100},
		{name: "a key that was made anew starts at one", events: []Event{empty,
			put(2, record("beat", 1, 2, "beat.interval", "20s")), Changed{Revision: 3, Deletes: []string{"beat"}},
			put(4, record("beat", 1, 4, "beat.interval", "30s"))},
			applied: 4, interval: 30 * time.Second, wantMembers: 100},
		{name: "a deletion takes the values away", events: []Event{empty,
			put(2, record("beat", 1, 2, "beat.interval", "20s")), Changed{Revision: 3, Deletes: []string{"beat"}}},
			applied: 3, interval: 25 * time.Second, wantMembers: 100},
		{name: "the deletion of a key that is not known is a gap", events: []Event{empty, Changed{Revision: 3, Deletes: []string{"beat"}}},
			reread: CauseGap, interval: 25 * time.Second, wantMembers: 100},
		{name: "events that a read had already change nothing", events: []Event{
			Read{Revision: 5, Records: []Record{record("beat", 2, 4, "beat.interval", "20s")}},
			put(3, record("beat", 1, 3, "beat.interval", "40s")), put(4, record("beat", 2, 4, "beat.interval", "20s"))},
			applied: 4, interval: 20 * time.Second, wantMembers: 100},
		{name: "a read from a member that lags is left aside", events: []Event{
			Read{Revision: 5, Records: []Record{record("beat", 2, 4, "beat.interval", "20s")}}, Read{Revision: 3}},
			applied: 4, reread: CauseBehind, interval: 20 * time.Second, wantMembers: 100},
		{name: "three of them are believed: etcd was restored", events: []Event{
			Read{Revision: 5, Records: []Record{record("beat", 2, 4, "beat.interval", "20s")}},
			Read{Revision: 3}, Read{Revision: 3}, Read{Revision: 3, Records: []Record{record("beat", 1, 2, "beat.interval", "40s")}}},
			applied: 2, interval: 40 * time.Second, wantMembers: 100},
		{name: "another cluster is believed at once", events: []Event{
			Read{Revision: 5, Cluster: 1, Records: []Record{record("beat", 2, 4, "beat.interval", "20s")}}, Read{Revision: 3, Cluster: 2}},
			applied: 3, interval: 25 * time.Second, wantMembers: 100},
		{name: "what is remembered holds before the first read", events: []Event{
			Remembered{Revision: 7, Records: []Record{record("beat", 2, 7, "beat.interval", "5s", "beat.timeout", "1s")}}},
			applied: 7, interval: 5 * time.Second, wantMembers: 100},
		{name: "and goes on where the first read has something bad", events: []Event{
			Remembered{Revision: 7, Records: []Record{record("beat", 2, 7, "beat.interval", "20s"), record("receipt", 1, 3, "receipt.max_members", "5")}},
			Read{Revision: 9, Records: []Record{record("beat", 3, 8, "beat.interval", "never"), record("receipt", 2, 9, "receipt.max_members", "6")}}},
			applied: 9, refused: 8, interval: 20 * time.Second, wantMembers: 6},
		{name: "a check that finds a difference asks for a read", events: []Event{
			Read{Revision: 5, Records: []Record{record("beat", 2, 4, "beat.interval", "20s")}},
			Check{Revision: 5, Records: []Record{record("beat", 2, 4, "beat.interval", "21s")}}},
			applied: 4, reread: CauseDrift, interval: 20 * time.Second, wantMembers: 100},
		{name: "a check at another revision proves nothing", events: []Event{
			Read{Revision: 5, Records: []Record{record("beat", 2, 4, "beat.interval", "20s")}}, Reached{Revision: 6}, Check{Revision: 5}},
			applied: 4, interval: 20 * time.Second, wantMembers: 100},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			s, eff := feed(NewState(registry(t), self), tt.events...)
			snap := s.publish()
			refused, reason := s.Refused()
			if s.Applied() != tt.applied || refused != tt.refused || !strings.Contains(reason, tt.reason) || (reason == "") != (refused == 0) {
				t.Errorf("applied %d, refused %d %q; want %d, %d %q", s.Applied(), refused, reason, tt.applied, tt.refused, tt.reason)
			}
			if eff.Reread != tt.reread {
				t.Errorf("reread %q, want %q", eff.Reread, tt.reread)
			}
			if got := interval.In(snap); got != tt.interval {
				t.Errorf("interval %v, want %v", got, tt.interval)
			}
			if got := members.In(snap); got != tt.wantMembers {
				t.Errorf("members %d, want %d", got, tt.wantMembers)
			}
		})
	}
}

func TestTheNarrowestScopeWins(t *testing.T) {
	doc := Document{
		All:   map[string]string{"beat.interval": "20s"},
		Zones: map[string]map[string]string{"eu": {"beat.interval": "30s"}, "us": {"beat.interval": "40s"}},
		Roles: map[string]map[string]string{"state": {"beat.interval": "50s"}},
		Nodes: map[string]map[string]string{"a": {"beat.interval": "1m"}},
	}
	for _, tt := range []struct {
		who   Identity
		want  time.Duration
		scope string
	}{
		{Identity{Node: "x"}, 20 * time.Second, "all"},
		{Identity{Node: "x", Zone: "eu"}, 30 * time.Second, "zone eu"},
		{Identity{Node: "x", Zone: "us", Roles: []string{"gateway"}}, 40 * time.Second, "zone us"},
		{Identity{Node: "x", Zone: "eu", Roles: []string{"gateway", "state"}}, 50 * time.Second, "role state"},
		{self, time.Minute, "node a"},
	} {
		s, _ := feed(NewState(registry(t), tt.who), Read{Revision: 2, Records: []Record{{Section: "beat", Version: 1, Mod: 2, Raw: doc.Encode()}}})
		snap := s.publish()
		e, _ := snap.Get("beat.interval")
		if got := interval.In(snap); got != tt.want || e.Scope.String() != tt.scope {
			t.Errorf("%+v: %v by %s, want %v by %s", tt.who, got, e.Scope, tt.want, tt.scope)
		}
	}
}

// A rule is judged for every node that there could be, by every node alike.
func TestRulesHoldForEveryScope(t *testing.T) {
	doc := Document{
		Zones: map[string]map[string]string{"us": {"beat.interval": "15s"}},
		Nodes: map[string]map[string]string{"b": {"beat.timeout": "20s"}},
	}
	r := Record{Section: "beat", Version: 1, Mod: 2, Raw: doc.Encode()}
	for _, who := range []Identity{self, {Node: "b", Zone: "us"}} {
		s, _ := feed(NewState(registry(t), who), Read{Revision: 1}, put(2, r))
		if rev, reason := s.Refused(); rev != 2 || !strings.Contains(reason, "(zone us, node b)") {
			t.Errorf("%+v: refused %d %q", who, rev, reason)
		}
	}
}

func TestPlan(t *testing.T) {
	s, _ := feed(NewState(registry(t), self), Read{Revision: 4, Records: []Record{record("beat", 1, 3, "beat.interval", "20s")}})
	tests := []struct {
		name  string
		edits []Edit
		err   string
		diff  string
	}{
		{name: "a value", edits: []Edit{{Key: "beat.interval", Value: "30000ms"}}, diff: "beat.interval all 20s>30s"},
		{name: "no change", edits: []Edit{{Key: "beat.interval", Value: "20s"}}},
		{name: "taken away", edits: []Edit{{Key: "beat.interval"}}, diff: "beat.interval all 20s>"},
		{name: "for a zone, in two sections", edits: []Edit{{Key: "beat.timeout", Scope: Scope{Zone, "eu"}, Value: "1s"}, {Key: "rate.factor", Value: "0.5"}},
			diff: "beat.timeout zone eu >1s, rate.factor all >0.5"},
		{name: "mistyped", edits: []Edit{{Key: "rate.facto", Value: "1"}}, err: "did you mean rate.factor?"},
		{name: "a role that does not exist", edits: []Edit{{Key: "rate.factor", Scope: Scope{Role, "gate"}, Value: "1"}}, err: "there is no role gate"},
		{name: "too small a step is named", edits: []Edit{{Key: "beat.interval", Value: "9s"}, {Key: "beat.timeout", Value: "1s"}}, err: "shrink at most 2 times"},
		{name: "a word", edits: []Edit{{Key: "login.mode", Value: "kick-old"}}, err: "did you mean kick_old?"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			p, err := s.Plan(tt.edits, Change{Reason: "why"})
			if (err == nil) != (tt.err == "") || err != nil && !strings.Contains(err.Error(), tt.err) {
				t.Fatalf("err %v, want %q", err, tt.err)
			}
			if err != nil {
				return
			}
			var lines []string
			for _, d := range p.Diff {
				lines = append(lines, fmt.Sprintf("%s %s %s>%s", d.Key, d.Scope, d.Old, d.New))
			}
			if got := strings.Join(lines, ", "); got != tt.diff {
				t.Errorf("diff %q, want %q", got, tt.diff)
			}
			if (len(p.Writes) == 0) != (tt.diff == "") {
				t.Errorf("%d writes", len(p.Writes))
			}
		})
	}
}

// A rollback may go further than one step, and nodes take it as it happens.
func TestRollbackMayGoFar(t *testing.T) {
	s, _ := feed(NewState(registry(t), self), Read{Revision: 4, Records: []Record{record("beat", 1, 3, "beat.interval", "10m")}})
	old := Past{Section: "beat", Number: 7, Document: Document{All: map[string]string{"beat.interval": "11s"}}}
	p, err := s.Rollback("beat", old, Change{})
	if err != nil {
		t.Fatal(err)
	}
	s, _ = s.Step(put(5, Record{Section: "beat", Version: 2, Mod: 5, Raw: p.Writes[0].Doc.Encode()}))
	if got := interval.In(s.publish()); got != 11*time.Second || s.Applied() != 5 {
		t.Errorf("interval %v at %d", got, s.Applied())
	}
}

func TestDeclarationsAreChecked(t *testing.T) {
	for name, schema := range map[string]Schema{
		"twice":            {Keys: []Declared{mode, mode}},
		"no section":       {Keys: []Declared{Int("n", 1, 0, 2, "N.")}},
		"bad default":      {Keys: []Declared{Int("a.n", 5, 0, 2, "N.")}},
		"no sentence":      {Keys: []Declared{Int("a.n", 1, 0, 2, "")}},
		"factor of 1":      {Keys: []Declared{Int("a.n", 1, 0, 2, "N.", Shrink(1))}},
		"factor of words":  {Keys: []Declared{Word("a.n", "x", []string{"x"}, "N.", Shrink(2))}},
		"rule of unknowns": {Keys: []Declared{interval}, Rules: []Rule{Below(timeout, interval)}},
	} {
		if _, err := NewRegistry(nil, schema); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
}

// world is a small etcd for the simulation: one key a section, revisions,
// history, and what each node has been told.
type world struct {
	rnd  *rand.Rand
	rev  int64
	docs map[string]Record
	past []past // every revision, from 1
}

type past struct {
	change Changed
	all    map[string]Record
}

func (w *world) commit(puts map[string]string, deletes ...string) {
	w.rev++
	c := Changed{Revision: w.rev}
	for section, raw := range puts {
		r := Record{Section: section, Version: w.docs[section].Version + 1, Mod: w.rev, Raw: []byte(raw)}
		w.docs[section] = r
		c.Puts = append(c.Puts, r)
	}
	for _, section := range deletes {
		if _, ok := w.docs[section]; ok {
			delete(w.docs, section)
			c.Deletes = append(c.Deletes, section)
		}
	}
	all := map[string]Record{}
	for k, v := range w.docs {
		all[k] = v
	}
	w.past = append(w.past, past{c, all})
}

func (w *world) read(rev int64) Read {
	r := Read{Revision: rev, Cluster: 1}
	if rev > 0 {
		for _, rec := range w.past[rev-1].all {
			r.Records = append(r.Records, rec)
		}
	}
	return r
}

// write makes a random change: a pair that belongs together, good or half bad; a
// single section, good or bad; or a deletion.
func (w *world) write() {
	doc := func(key, value string) string {
		raw, _ := json.Marshal(Document{All: map[string]string{key: value}})
		return string(raw)
	}
	n := fmt.Sprint(w.rnd.IntN(1000))
	switch w.rnd.IntN(6) {
	case 0, 1:
		w.commit(map[string]string{"left": doc("left.n", n), "right": doc("right.n", n)})
	case 2: // half of the pair is bad
		w.commit(map[string]string{"left": doc("left.n", n), "right": doc("right.n", "x")})
	case 3:
		w.commit(map[string]string{"receipt": doc("receipt.max_members", fmt.Sprint(w.rnd.IntN(700)))}) // some out of range
	case 4:
		w.commit(map[string]string{"rate": "{"})
	case 5:
		w.commit(nil, "left", "right")
	}
}

// node follows the world through cuts, lost events, compactions and members
// that lag.
type node struct {
	s     State
	at    int64 // revision up to which events were delivered
	again bool
}

func (n *node) run(t *testing.T, w *world) {
	step := func(ev Event) {
		next, eff := n.s.Step(ev)
		n.s, n.again = next, eff.Reread != ""
		if next.applied < 0 || next.head > w.rev {
			t.Fatalf("a revision that never was: %d, %d of %d", next.applied, next.head, w.rev)
		}
		if eff.Publish != nil && left.In(eff.Publish) != right.In(eff.Publish) {
			t.Fatalf("half of a revision is in force: %d and %d at %d", left.In(eff.Publish), right.In(eff.Publish), eff.Publish.Revision)
		}
	}
	switch p := w.rnd.IntN(10); {
	case n.again || p == 0: // full read, sometimes from a member that lags
		rev := w.rev
		if w.rnd.IntN(4) == 0 {
			rev = max(0, rev-int64(w.rnd.IntN(5)))
		}
		step(w.read(rev))
		if !n.again {
			n.at = rev
		}
	case p == 1: // events are lost
		n.at = min(w.rev, n.at+int64(w.rnd.IntN(4)))
	case p == 2 && n.s.known != nil:
		c := w.read(n.s.head)
		step(Check{Revision: c.Revision, Records: c.Records})
	default:
		for range w.rnd.IntN(4) {
			if n.at < w.rev && !n.again {
				n.at++
				step(w.past[n.at-1].change)
			}
		}
	}
}

// Whatever is cut, lost or late: no node ever has half of a revision in force,
// revisions in force never go back, and after the storm all agree with a node
// that saw everything. The seed of a failure is printed.
func TestSimulation(t *testing.T) {
	reg := registry(t)
	for seed := range uint64(1000) {
		w := &world{rnd: rand.New(rand.NewPCG(seed, 1)), docs: map[string]Record{}}
		nodes := []*node{{again: true}, {again: true}, {again: true}}
		for i := range nodes {
			nodes[i].s = NewState(reg, Identity{Node: fmt.Sprint(i)})
		}
		for range 60 {
			if w.rnd.IntN(2) == 0 {
				w.write()
			}
			n := nodes[w.rnd.IntN(len(nodes))]
			was := n.s.applied
			n.run(t, w)
			if n.s.applied < was && n.s.counts.Restored == 0 {
				t.Fatalf("seed %d: the revision in force went from %d to %d", seed, was, n.s.applied)
			}
		}
		w.commit(map[string]string{"left": `{"all":{"left.n":"7"}}`, "right": `{"all":{"right.n":"7"}}`})
		w.commit(map[string]string{"receipt": `{"all":{"receipt.max_members":"7"}}`, "rate": `{}`})
		for _, n := range nodes {
			n.s, _ = n.s.Step(w.read(w.rev))
			snap := n.s.publish()
			refused, _ := n.s.Refused()
			if n.s.applied != w.rev || refused != 0 || left.In(snap) != 7 || right.In(snap) != 7 || members.In(snap) != 7 {
				t.Fatalf("seed %d: a node ends at %d of %d, refused %d", seed, n.s.applied, w.rev, refused)
			}
		}
	}
}

func FuzzDecode(f *testing.F) {
	f.Add([]byte(`{"all":{"beat.interval":"20s"},"zones":{"eu":{"rate.factor":"2"}},"change":{"number":1}}`))
	f.Add([]byte(`{`))
	reg := registry(f)
	f.Fuzz(func(t *testing.T, raw []byte) {
		s, _ := feed(NewState(reg, self), Read{Revision: 1}, put(2, Record{Section: "beat", Version: 1, Mod: 2, Raw: raw}))
		refused, reason := s.Refused()
		if (s.Applied() == 2) == (refused == 2) || (refused == 0) != (reason == "") {
			t.Errorf("applied %d, refused %d %q", s.Applied(), refused, reason)
		}
	})
}

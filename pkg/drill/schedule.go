package drill

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"time"
)

// Kind is a kind of fault.
type Kind string

// The kinds.
const (
	Kill      Kind = "kill"      // a node is killed, and started again after up to 3 s
	Pause     Kind = "pause"     // a node is stopped by a signal for 1 to 8 s
	Restart   Kind = "restart"   // a node is asked to stop, and started again
	Disk      Kind = "disk"      // the file system of a node's data folder is full
	Stall     Kind = "stall"     // somebody else holds the store's write lock
	Clock     Kind = "clock"     // the wall clock of a node jumps; builds with the tag drill
	Point     Kind = "point"     // a fail point of a node is set; builds with the tag drill
	Delay     Kind = "delay"     // each piece between clients and a node takes longer
	Drop      Kind = "drop"      // what a node says to its clients is swallowed
	Blackhole Kind = "blackhole" // nothing gets through, and nothing is closed
	Reset     Kind = "reset"     // all client connections of a node are cut, new ones go
	Refuse    Kind = "refuse"    // all client connections of a node are cut, new ones are reset
	Bytewise  Kind = "bytewise"  // one byte a write
	Bandwidth Kind = "bandwidth" // a few KiB a second for each connection
	Slow      Kind = "slow"      // further devices of users log in and stop reading
	HalfOpen  Kind = "halfopen"  // connections whose peer is silent, at each step of the handshake
	Hostile   Kind = "hostile"   // peers that break the rules of the protocol
	Block     Kind = "block"     // users block each other while answers are lost
	Groups    Kind = "groups"    // groups are made while all devices come back
	Members   Kind = "members"   // members are removed while answers are lost, and added again
)

// Kinds lists all kinds.
func Kinds() []Kind {
	all := make([]Kind, len(traits))
	for i, t := range traits {
		all[i] = t.kind
	}
	return all
}

// area is what a fault touches. Faults of one area never overlap; of two areas
// they may.
type area int

const (
	nodes area = iota // processes and their machines
	links             // connections between clients and nodes
	peers             // what clients do
	areas
)

// trait is what the schedule knows of a kind.
type trait struct {
	kind     Kind
	area     area
	min, max time.Duration // how long it lasts
	levels   []string      // of which one is chosen
	also     []area        // areas that must be free besides its own
	tag      bool          // only in builds with the tag drill
	mount    bool          // only who may mount
}

const ms = time.Millisecond

var traits = []trait{
	{kind: Kill, area: nodes, min: 0, max: 3000 * ms},
	{kind: Pause, area: nodes, min: 1000 * ms, max: 8000 * ms},
	{kind: Restart, area: nodes, min: 1500 * ms, max: 4000 * ms},
	{kind: Disk, area: nodes, min: 1500 * ms, max: 5000 * ms, mount: true},
	{kind: Stall, area: nodes, min: 500 * ms, max: 5000 * ms},
	{kind: Clock, area: nodes, min: 2000 * ms, max: 5000 * ms, levels: []string{"-1h", "-3s", "-700ms", "-30ms", "2s", "4m"}, tag: true},
	{kind: Point, area: nodes, min: 1000 * ms, max: 4000 * ms, tag: true, levels: []string{
		"state.before_append sleep 300ms 0.2", "state.before_append error 0.2", "state.after_append sleep 300ms 0.2", "state.after_append error 0.2",
		"state.after_append exit 0.02", "state.before_fanout sleep 500ms 0.2", "state.before_fanout exit 0.02", "store.before_commit exit 0.02",
		"store.before_commit error 0.2", "store.before_commit panic 0.2", "store.after_commit exit 0.02", "store.after_commit sleep 200ms 0.2",
		"gateway.before_write sleep 300ms 0.05", "gateway.before_write exit 0.002"}},
	{kind: Delay, area: links, min: 2000 * ms, max: 6000 * ms, levels: []string{"20ms", "100ms", "400ms"}},
	{kind: Drop, area: links, min: 500 * ms, max: 6000 * ms},
	{kind: Blackhole, area: links, min: 500 * ms, max: 8000 * ms},
	{kind: Reset, area: links, min: 0, max: 0},
	{kind: Refuse, area: links, min: 500 * ms, max: 3000 * ms},
	{kind: Bytewise, area: links, min: 1000 * ms, max: 4000 * ms},
	{kind: Bandwidth, area: links, min: 1500 * ms, max: 5000 * ms, levels: []string{"2048", "8192", "32768"}},
	{kind: Slow, area: peers, min: 2000 * ms, max: 6000 * ms},
	{kind: HalfOpen, area: peers, min: 2000 * ms, max: 6000 * ms},
	{kind: Hostile, area: peers, min: 1000 * ms, max: 3000 * ms},
	{kind: Block, area: peers, min: 2700 * ms, max: 4200 * ms, also: []area{links, nodes}},
	{kind: Groups, area: peers, min: 1000 * ms, max: 2000 * ms, also: []area{links, nodes}},
	{kind: Members, area: peers, min: 2700 * ms, max: 4200 * ms, also: []area{links, nodes}},
}

// areas are those that a fault of the kind needs for itself.
func (t *trait) areas() []area { return append([]area{t.area}, t.also...) }

func traitOf(k Kind) *trait {
	for i := range traits {
		if traits[i].kind == k {
			return &traits[i]
		}
	}
	return nil
}

// Event is one fault of a schedule.
type Event struct {
	N     int           `json:"n"` // its number, from 1
	Kind  Kind          `json:"kind"`
	At    time.Duration `json:"at_ns"`           // from the beginning of the load
	For   time.Duration `json:"for_ns"`          // how long it lasts; what heals then may take longer
	Level string        `json:"level,omitempty"` // how strong, for kinds that have levels
	Seed  uint64        `json:"seed,string"`     // for what is random in it
}

// Name tells one fault from all others of its drill.
func (e Event) Name() string { return fmt.Sprintf("%d %s", e.N, e.Kind) }

// String is the event on one line.
func (e Event) String() string {
	s := fmt.Sprintf("%8.3fs %-9s for %.3fs", e.At.Seconds(), e.Kind, e.For.Seconds())
	if e.Level != "" {
		s += "  " + e.Level
	}
	return s
}

const (
	// lead is how long the load runs before the first fault.
	lead = 2 * time.Second
	// tail is how long it runs after the last one but the closing reset.
	tail = 2500 * ms
	// closing is when, before the end, all connections are cut once more: what
	// is lost while devices come back then has nothing behind it that would show
	// the gap.
	closing = 1200 * ms
	// Shortest is the shortest drill.
	Shortest = 10 * time.Second
)

// Plan makes the schedule of a drill. It depends on its arguments alone, but
// not on the order of kinds or repetitions among them. Every kind comes before
// any comes again; faults that touch different things overlap now and then.
func Plan(seed uint64, kinds []Kind, duration time.Duration) []Event {
	set := slices.Clone(kinds)
	slices.Sort(set)
	set = slices.Compact(set)
	if len(set) == 0 || duration < Shortest {
		return nil
	}
	p := planner{rng: rand.New(rand.NewPCG(seed, 0x6472696c6c)), set: set, end: duration - tail}
	for at := lead; p.place(&at); {
	}
	if slices.Contains(set, Reset) {
		p.events = append(p.events, Event{Kind: Reset, At: duration - closing, Seed: p.rng.Uint64()})
	}
	slices.SortStableFunc(p.events, func(a, b Event) int { return int(a.At - b.At) })
	for i := range p.events {
		p.events[i].N = i + 1
	}
	return p.events
}

// planner makes one schedule.
type planner struct {
	rng    *rand.Rand
	set    []Kind
	deck   []Kind
	end    time.Duration
	free   [areas]time.Duration // when each area is free again
	events []Event
}

// rest is what an area gets after a fault, so that something can heal before
// the next.
const rest = 700 * ms

// place puts the next fault at or after at, and moves at. False if it does not
// fit any more.
func (p *planner) place(at *time.Duration) bool {
	if len(p.deck) == 0 {
		p.deck = slices.Clone(p.set)
		p.rng.Shuffle(len(p.deck), func(i, j int) { p.deck[i], p.deck[j] = p.deck[j], p.deck[i] })
	}
	t := traitOf(p.deck[0])
	e := Event{Kind: t.kind, For: t.min, Seed: p.rng.Uint64()}
	if t.max > t.min {
		e.For += time.Duration(p.rng.Int64N(int64((t.max-t.min)/ms)+1)) * ms
	}
	if len(t.levels) > 0 {
		e.Level = t.levels[p.rng.IntN(len(t.levels))]
	}
	taken := t.areas()
	e.At = *at + time.Duration(p.rng.IntN(800))*ms
	for _, a := range taken {
		e.At = max(e.At, p.free[a])
	}
	if e.At+e.For > p.end {
		return false
	}
	p.deck = p.deck[1:]
	p.events = append(p.events, e)
	for _, a := range taken {
		p.free[a] = e.At + e.For + rest
	}
	*at = e.At + e.For + time.Duration(p.rng.IntN(900))*ms
	if p.rng.IntN(4) == 0 { // the next one may begin under this one
		*at = e.At + time.Duration(p.rng.Int64N(int64(e.For/ms)+1))*ms
	}
	return true
}

// Print is the schedule as text, one fault a line.
func Print(events []Event) string {
	var b strings.Builder
	for _, e := range events {
		fmt.Fprintln(&b, e)
	}
	return b.String()
}

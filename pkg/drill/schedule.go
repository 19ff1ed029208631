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
	Storm     Kind = "storm"     // all client connections of a node are cut again and again, while hundreds of others log in and vanish
	Files     Kind = "files"     // a node may open fewer files than it has
	Block     Kind = "block"     // users block each other while answers are lost
	Groups    Kind = "groups"    // groups are made while all devices come back
	Members   Kind = "members"   // members are removed while answers are lost, and added again

	MemberKill      Kind = "member-kill"      // a member of etcd is killed, and started again after up to 6 s
	MemberPause     Kind = "member-pause"     // a member of etcd is stopped by a signal for 1 to 10 s
	MemberPartition Kind = "member-partition" // a member of etcd cannot reach the others, but clients reach it
	LeaderChange    Kind = "leader-change"    // another member of etcd leads
	Compaction      Kind = "compaction"       // etcd forgets its history every 200 ms
	LeaseRevoke     Kind = "lease-revoke"     // somebody revokes the lease of a living node
	EtcdOutage      Kind = "etcd-outage"      // all members of etcd are down
	EtcdRestore     Kind = "etcd-restore"     // etcd goes back to what it was some seconds before
	NodePause       Kind = "node-pause"       // a witness, mostly the leader, is stopped for longer than its lease
	NodeKill        Kind = "node-kill"        // a witness is killed and stays away for longer than its lease
	SettingsFlood   Kind = "settings-flood"   // settings change twenty times a second, half of it wrong

	PgKill      Kind = "pg-kill"      // all processes of Postgres are killed, and it is started again
	PgStop      Kind = "pg-stop"      // Postgres is stopped at once, and started again
	PgStall     Kind = "pg-stall"     // Postgres stands still
	PgTerminate Kind = "pg-terminate" // sessions of nodes are ended while they commit
	PgLock      Kind = "pg-lock"      // a stranger holds the rows of two groups
	PgPool      Kind = "pg-pool"      // a stranger takes all connections
	PgPartition Kind = "pg-partition" // nothing gets through between one node and Postgres

	RedisFlush   Kind = "redis-flush"   // Redis forgets everything
	RedisStall   Kind = "redis-stall"   // Redis stands still
	RedisRestart Kind = "redis-restart" // Redis is killed, and started again empty
	RedisMix     Kind = "redis-mix"     // answers are lost, and Redis gives remembered sends the answers of others

	RedisClock  Kind = "redis-clock"  // Redis is killed, and another one that is empty and whose clock is behind takes its place
	KickRace    Kind = "kick-race"    // logins of a user of whom one may be in come at once, through all gateways
	GatewayKill Kind = "gateway-kill" // a gateway is killed and stays away until its routes must be swept

	RolePartition  Kind = "role-partition"  // nothing gets through between one node and the others
	RoleBlackhole  Kind = "role-blackhole"  // the same, and nothing between it and the stores
	RoleSlow       Kind = "role-slow"       // what one node and the others say to each other takes longer
	RoleLie        Kind = "role-lie"        // some answers of one node to others are late, wrong, cut or those to other calls
	DrainCut       Kind = "drain-cut"       // a node is told to stop while nothing gets through between it and the others
	HostBlackhole  Kind = "host-blackhole"  // routes lead nowhere: from or to one host, between two halves, or to etcd
	RollingRestart Kind = "rolling-restart" // every node is restarted, one after the other
	Drain          Kind = "drain"           // another node tells one to stop, and it is started again
	OwnerPause     Kind = "owner-pause"     // a state node is stopped for longer than its lease
	ReceiverHang   Kind = "receiver-hang"   // those who are told of events or notices answer nothing
	ReceiverLie    Kind = "receiver-lie"    // they say 200 and garbage, or that they have not got what they have, send callers elsewhere, or do not stop
	ReceiverTwice  Kind = "receiver-twice"  // they take what they are told and cut the connection, so that they are told again
	LeaderKill     Kind = "leader-kill"     // the scheduler that leads is killed, in builds with the tag drill in the middle of a job
	LeaderPause    Kind = "leader-pause"    // it stands still there for longer than its lease, and goes on
	LeaderCut      Kind = "leader-cut"      // from there on nothing gets through between it and all others, for longer than its lease

	RingChurn Kind = "ring-churn" // a state node leaves the ring and joins it every 2 s while a conversation is written
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
	nodes     area = iota // processes and their machines
	links                 // connections between clients and nodes
	peers                 // what clients do
	stores                // Postgres
	caches                // Redis
	receivers             // who is told by leaders
	etcds                 // members of etcd, and who lives by their leases
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
	etcd     int           // only layouts with so many members of etcd
	sqlite   bool          // only layouts whose nodes keep messages themselves
	postgres bool          // only layouts with Postgres
	redis    bool          // only layouts with Redis
	split    bool          // only layouts with roles in several processes
	mesh     bool          // only layouts whose nodes reach each other through the drill
	hosts    bool          // only layouts with hosts
	routes   bool          // only layouts with routes in Redis
	witness  bool          // only layouts with witnesses
	effects  bool          // only layouts in which it is looked at what leaders do
	leaders  bool          // the same, with two nodes that can lead; it hits the one that does
	long     bool          // a short drill has shorter ones, or none
}

const ms = time.Millisecond

var traits = []trait{
	{kind: Kill, area: nodes, min: 0, max: 3000 * ms},
	{kind: Pause, area: nodes, min: 1000 * ms, max: 8000 * ms},
	{kind: Restart, area: nodes, min: 1500 * ms, max: 4000 * ms},
	{kind: Disk, area: nodes, min: 1500 * ms, max: 5000 * ms, mount: true},
	{kind: Stall, area: nodes, min: 500 * ms, max: 5000 * ms, sqlite: true},
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
	{kind: Storm, area: links, min: 1500 * ms, max: 4000 * ms, also: []area{peers}},
	{kind: Files, area: nodes, min: 1500 * ms, max: 4000 * ms, also: []area{links}},
	{kind: Block, area: peers, min: 2700 * ms, max: 4200 * ms, also: []area{links, nodes}},
	{kind: Groups, area: peers, min: 1000 * ms, max: 2000 * ms, also: []area{links, nodes}},
	{kind: Members, area: peers, min: 2700 * ms, max: 4200 * ms, also: []area{links, nodes}},
	{kind: MemberKill, area: etcds, min: 500 * ms, max: 6000 * ms, etcd: 1, long: true},
	{kind: MemberPause, area: etcds, min: 1000 * ms, max: 10_000 * ms, etcd: 1, long: true},
	{kind: MemberPartition, area: etcds, min: 26_000 * ms, max: 30_000 * ms, etcd: 3, long: true},
	{kind: LeaderChange, area: etcds, min: 1000 * ms, max: 1500 * ms, etcd: 3},
	{kind: Compaction, area: etcds, min: 3000 * ms, max: 6000 * ms, etcd: 1, long: true},
	{kind: LeaseRevoke, area: etcds, min: 2000 * ms, max: 3000 * ms, etcd: 1},
	{kind: EtcdOutage, area: etcds, min: 25_000 * ms, max: 60_000 * ms, etcd: 1, long: true},
	{kind: EtcdRestore, area: etcds, min: 4000 * ms, max: 8000 * ms, etcd: 1, long: true},
	{kind: NodePause, area: etcds, min: 16_000 * ms, max: 18_000 * ms, witness: true, long: true},
	{kind: NodeKill, area: etcds, min: 13_000 * ms, max: 15_000 * ms, witness: true, long: true},
	{kind: SettingsFlood, area: peers, min: 3000 * ms, max: 6000 * ms, etcd: 1},
	{kind: PgKill, area: stores, min: 0, max: 4000 * ms, also: []area{nodes}, postgres: true},
	{kind: PgStop, area: stores, min: 500 * ms, max: 4000 * ms, also: []area{nodes}, postgres: true},
	{kind: PgStall, area: stores, min: 500 * ms, max: 8000 * ms, also: []area{nodes}, postgres: true},
	{kind: PgTerminate, area: stores, min: 2000 * ms, max: 5000 * ms, postgres: true},
	{kind: PgLock, area: stores, min: 1500 * ms, max: 6000 * ms, postgres: true},
	{kind: PgPool, area: stores, min: 2000 * ms, max: 5000 * ms, also: []area{nodes}, postgres: true},
	{kind: PgPartition, area: stores, min: 1000 * ms, max: 8000 * ms, also: []area{nodes}, postgres: true},
	{kind: RedisFlush, area: caches, min: 0, max: 0, redis: true},
	{kind: RedisStall, area: caches, min: 1000 * ms, max: 8000 * ms, redis: true},
	{kind: RedisRestart, area: caches, min: 0, max: 4000 * ms, redis: true},
	{kind: RedisMix, area: caches, min: 1500 * ms, max: 3000 * ms, also: []area{links}, redis: true},
	{kind: RedisClock, area: caches, min: 0, max: 3000 * ms, levels: []string{"-1h", "-10m", "-5s"}, routes: true, tag: true},
	{kind: KickRace, area: peers, min: 1500 * ms, max: 4000 * ms, routes: true},
	{kind: GatewayKill, area: nodes, min: 16_000 * ms, max: 20_000 * ms, routes: true, split: true, long: true},
	{kind: RolePartition, area: nodes, min: 1000 * ms, max: 10_000 * ms, split: true},
	{kind: RoleBlackhole, area: nodes, min: 1000 * ms, max: 10_000 * ms, split: true, also: []area{stores, caches}},
	{kind: RoleSlow, area: nodes, min: 2000 * ms, max: 6000 * ms, split: true, mesh: true, levels: []string{"20ms", "100ms", "400ms"}},
	{kind: RoleLie, area: nodes, min: 2000 * ms, max: 6000 * ms, split: true, mesh: true, levels: []string{lieLate, lieStatus, lieCut, lieShort, lieMixed}},
	{kind: DrainCut, area: nodes, min: 4000 * ms, max: 10_000 * ms, split: true},
	{kind: HostBlackhole, area: nodes, min: 1000 * ms, max: 10_000 * ms, hosts: true, levels: []string{holeOut, holeIn, holeHalf, holeEtcd}},
	{kind: RollingRestart, area: nodes, min: 14_000 * ms, max: 20_000 * ms, split: true, long: true},
	{kind: Drain, area: nodes, min: 500 * ms, max: 3000 * ms, split: true},
	{kind: OwnerPause, area: nodes, min: 13_000 * ms, max: 30_000 * ms, split: true, long: true},
	{kind: ReceiverHang, area: receivers, min: 2000 * ms, max: 8000 * ms, effects: true, levels: whoIsTold},
	{kind: ReceiverLie, area: receivers, min: 2000 * ms, max: 5000 * ms, effects: true, levels: whoIsTold},
	{kind: ReceiverTwice, area: receivers, min: 2000 * ms, max: 5000 * ms, effects: true, levels: whoIsTold},
	{kind: LeaderKill, area: nodes, min: 500 * ms, max: 3000 * ms, leaders: true, levels: JobsOfLeaders()},
	{kind: LeaderPause, area: nodes, min: 4500 * ms, max: 8000 * ms, leaders: true, levels: JobsOfLeaders()},
	{kind: LeaderCut, area: nodes, min: 4500 * ms, max: 8000 * ms, leaders: true, split: true, levels: JobsOfLeaders()},
	{kind: RingChurn, area: etcds, min: 9000 * ms, max: 15_000 * ms, split: true, long: true},
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
	s := fmt.Sprintf("%8.3fs %-16s for %.3fs", e.At.Seconds(), e.Kind, e.For.Seconds())
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
// any comes again; faults that touch different things overlap now and then. Those
// of etcd last long, so they have a schedule of their own beside the others'.
func Plan(seed uint64, kinds []Kind, duration time.Duration) []Event {
	set := slices.Clone(kinds)
	slices.Sort(set)
	set = slices.Compact(set)
	if len(set) == 0 || duration < Shortest {
		return nil
	}
	ofEtcd := func(k Kind) bool { return traitOf(k).area == etcds }
	events := append(plan(seed, 0x6472696c6c, slices.DeleteFunc(slices.Clone(set), ofEtcd), duration),
		plan(seed, 0x65746364, slices.DeleteFunc(slices.Clone(set), func(k Kind) bool { return !ofEtcd(k) }), duration)...)
	slices.SortStableFunc(events, func(a, b Event) int { return int(a.At - b.At) })
	for i := range events {
		events[i].N = i + 1
	}
	return events
}

// plan makes one of the two schedules.
func plan(seed, stream uint64, set []Kind, duration time.Duration) []Event {
	if len(set) == 0 {
		return nil
	}
	p := planner{rng: rand.New(rand.NewPCG(seed, stream)), set: set, end: duration - tail, longest: duration / 3}
	for at := lead; p.place(&at); {
	}
	if slices.Contains(set, Reset) {
		p.events = append(p.events, Event{Kind: Reset, At: duration - closing, Seed: p.rng.Uint64()})
	}
	return p.events
}

// planner makes one schedule.
type planner struct {
	rng     *rand.Rand
	set     []Kind
	deck    []Kind
	end     time.Duration
	longest time.Duration        // of a long fault, if it can be shorter
	free    [areas]time.Duration // when each area is free again
	events  []Event
}

// rest is what an area gets after a fault, so that something can heal before
// the next.
const rest = 700 * ms

// calm is the same for etcd: what is judged by the clock wants it in good order
// for 5 s before.
const calm = 6 * time.Second

// place puts the next fault at or after at, and moves at. False if it does not
// fit any more.
func (p *planner) place(at *time.Duration) bool {
	if len(p.deck) == 0 {
		p.deck = slices.Clone(p.set)
		p.rng.Shuffle(len(p.deck), func(i, j int) { p.deck[i], p.deck[j] = p.deck[j], p.deck[i] })
	}
	for len(p.deck) > 0 {
		t := traitOf(p.deck[0])
		if e, ok := p.event(t, *at); ok {
			p.deck = p.deck[1:]
			p.put(t, e, at)
			return true
		}
		if !t.long { // the end is near
			return false
		}
		p.deck = p.deck[1:] // shorter ones may fit
	}
	return false
}

// event is the next fault of a kind; false = it does not fit any more.
func (p *planner) event(t *trait, at time.Duration) (Event, bool) {
	e := Event{Kind: t.kind, For: t.min, Seed: p.rng.Uint64()}
	most := t.max
	if t.long {
		most = min(t.max, max(t.min, p.longest))
	}
	if most > t.min {
		e.For += time.Duration(p.rng.Int64N(int64((most-t.min)/ms)+1)) * ms
	}
	if len(t.levels) > 0 {
		e.Level = t.levels[p.rng.IntN(len(t.levels))]
	}
	e.At = at + time.Duration(p.rng.IntN(800))*ms
	for _, a := range t.areas() {
		e.At = max(e.At, p.free[a])
	}
	return e, e.At+e.For <= p.end
}

// put takes a fault in, and moves at to where the next may begin.
func (p *planner) put(t *trait, e Event, at *time.Duration) {
	p.events = append(p.events, e)
	for _, a := range t.areas() {
		p.free[a] = e.At + e.For + rest
		if a == etcds {
			p.free[a] = e.At + e.For + calm
		}
	}
	*at = e.At + e.For + time.Duration(p.rng.IntN(900))*ms
	if p.rng.IntN(4) == 0 {
		*at = e.At + time.Duration(p.rng.Int64N(int64(e.For/ms)+1))*ms
	}
}

// Print is the schedule as text, one fault a line.
func Print(events []Event) string {
	var b strings.Builder
	for _, e := range events {
		fmt.Fprintln(&b, e)
	}
	return b.String()
}

// Package verifytest makes histories as a good server would leave them, by seed:
// concurrent senders, lost answers and repeated sends under faults, members who
// come and go, devices that disconnect, resume and begin anew.
package verifytest

import (
	"cmp"
	"fmt"
	"iter"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/imdhq/imd/pkg/history"
)

// Size says how big a history is. Zero fields take the values of [Small].
type Size struct {
	Users         int // recorded; each has one or two devices
	Conversations int
	Members       int // of each conversation, at most
	Messages      int
	Faults        int // negative = none
	Segment       bool
	Plain         bool // the control plane was not recorded
}

// Small is a history of a few hundred records with a bit of everything.
func Small() Size { return Size{Users: 6, Conversations: 4, Members: 4, Messages: 120, Faults: 2} }

// Entry is a record and the file it belongs to.
type Entry struct {
	File   string
	Record history.Record
}

// Made is a history.
type Made struct {
	Run     history.Run
	Entries []Entry // file by file, each in order of time
}

// Records gives the entries as package verify takes them.
func (m *Made) Records() iter.Seq2[string, history.Record] {
	return func(yield func(string, history.Record) bool) {
		for _, e := range m.Entries {
			if !yield(e.File, e.Record) {
				return
			}
		}
	}
}

// Write puts the history into the folder dir, as a recorder does.
func (m *Made) Write(dir string) error {
	rec, err := history.NewRecorder(dir)
	if err != nil {
		return err
	}
	for _, e := range m.Entries {
		rec.Add(e.File, e.Record)
	}
	if err := rec.Close(m.Run); err != nil {
		return err
	}
	// The recorder takes its own clock for the end of the run; ours is made up.
	return m.writeRun(filepath.Join(dir, "run.json"))
}

func (m *Made) writeRun(path string) error {
	raw := fmt.Sprintf(`{"seed":%d,"server":%q,"allocator":%q,"began":%q,"healed":%d,"ended":%d}`+"\n",
		m.Run.Seed, m.Run.Server, m.Run.Allocator, m.Run.Began, m.Run.Healed, m.Run.Ended)
	return os.WriteFile(path, []byte(raw), 0o644)
}

// Times of the made-up run.
const (
	ms     = int64(time.Millisecond)
	second = int64(time.Second)
	slack  = 5 * second  // after a fault
	calm   = 12 * second // between faults
	damage = 2 * second  // how long a fault lasts
)

// message is an entry on its way into the log.
type message struct {
	conv            int
	sender, device  string
	cmid, hash      string
	n               int64
	invoked, commit int64
	answered        int64
	lost            int64 // when its first answer was given up; 0 = not lost
	again           int64 // when it left again
	retried         bool  // its first answer was RETRY
	entry           string
	seq, prev, mid  int64
}

// conversation is what a generator knows of one.
type conversation struct {
	id      string
	members []int // users, those who were ever in
	log     []*message
	joins   map[int]*message // a user's later entry into it
	leaves  map[int]*message
}

type user struct {
	id      string
	devices []string
}

type generator struct {
	*rand.Rand
	size   Size
	seed   uint64
	users  []user
	convs  []*conversation
	sends  []*message
	faults [][2]int64
	healed int64
	ended  int64
	mid    int64
	made   Made
}

// Good makes the history of a seed.
func Good(seed uint64, size Size) *Made {
	small := Small()
	size.Users, size.Conversations = cmp.Or(size.Users, small.Users), cmp.Or(size.Conversations, small.Conversations)
	size.Members, size.Messages = cmp.Or(size.Members, small.Members), cmp.Or(size.Messages, small.Messages)
	size.Faults = max(cmp.Or(size.Faults, small.Faults), 0)
	size.Members = max(2, min(size.Members, size.Users-1)) // somebody is a stranger
	g := &generator{Rand: rand.New(rand.NewPCG(seed, 1)), size: size, seed: seed, mid: 7 << 20}
	g.plan()
	g.write()
	g.number()
	g.report()
	return &g.made
}

func (g *generator) chance(p float64) bool { return g.Float64() < p }

// between is a time in [lo, hi).
func (g *generator) between(lo, hi int64) int64 { return lo + g.Int64N(max(hi-lo, 1)) }

// plan makes users, conversations and the times of faults.
func (g *generator) plan() {
	for i := range g.size.Users {
		u := user{id: fmt.Sprintf("u%d", i), devices: []string{"phone"}}
		if g.chance(0.4) {
			u.devices = append(u.devices, "laptop")
		}
		g.users = append(g.users, u)
	}
	for i := range g.size.Conversations {
		c := &conversation{id: fmt.Sprintf("g_%d", i+1), joins: map[int]*message{}, leaves: map[int]*message{}}
		c.members = g.Perm(g.size.Users)[:2+g.IntN(g.size.Members-1)]
		g.convs = append(g.convs, c)
	}
	t := calm
	for range g.size.Faults {
		g.faults = append(g.faults, [2]int64{t, t + damage})
		t += damage + slack + calm
	}
	g.healed = t
	if g.size.Faults == 0 {
		g.healed = 0
	}
}

// fault is the fault at a time, or nil.
func (g *generator) fault(t int64) *[2]int64 {
	for i := range g.faults {
		if f := &g.faults[i]; t >= f[0]-100*ms && t < f[1] {
			return f
		}
	}
	return nil
}

// lane is a device's place in a conversation; its sends commit in order.
type lane struct {
	n, commit int64
	free      int64 // until then it waits to repeat a send
}

// write lets devices send.
func (g *generator) write() {
	span := max(g.healed, 20*second)
	lanes := map[string]*lane{}
	times := make([]int64, g.size.Messages)
	for i := range times {
		times[i] = g.between(second, span)
	}
	slices.Sort(times)
	changes := 4 * float64(len(g.convs)) / float64(len(times)) // a few for each conversation
	for i, t := range times {
		ci := g.IntN(len(g.convs))
		c := g.convs[ci]
		if g.chance(min(0.03, changes)) {
			g.change(c, ci, t)
		}
		if g.chance(0.02) {
			g.system(c, ci, t, i)
			continue
		}
		u := g.users[c.members[g.IntN(len(c.members))]]
		m := &message{conv: ci, sender: u.id, device: u.devices[g.IntN(len(u.devices))], cmid: fmt.Sprintf("%016x-%d", g.Uint64(), i),
			hash: fmt.Sprintf("h%015x", g.Uint64()>>4), entry: "message"}
		at := c.id + " " + m.sender + " " + m.device
		l := lanes[at]
		if l == nil {
			l = &lane{}
			lanes[at] = l
		}
		l.n++
		m.n, m.invoked = l.n, max(t, l.free)
		g.fate(m, l)
		g.sends, c.log = append(g.sends, m), append(c.log, m)
	}
	g.ended = span + 40*second
}

// fate decides how a send goes.
func (g *generator) fate(m *message, l *lane) {
	f := g.fault(m.invoked)
	m.commit = max(m.invoked+g.between(ms, 60*ms), l.commit+1)
	switch {
	case f != nil && g.chance(0.5): // the answer is lost; it leaves again
		m.lost = m.commit + g.between(100*ms, 500*ms)
		m.again = max(m.lost+ms, f[1]+g.between(ms, second))
		if g.chance(0.5) { // and so was the send
			m.commit = m.again + g.between(ms, 60*ms)
		}
		m.answered = m.again + g.between(61*ms, 100*ms)
	case g.chance(0.02):
		m.retried = true
		m.lost = m.invoked + g.between(ms, 5*ms)
		m.again = m.lost + g.between(5*ms, 200*ms)
		m.commit = max(m.again+g.between(ms, 60*ms), l.commit+1)
		m.answered = m.commit + g.between(ms, 40*ms)
	default:
		m.answered = m.commit + g.between(ms, 40*ms)
	}
	m.answered = max(m.answered, m.commit+ms)
	l.commit, l.free = m.commit, max(l.free, m.again+1)
}

// change lets a member leave, or one who was not there yet come.
func (g *generator) change(c *conversation, ci int, t int64) {
	m := &message{conv: ci, entry: "member_change", invoked: t, commit: t + g.between(ms, 60*ms)}
	u := g.IntN(len(g.users))
	if c.joins[u] != nil || slices.Contains(c.members, u) {
		return
	}
	c.joins[u] = m
	c.log = append(c.log, m)
	if g.chance(0.5) {
		end := *m
		end.commit = m.commit + g.between(second, 10*second)
		c.leaves[u] = &end
		c.log = append(c.log, &end)
	}
}

// system lets a sender write whose sends are not recorded.
func (g *generator) system(c *conversation, ci int, t int64, i int) {
	c.log = append(c.log, &message{conv: ci, sender: "system", cmid: fmt.Sprintf("system-%d", i), hash: fmt.Sprintf("s%d", i),
		entry: "message", commit: t + g.between(ms, 60*ms)})
}

// number gives each log its order.
func (g *generator) number() {
	for _, c := range g.convs {
		slices.SortStableFunc(c.log, func(a, b *message) int { return cmp.Compare(a.commit, b.commit) })
		seq := int64(0)
		for _, m := range c.log {
			m.prev = seq
			if seq++; g.size.Segment && g.chance(0.05) {
				seq += g.Int64N(1000)
			}
			g.mid += 1 + g.Int64N(5)
			m.seq, m.mid = seq, g.mid
		}
	}
}

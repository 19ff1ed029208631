package sim

import (
	"fmt"
	"io"
	"math/rand/v2"
	"time"

	"github.com/imdhq/imd/pkg/im"
	"github.com/imdhq/imd/pkg/store"
	"github.com/imdhq/imd/sdk/go/gen/clientv1"
)

// settleWithin is how long after the last fault everything must be in order:
// the longest pauses of an outbox, a reconnect and a comparison of heads, one
// after the other.
const settleWithin = 150 * time.Second

// world is one schedule while it runs.
type world struct {
	clock
	rng     *rand.Rand
	plan    plan
	bad     Variant
	store   *model
	judge   *judge
	states  []*stateNode
	push    *pushNode
	routes  *routes
	gates   []*gateway
	devices []*device
	healed  bool // nothing breaks any more
	stopped bool // the state role stands still for a restore
	trace   io.Writer

	ids     int64 // message ids given out
	names   int   // sessions and ids of sends
	commits int
	faults  int
}

// Options chooses a schedule.
type Options struct {
	// Seed makes every choice.
	Seed uint64
	// Bad breaks a rule on purpose; Sound breaks none.
	Bad Variant
	// Trace, if not nil, gets a line for everything that happens.
	Trace io.Writer
}

// Report says what happened in a schedule.
type Report struct {
	Events  uint64        // steps of the virtual clock
	Took    time.Duration // of virtual time
	Sends   int           // messages people wrote
	Commits int           // entries the store has taken
	Faults  int           // things that broke
}

// Failure is a broken promise.
type Failure struct {
	Seed uint64
	At   time.Duration // of virtual time
	Text string
	Plan string
}

// Error says what was broken and when.
func (f *Failure) Error() string {
	return fmt.Sprintf("seed %d at %v: %s\nplan %s", f.Seed, f.At, f.Text, f.Plan)
}

// Run runs one schedule. The error is a *Failure: the first broken promise.
func Run(o Options) (rep Report, err error) {
	rng := rand.New(rand.NewPCG(o.Seed, 0x1d))
	w := &world{rng: rng, plan: makePlan(rng), bad: o.Bad, trace: o.Trace}
	defer func() {
		p := recover()
		if f, broken := p.(*Failure); broken {
			f.Seed, f.Plan = o.Seed, w.plan.String()
			err = f
		} else if p != nil {
			panic(fmt.Sprintf("seed %d at %v: %v", o.Seed, w.now, p))
		}
		rep = Report{Events: w.done, Took: w.now, Sends: len(w.judge.sends), Commits: w.commits, Faults: w.faults}
	}()
	w.build()
	w.breakThings()
	w.settle()
	w.judge.final()
	return rep, nil
}

// fail ends the schedule: a promise is broken.
func (w *world) fail(format string, args ...any) {
	panic(&Failure{At: w.now, Text: fmt.Sprintf(format, args...)})
}

func (w *world) tracef(format string, args ...any) {
	if w.trace != nil {
		fmt.Fprintf(w.trace, "%12v  "+format+"\n", append([]any{w.now}, args...)...)
	}
}

// chance is true with probability p.
func (w *world) chance(p float64) bool { return p > 0 && !w.healed && w.rng.Float64() < p }

// between is a random time.
func (w *world) between(lo, hi time.Duration) time.Duration {
	return lo + time.Duration(w.rng.Int64N(int64(hi-lo)+1))
}

// delay is how long a packet is on its way.
func (w *world) delay() time.Duration {
	if !w.healed && w.rng.IntN(20) == 0 {
		return w.between(time.Millisecond, 300*time.Millisecond)
	}
	return w.between(100*time.Microsecond, 3*time.Millisecond)
}

// build makes the parts.
func (w *world) build() {
	p := &w.plan
	w.judge = newJudge(w)
	w.store = &model{w: w, byID: map[im.ConversationID]*modelConv{}, changes: map[im.ClientMessageID]store.ChangeResult{}}
	for i := range p.convs {
		c := &modelConv{
			id: im.ConversationID(fmt.Sprint("g_", i)), keys: map[modelKey]*clientv1.Entry{}, members: map[im.UserID]*modelMember{},
		}
		w.store.convs = append(w.store.convs, c)
		w.store.byID[c.id] = c
		for u := range p.users {
			c.join(userID(u), 0)
		}
	}
	for i := range p.states {
		n := &stateNode{process: process{w: w, name: fmt.Sprint("state ", i)}}
		n.start()
		w.states = append(w.states, n)
	}
	w.routes = &routes{process: process{w: w, name: "routes"}}
	w.push = &pushNode{process: process{w: w, name: "push"}}
	w.push.start()
	for i := range p.gateways {
		g := &gateway{process: process{w: w, name: fmt.Sprint("gateway ", i)}, n: i}
		g.start()
		w.gates = append(w.gates, g)
	}
	for u := range p.users {
		for i := range p.devices {
			d := newDevice(w, userID(u), fmt.Sprintf("u%d-%d", u, i))
			w.devices = append(w.devices, d)
			w.after(w.between(0, time.Second), d.connect)
		}
	}
}

func userID(n int) im.UserID { return im.UserID(fmt.Sprint("u", n)) }

// settle lets the world heal, and waits until everything is in order or has
// had its time. A while goes by after that, for what may come late.
func (w *world) settle() {
	w.healed = true
	for _, p := range w.processes() {
		p.resume()
		if p.down {
			w.restart(p)
		}
	}
	for _, c := range w.store.convs {
		c.locked = 0
	}
	for _, d := range w.devices {
		if d.link != nil {
			d.link.heal()
		}
	}
	end := w.now + settleWithin
	if w.plan.antiEntropy > 0 && w.plan.restores > 0 {
		end += 2 * w.plan.antiEntropy
	}
	for calm := 0; w.now < end && calm < 4; calm++ {
		w.run(w.now + time.Second)
		if !w.judge.settled() {
			calm = 0
		}
	}
}

// run lets everything happen up to a time.
func (w *world) run(until time.Duration) {
	for w.next(until) {
	}
	w.now = until
}

func (w *world) processes() []*process {
	all := []*process{&w.push.process}
	for _, s := range w.states {
		all = append(all, &s.process)
	}
	for _, g := range w.gates {
		all = append(all, &g.process)
	}
	return all
}

// restart begins the next life of a process.
func (w *world) restart(p *process) {
	if !p.down || w.stopped && p != &w.push.process && !w.isGateway(p) {
		return
	}
	p.down = false
	w.tracef("%s starts", p.name)
	if p == &w.push.process {
		w.push.start()
	}
	for _, s := range w.states {
		if p == &s.process {
			s.start()
		}
	}
	for _, g := range w.gates {
		if p == &g.process {
			g.start()
		}
	}
}

func (w *world) isGateway(p *process) bool {
	for _, g := range w.gates {
		if p == &g.process {
			return true
		}
	}
	return false
}

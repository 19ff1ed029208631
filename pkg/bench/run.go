package bench

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	mrand "math/rand/v2"
	"net/netip"
	"runtime/debug"
	"slices"
	"sync"
	"time"

	"github.com/imdhq/imd/pkg/history"
	"github.com/imdhq/imd/sdk/go/protocol"
)

// Options say what to run against which server.
type Options struct {
	Scenario  string
	Addresses []netip.AddrPort // of the gateways, taken in turn; at least one
	Encoding  protocol.Encoding
	// Token makes a token for a user. It is called from several goroutines.
	Token func(ctx context.Context, user string) (string, error)
	// Group makes a group of the owner and the members; fanout, mix and hot want it.
	Group func(ctx context.Context, owner string, members []string) (conv string, err error)
	// Drain tells the node of the first address to stop in order; drain wants it.
	Drain func(ctx context.Context) error
	// Log reads logs as the system; a recorded run wants it.
	Log ReadLog

	Processes   map[string]int // the server's process ids, by name, each with all that descend from it; empty = it is elsewhere
	Conns       int            // devices
	Users       int            // users they belong to; 0 = each to one of its own
	Outstanding int            // unanswered operations that each device keeps; closed loop
	Rate        float64        // operations a second in all; 0 = closed loop
	Duration    time.Duration  // of the measured part
	Warmup      time.Duration
	Settle      time.Duration // the longest wait afterwards for what is on its way; 0 = 5 s, or 40 s while recording
	Size        int           // bytes of a message's text
	Seed        uint64
	Sources     []netip.Addr // local addresses to connect from, in turn; empty = any
	Prefix      string       // of user names, so that runs do not meet

	Reconnect bool // devices that lose their connection come back and send again what was not answered
	AtOnce    bool // they come back without a pause
	// LongestPause bounds the pause that a device chooses before it comes back; 0 = by the rules of the protocol.
	LongestPause time.Duration

	Conversations int           // sync, resume and connect: conversations of each user
	Entries       int           // history: entries of each conversation
	Page          int           // history: entries of a page
	GroupSize     int           // mix: members of a group
	Others        int           // drain: of the devices, those at other gateways than the one that stops
	Pairs         int           // slow: stretches with and without a client that does not read
	Flaps         int           // presence: how often the user who is watched comes and goes in a round
	Within        time.Duration // presence: the time for that
	Senders       int           // hot: devices that write into the hot conversation
	Members       int           // fanout: of the group, connected or not; below Users = Users
	Whole         bool          // fanout: a message has ended when all members have it, and the next one leaves then
	// Reader is a user that exists: history and sync read what it has in place of
	// what they write themselves. Empty = none.
	Reader       string
	Conversation string // history, with Reader: what to read
	Changed      int    // sync, with Reader: direct conversations that get a message before each sync
	Mix          Mix    // mix: shares of the operations; zero = DefaultMix

	Record   *history.Recorder // where to record; nil = nowhere. The caller closes it
	Progress func(Progress)    // called about once a second; nil = not at all
	// Returned is called, beside the run and at most once a second, when devices
	// are back after a loss: the server may be another process now. nil = not.
	Returned func(ctx context.Context)

	least int64 // operations that the measured part has at least, for short runs on a busy machine

	drainLimit time.Duration // drain: how long the devices may take to move, unless Duration is longer; 0 = 90 s
}

// Progress is how far a run is.
type Progress struct {
	Phase string  // what is being done: connect, fill, warm up, measure, settle, read
	Done  float64 // share of the phase, 0 to 1; below 0 = not known
	Up    int     // devices online
	Last  Sample  // of the second that has just ended
	Fails int64   // failed operations so far
}

// Bounds of what Run does by itself.
const (
	// connectAtOnce is how many connections are being opened at a time.
	connectAtOnce = 200
	// connectLimit is how long opening all of them may take.
	connectLimit = 2 * time.Minute
	// settleLimit and settleRecorded are the defaults of Options.Settle.
	settleLimit    = 5 * time.Second
	settleRecorded = 40 * time.Second
	// quiet is how long nothing may have arrived when a run stops waiting.
	quiet = 300 * time.Millisecond
	// gcPercent trades memory for the client's processor time.
	gcPercent = 400
)

// runner is one run.
type runner struct {
	o       Options
	ctx     context.Context
	h       *host
	l       *loop
	rng     *mrand.Rand
	devices []*device
	up      int
	phase   string
	failed  error // why the run stopped before its end
	sources []*source
	pairs   map[string][2]string // the users of direct conversations
	members map[string][]string  // of each user, the conversations to expect
	named   []string             // the first users, if the scenario does not name them by number

	onFirst   func(joined time.Duration) // a device is online for the first time
	connected bool                       // all were online
	returned  bool                       // devices came back in this second
	dropping  bool                       // connections end because the scenario wants it
	lastLoss  error
	handover  *Handover      // drain
	toFill    func() float64 // how much is written of what a scenario reads
	beside    sync.WaitGroup // work beside the loop

	meter
}

// scenario is one kind of load.
type scenario struct {
	text string
	run  func(r *runner) error
}

var scenarios = map[string]scenario{
	"drain":    {"one of several gateways stops while its devices write", (*runner).drain},
	"connect":  {"open connections, authenticate, and keep them idle", (*runner).connectOnly},
	"send":     {"pairs of a sender and a receiver", (*runner).sendPairs},
	"fanout":   {"one group with everybody online; one sender", (*runner).fanout},
	"hot":      {"one conversation written to as fast as it goes, beside others at a rate", (*runner).hot},
	"slow":     {"pairs that write at a rate, beside one client that by turns does not read", (*runner).slow},
	"presence": {"one user who comes and goes, watched by all others", (*runner).presence},
	"repeat":   {"send messages, and the same messages again", (*runner).repeat},
	"history":  {"read pages of conversations", (*runner).readHistory},
	"sync":     {"ask what has changed, as users with many conversations", (*runner).syncs},
	"resume":   {"drop all connections at once and let every device come back", (*runner).resume},
	"mix":      {"direct messages, groups, reads, history and sync in stated shares", (*runner).mixed},
}

// Scenarios are the names Run knows, with a sentence each.
func Scenarios() map[string]string {
	all := map[string]string{}
	for name, s := range scenarios {
		all[name] = s.text
	}
	return all
}

// Run runs one scenario until it is done or ctx is. If it ends early, the
// result holds what was measured so far, beside an error that says why; the
// result is nil if nothing was.
func Run(ctx context.Context, o Options) (*Result, error) {
	s, ok := scenarios[o.Scenario]
	if !ok {
		return nil, fmt.Errorf("no scenario %q", o.Scenario)
	}
	if len(o.Addresses) == 0 || o.Conns < 1 {
		return nil, errors.New("an address and at least one device are wanted")
	}
	l, err := newLoop()
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancel(ctx)
	r := newRunner(ctx, o, l)
	defer debug.SetGCPercent(debug.SetGCPercent(gcPercent))
	release := l.stopWith(ctx, r.stop)
	defer func() {
		release()
		cancel()
		r.beside.Wait()
		l.close()
	}()
	r.every(time.Second, r.second)
	err = s.run(r)
	if err == nil {
		err = r.failed
	}
	r.finish()
	if r.o.Record != nil && r.ctx.Err() == nil {
		err = errors.Join(err, r.writeGround())
	}
	if r.began == 0 || errors.Is(err, errRefused) {
		return nil, err
	}
	return r.result(err), err
}

func newRunner(ctx context.Context, o Options, l *loop) *runner {
	if o.Users <= 0 || o.Users > o.Conns {
		o.Users = o.Conns
	}
	if o.Settle == 0 {
		o.Settle = settleLimit
		if o.Record != nil {
			o.Settle = settleRecorded
		}
	}
	if o.drainLimit == 0 {
		o.drainLimit = drainLimit
	}
	if o.Scenario == "resume" || o.Scenario == "drain" {
		o.Reconnect = true
	}
	r := &runner{o: o, ctx: ctx, l: l, rng: mrand.New(mrand.NewPCG(o.Seed, 1)), pairs: map[string][2]string{}, members: map[string][]string{}}
	var salt [32]byte
	_, _ = rand.Read(salt[:])
	r.h = &host{l: l, enc: o.Encoding, addresses: o.Addresses, rng: mrand.New(mrand.NewPCG(o.Seed, 2)),
		ids: uuids{mrand.NewChaCha8(salt), time.Now}, size: max(o.Size, stampLen), rec: newTape(o.Record, l), longest: o.LongestPause, fresh: r.freshToken, shown: r.shown, refused: r.refused}
	r.meter.init(o, l)
	r.h.acks = r.recorder("ack")
	return r
}

// stop ends the run before its end.
func (r *runner) stop(err error) {
	if r.failed == nil {
		r.failed = err
	}
	r.l.stop = true
}

// every calls f again and again while the run lasts.
func (r *runner) every(d time.Duration, f func()) {
	var again func()
	again = func() {
		f()
		r.l.after(d, again)
	}
	r.l.after(d, again)
}

// wait runs the loop until done says so, but not longer than limit; it reports
// whether it did. done is asked about 100 times a second.
func (r *runner) wait(phase string, limit time.Duration, done func() bool) (bool, error) {
	if r.failed != nil {
		return false, r.failed
	}
	r.phase = phase
	ok, over := false, false
	var look func()
	look = func() {
		switch {
		case over:
		case done():
			ok, r.l.stop = true, true
		default:
			r.l.after(10*time.Millisecond, look)
		}
	}
	r.l.at(r.l.now, look)
	err := r.l.run(time.Since(r.l.base) + limit)
	over = true
	return ok, errors.Join(err, r.failed)
}

// second is called once a second: it watches over the devices and tells how
// far the run is.
func (r *runner) second() {
	for _, d := range r.devices {
		d.check()
	}
	if r.returned && r.o.Returned != nil {
		r.side(func(ctx context.Context) func() {
			r.o.Returned(ctx)
			return func() {}
		})
	}
	r.returned = false
	s := r.sample()
	if r.o.Progress != nil {
		r.o.Progress(Progress{Phase: r.phase, Done: r.share(), Up: r.up, Last: s, Fails: r.fails})
	}
}

// share is how much of the phase is done.
func (r *runner) share() float64 {
	switch {
	case r.toFill != nil:
		return r.toFill()
	case r.phase == "connect" && len(r.devices) > 0:
		return float64(r.up) / float64(r.o.Conns)
	case r.measuring && r.end > r.began:
		return min(float64(r.l.now-r.began)/float64(r.end-r.began), 1)
	}
	return -1
}

func (r *runner) user(i int) string {
	if i < len(r.named) {
		return r.named[i]
	}
	return fmt.Sprintf("%s%06d", r.o.Prefix, i)
}

// tokens makes a token for each device from the first one on to the n-th,
// several at a time.
func (r *runner) tokens(first, n int) ([]string, error) {
	tokens := make([]string, n)
	err := parallel(r.ctx, n-first, func(ctx context.Context, i int) (err error) {
		tokens[first+i], err = r.o.Token(ctx, r.user((first+i)%r.o.Users))
		return err
	})
	return tokens, err
}

// freshToken makes another token for a device, beside the loop.
func (r *runner) freshToken(d *device, got func(string, error)) {
	r.side(func(ctx context.Context) func() {
		token, err := r.o.Token(ctx, d.user)
		return func() { got(token, err) }
	})
}

// pair makes the direct conversation of two users known.
func (r *runner) pair(a, b string) {
	conv := protocol.DirectID(a, b)
	if _, ok := r.pairs[conv]; ok || r.h.rec == nil {
		return
	}
	r.pairs[conv] = [2]string{a, b}
	r.join(conv, a, b)
}

// join makes it known that users are in a conversation. It counts for devices
// that are made afterwards.
func (r *runner) join(conv string, users ...string) {
	if r.h.rec != nil {
		for _, u := range users {
			r.members[u] = append(r.members[u], conv)
		}
	}
}

// connectAll makes devices until there are n, opens their connections, a bounded
// number at a time, and waits until all are online. prepare is called for each
// before.
func (r *runner) connectAll(n int, prepare func(d *device)) error {
	r.phase, r.connected = "connect", false
	next := len(r.devices)
	tokens, err := r.tokens(next, n)
	if err != nil {
		return fmt.Errorf("make tokens: %w", err)
	}
	open := func() {
		if next == n {
			return
		}
		i := next
		next++
		var src netip.Addr
		if len(r.o.Sources) > 0 {
			src = r.o.Sources[i%len(r.o.Sources)]
		}
		d := r.h.newDevice(i, r.user(i%r.o.Users), fmt.Sprintf("bench-%d", i/r.o.Users), tokens[i], src)
		r.devices = append(r.devices, d)
		d.comesBack, d.syncs = true, r.o.Record != nil
		r.watch(d)
		for _, conv := range r.members[d.user] {
			d.in.expect(conv)
		}
		if prepare != nil {
			prepare(d)
		}
		d.join()
	}
	r.onFirst = func(joined time.Duration) {
		r.connecting.add(joined)
		open()
	}
	for range min(connectAtOnce, n-next) {
		open()
	}
	ok, err := r.wait("connect", connectLimit, func() bool { return r.up == n })
	if err == nil && !ok {
		err = fmt.Errorf("%d of %d devices are online after %v%s", r.up, n, connectLimit, r.why())
	}
	for _, d := range r.devices {
		d.comesBack, d.atOnce = r.o.Reconnect, r.o.AtOnce
	}
	r.connected = err == nil
	return err
}

// watch follows whether a device is online.
func (r *runner) watch(d *device) {
	d.onUp = func(joined time.Duration) {
		if !d.counted {
			d.counted = true
			r.up++
		}
		if d.welcomed == 1 {
			r.onFirst(joined)
		} else if d.onJoin != nil {
			d.onJoin(joined)
		}
		r.returned = r.returned || d.welcomed > 1
		for _, s := range d.sources {
			s.kick()
		}
	}
	d.onDown = func(reason string, err error) {
		if d.counted && !d.online() {
			d.counted = false
			r.up--
		}
		if d.next == nil || reason != protocol.ReasonSuperseded { // else it has just moved
			r.down(d, reason, err)
		}
	}
}

// shown takes note of a message of somebody else that a device was shown.
func (r *runner) shown(d *device, text []byte) {
	r.received(text)
	if d.onShown != nil {
		d.onShown(text)
	}
}

// errRefused is a server that is not there.
var errRefused = errors.New("the server cannot be reached")

// down counts a lost connection, and ends the run if there is no use in going on.
func (r *runner) down(d *device, reason string, err error) {
	if r.dropping {
		return
	}
	r.lastLoss = err
	r.errors["connection: "+reason]++
	switch {
	case !r.connected && d.ended:
		r.stop(fmt.Errorf("%s cannot log in: %s: %w", d.user, reason, err))
	case !r.connected && r.up == 0 && d.welcomed == 0 && isRefused(err):
		r.stop(fmt.Errorf("%w: %w", errRefused, err))
	case r.connected && !r.o.Reconnect && r.up < (len(r.devices)+1)/2:
		r.stop(fmt.Errorf("the server went away: %d of %d connections are lost: %w", len(r.devices)-r.up, len(r.devices), err))
	}
}

func (r *runner) why() string {
	if r.lastLoss == nil {
		return ""
	}
	return ": " + r.lastLoss.Error()
}

// measure runs the warm-up and the measured part, and then waits for what is
// still on its way.
func (r *runner) measure() error {
	if _, err := r.wait("warm up", r.o.Warmup, func() bool { return false }); err != nil {
		return err
	}
	r.begin()
	_, err := r.wait("measure", r.o.Duration, func() bool { return false })
	if err == nil && r.ops < r.o.least {
		_, err = r.wait("measure", r.o.Settle, func() bool { return r.ops >= r.o.least })
	}
	r.finish()
	return errors.Join(err, r.settle())
}

// settle lets no new operation begin and waits for those that have begun, and
// for what is being delivered.
func (r *runner) settle() error {
	r.over = true
	if r.failed != nil {
		if r.ctx.Err() == nil {
			r.giveUp()
		}
		return nil
	}
	_, err := r.wait("settle", r.o.Settle, func() bool {
		if r.h.rec != nil {
			return r.open == 0 && !slices.ContainsFunc(r.devices, func(d *device) bool { return !r.h.rec.caughtUp(d) })
		}
		return r.open == 0 && r.l.now-r.lastSeen > quiet
	})
	r.giveUp()
	return err
}

// writeGround records who has settled, and the logs as they are.
func (r *runner) writeGround() error {
	for _, d := range r.devices {
		if d.online() && !d.in.syncing {
			r.h.rec.settled(d)
		}
	}
	if r.o.Log == nil {
		return errors.New("the logs cannot be read: no access as the system")
	}
	r.phase = "read"
	convs := make([]string, 0, len(r.h.rec.heads))
	for conv := range r.h.rec.heads {
		convs = append(convs, conv)
	}
	slices.Sort(convs)
	return WriteGround(r.ctx, r.o.Record, r.o.Log, convs, r.pairs)
}

package bench

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/netip"
	"sort"
	"time"

	"github.com/imdhq/imd/sdk/go/gen/clientv1"
	"github.com/imdhq/imd/sdk/go/protocol"
)

// Options say what to run against which server.
type Options struct {
	Scenario    string
	Address     netip.AddrPort
	Encoding    protocol.Encoding
	Token       func(user string) (string, error)                                                  // mints a token
	Group       func(ctx context.Context, owner string, members []string) (conv string, err error) // makes a group
	Processes   map[string]int                                                                     // the server's, by name; empty = it is elsewhere
	Conns       int                                                                                // devices
	Outstanding int                                                                                // unanswered sends a sender keeps; closed loop
	Rate        float64                                                                            // operations a second in all; 0 = closed loop
	Duration    time.Duration                                                                      // of the measured part
	Warmup      time.Duration
	Size        int // bytes of a message's text
	Seed        uint64
	Sources     []netip.Addr // local addresses to connect from, in turn; empty = any
	Prefix      string       // of user names, so that runs do not meet
	Progress    io.Writer    // a line a second; nil = none
}

// Bounds of what Run does by itself.
const (
	// connectAtOnce is how many connections are being opened at a time.
	connectAtOnce = 200
	// connectLimit is how long opening all of them may take.
	connectLimit = 2 * time.Minute
	// settle is how long a run waits for what is still on its way.
	settle = 5 * time.Second
)

// runner is one run.
type runner struct {
	o          Options
	l          *loop
	rng        *rand.Rand
	devices    []*device
	ack        *recorder
	deliver    *recorder
	connecting *recorder
	errors     map[string]int64
	ops        int64
	deliveries int64
	measuring  bool
	began      time.Time
	cpu        map[string]float64
	rss        map[string]int64
	ownCPU     float64
	took       float64
	processes  []Process
	series     []Sample
}

// Scenarios are the names Run knows, with a sentence each.
var Scenarios = map[string]string{
	"connect": "open connections, authenticate, and keep them idle",
	"send":    "pairs of a sender and a receiver",
	"fanout":  "one group with everybody online; one sender",
}

// Run runs one scenario until it is done or ctx is.
func Run(ctx context.Context, o Options) (*Result, error) {
	l, err := newLoop()
	if err != nil {
		return nil, err
	}
	defer l.close()
	r := &runner{o: o, l: l, rng: rand.New(rand.NewPCG(o.Seed, o.Seed)),
		ack: newRecorder(), deliver: newRecorder(), connecting: newRecorder(), errors: map[string]int64{},
		cpu: map[string]float64{}, rss: map[string]int64{}}
	r.watch(ctx)
	switch o.Scenario {
	case "connect":
		err = r.connectOnly()
	case "send":
		err = r.pairs()
	case "fanout":
		err = r.fanout(ctx)
	default:
		err = fmt.Errorf("no scenario %q", o.Scenario)
	}
	if err == nil {
		err = ctx.Err()
	}
	if err != nil {
		return nil, err
	}
	return r.result(), nil
}

// watch ends the loop soon after ctx is done.
func (r *runner) watch(ctx context.Context) {
	var look func()
	look = func() {
		if ctx.Err() != nil {
			r.l.stop = true
		}
		r.l.at(r.l.now.Add(100*time.Millisecond), look)
	}
	r.l.at(r.l.now, look)
}

func (r *runner) user(i int) string { return fmt.Sprintf("%s%06d", r.o.Prefix, i) }

// connectAll opens n devices, a bounded number at a time, and waits until each
// has its welcome.
func (r *runner) connectAll(n int, ready func(d *device, i int)) error {
	next, up := 0, 0
	var failure error
	var open func()
	fail := func(err error) {
		failure = errors.Join(failure, err)
		r.l.stop = true
	}
	open = func() {
		if next == n {
			return
		}
		i := next
		next++
		token, err := r.o.Token(r.user(i))
		if err != nil {
			fail(err)
			return
		}
		var src netip.Addr
		if len(r.o.Sources) > 0 {
			src = r.o.Sources[i%len(r.o.Sources)]
		}
		d := newDevice(r.l, r.o.Encoding, r.o.Address, src, r.user(i), "bench", token)
		r.devices = append(r.devices, d)
		began := r.l.now
		d.onWelcome = func(*clientv1.Welcome) {
			r.connecting.add(r.l.now.Sub(began))
			up++
			if up == n {
				r.l.stop = true
			}
			open()
		}
		d.onDown = func(code int, reason string, err error) {
			r.errors["closed: "+reason]++
			if !d.online && up < n {
				fail(fmt.Errorf("%s: %s %w", d.user, reason, err))
			}
		}
		ready(d, i)
		if err := d.connect(); err != nil {
			fail(err)
		}
	}
	for range min(connectAtOnce, n) {
		open()
	}
	if err := r.l.run(r.l.now.Add(connectLimit)); err != nil {
		return err
	}
	if failure != nil {
		return failure
	}
	if up < n {
		return fmt.Errorf("%d of %d devices are online after %v", up, n, connectLimit)
	}
	return nil
}

// begin starts the measured part.
func (r *runner) begin() {
	r.ack.reset()
	r.deliver.reset()
	r.ops, r.deliveries = 0, 0
	r.measuring, r.began, r.ownCPU = true, time.Now(), ownCPU()
	for name, pid := range r.o.Processes {
		if cpu, rss, err := usage(pid); err == nil {
			r.cpu[name], r.rss[name] = cpu, rss
		}
	}
}

// measure runs the loop for the warm-up and then the measured part.
func (r *runner) measure() error {
	if err := r.l.run(time.Now().Add(r.o.Warmup)); err != nil {
		return err
	}
	r.begin()
	end := r.began.Add(r.o.Duration)
	second := 0
	var tick func()
	tick = func() {
		if !r.measuring {
			return
		}
		second++
		s := r.ack.sample(second)
		if s.Ops == 0 && r.ack.all.TotalCount() == 0 {
			s = r.deliver.sample(second)
		}
		r.series = append(r.series, s)
		if r.o.Progress != nil {
			fmt.Fprintf(r.o.Progress, "%4d s  %7d/s  p50 %.2f ms  p99 %.2f ms\n", second, s.Ops, s.P50, s.P99)
		}
		r.l.at(r.began.Add(time.Duration(second+1)*time.Second), tick)
	}
	r.l.at(r.began.Add(time.Second), tick)
	err := r.l.run(end)
	r.finish()
	return err
}

// finish closes the measured part: times and memory are read now.
func (r *runner) finish() {
	r.measuring = false
	r.took = time.Since(r.began).Seconds()
	r.ownCPU = ownCPU() - r.ownCPU
	for name, pid := range r.o.Processes {
		cpu, rss, err := usage(pid)
		if err != nil {
			continue
		}
		r.processes = append(r.processes, Process{Name: name, PID: pid, CPU: cpu - r.cpu[name], RSSBefore: r.rss[name], RSSAfter: rss})
	}
	sort.Slice(r.processes, func(i, j int) bool { return r.processes[i].Name < r.processes[j].Name })
}

func (r *runner) result() *Result {
	res := &Result{
		Scenario: r.o.Scenario, Machine: thisMachine(), Encoding: r.o.Encoding.String(), Seed: r.o.Seed,
		Options: map[string]any{"conns": r.o.Conns, "outstanding": r.o.Outstanding, "size": r.o.Size,
			"duration_s": r.o.Duration.Seconds(), "warmup_s": r.o.Warmup.Seconds()},
		Seconds: r.took, Offered: r.o.Rate, Operations: r.ops, Deliveries: r.deliveries,
		Achieved: float64(r.ops) / r.took, ClientCPU: r.ownCPU, Processes: r.processes,
		Latency: map[string]Latency{}, Errors: r.errors, Series: r.series,
	}
	for name, rec := range map[string]*recorder{"ack": r.ack, "deliver": r.deliver, "connect": r.connecting} {
		if rec.all.TotalCount() > 0 {
			res.Latency[name] = rec.latency()
		}
	}
	server := 0.0
	for i := range r.processes {
		p := &r.processes[i]
		server += p.CPU
		if r.ops > 0 {
			p.PerOp = p.CPU * 1e6 / float64(r.ops)
		}
		if r.o.Scenario == "connect" {
			p.BytesPerCon = float64(p.RSSAfter-p.RSSBefore) / float64(r.o.Conns)
		}
	}
	if server > 0 {
		res.Share = r.ownCPU / (r.ownCPU + server)
		if r.ops > 0 {
			res.PerOp = server * 1e6 / float64(r.ops)
		}
	}
	return res
}

package bench

import (
	"context"
	"errors"
	"maps"
	"os"
	"runtime"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// Result is what one run measured.
type Result struct {
	Scenario   string             `json:"scenario"`
	Began      string             `json:"began"` // RFC 3339
	Ended      string             `json:"ended"` // empty = as planned; else why it ended before
	Machine    Machine            `json:"machine"`
	Server     string             `json:"server_version"` // empty = not known
	Client     string             `json:"client_version"`
	Encoding   string             `json:"encoding"`
	Seed       uint64             `json:"seed"`
	Options    map[string]any     `json:"options"`
	Seconds    float64            `json:"seconds"`            // of the measured part
	Offered    float64            `json:"offered_per_second"` // 0 = closed loop
	Achieved   float64            `json:"achieved_per_second"`
	Operations int64              `json:"operations"`
	Deliveries int64              `json:"deliveries"`
	Delivered  float64            `json:"deliveries_per_second"`
	States     int64              `json:"conversations,omitempty"`   // told of by syncs
	Entries    int64              `json:"entries,omitempty"`         // read with pages
	Latency    map[string]Latency `json:"latency"`                   // by what was measured: ack, deliver, connect, ...
	Primary    string             `json:"primary"`                   // the one that Series and comparisons are about
	Beside     float64            `json:"beside_ratio,omitempty"`    // hot: ack p99 of the other conversations beside it / before it
	StallP50   float64            `json:"stall_p50_ratio,omitempty"` // slow: p50 of deliveries while one does not read / while it does
	StallP95   float64            `json:"stall_p95_ratio,omitempty"` // the same of p95
	Handover   *Handover          `json:"handover,omitempty"`        // drain
	MostEvents int                `json:"most_events,omitempty"`     // presence: the most that one watcher got in one round
	IdleCores  float64            `json:"idle_cores,omitempty"`      // connect: processors in use by the server while all devices were idle
	Errors     map[string]int64   `json:"errors"`                    // by reason
	Failed     int64              `json:"failed"`                    // operations without success
	Processes  []Process          `json:"processes"`                 // the server's, as far as they are on this machine
	ClientCPU  float64            `json:"client_cpu_s"`              // of this process, in the measured part
	ClientEach float64            `json:"client_us_each"`            // the same per operation, microseconds
	Share      float64            `json:"client_share"`              // client / (client + server); 0 if the server is elsewhere
	PerOp      float64            `json:"server_us_each"`            // server CPU per operation, microseconds
	Series     []Sample           `json:"series"`                    // one a second
	LimitsOff  bool               `json:"limits_off"`                // the server's rate limits were lifted
	Recorded   string             `json:"recorded,omitempty"`
}

// Machine is where the run took place.
type Machine struct {
	CPUs   int    `json:"cpus"`
	Model  string `json:"model"`
	Memory int64  `json:"memory_bytes"`
	Kernel string `json:"kernel"`
	Go     string `json:"go"`
}

// Latency is a distribution, in milliseconds. What had no answer at the end is
// in it with the time it had waited.
type Latency struct {
	Count       int64        `json:"count"`
	Mean        float64      `json:"mean_ms"`
	P50         float64      `json:"p50_ms"`
	P90         float64      `json:"p90_ms"`
	P99         float64      `json:"p99_ms"`
	P999        float64      `json:"p999_ms"`
	Max         float64      `json:"max_ms"`
	Percentiles []Percentile `json:"percentiles"`
}

// Percentile is one point of a distribution.
type Percentile struct {
	Q  float64 `json:"q"` // 0 to 100
	Ms float64 `json:"ms"`
}

// Sample is one second of a run; its latencies are of what ended in it.
type Sample struct {
	Second     int     `json:"second"`
	Ops        int64   `json:"operations"`
	Deliveries int64   `json:"deliveries"`
	P50        float64 `json:"p50_ms"`
	P99        float64 `json:"p99_ms"`
	Max        float64 `json:"max_ms"`
}

// Process is one server process with those that descend from it.
type Process struct {
	Name        string  `json:"name"`
	PID         int     `json:"pid"`
	CPU         float64 `json:"cpu_s"`         // used in the measured part
	RSSBefore   int64   `json:"rss_before"`    // bytes
	RSSAfter    int64   `json:"rss_after"`     // bytes
	PerOp       float64 `json:"us_each"`       // CPU per operation, microseconds
	BytesPerCon float64 `json:"bytes_per_con"` // growth per connection; connect only
}

// result puts together what was measured. why is nil if the run ended as
// planned.
func (r *runner) result(why error) *Result {
	res := &Result{
		Scenario: r.o.Scenario, Began: time.Now().Add(-time.Since(r.l.base)).UTC().Format(time.RFC3339), Machine: thisMachine(),
		Encoding: r.o.Encoding.String(), Seed: r.o.Seed, Options: r.o.told(), Seconds: r.took, Offered: r.o.Rate, Operations: r.ops,
		Deliveries: r.deliveries, Entries: r.entries, States: r.states, MostEvents: r.eventsMost, Handover: r.handover, Latency: map[string]Latency{}, Errors: r.errors, Failed: r.fails,
		ClientCPU: r.ownCPU, Processes: r.processes, Series: r.series,
	}
	if why != nil {
		res.Ended = why.Error()
		if errors.Is(why, context.Canceled) {
			res.Ended = "interrupted"
		}
	}
	if r.o.Scenario == "hot" || r.o.Scenario == "drain" { // the rate is of something else than operations
		res.Offered = 0
	}
	if r.took > 0 {
		res.Achieved, res.Delivered = float64(r.ops)/r.took, float64(r.deliveries)/r.took
	}
	for name, rec := range r.latencies {
		if rec.all.TotalCount() > 0 {
			res.Latency[name] = rec.latency()
		}
		if rec == r.primary {
			res.Primary = name
		}
	}
	if calm := res.Latency["calm"].P99; calm > 0 {
		res.Beside = res.Latency["beside"].P99 / calm
	}
	if calm, rough := r.latencies["calm_deliver"], r.latencies["stalled_deliver"]; calm != nil && rough != nil && calm.all.TotalCount() > 0 {
		res.StallP50 = ms(rough.all, 50) / ms(calm.all, 50)
		res.StallP95 = ms(rough.all, 95) / ms(calm.all, 95)
	}
	r.shares(res)
	if idle := r.took - r.onlineAfter; r.o.Scenario == "connect" && r.onlineAfter > 0 && idle > 0 {
		res.IdleCores = (r.serverCPU() - r.onlineCPU) / idle
	}
	return res
}

// shares fills in who used the processor.
func (r *runner) shares(res *Result) {
	server, ops := 0.0, float64(r.ops)
	for i := range res.Processes {
		p := &res.Processes[i]
		server += p.CPU
		if ops > 0 {
			p.PerOp = p.CPU * 1e6 / ops
		}
		if r.o.Scenario == "connect" {
			p.BytesPerCon = float64(p.RSSAfter-p.RSSBefore) / float64(r.o.Conns)
		}
	}
	if ops > 0 {
		res.ClientEach, res.PerOp = r.ownCPU*1e6/ops, server*1e6/ops
	}
	if server > 0 {
		res.Share = r.ownCPU / (r.ownCPU + server)
	}
}

// told is the options as a result names them: those that count in the scenario.
func (o *Options) told() map[string]any {
	m := map[string]any{"conns": o.Conns, "users": o.Users, "duration_s": o.Duration.Seconds()}
	set := func(name string, v any, in ...string) {
		if len(in) == 0 || slices.Contains(in, o.Scenario) {
			m[name] = v
		}
	}
	if o.Rate > 0 {
		set("rate", o.Rate)
	}
	if o.Rate == 0 || o.Scenario == "hot" {
		set("outstanding", max(o.Outstanding, 1), "send", "hot", "repeat", "fanout", "history", "sync", "mix")
	}
	set("warmup_s", o.Warmup.Seconds(), "drain", "slow", "send", "hot", "repeat", "fanout", "history", "sync", "mix")
	set("size", o.Size, "drain", "slow", "send", "hot", "repeat", "fanout", "history", "sync", "resume", "mix")
	set("others", o.Others, "drain")
	set("senders", o.Senders, "hot")
	set("pairs", o.Pairs, "slow")
	set("flaps", o.Flaps, "presence")
	set("within_s", o.Within.Seconds(), "presence")
	if o.Whole {
		set("whole", true, "fanout")
	}
	if o.Members > 0 {
		set("members", o.Members, "fanout")
	}
	if o.Reader != "" {
		set("reader", o.Reader, "history", "sync")
		set("conversation", o.Conversation, "history")
		set("changed", o.Changed, "sync")
	}
	set("page", o.Page, "history", "mix")
	if o.Reader == "" {
		set("entries", o.Entries, "history")
		set("conversations", o.Conversations, "sync")
	}
	set("conversations", o.Conversations, "resume", "connect")
	set("group_size", o.GroupSize, "mix")
	set("mix", o.Mix, "mix")
	set("at_once", o.AtOnce, "resume")
	if o.Reconnect {
		m["reconnect"] = true
	}
	if o.Record != nil {
		m["record"] = true
	}
	if n := len(o.Sources); n > 0 {
		m["sources"] = n
	}
	return m
}

// LatencyNames are the names of the latencies, the primary one first.
func (r *Result) LatencyNames() []string {
	names := slices.Sorted(maps.Keys(r.Latency))
	if i := slices.Index(names, r.Primary); i > 0 {
		names = slices.Insert(slices.Delete(names, i, i+1), 0, r.Primary)
	}
	return names
}

// thisMachine describes where we run.
func thisMachine() Machine {
	m := Machine{CPUs: runtime.NumCPU(), Go: runtime.Version()}
	if raw, err := os.ReadFile("/proc/cpuinfo"); err == nil {
		for line := range strings.Lines(string(raw)) {
			if name, v, ok := strings.Cut(line, ":"); ok && strings.TrimSpace(name) == "model name" {
				m.Model = strings.TrimSpace(v)
				break
			}
		}
	}
	var si unix.Sysinfo_t
	if unix.Sysinfo(&si) == nil {
		m.Memory = int64(si.Totalram) * int64(si.Unit)
	}
	var un unix.Utsname
	if unix.Uname(&un) == nil {
		m.Kernel = unix.ByteSliceToString(un.Release[:])
	}
	return m
}

// ownCPU is this process's CPU time in seconds.
func ownCPU() float64 {
	var ru unix.Rusage
	if unix.Getrusage(unix.RUSAGE_SELF, &ru) != nil {
		return 0
	}
	return float64(ru.Utime.Nano()+ru.Stime.Nano()) / 1e9
}

package bench

import (
	"fmt"
	"os"
	"runtime"
	"strconv"
	"strings"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"
	"golang.org/x/sys/unix"
)

// Result is what one run measured.
type Result struct {
	Scenario   string             `json:"scenario"`
	Machine    Machine            `json:"machine"`
	Server     string             `json:"server_version"`
	Client     string             `json:"client_version"`
	Encoding   string             `json:"encoding"`
	Seed       uint64             `json:"seed"`
	Options    map[string]any     `json:"options"`
	Seconds    float64            `json:"seconds"`            // of the measured part
	Offered    float64            `json:"offered_per_second"` // 0 = closed loop
	Achieved   float64            `json:"achieved_per_second"`
	Operations int64              `json:"operations"`
	Deliveries int64              `json:"deliveries"`
	Latency    map[string]Latency `json:"latency"`        // by what was measured: ack, deliver, connect, ...
	Errors     map[string]int64   `json:"errors"`         // by reason
	Processes  []Process          `json:"processes"`      // the server's, as far as they are on this machine
	ClientCPU  float64            `json:"client_cpu_s"`   // of this process, in the measured part
	Share      float64            `json:"client_share"`   // client / (client + server); 0 if the server is elsewhere
	PerOp      float64            `json:"server_us_each"` // server CPU per operation, microseconds
	Series     []Sample           `json:"series"`         // one a second
	LimitsOff  bool               `json:"limits_off"`     // the server's rate limits were lifted
}

// Machine is where the run took place.
type Machine struct {
	CPUs   int    `json:"cpus"`
	Model  string `json:"model"`
	Memory int64  `json:"memory_bytes"`
	Kernel string `json:"kernel"`
}

// Latency is a distribution, in milliseconds.
type Latency struct {
	Count int64   `json:"count"`
	Mean  float64 `json:"mean_ms"`
	P50   float64 `json:"p50_ms"`
	P90   float64 `json:"p90_ms"`
	P99   float64 `json:"p99_ms"`
	P999  float64 `json:"p999_ms"`
	Max   float64 `json:"max_ms"`
}

// Sample is one second of a run.
type Sample struct {
	Second int     `json:"second"`
	Ops    int64   `json:"operations"`
	P50    float64 `json:"p50_ms"`
	P99    float64 `json:"p99_ms"`
}

// Process is one server process.
type Process struct {
	Name        string  `json:"name"`
	PID         int     `json:"pid"`
	CPU         float64 `json:"cpu_s"`         // used in the measured part
	RSSBefore   int64   `json:"rss_before"`    // bytes
	RSSAfter    int64   `json:"rss_after"`     // bytes
	PerOp       float64 `json:"us_each"`       // CPU per operation, microseconds
	BytesPerCon float64 `json:"bytes_per_con"` // growth per connection; connect only
}

// recorder collects latencies: in all, and by second.
type recorder struct {
	all    *hdrhistogram.Histogram
	second *hdrhistogram.Histogram
}

func newRecorder() *recorder {
	mk := func() *hdrhistogram.Histogram { return hdrhistogram.New(1, int64(10*time.Minute/time.Microsecond), 3) }
	return &recorder{mk(), mk()}
}

func (r *recorder) add(d time.Duration) {
	us := max(int64(d/time.Microsecond), 1)
	_ = r.all.RecordValue(us)
	_ = r.second.RecordValue(us)
}

func (r *recorder) reset() { r.all.Reset(); r.second.Reset() }

// sample closes the current second.
func (r *recorder) sample(n int) Sample {
	s := Sample{n, r.second.TotalCount(), ms(r.second, 50), ms(r.second, 99)}
	r.second.Reset()
	return s
}

func (r *recorder) latency() Latency {
	return Latency{r.all.TotalCount(), r.all.Mean() / 1000, ms(r.all, 50), ms(r.all, 90), ms(r.all, 99), ms(r.all, 99.9), float64(r.all.Max()) / 1000}
}

func ms(h *hdrhistogram.Histogram, q float64) float64 {
	return float64(h.ValueAtQuantile(q)) / 1000
}

// thisMachine describes where we run.
func thisMachine() Machine {
	m := Machine{CPUs: runtime.NumCPU()}
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

// clockTicks is the kernel's unit of CPU times in /proc.
const clockTicks = 100

// usage reads a process's CPU time in seconds and its resident bytes.
func usage(pid int) (cpu float64, rss int64, err error) {
	raw, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return 0, 0, err
	}
	_, rest, ok := strings.Cut(string(raw), ") ")
	f := strings.Fields(rest)
	if !ok || len(f) < 22 {
		return 0, 0, fmt.Errorf("/proc/%d/stat has another form", pid)
	}
	ut, _ := strconv.ParseFloat(f[11], 64)
	st, _ := strconv.ParseFloat(f[12], 64)
	pages, _ := strconv.ParseInt(f[21], 10, 64)
	return (ut + st) / clockTicks, pages * int64(os.Getpagesize()), nil
}

// ownCPU is this process's CPU time in seconds.
func ownCPU() float64 {
	var ru unix.Rusage
	if unix.Getrusage(unix.RUSAGE_SELF, &ru) != nil {
		return 0
	}
	return float64(ru.Utime.Nano()+ru.Stime.Nano()) / 1e9
}

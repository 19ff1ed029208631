package obs

import (
	"context"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"net/http/pprof"
	"net/url"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/imdhq/imd/pkg/control"
	"github.com/imdhq/imd/pkg/module"
	"github.com/imdhq/imd/pkg/status/look"
)

// OpsConfig is the section "ops".
type OpsConfig struct {
	// Listen is the host:port of the ops listener.
	Listen string `mapstructure:"listen" doc:"host:port for probes, metrics and admin services; port 0 picks a free one. Default 127.0.0.1:8421."`
}

// DefaultOpsConfig is what an empty file means.
func DefaultOpsConfig() OpsConfig { return OpsConfig{Listen: "127.0.0.1:8421"} }

// Validate checks the address.
func (c OpsConfig) Validate() error {
	if _, _, err := net.SplitHostPort(c.Listen); err != nil {
		return fmt.Errorf("ops.listen: %q is not host:port", c.Listen)
	}
	return nil
}

// Time limits.
const (
	second     = time.Second
	probeLimit = 900 * time.Millisecond // for all readiness checks of one request
)

// Ops is the handler of the ops listener: probes, metrics, profiles, and what
// modules mount. Safe for concurrent use once it serves.
type Ops struct {
	mux   *http.ServeMux
	ready *module.Ready
	state func() control.State
	pulse *Pulse
}

// NewOps makes the handler. state is asked at each probe.
func NewOps(ready *module.Ready, state func() control.State, pulse *Pulse, boot string, g prometheus.Gatherer, b Build) *Ops {
	o := &Ops{mux: http.NewServeMux(), ready: ready, state: state, pulse: pulse}
	o.mux.Handle("GET /{$}", http.RedirectHandler("/statusz/", http.StatusSeeOther)) // for people
	o.mux.Handle("GET /livez", Livez(pulse, boot))
	o.mux.HandleFunc("GET /startupz", o.startupz)
	o.mux.HandleFunc("GET /readyz", o.readyz)
	o.mux.HandleFunc("GET /readyz/{name}", o.readyOne)
	o.mux.Handle("GET /metrics", metricsHandler(g))
	o.mux.HandleFunc("GET /statusz/build", func(w http.ResponseWriter, _ *http.Request) { writeJSON(w, http.StatusOK, b) })
	o.mux.Handle("GET /debug/pprof/", loopbackOnly(pprof.Index))
	o.mux.Handle("GET /debug/pprof/cmdline", loopbackOnly(pprof.Cmdline))
	o.mux.Handle("GET /debug/pprof/profile", loopbackOnly(pprof.Profile))
	o.mux.Handle("GET /debug/pprof/symbol", loopbackOnly(pprof.Symbol))
	o.mux.Handle("GET /debug/pprof/trace", loopbackOnly(pprof.Trace))
	return o
}

// Mount adds a handler under a pattern of http.ServeMux. Only before serving.
func (o *Ops) Mount(pattern string, h http.Handler) { o.mux.Handle(pattern, h) }

// ServeHTTP answers a request. Pages link to those that are mounted here.
func (o *Ops) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if strings.HasPrefix(r.URL.Path, "/statusz/") {
		r = look.With(r, o.has)
	}
	o.mux.ServeHTTP(w, r)
}

// has reports whether something is mounted at a path.
func (o *Ops) has(path string) bool {
	_, pattern := o.mux.Handler(&http.Request{Method: http.MethodGet, URL: &url.URL{Path: path}})
	return pattern != ""
}

// Server is an http.Server for h with limits on what a client may cost.
// Answers may take long: a CPU profile takes as long as it is asked to.
func Server(h http.Handler) *http.Server {
	return &http.Server{
		Handler: h, ReadHeaderTimeout: 5 * second, ReadTimeout: 30 * second, IdleTimeout: 60 * second, MaxHeaderBytes: 16 << 10,
	}
}

// Livez answers whether the process gets on, and with its boot id in a header,
// so that a node can tell whether an address still is the process it was. It
// never looks at a dependency: restarting this process would not heal one.
func Livez(pulse *Pulse, boot string) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set(control.BootHeader, boot)
		w.Header().Set("Cache-Control", "no-store")
		if !pulse.Alive(time.Now()) {
			http.Error(w, "the process does not get on", http.StatusServiceUnavailable)
			return
		}
		fmt.Fprintln(w, "ok")
	})
}

func (o *Ops) startupz(w http.ResponseWriter, _ *http.Request) {
	if o.state() == control.Starting {
		http.Error(w, "starting", http.StatusServiceUnavailable)
		return
	}
	fmt.Fprintln(w, "ok")
}

// The words of Report.Status.
const (
	StatusReady    = "ready"
	StatusDegraded = "degraded" // serves, but something is away
	StatusUnready  = "unready"
)

// Report is the answer of /readyz.
type Report struct {
	Status string          `json:"status"`
	Checks []module.Status `json:"checks,omitempty"` // with ?verbose, and whenever something is wrong
}

// Report runs all checks and sums them up.
func (o *Ops) Report(ctx context.Context) Report {
	ctx, cancel := context.WithTimeout(ctx, probeLimit)
	defer cancel()
	all, ok := o.ready.Check(ctx)
	node := module.Status{Name: "node", Ready: true}
	if s := o.state(); s != control.Serving {
		node.Ready, node.Reason, ok = false, string(s), false
	}
	rep := Report{Status: StatusReady, Checks: append([]module.Status{node}, all...)}
	for _, c := range all {
		if c.Degraded {
			rep.Status = StatusDegraded
		}
	}
	if !ok {
		rep.Status = StatusUnready
	}
	return rep
}

func (o *Ops) readyz(w http.ResponseWriter, r *http.Request) {
	rep := o.Report(r.Context())
	status := http.StatusOK
	if rep.Status == StatusUnready {
		status = http.StatusServiceUnavailable
	}
	if rep.Status == StatusReady && !r.URL.Query().Has("verbose") {
		rep.Checks = nil
	}
	writeJSON(w, status, rep)
}

func (o *Ops) readyOne(w http.ResponseWriter, r *http.Request) {
	for _, c := range o.Report(r.Context()).Checks {
		if c.Name != r.PathValue("name") {
			continue
		}
		status := http.StatusOK
		if !c.Ready {
			status = http.StatusServiceUnavailable
		}
		writeJSON(w, status, c)
		return
	}
	http.Error(w, "there is no check of that name", http.StatusNotFound)
}

func writeJSON(w http.ResponseWriter, status int, v any) {
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Cache-Control", "no-store")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(v) // fails only if the client is gone
}

// Loopback reports whether a host:port as of http.Request.RemoteAddr, or a
// host alone, is this machine itself.
func Loopback(addr string) bool {
	host, _, err := net.SplitHostPort(addr)
	if err != nil {
		host = addr
	}
	if host == "localhost" {
		return true
	}
	ip := net.ParseIP(host)
	return ip != nil && ip.IsLoopback()
}

func loopbackOnly(h http.HandlerFunc) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !Loopback(r.RemoteAddr) {
			http.Error(w, "profiles are given to this machine only", http.StatusForbidden)
			return
		}
		h(w, r)
	})
}

package obs_test

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/prometheus/client_golang/prometheus/testutil/promlint"

	"github.com/imdhq/imd/pkg/control"
	"github.com/imdhq/imd/pkg/module"
	"github.com/imdhq/imd/pkg/obs"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func none(string) string { return "" }

func TestProbes(t *testing.T) {
	state := control.Serving
	db := module.Status{Ready: true}
	ready := module.NewReady()
	ready.Add("database", func(context.Context) module.Status { return db })
	reg := obs.NewRegistry(obs.ThisBuild())
	ops := obs.NewOps(ready, func() control.State { return state }, obs.NewPulse(none), "boot7", reg, obs.ThisBuild())
	away := module.Status{Reason: "cannot be reached"}
	tests := []struct {
		name   string
		state  control.State
		db     module.Status
		path   string
		remote string
		status int
		body   string
	}{
		{name: "ready", path: "/readyz", status: 200, body: `{"status":"ready"}`},
		{name: "verbose", path: "/readyz?verbose", status: 200, body: `"checks":[{"name":"node","ready":true},{"name":"database","ready":true}]`},
		{name: "degraded is ready", db: module.Status{Ready: true, Degraded: true, Reason: "etcd is away"}, path: "/readyz", status: 200, body: `{"status":"degraded","checks":[`},
		{name: "a dependency is away", db: away, path: "/readyz", status: 503, body: `{"name":"database","ready":false,"reason":"cannot be reached"}`},
		{name: "one check", db: away, path: "/readyz/database", status: 503, body: `"reason":"cannot be reached"`},
		{name: "one good check", path: "/readyz/database", status: 200, body: `"ready":true`},
		{name: "unknown check", path: "/readyz/nope", status: 404, body: "no check of that name"},
		{name: "draining", state: control.Draining, path: "/readyz", status: 503, body: `{"name":"node","ready":false,"reason":"draining"}`},
		{name: "starting is not started", state: control.Starting, path: "/startupz", status: 503, body: "starting"},
		{name: "draining is started", state: control.Draining, path: "/startupz", status: 200, body: "ok"},
		{name: "alive whatever is away", state: control.Starting, db: away, path: "/livez", status: 200, body: "ok"},
		{name: "metrics", path: "/metrics", status: 200, body: "imd_build_info{"},
		{name: "build", path: "/statusz/build", status: 200, body: `"version":`},
		{name: "profiles here", path: "/debug/pprof/cmdline", remote: "127.0.0.1:5", status: 200},
		{name: "profiles elsewhere", path: "/debug/pprof/cmdline", remote: "10.0.0.1:5", status: 403, body: "this machine only"},
		{name: "unknown path", path: "/nope", status: 404},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			state, db = control.Serving, module.Status{Ready: true}
			if tt.state != "" {
				state = tt.state
			}
			if tt.db != (module.Status{}) {
				db = tt.db
			}
			r := httptest.NewRequest("GET", tt.path, nil)
			if tt.remote != "" {
				r.RemoteAddr = tt.remote
			}
			w := httptest.NewRecorder()
			ops.ServeHTTP(w, r)
			if w.Code != tt.status || !strings.Contains(w.Body.String(), tt.body) {
				t.Errorf("%s = %d %s; want %d with %s", tt.path, w.Code, w.Body, tt.status, tt.body)
			}
		})
	}
	w := httptest.NewRecorder()
	ops.ServeHTTP(w, httptest.NewRequest("GET", "/livez", nil))
	if got := w.Header().Get(control.BootHeader); got != "boot7" {
		t.Errorf("%s = %q", control.BootHeader, got)
	}
	families, err := reg.Gather()
	if err != nil {
		t.Fatal(err)
	}
	if problems, err := promlint.NewWithMetricFamilies(families).Lint(); err != nil || len(problems) > 0 {
		t.Errorf("lint: %v %v", problems, err)
	}
}

func TestLoggerJSON(t *testing.T) {
	path := filepath.Join(t.TempDir(), "log")
	f, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	log, level, err := obs.NewLogger(obs.DefaultLogConfig(), f)
	if err != nil {
		t.Fatal(err)
	}
	log.Debug("not written")
	log.Named("gateway").Info("started", zap.Int("n", 1))
	log.Error("lost", zap.Error(errors.New("boom")))
	level.SetLevel(zap.DebugLevel)
	log.Debug("written")
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	lines := strings.Split(strings.TrimSpace(string(data)), "\n")
	if len(lines) != 3 {
		t.Fatalf("got %q", lines)
	}
	var first map[string]any
	if err := json.Unmarshal([]byte(lines[0]), &first); err != nil {
		t.Fatal(err)
	}
	if first["msg"] != "started" || first["module"] != "gateway" || first["level"] != "info" || first["n"] != 1.0 {
		t.Errorf("first line = %v", first)
	}
	if _, err := time.Parse(time.RFC3339Nano, first["time"].(string)); err != nil {
		t.Error(err)
	}
}

func TestConfigChecks(t *testing.T) {
	if err := (obs.LogConfig{Level: "loud", Format: "auto"}).Validate(); err == nil {
		t.Error("a wrong level passes")
	}
	if err := (obs.LogConfig{Level: "info", Format: "xml"}).Validate(); err == nil {
		t.Error("a wrong format passes")
	}
	if err := (obs.OpsConfig{Listen: "8421"}).Validate(); err == nil {
		t.Error("a wrong address passes")
	}
	if err := errors.Join(obs.DefaultLogConfig().Validate(), obs.DefaultOpsConfig().Validate()); err != nil {
		t.Error(err)
	}
}

func TestPulse(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := obs.NewPulse(none)
		ctx, cancel := context.WithCancel(t.Context())
		go p.Run(ctx)
		time.Sleep(time.Minute)
		if !p.Alive(time.Now()) {
			t.Error("not alive while it beats")
		}
		cancel()
		time.Sleep(11 * time.Second)
		if p.Alive(time.Now()) {
			t.Error("alive 11 s after the last beat")
		}
	})
}

func TestNotify(t *testing.T) {
	path := filepath.Join(t.TempDir(), "notify")
	conn, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: path, Net: "unixgram"})
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	t.Setenv("NOTIFY_SOCKET", path)
	p := obs.NewPulse(os.Getenv)
	p.Ready("ready, public 127.0.0.1:8420")
	p.Stopping(35 * time.Second)
	for _, want := range []string{"READY=1\nSTATUS=ready, public 127.0.0.1:8420", "STOPPING=1\nSTATUS=draining\nEXTEND_TIMEOUT_USEC=40000000"} {
		buf := make([]byte, 200)
		_ = conn.SetReadDeadline(time.Now().Add(5 * time.Second))
		n, err := conn.Read(buf)
		if err != nil || string(buf[:n]) != want {
			t.Errorf("got %q, %v; want %q", buf[:n], err, want)
		}
	}
}

func TestServerLimitsHeaders(t *testing.T) {
	s := obs.Server(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "ok") }))
	if s.ReadHeaderTimeout == 0 || s.IdleTimeout == 0 || s.MaxHeaderBytes == 0 {
		t.Errorf("the server has no limits: %+v", s)
	}
}

func TestLoopback(t *testing.T) {
	for addr, want := range map[string]bool{
		"127.0.0.1:80": true, "127.9.1.2": true, "[::1]:80": true, "localhost:80": true, "localhost": true,
		"0.0.0.0:80": false, ":80": false, "10.0.0.1:80": false, "example.com": false, "localhost.evil.example:80": false, "": false,
	} {
		if got := obs.Loopback(addr); got != want {
			t.Errorf("Loopback(%q) = %v", addr, got)
		}
	}
}

// Warnings and errors are counted, whoever writes them.
func TestCounted(t *testing.T) {
	t.Parallel()
	reg := prometheus.NewRegistry()
	log := obs.Counted(zap.New(zapcore.NewCore(zapcore.NewJSONEncoder(zapcore.EncoderConfig{}), zapcore.AddSync(io.Discard), zap.InfoLevel)), reg).Named("x").With(zap.Int("n", 1))
	log.Info("fine")
	log.Warn("hm")
	log.Error("bad")
	log.Error("bad")
	want := `
# HELP imd_log_lines_total Warnings and errors in the log.
# TYPE imd_log_lines_total counter
imd_log_lines_total{level="error"} 2
imd_log_lines_total{level="warn"} 1
`
	if err := testutil.GatherAndCompare(reg, strings.NewReader(want)); err != nil {
		t.Error(err)
	}
}

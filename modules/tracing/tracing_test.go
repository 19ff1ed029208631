package tracing

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"go.uber.org/goleak"
	"go.uber.org/zap"

	"github.com/imdhq/imd/pkg/config"
	"github.com/imdhq/imd/pkg/module"
	"github.com/imdhq/imd/pkg/testenv"
	"github.com/imdhq/imd/pkg/trace"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestValidate(t *testing.T) {
	for want, change := range map[string]func(*Config){
		"":                                     func(*Config) {},
		"tracing.share: 1.5":                   func(c *Config) { c.Share = 1.5 },
		"tracing.endpoint: is missing":         func(c *Config) { c.Header = config.Secret("A: b") },
		"tracing.endpoint: \"127.0.0.1:4318\"": func(c *Config) { c.Endpoint = "127.0.0.1:4318" },
		"tracing.header: must be":              func(c *Config) { c.Endpoint, c.Header = "http://h", config.Secret("a secret") },
	} {
		c := DefaultConfig()
		change(&c)
		err := c.Validate()
		if (err == nil) != (want == "") || err != nil && (!strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "a secret")) {
			t.Errorf("%s: %v", want, err)
		}
	}
}

// Records go to the collector while the module runs, and are counted; without an
// endpoint nobody is asked for any.
func TestSpansLeave(t *testing.T) {
	c, kept, reg := testenv.StartCollector(t), trace.New(trace.DefaultBytes, time.Minute, time.Now), prometheus.NewRegistry()
	m := New(Config{Endpoint: c.URL, Share: 1}, Deps{Log: zap.NewNop(), Reg: reg, Node: "n1", Trace: kept})
	if err := m.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	x, _ := kept.Begin("")
	kept.Add(trace.Record{Stage: trace.Committed, At: time.Now(), Trace: x})
	if err := m.Close(); err != nil {
		t.Fatal(err)
	}
	if got := c.Spans(); len(got) != 1 || got[0].Node != "n1" {
		t.Errorf("%+v", got)
	}
	want := "# HELP imd_tracing_exported_total Spans that the collector took.\n# TYPE imd_tracing_exported_total counter\nimd_tracing_exported_total 1\n"
	if err := testutil.GatherAndCompare(reg, strings.NewReader(want), "imd_tracing_exported_total"); err != nil {
		t.Error(err)
	}
	if x, _ := kept.Begin(""); x.Sampled() {
		t.Error("spans are made after the end")
	}
	none := New(DefaultConfig(), Deps{Trace: kept})
	if err := errors.Join(none.Start(t.Context()), none.Close()); err != nil {
		t.Error(err)
	}
	var wrong *module.ConfigError
	if err := New(Config{Endpoint: "https://h", CAFile: "/not/here"}, Deps{Trace: kept}).Start(t.Context()); !errors.As(err, &wrong) {
		t.Errorf("a file that is not there: %v", err)
	}
}

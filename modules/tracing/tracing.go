// Package tracing hands what the roles of this node do with a share of all
// messages and calls to a collector of OpenTelemetry, as spans.
//
// # Role
//
// It is a shared part of every node, and does nothing without an endpoint.
//
// # Invariants
//
//   - Whoever has a span never waits, whatever the collector does.
//   - No content is in a span, and no name of a user.
//
// # Failure
//
// A collector that is slow or away costs spans; the log says so once, and the
// metrics how many.
//
// # Metrics
//
// imd_tracing_spans_total, imd_tracing_exported_total,
// imd_tracing_failed_total.
package tracing

import (
	"context"
	"errors"
	"fmt"

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/zap"

	"github.com/imdhq/imd/pkg/config"
	"github.com/imdhq/imd/pkg/module"
	"github.com/imdhq/imd/pkg/settings"
	"github.com/imdhq/imd/pkg/trace"
	"github.com/imdhq/imd/pkg/trace/otlp"
)

// Config is the section "tracing". It is read once, at start.
type Config struct {
	// Endpoint is where spans go.
	Endpoint string `mapstructure:"endpoint" doc:"URL of a collector of OpenTelemetry that takes OTLP over HTTP, such as http://127.0.0.1:4318. Default: none, no spans are made."`
	// Header is sent along.
	Header config.Secret `mapstructure:"header" doc:"A header for the collector, as 'Authorization: Bearer KEY'. Default: none."`
	// CAFile is whom the collector is trusted by.
	CAFile string `mapstructure:"ca_file" doc:"PEM file with the certificates that sign that of an https collector; default those of the system."`
	// Share is of how much spans are made; a setting of the same name wins.
	Share float64 `mapstructure:"share" doc:"The part of all sends and calls of which spans are made, 0 to 1; may change while the node runs. Default 0.01."`
}

// DefaultConfig is what an empty section means.
func DefaultConfig() Config { return Config{Share: share.In(nil)} }

// Validate reports what is wrong, with its key.
func (c Config) Validate() error {
	if !(c.Share >= 0 && c.Share <= 1) {
		return fmt.Errorf("tracing.share: %v is not within 0 and 1", c.Share)
	}
	if c.Endpoint == "" {
		if c.Header != "" || c.CAFile != "" {
			return errors.New("tracing.endpoint: is missing, but tracing.header or tracing.ca_file is given")
		}
		return nil
	}
	if err := (otlp.Options{Endpoint: c.Endpoint, Header: c.Header.Reveal()}).Check(); err != nil {
		return fmt.Errorf("tracing.%w", err)
	}
	return nil
}

// share is of how much spans are made.
var share = settings.Float("tracing.share", 0.01, 0, 1,
	"The part of all sends and calls of which spans are made, if there is a collector. What a caller's traceparent says wins. 1 = all.")

// Deps is what the module works with.
type Deps struct {
	Log      *zap.Logger
	Reg      prometheus.Registerer
	Node     string
	Version  string
	Roles    []string
	Trace    *trace.Log     // whose records become spans
	Settings *settings.Live // nil = the default share
}

// Tracing is the module of one node.
type Tracing struct {
	cfg Config
	Deps
	to *otlp.Exporter // nil = spans are not made
}

// New makes the module; it opens nothing.
func New(cfg Config, d Deps) *Tracing { return &Tracing{cfg: cfg, Deps: d} }

// Spec declares the module.
func Spec() module.Spec {
	return module.Spec{
		Name:     "tracing",
		Config:   func() any { c := DefaultConfig(); return &c },
		Settings: settings.Schema{Keys: []settings.Declared{share}},
		New: func(env *module.Env) (module.Module, error) {
			cfg := DefaultConfig()
			if err := env.Config("tracing", &cfg); err != nil {
				return nil, err
			}
			return New(cfg, Deps{Log: env.Log, Reg: env.Reg, Node: string(env.Node), Version: env.Version, Roles: env.Roles, Trace: env.Trace, Settings: env.Settings}), nil
		},
	}
}

// Start begins to make spans. It does not wait for the collector.
func (t *Tracing) Start(context.Context) error {
	if t.cfg.Endpoint == "" || t.Trace == nil {
		return nil
	}
	to, err := otlp.Open(otlp.Options{
		Endpoint: t.cfg.Endpoint, Header: t.cfg.Header.Reveal(), CAFile: t.cfg.CAFile, Node: t.Node, Version: t.Version, Roles: t.Roles, Log: t.Log,
	})
	if err != nil {
		return &module.ConfigError{Err: fmt.Errorf("tracing.%w", err)}
	}
	t.to = to
	counter := func(name, help string, of func(otlp.Stats) int64) prometheus.Collector {
		return prometheus.NewCounterFunc(prometheus.CounterOpts{Name: "imd_tracing_" + name + "_total", Help: help}, func() float64 { return float64(of(to.Stats())) })
	}
	t.Reg.MustRegister(
		counter("spans", "Spans that were made; those that are neither exported nor failed wait, or were dropped because too many did.", func(s otlp.Stats) int64 { return s.Made }),
		counter("exported", "Spans that the collector took.", func(s otlp.Stats) int64 { return s.Exported }),
		counter("failed", "Spans that the collector did not take.", func(s otlp.Stats) int64 { return s.Failed }))
	t.Trace.Export(to.Add, t.part)
	return nil
}

// part is of how much spans are made now.
func (t *Tracing) part() float64 {
	if t.Settings == nil {
		return t.cfg.Share
	}
	return share.Or(t.Settings.Current(), t.cfg.Share)
}

// Run does nothing: the exporter works by itself.
func (t *Tracing) Run(ctx context.Context) error {
	<-ctx.Done()
	return nil
}

// Drain does nothing: others still have spans.
func (t *Tracing) Drain(context.Context) error { return nil }

// Close sends what waits, for 2 s at most.
func (t *Tracing) Close() error {
	if t.to == nil {
		return nil
	}
	t.Trace.Export(nil, nil)
	return t.to.Close()
}

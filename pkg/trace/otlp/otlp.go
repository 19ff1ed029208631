// Package otlp hands spans to a collector of OpenTelemetry, over OTLP by HTTP.
//
// Whoever has a span only puts it into a queue, and drops it if that is full: a
// collector that is slow or away costs spans and nothing else.
package otlp

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace/otlptracehttp"
	"go.opentelemetry.io/otel/sdk/resource"
	sdk "go.opentelemetry.io/otel/sdk/trace"
	otel "go.opentelemetry.io/otel/trace"
	"go.uber.org/zap"

	"github.com/imdhq/imd/pkg/trace"
)

// Bounds of the export.
const (
	maxQueue  = 4096 // spans that wait
	maxBatch  = 512  // spans of one request
	every     = time.Second
	sendLimit = 10 * time.Second // for one batch, all tries together
	// closeLimit is how long what waits at the end may take to leave.
	closeLimit = 2 * time.Second
)

// Options shape an Exporter.
type Options struct {
	// Endpoint is the URL of the collector, such as http://127.0.0.1:4318. Without
	// a path the one of the standard is added, /v1/traces.
	Endpoint string
	// Header is sent along, as "Name: value"; "" = none.
	Header string
	// CAFile names the PEM file with whom an https collector is trusted by; "" = the
	// system's.
	CAFile string
	// Node, Version and Roles say whose spans they are.
	Node, Version string
	Roles         []string
	Log           *zap.Logger
}

// Check reports what is wrong with the options. It opens no connection.
func (o Options) Check() error {
	u, err := url.Parse(o.Endpoint)
	if err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Host == "" {
		return fmt.Errorf("endpoint: %q is no http or https URL", o.Endpoint)
	}
	if name, value, ok := strings.Cut(o.Header, ":"); o.Header != "" && (!ok || strings.TrimSpace(name) == "" || strings.TrimSpace(value) == "") {
		return errors.New("header: must be a name, a colon and a value")
	}
	return nil
}

// Stats counts spans.
type Stats struct {
	Made     int64 // that were put into the queue, or dropped because it was full
	Exported int64 // that the collector took
	Failed   int64 // that it did not take
}

// Exporter sends spans to a collector. Safe for concurrent use.
type Exporter struct {
	provider  *sdk.TracerProvider
	tracer    otel.Tracer
	transport *http.Transport
	watch     *watch
	made      atomic.Int64
}

// Open makes an exporter. It connects when there is something to send. Close must
// follow. Errors: the options are wrong, or the CA file is.
func Open(o Options) (*Exporter, error) {
	if err := o.Check(); err != nil {
		return nil, err
	}
	e := &Exporter{transport: &http.Transport{ // no Proxy: variables of the environment are ignored
		MaxIdleConns: 2, IdleConnTimeout: time.Minute, TLSHandshakeTimeout: sendLimit, ResponseHeaderTimeout: sendLimit,
	}}
	if o.CAFile != "" {
		text, err := os.ReadFile(o.CAFile)
		if err != nil {
			return nil, fmt.Errorf("ca_file: %w", err)
		}
		roots := x509.NewCertPool()
		if !roots.AppendCertsFromPEM(text) {
			return nil, fmt.Errorf("ca_file: %s holds no certificates", o.CAFile)
		}
		e.transport.TLSClientConfig = &tls.Config{MinVersion: tls.VersionTLS12, RootCAs: roots}
	}
	u, _ := url.Parse(o.Endpoint) // it was checked
	if u.Path == "" || u.Path == "/" {
		u.Path = "/v1/traces"
	}
	headers := map[string]string{}
	if name, value, ok := strings.Cut(o.Header, ":"); ok {
		headers[strings.TrimSpace(name)] = strings.TrimSpace(value)
	}
	life, end := context.WithCancel(context.Background())
	e.watch = &watch{life: life, end: end, log: o.Log, next: otlptrace.NewUnstarted(otlptracehttp.NewClient(
		otlptracehttp.WithEndpointURL(u.String()), otlptracehttp.WithHeaders(headers), otlptracehttp.WithCompression(otlptracehttp.GzipCompression),
		otlptracehttp.WithHTTPClient(&http.Client{Transport: e.transport, Timeout: sendLimit}), otlptracehttp.WithTimeout(sendLimit),
		otlptracehttp.WithRetry(otlptracehttp.RetryConfig{Enabled: true, InitialInterval: 500 * time.Millisecond, MaxInterval: 5 * time.Second, MaxElapsedTime: sendLimit}),
	))}
	e.provider = sdk.NewTracerProvider(
		sdk.WithBatcher(e.watch, sdk.WithMaxQueueSize(maxQueue), sdk.WithMaxExportBatchSize(maxBatch), sdk.WithBatchTimeout(every), sdk.WithExportTimeout(sendLimit)),
		sdk.WithSampler(sdk.AlwaysSample()), // what comes here was chosen
		sdk.WithIDGenerator(given{}),
		sdk.WithResource(resource.NewSchemaless(
			attribute.String("service.name", "imd"), attribute.String("service.version", o.Version), attribute.String("service.instance.id", o.Node),
			attribute.StringSlice("imd.roles", o.Roles))),
	)
	e.tracer = e.provider.Tracer("github.com/imdhq/imd")
	return e, nil
}

// Add puts a span into the queue; it never waits.
func (e *Exporter) Add(x trace.Span) {
	e.made.Add(1)
	ctx := context.WithValue(context.Background(), given{}, x.Context)
	if x.Parent.Sampled() {
		id, span := x.Parent.IDs()
		ctx = otel.ContextWithRemoteSpanContext(ctx, otel.NewSpanContext(otel.SpanContextConfig{
			TraceID: id, SpanID: span, TraceFlags: otel.FlagsSampled, Remote: true,
		}))
	}
	attrs := make([]attribute.KeyValue, 0, len(x.Attrs))
	for _, a := range x.Attrs {
		if a.Text != "" {
			attrs = append(attrs, attribute.String(a.Key, a.Text))
		} else {
			attrs = append(attrs, attribute.Int64(a.Key, a.Count))
		}
	}
	_, s := e.tracer.Start(ctx, x.Name, otel.WithTimestamp(x.Begin), otel.WithSpanKind(kinds[x.Kind]), otel.WithAttributes(attrs...))
	if x.Failed != "" {
		s.SetStatus(codes.Error, x.Failed)
	}
	s.End(otel.WithTimestamp(x.End))
}

var kinds = [...]otel.SpanKind{trace.Internal: otel.SpanKindInternal, trace.Server: otel.SpanKindServer, trace.Client: otel.SpanKindClient}

// Stats tells what became of the spans so far.
func (e *Exporter) Stats() Stats {
	return Stats{e.made.Load(), e.watch.exported.Load(), e.watch.failed.Load()}
}

// Close sends what waits, for 2 s at most, and lets go of the collector.
func (e *Exporter) Close() error {
	ctx, cancel := context.WithTimeout(context.Background(), closeLimit)
	defer cancel()
	err := e.provider.Shutdown(ctx)
	e.watch.end() // what is still being sent would go on for long
	e.transport.CloseIdleConnections()
	if errors.Is(err, context.DeadlineExceeded) {
		return nil // the collector did not take them; the log has said so, or will not any more
	}
	return err
}

// given gives spans the ids that they have already.
type given struct{}

// NewIDs is the ids of the span that ctx is for.
func (given) NewIDs(ctx context.Context) (otel.TraceID, otel.SpanID) {
	c, _ := ctx.Value(given{}).(trace.Context)
	id, span := c.IDs()
	return id, span
}

// NewSpanID is the id of the span that ctx is for.
func (g given) NewSpanID(ctx context.Context, _ otel.TraceID) otel.SpanID {
	_, span := g.NewIDs(ctx)
	return span
}

// watch counts what leaves, and says once when nothing does.
type watch struct {
	life     context.Context // of all requests
	end      context.CancelFunc
	next     *otlptrace.Exporter
	log      *zap.Logger
	exported atomic.Int64
	failed   atomic.Int64

	mu   sync.Mutex
	sick bool
}

// ExportSpans sends spans. It keeps errors to itself: nobody could do anything
// about them.
func (w *watch) ExportSpans(ctx context.Context, spans []sdk.ReadOnlySpan) error {
	err := w.life.Err()
	if err == nil {
		ctx, cancel := context.WithCancel(ctx)
		defer cancel()
		defer context.AfterFunc(w.life, cancel)()
		err = w.next.ExportSpans(ctx, spans)
	}
	w.mu.Lock()
	turned := (err != nil) != w.sick
	w.sick = err != nil
	w.mu.Unlock()
	if err != nil {
		w.failed.Add(int64(len(spans)))
		if turned && w.life.Err() == nil {
			w.log.Warn("spans do not reach the collector; they are dropped", zap.Error(err))
		}
		return nil
	}
	w.exported.Add(int64(len(spans)))
	if turned {
		w.log.Info("spans reach the collector again")
	}
	return nil
}

// Shutdown ends the sending.
func (w *watch) Shutdown(ctx context.Context) error { return w.next.Shutdown(ctx) }

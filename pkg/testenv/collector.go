package testenv

import (
	"compress/gzip"
	"encoding/hex"
	"io"
	"net/http"
	"net/http/httptest"
	"sync"
	"testing"
	"time"

	collector "go.opentelemetry.io/proto/otlp/collector/trace/v1"
	common "go.opentelemetry.io/proto/otlp/common/v1"
	"google.golang.org/protobuf/proto"
)

// Collector is a collector of OpenTelemetry that takes OTLP over HTTP and keeps
// the spans.
type Collector struct {
	URL string

	mu     sync.Mutex
	spans  []CollectedSpan
	header http.Header // of the newest request
}

// CollectedSpan is a span as it arrived.
type CollectedSpan struct {
	Node, Service    string
	Trace, ID, Above string // hex; Above "" = it is the first of its trace
	Name, Kind       string
	Failed           string
	Begin, End       time.Time
	Attrs            map[string]string
}

// StartCollector starts a collector that lasts as long as the test.
func StartCollector(t testing.TB) *Collector {
	t.Helper()
	c := &Collector{}
	srv := httptest.NewServer(c)
	t.Cleanup(srv.Close)
	c.URL = srv.URL
	return c
}

// Spans are those that arrived so far.
func (c *Collector) Spans() []CollectedSpan {
	c.mu.Lock()
	defer c.mu.Unlock()
	return append([]CollectedSpan(nil), c.spans...)
}

// Header is that of the newest request.
func (c *Collector) Header() http.Header {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.header.Clone()
}

// ServeHTTP takes spans.
func (c *Collector) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	req, err := readSpans(r)
	if err != nil || r.Method != http.MethodPost || r.URL.Path != "/v1/traces" || r.Header.Get("Content-Type") != "application/x-protobuf" {
		http.Error(w, "no spans", http.StatusBadRequest)
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.header = r.Header.Clone()
	for _, of := range req.ResourceSpans {
		owner := texts(of.Resource.GetAttributes())
		for _, scope := range of.ScopeSpans {
			for _, s := range scope.Spans {
				c.spans = append(c.spans, CollectedSpan{
					Node: owner["service.instance.id"], Service: owner["service.name"], Trace: hex.EncodeToString(s.TraceId), ID: hex.EncodeToString(s.SpanId),
					Above: hex.EncodeToString(s.ParentSpanId), Name: s.Name, Kind: s.Kind.String(), Failed: s.Status.GetMessage(),
					Begin: time.Unix(0, int64(s.StartTimeUnixNano)), End: time.Unix(0, int64(s.EndTimeUnixNano)), Attrs: texts(s.Attributes),
				})
			}
		}
	}
	body, err := proto.Marshal(&collector.ExportTraceServiceResponse{})
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", "application/x-protobuf")
	_, _ = w.Write(body) // fails only if the caller is gone
}

func readSpans(r *http.Request) (*collector.ExportTraceServiceRequest, error) {
	var from io.Reader = r.Body
	if r.Header.Get("Content-Encoding") == "gzip" {
		z, err := gzip.NewReader(r.Body)
		if err != nil {
			return nil, err
		}
		from = z
	}
	body, err := io.ReadAll(from)
	if err != nil {
		return nil, err
	}
	req := &collector.ExportTraceServiceRequest{}
	return req, proto.Unmarshal(body, req)
}

func texts(attrs []*common.KeyValue) map[string]string {
	out := map[string]string{}
	for _, a := range attrs {
		if s, ok := a.Value.GetValue().(*common.AnyValue_StringValue); ok {
			out[a.Key] = s.StringValue
		}
	}
	return out
}

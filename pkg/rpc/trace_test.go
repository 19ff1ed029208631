package rpc

import (
	"context"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/zap"

	"github.com/imdhq/imd/pkg/trace"
	"github.com/imdhq/imd/proto/gen/adminv1"
	"github.com/imdhq/imd/proto/gen/adminv1/adminv1connect"
)

// A call is traced if its caller says so, or, where traces may begin, by chance;
// what it calls in turn is below it.
func TestCallsAreTraced(t *testing.T) {
	const said = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
	for name, tt := range map[string]struct {
		begins bool
		header string
		parent string
		traced bool
	}{
		"asked for":           {header: said, parent: said, traced: true},
		"by chance":           {begins: true, traced: true},
		"nobody said so":      {},
		"the caller declines": {begins: true, header: strings.TrimSuffix(said, "01") + "00"},
	} {
		kept := trace.New(trace.DefaultBytes, time.Minute, time.Now)
		var got []trace.Span
		kept.Export(func(x trace.Span) { got = append(got, x) }, func() float64 { return 1 })
		s := NewServer(Options{Log: zap.NewNop(), Metrics: NewMetrics(prometheus.NewRegistry()), Trace: kept, Begins: tt.begins})
		var within trace.Context
		adminv1connect.RegisterClusterServiceHandler(s.Connect(), lister(func(ctx context.Context) (*adminv1.ListNodesResponse, error) {
			within = trace.From(ctx)
			return &adminv1.ListNodesResponse{}, nil
		}))
		mux := http.NewServeMux()
		s.Mount(mux.Handle, nil)
		r := httptest.NewRequest(http.MethodPost, "/imd.admin.v1.ClusterService/ListNodes", strings.NewReader("{}"))
		r.Header.Set("Content-Type", "application/json")
		r.Header.Set("traceparent", tt.header)
		mux.ServeHTTP(httptest.NewRecorder(), r)
		if within.Sampled() != tt.traced || (len(got) == 1) != tt.traced {
			t.Errorf("%s: %q, %+v", name, within, got)
			continue
		}
		if tt.traced && (got[0].Context != within || got[0].Parent.String() != tt.parent || got[0].Name != "imd.admin.v1.ClusterService/ListNodes" || got[0].Kind != trace.Server) {
			t.Errorf("%s: %+v", name, got[0])
		}
	}
}

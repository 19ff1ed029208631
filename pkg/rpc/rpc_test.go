package rpc

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"connectrpc.com/connect/v2"
	"connectrpc.com/connect/v2/connecthttp"
	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/goleak"
	"go.uber.org/zap"

	"github.com/imdhq/imd/pkg/balance"
	"github.com/imdhq/imd/pkg/im"
	"github.com/imdhq/imd/proto/gen/adminv1"
	"github.com/imdhq/imd/proto/gen/adminv1/adminv1connect"
	"github.com/imdhq/imd/sdk/go/gen/clientv1"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// lister answers ListNodes with a function.
type lister func(context.Context) (*adminv1.ListNodesResponse, error)

func (l lister) ListNodes(ctx context.Context, _ *adminv1.ListNodesRequest) (*adminv1.ListNodesResponse, error) {
	return l(ctx)
}

func serve(t *testing.T, timeout time.Duration, l lister) *httptest.Server {
	t.Helper()
	s := NewServer(Options{Log: zap.NewNop(), Metrics: NewMetrics(prometheus.NewRegistry()), Timeout: func(connect.Spec) time.Duration { return timeout }})
	adminv1connect.RegisterClusterServiceHandler(s.Connect(), l)
	mux := http.NewServeMux()
	s.Mount(mux.Handle, nil)
	srv := httptest.NewServer(mux)
	t.Cleanup(srv.Close)
	return srv
}

func call(t *testing.T, srv *httptest.Server) (int, string) {
	res, err := srv.Client().Post(srv.URL+"/imd.admin.v1.ClusterService/ListNodes", "application/json", strings.NewReader("{}"))
	if err != nil {
		t.Error(err)
		return 0, ""
	}
	defer res.Body.Close()
	b, _ := io.ReadAll(res.Body)
	return res.StatusCode, string(b)
}

func TestErrorsCarryAReasonAndNoCause(t *testing.T) {
	for name, tt := range map[string]struct {
		err    error
		status int
		reason string
	}{
		"ours":    {&im.Error{Reason: clientv1.Reason_REASON_NOT_FOUND, Msg: "no such node", Err: errors.New("hidden")}, 404, "not_found"},
		"foreign": {errors.New("hidden"), 500, "internal"},
		"ended":   {context.DeadlineExceeded, 503, "unavailable"},
		"relayed": {im.ToConnect(im.Errorf(clientv1.Reason_REASON_BUSY, "x", "come back")), 503, "busy"},
	} {
		srv := serve(t, time.Second, func(context.Context) (*adminv1.ListNodesResponse, error) { return nil, tt.err })
		status, body := call(t, srv)
		if status != tt.status || !strings.Contains(body, `"reason":"`+tt.reason+`"`) || strings.Contains(body, "hidden") {
			t.Errorf("%s: %d %s", name, status, body)
		}
	}
}

// An error that one server got from another keeps its reason over the second hop.
func TestTwoHops(t *testing.T) {
	far := serve(t, time.Second, func(context.Context) (*adminv1.ListNodesResponse, error) {
		return nil, im.Errorf(clientv1.Reason_REASON_CONVERSATION_CLOSED, "x", "it is over")
	})
	client := adminv1connect.NewClusterServiceClient(connect.NewClient(connecthttp.NewTransport(far.Client(), far.URL)))
	near := serve(t, time.Second, func(ctx context.Context) (*adminv1.ListNodesResponse, error) {
		return client.ListNodes(ctx, &adminv1.ListNodesRequest{})
	})
	if status, body := call(t, near); status != 400 || !strings.Contains(body, "conversation_closed") || !strings.Contains(body, "it is over") {
		t.Errorf("%d %s", status, body)
	}
}

func TestCallsEndByTheirLimit(t *testing.T) {
	srv := serve(t, 20*time.Millisecond, func(ctx context.Context) (*adminv1.ListNodesResponse, error) {
		<-ctx.Done()
		return nil, ctx.Err()
	})
	if status, body := call(t, srv); status != 503 || !strings.Contains(body, `"retryable":true`) {
		t.Errorf("%d %s", status, body)
	}
}

func TestMoreCallsThanSlotsGetBusy(t *testing.T) {
	s := NewServer(Options{Log: zap.NewNop(), Metrics: NewMetrics(prometheus.NewRegistry())})
	for range MaxInFlight {
		s.gate.Enter(balance.Append)
	}
	next := s.guard(func(context.Context, connect.Spec, connect.ServerStream) error { return nil })
	if err := next(t.Context(), connect.Spec{}, nil); im.ReasonOf(err) != clientv1.Reason_REASON_BUSY || connect.CodeOf(err) != connect.CodeUnavailable {
		t.Errorf("%v", err)
	}
	s.gate.Leave()
	for range 3 { // the slot comes back each time
		if err := next(t.Context(), connect.Spec{}, nil); err != nil {
			t.Errorf("%v", err)
		}
	}
}

// What matters less is refused first.
func TestCallsAreShedByClass(t *testing.T) {
	class := balance.History
	s := NewServer(Options{Log: zap.NewNop(), Metrics: NewMetrics(prometheus.NewRegistry()), MaxInFlight: 10, Class: func(connect.Spec) balance.Class { return class }})
	for range 8 {
		s.gate.Enter(balance.Vital)
	}
	next := s.guard(func(context.Context, connect.Spec, connect.ServerStream) error { return nil })
	if err := next(t.Context(), connect.Spec{}, nil); im.ReasonOf(err) != clientv1.Reason_REASON_BUSY {
		t.Errorf("reading history at 80 %%: %v", err)
	}
	class = balance.Append
	if err := next(t.Context(), connect.Spec{}, nil); err != nil {
		t.Errorf("storing at 80 %%: %v", err)
	}
}

// arrived is a request that is there.
type arrived struct{ connect.ServerStream }

func (arrived) Receive(any) error { return nil }

func TestExpiredWorkIsNotBegun(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	s := requestStream{arrived{}, ctx, 100}
	if err := s.Receive(nil); err != nil {
		t.Error(err)
	}
	cancel()
	if err := s.Receive(nil); im.ReasonOf(err) != clientv1.Reason_REASON_UNAVAILABLE {
		t.Errorf("nobody waits any more: %v", err)
	}
}

func TestMetricsAreSharedByTheServersOfANode(t *testing.T) {
	reg := prometheus.NewRegistry()
	if a, b := NewMetrics(reg), NewMetrics(reg); a.requests != b.requests || a.inFlight != b.inFlight {
		t.Error("two servers count apart")
	}
}

func TestWriteErrorIsReadable(t *testing.T) {
	w := httptest.NewRecorder()
	WriteError(w, httptest.NewRequest(http.MethodGet, "/v1/ws", nil), http.StatusTooManyRequests, im.Errorf(clientv1.Reason_REASON_RATE_LIMITED, "x", "slow down"))
	var body struct {
		Code, Message string
		Details       []struct{ Type string }
	}
	if err := json.Unmarshal(w.Body.Bytes(), &body); err != nil || w.Code != 429 || body.Code != "resource_exhausted" || body.Message != "slow down" ||
		len(body.Details) != 1 || body.Details[0].Type != "imd.client.v1.Error" {
		t.Errorf("%d %s %v", w.Code, w.Body, err)
	}
}

func TestTidy(t *testing.T) {
	for in, want := range map[string]string{
		"unmarshal message: proto:\u00a0(line 1:2):  unknown field \"x\"": `(line 1:2): unknown field "x"`,
		"a\x00b\nc\xff":          "a b c?",
		strings.Repeat("ü", 300): strings.Repeat("ü", 200),
	} {
		if got := tidy(in); got != want {
			t.Errorf("tidy(%q) = %q", in, got)
		}
	}
}

func TestSpoken(t *testing.T) {
	for ct, want := range map[string]bool{
		"application/json": true, "application/json; charset=utf-8": true, "application/grpc": true, "application/grpc+proto": true, "application/grpc-web+json": true,
		"": false, "text/plain": false, "application/connect+json": false, "application/grpc+xml": false, "application/json;;": false,
	} {
		if got := spoken(ct); got != want {
			t.Errorf("%q: %v", ct, got)
		}
	}
}

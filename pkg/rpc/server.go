package rpc

import (
	"context"
	"net/http"
	"strings"
	"time"

	"connectrpc.com/connect/v2"
	"connectrpc.com/connect/v2/connecthttp"
	"connectrpc.com/connect/v2/connectproto"
	"go.uber.org/zap"

	"github.com/imdhq/imd/pkg/balance"
	"github.com/imdhq/imd/pkg/trace"
)

// Limits of every request.
const (
	// MaxRequest is the largest request in bytes, decompressed.
	MaxRequest = 1 << 20
	// MaxInFlight is how many calls one server answers at once unless its options
	// say otherwise; more get busy.
	MaxInFlight = 512
	// bodyTimeout is how long a body may take to arrive.
	bodyTimeout = 10 * time.Second
	// writeTimeout is how long an answer may take to leave, after its body
	// arrived and the call was made.
	writeTimeout = 30 * time.Second
)

// Options shape a Server.
type Options struct {
	Log     *zap.Logger
	Metrics *Metrics
	// Timeout is the longest time of a call; nil = 5 s for all.
	Timeout func(connect.Spec) time.Duration
	// Interceptors run inside those of this package: errors they return are
	// turned into wire errors, panics are caught.
	Interceptors []connect.ServerInterceptor
	// MaxRequest is the largest request in bytes, decompressed; 0 = MaxRequest.
	MaxRequest int
	// MaxInFlight is how many calls are answered at once; 0 = MaxInFlight.
	MaxInFlight int
	// Class says how much a method matters when there are too many calls; nil =
	// all the same.
	Class func(connect.Spec) balance.Class
	// Trace takes the spans of calls; nil = none are made. A call is traced if its
	// caller says so.
	Trace *trace.Log
	// Begins lets a share of the calls whose callers say nothing be traced too.
	Begins bool
}

// Server serves Connect, gRPC and gRPC-Web, each with protobuf or JSON, and GET
// for methods without side effects.
type Server struct {
	opt     Options
	connect *connect.Server
	gate    *balance.Gate // what does not enter is answered busy
}

// NewServer makes a server without methods; register them with Connect.
func NewServer(opt Options) *Server {
	if opt.Timeout == nil {
		opt.Timeout = func(connect.Spec) time.Duration { return 5 * time.Second }
	}
	if opt.Class == nil {
		opt.Class = func(connect.Spec) balance.Class { return balance.Append }
	}
	if opt.MaxRequest == 0 {
		opt.MaxRequest = MaxRequest
	}
	if opt.MaxInFlight == 0 {
		opt.MaxInFlight = MaxInFlight
	}
	s := &Server{opt: opt, gate: balance.NewGate(opt.MaxInFlight)}
	s.connect = connect.NewServer(append([]connect.ServerInterceptor{s.observe, s.guard}, opt.Interceptors...)...)
	s.connect.SetUnknownHandler(unknownMethod)
	return s
}

// Connect is where the generated Register functions put their services.
func (s *Server) Connect() *connect.Server { return s.connect }

// Specs lists the registered methods.
func (s *Server) Specs() []connect.Spec {
	var all []connect.Spec
	for spec := range s.connect.Specs() {
		all = append(all, spec)
	}
	return all
}

// Mount hands the handler of each registered service to mount, with a pattern
// of http.ServeMux. wrap is put around each; nil = nothing.
func (s *Server) Mount(mount func(pattern string, h http.Handler), wrap func(http.Handler) http.Handler) {
	mux := http.NewServeMux()
	connecthttp.Mount(mux, s.connect, connecthttp.WithReadMaxBytes(s.opt.MaxRequest),
		connecthttp.WithCodecs(connectproto.NewBinaryCodec(), strictJSON()), connecthttp.WithCompressMinBytes(1024))
	if wrap == nil {
		wrap = func(h http.Handler) http.Handler { return h }
	}
	h := wrap(s.precheck(mux))
	done := map[string]bool{}
	for _, spec := range s.Specs() {
		if p := spec.Procedure[:strings.LastIndexByte(spec.Procedure, '/')+1]; !done[p] {
			done[p] = true
			mount(p, h)
		}
	}
}

// strictJSON refuses unknown fields: with a misspelt as_user ignored, a message
// would go out in another's name.
func strictJSON() connect.Codec {
	c := connectproto.NewJSONCodec()
	c.UnmarshalOptions.DiscardUnknown = false
	return c
}

// timeout ends the call's context by its limit.
func (s *Server) timeout(ctx context.Context, spec connect.Spec) (context.Context, context.CancelFunc) {
	return context.WithTimeout(ctx, s.opt.Timeout(spec))
}

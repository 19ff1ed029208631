package api

import (
	"context"
	"fmt"
	"net/http"
	"time"

	"connectrpc.com/connect/v2"
	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/zap"

	"github.com/imdhq/imd/docs"
	"github.com/imdhq/imd/pkg/announce"
	"github.com/imdhq/imd/pkg/auth"
	"github.com/imdhq/imd/pkg/im"
	"github.com/imdhq/imd/pkg/rpc"
	"github.com/imdhq/imd/pkg/store"
	"github.com/imdhq/imd/pkg/trace"
	"github.com/imdhq/imd/proto/gen/internalv1/internalv1connect"
	"github.com/imdhq/imd/proto/gen/public/imd/v1/imdv1connect"
	"github.com/imdhq/imd/sdk/go/protocol"
)

// Limiter bounds how fast messages are sent. Safe for concurrent use.
type Limiter interface {
	// Send takes one message of user in conv from the rates. If it is too fast,
	// ok is false and wait is the pause until it would not be. An empty user is
	// the system, which has no rate of its own; the conversation's still holds.
	Send(user im.UserID, conv im.ConversationID) (ok bool, wait time.Duration)
}

// Routes is what the API asks of the route store.
type Routes interface {
	Lookup(ctx context.Context, users []im.UserID) ([]store.Route, error)
}

// Deps are what the API works with.
type Deps struct {
	State     internalv1connect.StateServiceClient
	Directory internalv1connect.DirectoryServiceClient
	Verifier  *auth.Verifier
	// Routes is the table of live sessions.
	Routes func() (Routes, error)
	// Keys are the keys that sign minted tokens; the first one is used.
	Keys    func() []auth.Key
	Limiter Limiter // nil = no limits
	// AllowOrigin reports whether a web page of the request's Origin may call;
	// nil = none but programs and pages of the same origin.
	AllowOrigin func(*http.Request) bool
	Now         func() time.Time // nil = time.Now
	Log         *zap.Logger
	Reg         prometheus.Registerer
	Trace       *trace.Log // remembers what became of messages; nil = nothing does
}

// API is the public HTTP API of one node. Safe for concurrent use; it starts
// nothing and holds nothing open.
type API struct {
	Deps
	keys *keyCache
	srv  *rpc.Server
}

// New builds the API. It fails if a method has no policy.
func New(d Deps) (*API, error) {
	if d.Now == nil {
		d.Now = time.Now
	}
	a := &API{Deps: d, keys: newKeyCache(d.Directory, d.Now)}
	a.srv = rpc.NewServer(rpc.Options{
		Log: d.Log, Metrics: rpc.NewMetrics(d.Reg), Timeout: timeout,
		Interceptors: []connect.ServerInterceptor{a.authorise}, Trace: d.Trace, Begins: true,
	})
	imdv1connect.RegisterConversationServiceHandler(a.srv.Connect(), conversations{a})
	imdv1connect.RegisterMessageServiceHandler(a.srv.Connect(), messages{a})
	imdv1connect.RegisterUserServiceHandler(a.srv.Connect(), users{a})
	imdv1connect.RegisterPresenceServiceHandler(a.srv.Connect(), presences{a})
	imdv1connect.RegisterAnnouncementServiceHandler(a.srv.Connect(), announce.Service{Directory: a.Directory})
	imdv1connect.RegisterTokenServiceHandler(a.srv.Connect(), tokens{a})
	for _, s := range a.srv.Specs() {
		if _, ok := policies[s.Procedure]; !ok {
			return nil, fmt.Errorf("api: the method %s has no policy", s.Procedure)
		}
	}
	return a, nil
}

// timeout is the longest time of a call.
func timeout(s connect.Spec) time.Duration {
	if s.Procedure == imdv1connect.MessageServiceSendProcedure {
		return protocol.SendTimeout
	}
	return protocol.RequestTimeout
}

// Mount puts the services and the OpenAPI document on the public listener.
// Patterns are those of http.ServeMux.
func (a *API) Mount(mount func(pattern string, h http.Handler)) {
	a.srv.Mount(mount, a.cors)
	mount("GET /v1/openapi.json", a.cors(http.HandlerFunc(openAPI)))
}

func openAPI(w http.ResponseWriter, _ *http.Request) {
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Cache-Control", "no-cache")
	w.Header().Set("X-Content-Type-Options", "nosniff")
	_, _ = w.Write(docs.OpenAPI()) // the caller is gone if it fails
}

package gateway

import (
	"context"
	"crypto/subtle"
	"net/http"
	"strings"

	"connectrpc.com/connect/v2"
	"connectrpc.com/connect/v2/connecthttp"
	"go.uber.org/zap"

	"github.com/imdhq/imd/pkg/auth"
	"github.com/imdhq/imd/pkg/im"
	"github.com/imdhq/imd/pkg/module"
	"github.com/imdhq/imd/proto/gen/adminv1/adminv1connect"
)

// Spec declares the gateway role.
func Spec() module.Spec {
	return module.Spec{
		Name:   "gateway",
		Role:   true,
		Needs:  []string{"controlplane", "storage"}, // storage: the route store
		Calls:  []string{"state", "gateway"},
		Config: func() any { c := DefaultConfig(); return &c },
		New:    build,
	}
}

func build(env *module.Env) (module.Module, error) {
	cfg, tokens := DefaultConfig(), auth.DefaultConfig()
	if err := env.Config("gateway", &cfg); err != nil {
		return nil, err
	}
	if err := env.Config("auth", &tokens); err != nil {
		return nil, err
	}
	v, err := auth.NewVerifier(tokens, func() []auth.Key { return keysOf(env.Keys) })
	if err != nil {
		return nil, err
	}
	g, err := New(cfg, Deps{
		Node: env.Node, Log: env.Log, Reg: env.Reg, State: env.Peers.State(), Directory: env.Peers.Directory(),
		Peer:     func(n im.NodeID) peerClient { return env.Peers.Gateway(n) },
		Routes:   func() (routes, error) { return env.Store.Routes() },
		Verifier: v, Public: env.PublicHandler, Announce: env.Announce,
	})
	if err != nil {
		return nil, err
	}
	env.Peers.ServeGateway(service{g})
	env.Ready.Add("gateway", g.ready)
	mountLimits(env.MountOps, limitService{g.limits, env.Log}, env.Keys.AdminKey)
	return g, nil
}

// keysOf gives the keys of the data folder in the form that auth takes.
func keysOf(k module.KeySource) []auth.Key {
	var out []auth.Key
	for _, t := range k.TokenKeys() {
		out = append(out, auth.Key{ID: t.ID, Secret: t.Secret})
	}
	return out
}

// ready is the readiness check: newcomers are taken.
func (g *Gateway) ready(context.Context) module.Status {
	switch {
	case g.draining.Load():
		return module.Status{Reason: "the gateway sends its clients away"}
	case !g.serving.Load():
		return module.Status{Reason: "the gateway does not serve yet"}
	}
	return module.Status{Ready: true}
}

// mountLimits serves LimitService behind the admin key.
func mountLimits(mount func(string, http.Handler), s limitService, key func() string) {
	server := connect.NewServer()
	adminv1connect.RegisterLimitServiceHandler(server, s)
	connecthttp.Mount(mountFunc(func(pattern string, h http.Handler) {
		mount(pattern, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			token, _ := strings.CutPrefix(r.Header.Get("Authorization"), "Bearer ")
			want := key()
			if want == "" || subtle.ConstantTimeCompare([]byte(token), []byte(want)) != 1 {
				s.log.Warn("a call without the admin key was refused", zap.String("op", "admin.SetLimits"))
				(&denial{status: http.StatusUnauthorized, code: "unauthenticated", msg: "the admin key is missing or wrong"}).write(w)
				return
			}
			h.ServeHTTP(w, r)
		}))
	}), server)
}

// mountFunc is a mux that is only a function.
type mountFunc func(pattern string, h http.Handler)

// Handle registers a handler.
func (f mountFunc) Handle(pattern string, h http.Handler) { f(pattern, h) }

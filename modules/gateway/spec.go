package gateway

import (
	"context"
	"net/http"

	"github.com/imdhq/imd/modules/gateway/api"
	"github.com/imdhq/imd/pkg/admin"
	"github.com/imdhq/imd/pkg/auth"
	"github.com/imdhq/imd/pkg/im"
	"github.com/imdhq/imd/pkg/module"
	"github.com/imdhq/imd/pkg/rpc"
	"github.com/imdhq/imd/pkg/status"
	"github.com/imdhq/imd/proto/gen/adminv1/adminv1connect"
)

// Spec declares the gateway role.
func Spec() module.Spec {
	return module.Spec{
		Name:       "gateway",
		Role:       true,
		Needs:      []string{"controlplane", "storage", "peers"}, // storage: the route store
		Calls:      []string{"state", "gateway"},
		Config:     func() any { c := DefaultConfig(); return &c },
		Settings:   declared,
		DrainShare: drainShare,
		New:        build,
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
		Node: env.Node, Boot: env.BootID, Log: env.Log, Reg: env.Reg, State: env.Peers.State(), StateHome: env.Peers.StateHome, Directory: env.Peers.Directory(),
		Peer:     func(n im.NodeID) peerClient { return env.Peers.Gateway(n) },
		Routes:   func() (routes, error) { return env.Store.Routes() },
		Verifier: v, Public: env.PublicHandler, Announce: env.Announce, Capacity: env.Capacity, Settings: env.Settings,
		Leaders: env.Control.Leaders, View: env.Control.View, Trace: env.Trace, Tally: env.Tally,
	})
	if err != nil {
		return nil, err
	}
	public, err := api.New(api.Deps{
		State: env.Peers.State(), Directory: env.Peers.Directory(), Verifier: v,
		Routes: func() (api.Routes, error) { return env.Store.Routes() },
		Keys:   func() []auth.Key { return keysOf(env.Keys) }, Limiter: g.Limits(), AllowOrigin: g.AllowOrigin,
		Log: env.Log, Reg: env.Reg, Trace: env.Trace,
	})
	if err != nil {
		return nil, err
	}
	public.Mount(env.MountPublic)
	env.Peers.ServeGateway(service{g})
	env.Ready.Add("gateway", g.ready)
	env.MountOps("GET /statusz/gateway", status.Handler(g.page))
	limits := rpc.NewServer(rpc.Options{Log: env.Log, Metrics: rpc.NewMetrics(env.Reg)})
	adminv1connect.RegisterLimitServiceHandler(limits.Connect(), limitService{g.limits, env.Log})
	limits.Mount(env.MountOps, func(h http.Handler) http.Handler { return admin.Auth(env.Keys.AdminKey(), h) })
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

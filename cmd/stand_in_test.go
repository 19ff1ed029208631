package cmd

import (
	"context"
	"errors"
	"net"
	"net/http"

	"github.com/imdhq/imd/pkg/module"
)

// The small modules below stand where the real ones stand, so that the node
// around them can be tested by itself: storage fails its start on demand, and
// gateway serves what is mounted on the public listener.

type standIn struct {
	fail error
	slow bool // drains until its time is over
}

func (m *standIn) Start(context.Context) error   { return m.fail }
func (m *standIn) Run(ctx context.Context) error { <-ctx.Done(); return nil }
func (m *standIn) Close() error                  { return nil }

func (m *standIn) Drain(ctx context.Context) error {
	if m.slow {
		<-ctx.Done()
	}
	return nil
}

type storageConfig struct {
	DSN    string `mapstructure:"dsn" doc:"Message store."`
	Routes string `mapstructure:"routes" doc:"Route store."`
	Fail   string `mapstructure:"fail" doc:"How it fails: config, other or drain."`
}

type listenConfig struct {
	Listen string `mapstructure:"listen" doc:"Address."`
}

// listening serves the public handler.
type listening struct {
	env *module.Env
	cfg listenConfig
	ln  net.Listener
	srv *http.Server
}

func (l *listening) Start(context.Context) (err error) {
	if l.ln, err = net.Listen("tcp", l.cfg.Listen); err != nil {
		return err
	}
	l.env.Announce("public", l.ln.Addr().String())
	l.srv = &http.Server{Handler: l.env.PublicHandler()}
	return nil
}

func (l *listening) Run(ctx context.Context) error {
	stop := context.AfterFunc(ctx, func() { _ = l.srv.Close() })
	defer stop()
	if err := l.srv.Serve(l.ln); !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return nil
}

func (l *listening) Drain(context.Context) error { return nil }
func (l *listening) Close() error                { return nil }

func standIns() []module.Spec {
	plain := func(*module.Env) (module.Module, error) { return &standIn{}, nil }
	return []module.Spec{
		{Name: "controlplane", New: plain},
		{
			Name: "storage", Needs: []string{"controlplane"},
			Config: func() any { return &storageConfig{DSN: "sqlite:", Routes: "memory"} },
			New: func(env *module.Env) (module.Module, error) {
				var c storageConfig
				if err := env.Config("storage", &c); err != nil {
					return nil, err
				}
				switch c.Fail {
				case "config":
					return &standIn{fail: module.Configf("the schema is newer than this binary")}, nil
				case "other":
					return &standIn{fail: errors.New("the database is damaged")}, nil
				}
				return &standIn{slow: c.Fail == "drain"}, nil
			},
		},
		{Name: "state", Role: true, Needs: []string{"storage"}, New: plain},
		{Name: "push", Role: true, Needs: []string{"state"}, New: plain},
		{
			Name: "gateway", Role: true, Needs: []string{"push"},
			Config: func() any { return &listenConfig{Listen: "127.0.0.1:8420"} },
			New: func(env *module.Env) (module.Module, error) {
				l := &listening{env: env}
				return l, env.Config("gateway", &l.cfg)
			},
		},
		{Name: "scheduler", Role: true, Needs: []string{"gateway"}, New: plain},
	}
}

package cmd

import (
	"context"
	"errors"
	"path/filepath"
	"strings"
	"time"

	"go.uber.org/zap"

	"github.com/imdhq/imd/modules"
	"github.com/imdhq/imd/modules/controlplane"
	"github.com/imdhq/imd/modules/peers"
	"github.com/imdhq/imd/modules/storage"
	"github.com/imdhq/imd/pkg/control/embedded"
	"github.com/imdhq/imd/pkg/control/etcd"
	"github.com/imdhq/imd/pkg/dedup"
	dedupmemory "github.com/imdhq/imd/pkg/dedup/memory"
	dedupredis "github.com/imdhq/imd/pkg/dedup/redis"
	"github.com/imdhq/imd/pkg/drill"
	"github.com/imdhq/imd/pkg/module"
	"github.com/imdhq/imd/pkg/redis"
	"github.com/imdhq/imd/pkg/store"
	routesetcd "github.com/imdhq/imd/pkg/store/etcd"
	"github.com/imdhq/imd/pkg/store/memory"
	"github.com/imdhq/imd/pkg/store/postgres"
	routesredis "github.com/imdhq/imd/pkg/store/redis"
	"github.com/imdhq/imd/pkg/store/sqlite"
)

// specs are the modules of the program with the drivers that ship in it. This
// file is the only one that names a driver.
func specs() []module.Spec {
	return modules.Specs(modules.Drivers{
		Names:   openNames,
		Control: openControl,
		Stores: storage.Drivers{
			Messages: store.Drivers[store.MessageStore]{
				"sqlite": sqlite.OpenURL, "postgres": postgres.OpenURL, "postgresql": postgres.OpenURL,
			},
			Routes: map[string]storage.RouteOpener{"memory": openRoutesMemory, "redis": openRoutesRedis, "etcd": openRoutesEtcd},
			Dedup:  map[string]storage.DedupOpener{"memory": openDedupMemory, "redis": openDedupRedis},
		},
	})
}

// sources and targets are the stores that imd store copy reads and fills.
var (
	sources = store.Drivers[store.Source]{"sqlite": sqlite.OpenSource}
	targets = store.Drivers[store.Target]{"sqlite": sqlite.OpenTarget, "postgres": postgres.OpenTarget, "postgresql": postgres.OpenTarget}
)

// openRoutesMemory is the route store of one process.
func openRoutesMemory(context.Context, storage.RouteOptions, *zap.Logger) (store.RouteStore, error) {
	return memory.New(), nil
}

// openRoutesRedis is the route store that all nodes share.
func openRoutesRedis(_ context.Context, o storage.RouteOptions, log *zap.Logger) (store.RouteStore, error) {
	at, err := redisOf(o.Redis)
	if err != nil {
		return nil, err
	}
	return routesredis.Open(at, log)
}

// openRoutesEtcd is the route store of small clusters. It has a client of its own,
// so that many logins do not stand in the way of the control plane.
func openRoutesEtcd(_ context.Context, o storage.RouteOptions, log *zap.Logger) (store.RouteStore, error) {
	cfg := controlplane.DefaultConfig()
	if err := o.Section("controlplane", &cfg); err != nil {
		return nil, err
	}
	client, err := etcd.Dial(endpointsOf(cfg), log)
	if err != nil {
		return nil, err
	}
	return routesetcd.Open(client, routesetcd.Options{Prefix: "/imd/" + cfg.Cluster + "/routes/", Log: log, Reg: o.Reg, Close: client.Close}), nil
}

// openLedger opens the store that a drill lends to its witnesses.
func openLedger(ctx context.Context, dir string) (drill.LedgerStore, error) {
	return sqlite.Open(ctx, sqlite.Options{Path: filepath.Join(dir, "imd.db")})
}

// openDrillRoutes opens the route store of a drill.
func openDrillRoutes(url string) (store.RouteStore, error) {
	return routesredis.Open(redis.Config{URL: url}, zap.NewNop())
}

// openDedupMemory is the dedup cache of one process.
func openDedupMemory(_ storage.RedisConfig, o dedup.Options, _ *zap.Logger) (dedup.Cache, error) {
	return dedupmemory.New(o), nil
}

// openDedupRedis is the dedup cache that all nodes share.
func openDedupRedis(c storage.RedisConfig, o dedup.Options, log *zap.Logger) (dedup.Cache, error) {
	at, err := redisOf(c)
	if err != nil {
		return nil, err
	}
	return dedupredis.Open(dedupredis.Config{Config: at, Options: o}, log)
}

// redisOf is how a configuration reaches its Redis.
func redisOf(c storage.RedisConfig) (redis.Config, error) {
	t, err := c.TLSConfig()
	return redis.Config{URL: c.URL.Reveal(), TLS: t}, err
}

// startJitter spreads the first registrations of nodes that start together.
const startJitter = time.Second

// openControl is etcd: the server inside this process if no endpoints are
// given, else a cluster. Everything above is the same.
func openControl(ctx context.Context, o controlplane.OpenOptions) (controlplane.Plane, error) {
	opts := etcd.Options{
		Cluster: o.Config.Cluster, Node: o.Node, Publish: o.Publish, PublishLeaders: o.PublishLeaders, Settings: o.Settings,
		LeaseOnly: o.Config.LeaseOnly, Drain: o.Drain, Upstream: o.Upstream, Log: o.Log,
	}
	if len(o.Config.Endpoints) == 0 {
		srv, err := embedded.Start(ctx, filepath.Join(o.DataDir, "etcd"), o.Log)
		if err != nil {
			return nil, err
		}
		opts.Close, opts.Failed = srv.Close, srv.Failed()
		return etcd.New(srv.Client(), opts), nil
	}
	opts.Health, opts.FollowMembers = etcd.NewHealth(), o.Config.FollowMembers
	opts.LastKnown = filepath.Join(o.DataDir, "nodes.json")
	at := endpointsOf(o.Config)
	at.Health = opts.Health
	client, err := etcd.Dial(at, o.Log)
	if err != nil {
		return nil, err
	}
	opts.StartJitter = startJitter
	return etcd.New(client, opts), nil
}

// endpointsOf is how a configuration reaches its etcd cluster.
func endpointsOf(c controlplane.Config) etcd.Endpoints {
	return etcd.Endpoints{
		URLs: c.Endpoints, Username: c.Username, Password: c.Password.Reveal(),
		CA: c.TLS.CAFile, Cert: c.TLS.CertFile, Key: c.TLS.KeyFile,
	}
}

// openNames is the etcd of a naming service, reached as the control plane's is:
// with its name, password and certificates.
func openNames(env *module.Env) peers.NamesOpener {
	return func(hosts []string) (peers.Names, error) {
		cfg := controlplane.DefaultConfig()
		if err := env.Config("controlplane", &cfg); err != nil {
			return nil, err
		}
		at, scheme := endpointsOf(cfg), "http://"
		if len(at.URLs) > 0 && strings.HasPrefix(at.URLs[0], "https://") {
			scheme = "https://"
		}
		if len(hosts) > 0 {
			at.URLs = nil
		}
		for _, h := range hosts {
			at.URLs = append(at.URLs, scheme+h)
		}
		if len(at.URLs) == 0 {
			return nil, errors.New("there is no etcd to read names from; name its hosts")
		}
		client, err := etcd.Dial(at, env.Log)
		if err != nil {
			return nil, err
		}
		return etcd.NewNames(client), nil
	}
}

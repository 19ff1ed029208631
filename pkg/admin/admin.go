package admin

import (
	"net/http"
	"strings"
	"time"

	"connectrpc.com/connect/v2"
	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/zap"

	"github.com/imdhq/imd/pkg/announce"
	"github.com/imdhq/imd/pkg/control"
	"github.com/imdhq/imd/pkg/im"
	"github.com/imdhq/imd/pkg/rpc"
	"github.com/imdhq/imd/pkg/settings"
	"github.com/imdhq/imd/proto/gen/adminv1/adminv1connect"
	"github.com/imdhq/imd/proto/gen/internalv1/internalv1connect"
	"github.com/imdhq/imd/proto/gen/public/imd/v1/imdv1connect"
)

// Deps are what the services work with.
type Deps struct {
	Node      im.NodeID // this node
	Control   *control.Handle
	Directory internalv1connect.DirectoryServiceClient
	// Routes is the table of live sessions.
	Routes func() (Routes, error)
	// Limits is the gateway's LimitService; nil = not served.
	Limits adminv1connect.LimitServiceHandler
	// Settings are those of this node, and StartValue what its configuration
	// gives them; nil = not served.
	Settings   *settings.Live
	StartValue StartValue
	Now        func() time.Time // nil = time.Now
	Log        *zap.Logger
	Reg        prometheus.Registerer
}

// Admin is the services of one node. Safe for concurrent use; it starts
// nothing and holds nothing open.
type Admin struct {
	Deps
	srv *rpc.Server
}

// New builds the services.
func New(d Deps) *Admin {
	if d.Now == nil {
		d.Now = time.Now
	}
	a := &Admin{Deps: d, srv: rpc.NewServer(rpc.Options{Log: d.Log, Metrics: rpc.NewMetrics(d.Reg), Timeout: timeout})}
	adminv1connect.RegisterClusterServiceHandler(a.srv.Connect(), cluster{a})
	adminv1connect.RegisterNodeServiceHandler(a.srv.Connect(), nodes{a})
	adminv1connect.RegisterKeyServiceHandler(a.srv.Connect(), keys{a})
	imdv1connect.RegisterAnnouncementServiceHandler(a.srv.Connect(), announce.Service{Directory: a.Directory})
	adminv1connect.RegisterDeviceServiceHandler(a.srv.Connect(), devices{a})
	adminv1connect.RegisterElectionServiceHandler(a.srv.Connect(), elections{a})
	adminv1connect.RegisterLockServiceHandler(a.srv.Connect(), locks{a})
	if d.Limits != nil {
		adminv1connect.RegisterLimitServiceHandler(a.srv.Connect(), d.Limits)
	}
	if d.Settings != nil {
		adminv1connect.RegisterSettingsServiceHandler(a.srv.Connect(), settingsService{a})
	}
	return a
}

// timeout is how long a call may take: those on settings make several calls to
// etcd, and one of them waits, as ListNodes may.
func timeout(spec connect.Spec) time.Duration {
	switch {
	case strings.HasPrefix(spec.Procedure, "/"+adminv1connect.SettingsServiceName+"/"):
		return maxAwait + 5*time.Second
	case strings.HasPrefix(spec.Procedure, "/"+adminv1connect.ClusterServiceName+"/"):
		return maxWait + 5*time.Second
	}
	return 5 * time.Second
}

// Mount puts the services on the ops listener, behind the admin key. Patterns
// are those of http.ServeMux.
func (a *Admin) Mount(mount func(pattern string, h http.Handler), key string) {
	a.srv.Mount(mount, func(h http.Handler) http.Handler { return Auth(key, h) })
}

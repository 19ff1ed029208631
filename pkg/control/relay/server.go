package relay

import (
	"context"
	"crypto/sha256"
	"crypto/subtle"
	"net/http"
	"strings"
	"time"

	"connectrpc.com/connect/v2"
	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/zap"

	"github.com/imdhq/imd/pkg/control"
	"github.com/imdhq/imd/pkg/im"
	"github.com/imdhq/imd/pkg/rpc"
	"github.com/imdhq/imd/proto/gen/internalv1"
	"github.com/imdhq/imd/proto/gen/internalv1/internalv1connect"
	"github.com/imdhq/imd/sdk/go/gen/clientv1"
)

const (
	// MaxWait is the longest wait of one call.
	MaxWait = 10 * time.Second
	// MaxCalls is how many calls may wait at one node, three of each subscriber. One
	// too many is refused, and its subscriber asks another node.
	MaxCalls = 6000
)

// Source is what a server answers from.
type Source interface {
	control.Feed
	// Secret is what callers must show; "" = not known yet, and nobody is
	// answered.
	Secret() string
}

// Server is the RelayService of one node.
type Server struct {
	source func() (Source, bool)
	log    *zap.Logger
}

// NewServer answers from what source gives; it gives false while there is
// nothing to answer from.
func NewServer(source func() (Source, bool), log *zap.Logger) *Server {
	return &Server{source: source, log: log}
}

// Mount adds the service to a listener; mount takes patterns of http.ServeMux.
func (s *Server) Mount(mount func(pattern string, h http.Handler), reg prometheus.Registerer) {
	srv := rpc.NewServer(rpc.Options{
		Log: s.log, Metrics: rpc.NewMetrics(reg), MaxInFlight: MaxCalls,
		Timeout: func(connect.Spec) time.Duration { return MaxWait + 2*time.Second },
	})
	internalv1connect.RegisterRelayServiceHandler(srv.Connect(), s)
	srv.Mount(mount, s.auth)
}

// auth lets nodes of this cluster pass.
func (s *Server) auth(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		secret := ""
		if src, ok := s.source(); ok {
			secret = src.Secret()
		}
		want := sha256.Sum256([]byte(secret))
		_, token, _ := strings.Cut(r.Header.Get("Authorization"), " ")
		got := sha256.Sum256([]byte(token)) // equal lengths, so that the comparison tells nothing
		if secret == "" || subtle.ConstantTimeCompare(got[:], want[:]) != 1 {
			rpc.WriteError(w, r, http.StatusUnauthorized, im.Errorf(clientv1.Reason_REASON_BAD_TOKEN, "relay.Auth", "the secret of the cluster is needed"))
			return
		}
		next.ServeHTTP(w, r)
	})
}

// Changes answers one subscriber; see RelayService.
func (s *Server) Changes(ctx context.Context, req *internalv1.ChangesRequest) (*internalv1.ChangesResponse, error) {
	const op = "relay.Changes"
	src, ok := s.source()
	if !ok {
		return nil, im.Errorf(clientv1.Reason_REASON_UNAVAILABLE, op, "the control plane is not open")
	}
	wait := min(time.Duration(max(req.WaitMs, 0))*time.Millisecond, MaxWait)
	b, err := src.Changes(ctx, control.Area(req.Area), control.Cursor{Revision: req.Since, Cluster: req.EtcdCluster}, wait)
	if err != nil {
		return nil, im.Errorf(clientv1.Reason_REASON_UNAVAILABLE, op, "this node does not follow etcd at the moment")
	}
	res := &internalv1.ChangesResponse{Revision: b.Revision, EtcdCluster: b.Cluster, Full: b.Full}
	for _, r := range b.Records {
		res.Records = append(res.Records, &internalv1.RegistryRecord{
			Key: r.Key, Value: r.Value, Revision: r.Revision, Created: r.Created, Version: r.Version, Lease: r.Lease, Gone: r.Gone,
		})
	}
	return res, nil
}

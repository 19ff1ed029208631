package etcd

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"os"
	"strings"
	"time"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
	"google.golang.org/grpc"
	grpcbackoff "google.golang.org/grpc/backoff"
	"google.golang.org/grpc/metadata"

	"github.com/imdhq/imd/pkg/failpoint"
)

// Endpoints says how to reach an etcd cluster.
type Endpoints struct {
	URLs     []string // http://host:port or https://host:port, all of one cluster
	Username string   // "" = no authentication
	Password string
	CA       string // file with the certificates that servers are checked against; "" = the system's
	Cert     string // file with the client's certificate; "" = none
	Key      string // file with its key
	// Health is told of every call; nil = nobody is. New gets the same one.
	Health *Health
}

const (
	pingEvery   = 10 * time.Second // the least that the library allows
	pingTimeout = 3 * time.Second  // also how long unacknowledged bytes may wait
)

// reconnect is between attempts to connect to one endpoint. The library's own
// pauses grow to two minutes, long after etcd is back.
var reconnect = grpc.ConnectParams{
	Backoff:           grpcbackoff.Config{BaseDelay: 200 * time.Millisecond, Multiplier: 1.6, Jitter: 0.2, MaxDelay: 2 * time.Second},
	MinConnectTimeout: 2 * time.Second,
}

// Dial makes a client. It does not wait for a connection; it logs in with the
// first call. Calls go round over the endpoints. Proxy variables of the
// environment are ignored.
//
// Errors: a file that cannot be read, a malformed URL.
func Dial(e Endpoints, log *zap.Logger) (*clientv3.Client, error) {
	secure, err := e.tls()
	if err != nil {
		return nil, err
	}
	dial := []grpc.DialOption{grpc.WithNoProxy(), grpc.WithConnectParams(reconnect)}
	if e.Health != nil {
		dial = append(dial, grpc.WithChainUnaryInterceptor(e.Health.unary), grpc.WithChainStreamInterceptor(e.Health.stream))
	}
	if failpoint.Bad(failpoint.NoRequireLeader) {
		dial = append(dial, grpc.WithChainStreamInterceptor(anyMember))
	}
	config := clientv3.Config{
		Endpoints:            e.URLs,
		DialTimeout:          callLimit,
		DialKeepAliveTime:    pingEvery,
		DialKeepAliveTimeout: pingTimeout,
		TLS:                  secure,
		Logger:               log.Named("etcd").WithOptions(zap.IncreaseLevel(zapcore.ErrorLevel)),
		DialOptions:          dial,
	}
	if e.Username != "" {
		config.Token = noToken
	}
	c, err := clientv3.New(config)
	if err != nil {
		return nil, fmt.Errorf("control: etcd at %s: %w", strings.Join(e.URLs, ", "), err)
	}
	// With a name in its configuration the library would log in now and fail if
	// etcd is away. Given afterwards, it logs in when a server asks for it.
	c.Token, c.Username, c.Password = "", e.Username, e.Password
	return c, nil
}

// anyMember takes from a watch that its member must have a leader. It is what a
// defect does.
func anyMember(ctx context.Context, d *grpc.StreamDesc, cc *grpc.ClientConn, method string, next grpc.Streamer, opts ...grpc.CallOption) (grpc.ClientStream, error) {
	if md, ok := metadata.FromOutgoingContext(ctx); ok {
		md.Delete(rpctypes.MetadataRequireLeaderKey) // a copy
		ctx = metadata.NewOutgoingContext(ctx, md)
	}
	return next(ctx, d, cc, method, opts...)
}

// noToken makes the library prepare for tokens; servers refuse it, and that
// starts the login.
const noToken = "none"

// tls is nil unless an endpoint is https.
func (e Endpoints) tls() (*tls.Config, error) {
	secure := 0
	for _, u := range e.URLs {
		if strings.HasPrefix(u, "https://") {
			secure++
		}
	}
	switch {
	case secure == 0 && (e.CA != "" || e.Cert != ""):
		return nil, errors.New("control: certificates are given, but no etcd endpoint is https")
	case secure == 0:
		return nil, nil
	case secure != len(e.URLs):
		return nil, errors.New("control: some etcd endpoints are https and some are not")
	}
	c := &tls.Config{MinVersion: tls.VersionTLS12}
	if e.CA != "" {
		pem, err := os.ReadFile(e.CA)
		if err != nil {
			return nil, fmt.Errorf("control: the certificates for etcd: %w", err)
		}
		c.RootCAs = x509.NewCertPool()
		if !c.RootCAs.AppendCertsFromPEM(pem) {
			return nil, fmt.Errorf("control: %s holds no certificate", e.CA)
		}
	}
	if e.Cert != "" {
		pair, err := tls.LoadX509KeyPair(e.Cert, e.Key)
		if err != nil {
			return nil, fmt.Errorf("control: the client certificate for etcd: %w", err)
		}
		c.Certificates = []tls.Certificate{pair}
	}
	return c, nil
}

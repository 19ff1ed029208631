package embedded

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"go.etcd.io/etcd/server/v3/embed"
	"go.etcd.io/etcd/server/v3/etcdserver/api/v3client"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
)

// Member is one member of an etcd cluster that runs as a process of its own.
type Member struct {
	Name string
	Dir  string // where its data is; made if it is not there
	// Clients and Peers are where it listens; the Advertise ones are what others
	// are told, "" = the same. All are URLs.
	Clients, Peers                   string
	AdvertiseClients, AdvertisePeers string
	Cluster                          string // name=peer URL of each first member, with commas; "" = this one alone
	Token                            string // tells clusters on one network apart
	Existing                         bool   // it joins a cluster that runs
	Metrics                          string // URL of a listener for metrics and health alone; "" = none
	ClientTLS, PeerTLS               TLS
	Heartbeat, Election              time.Duration
	Quota                            int64         // bytes of the database at which writes stop
	History                          time.Duration // older revisions are compacted away
}

// TLS names files; all "" = no encryption. CA makes client certificates needed.
type TLS struct{ Cert, Key, CA string }

// DefaultMember has the values for production: they bear a stall of a second
// without an election.
func DefaultMember() Member {
	return Member{
		Name: "imd", Clients: "http://127.0.0.1:2379", Peers: "http://127.0.0.1:2380", Token: "imd",
		Heartbeat: 250 * time.Millisecond, Election: 1500 * time.Millisecond, Quota: 2 << 30, History: 2 * time.Hour,
	}
}

// memberClose is how long a member may take to hand its leadership over and
// stop.
const memberClose = 8 * time.Second

// StartMember starts a member and returns when it takes part in its cluster,
// which waits for a majority of the members for as long as ctx lets it. Errors
// are one sentence: an address is taken, the data is in use or damaged, or a
// value does not fit.
func StartMember(ctx context.Context, m Member, log *zap.Logger) (*Server, error) {
	lock, err := lockDir(m.Dir)
	if err != nil {
		return nil, err
	}
	s := &Server{dir: m.Dir, log: newServerLog(log), failed: make(chan error, 1), done: make(chan struct{}), lock: lock, closeLimit: memberClose}
	s.log.level.SetLevel(zapcore.WarnLevel)
	cfg, err := m.config(s.log)
	if err == nil {
		err = s.open(ctx, cfg)
	}
	if err != nil {
		s.log.quiet()
		_ = lock.Close()
		if ctx.Err() != nil {
			return nil, ctx.Err()
		}
		return nil, explain(m.Dir, err)
	}
	s.client = v3client.New(s.etcd.Server)
	go s.watch()
	return s, nil
}

// Check says what is wrong with the values, all of it; nil if they are good.
func (m Member) Check() error {
	_, err := m.config(newServerLog(zap.NewNop()))
	return errors.Join(err, m.ranges())
}

// ranges judges what etcd takes and a cluster does not live well with.
func (m Member) ranges() error {
	var errs []error
	if m.Heartbeat < 100*time.Millisecond {
		errs = append(errs, fmt.Errorf("heartbeat: %v is below 100ms", m.Heartbeat))
	}
	if m.Election < 5*m.Heartbeat || m.Election > 50*m.Heartbeat {
		errs = append(errs, fmt.Errorf("election: %v is not within 5 to 50 heartbeats", m.Election))
	}
	if m.Quota < 1<<20 {
		errs = append(errs, errors.New("quota: below 1 MiB"))
	}
	if m.History < 5*time.Minute {
		errs = append(errs, fmt.Errorf("history: %v is below 5m", m.History))
	}
	return errors.Join(errs...)
}

// config is what etcd is started with.
func (m Member) config(log *serverLog) (*embed.Config, error) {
	c := embed.NewConfig()
	c.Name, c.Dir = m.Name, m.Dir
	var errs []error
	parse := func(what, list string) []url.URL {
		var out []url.URL
		for _, text := range strings.Split(list, ",") {
			u, err := url.Parse(strings.TrimSpace(text))
			if err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https" {
				errs = append(errs, fmt.Errorf("%s: %q is not like http://127.0.0.1:2379", what, text))
				continue
			}
			out = append(out, *u)
		}
		return out
	}
	or := func(a, b string) string {
		if a == "" {
			return b
		}
		return a
	}
	c.ListenClientUrls, c.ListenPeerUrls = parse("listen-client", m.Clients), parse("listen-peer", m.Peers)
	c.AdvertiseClientUrls, c.AdvertisePeerUrls = parse("advertise-client", or(m.AdvertiseClients, m.Clients)), parse("advertise-peer", or(m.AdvertisePeers, m.Peers))
	if m.Metrics != "" {
		c.ListenMetricsUrls = parse("metrics", m.Metrics)
	}
	c.InitialCluster = or(m.Cluster, m.Name+"="+or(m.AdvertisePeers, m.Peers))
	c.InitialClusterToken = m.Token
	if m.Existing {
		c.ClusterState = embed.ClusterStateFlagExisting
	}
	c.ClientTLSInfo.CertFile, c.ClientTLSInfo.KeyFile, c.ClientTLSInfo.TrustedCAFile = m.ClientTLS.Cert, m.ClientTLS.Key, m.ClientTLS.CA
	c.PeerTLSInfo.CertFile, c.PeerTLSInfo.KeyFile, c.PeerTLSInfo.TrustedCAFile = m.PeerTLS.Cert, m.PeerTLS.Key, m.PeerTLS.CA
	c.ClientTLSInfo.ClientCertAuth, c.PeerTLSInfo.ClientCertAuth = m.ClientTLS.CA != "", m.PeerTLS.CA != ""
	c.TickMs, c.ElectionMs = uint(m.Heartbeat.Milliseconds()), uint(m.Election.Milliseconds())
	c.QuotaBackendBytes = m.Quota
	c.AutoCompactionMode, c.AutoCompactionRetention = embed.CompactorModePeriodic, m.History.String()
	c.WatchProgressNotifyInterval = time.Minute
	c.ZapLoggerBuilder = embed.NewZapLoggerBuilder(log.logger())
	if len(errs) == 0 {
		if err := c.Validate(); err != nil {
			errs = append(errs, err)
		}
	}
	return c, errors.Join(errs...)
}

// lockDir keeps a second server off the data: it would wait without a word.
func lockDir(dir string) (*os.File, error) {
	if err := prepare(dir); err != nil {
		return nil, err
	}
	f, err := os.OpenFile(filepath.Join(dir, "lock"), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, explain(dir, err)
	}
	if err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		_ = f.Close()
		return nil, fmt.Errorf("embedded etcd: the data in %s is in use by another process", dir)
	}
	return f, nil
}

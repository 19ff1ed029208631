package cmd

import (
	"context"
	"fmt"
	"net"
	"net/url"
	"os"
	"strings"

	"github.com/spf13/cobra"
	"go.uber.org/zap"

	"github.com/imdhq/imd/pkg/control/embedded"
	"github.com/imdhq/imd/pkg/obs"
)

func newEtcd(a *app) *cobra.Command {
	c := &cobra.Command{
		Use:   "etcd",
		Short: "Run a member of an etcd cluster as a process of its own",
		Long: `Etcd runs a real etcd server with the values that suit this product: an election
needs 1.5 s without a heartbeat, history is kept for two hours, writes stop at
2 GiB. Three of them make a cluster that bears the loss of one. Its protocol and
its data are those of the etcd project, so its tools work on both.

Without certificates anybody who reaches the ports may read and change the
cluster's control plane: give some, or keep to loopback.

Exit status: 0 stopped as asked, 1 failed, 78 a flag is wrong.`,
		Example: `  imd etcd --data-dir ./etcd
  imd etcd --name m1 --data-dir ./m1 --listen-client http://10.0.0.1:2379 --listen-peer http://10.0.0.1:2380 --cluster m1=http://10.0.0.1:2380,m2=http://10.0.0.2:2380,m3=http://10.0.0.3:2380`,
		Args: cobra.NoArgs,
	}
	m := embedded.DefaultMember()
	quota := m.Quota >> 20
	f := c.Flags()
	f.StringVar(&m.Dir, "data-dir", "", "folder for the data of this member (needed)")
	f.StringVar(&m.Name, "name", m.Name, "name of this member, unique in its cluster")
	f.StringVar(&m.Clients, "listen-client", m.Clients, "URL for clients; several with commas")
	f.StringVar(&m.Peers, "listen-peer", m.Peers, "URL for other members")
	f.StringVar(&m.AdvertiseClients, "advertise-client", "", "URL that clients are told (default: that of --listen-client)")
	f.StringVar(&m.AdvertisePeers, "advertise-peer", "", "URL that other members are told (default: that of --listen-peer)")
	f.StringVar(&m.Cluster, "cluster", "", "name=peer URL of each first member, with commas (default: this one alone)")
	f.StringVar(&m.Token, "cluster-token", m.Token, "tells clusters on one network apart")
	f.BoolVar(&m.Existing, "existing", false, "join a cluster that runs already")
	f.StringVar(&m.Metrics, "metrics", "", "URL of a listener for /metrics and /health alone (default: they are on the one for clients)")
	f.DurationVar(&m.Heartbeat, "heartbeat", m.Heartbeat, "between heartbeats of the leader; about the round trip between members, 100ms at least")
	f.DurationVar(&m.Election, "election", m.Election, "silence after which a new leader is elected; 5 to 50 heartbeats")
	f.Int64Var(&quota, "quota", quota, "MiB of the database at which writes stop")
	f.DurationVar(&m.History, "history", m.History, "revisions older than this are compacted away; 5m at least")
	for _, t := range []struct {
		prefix, what string
		to           *embedded.TLS
	}{{"client", "clients", &m.ClientTLS}, {"peer", "other members", &m.PeerTLS}} {
		f.StringVar(&t.to.Cert, t.prefix+"-cert", "", "PEM file with the certificate for "+t.what)
		f.StringVar(&t.to.Key, t.prefix+"-key", "", "PEM file with its key")
		f.StringVar(&t.to.CA, t.prefix+"-ca", "", "PEM file with the certificates that those of "+t.what+" are checked against")
	}
	c.RunE = func(c *cobra.Command, _ []string) error {
		m.Quota = quota << 20
		return a.member(c.Context(), m)
	}
	return c
}

// member runs a member until a signal or a failure.
func (a *app) member(parent context.Context, m embedded.Member) error {
	if m.Dir == "" {
		return usagef("--data-dir is needed: the folder for the data of this member")
	}
	if err := m.Check(); err != nil {
		return newFailure(exitConfig, "configuration", strings.ReplaceAll(err.Error(), "\n", "; "), "")
	}
	cfg := obs.DefaultLogConfig()
	log, _, err := obs.NewLogger(cfg, os.Stderr)
	if err != nil {
		return err
	}
	defer func() { _ = log.Sync() }() // a terminal cannot be synced; nothing is lost by it
	pulse := obs.NewPulse(a.getenv)
	ctx, release := untilSignal(parent, func(s os.Signal) {
		log.Info("stopping", zap.String("signal", s.String()))
		pulse.Stopping(0)
	})
	defer release()
	if m.ClientTLS.Cert == "" && !onlyLoopback(m.Clients) {
		log.Warn("clients need no certificate and no password; whoever reaches the port may change everything", zap.String("listen", m.Clients))
	}
	s, err := embedded.StartMember(ctx, m, log)
	if err != nil {
		if ctx.Err() != nil && parent.Err() == nil {
			return nil // asked to stop while it waited for the others
		}
		return err
	}
	beat, stopBeat := context.WithCancel(context.WithoutCancel(parent))
	beating := make(chan struct{})
	go func() { defer close(beating); pulse.Run(beat) }()
	defer func() { stopBeat(); <-beating }()
	pulse.Ready("ready, clients " + m.Clients)
	fmt.Fprintf(a.errOut, "  etcd member %s is ready\n  clients  %s\n  peers    %s\n  data     %s\n", m.Name, m.Clients, m.Peers, m.Dir)
	select {
	case <-ctx.Done():
		return s.Close()
	case err := <-s.Failed():
		_ = s.Close() // the failure is the news
		return err
	}
}

// onlyLoopback reports whether all URLs are on this machine.
func onlyLoopback(list string) bool {
	for _, text := range strings.Split(list, ",") {
		u, err := url.Parse(strings.TrimSpace(text))
		if err != nil {
			return false
		}
		if ip := net.ParseIP(u.Hostname()); u.Hostname() != "localhost" && (ip == nil || !ip.IsLoopback()) {
			return false
		}
	}
	return true
}

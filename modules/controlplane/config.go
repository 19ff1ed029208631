package controlplane

import (
	"errors"
	"fmt"
	"net/url"
	"strings"

	"github.com/imdhq/imd/pkg/config"
)

// Config is the section "controlplane". It is read once, at start.
type Config struct {
	// Endpoints are those of an etcd cluster; none = the embedded server.
	Endpoints []string `mapstructure:"endpoints" doc:"URLs of the members of an etcd cluster, as https://etcd1:2379; default none, which runs an etcd server inside the process with its data in the data folder."`
	// FollowMembers uses what the members say of themselves.
	FollowMembers bool `mapstructure:"follow_members" doc:"Also use the client URLs that the members of the etcd cluster advertise, each once it answered; so members may be replaced while nodes run. Default false."`
	// Watch says whom the node follows.
	Watch string `mapstructure:"watch" doc:"direct: follow nodes, leaders and settings in etcd and hand them on to other nodes; relayed: get them from nodes that do, and follow etcd only while none answers. Default direct, which is good for 200 nodes."`
	// Cluster separates clusters on one etcd.
	Cluster string `mapstructure:"cluster" doc:"Name of the cluster; nodes of different names on one etcd do not see each other. 1 to 64 of a-z 0-9 . _ -, default imd."`
	// Zone is where the node stands.
	Zone string `mapstructure:"zone" doc:"Failure zone of this node, such as a rack or a data centre; up to 64 of a-z A-Z 0-9 . _ -, default none."`
	// Weight is the share of work.
	Weight int `mapstructure:"weight" doc:"Share of the work compared with other nodes; 1 to 100, default 1."`
	// Username and Password are those of a user of the etcd cluster.
	Username string        `mapstructure:"username" doc:"User name at the etcd cluster; default none."`
	Password config.Secret `mapstructure:"password" doc:"Password of that user; default none."`
	// LeaseOnly switches the fast takeover off.
	LeaseOnly bool `mapstructure:"lease_only" doc:"A standby waits until the lease of a dead leader ends, 2 to 4 s, also if the leader's ops listener refuses connections. Default false."`
	// TLS is for https endpoints.
	TLS TLSConfig `mapstructure:"tls"`
}

// TLSConfig names the files for https endpoints.
type TLSConfig struct {
	CAFile   string `mapstructure:"ca_file" doc:"PEM file with the certificates that sign those of the etcd cluster; default those of the system."`
	CertFile string `mapstructure:"cert_file" doc:"PEM file with the certificate of this node for the etcd cluster; default none."`
	KeyFile  string `mapstructure:"key_file" doc:"PEM file with the key of that certificate; default none."`
}

// The values of Config.Watch.
const (
	Direct  = "direct"
	Relayed = "relayed"
)

// DefaultConfig is what an empty section means.
func DefaultConfig() Config { return Config{Watch: Direct, Cluster: "imd", Weight: 1} }

// Validate reports every problem at once, each with its key.
func (c Config) Validate() error {
	var errs []error
	bad := func(key, format string, args ...any) {
		errs = append(errs, fmt.Errorf("controlplane.%s: %s", key, fmt.Sprintf(format, args...)))
	}
	secure := 0
	for _, e := range c.Endpoints {
		u, err := url.Parse(e)
		if err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Port() == "" || u.Hostname() == "" || strings.Trim(u.Path, "/") != "" || u.User != nil {
			bad("endpoints", "%q is not like https://host:2379", e)
			continue
		}
		if u.Scheme == "https" {
			secure++
		}
	}
	if secure > 0 && secure < len(c.Endpoints) {
		bad("endpoints", "some are https and some are not")
	}
	if !named(c.Cluster, "abcdefghijklmnopqrstuvwxyz0123456789._-") || c.Cluster == "" {
		bad("cluster", "%q is not 1 to 64 of a-z 0-9 . _ -", c.Cluster)
	}
	if !named(c.Zone, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-") {
		bad("zone", "%q is not up to 64 of a-z A-Z 0-9 . _ -", c.Zone)
	}
	if c.Weight < 1 || c.Weight > 100 {
		bad("weight", "%d is not within 1 and 100", c.Weight)
	}
	if (c.Username == "") != (c.Password == "") {
		bad("username", "must be set together with password")
	}
	if (c.TLS.CertFile == "") != (c.TLS.KeyFile == "") {
		bad("tls.cert_file", "must be set together with key_file")
	}
	if secure == 0 && (c.TLS != TLSConfig{}) {
		bad("tls", "is given, but no endpoint is https")
	}
	if len(c.Endpoints) == 0 && c.Username != "" {
		bad("username", "is given, but no endpoints")
	}
	if c.Watch != Direct && c.Watch != Relayed {
		bad("watch", "%q is neither %s nor %s", c.Watch, Direct, Relayed)
	}
	if c.Watch == Relayed && len(c.Endpoints) == 0 {
		bad("watch", "is %s, but there are no endpoints", Relayed)
	}
	if len(c.Endpoints) == 0 && c.FollowMembers {
		bad("follow_members", "is on, but there are no endpoints")
	}
	return errors.Join(errs...)
}

// named reports whether s has up to 64 bytes, all of the alphabet.
func named(s, alphabet string) bool { return len(s) <= 64 && strings.Trim(s, alphabet) == "" }

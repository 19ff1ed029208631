package peers

import (
	"errors"
	"fmt"
	"net"

	"github.com/imdhq/imd/pkg/obs"
	"github.com/imdhq/imd/pkg/peer"
	"github.com/imdhq/imd/pkg/ring"
)

// DefaultListen is where a node listens that has not all roles.
const DefaultListen = "127.0.0.1:8422"

// Config is the section "peers". It is read once, at start.
type Config struct {
	// Listen is where other nodes call the roles of this one.
	Listen string `mapstructure:"listen" doc:"host:port for the calls of other nodes; port 0 picks a free one. Default 127.0.0.1:8422 if this node has not all roles, else none."`
	// Advertise is the address that other nodes are told.
	Advertise string `mapstructure:"advertise" doc:"host:port at which other nodes reach that listener; default the address that was bound."`
	// KeyFile holds the shared keys.
	KeyFile string `mapstructure:"key_file" doc:"File with the key that the nodes share, at least 32 characters in a line; a second line is another key that is good too, for changing keys. Read anew when it changes. Default: a key that the nodes share through etcd, for loopback addresses only."`
	// AllowPlaintext lets signed calls go over networks in the clear.
	AllowPlaintext bool `mapstructure:"allow_plaintext" doc:"Call other machines without TLS; for networks that nobody else can listen to. Default false."`
	// TLS is for certificates instead of a shared key.
	TLS TLSConfig `mapstructure:"tls"`
	// Points is the number of points of a node on the ring.
	Points int `mapstructure:"points" doc:"Points of a node of weight 1 on the rings; the same on all nodes. 100 to 1000, default 160."`
	// Transport is how calls to other nodes travel; every node answers both ways.
	Transport string `mapstructure:"transport" doc:"How calls to other nodes travel: pipe, many calls over one connection, or http, each a request of HTTP/2, at half as much processor time again. Nodes answer both. Default pipe."`
	// State and Push name nodes in place of the registry.
	State string `mapstructure:"state" doc:"Where the state role is, as static://host:port#weight,host:port or etcd://host:port/prefix; default: the nodes that are registered."`
	Push  string `mapstructure:"push" doc:"Where the push role is, as static://host:port#weight,host:port or etcd://host:port/prefix; default: the nodes that are registered."`
}

// TLSConfig names the files for TLS between nodes.
type TLSConfig struct {
	CAFile   string `mapstructure:"ca_file" doc:"PEM file with the certificates that sign those of the nodes; default none, which means no TLS."`
	CertFile string `mapstructure:"cert_file" doc:"PEM file with the certificate of this node; it names each role of the node as a URI imd://CLUSTER/role/ROLE."`
	KeyFile  string `mapstructure:"key_file" doc:"PEM file with the key of that certificate."`
}

func (c TLSConfig) on() bool { return c != TLSConfig{} }

// DefaultConfig is what an empty section means.
func DefaultConfig() Config { return Config{Points: ring.DefaultPoints, Transport: transportPipe} }

// The values of Transport.
const (
	transportPipe = "pipe"
	transportHTTP = "http"
)

// Validate reports every problem at once, each with its key.
func (c Config) Validate() error {
	var errs []error
	bad := func(key, format string, args ...any) {
		errs = append(errs, fmt.Errorf("peers.%s: %s", key, fmt.Sprintf(format, args...)))
	}
	for key, addr := range map[string]string{"listen": c.Listen, "advertise": c.Advertise} {
		if _, _, err := net.SplitHostPort(addr); addr != "" && err != nil {
			bad(key, "%q is not host:port", addr)
		}
	}
	if c.Points < ring.MinPoints || c.Points > ring.MaxPoints {
		bad("points", "%d is not within %d and %d", c.Points, ring.MinPoints, ring.MaxPoints)
	}
	if c.Transport != transportPipe && c.Transport != transportHTTP {
		bad("transport", "%q is neither pipe nor http", c.Transport)
	}
	if t := c.TLS; t.on() && (t.CAFile == "" || t.CertFile == "" || t.KeyFile == "") {
		bad("tls", "ca_file, cert_file and key_file belong together")
	}
	for key, place := range map[string]string{"state": c.State, "push": c.Push} {
		if _, err := peer.ParsePlace(place, key); err != nil {
			bad(key, "%v", err)
		}
	}
	if c.Listen != "" && !obs.Loopback(c.Listen) && !c.TLS.on() {
		switch {
		case !c.AllowPlaintext:
			bad("listen", "%s is open to other machines; set tls, or allow_plaintext and key_file", c.Listen)
		case c.KeyFile == "":
			bad("key_file", "is needed because %s is open to other machines", c.Listen)
		}
	}
	if host, _, err := net.SplitHostPort(c.Listen); err == nil && c.Advertise == "" && unspecified(host) {
		bad("advertise", "is needed because %s is no address at which others reach this node", c.Listen)
	}
	return errors.Join(errs...)
}

func unspecified(host string) bool {
	ip := net.ParseIP(host)
	return host == "" || ip != nil && ip.IsUnspecified()
}

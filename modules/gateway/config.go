package gateway

import (
	"errors"
	"fmt"
	"net/netip"
	"net/url"
	"strings"
	"time"

	"github.com/imdhq/imd/pkg/rate"
	"github.com/imdhq/imd/pkg/store"
	"github.com/imdhq/imd/sdk/go/protocol"
)

// Config is the section "gateway". It is read once, at start.
type Config struct {
	// Listen is the host:port for clients; port 0 picks a free one.
	Listen string `mapstructure:"listen" doc:"Address for clients and the public API, host:port; port 0 picks a free one. Default 127.0.0.1:8420."`
	// TLS is for clients that reach the node without a proxy.
	TLS TLSConfig `mapstructure:"tls"`
	// AllowedOrigins are web origins besides the own host, each exactly
	// scheme://host or scheme://host:port.
	AllowedOrigins []string `mapstructure:"allowed_origins" doc:"Web origins that may connect besides the own host, each exactly scheme://host[:port]; default none."`
	// RequireOrigin refuses connections without an Origin header.
	RequireOrigin bool `mapstructure:"require_origin" doc:"Refuse connections without an Origin header, that is, all programs that are no browser. Default false."`
	// UnsafeAllowAllOrigins lets "*" stand in AllowedOrigins.
	UnsafeAllowAllOrigins bool `mapstructure:"unsafe_allow_all_origins" doc:"Let * stand in allowed_origins, so that every web page may connect. Default false."`
	// TrustedProxies may tell the client's address in X-Forwarded-For.
	TrustedProxies []string `mapstructure:"trusted_proxies" doc:"Addresses or networks of proxies whose X-Forwarded-For is believed, as 10.0.0.0/8; default none."`
	// MaxConnections is how many sockets are held at most; 0 = as many as the
	// process may open files, but for a few.
	MaxConnections int `mapstructure:"max_connections" doc:"Client connections held at most; more get 503. 0 to 10000000; 0, the default, means as many as the process may open files, less 164, but at least a quarter of them."`
	// MemoryLimit is what the process may take, in bytes; 0 = what its control
	// group may.
	MemoryLimit int `mapstructure:"memory_limit" doc:"Memory the process may take, in bytes: near it newcomers are refused, then the slowest connections closed. 0 to 1099511627776; 0, the default, means the limit of its control group, or none."`
	// MaxUnauthenticated and MaxUnauthenticatedAddress bound sockets before
	// their hello was accepted.
	MaxUnauthenticated        int `mapstructure:"max_unauthenticated" doc:"Connections that have not authenticated yet, in all; more get 503. 1 to 1000000, default 4000."`
	MaxUnauthenticatedAddress int `mapstructure:"max_unauthenticated_address" doc:"The same from one address; more get 429. 1 to 1000000, default 200."`
	// HelloTimeout is how long a connection may take to say hello.
	HelloTimeout time.Duration `mapstructure:"hello_timeout" doc:"How long a connection may take to present its token; 100ms to 30s, default 5s."`
	// PingInterval and PongTimeout are the heartbeat.
	PingInterval time.Duration `mapstructure:"ping_interval" doc:"Time between two pings to a client; 100ms to 10m, default 25s."`
	PongTimeout  time.Duration `mapstructure:"pong_timeout" doc:"A connection without a byte for this long after a ping is closed; 100ms to 1m, default 10s."`
	// WriteTimeout bounds one write to a connection.
	WriteTimeout time.Duration `mapstructure:"write_timeout" doc:"A write that takes longer closes the connection as slow; 100ms to 1m, default 10s."`
	// QueueFrames and QueueBytes bound what waits for a connection.
	QueueFrames int `mapstructure:"queue_frames" doc:"Frames that may wait for one connection; above 75 % it gets heads instead of messages. 16 to 65536, default 1024."`
	QueueBytes  int `mapstructure:"queue_bytes" doc:"The same in bytes; 65536 to 67108864, default 1048576."`
	// WindowEntries bounds deliveries that wait for the device's ack.
	WindowEntries int `mapstructure:"window_entries" doc:"Deliveries without an ack above which a connection gets heads instead; 8 to 65536, default 256."`
	// RedeliverAfter is the first pause before an entry without ack is
	// delivered again; the next are 2, 4, 4 and 4 times as long.
	RedeliverAfter time.Duration `mapstructure:"redeliver_after" doc:"First wait before a delivery without an ack is repeated, then 2, 4, 4 and 4 times as long; 50ms to 1m, default 3s."`
	// Login is what a new login means for those a user has.
	Login LoginConfig `mapstructure:"login"`
	// AntiEntropy is the comparison of heads with state.
	AntiEntropy AntiEntropyConfig `mapstructure:"antientropy"`
	// Drain is how a stopping node sends its clients away.
	Drain DrainConfig `mapstructure:"drain"`
	// Limits are the rates.
	Limits LimitConfig `mapstructure:"limits"`
}

// TLSConfig names the files for TLS with clients.
type TLSConfig struct {
	// CertFile and KeyFile belong together.
	CertFile string `mapstructure:"cert_file" doc:"PEM file with the certificate of the public listener, followed by those between it and its authority; read anew when it changes. Default none, which means no TLS."`
	KeyFile  string `mapstructure:"key_file" doc:"PEM file with the key of that certificate, which not everybody may be able to read; read anew when it changes."`
}

// LoginConfig is the device policy.
type LoginConfig struct {
	// Mode is multi, kick_old or reject_new.
	Mode string `mapstructure:"mode" doc:"What a new login means for the logins of a user: multi (several may stay), kick_old (the others end) or reject_new (it is refused). Default multi."`
	// Multi is how many logins of one class live under multi.
	Multi int `mapstructure:"multi" doc:"Logins of one class that may live under multi; the oldest beyond it ends. 1 to 1000, default 10."`
	// SameClass lets kick_old and reject_new look at logins of the same class
	// only.
	SameClass bool `mapstructure:"same_class" doc:"Under kick_old and reject_new only logins of the same device class count. Default true."`
	// Total bounds the logins of all classes.
	Total int `mapstructure:"total" doc:"Logins of all classes together that a user may have; the oldest beyond it ends, or under reject_new the new one is refused. 0 to 1000, 0 = no bound, the default."`
}

// AntiEntropyConfig is the comparison of heads.
type AntiEntropyConfig struct {
	// Interval is the time between two rounds, +-20 %.
	Interval time.Duration `mapstructure:"interval" doc:"Time between two comparisons of heads with the state role, within 20 %; it heals lost deliveries. 100ms to 10m, default 30s."`
}

// DrainConfig is how a stopping node sends its clients away.
type DrainConfig struct {
	// Delay is how long newcomers are still taken.
	Delay time.Duration `mapstructure:"delay" doc:"How long a stopping node still takes connections, because balancers are late; 0s to 10s, default 1s."`
	// MinSpread and MaxSpread bound the time over which clients are told.
	MinSpread time.Duration `mapstructure:"min_spread" doc:"Shortest time over which clients are told to move; 0s to 1m, default 2s."`
	MaxSpread time.Duration `mapstructure:"max_spread" doc:"Longest time over which clients are told to move; 0s to 5m, default 25s."`
	// Grace is how long those who did not move are waited for after that.
	Grace time.Duration `mapstructure:"grace" doc:"How long connections that did not move are kept after that; 0s to 1m, default 5s."`
}

// LimitConfig are the rates. They count frames, not envelopes.
type LimitConfig struct {
	ConnectionRate    float64 `mapstructure:"connection_rate" doc:"Frames a second from one connection; default 200."`
	ConnectionBurst   int     `mapstructure:"connection_burst" doc:"Frames from one connection at once; default 1000."`
	UserRate          float64 `mapstructure:"user_rate" doc:"Sends a second of one user; default 50."`
	UserBurst         int     `mapstructure:"user_burst" doc:"Sends of one user at once; default 600."`
	ConversationRate  float64 `mapstructure:"conversation_rate" doc:"Sends a second into one conversation; default 1000."`
	ConversationBurst int     `mapstructure:"conversation_burst" doc:"Sends into one conversation at once; default 2000."`
	AcceptRate        float64 `mapstructure:"accept_rate" doc:"Connections a second on the node, for each processor that it uses; default 5000."`
	AcceptBurst       int     `mapstructure:"accept_burst" doc:"Connections on the node at once, for each processor that it uses; default 10000."`
	TLSRate           float64 `mapstructure:"tls_rate" doc:"TLS handshakes a second on the node, for each processor that it uses; what is above waits for its turn, up to 4 s. Default 500."`
	TLSBurst          int     `mapstructure:"tls_burst" doc:"TLS handshakes on the node at once, for each processor that it uses; default 500."`
	AddressRate       float64 `mapstructure:"address_rate" doc:"Connections a second from one address; default 200."`
	AddressBurst      int     `mapstructure:"address_burst" doc:"Connections from one address at once; default 2000."`
	FailedHellos      int     `mapstructure:"failed_hellos" doc:"Bad tokens a minute from one address before it is refused for a minute; default 10."`
	// LoopbackExempt frees this machine from the rules for addresses.
	LoopbackExempt bool `mapstructure:"loopback_exempt" doc:"Rules for addresses do not hold for connections from this machine. Default true."`
}

// DefaultConfig is what an empty file means.
func DefaultConfig() Config {
	return Config{
		Listen:             "127.0.0.1:8420",
		MaxUnauthenticated: 4000, MaxUnauthenticatedAddress: 200,
		HelloTimeout: protocol.HelloTimeout, PingInterval: protocol.PingInterval,
		PongTimeout: protocol.PongTimeout, WriteTimeout: protocol.WriteTimeout,
		QueueFrames: protocol.MaxQueueFrames, QueueBytes: protocol.MaxQueueBytes,
		WindowEntries: protocol.DeliveryWindow, RedeliverAfter: 3 * time.Second,
		Login:       LoginConfig{Mode: "multi", Multi: 10, SameClass: true},
		AntiEntropy: AntiEntropyConfig{Interval: 30 * time.Second},
		Drain:       DrainConfig{Delay: time.Second, MinSpread: 2 * time.Second, MaxSpread: 25 * time.Second, Grace: 5 * time.Second},
		Limits: LimitConfig{
			ConnectionRate: protocol.ConnectionFrameRate, ConnectionBurst: protocol.ConnectionFrameBurst,
			UserRate: protocol.UserSendRate, UserBurst: protocol.UserSendBurst,
			ConversationRate: protocol.ConversationSendRate, ConversationBurst: protocol.ConversationSendBurst,
			AcceptRate: 5000, AcceptBurst: 10_000, TLSRate: 500, TLSBurst: 500,
			AddressRate: protocol.AddressUpgradeRate, AddressBurst: protocol.AddressUpgradeBurst,
			FailedHellos: 10, LoopbackExempt: true,
		},
	}
}

// problems collects what is wrong with a configuration.
type problems []error

func (p *problems) add(key, format string, args ...any) {
	*p = append(*p, fmt.Errorf("gateway.%s: %s", key, fmt.Sprintf(format, args...)))
}

func (p *problems) duration(key string, d, low, high time.Duration) {
	if d < low || d > high {
		p.add(key, "%v is not within %v and %v", d, low, high)
	}
}

func (p *problems) number(key string, n, low, high int) {
	if n < low || n > high {
		p.add(key, "%d is not within %d and %d", n, low, high)
	}
}

func (p *problems) rate(key string, l rate.Limit) {
	if !(l.PerSecond > 0 && l.PerSecond <= 1e9) {
		p.add(key+"_rate", "%v is not within 0 and 1000000000", l.PerSecond)
	}
	p.number(key+"_burst", l.Burst, 1, 1_000_000_000)
}

// Validate reports every problem at once, each with its key.
func (c Config) Validate() error {
	var p problems
	if c.Listen == "" {
		p.add("listen", "must be set")
	}
	if (c.TLS.CertFile == "") != (c.TLS.KeyFile == "") {
		p.add("tls", "cert_file and key_file belong together")
	}
	c.validateOrigins(&p)
	if _, err := parseProxies(c.TrustedProxies); err != nil {
		p.add("trusted_proxies", "%v", err)
	}
	p.number("max_connections", c.MaxConnections, 0, 10_000_000)
	p.number("memory_limit", c.MemoryLimit, 0, 1<<40)
	p.number("max_unauthenticated", c.MaxUnauthenticated, 1, 1_000_000)
	p.number("max_unauthenticated_address", c.MaxUnauthenticatedAddress, 1, 1_000_000)
	p.duration("hello_timeout", c.HelloTimeout, 100*time.Millisecond, 30*time.Second)
	p.duration("ping_interval", c.PingInterval, 100*time.Millisecond, 10*time.Minute)
	p.duration("pong_timeout", c.PongTimeout, 100*time.Millisecond, time.Minute)
	p.duration("write_timeout", c.WriteTimeout, 100*time.Millisecond, time.Minute)
	p.number("queue_frames", c.QueueFrames, 16, 65536)
	p.number("queue_bytes", c.QueueBytes, 65536, 64<<20)
	p.number("window_entries", c.WindowEntries, 8, 65536)
	p.duration("redeliver_after", c.RedeliverAfter, 50*time.Millisecond, time.Minute)
	if _, ok := policyModes[c.Login.Mode]; !ok {
		p.add("login.mode", "%q is none of multi, kick_old, reject_new", c.Login.Mode)
	}
	p.number("login.multi", c.Login.Multi, 1, 1000)
	p.number("login.total", c.Login.Total, 0, 1000)
	p.duration("antientropy.interval", c.AntiEntropy.Interval, 100*time.Millisecond, 10*time.Minute)
	p.duration("drain.delay", c.Drain.Delay, 0, 10*time.Second)
	p.duration("drain.min_spread", c.Drain.MinSpread, 0, time.Minute)
	p.duration("drain.max_spread", c.Drain.MaxSpread, c.Drain.MinSpread, 5*time.Minute)
	p.duration("drain.grace", c.Drain.Grace, 0, time.Minute)
	c.Limits.validate(&p)
	return errors.Join(p...)
}

func (c Config) validateOrigins(p *problems) {
	for _, o := range c.AllowedOrigins {
		if o == "*" {
			if !c.UnsafeAllowAllOrigins {
				p.add("allowed_origins", "* lets every web page connect; it needs unsafe_allow_all_origins: true")
			}
			continue
		}
		if _, err := parseOrigin(o); err != nil {
			p.add("allowed_origins", "%q: %v", o, err)
		}
	}
}

func (c LimitConfig) validate(p *problems) {
	p.rate("limits.connection", c.connection())
	p.rate("limits.user", c.user())
	p.rate("limits.conversation", c.conversation())
	p.rate("limits.accept", c.accept())
	p.rate("limits.tls", c.tls())
	p.rate("limits.address", c.address())
	p.number("limits.failed_hellos", c.FailedHellos, 1, 1_000_000)
}

func (c LimitConfig) connection() rate.Limit {
	return rate.Limit{PerSecond: c.ConnectionRate, Burst: c.ConnectionBurst}
}

func (c LimitConfig) user() rate.Limit {
	return rate.Limit{PerSecond: c.UserRate, Burst: c.UserBurst}
}

func (c LimitConfig) conversation() rate.Limit {
	return rate.Limit{PerSecond: c.ConversationRate, Burst: c.ConversationBurst}
}

// accept is for each processor.
func (c LimitConfig) accept() rate.Limit {
	return rate.Limit{PerSecond: c.AcceptRate, Burst: c.AcceptBurst}
}

// tls is for each processor too.
func (c LimitConfig) tls() rate.Limit {
	return rate.Limit{PerSecond: c.TLSRate, Burst: c.TLSBurst}
}

func (c LimitConfig) address() rate.Limit {
	return rate.Limit{PerSecond: c.AddressRate, Burst: c.AddressBurst}
}

var policyModes = map[string]store.PolicyMode{"multi": store.Multi, "kick_old": store.KickOld, "reject_new": store.RejectNew}

// parseOrigin checks that s is exactly scheme://host[:port] and returns it in
// lower case.
func parseOrigin(s string) (string, error) {
	u, err := url.Parse(s)
	if err != nil {
		return "", errors.New("not a URL")
	}
	if u.Scheme != "http" && u.Scheme != "https" || u.Host == "" || u.Hostname() == "" {
		return "", errors.New("not scheme://host[:port] with http or https")
	}
	if !strings.EqualFold(s, u.Scheme+"://"+u.Host) || strings.ContainsAny(u.Host, "*@ ") {
		return "", errors.New("more than scheme://host[:port]")
	}
	return strings.ToLower(s), nil
}

// parseProxies reads addresses and networks.
func parseProxies(list []string) ([]netip.Prefix, error) {
	var out []netip.Prefix
	for _, s := range list {
		p, err := netip.ParsePrefix(s)
		if err != nil {
			a, aerr := netip.ParseAddr(s)
			if aerr != nil {
				return nil, fmt.Errorf("%q is neither an address nor a network", s)
			}
			p = netip.PrefixFrom(a, a.BitLen())
		}
		out = append(out, p.Masked())
	}
	return out, nil
}

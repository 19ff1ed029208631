package module

import (
	"context"
	"net/http"

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/zap"

	"github.com/imdhq/imd/pkg/control"
	"github.com/imdhq/imd/pkg/im"
	"github.com/imdhq/imd/pkg/peer"
	"github.com/imdhq/imd/pkg/settings"
	"github.com/imdhq/imd/pkg/store"
	"github.com/imdhq/imd/pkg/tally"
	"github.com/imdhq/imd/pkg/trace"
)

// Module is one role, or one shared part, of a node. The node calls the four
// methods in this order, each at most once, and never two at a time except
// that Drain runs while Run does.
type Module interface {
	// Start opens what the module needs and returns when it could serve. It
	// cleans up after itself if it fails.
	Start(ctx context.Context) error
	// Run works until ctx is done, then returns nil within 2 s. Any other
	// return stops the whole node.
	Run(ctx context.Context) error
	// Drain refuses new work and finishes or hands over the work in hand. An
	// early end because ctx is done is normal and no error.
	Drain(ctx context.Context) error
	// Close frees what Start opened. It follows a successful Start even if Run
	// was never called.
	Close() error
}

// Spec declares a module.
type Spec struct {
	Name  string   // as typed in --roles
	Role  bool     // may be chosen with --roles; if not, only Needs brings it in
	Needs []string // modules that start before it in this process
	Calls []string // roles it reaches through peer clients; they order nothing
	// Config is a pointer to the defaults of the module's section, for documents
	// and strict checks; nil = no section. Fields carry the tags mapstructure
	// (key) and doc (one sentence with unit, range and default).
	Config func() any
	// Settings are what the module reads that may change while the node runs.
	Settings settings.Schema
	// DrainShare is how much of the time that is left for a stop its Drain may take,
	// above 0 and below 1; 0 = a half.
	DrainShare float64
	// New wires the module. It is cheap: no I/O, no goroutines.
	New func(*Env) (Module, error)
}

// Env is what a node hands to Spec.New. It stops there: a module's own code
// takes what it uses as separate fields of its Deps.
type Env struct {
	Node    im.NodeID
	BootID  string   // random, new at each start
	Version string   // of the binary
	DataDir string   // absolute
	Roles   []string // of this node
	Joined  bool     // other processes have roles of the same server, or may
	// Unshared says of each role of this node what it keeps where no other process
	// can reach it, such as "messages in SQLite"; nil = nothing.
	Unshared map[string]string
	Cluster  string // name of the cluster
	Zone     string // where the node stands; "" = none
	Dev      bool   // `imd dev`: demo users and their links are served
	Log      *zap.Logger
	Reg      prometheus.Registerer // one registry per node, never the default one
	// Config decodes the section over the defaults that into points to holds,
	// strictly, and validates it if it has Validate() error.
	Config func(section string, into any) error
	// Settings is where the module reads what it declared; nothing is set until
	// the control plane has started.
	Settings *settings.Live
	Control  *control.Handle // the view is empty until the control plane has started
	Store    *store.Handle   // methods fail with unavailable until storage has started
	Peers    *peer.Set
	Ready    *Ready // where modules register their readiness checks
	Keys     KeySource
	// Trace remembers what became of messages here; nil = nothing does.
	Trace *trace.Log
	// Tally counts what this process does; nil = nothing does.
	Tally *tally.Book
	// MountPublic and MountOps add a handler to the public or the ops listener.
	// Patterns are those of http.ServeMux. Only before Start.
	MountPublic func(pattern string, h http.Handler)
	MountOps    func(pattern string, h http.Handler)
	// PublicHandler is everything mounted with MountPublic; the gateway serves it.
	PublicHandler func() http.Handler
	// Capacity lets a module publish how many client connections it takes at
	// most; it goes into the registration.
	Capacity func(connections int)
	// Stop stops the process in order, as SIGTERM does. It returns at once.
	Stop func(reason string)
	// Announce lets a module publish the address it bound, as "public", or
	// "public-tls" if that wants TLS, "ops" or "internal"; it goes into endpoints.json and the registration.
	Announce func(name, address string)
}

// KeySource gives the secrets of the data folder.
type KeySource interface {
	// TokenKeys are the keys that sign client tokens, newest first.
	TokenKeys() []TokenKey
	// AdminKey is the bearer token of the ops services.
	AdminKey() string
}

// TokenKey is one HMAC key for client tokens.
type TokenKey struct {
	ID     string
	Secret []byte // at least 32 bytes
}

package store

import (
	"context"
	"time"

	"github.com/imdhq/imd/pkg/im"
)

// RouteTTL is how long a route lives without a refresh, in stores whose routes
// outlive the process that claimed them.
const RouteTTL = 90 * time.Second

// Route says where a session is.
type Route struct {
	User    im.UserID
	Session im.SessionID
	Login   im.LoginID
	Device  im.DeviceID
	Class   im.Class
	Node    im.NodeID
	Boot    string // boot id of the node's process
	Epoch   uint64 // route epoch: rank of the claim among all of the user; set by the store
	Since   time.Time
}

// Home is where the route is kept alive: one process.
func (r Route) Home() Home { return Home{r.Node, r.Boot} }

// Home is one process that claims routes.
type Home struct {
	Node im.NodeID
	Boot string
}

// Policy is what a new login means for the logins a user has. It acts on
// logins, not on sockets.
type Policy struct {
	Mode      PolicyMode
	Multi     int  // logins of one class under Multi, the newcomer included; the oldest beyond it ends with replaced; below 1 = no bound
	SameClass bool // KickOld and RejectNew count logins of the same class only
	// Total bounds the logins of all classes together, the newcomer included:
	// under RejectNew the newcomer beyond it is refused, else the oldest ends
	// with replaced. Below 1 = no bound.
	Total int
}

// PolicyMode is the kind of a Policy.
type PolicyMode int

const (
	// Multi lets Policy.Multi logins a class live.
	Multi PolicyMode = iota
	// KickOld ends the others with replaced.
	KickOld
	// RejectNew refuses the new one with login_refused while another lives.
	RejectNew
)

// Claim is the answer to a claim.
type Claim struct {
	Epoch      uint64
	Superseded []Route // older sessions of the same login and device: they end with superseded, whatever the policy
	Replaced   []Route // all sessions of the logins that the policy ends with replaced, on any device
	// Away are logins without a session that KickOld ends with replaced: they
	// claimed under it before, and their tokens may live. Stores forget them with
	// everything else.
	Away []im.LoginID
	// Standing is Superseded or Replaced if the claim named its epoch and a newer
	// one has displaced it already; then nothing was changed. Else Kept.
	Standing Standing
	// Holders are the routes for whose sake RejectNew refused the claim. Only
	// with login_refused.
	Holders []Route
}

// MaxClaims is the most claims of one ClaimMany.
const MaxClaims = 100

// Claiming is one claim of many.
type Claiming struct {
	Route  Route
	Policy Policy
}

// Claimed is the answer to it: what Claim returns.
type Claimed struct {
	Claim Claim
	Err   error
}

// Standing is what a store says of a route.
type Standing int

const (
	// Kept: it is there.
	Kept Standing = iota
	// Restored: it was not there, and nothing says that it was displaced, so the
	// store has lost it; it is there again.
	Restored
	// Superseded: a newer session of the same login and device took its place.
	Superseded
	// Replaced: the policy of a newer login ended its login.
	Replaced
)

// String is how logs and metrics name it.
func (s Standing) String() string {
	return [...]string{"kept", "restored", "superseded", "replaced"}[s]
}

// RouteStore says which sessions a user has, and where. It holds nothing that
// the live connections could not bring back. Safe for concurrent use;
// linearizable per user, except for Recent.
type RouteStore interface {
	// Claim registers r under the policy and returns what it displaced; the
	// displaced routes are gone from the store. It is done when it returns: a
	// lookup that begins later finds r.
	//
	// With r.Epoch 0 the claim is the newest of the user and gets an epoch above
	// all others. Route epochs rise per user for good, also when all routes of
	// the user have gone in between, the store has forgotten everything or a
	// clock goes back: they are above the highest that this process has seen. A
	// claim that names its epoch keeps that rank: it is for a session that began
	// while the store was away, and it displaces nobody who came after it.
	// Among logins the oldest is the one whose oldest live route has the lowest
	// epoch.
	//
	// Errors: login_refused under RejectNew (nothing changed; Claim.Holders says
	// who is in the way), busy if the store is full, unavailable, or the context's, after either of which
	// nobody knows whether r is there: Release it or claim again.
	Claim(ctx context.Context, r Route, p Policy) (Claim, error)
	// ClaimMany makes up to MaxClaims claims at the cost of few. Each is granted or
	// refused alone, with Claim's errors; those of one user come true one after the
	// other, in any order. It answers for each in order. Errors: bad_request if they
	// are too many, else Claim's, which then hold for all.
	ClaimMany(ctx context.Context, list []Claiming) ([]Claimed, error)
	// Refresh keeps routes alive and puts those back that the store has lost,
	// without a policy. It answers for each in order. Errors: unavailable, the
	// context's; some may have been refreshed.
	Refresh(ctx context.Context, routes []Route) ([]Standing, error)
	// Release removes exactly this session's route; false if it was not there.
	Release(ctx context.Context, user im.UserID, session im.SessionID, epoch uint64) (bool, error)
	// Lookup returns the routes of the users, in no order. Unknown users have none.
	Lookup(ctx context.Context, users []im.UserID) ([]Route, error)
	// Recent is Lookup for those who find out if a route is not right: what it says
	// of a user who has routes may be up to 5 seconds old. That a user has none is
	// never remembered: it is what the store, or a copy that follows it, says now.
	Recent(ctx context.Context, users []im.UserID) ([]Route, error)
	// Memory names what the store remembers. Another name than before means that
	// it may have lost routes: refresh them all. Errors: unavailable, the context's.
	Memory(ctx context.Context) (string, error)
	Sweeper
	// Close frees everything.
	Close() error
}

// Sweeper removes what processes left behind that ended without a word.
type Sweeper interface {
	// Homes lists the processes that have or lately had routes; it may be a moment
	// behind.
	Homes(ctx context.Context) ([]Home, error)
	// Sweep removes all routes of a process that is gone for good, and forgets
	// it. It returns how many routes it found. Repeating it is harmless; a
	// process that lives after all puts its routes back with its next refresh.
	Sweep(ctx context.Context, h Home) (int, error)
}

package store

import (
	"context"
	"time"

	"github.com/imdhq/imd/pkg/im"
)

// Route says where a session is.
type Route struct {
	User    im.UserID
	Session im.SessionID
	Login   im.LoginID
	Device  im.DeviceID
	Class   im.Class
	Node    im.NodeID
	Epoch   uint64 // route epoch: rank of the claim among all of the user; set by the store
	Since   time.Time
}

// Policy is what a new login means for the logins a user has. It acts on
// logins, not on sockets.
type Policy struct {
	Mode      PolicyMode
	Multi     int  // logins of one class under Multi, the newcomer included; the oldest beyond it ends with replaced; below 1 = no bound
	SameClass bool // KickOld and RejectNew count logins of the same class only
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
}

// RouteStore says which sessions a user has, and where. It holds nothing that
// the live connections could not bring back. Safe for concurrent use;
// linearizable per user.
type RouteStore interface {
	// Claim registers r under the policy and returns what it displaced; the
	// displaced routes are gone from the store. It is done when it returns: a
	// lookup that begins later finds r. Route epochs rise per user for good,
	// also when all routes of the user have gone in between or the clock goes
	// back. Among the logins of a class the oldest is the one whose oldest live
	// route has the lowest epoch. Errors: login_refused under RejectNew
	// (nothing changed), unavailable.
	Claim(ctx context.Context, r Route, p Policy) (Claim, error)
	// Release removes exactly this session's route; false if it was not there.
	Release(ctx context.Context, user im.UserID, session im.SessionID, epoch uint64) (bool, error)
	// Lookup returns the routes of the users, in no order. Unknown users have none.
	Lookup(ctx context.Context, users []im.UserID) ([]Route, error)
	// Close frees everything.
	Close() error
}

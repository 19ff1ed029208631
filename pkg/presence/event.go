package presence

import (
	"time"

	"github.com/imdhq/imd/pkg/im"
	"github.com/imdhq/imd/pkg/store"
)

// Session is one session as its gateway reports it.
type Session struct {
	User  im.UserID
	ID    im.SessionID
	Place uint64 // stands for login and device: see PlaceOf
	Class im.Class
	Epoch uint64 // route epoch; 0 = it has no route yet, and neither supersedes nor is superseded
}

// State is what others see of a user.
type State struct {
	User     im.UserID
	Online   Mask      // with which classes; empty = offline
	LastSeen time.Time // offline: when the last session ended; zero = not known, or online
}

// Seen is when a user was last seen.
type Seen struct {
	User im.UserID
	At   time.Time // zero = never, as far as is known
}

// Event is what a Core steps on.
type Event interface{ event() }

// Gateways is who the registry lists, all of them. A gateway that is not in the
// list any more has gone, with its sessions.
type Gateways struct{ List []Gateway }

// Gateway is one process with the gateway role.
type Gateway struct {
	Home    store.Home
	Serving bool // it may have sessions, and its report is waited for
}

// Report is what one gateway told, in the order in which it happened there.
type Report struct {
	Home store.Home
	// First begins a snapshot: Began and Watch are all there is, over this report
	// and those that follow, up to the one with Last. What a report without First
	// says comes on top of the former ones.
	First, Last bool
	Changes     []Change
}

// ChangeKind is what happened at a gateway.
type ChangeKind uint8

// The kinds of changes.
const (
	Began   ChangeKind = iota // a session began, or got its route
	Ended                     // a session ended
	Watch                     // somebody there wants to hear of the user
	Unwatch                   // nobody there does any more
)

// Change is one thing that happened at a gateway. Hearing of it twice is
// harmless.
type Change struct {
	Kind    ChangeKind
	Session Session   // Ended: User, ID and Epoch; Watch and Unwatch: User
	At      time.Time // Ended: when
	Returns bool      // Ended: the client was told to come back
}

// Loaded answers Effects.Load.
type Loaded struct{ Users []Seen }

// Told says of which users those outside believe that they are online, in several
// parts; the last one begins Effects.Turned, and the first one stops it.
type Told struct {
	First, Last bool
	Users       []im.UserID
}

// Tick lets time pass. It comes every 100 ms.
type Tick struct{}

func (Gateways) event() {}
func (Report) event()   {}
func (Loaded) event()   {}
func (Told) event()     {}
func (Tick) event()     {}

// Effects are what has to be done after a step.
type Effects struct {
	Tell []Tell
	Load []im.UserID // find out when these were last seen, and answer with Loaded
	Save []Seen      // keep these; a later one of a user is the newer one
	// Turned are users that came or went, for those outside: what differs from what
	// they believe. Empty before Told said what that is.
	Turned []Turn
}

// Turn is a user that came or went.
type Turn struct {
	User   im.UserID
	Online bool
	At     time.Time // when it was shown, or when its last session ended
}

// Tell is what one gateway has to hear.
type Tell struct {
	Home   store.Home
	States []State
	// Superseded are sessions of that gateway that newer ones of the same login
	// and device have displaced.
	Superseded []im.SessionID
}

package balance

import "sync/atomic"

// Class is how much a call matters when not all can be served.
type Class int

// The classes, what is refused first first.
const (
	Presence Class = iota
	History
	Sync
	Fanout
	Append
	Vital // ping, ack and resume: what keeps clients from coming anew
)

var classNames = [...]string{"presence", "history", "sync", "fanout", "append", "vital"}

// String is the name of the class.
func (c Class) String() string { return classNames[min(max(c, Presence), Vital)] }

// percent of the limit up to which a class is served.
var percent = [...]int64{75, 80, 85, 90, 100, 110}

// Gate counts calls in flight and refuses a class whose ceiling is reached:
// presence at 75 % of the limit, appends at the limit, and what is vital a tenth
// above it. Safe for concurrent use.
type Gate struct {
	limit    int64
	inFlight atomic.Int64
}

// NewGate makes a gate for limit calls at once, at least 1.
func NewGate(limit int) *Gate { return &Gate{limit: int64(max(limit, 1))} }

// Ceiling is how many calls may be in flight for one of the class to enter.
func (g *Gate) Ceiling(c Class) int {
	return int(max(g.limit*percent[min(max(c, Presence), Vital)]/100, 1))
}

// Enter lets a call in, which must Leave; false = refuse it.
func (g *Gate) Enter(c Class) bool {
	if g.inFlight.Add(1) > int64(g.Ceiling(c)) {
		g.inFlight.Add(-1)
		return false
	}
	return true
}

// Leave ends a call that entered.
func (g *Gate) Leave() { g.inFlight.Add(-1) }

// InFlight is how many calls are inside.
func (g *Gate) InFlight() int { return int(g.inFlight.Load()) }

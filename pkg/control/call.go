package control

import "time"

// Class says what a failed call to the control plane means for the caller.
type Class string

// The classes. A call that only reads may be repeated after any of the first
// two.
const (
	// ClassOK: the call succeeded.
	ClassOK Class = "ok"
	// ClassRetry: nothing was changed; the same call may be made again, after a
	// pause.
	ClassRetry Class = "retry"
	// ClassUnknown: the change may have been made or not. Read before it is made
	// again.
	ClassUnknown Class = "unknown"
	// ClassFinal: nothing was changed, and the same call will fail again.
	ClassFinal Class = "final"
)

// CallBounds are the upper bounds of the latency classes of CallStats; a last
// class has no bound.
var CallBounds = [...]time.Duration{
	time.Millisecond, 2 * time.Millisecond, 5 * time.Millisecond, 10 * time.Millisecond, 25 * time.Millisecond, 50 * time.Millisecond,
	100 * time.Millisecond, 250 * time.Millisecond, 500 * time.Millisecond, time.Second, 2 * time.Second,
}

// CallStats is one method of the control plane's server with one outcome.
type CallStats struct {
	Method  string // as the server names it, such as KV/Txn
	Class   Class
	Count   uint64
	Total   time.Duration           // of all calls together
	Buckets [len(CallBounds)]uint64 // calls that took at most CallBounds[i]
}

// EndpointStats is one address of the control plane's server as it answered
// last.
type EndpointStats struct {
	URL       string
	Good      bool   // calls prefer it
	Reason    string // why not, one clause; "" if good
	Version   string
	Leader    bool  // this member leads
	Revision  int64 // newest that it has
	DBBytes   int64 // size of its database file
	DBInUse   int64 // of that, not free for new data
	DBQuota   int64 // writes stop at this size; 0 = not told
	Alarms    int
	RaftIndex uint64 // applied entries of the consensus log
}

package history

// Kind is what a record tells.
type Kind string

// The kinds of records.
const (
	Invoke     Kind = "invoke"     // ops: a send left, or left again
	Return     Kind = "return"     // ops: its answer came; Ack says which
	Show       Kind = "show"       // view: the device showed an entry
	Open       Kind = "open"       // view: the device begins a conversation at have = Seq
	Have       Kind = "have"       // view: behind a Connect, the device takes the conversation up again at have = Seq
	Connect    Kind = "connect"    // view: a session stands; Name is the data_epoch it was welcomed with, if known
	Disconnect Kind = "disconnect" // view: it ended
	Resync     Kind = "resync"     // view: the device dropped what it had of Conv ("" = all) for a new data_epoch; Name is that epoch, if known
	Settled    Kind = "settled"    // view: the device is online, has synced and waits for nothing
	Digest     Kind = "digest"     // view: a sync came with a digest of heads; Ack ok = it is that of what syncs have told the device, fail = it is not
	Fault      Kind = "fault"      // faults: Name began or, with Stop, ended; Entry aside = clients must not feel it
	Row        Kind = "row"        // db: an entry
	Span       Kind = "span"       // members: User may see (Seq, To] of Conv; To 0 = to the end

	Claim   Kind = "claim"   // leader: User claimed the fence Name; with Ack ok it was given the token N
	Effect  Kind = "effect"  // leader: User had an effect under the fence Name with the token N; Ack ok = it took place, fail = refused
	Began   Kind = "began"   // node: the process Entry of the node User began to tell what it sees
	Led     Kind = "led"     // node: User believes that it leads Name with the token N; Stop = not any more
	Seen    Kind = "seen"    // node: User sees the process Entry of the node Device as usable; Stop = not any more
	Applied Kind = "applied" // node: User has the settings of the put N in force, by one setting, and of the put To, by another
	Made    Kind = "made"    // ids: User made the id MID
	Node    Kind = "node"    // control: what became of the process Entry of the node User; Reason says it
	Etcd    Kind = "etcd"    // control: how etcd is from now on; Reason says it
	Ring    Kind = "ring"    // control: User has a ring of state nodes with the version N in use
	Put     Kind = "put"     // control: the settings N were written, between T and To; Ack ok, fail or unknown; Reason bad = they must be refused
)

// The kinds of records about who is where.
const (
	// Login is in sessions: the session Entry of the login Name said hello at To, and at T
	// it was let in (Ack ok), refused (fail), or nobody knows (unknown).
	Login Kind = "login"
	// Logout is in sessions: the session Entry ended, for Reason; Stop = its device wanted it.
	Logout Kind = "logout"
	// Route is in routes: a call to a route store about User, from T to To (0 = nobody knows),
	// under the policy that a new login ends all others. Name says what was asked. Entry, Sender and Device are the session, the login and the
	// device that it was about, N the route epoch that it named, Prev the highest one that the
	// caller had seen. Ack ok = answered: with the route epoch Seq, the standing Reason, Dup =
	// it was there, and in Hash sessions, sorted: those found, or those superseded, a bar, and those
	// replaced. A Forget is about all users.
	Route Kind = "route"
	// Sight is in presence: Device sees User online or, with Stop, offline; Ack unknown = it cannot
	// tell.
	Sight Kind = "sight"
)

// The kinds of records about what leaders do for others, all of them in effects.log. What was asked for has
// the time T before the question left, and To after the answer came; 0 = none came.
const (
	// Told: the receiver Name was told Reason (the type of an event, or TypePush, or TypeWithdraw), with the
	// key Entry, of the entry Seq of Conv, whose id is MID and whose content is Hash. N is the number of an
	// event, User who is to be notified. Ack ok = it took it; fail = it said that it did not; unknown = it did
	// not say. Dup = it was told that this may be a repeat.
	Told Kind = "told"
	// Receiver: Name is to be told of every event.
	Receiver Kind = "receiver"
	// Sleeper: User has no device but to read with, and is notified of what others write in Conv.
	Sleeper Kind = "sleeper"
	// ReadUp: User has read Conv up to Seq; Ack ok or unknown.
	ReadUp Kind = "read"
	// Schedule: User asked for a message with the content Hash in Conv at the time N; Ack ok = the answer named
	// it Name, and CMID as its client message id.
	Schedule Kind = "schedule"
	// Cancel: the scheduled message Name was to be cancelled; Ack ok = it is, fail = it was too late.
	Cancel Kind = "cancel"
	// Announce: the announcement N with the text Hash was made, in force until the time Seq.
	Announce Kind = "announce"
	// Withdraw: the announcement N was taken back.
	Withdraw Kind = "withdraw"
	// Notice: Device of User showed the announcement N with the text Hash, in the data_epoch Name.
	Notice Kind = "notice"
	// Listener: Device of User wants announcements, and was online when it was asked in the end.
	Listener Kind = "listener"
)

// What a receiver is told of a user.
const (
	TypePush     = "push"     // there is something to read
	TypeWithdraw = "withdraw" // it was read elsewhere
)

// The names of Route records.
const (
	RouteClaim   = "claim"
	RouteRefresh = "refresh"
	RouteRelease = "release"
	RouteLookup  = "lookup"
	RouteForget  = "forget" // the store lost everything; Reason slow = and its clock has gone back
)

// ClockSlow is the reason of a RouteForget after which the clock is behind.
const ClockSlow = "slow"

// The reasons of a Logout that say more than that the session is over.
const (
	Replaced   = "replaced"   // another login came
	Superseded = "superseded" // a newer session of the same login and device came
	Killed     = "killed"     // the process that held it was killed
)

// The reasons of a Node record.
const (
	Up       = "up"       // it is ready
	Down     = "down"     // it has ended without a word
	Stopping = "stopping" // it was asked to stop
	Paused   = "paused"   // it stands still
	Resumed  = "resumed"  // it goes on
)

// The reasons of an Etcd record.
const (
	EtcdGood    = "good"
	EtcdLimping = "limping" // a minority of the members ails, or another one is about to lead
	EtcdAway    = "away"    // no majority
	// EtcdRestored is good, but it has gone back to an older state.
	EtcdRestored = "restored"
)

// Gone is the name of a row whose content is not kept any more, because of its
// age; it has no hash.
const Gone = "gone"

// Aside is the entry of a fault that is no excuse for what clients meet.
const Aside = "aside"

// Bad is the reason of a Put that every node must refuse.
const Bad = "bad"

// The answers to a send.
const (
	AckOK      = "ok"
	AckRetry   = "retry"
	AckFail    = "fail"
	AckUnknown = "unknown" // no answer came on that connection
)

// Record is one line. Which fields count depends on the kind.
type Record struct {
	T      int64  `json:"t,omitempty"` // nanoseconds
	Kind   Kind   `json:"k"`
	User   string `json:"u,omitempty"`
	Device string `json:"d,omitempty"`
	Conv   string `json:"c,omitempty"`
	CMID   string `json:"cmid,omitempty"`
	N      int64  `json:"n,omitempty"` // of a send: its number among the device's sends in the conversation, from 1
	Hash   string `json:"h,omitempty"` // of the content
	Ack    string `json:"ack,omitempty"`
	Reason string `json:"why,omitempty"`
	MID    int64  `json:"mid,omitempty,string"`
	Seq    int64  `json:"seq,omitempty"`
	Prev   int64  `json:"prev,omitempty"`
	To     int64  `json:"to,omitempty"`
	Dup    bool   `json:"dup,omitempty"`
	Sender string `json:"from,omitempty"`
	Entry  string `json:"entry,omitempty"` // of a row: message, or another kind
	Name   string `json:"name,omitempty"`
	Stop   bool   `json:"stop,omitempty"`
}

// Run describes a recorded run.
type Run struct {
	Seed      uint64         `json:"seed"`
	Server    string         `json:"server"`
	Allocator string         `json:"allocator"` // transaction: dense seqs; segment: rising
	Began     string         `json:"began"`     // wall clock, RFC 3339
	Healed    int64          `json:"healed"`    // when the last fault was over, nanoseconds; 0 = no faults
	Ended     int64          `json:"ended"`
	Options   map[string]any `json:"options,omitempty"`
}

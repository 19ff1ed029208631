package protocol

import "time"

// Version is the highest protocol level this package knows; MinVersion the
// lowest.
const (
	Version    = 1
	MinVersion = 1
)

// Path is where a server takes WebSocket connections.
const Path = "/v1/ws"

// Sizes of envelopes, in bytes.
const (
	// MaxBinaryEnvelope is the largest binary envelope a server takes.
	MaxBinaryEnvelope = 65536
	// MaxTextEnvelope is the largest text envelope a server takes.
	MaxTextEnvelope = 131072
	// MaxClientFrames is how many frames an envelope to the server may have.
	MaxClientFrames = 64
	// ServerEnvelope is where a server cuts its envelopes. Only a single
	// frame may be larger, and only because a single entry is.
	ServerEnvelope = 65536
	// ServerEnvelopeLoaded is where a server cuts them while more than half
	// of the connection's queue is used.
	ServerEnvelopeLoaded = 8192
	// ClientReadLimit is the envelope size a client must accept.
	ClientReadLimit = 262144
)

// Sizes of content and names.
const (
	// MaxContent is the sum of type, text or data, attribute keys and values,
	// in bytes after decoding.
	MaxContent = 16384
	// MaxContentType is the length of a content's type in bytes.
	MaxContentType = 64
	// MaxAttributes is how many attributes a content may have.
	MaxAttributes = 16
	// MaxID is the length of a user, device, group or login id in bytes.
	MaxID = 64
	// MaxClientName is the length of hello's client in bytes.
	MaxClientName = 64
	// MaxGroupName is the length of a group's name in bytes; at least 1.
	MaxGroupName = 128
	// MaxGroupMembers is how many members a group may have.
	MaxGroupMembers = 100000
	// MaxAddMembers is how many users one call may add.
	MaxAddMembers = 500
	// MaxNesting is how deep JSON objects and arrays may nest.
	MaxNesting = 64
	// MaxBareInteger is the largest magnitude of a bare JSON number.
	MaxBareInteger = 1<<53 - 1
)

// Counts of a connection.
const (
	// ClientSendWindow is how many unanswered sends a client keeps to.
	ClientSendWindow = 32
	// ServerSendWindow is where the server stops reading.
	ServerSendWindow = 64
	// ServerRequestWindow is the same for other requests.
	ServerRequestWindow = 16
	// MaxQueueBytes and MaxQueueFrames bound what waits for a connection.
	MaxQueueBytes  = 1 << 20
	MaxQueueFrames = 1024
	// DeliveryWindow and DeliveryWindowBytes bound entries without an ack.
	DeliveryWindow      = 256
	DeliveryWindowBytes = 1 << 20
	// MaxAside is how many entries a client puts aside in one conversation.
	MaxAside = 256
	// MaxWatchedUsers is how many users one session may watch by their names,
	// MaxWatchedConversations in how many conversations, of how many members each,
	// and MaxWatchedInAll is the sum.
	MaxWatchedUsers         = 200
	MaxWatchedConversations = 8
	MaxWatchedMembers       = 200
	MaxWatchedInAll         = 1000
)

// Counts of reading requests. A server lowers what is above the most.
const (
	// HistoryLimit is used where a request names none.
	HistoryLimit = 100
	// MaxHistoryLimit is the most entries of a page.
	MaxHistoryLimit = 500
	// MaxSyncStates is the most conversations of a sync page.
	MaxSyncStates = 200
	// MaxSyncCursors is the most cursors of a sync.
	MaxSyncCursors = 256
	// MaxSyncPage is the most entries sync adds to one conversation.
	MaxSyncPage = 100
	// MaxUnread is where counting unread entries ends; shown as 999+.
	MaxUnread = 1000
)

// Times.
const (
	// HelloTimeout is how long a server waits for hello after the upgrade.
	HelloTimeout = 5 * time.Second
	// PingInterval and PongTimeout are the defaults of the heartbeat.
	PingInterval = 25 * time.Second
	PongTimeout  = 10 * time.Second
	// SendTimeout bounds a server's answer to a send.
	SendTimeout = 2 * time.Second
	// RequestTimeout bounds its answer to another request.
	RequestTimeout = 5 * time.Second
	// WriteTimeout bounds one write to a connection.
	WriteTimeout = 10 * time.Second
	// ClientTimeout is when a client gives a connection up: without welcome,
	// or with a request unanswered.
	ClientTimeout = 10 * time.Second
	// LateHello is for how long after a client has given up an attempt whose hello
	// got no answer it allows for that the server takes that hello.
	LateHello = 2 * time.Minute
	// HoldTimeout is how long a refused send holds its run back.
	HoldTimeout = 30 * time.Second
	// GapTimeout is how long a client leaves a gap open before it asks.
	GapTimeout = 200 * time.Millisecond
	// PullSpread is the time, for each member of a group of more than LargeGroup,
	// over which its clients spread what they read because of one hint, and
	// MaxPullSpread the most of it.
	PullSpread    = 100 * time.Microsecond
	MaxPullSpread = time.Second
	// AckDelay is how long a client collects acks; AckDelayLarge in groups
	// of more than LargeGroup members.
	AckDelay      = 250 * time.Millisecond
	AckDelayLarge = 2 * time.Second
	// TypingTTL is how long a typing frame holds.
	TypingTTL = 6 * time.Second
)

// More counts of acks and receipts.
const (
	// AckEntries is how many entries a client collects at most before it acks.
	AckEntries = 32
	// LargeGroup is the member count above which receipts are not shown.
	LargeGroup = 100
)

// Rates, per second, and their bursts.
const (
	ConnectionFrameRate   = 200
	ConnectionFrameBurst  = 1000
	UserSendRate          = 50
	UserSendBurst         = 600
	ConversationSendRate  = 1000
	ConversationSendBurst = 2000
	AddressUpgradeRate    = 200
	AddressUpgradeBurst   = 2000
)

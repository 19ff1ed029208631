package imd

import (
	"context"
	"errors"
	"net/http"

	"github.com/imdhq/imd/sdk/go/gen/clientv1"
	"github.com/imdhq/imd/sdk/go/protocol"
)

// Options says how a Client connects. Token or TokenFunc is needed; everything
// else may be left out.
type Options struct {
	// Token is a fixed token. When it expires, the client ends.
	Token string
	// TokenFunc fetches a token. It is called before the first connection,
	// again when most of a token's life is over, and after the server called one
	// expired; never twice at once. Its context ends after 10 s. An error is
	// tried again with the pauses of a lost connection, unless it wraps
	// ErrUnauthorized, which ends the client.
	TokenFunc func(ctx context.Context) (string, error)
	// Device is the device id, for tokens that name none. It must stay the
	// same as long as the program is installed, and differ between two that run
	// at once. Empty = a random one for this client's life.
	Device string
	// Class is phone, tablet, web, desktop or bot, for tokens that name none.
	// Empty = desktop.
	Class string
	// Name is the program and its version, at most 64 bytes, for the server's
	// log. Empty = this package's.
	Name string
	// Encoding of the frames; Proto by default.
	Encoding protocol.Encoding
	// OnState, if not nil, is called for each change of the connection's
	// state, in order, one at a time, from a goroutine of its own. If it is
	// slow, old changes are left out.
	OnState func(StateChange)
	// OnAnnouncement, if not nil, is called for each announcement of the operator,
	// in order, one at a time, from a goroutine of its own: each once in the life
	// of the client, and not those up to AnnouncedBefore.
	OnAnnouncement func(Announcement)
	// AnnouncedBefore is the Cursor of the last announcement that an earlier client
	// of this device was told, so that it is not told again; zero = none was.
	AnnouncedBefore AnnouncementCursor
	// HTTPClient makes the upgrade and the calls of API; nil =
	// http.DefaultClient. Its Timeout must be 0.
	HTTPClient *http.Client
	// Header is added to the upgrade and to the calls of API.
	Header http.Header
	// SendOnly is for programs that only send, call API or read History: the
	// client does not sync, ignores what is delivered and acknowledges nothing,
	// so that nobody sees "delivered" for what no person was shown. Events,
	// Conversations and Items stay empty.
	SendOnly bool
	// PageEntries is how many entries of each conversation a sync asks for,
	// 1 to 100. 0 = 20.
	PageEntries int
	// KeepItems is how many shown items and how many recent entries of each
	// conversation stay in memory. 0 = 256.
	KeepItems int
	// OutboxLimit is how many messages may wait in the outbox. 0 = 10,000.
	OutboxLimit int

	// dial replaces the WebSocket in tests.
	dial func(ctx context.Context) (transport, error)
}

// transport is what a session needs of a connection.
type transport interface {
	Read(ctx context.Context) ([]*clientv1.ServerFrame, error)
	Write(ctx context.Context, frames ...*clientv1.ClientFrame) error
	Close(code int, reason string) error
	CloseNow() error
}

// clientName is what hello says unless the application says something else.
const clientName = "imd-go/1"

func (o Options) withDefaults() (Options, error) {
	if o.Token == "" && o.TokenFunc == nil {
		return o, errors.New("imd: options: Token or TokenFunc is needed")
	}
	if o.Device == "" {
		o.Device = "go-" + NewID()
	}
	if !protocol.ValidID(o.Device) {
		return o, errors.New("imd: options: Device is not a valid id")
	}
	if o.Class == "" {
		o.Class = "desktop"
	}
	if o.Name == "" {
		o.Name = clientName
	}
	if len(o.Name) > protocol.MaxClientName {
		return o, errors.New("imd: options: Name is longer than 64 bytes")
	}
	if o.PageEntries <= 0 {
		o.PageEntries = 20
	}
	o.PageEntries = min(o.PageEntries, protocol.MaxSyncPage)
	if o.KeepItems <= 0 {
		o.KeepItems = 256
	}
	if o.OutboxLimit <= 0 {
		o.OutboxLimit = 10000
	}
	return o, nil
}

package obs

import (
	"time"

	"go.uber.org/zap"

	"github.com/imdhq/imd/pkg/im"
)

// The field names of all logs. Message bodies and tokens never appear.

// Node is the field of a node id.
func Node(id im.NodeID) zap.Field { return zap.String("node", string(id)) }

// User is the field of a user id.
func User(id im.UserID) zap.Field { return zap.String("user", string(id)) }

// Login is the field of a login id.
func Login(id im.LoginID) zap.Field { return zap.String("login", string(id)) }

// Session is the field of a session id.
func Session(id im.SessionID) zap.Field { return zap.String("session", string(id)) }

// Conv is the field of a conversation id.
func Conv(id im.ConversationID) zap.Field { return zap.String("conv", string(id)) }

// Seq is the field of a position in a log.
func Seq(s im.Seq) zap.Field { return zap.Int64("seq", int64(s)) }

// Peer is the field of another node or an outside service.
func Peer(name string) zap.Field { return zap.String("peer", name) }

// Attempt is the field of the number of a try, from 1.
func Attempt(n int) zap.Field { return zap.Int("attempt", n) }

// Code is the field of a reason or close code.
func Code(r im.Reason) zap.Field { return zap.String("code", im.ReasonName(r)) }

// Op is the field of an operation, "package.Operation".
func Op(op string) zap.Field { return zap.String("op", op) }

// Took is the field of a duration, in milliseconds.
func Took(d time.Duration) zap.Field { return zap.Float64("took_ms", float64(d)/1e6) }

// Err is the field of a failure.
func Err(err error) zap.Field { return zap.Error(err) }

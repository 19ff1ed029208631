package protocol

import (
	"slices"
	"strings"
	"sync"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/descriptorpb"

	"github.com/imdhq/imd/sdk/go/gen/clientv1"
)

// Standard WebSocket close codes that the protocol uses.
const (
	CloseNormal        = 1000
	CloseGoingAway     = 1001
	CloseProtocolError = 1002
	CloseWrongType     = 1003 // binary where text is agreed, or the reverse
	CloseBadText       = 1007 // a text message that is not UTF-8
	ClosePolicy        = 1008
	CloseTooBig        = 1009 // an envelope above the limit
	CloseExtension     = 1010
)

// ReasonInfo is one row of the table of reasons.
type ReasonInfo struct {
	Reason     string // as on the wire: "not_member"
	Enum       clientv1.Reason
	Code       string        // Connect code word of an error; empty = it only closes
	CloseCode  int           // close code of a connection; 0 = it never closes
	Retryable  bool          // the same request may be sent again, or reconnect
	RetryAfter time.Duration // usual pause before that; 0 = none, or told each time
	Meaning    string        // one sentence for people
}

// reasonTable reads the table from the option on each value of the enum.
var reasonTable = sync.OnceValue(func() []ReasonInfo {
	values := clientv1.Reason(0).Descriptor().Values()
	var table []ReasonInfo
	for i := range values.Len() {
		v := values.Get(i)
		opts, ok := v.Options().(*descriptorpb.EnumValueOptions)
		if !ok || !proto.HasExtension(opts, clientv1.E_ReasonInfo) {
			continue
		}
		info := proto.GetExtension(opts, clientv1.E_ReasonInfo).(*clientv1.ReasonInfo)
		table = append(table, ReasonInfo{
			Reason:     strings.ToLower(strings.TrimPrefix(string(v.Name()), "REASON_")),
			Enum:       clientv1.Reason(v.Number()),
			Code:       info.Code,
			CloseCode:  int(info.CloseCode),
			Retryable:  info.Retryable,
			RetryAfter: time.Duration(info.RetryAfterMs) * time.Millisecond,
			Meaning:    info.Meaning,
		})
	}
	return table
})

var reasonIndex = sync.OnceValue(func() map[string]ReasonInfo {
	index := make(map[string]ReasonInfo)
	for _, info := range reasonTable() {
		index[info.Reason] = info
	}
	return index
})

// Reasons returns the whole table in the order of the enum. The caller owns
// the copy.
func Reasons() []ReasonInfo { return slices.Clone(reasonTable()) }

// Lookup returns the row of a reason; ok is false for an unknown one.
func Lookup(reason string) (info ReasonInfo, ok bool) {
	info, ok = reasonIndex()[reason]
	return info, ok
}

// CloseCode returns the close code of a reason, 0 if it is unknown or never
// closes.
func CloseCode(reason string) int { return reasonIndex()[reason].CloseCode }

// ReasonOf returns the reason of one of the protocol's own close codes, empty
// for all others.
func ReasonOf(closeCode int) string {
	if closeCode == 0 {
		return ""
	}
	for _, info := range reasonTable() {
		if info.CloseCode == closeCode {
			return info.Reason
		}
	}
	return ""
}

// Reconnect reports whether a client connects again after a close code. Only
// the range counts for the protocol's own codes, so that one which is not known
// yet is judged too. Any number is allowed; 0 stands for no code at all.
func Reconnect(code int) bool {
	switch code {
	case CloseProtocolError, CloseWrongType, CloseBadText, ClosePolicy, CloseTooBig, CloseExtension:
		return false
	}
	return code < 4500 || code > 4999
}

// NewError returns the error frame's content for a reason, filled from the
// table. An empty msg becomes the reason's meaning; a retryAfter of 0 becomes
// its usual pause. An unknown reason becomes an internal error that is not
// retryable and keeps its name.
func NewError(reason, msg string, retryAfter time.Duration) *clientv1.Error {
	info, ok := Lookup(reason)
	if !ok {
		return &clientv1.Error{Code: "internal", Reason: reason, Message: msg}
	}
	if msg == "" {
		msg = info.Meaning
	}
	if retryAfter == 0 {
		retryAfter = info.RetryAfter
	}
	code := info.Code
	if code == "" {
		code = "unavailable"
		if !info.Retryable {
			code = "aborted"
		}
	}
	e := &clientv1.Error{Code: code, Reason: reason, Retryable: info.Retryable, Message: msg}
	if info.Retryable {
		e.RetryAfterMs = millis(retryAfter)
	}
	return e
}

// NewBye returns the last frame's content for a reason, filled from the table.
// msg and retryAfter may be empty and 0. A reason without a close code becomes
// internal.
func NewBye(reason, msg string, retryAfter time.Duration) *clientv1.Bye {
	info, ok := Lookup(reason)
	if !ok || info.CloseCode == 0 {
		info, _ = Lookup("internal")
	}
	if retryAfter == 0 {
		retryAfter = info.RetryAfter
	}
	b := &clientv1.Bye{
		CloseCode: uint32(info.CloseCode),
		Reason:    info.Reason,
		Reconnect: Reconnect(info.CloseCode),
		Message:   msg,
	}
	if b.Reconnect {
		b.RetryAfterMs = millis(retryAfter)
	}
	return b
}

// millis rounds up, so that a short pause does not become none.
func millis(d time.Duration) uint32 {
	if d <= 0 {
		return 0
	}
	return uint32(min((d+time.Millisecond-1)/time.Millisecond, 1<<31))
}

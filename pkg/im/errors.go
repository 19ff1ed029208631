package im

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"connectrpc.com/connect/v2"
	"connectrpc.com/connect/v2/connectproto"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/descriptorpb"

	"github.com/imdhq/imd/sdk/go/gen/clientv1"
)

// Reason is why something was refused; the closed table of imd.client.v1.
type Reason = clientv1.Reason

// Error is a failure with a stable reason. Msg may be shown to a client; Err
// is for the log only and never crosses a process.
type Error struct {
	Reason     Reason
	Op         string // "state.Submit": package and operation, no identifiers
	Msg        string
	RetryAfter time.Duration // 0 = as the table says
	Err        error
}

// Errorf makes an Error whose message may be shown to a client.
func Errorf(r Reason, op, format string, args ...any) *Error {
	return &Error{Reason: r, Op: op, Msg: fmt.Sprintf(format, args...)}
}

// Error is for logs: it includes the cause.
func (e *Error) Error() string {
	var b strings.Builder
	if e.Op != "" {
		b.WriteString(e.Op)
		b.WriteString(": ")
	}
	b.WriteString(ReasonName(e.Reason))
	if e.Msg != "" {
		b.WriteString(": ")
		b.WriteString(e.Msg)
	}
	if e.Err != nil {
		b.WriteString(": ")
		b.WriteString(e.Err.Error())
	}
	return b.String()
}

// Unwrap gives the cause.
func (e *Error) Unwrap() error { return e.Err }

// ReasonOf gives the reason of err: that of the first Error in its chain,
// unavailable for an ended context (the outcome is unknown), internal for
// everything else, and unspecified for nil.
func ReasonOf(err error) Reason {
	if err == nil {
		return clientv1.Reason_REASON_UNSPECIFIED
	}
	var e *Error
	if errors.As(err, &e) {
		return e.Reason
	}
	if errors.Is(err, context.DeadlineExceeded) || errors.Is(err, context.Canceled) {
		return clientv1.Reason_REASON_UNAVAILABLE
	}
	var ce *connect.Error
	if errors.As(err, &ce) {
		return FromConnect("", err).Reason
	}
	return clientv1.Reason_REASON_INTERNAL
}

// reasonNames has the wire form of each reason.
var reasonNames = func() map[Reason]string {
	m := make(map[Reason]string, len(clientv1.Reason_name))
	for n, name := range clientv1.Reason_name {
		m[Reason(n)] = strings.ToLower(strings.TrimPrefix(name, "REASON_"))
	}
	return m
}()

// ReasonName is the reason as it travels: "not_member". "" for an unknown one.
func ReasonName(r Reason) string { return reasonNames[r] }

// ReasonByName is the reverse of ReasonName; unspecified if there is none.
func ReasonByName(name string) Reason {
	return Reason(clientv1.Reason_value["REASON_"+strings.ToUpper(name)])
}

var reasonInfos = func() map[Reason]*clientv1.ReasonInfo {
	m := make(map[Reason]*clientv1.ReasonInfo)
	values := clientv1.Reason(0).Descriptor().Values()
	for i := range values.Len() {
		v := values.Get(i)
		info := &clientv1.ReasonInfo{}
		if o, ok := v.Options().(*descriptorpb.EnumValueOptions); ok && proto.HasExtension(o, clientv1.E_ReasonInfo) {
			info = proto.GetExtension(o, clientv1.E_ReasonInfo).(*clientv1.ReasonInfo)
		}
		m[Reason(v.Number())] = info
	}
	return m
}()

// Info is the row of r in the error table; never nil. Read only.
func Info(r Reason) *clientv1.ReasonInfo {
	if i := reasonInfos[r]; i != nil {
		return i
	}
	return reasonInfos[clientv1.Reason_REASON_UNSPECIFIED]
}

// Retryable reports whether the same request may be sent again.
func Retryable(err error) bool { return Info(ReasonOf(err)).Retryable }

// Wire turns err into the error of the client protocol. Texts of causes stay
// behind.
func Wire(err error) *clientv1.Error {
	if err == nil {
		return nil
	}
	r := ReasonOf(err)
	info := Info(r)
	w := &clientv1.Error{
		Code: info.Code, Reason: ReasonName(r), Retryable: info.Retryable,
		RetryAfterMs: info.RetryAfterMs, Message: info.Meaning,
	}
	var e *Error
	if errors.As(err, &e) {
		if e.Msg != "" {
			w.Message = e.Msg
		}
		if e.RetryAfter > 0 {
			w.RetryAfterMs = uint32(e.RetryAfter / time.Millisecond)
		}
	} else if ce := (*connect.Error)(nil); errors.As(err, &ce) {
		if d := FromConnect("", err); d.Msg != "" {
			w.Message = d.Msg
		}
	}
	return w
}

// FromWire is the reverse of Wire; nil for nil.
func FromWire(op string, w *clientv1.Error) error {
	if w == nil {
		return nil
	}
	r := ReasonByName(w.Reason)
	if r == clientv1.Reason_REASON_UNSPECIFIED {
		r = clientv1.Reason_REASON_INTERNAL
		if w.Retryable {
			r = clientv1.Reason_REASON_UNAVAILABLE
		}
	}
	return &Error{Reason: r, Op: op, Msg: w.Message, RetryAfter: time.Duration(w.RetryAfterMs) * time.Millisecond}
}

// codeByWord maps the code words of the table to Connect's codes.
var codeByWord = func() map[string]connect.Code {
	m := make(map[string]connect.Code)
	for c := connect.CodeCanceled; c <= connect.CodeUnauthenticated; c++ {
		m[c.String()] = c
	}
	return m
}()

// ToConnect turns err into the Connect error that carries an
// imd.client.v1.Error as detail. nil gives nil. A Connect error that came from
// another process is built anew, because Connect sends received errors on as
// internal, without text.
func ToConnect(err error) error {
	if err == nil {
		return nil
	}
	w := Wire(err)
	code, ok := codeByWord[w.Code]
	if !ok {
		code = connect.CodeUnknown
	}
	ce := connect.NewError(code, w.Message)
	if d, derr := connectproto.NewErrorDetail(w); derr == nil {
		ce = ce.WithDetail(d)
	}
	return ce.WithCause(err)
}

// FromConnect reads an error that a Connect client returned. Errors without our
// detail become unavailable if the call may not have arrived or timed out, and
// internal otherwise. nil gives nil.
func FromConnect(op string, err error) *Error {
	if err == nil {
		return nil
	}
	var e *Error
	if errors.As(err, &e) {
		return e
	}
	var ce *connect.Error
	if !errors.As(err, &ce) {
		return &Error{Reason: ReasonOf(err), Op: op, Err: err}
	}
	for _, d := range ce.Details() {
		if v, derr := connectproto.UnmarshalErrorDetail(d); derr == nil {
			if w, ok := v.(*clientv1.Error); ok {
				return FromWire(op, w).(*Error)
			}
		}
	}
	r := clientv1.Reason_REASON_INTERNAL
	switch ce.Code() {
	case connect.CodeUnavailable, connect.CodeDeadlineExceeded, connect.CodeCanceled, connect.CodeAborted, connect.CodeResourceExhausted:
		r = clientv1.Reason_REASON_UNAVAILABLE
	case connect.CodeInvalidArgument:
		r = clientv1.Reason_REASON_BAD_REQUEST
	case connect.CodeUnauthenticated:
		r = clientv1.Reason_REASON_BAD_TOKEN
	case connect.CodePermissionDenied:
		r = clientv1.Reason_REASON_FORBIDDEN
	case connect.CodeNotFound:
		r = clientv1.Reason_REASON_NOT_FOUND
	}
	return &Error{Reason: r, Op: op, Msg: ce.Message(), Err: err}
}

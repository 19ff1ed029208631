package imd

import (
	"errors"
	"fmt"
	"time"

	"github.com/imdhq/imd/sdk/go/gen/clientv1"
	"github.com/imdhq/imd/sdk/go/protocol"
)

// Errors of this package that have no reason of the protocol.
var (
	// ErrClosed is returned once Close was called.
	ErrClosed = errors.New("imd: the client is closed")
	// ErrOutboxFull is returned for a message that was not taken because too
	// many wait. It was not sent; send it again later.
	ErrOutboxFull = errors.New("imd: the outbox is full")
	// ErrWithdrawn is returned for a message that was withdrawn. It may have
	// been stored all the same.
	ErrWithdrawn = errors.New("imd: the message was withdrawn")
	// ErrUnauthorized, returned by a token source, ends the client for good
	// instead of being tried again.
	ErrUnauthorized = errors.New("imd: not authorized")
)

// Error is what the server answers, or why a connection ended. Compare Reason,
// which is stable; Message is for people.
type Error struct {
	Code       string        // Connect code word, such as "permission_denied"
	Reason     string        // such as protocol.ReasonNotMember; may be one that is not known
	Retryable  bool          // the same may be tried again
	RetryAfter time.Duration // not before this; 0 = not told
	Message    string
	CloseCode  int // of a connection that ended; 0 = it did not, or without a code
	HTTPStatus int // of a refused upgrade or HTTP call; 0 = neither
}

// Error returns the reason and the message.
func (e *Error) Error() string {
	name := e.Reason
	if name == "" {
		name = e.Code
	}
	switch {
	case name == "" && e.CloseCode != 0:
		name = fmt.Sprintf("closed with %d", e.CloseCode)
	case name == "" && e.HTTPStatus != 0:
		name = fmt.Sprintf("HTTP status %d", e.HTTPStatus)
	case name == "":
		name = "connection lost"
	}
	if e.Message == "" {
		return "imd: " + name
	}
	return "imd: " + name + ": " + e.Message
}

// ReasonOf returns the reason in an error's chain, or "".
func ReasonOf(err error) string {
	var e *Error
	if errors.As(err, &e) {
		return e.Reason
	}
	return ""
}

// fromWire turns an error of the protocol into an Error.
func fromWire(e *clientv1.Error) *Error {
	if e == nil {
		return &Error{Code: "unknown", Message: "no error was given"}
	}
	return &Error{
		Code:       e.Code,
		Reason:     e.Reason,
		Retryable:  e.Retryable,
		RetryAfter: time.Duration(e.RetryAfterMs) * time.Millisecond,
		Message:    e.Message,
	}
}

// fromBye tells why a connection ended by its last frame.
func fromBye(b *clientv1.Bye) *Error {
	e := fromClose(int(b.CloseCode), b.Message)
	if b.Reason != "" {
		e.Reason = b.Reason
	}
	e.RetryAfter = time.Duration(b.RetryAfterMs) * time.Millisecond
	return e
}

// fromClose tells why a connection ended by its close code.
func fromClose(code int, text string) *Error {
	reason := protocol.ReasonOf(code)
	info, _ := protocol.Lookup(reason)
	return &Error{Code: info.Code, Reason: reason, Retryable: protocol.Reconnect(code), Message: text, CloseCode: code}
}

// lost is a connection that ended without a word, or was given up.
func lost(message string) *Error {
	return &Error{Code: "unavailable", Retryable: true, Message: message}
}

// retryable reports whether connecting again may help.
func retryable(err error) bool {
	var e *Error
	if errors.As(err, &e) {
		return e.Retryable
	}
	return !errors.Is(err, ErrUnauthorized)
}

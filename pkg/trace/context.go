package trace

import (
	"context"
	"encoding/binary"
	"encoding/hex"
	"math/rand/v2"
)

// Header carries a Context over HTTP, as the W3C has it.
const Header = "Traceparent"

// Context is a W3C trace context of something that spans are made of. The zero
// Context is of something of which none are.
type Context struct {
	trace [16]byte
	span  [8]byte
}

// newTrace is the Context of a new trace.
func newTrace() Context {
	var c Context
	for c.trace == [16]byte{} {
		binary.NativeEndian.PutUint64(c.trace[:8], rand.Uint64())
		binary.NativeEndian.PutUint64(c.trace[8:], rand.Uint64())
	}
	c.span = newSpan()
	return c
}

func newSpan() (id [8]byte) {
	for id == [8]byte{} {
		binary.NativeEndian.PutUint64(id[:], rand.Uint64())
	}
	return id
}

// ParseContext reads a traceparent. ok = it is one; its Context is zero if it says
// that it is not sampled.
func ParseContext(s string) (c Context, ok bool) {
	// 00-<32 hex digits>-<16>-<2>; later versions may have more behind.
	if len(s) < 55 || s[2] != '-' || s[35] != '-' || s[52] != '-' || s[:2] == "ff" || s[:2] == "00" && len(s) != 55 || len(s) > 55 && s[55] != '-' {
		return c, false
	}
	var head, flags [1]byte
	for _, part := range []struct {
		into []byte
		text string
	}{{head[:], s[:2]}, {c.trace[:], s[3:35]}, {c.span[:], s[36:52]}, {flags[:], s[53:55]}} {
		if !lowerHex(part.text) {
			return Context{}, false
		}
		_, _ = hex.Decode(part.into, []byte(part.text)) // it is hex of the right length
	}
	if c.trace == [16]byte{} || c.span == [8]byte{} {
		return Context{}, false
	}
	if flags[0]&1 == 0 {
		return Context{}, true
	}
	return c, true
}

func lowerHex(s string) bool {
	for _, b := range []byte(s) {
		if (b < '0' || b > '9') && (b < 'a' || b > 'f') {
			return false
		}
	}
	return true
}

// Carried is the Context that another node of the cluster has sent along; zero for
// "".
func Carried(traceparent string) Context {
	c, _ := ParseContext(traceparent)
	return c
}

// Sampled reports whether spans are made.
func (c Context) Sampled() bool { return c.trace != [16]byte{} }

// Child is the Context of a part of it.
func (c Context) Child() Context {
	if c.Sampled() {
		c.span = newSpan()
	}
	return c
}

// String is the traceparent; "" if nothing is sampled.
func (c Context) String() string {
	if !c.Sampled() {
		return ""
	}
	return "00-" + hex.EncodeToString(c.trace[:]) + "-" + hex.EncodeToString(c.span[:]) + "-01"
}

// IDs are the ids of the trace and of the span.
func (c Context) IDs() (trace [16]byte, span [8]byte) { return c.trace, c.span }

type contextKey struct{}

// With puts c into a context, unless it is zero.
func With(ctx context.Context, c Context) context.Context {
	if !c.Sampled() {
		return ctx
	}
	return context.WithValue(ctx, contextKey{}, c)
}

// From is the Context that With put in; zero = there is none.
func From(ctx context.Context) Context {
	c, _ := ctx.Value(contextKey{}).(Context)
	return c
}

// Key is under which With puts it, for contexts that drop other values.
func Key() any { return contextKey{} }

package peer

import (
	"context"
	"fmt"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/imdhq/imd/pkg/im"
	"github.com/imdhq/imd/pkg/trace"
	"github.com/imdhq/imd/sdk/go/gen/clientv1"
)

// Time limits of a call between roles.
const (
	// CallTimeout is the longest a call takes, all attempts together.
	CallTimeout = 1200 * time.Millisecond
)

// isolated is a context with the caller's deadline and cancellation but none of
// its values, except for that of the trace: across processes the others would not
// travel either.
type isolated struct{ context.Context }

func (i isolated) Value(key any) any {
	if key == trace.Key() {
		return i.Context.Value(key)
	}
	return nil
}

// call runs f of h as a network would: with a deadline, without the caller's
// values, without panics, and with errors as they come off the wire. The
// request stays the caller's and is read-only for both while the call lasts;
// the response is the caller's.
func call[H, Req, Res any](ctx context.Context, s *Set, op string, h H, f function[H, Req, Res], req *Req) (res *Res, err error) {
	ctx, cancel := context.WithTimeout(isolated{ctx}, s.whole)
	defer cancel()
	defer func() {
		if p := recover(); p != nil {
			res, err = nil, &im.Error{Reason: clientv1.Reason_REASON_INTERNAL, Op: op, Err: fmt.Errorf("panic: %v", p)}
			s.panicked(op, p)
		}
	}()
	if s.parity {
		return parityCall(ctx, op, h, f, req)
	}
	res, err = f(h, ctx, req)
	if err != nil {
		return nil, normalise(op, err)
	}
	return res, nil
}

// normalise gives the error a caller in another process would see: our reason
// and message, not the cause.
func normalise(op string, err error) error {
	e := im.FromWire(op, im.Wire(err)).(*im.Error)
	e.Err = err // for this process's log; the text is never sent on
	return e
}

// parityCall hands over copies and checks that the callee left the request
// alone, so that aliasing shows in tests and not when roles are split.
func parityCall[H, Req, Res any](ctx context.Context, op string, h H, f function[H, Req, Res], req *Req) (*Res, error) {
	in := proto.Clone(any(req).(proto.Message))
	before := proto.Clone(in)
	res, err := f(h, ctx, any(in).(*Req))
	if !proto.Equal(in, before) {
		panic(op + ": the handler changed its request")
	}
	if err != nil {
		return nil, normalise(op, err)
	}
	return any(proto.Clone(any(res).(proto.Message))).(*Res), nil
}

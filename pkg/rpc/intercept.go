package rpc

import (
	"context"
	"errors"
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"
	"unicode"

	"connectrpc.com/connect/v2"
	"go.uber.org/zap"

	"github.com/imdhq/imd/pkg/im"
	"github.com/imdhq/imd/pkg/obs"
	"github.com/imdhq/imd/pkg/trace"
	"github.com/imdhq/imd/sdk/go/gen/clientv1"
)

// observe counts and logs each call. Bodies and credentials stay out.
func (s *Server) observe(next connect.ServerFunc) connect.ServerFunc {
	return func(ctx context.Context, spec connect.Spec, stream connect.ServerStream) error {
		begin := time.Now()
		s.opt.Metrics.inFlight.Inc()
		defer s.opt.Metrics.inFlight.Dec()
		c, parent := s.traced(ctx)
		err := next(trace.With(ctx, c), spec, stream)
		took := time.Since(begin)
		service, method := names(spec)
		code, failed := "ok", ""
		if err != nil {
			code = connect.CodeOf(err).String()
			failed = code
		}
		s.opt.Trace.Span(trace.Span{Context: c, Parent: parent, Name: service + "/" + method, Kind: trace.Server, Begin: begin, End: begin.Add(took), Failed: failed})
		s.opt.Metrics.answered(service, method, code, took)
		s.log(service+"."+method, err, took)
		return err
	}
}

// traced decides whether spans are made of a call.
func (s *Server) traced(ctx context.Context) (c, parent trace.Context) {
	if s.opt.Trace == nil {
		return c, parent
	}
	said := ""
	if info, ok := connect.CallInfoForServerContext(ctx); ok {
		said = info.RequestHeader().Get(trace.Header)
	}
	if said == "" && !s.opt.Begins {
		return c, parent
	}
	return s.opt.Trace.Begin(said)
}

func (s *Server) log(op string, err error, took time.Duration) {
	fields := []zap.Field{obs.Op(op), obs.Took(took)}
	var ce *connect.Error
	if !errors.As(err, &ce) {
		s.opt.Log.Debug("call answered", fields...)
		return
	}
	cause := ce.Unwrap()
	fields = append(fields, obs.Code(im.ReasonOf(cause)), obs.Err(cause))
	if ce.Code() == connect.CodeInternal {
		s.opt.Log.Error("call failed", fields...)
		return
	}
	s.opt.Log.Debug("call refused", fields...)
}

// names splits a procedure for labels; a client cannot make up new values.
func names(spec connect.Spec) (service, method string) {
	if spec.Schema == nil {
		return "unknown", "unknown"
	}
	service, method, _ = strings.Cut(strings.TrimPrefix(spec.Procedure, "/"), "/")
	return service, method
}

// guard bounds the number and the time of calls, catches panics, tells errors
// of the request from others, and turns every error into a wire error.
func (s *Server) guard(next connect.ServerFunc) connect.ServerFunc {
	return func(ctx context.Context, spec connect.Spec, stream connect.ServerStream) (err error) {
		defer func() {
			if p := recover(); p != nil {
				err = &im.Error{Reason: clientv1.Reason_REASON_INTERNAL, Op: "rpc", Err: fmt.Errorf("panic: %v", p)}
				s.opt.Log.Error("a call panicked", obs.Op(spec.Procedure), zap.Any("panic", p), zap.Stack("stack"))
			}
			if err != nil {
				headers(ctx, err)
				err = im.ToConnect(err)
			}
		}()
		if !s.gate.Enter(s.opt.Class(spec)) {
			return im.Errorf(clientv1.Reason_REASON_BUSY, "rpc", "%d calls are being answered already", s.gate.InFlight())
		}
		defer s.gate.Leave()
		ctx, cancel := s.timeout(ctx, spec)
		defer cancel()
		return next(ctx, spec, requestStream{stream, ctx, s.opt.MaxRequest})
	}
}

// headers tells plain HTTP clients when to come back and how to sign in.
func headers(ctx context.Context, err error) {
	info, ok := connect.CallInfoForServerContext(ctx)
	if !ok {
		return
	}
	w := im.Wire(err)
	if w.Code == connect.CodeUnauthenticated.String() {
		info.ResponseHeader().Set("WWW-Authenticate", "Bearer")
	}
	if w.Retryable && w.RetryAfterMs > 0 {
		info.ResponseHeader().Set("Retry-After", strconv.Itoa(int(math.Ceil(float64(w.RetryAfterMs)/1000))))
	}
}

func unknownMethod(_ context.Context, spec connect.Spec, _ connect.ServerStream) error {
	return im.Errorf(clientv1.Reason_REASON_UNSUPPORTED, "rpc", "there is no method %.100q", spec.Procedure)
}

// requestStream marks errors of reading the request as the caller's.
type requestStream struct {
	connect.ServerStream
	ctx        context.Context // of the call
	maxRequest int
}

// Receive reads the request. Errors: too_large, bad_request, unavailable; also
// if nobody waits for the answer any more, so that expired work is not begun.
func (s requestStream) Receive(msg any) error {
	err := s.ServerStream.Receive(msg)
	if err == nil {
		if err = s.ctx.Err(); err == nil {
			return nil
		}
	}
	e := &im.Error{Reason: clientv1.Reason_REASON_BAD_REQUEST, Op: "rpc.Receive", Msg: "the request cannot be read", Err: err}
	var ce *connect.Error
	switch {
	case errors.Is(err, context.Canceled), errors.Is(err, context.DeadlineExceeded):
		e.Reason, e.Msg = clientv1.Reason_REASON_UNAVAILABLE, "the request did not arrive in time"
	case errors.As(err, &ce) && ce.Code() == connect.CodeResourceExhausted:
		e.Reason, e.Msg = clientv1.Reason_REASON_TOO_LARGE, fmt.Sprintf("the request is larger than %d bytes", s.maxRequest)
	case errors.As(err, &ce) && ce.Message() != "":
		e.Msg += ": " + tidy(ce.Message())
	}
	return e
}

// tidy makes a decoder's text readable: protobuf changes its spaces on purpose.
func tidy(s string) string {
	s = strings.Join(strings.FieldsFunc(strings.ToValidUTF8(s, "?"), func(r rune) bool { return unicode.IsSpace(r) || unicode.IsControl(r) }), " ")
	s = strings.TrimPrefix(strings.TrimPrefix(s, "unmarshal message: "), "proto: ")
	if r := []rune(s); len(r) > 200 {
		s = string(r[:200])
	}
	return s
}

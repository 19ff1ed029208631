package etcd

import (
	"context"
	"errors"
	"strings"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/imdhq/imd/pkg/control"
)

// refusedWhole are answers that a server gives before it has proposed a change,
// and that another try may not get.
var refusedWhole = []error{
	rpctypes.ErrNoLeader, rpctypes.ErrTooManyRequests, rpctypes.ErrNoSpace, rpctypes.ErrNotLeader,
	rpctypes.ErrInvalidAuthToken, rpctypes.ErrAuthOldRevision, rpctypes.ErrGRPCNotSupportedForLearner,
}

// Classify says what the error of a call means: control.ClassRetry if nothing
// was changed and another try may go well, control.ClassFinal if nothing was
// changed and another try fails as well, and control.ClassUnknown otherwise:
// after a change, read before it is made again.
func Classify(err error) control.Class {
	if err == nil {
		return control.ClassOK
	}
	if errors.Is(err, context.DeadlineExceeded) || errors.Is(err, context.Canceled) {
		return control.ClassUnknown
	}
	for _, e := range refusedWhole {
		if sameAnswer(err, e) {
			return control.ClassRetry
		}
	}
	switch code(err) {
	case codes.OK, codes.DeadlineExceeded, codes.Canceled, codes.Unknown, codes.Internal, codes.Aborted:
		return control.ClassUnknown
	case codes.Unavailable:
		if neverSent(err) {
			return control.ClassRetry
		}
		return control.ClassUnknown
	case codes.ResourceExhausted:
		return control.ClassRetry
	}
	return control.ClassFinal // InvalidArgument, NotFound, FailedPrecondition, PermissionDenied and the like
}

// sameAnswer reports whether err is the answer want, however deep it is wrapped.
func sameAnswer(err, want error) bool {
	if errors.Is(err, want) {
		return true
	}
	var s interface{ GRPCStatus() *status.Status }
	return errors.As(err, &s) && s.GRPCStatus().Message() == rpctypes.ErrorDesc(want)
}

// code finds the code of a status or of etcd's own error type.
func code(err error) codes.Code {
	var e rpctypes.EtcdError
	if errors.As(err, &e) {
		return e.Code()
	}
	var s interface{ GRPCStatus() *status.Status }
	if errors.As(err, &s) {
		return s.GRPCStatus().Code()
	}
	return codes.Unknown
}

// neverSent recognises calls for which no connection existed.
func neverSent(err error) bool {
	text := err.Error()
	return strings.Contains(text, "error while dialing") || strings.Contains(text, "Error while dialing") ||
		strings.Contains(text, "there is no address available") || strings.Contains(text, "there is no connection available") ||
		strings.Contains(text, "no children to pick from")
}

// refused reports whether the server knows us and does not want us: wrong name,
// password or rights, which waiting does not heal.
func refused(err error) bool {
	for _, e := range []error{rpctypes.ErrAuthFailed, rpctypes.ErrPermissionDenied, rpctypes.ErrUserEmpty, rpctypes.ErrPermissionNotGranted} {
		if sameAnswer(err, e) {
			return true
		}
	}
	return false
}

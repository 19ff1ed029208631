package etcd

import (
	"context"
	"errors"
	"fmt"
	"testing"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/imdhq/imd/pkg/control"
)

func TestClassify(t *testing.T) {
	tests := []struct {
		err  error
		want control.Class
	}{
		{nil, control.ClassOK},
		{context.DeadlineExceeded, control.ClassUnknown},
		{context.Canceled, control.ClassUnknown},
		{status.Error(codes.DeadlineExceeded, "late"), control.ClassUnknown},
		{rpctypes.ErrTimeout, control.ClassUnknown},
		{rpctypes.ErrTimeoutDueToLeaderFail, control.ClassUnknown},
		{rpctypes.ErrTimeoutDueToConnectionLost, control.ClassUnknown},
		{rpctypes.ErrLeaderChanged, control.ClassUnknown},
		{rpctypes.ErrStopped, control.ClassUnknown},
		{status.Error(codes.Unavailable, "error reading from server: EOF"), control.ClassUnknown},
		{status.Error(codes.Unavailable, `connection error: desc = "transport: Error while dialing: dial tcp 127.0.0.1:1: connect: connection refused"`), control.ClassRetry},
		{rpctypes.ErrNoLeader, control.ClassRetry},
		{rpctypes.ErrGRPCNoLeader, control.ClassRetry},
		{rpctypes.ErrNoSpace, control.ClassRetry},
		{rpctypes.ErrGRPCNoSpace, control.ClassRetry},
		{rpctypes.ErrTooManyRequests, control.ClassRetry},
		{rpctypes.ErrInvalidAuthToken, control.ClassRetry},
		{rpctypes.ErrAuthOldRevision, control.ClassRetry},
		{rpctypes.ErrAuthFailed, control.ClassFinal},
		{rpctypes.ErrPermissionDenied, control.ClassFinal},
		{rpctypes.ErrLeaseNotFound, control.ClassFinal},
		{rpctypes.ErrCompacted, control.ClassFinal},
		{rpctypes.ErrRequestTooLarge, control.ClassFinal},
		{errors.New("anything else"), control.ClassUnknown},
	}
	for _, tt := range tests {
		if got := Classify(tt.err); got != tt.want {
			t.Errorf("%v is %s, want %s", tt.err, got, tt.want)
		}
		if tt.err == nil {
			continue
		}
		if got := Classify(fmt.Errorf("do it: %w", tt.err)); got != tt.want {
			t.Errorf("%v, wrapped, is %s, want %s", tt.err, got, tt.want)
		}
	}
}

// Every answer that etcd itself knows has a class, and none that may hide a
// change is taken for a safe one.
func TestUnavailableIsUnknownUnlessRefused(t *testing.T) {
	for _, err := range []error{rpctypes.ErrUnhealthy, rpctypes.ErrTimeoutWaitAppliedIndex, rpctypes.ErrStopped} {
		if got := Classify(err); got != control.ClassUnknown {
			t.Errorf("%v is %s", err, got)
		}
	}
}

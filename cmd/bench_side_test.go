package cmd

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"connectrpc.com/connect/v2"
)

// A call is made again while the server is busy, for a time, and no other.
func TestCallsWhileAway(t *testing.T) {
	away, wrong := connect.NewError(connect.CodeUnavailable, "busy"), connect.NewError(connect.CodeNotFound, "nobody")
	for _, tt := range []struct {
		name    string
		answers []error // of the calls; the last one is that of all that follow
		want    error
		calls   int
	}{
		{"at once", []error{nil}, nil, 1},
		{"after a moment", []error{away, away, nil}, nil, 3},
		{"another answer", []error{away, wrong}, wrong, 2},
		{"for good", []error{away}, away, 102},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				calls := 0
				err := whileAway(t.Context(), func() error {
					calls++
					return tt.answers[min(calls, len(tt.answers))-1]
				})
				if !errors.Is(err, tt.want) || calls != tt.calls {
					t.Errorf("%v after %d calls, want %v after %d", err, calls, tt.want, tt.calls)
				}
			})
		})
	}
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		began := time.Now()
		if err := whileAway(ctx, func() error { return away }); !errors.Is(err, away) || time.Since(began) > time.Second {
			t.Errorf("%v after %v", err, time.Since(began))
		}
	})
}

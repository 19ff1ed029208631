package store

import (
	"context"
	"errors"
	"net/url"
	"strings"
	"testing"

	"go.uber.org/zap"

	"github.com/imdhq/imd/pkg/im"
	"github.com/imdhq/imd/sdk/go/gen/clientv1"
)

// Only a retryable error holds the rest of its run back, and no other run.
func TestRuns(t *testing.T) {
	refuse := func(r im.Reason) *im.Error { return im.Errorf(r, "test", "no") }
	tests := []struct {
		name string
		err  *im.Error
		held bool
	}{
		{"stored", nil, false},
		{"a final error", refuse(clientv1.Reason_REASON_NOT_MEMBER), false},
		{"a retryable error", refuse(clientv1.Reason_REASON_UNAVAILABLE), true},
		{"behind itself", refuse(clientv1.Reason_REASON_BEHIND), true},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			var r Runs
			if r.Behind(1) != nil {
				t.Fatal("held from the start")
			}
			r.Refused(1, tt.err)
			got := r.Behind(1)
			if (got != nil) != tt.held || got != nil && got.Reason != clientv1.Reason_REASON_BEHIND {
				t.Errorf("behind: %v", got)
			}
			if r.Behind(2) != nil {
				t.Error("another run is held")
			}
		})
	}
}

func TestDrivers(t *testing.T) {
	broken := errors.New("broken")
	d := Drivers[RouteStore]{
		"good": func(context.Context, *url.URL, *zap.Logger) (RouteStore, error) { return nil, nil },
		"bad":  func(context.Context, *url.URL, *zap.Logger) (RouteStore, error) { return nil, broken },
	}
	for dsn, want := range map[string]error{"good:": nil, "bad://u:secret@h": broken, "other:": ErrDSN, "%zz:secret": ErrDSN, "": ErrDSN} {
		_, err := d.Open(t.Context(), dsn, zap.NewNop())
		if !errors.Is(err, want) {
			t.Errorf("%q: %v, want %v", dsn, err, want)
		}
		if err != nil && strings.Contains(err.Error(), "secret") {
			t.Errorf("%q: the error tells a secret: %v", dsn, err)
		}
	}
}

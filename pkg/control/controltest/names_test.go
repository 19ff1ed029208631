package controltest

import (
	"context"
	"slices"
	"testing"

	"go.uber.org/zap"

	"github.com/imdhq/imd/pkg/control/embedded"
	"github.com/imdhq/imd/pkg/control/etcd"
)

func TestNames(t *testing.T) {
	s, err := embedded.Start(t.Context(), t.TempDir(), zap.NewNop())
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	c := s.Client()
	n := etcd.NewNames(c)
	if got, err := n.List(t.Context(), "/names/state/"); err != nil || len(got) != 0 {
		t.Errorf("%v %v", got, err)
	}
	for key, value := range map[string]string{"/names/state/b": "10.0.0.2:1#3", "/names/state/a": "10.0.0.1:1", "/names/push/a": "10.0.0.3:1"} {
		if _, err := c.Put(t.Context(), key, value); err != nil {
			t.Fatal(err)
		}
	}
	if got, err := n.List(t.Context(), "/names/state/"); err != nil || !slices.Equal(got, []string{"10.0.0.1:1", "10.0.0.2:1#3"}) {
		t.Errorf("%v %v", got, err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := n.List(ctx, "/names/"); err == nil {
		t.Error("an answer after the end")
	}
}

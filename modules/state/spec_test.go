package state

import (
	"net/http"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/zap"

	"github.com/imdhq/imd/pkg/control"
	"github.com/imdhq/imd/pkg/dedup"
	"github.com/imdhq/imd/pkg/dedup/memory"
	"github.com/imdhq/imd/pkg/im"
	"github.com/imdhq/imd/pkg/module"
	"github.com/imdhq/imd/pkg/peer"
	"github.com/imdhq/imd/pkg/store"
	v1 "github.com/imdhq/imd/proto/gen/internalv1"
	"github.com/imdhq/imd/sdk/go/gen/clientv1"
)

func TestSpecAnnouncesTheRole(t *testing.T) {
	spec := Spec()
	env := &module.Env{
		Node: "n1", Log: zap.NewNop(), Reg: prometheus.NewPedanticRegistry(), Config: func(string, any) error { return nil },
		Control: &control.Handle{}, Store: &store.Handle{}, Peers: peer.NewSet("n1", zap.NewNop()), Ready: module.NewReady(),
		MountOps: func(string, http.Handler) {},
	}
	m, err := spec.New(env)
	if err != nil {
		t.Fatal(err)
	}
	checks, ok := env.Ready.Check(t.Context())
	if ok || len(checks) != 1 || checks[0].Name != "lanes" {
		t.Errorf("checks %+v", checks)
	}
	if _, err := env.Peers.Directory().Keys(t.Context(), &v1.KeysRequest{}); im.ReasonOf(err) != clientv1.Reason_REASON_UNAVAILABLE {
		t.Errorf("directory: %v", err)
	}
	if err := m.Start(t.Context()); im.ReasonOf(err) != clientv1.Reason_REASON_UNAVAILABLE {
		t.Errorf("start without a store: %v", err)
	}
	env.Store.SetMessages(newMemStore())
	if err := m.Start(t.Context()); err == nil || !strings.Contains(err.Error(), "dedup cache") {
		t.Errorf("start without a dedup cache: %v", err)
	}
	env.Store.SetDedup(memory.New(dedup.Options{}))
	if err := m.Start(t.Context()); err == nil || !strings.Contains(err.Error(), "control plane") {
		t.Errorf("start without a control plane: %v", err)
	}
	if err := env.Config("state", spec.Config()); err != nil {
		t.Error(err)
	}
}

// The token of a client comes back as it was given, in the same history only.
func FuzzInnerToken(f *testing.F) {
	f.Add("e1", "abc", "e1~abc")
	f.Add("e1", "", "")
	f.Add("e1", "~~", "~")
	f.Fuzz(func(t *testing.T, epoch, inner, foreign string) {
		if strings.Contains(epoch, "~") || epoch == "" {
			return // no data_epoch
		}
		if got, same := innerToken(epoch, outerToken(epoch, inner)); !same || got != inner {
			t.Errorf("%q came back as %q, %v", inner, got, same)
		}
		if got, same := innerToken(epoch, foreign); !same && got != "" {
			t.Errorf("a void token gives %q", got)
		}
		if _, same := innerToken(epoch+"x", outerToken(epoch, "t")); same {
			t.Error("a token of another history is taken")
		}
	})
}

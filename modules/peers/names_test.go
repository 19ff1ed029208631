package peers

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/zap"

	"github.com/imdhq/imd/pkg/peer"
)

// book is a naming service.
type book struct {
	list []string
	err  error
}

func (b *book) List(context.Context, string) ([]string, error) { return b.list, b.err }
func (b *book) Close() error                                   { return nil }

// Names are read again and again; bad ones leave the last good ones in force.
func TestNamesAreFollowed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		set := peer.NewSet("n", zap.NewNop())
		set.Link(peer.Link{Reg: prometheus.NewRegistry()})
		defer set.Close()
		b := &book{list: []string{"127.0.0.1:1#3", "127.0.0.1:2"}}
		n := &naming{role: "state", prefix: "/x", names: b, set: set, log: zap.NewNop()}
		for _, tt := range []struct {
			list []string
			err  error
			want int
		}{
			{[]string{"127.0.0.1:1#3", "127.0.0.1:2"}, nil, 2}, {nil, errors.New("away"), 2}, {nil, nil, 2}, {[]string{"nonsense"}, nil, 2}, {[]string{"127.0.0.1:2"}, nil, 1},
		} {
			b.list, b.err = tt.list, tt.err
			n.read(t.Context())
			if r, _ := set.Ring("state", ""); len(r.Nodes) != tt.want {
				t.Errorf("%v %v: %d nodes, want %d", tt.list, tt.err, len(r.Nodes), tt.want)
			}
		}
		ctx, cancel := context.WithCancel(t.Context())
		b.list = []string{"127.0.0.1:3", "127.0.0.1:4", "127.0.0.1:5"}
		ended := make(chan struct{})
		go func() { defer close(ended); n.run(ctx) }()
		synctest.Wait()
		if r, _ := set.Ring("state", ""); len(r.Nodes) != 3 {
			t.Errorf("%d nodes", len(r.Nodes))
		}
		cancel()
		<-ended
	})
}

// A role whose place is given is called there, whatever the registry says.
func TestPlacesWin(t *testing.T) {
	n := launch(t, "n1", secretA, DefaultConfig(), nil)
	far := DefaultConfig()
	far.Push = "static://" + n.addr + "#2"
	caller := launch(t, "caller", secretA, far, func(d *Deps) { d.Roles = []string{"state"} })
	if r, _ := caller.set.Ring("push", ""); len(r.Nodes) != 1 || r.Nodes[0].ID != n.addr || r.Nodes[0].Weight != 2 {
		t.Errorf("%+v", r)
	}
	if err := call(t, n, secretA, far); err != nil {
		t.Error(err)
	}
}

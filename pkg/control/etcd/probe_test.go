package etcd

import (
	"context"
	"net"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"github.com/imdhq/imd/pkg/control"
	"github.com/imdhq/imd/pkg/testenv/machine"
)

// listener is a process with the boot id; "" answers without one.
func listener(t *testing.T, boot string) string {
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		if boot != "" {
			w.Header().Set(control.BootHeader, boot)
		}
	}))
	t.Cleanup(s.Close)
	return s.Listener.Addr().String()
}

// mute accepts connections and says nothing.
func mute(t *testing.T) string {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	return l.Addr().String()
}

func TestAlive(t *testing.T) {
	const gone = "127.0.0.1:1"
	tests := []struct {
		name string
		node control.Node
		want bool
	}{
		{name: "it answers", node: control.Node{Ops: listener(t, "b1")}, want: true},
		{name: "it answers at its public address only", node: control.Node{Ops: gone, Public: listener(t, "b1")}, want: true},
		{name: "another boot answers", node: control.Node{Ops: listener(t, "b2")}},
		{name: "another program answers", node: control.Node{Ops: listener(t, "")}},
		{name: "nobody answers", node: control.Node{Ops: gone, Public: gone}},
		{name: "it hangs", node: control.Node{Ops: mute(t)}},
		{name: "only the internal listener is known", node: control.Node{Internal: mute(t)}, want: true},
		{name: "and that is gone", node: control.Node{Internal: gone}},
		{name: "it has no address", node: control.Node{}},
		{name: "it cannot be asked from here", node: control.Node{Ops: "0.0.0.0:1"}, want: true},
		{name: "it cannot be asked from here either", node: control.Node{Public: "[::]:1"}, want: true},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			tt.node.BootID = "b1"
			took := machine.Took(func() {
				if got := alive(t.Context(), tt.node); got != tt.want {
					t.Errorf("alive = %v, want %v", got, tt.want)
				}
			})
			if took > 2*time.Second {
				t.Errorf("it took %v", took)
			}
		})
	}
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	if !alive(ended, control.Node{Ops: gone}) {
		t.Error("a probe that was cut short counts as an answer of nobody")
	}
}

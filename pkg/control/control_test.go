package control_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/imdhq/imd/pkg/control"
)

func TestWithChoosesWhoGetsNewWork(t *testing.T) {
	node := func(id string, change func(*control.Node)) control.Node {
		n := control.Node{BootID: id, Roles: []string{"gateway"}, State: control.Serving}
		change(&n)
		return n
	}
	same := func(*control.Node) {}
	suspect := node("suspect", func(n *control.Node) { n.Standing = control.Suspect })
	all := []control.Node{
		node("draining", func(n *control.Node) { n.State = control.Draining }),
		node("cordoned", func(n *control.Node) { n.Cordon = "broken disk" }),
		node("state", func(n *control.Node) { n.Roles = []string{"state"} }),
		suspect,
	}
	boots := func(nodes []control.Node) string {
		s := ""
		for _, n := range nodes {
			s += n.BootID + " "
		}
		return s
	}
	v := control.View{Nodes: append(all, node("held", func(n *control.Node) { n.Standing = control.Held }), node("good", same))}
	if got := boots(v.With("gateway")); got != "held good " {
		t.Errorf("new work goes to %s", got)
	}
	v = control.View{Nodes: all}
	if got := boots(v.With("gateway")); got != "suspect " {
		t.Errorf("with nobody else, new work goes to %s", got)
	}
}

func TestNextAndSettled(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := &control.Handle{}
		go func() {
			for range 5 {
				time.Sleep(200 * time.Millisecond)
				h.SetView(&control.View{Revision: 1})
			}
		}()
		start := time.Now()
		if v := h.Next(t.Context(), 0); v.Serial != 1 || time.Since(start) != 200*time.Millisecond {
			t.Errorf("the next view is number %d after %v", v.Serial, time.Since(start))
		}
		if v := h.Settled(t.Context(), 1, control.Quiet); v.Serial != 5 || time.Since(start) != time.Second+control.Quiet {
			t.Errorf("the settled view is number %d after %v", v.Serial, time.Since(start))
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if v := h.Next(ctx, 5); v.Serial != 5 {
			t.Errorf("without a change: %d", v.Serial)
		}
	})
}

// A view that never rests is given all the same.
func TestSettledIsBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := &control.Handle{}
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan struct{})
		go func() {
			defer close(done)
			for ctx.Err() == nil {
				time.Sleep(100 * time.Millisecond)
				h.SetView(&control.View{})
			}
		}()
		start := time.Now()
		h.Settled(t.Context(), 0, control.Quiet)
		if took := time.Since(start); took > 4*time.Second {
			t.Errorf("settled after %v", took)
		}
		cancel()
		<-done
	})
}

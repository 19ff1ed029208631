package controlplane_test

import (
	"context"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"

	"github.com/imdhq/imd/modules/controlplane"
	"github.com/imdhq/imd/pkg/control"
	"github.com/imdhq/imd/pkg/module"
	"github.com/imdhq/imd/pkg/settings"
	"github.com/imdhq/imd/pkg/testenv/machine"
)

var limit = settings.Int("talk.limit", 5, 0, 100, "A limit.")

// absent is a control plane whose etcd does not answer at first.
type absent struct {
	controlplane.Plane
	asked func()
}

func (p absent) Load(ctx context.Context) error {
	p.asked()
	return p.Plane.Load(ctx)
}

// The settings of the last run hold until etcd has been read; changes are
// logged, counted and remembered.
func TestSettingsAreRememberedLoggedAndCounted(t *testing.T) {
	reg, err := settings.NewRegistry(nil, settings.Schema{Keys: []settings.Declared{limit}})
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	core, logs := observer.New(zap.InfoLevel)
	var recalled []int
	run := func(during func(live *settings.Live, metrics prometheus.Gatherer)) {
		live, metrics := settings.NewLive(reg, settings.Identity{Node: "n1"}, zap.NewNop()), prometheus.NewPedanticRegistry()
		m, err := controlplane.Spec(func(ctx context.Context, o controlplane.OpenOptions) (controlplane.Plane, error) {
			p, err := open(ctx, o)
			return absent{p, func() { recalled = append(recalled, limit.In(live.Current())) }}, err
		}).New(&module.Env{
			Node: "n1", DataDir: dir, Log: zap.New(core), Reg: metrics, Control: &control.Handle{}, Ready: module.NewReady(),
			MountOps: func(string, http.Handler) {}, Settings: live, Config: func(string, any) error { return nil },
		})
		if err != nil {
			t.Fatal(err)
		}
		if err := m.Start(t.Context()); err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- m.Run(ctx) }()
		during(live, metrics)
		cancel()
		took := machine.Took(func() {
			if err := <-done; err != nil {
				t.Error(err)
			}
		})
		if took > 2*time.Second {
			t.Errorf("Run took %v to end", took)
		}
		if err := m.Close(); err != nil {
			t.Error(err)
		}
	}
	remembered := func() bool {
		raw, err := os.ReadFile(filepath.Join(dir, "settings.json"))
		return err == nil && strings.Contains(string(raw), `"talk.limit": "7"`)
	}
	run(func(live *settings.Live, metrics prometheus.Gatherer) {
		p, err := live.State().Plan([]settings.Edit{{Key: "talk.limit", Value: "7"}}, settings.Change{})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := live.Documents().Put(t.Context(), p.Writes); err != nil {
			t.Fatal(err)
		}
		eventually(t, "the value is in force", func() bool { return limit.In(live.Current()) == 7 })
		eventually(t, "it is remembered", remembered)
		eventually(t, "it is logged", func() bool { return logs.FilterMessage("settings are in force").Len() == 1 })
		fams, err := metrics.Gather()
		if err != nil {
			t.Fatal(err)
		}
		for _, f := range fams {
			if f.GetName() == "imd_settings_revision" && f.GetMetric()[0].GetGauge().GetValue() < 2 {
				t.Errorf("%v", f)
			}
		}
	})
	run(func(live *settings.Live, _ prometheus.Gatherer) {
		if got := limit.In(live.Current()); got != 7 {
			t.Errorf("after a restart: %d", got)
		}
	})
	if len(recalled) != 2 || recalled[0] != 5 || recalled[1] != 7 {
		t.Errorf("before etcd was read: %v, want 5 and then 7", recalled)
	}
}

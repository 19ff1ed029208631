package controlplane

import (
	"context"
	"errors"
	"io/fs"
	"path/filepath"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/zap"

	"github.com/imdhq/imd/pkg/obs"
	"github.com/imdhq/imd/pkg/settings"
)

// settingsFile in the data folder holds the settings that were in force last,
// for a start while etcd is away.
const settingsFile = "settings.json"

// recallSettings begins with what was in force last, until etcd has been read.
func (c *ControlPlane) recallSettings() {
	if c.Settings == nil {
		return
	}
	last, err := settings.Load(filepath.Join(c.DataDir, settingsFile))
	switch {
	case err == nil:
		c.Settings.Feed(last)
	case !errors.Is(err, fs.ErrNotExist):
		c.Log.Warn("the settings of the last run cannot be read; etcd has them", obs.Err(err))
	}
}

// keepSettings remembers what is in force. It is a subscriber.
func (c *ControlPlane) keepSettings(context.Context, *settings.Snapshot, *settings.Snapshot) {
	if err := settings.Save(filepath.Join(c.DataDir, settingsFile), c.Settings.State().InForce()); err != nil {
		c.Log.Warn("the settings cannot be remembered for the next start", obs.Err(err))
	}
}

// logSettings says what changes on this node. It is a subscriber.
func (c *ControlPlane) logSettings(_ context.Context, old, now *settings.Snapshot) {
	if d := old.Changes(now); len(d) > 0 {
		c.Log.Info("settings are in force", zap.Int64("rev", now.Revision), zap.Any("changes", d))
	}
}

// settingsCollector turns what the settings count into metrics.
type settingsCollector struct {
	stats func() settings.Stats

	revision, refusedRevision, applied, refused, gaps, drift, age, late *prometheus.Desc
}

func newSettingsCollector(stats func() settings.Stats) *settingsCollector {
	desc := func(name, help string) *prometheus.Desc {
		return prometheus.NewDesc("imd_settings_"+name, help, nil, nil)
	}
	return &settingsCollector{
		stats:           stats,
		revision:        desc("revision", "Revision of the newest change of the settings in force."),
		refusedRevision: desc("refused_revision", "Newest revision of the settings that was refused and still stands; 0 = none."),
		applied:         desc("applied_total", "Revisions of the settings that were taken."),
		refused:         desc("refused_total", "Revisions of the settings that were refused."),
		gaps:            desc("gaps_total", "Missed changes of the settings that a version gave away."),
		drift:           desc("drift_total", "Checks of the settings that found a difference; 0 in a healthy cluster."),
		age:             desc("age_seconds", "Time since the last sign of life of the watch of the settings."),
		late:            desc("subscriber_late_total", "Calls of subscribers of the settings that took more than a second."),
	}
}

// Describe lists the metrics.
func (c *settingsCollector) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{c.revision, c.refusedRevision, c.applied, c.refused, c.gaps, c.drift, c.age, c.late} {
		ch <- d
	}
}

// Collect reads the counters.
func (c *settingsCollector) Collect(ch chan<- prometheus.Metric) {
	s := c.stats()
	gauge := func(d *prometheus.Desc, v float64) { ch <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, v) }
	count := func(d *prometheus.Desc, v uint64) {
		ch <- prometheus.MustNewConstMetric(d, prometheus.CounterValue, float64(v))
	}
	gauge(c.revision, float64(s.Revision))
	gauge(c.refusedRevision, float64(s.Refused))
	count(c.applied, s.Applied)
	count(c.refused, s.Counts.Refused)
	count(c.gaps, s.Gaps)
	count(c.drift, s.Drift)
	count(c.late, s.Late)
	if !s.Heard.IsZero() {
		gauge(c.age, time.Since(s.Heard).Seconds())
	}
}

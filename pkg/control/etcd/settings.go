package etcd

import (
	"fmt"
	"strings"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/imdhq/imd/pkg/control"
	"github.com/imdhq/imd/pkg/settings"
)

// settingsSink feeds what a follower of the documents sees to settings.Live,
// revision by revision. What it means is decided there. One goroutine, that of
// the follower, uses it.
type settingsSink struct {
	live    *settings.Live
	prefix  string
	history int // of the last copy
}

// took feeds a copy, or the changes that led to it.
func (s *settingsSink) took(u update) error {
	if u.whole {
		restored := u.next.history != s.history
		s.history = u.next.history
		return asked(s.live.Feed(settings.Read{Revision: u.next.rev, Cluster: u.next.cluster, Records: s.records(u.next), Restored: restored}))
	}
	for events := u.events; len(events) > 0; {
		c, rest := s.revision(events)
		if cause := s.live.Feed(c); cause != "" {
			return asked(cause)
		}
		events = rest
	}
	return asked(s.live.Feed(settings.Reached{Revision: u.next.rev}))
}

// revision takes the changes of the first revision from some events.
func (s *settingsSink) revision(events []*clientv3.Event) (settings.Changed, []*clientv3.Event) {
	c := settings.Changed{Revision: events[0].Kv.ModRevision}
	for len(events) > 0 && events[0].Kv.ModRevision == c.Revision {
		if ev := events[0]; ev.Type == clientv3.EventTypeDelete {
			c.Deletes = append(c.Deletes, strings.TrimPrefix(string(ev.Kv.Key), s.prefix))
		} else {
			c.Puts = append(c.Puts, s.record(string(ev.Kv.Key), plain(ev.Kv)))
		}
		events = events[1:]
	}
	return c, events
}

// checked feeds what etcd has at the revision that was reached.
func (s *settingsSink) checked(r replica) error {
	return asked(s.live.Feed(settings.Check{Revision: r.rev, Records: s.records(r)}))
}

func (s *settingsSink) records(r replica) []settings.Record {
	out := make([]settings.Record, 0, len(r.records))
	for key, rec := range r.records {
		out = append(out, s.record(key, rec))
	}
	return out
}

func (s *settingsSink) record(key string, r record) settings.Record {
	return settings.Record{Section: strings.TrimPrefix(key, s.prefix), Version: r.version, Mod: r.mod, Raw: r.raw}
}

// settingsCauses are why all must be read again, as a watch counts it.
var settingsCauses = map[string]string{
	settings.CauseGap: control.ResyncDrift, settings.CauseDrift: control.ResyncDrift,
	settings.CauseBehind: control.ResyncBroken, settings.CauseRestored: control.ResyncRestored,
}

// asked is the error for what the settings ask for.
func asked(cause string) error {
	if cause == "" {
		return nil
	}
	return &resyncError{cause: settingsCauses[cause], err: fmt.Errorf("the settings want it: %s", cause)}
}

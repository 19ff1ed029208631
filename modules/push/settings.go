package push

import (
	"time"

	"github.com/imdhq/imd/pkg/settings"
)

// What may change while the role runs.
var (
	groupMembers = settings.Int("push.group_members", 200, 2, 1_000_000,
		"Members of a group above which every gateway finds those with sessions on it by itself, instead of being told the sessions. With many gateways the bound is 50 for each of them.", settings.Unit("members"))
	pullSessions = settings.Int("push.pull_sessions", 5000, 0, 1_000_000_000,
		"Sessions of a group above which its devices get hints and read, once it is busy; see push.pull_load.", settings.Unit("sessions"))
	pullLoad = settings.Float("push.pull_load", 500_000, 0, 1e12,
		"Sessions times messages a second of a group above push.pull_sessions from which its devices get hints and read; they get messages again below half of it. 0 = always hints.", settings.Unit("deliveries/s"))
	pullInterval = settings.Duration("push.pull_interval", time.Second, 10*time.Millisecond, 10*time.Second,
		"Shortest time between two such hints about one group.")

	declared = settings.Schema{Keys: []settings.Declared{groupMembers, pullSessions, pullLoad, pullInterval}}
)

// tuning is what holds at one revision of the settings. It is immutable.
type tuning struct {
	groupMembers int
	pull         pullTuning
}

// pullTuning is when a group is read instead of delivered.
type pullTuning struct {
	sessions int     // a group has more
	load     float64 // sessions x messages a second; 0 = always
	interval time.Duration
}

func tune(now *settings.Snapshot) tuning {
	return tuning{groupMembers: groupMembers.In(now),
		pull: pullTuning{sessions: pullSessions.In(now), load: pullLoad.In(now), interval: pullInterval.In(now)}}
}

package peers

import (
	"strings"
	"time"

	"github.com/imdhq/imd/pkg/balance"
	"github.com/imdhq/imd/pkg/peer"
	"github.com/imdhq/imd/pkg/settings"
)

// pickers has one setting for each method whose nodes may be chosen in another
// way. The order of a conversation's fan-out hangs on its node, so Fanout is
// none of them.
var pickers = declarePickers()

func declarePickers() map[string]settings.Setting[string] {
	out := map[string]settings.Setting[string]{}
	for _, m := range peer.Methods() {
		if m.Picker() == "" || m.Name == "push.Fanout" {
			continue
		}
		out[m.Name] = settings.Word("peers.pick."+strings.ToLower(strings.ReplaceAll(m.Name, ".", "_")), m.Picker(), balance.Names(),
			"How the node of a call of "+m.Name+" is chosen.")
	}
	return out
}

// Limits of backup requests.
var (
	backupDelay = settings.Duration("peers.backup.delay", balance.MaxHedgeDelay, balance.MinHedgeDelay, time.Second,
		"The longest wait for an answer of another process before a read is also asked of a second one. It is shorter where answers usually come sooner.")
	backupShare = settings.Float("peers.backup.share", balance.HedgeShare, 0, 0.5,
		"The part of all reads between processes that may be asked twice. 0 = none.")
)

// declared is what may change while the node runs.
func declared() settings.Schema {
	s := settings.Schema{Keys: []settings.Declared{backupDelay, backupShare}}
	for _, m := range peer.Methods() {
		if p, ok := pickers[m.Name]; ok {
			s.Keys = append(s.Keys, p)
		}
	}
	return s
}

package peers

import (
	"strings"

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

// declared is what may change while the node runs.
func declared() settings.Schema {
	var s settings.Schema
	for _, m := range peer.Methods() {
		if p, ok := pickers[m.Name]; ok {
			s.Keys = append(s.Keys, p)
		}
	}
	return s
}

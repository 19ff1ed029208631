package peer

import (
	"errors"
	"fmt"
	"net"
	"strconv"
	"strings"

	"github.com/imdhq/imd/pkg/control"
	"github.com/imdhq/imd/pkg/im"
)

// staticScheme begins a place whose nodes are listed.
const staticScheme = "static://"

// ParsePlace reads where a role is: static://host:port#weight,host:port lists
// its nodes, each with a weight of 1 to 100, which is 1 if there is none. ""
// gives nil: the nodes are those that are registered.
func ParsePlace(place, role string) ([]control.Node, error) {
	if place == "" {
		return nil, nil
	}
	list, ok := strings.CutPrefix(place, staticScheme)
	if !ok {
		return nil, fmt.Errorf("%q does not begin with %s", place, staticScheme)
	}
	var out []control.Node
	seen := map[string]bool{}
	for item := range strings.SplitSeq(list, ",") {
		addr, text, weighted := strings.Cut(strings.TrimSpace(item), "#")
		weight := 1
		if weighted {
			w, err := strconv.Atoi(text)
			if err != nil || w < 1 || w > 100 {
				return nil, fmt.Errorf("the weight %q of %s is not within 1 and 100", text, addr)
			}
			weight = w
		}
		if host, port, err := net.SplitHostPort(addr); err != nil || host == "" || port == "" {
			return nil, fmt.Errorf("%q is not host:port", addr)
		}
		if seen[addr] {
			return nil, errors.New(addr + " is listed twice")
		}
		seen[addr] = true
		out = append(out, control.Node{ID: im.NodeID(addr), Roles: []string{role}, State: control.Serving, Internal: addr, Weight: weight})
	}
	return out, nil
}

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

// The schemes of a Place.
const (
	staticScheme = "static://"
	etcdScheme   = "etcd://"
)

// Place says where the nodes of a role are, if not where the registry says. The
// zero Place is the registry.
type Place struct {
	Nodes  []control.Node // listed ones
	Prefix string         // of the names in etcd; "" = they are not there
	Hosts  []string       // host:port of that etcd; none = the control plane's
}

// ParsePlace reads a place:
//
//	static://host:port#weight,host:port   these nodes; the weight is 1 to 100, 1 if there is none
//	etcd://host:port,host:port/prefix     the values of the keys that begin with /prefix, each as host:port#weight
//	etcd:///prefix                        the same in the etcd of the control plane
//
// "" is the zero Place.
func ParsePlace(place, role string) (p Place, err error) {
	switch {
	case place == "":
	case strings.HasPrefix(place, staticScheme):
		p.Nodes, err = ParseNodes(strings.Split(strings.TrimPrefix(place, staticScheme), ","), role)
	case strings.HasPrefix(place, etcdScheme):
		hosts, prefix, _ := strings.Cut(strings.TrimPrefix(place, etcdScheme), "/")
		if prefix == "" {
			return p, fmt.Errorf("%q names no prefix", place)
		}
		p.Prefix = "/" + prefix
		if hosts != "" {
			p.Hosts = strings.Split(hosts, ",")
		}
		for _, h := range p.Hosts {
			if host, port, err := net.SplitHostPort(h); err != nil || host == "" || port == "" {
				return p, fmt.Errorf("%q is not host:port", h)
			}
		}
	default:
		err = fmt.Errorf("%q begins neither with %s nor with %s", place, staticScheme, etcdScheme)
	}
	return p, err
}

// ParseNodes reads nodes of a role from items of the form host:port#weight.
func ParseNodes(items []string, role string) ([]control.Node, error) {
	out := []control.Node{}
	seen := map[string]bool{}
	for _, item := range items {
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

package drill

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"regexp"
	"slices"
	"strings"

	"go.yaml.in/yaml/v3"
)

// Layout is a cluster: which nodes there are and what they are told.
type Layout struct {
	// Nodes are started in this order.
	Nodes []NodeSpec `yaml:"nodes"`
	// Set are assignments KEY=VALUE for every node.
	Set []string `yaml:"set"`
	// Etcd is how many members of an etcd cluster, m1 and so on, run as processes of
	// their own, for all nodes: 1, 3 or 5. 0 = each node runs a server inside.
	Etcd int `yaml:"etcd"`
	// Postgres says that one server of its own keeps the messages of all nodes.
	Postgres bool `yaml:"postgres"`
	// Redis says that one server of its own remembers acknowledged sends for all nodes, and their
	// routes if Set says storage.routes=redis.
	Redis bool `yaml:"redis"`
	// Hosts says that each node is on a host of its own: a network namespace. The nodes have
	// not all roles, and the drill is root in a process with a network of its own.
	Hosts bool `yaml:"hosts"`
	// Witnesses is how many processes, w1 and so on, take part in the control plane
	// and tell what they see: up to 50. They want Etcd.
	Witnesses int `yaml:"witnesses"`
}

// NodeSpec is one node.
type NodeSpec struct {
	Name  string   `yaml:"name"`  // letters, digits and dashes; unique
	Roles string   `yaml:"roles"` // as of serve; all = everything in one process
	Set   []string `yaml:"set"`   // assignments KEY=VALUE
	Env   []string `yaml:"env"`   // further environment, NAME=VALUE
	// Clients says that devices connect to this node, through its proxy.
	Clients bool `yaml:"clients"`
}

// AllInOne is the default: one node with every role.
func AllInOne() Layout {
	return Layout{Nodes: []NodeSpec{{Name: "n1", Roles: "all", Clients: true}}}
}

// ControlPlane is three members of etcd, two nodes with every role, of which one
// has clients, and three witnesses.
func ControlPlane() Layout {
	return Layout{Etcd: 3, Witnesses: 3, Nodes: []NodeSpec{{Name: "n1", Roles: "all", Clients: true}, {Name: "n2", Roles: "all"}}}
}

// OnPostgres is one node with every role, which keeps messages in Postgres and
// remembers sends in Redis.
func OnPostgres() Layout {
	l := AllInOne()
	l.Postgres, l.Redis, l.Set = true, true, []string{routesInRedis}
	return l
}

// SplitRoles is two processes of each role; clients connect to both gateways.
func SplitRoles() Layout {
	return Layout{Etcd: 1, Postgres: true, Redis: true, Set: []string{routesInRedis}, Nodes: []NodeSpec{
		{Name: "g1", Roles: "gateway", Clients: true}, {Name: "g2", Roles: "gateway", Clients: true},
		{Name: "s1", Roles: "state"}, {Name: "s2", Roles: "state"},
		{Name: "p1", Roles: "push"}, {Name: "p2", Roles: "push"},
		{Name: "c1", Roles: "scheduler"}, {Name: "c2", Roles: "scheduler"},
	}}
}

// SplitOverHTTP is SplitRoles with calls that travel as requests of HTTP/2.
func SplitOverHTTP() Layout {
	l := SplitRoles()
	l.Set = append(l.Set, callsOverHTTP)
	return l
}

// OnHosts is SplitRoles with each process on a host of its own.
func OnHosts() Layout {
	l := SplitRoles()
	l.Hosts = true
	return l
}

// Layouts are those that have a name.
func Layouts() map[string]Layout {
	return map[string]Layout{"one": AllInOne(), "control": ControlPlane(), "postgres": OnPostgres(), "split": SplitRoles(), "split-http": SplitOverHTTP(), "hosts": OnHosts()}
}

// callsOverHTTP is the assignment that lets calls between nodes travel as requests.
const callsOverHTTP = "peers.transport=http"

// pipes reports whether calls between nodes travel over pipes.
func (l Layout) pipes() bool { return !slices.Contains(l.Set, callsOverHTTP) }

// routesInRedis is the assignment that puts routes into the Redis of the drill.
const routesInRedis = "storage.routes=redis"

// routes reports whether the routes are in the Redis of the drill.
func (l Layout) routes() bool { return l.Redis && slices.Contains(l.Set, routesInRedis) }

// effects reports whether it is looked at what leaders do.
func (l Layout) effects() bool { return l.Postgres && l.leaders() > 0 }

// leaders is how many nodes can lead the scheduler.
func (l Layout) leaders() (n int) {
	for _, s := range l.Nodes {
		if s.has("scheduler") {
			n++
		}
	}
	return n
}

// split reports whether the roles are in several processes.
func (l Layout) split() bool {
	return slices.ContainsFunc(l.Nodes, func(n NodeSpec) bool { return n.apart() })
}

// has reports whether the node has the role, alone or beside others.
func (n NodeSpec) has(role string) bool {
	return !n.apart() || slices.Contains(strings.Split(n.Roles, ","), role)
}

// apart reports whether the node has not all roles.
func (n NodeSpec) apart() bool { return n.Roles != "all" }

var nodeName = regexp.MustCompile(`^[a-z0-9][a-z0-9-]{0,31}$`)

// ReadLayout reads a layout from a YAML file. Unknown keys are errors.
func ReadLayout(path string) (Layout, error) {
	data, err := os.ReadFile(path)
	if err != nil {
		return Layout{}, err
	}
	l, err := parseLayout(data)
	if err != nil {
		return Layout{}, fmt.Errorf("layout %s: %w", path, err)
	}
	return l, nil
}

func parseLayout(data []byte) (Layout, error) {
	var l Layout
	dec := yaml.NewDecoder(bytes.NewReader(data))
	dec.KnownFields(true)
	if err := dec.Decode(&l); err != nil && !errors.Is(err, io.EOF) {
		return Layout{}, err
	}
	return l, l.check()
}

// check reports what makes no cluster.
func (l Layout) check() error {
	switch {
	case len(l.Nodes) == 0 && l.Etcd == 0 && l.Witnesses == 0:
		return errors.New("there are no nodes")
	case l.Etcd != 0 && l.Etcd != 1 && l.Etcd != 3 && l.Etcd != 5:
		return fmt.Errorf("etcd: %d members; 0, 1, 3 or 5 make sense", l.Etcd)
	case l.Witnesses < 0 || l.Witnesses > 50:
		return fmt.Errorf("witnesses: %d is not within 0 and 50", l.Witnesses)
	case l.Witnesses > 0 && l.Etcd == 0:
		return errors.New("witnesses want members of etcd")
	}
	names := []string{databaseProcess, cacheProcess}
	for i := range l.Etcd {
		names = append(names, memberName(i))
	}
	for i := range l.Witnesses {
		names = append(names, witnessName(i))
	}
	clients := false
	for i, n := range l.Nodes {
		switch {
		case !nodeName.MatchString(n.Name):
			return fmt.Errorf("nodes[%d]: %q is no name of small letters, digits and dashes", i, n.Name)
		case slices.Contains(names, n.Name):
			return fmt.Errorf("nodes[%d]: there is a node %s already", i, n.Name)
		case n.Roles == "":
			return fmt.Errorf("node %s has no roles", n.Name)
		}
		names = append(names, n.Name)
		clients = clients || n.Clients
	}
	switch {
	case !clients:
		return errors.New("no node takes clients")
	case l.Hosts && slices.ContainsFunc(l.Nodes, func(n NodeSpec) bool { return !n.apart() }), l.Hosts && l.Etcd > 1:
		return errors.New("hosts are for nodes without all roles, and one member of etcd at most")
	case l.split() && l.Etcd == 0:
		return errors.New("nodes without all roles want members of etcd")
	}
	return nil
}

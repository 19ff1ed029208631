package drill

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"regexp"
	"slices"

	"go.yaml.in/yaml/v3"
)

// Layout is a cluster: which nodes there are and what they are told.
type Layout struct {
	// Nodes are started in this order.
	Nodes []NodeSpec `yaml:"nodes"`
	// Set are assignments KEY=VALUE for every node.
	Set []string `yaml:"set"`
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
	if len(l.Nodes) == 0 {
		return errors.New("there are no nodes")
	}
	var names []string
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
	if !clients {
		return errors.New("no node takes clients")
	}
	return nil
}

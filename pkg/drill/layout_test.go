package drill

import (
	"reflect"
	"strings"
	"testing"
)

func TestLayouts(t *testing.T) {
	l, err := parseLayout([]byte("set: [gateway.ping_interval=5s]\nnodes:\n- {name: a, roles: all, clients: true, set: [log.level=debug], env: [A=b]}\n"))
	want := Layout{Set: []string{"gateway.ping_interval=5s"},
		Nodes: []NodeSpec{{Name: "a", Roles: "all", Clients: true, Set: []string{"log.level=debug"}, Env: []string{"A=b"}}}}
	if err != nil || !reflect.DeepEqual(l, want) {
		t.Errorf("read as %+v, %v", l, err)
	}
	for name, l := range Layouts() {
		if err := l.check(); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	l, err = parseLayout([]byte("etcd: 1\npostgres: true\nnodes: [{name: a, roles: all, clients: true}, {name: b, roles: all}]"))
	if cut, kill := traitOf(LeaderCut).why(l), traitOf(LeaderKill).why(l); err != nil || !strings.Contains(cut, "several processes") || kill != "" {
		t.Errorf("two nodes of all roles, which are on no network: %v, a leader cannot be cut off because the drill %q, and cannot be killed because it %q", err, cut, kill)
	}
	for text, want := range map[string]string{
		"":         "no nodes",
		"nodes: 7": "unmarshal",
		"nodes: [{name: a, roles: all, clients: true, colour: red}]": "colour",
		"nodes: [{name: A, roles: all, clients: true}]":              "no name",
		"nodes: [{name: a, clients: true}]":                          "no roles",
		"etcd: 2":                                                    "2 members", "witnesses: 1": "want members", "witnesses: 99": "99",
		"etcd: 3\nnodes: [{name: m1, roles: all, clients: true}]":                "already",
		"nodes: [{name: a, roles: \"gateway,push\", clients: true}]":             "want members",
		"nodes: [{name: redis, roles: all, clients: true}]":                      "already",
		"nodes: [{name: a, roles: all}]":                                         "no node takes clients",
		"nodes: [{name: a, roles: all, clients: true}, {name: a, roles: state}]": "already",
	} {
		if _, err := parseLayout([]byte(text)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, want %q", text, err, want)
		}
	}
}

package cmd

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// Combinations of roles and stores that cannot be right are refused before
// anything is opened.
func TestSplitRolesAreChecked(t *testing.T) {
	etcd := "controlplane.endpoints=http://127.0.0.1:2379"
	url := filepath.Join(t.TempDir(), "redis")
	if err := os.WriteFile(url, []byte("redis://h:1"), 0o600); err != nil {
		t.Fatal(err)
	}
	for name, tt := range map[string]struct {
		roles string
		set   []string
		says  string // "" = it is good
	}{
		"all":                     {"all", nil, ""},
		"no etcd":                 {"gateway,push", nil, "the etcd server inside the process cannot be reached"},
		"two processes":           {"gateway,push", []string{etcd}, ""},
		"the other of them":       {"state,scheduler", []string{etcd}, ""},
		"routes in two processes": {"gateway,state,scheduler", []string{etcd}, "gateway without push, but routes in the memory"},
		"routes in redis":         {"gateway,state,scheduler", []string{etcd, "storage.routes=redis", "redis.url_file=" + url}, ""},
		"redis is not named":      {"all", []string{"storage.routes=redis"}, "redis.url: is missing, but storage.routes is redis"},
		"routes in etcd":          {"gateway,state,scheduler", []string{etcd, "storage.routes=etcd"}, ""},
		"etcd is not named":       {"all", []string{"storage.routes=etcd"}, "controlplane.endpoints: is missing, but storage.routes is etcd"},
		"no such routes":          {"all", []string{"storage.routes=x"}, "storage.routes"},
		"sqlite in two processes": {"gateway,push,state", []string{etcd}, "state without scheduler, but messages in SQLite"},
		"clear text":              {"all", []string{"peers.listen=192.0.2.1:8422"}, "peers.listen: 192.0.2.1:8422 is open to other machines"},
		"no key":                  {"all", []string{"peers.listen=192.0.2.1:8422", "peers.allow_plaintext=true"}, "peers.key_file: is needed"},
		"no address":              {"all", []string{"peers.listen=:8422", "peers.allow_plaintext=true", "peers.key_file=k"}, "peers.advertise: is needed"},
		"half of tls":             {"all", []string{"peers.tls.ca_file=x"}, "ca_file, cert_file and key_file belong together"},
		"few points":              {"all", []string{"peers.points=10"}, "peers.points: 10 is not within 100 and 1000"},
		"bad place":               {"all", []string{"peers.state=etcd"}, "peers.state"},
		"same address":            {"gateway,push", []string{etcd, "gateway.listen=127.0.0.1:8422"}, "is the address of"},
	} {
		var out, errOut bytes.Buffer
		a := &app{specs: specs(), out: &out, errOut: &errOut}
		args := []string{"config", "check", "--roles", tt.roles}
		for _, s := range tt.set {
			args = append(args, "--set", s)
		}
		want := exitOK
		if tt.says != "" {
			want = exitConfig
		}
		if got := a.run(t.Context(), args); got != want || !strings.Contains(errOut.String(), tt.says) {
			t.Errorf("%s: exit %d, want %d: %s", name, got, want, &errOut)
		}
	}
}

// A node that shares its messages with others opens the internal listener also if
// it has all roles.
func TestWhoIsCalledByOthers(t *testing.T) {
	etcd, postgres := "controlplane.endpoints=http://127.0.0.1:2379", "storage.postgres_file="+filepath.Join(t.TempDir(), "dsn")
	if err := os.WriteFile(strings.TrimPrefix(postgres, "storage.postgres_file="), []byte("postgres://u@h/d"), 0o600); err != nil {
		t.Fatal(err)
	}
	for name, tt := range map[string]struct {
		roles string
		set   []string
		want  string // where; "" = nowhere
	}{
		"laptop":             {"all", nil, ""},
		"etcd of others":     {"all", []string{etcd}, ""},
		"Postgres alone":     {"all", []string{postgres}, ""},
		"both":               {"all", []string{etcd, postgres}, "127.0.0.1:8422"},
		"split":              {"gateway,push", []string{etcd}, "127.0.0.1:8422"},
		"an address is said": {"all", []string{etcd, postgres, "peers.listen=127.0.0.1:0"}, "127.0.0.1:0"},
	} {
		a := &app{specs: specs()}
		l, err := (&settingFlags{app: a, cmd: newServe(a), pairs: append([]string{"roles=" + tt.roles}, tt.set...)}).load()
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		got := ""
		for _, ln := range l.listeners() {
			if ln.key == "peers.listen" {
				got = ln.address
			}
		}
		if got != tt.want {
			t.Errorf("%s: %q, want %q", name, got, tt.want)
		}
	}
}

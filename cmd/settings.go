package cmd

import (
	"fmt"
	"net"
	"net/url"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/imdhq/imd/modules/peers"
	"github.com/imdhq/imd/modules/storage"
	"github.com/imdhq/imd/pkg/auth"
	"github.com/imdhq/imd/pkg/config"
	"github.com/imdhq/imd/pkg/datadir"
	"github.com/imdhq/imd/pkg/module"
	"github.com/imdhq/imd/pkg/obs"
	"github.com/imdhq/imd/pkg/settings"
	"github.com/imdhq/imd/pkg/store"
)

// topConfig is the keys that stand at the top of the file.
type topConfig struct {
	Roles   []string `mapstructure:"roles" doc:"Roles of this node: all, or some of gateway, state, push, scheduler. Default all."`
	DataDir string   `mapstructure:"data_dir" doc:"Folder for keys, messages and the embedded etcd. Default: imd below $XDG_DATA_HOME or ~/.local/share."`
}

// nodeConfig is the section "node".
type nodeConfig struct {
	Name  string        `mapstructure:"name" doc:"Name of the node in the cluster, 1 to 64 of a-z A-Z 0-9 . _ -. Default: made at the first start and kept in the data folder."`
	Grace time.Duration `mapstructure:"grace" doc:"How long a stop may take in all, 5s to 10m; the service manager must wait longer. Default 35s."`
}

// Validate reports every problem at once, each with its key.
func (c nodeConfig) Validate() error {
	if c.Name != "" && !datadir.ValidNode(c.Name) {
		return fmt.Errorf("node.name: %q is not 1 to 64 of a-z A-Z 0-9 . _ -", c.Name)
	}
	if c.Grace < 5*time.Second || c.Grace > 10*time.Minute {
		return fmt.Errorf("node.grace: %v is not within 5s and 10m", c.Grace)
	}
	return nil
}

// sectionDocs introduce the sections in the example file.
var sectionDocs = map[string]string{
	"controlplane": "How nodes find each other.",
	"storage":      "Where messages and routes are kept.",
	"state":        "The role that orders and stores messages.",
	"push":         "The role that hands new messages to the gateways.",
	"gateway":      "The role that talks to clients.",
	"scheduler":    "The role that does what only one node may do.",
	"tracing":      "Spans of OpenTelemetry.",
	"peers":        "How processes with different roles call each other.",
}

// schema registers the node's own sections and those of all modules.
func schema(specs []module.Spec) (*config.Schema, error) {
	sections := []config.Section{
		{New: func() any { return &topConfig{Roles: []string{module.All}} }},
		{Name: "node", Doc: "This process.", New: func() any { return &nodeConfig{Grace: module.DefaultGrace} }},
		{Name: "log", Doc: "What is written to standard error.", New: func() any { c := obs.DefaultLogConfig(); return &c }},
		{Name: "ops", Doc: "The listener for operators.", New: func() any { c := obs.DefaultOpsConfig(); return &c }},
		{Name: "auth", Doc: "Whose tokens are believed.", New: func() any { c := auth.DefaultConfig(); return &c }},
		{Name: "seq", Doc: "How entries get their numbers.", New: func() any { c := storage.DefaultSeqConfig(); return &c }},
		{Name: "redis", Doc: "Redis, for what is kept there.", New: func() any { c := storage.DefaultRedisConfig(); return &c }},
	}
	for _, s := range specs {
		if s.Config != nil {
			sections = append(sections, config.Section{Name: s.Name, Doc: sectionDocs[s.Name], New: s.Config})
		}
	}
	return config.NewSchema(sections, nil)
}

// hotSettings is what all modules declare as changeable while nodes run,
// whatever roles this node has: all nodes judge a change alike.
func hotSettings(specs []module.Spec) (*settings.Registry, error) {
	var all []settings.Schema
	for _, s := range specs {
		all = append(all, s.Settings)
	}
	return settings.NewRegistry(module.Roles(specs), all...)
}

// startValue is what the configuration gives a setting of the same name, and
// the place that says so; see admin.StartValue.
func (l *loaded) startValue(key string) (value, place string) {
	return l.values.Text(key), l.values.Where(key)
}

// otherVariables are IMD_* variables that are no configuration of a node.
var otherVariables = []string{"IMD_CONFIG", "IMD_SERVER", "IMD_TOKEN_FILE", "IMD_TEST_*"}

// settingFlags are the flags that set keys.
type settingFlags struct {
	app   *app
	cmd   *cobra.Command
	file  string
	named map[string]*string // flag -> value
	pairs []string           // --set
}

// flagKeys are the keys that have a flag of their own.
var flagKeys = []struct{ flag, key, usage string }{
	{"roles", "roles", "roles of this node: all, or some of gateway,state,push,scheduler (default: all)"},
	{"data-dir", "data_dir", "folder for keys and data (default: $IMD_DATA_DIR, else imd below $XDG_DATA_HOME or ~/.local/share)"},
	{"listen", "gateway.listen", "host:port for clients; port 0 picks a free one (default: 127.0.0.1:8420)"},
	{"ops-listen", "ops.listen", "host:port for probes, metrics and admin services (default: 127.0.0.1:8421)"},
	{"postgres", "storage.postgres", "data source name of the Postgres that keeps the messages, without a password (default: none, SQLite)"},
	{"postgres-file", "storage.postgres_file", "file with the data source name of the Postgres (default: none)"},
	{"node-name", "node.name", "name of this node in the cluster (default: made at the first start and kept)"},
	{"log-level", "log.level", "debug, info, warn or error (default: info)"},
	{"log-format", "log.format", "auto, json or console; auto is console on a terminal (default: auto)"},
}

// addSettings gives a command the flags that set keys.
func addSettings(a *app, c *cobra.Command) *settingFlags {
	s := &settingFlags{app: a, cmd: c, named: map[string]*string{}}
	c.Flags().StringVar(&s.file, "config", "", "configuration file (default: $IMD_CONFIG, else none)")
	for _, f := range flagKeys {
		s.named[f.flag] = c.Flags().String(f.flag, "", f.usage)
	}
	c.Flags().StringArrayVar(&s.pairs, "set", nil, "set any key of imd config docs: --set auth.issuer=shop (repeatable)")
	return s
}

// addKeySettings is addSettings for commands that use the keys of a data folder
// and the section auth: the other flags are taken, so that one set of flags fits
// all commands, but not shown.
func addKeySettings(a *app, c *cobra.Command) *settingFlags {
	return addSettings(a, c).only("data_dir")
}

// only shows the flags of the given keys; the others are taken, and hidden.
func (s *settingFlags) only(keys ...string) *settingFlags {
	for _, f := range flagKeys {
		if !slices.Contains(keys, f.key) {
			s.cmd.Flags().Lookup(f.flag).Hidden = true
		}
	}
	return s
}

// flagFor is how a key can be given on the command line.
func flagFor(key string) string {
	for _, f := range flagKeys {
		if f.key == key {
			return "--" + f.flag
		}
	}
	return "--set " + key + "=..."
}

// assigns are the keys that the command line sets.
func (s *settingFlags) assigns() ([]config.Assign, error) {
	var out []config.Assign
	for _, p := range s.pairs {
		key, value, ok := strings.Cut(p, "=")
		if !ok {
			return nil, usagef("--set %s: must be key=value", p)
		}
		out = append(out, config.Assign{Key: key, Value: value, Flag: "--set"})
	}
	for _, f := range flagKeys {
		if s.cmd.Flags().Changed(f.flag) {
			value := *s.named[f.flag]
			out = append(out, config.Assign{Key: f.key, Value: value, Flag: "--" + f.flag, Open: withoutPassword(value)})
		}
	}
	return out, nil
}

// withoutPassword reports whether value is a data source name that holds no
// password, so that it may stand on a command line.
func withoutPassword(value string) bool {
	u, err := url.Parse(value)
	if err != nil || u.Scheme == "" {
		return false
	}
	_, has := u.User.Password()
	return !has && !strings.Contains(u.RawQuery, "password")
}

// loaded is a configuration that was read and checked for the chosen roles.
type loaded struct {
	values   *config.Values
	top      topConfig
	node     nodeConfig
	log      obs.LogConfig
	ops      obs.OpsConfig
	auth     auth.Config
	roles    []string
	chosen   []module.Spec // the roles and what they need, in the order of start
	allRoles int           // how many there are
	file     string
}

// load reads the configuration. It opens nothing but files.
func (s *settingFlags) load() (*loaded, error) {
	sch, err := schema(s.app.specs)
	if err != nil {
		return nil, err
	}
	flags, err := s.assigns()
	if err != nil {
		return nil, err
	}
	l := &loaded{file: s.file}
	if l.file == "" {
		l.file = s.app.getenv("IMD_CONFIG")
	}
	l.values, err = sch.Load(config.Inputs{File: l.file, Environ: s.app.environ, Flags: flags, Ignore: otherVariables})
	if err != nil {
		return nil, err
	}
	for name, into := range map[string]any{"": &l.top, "node": &l.node, "log": &l.log, "ops": &l.ops, "auth": &l.auth} {
		if err := l.values.Decode(name, into); err != nil {
			return nil, err
		}
	}
	if l.roles, err = module.ChooseRoles(s.app.specs, l.top.Roles); err != nil {
		return nil, err
	}
	if l.chosen, err = module.Order(s.app.specs, l.roles); err != nil {
		return nil, err
	}
	l.allRoles = len(module.Roles(s.app.specs))
	return l, l.combination()
}

// combination refuses settings that are good one by one and wrong together.
func (l *loaded) combination() error {
	seen := map[string]string{}
	for _, ln := range l.listeners() {
		if _, port, err := net.SplitHostPort(ln.address); err != nil {
			return config.Errorf(ln.key, "%q is not host:port", ln.address)
		} else if _, err := net.LookupPort("tcp", port); err != nil {
			return config.Errorf(ln.key, "%q has no port from 0 to 65535", ln.address)
		}
		if other, twice := seen[ln.address]; twice && !strings.HasSuffix(ln.address, ":0") {
			return config.Errorf(ln.key, "%s is the address of %s already", ln.address, other)
		}
		seen[ln.address] = ln.key
	}
	for _, key := range []string{"storage.dedup", "storage.routes"} {
		if l.values.Text(key) == "redis" && l.values.Text("redis.url") == "" {
			return config.Errorf("redis.url", "is missing, but %s is redis; set redis.url_file or IMD_REDIS_URL", key)
		}
	}
	if l.values.Text("storage.routes") == "etcd" && strings.Trim(l.values.Text("controlplane.endpoints"), "[]") == "" {
		return config.Errorf("controlplane.endpoints", "is missing, but storage.routes is etcd; one process alone keeps its routes in memory")
	}
	if l.values.Text("seq.allocator") == store.Segment && l.values.Text("storage.postgres") == "" {
		return config.Errorf("seq.allocator", "segment needs a Postgres; give --postgres-file, or set it to transaction")
	}
	if !l.split() {
		return nil
	}
	if strings.Trim(l.values.Text("controlplane.endpoints"), "[]") == "" {
		return config.Errorf("controlplane.endpoints", "this node has only the roles %s, but the etcd server inside the process cannot be reached by the nodes that have the others; start one with imd etcd and name it",
			strings.Join(l.roles, ", "))
	}
	for _, local := range l.local() {
		var here, missing []string
		for _, r := range local.users {
			if slices.Contains(l.roles, r) {
				here = append(here, r)
			} else {
				missing = append(missing, r)
			}
		}
		if len(here) > 0 && len(missing) > 0 {
			return config.Errorf("roles", "%s without %s, but %s (%s) cannot be shared with the process that has it; run both in one process",
				strings.Join(here, ", "), strings.Join(missing, ", "), local.what, local.key)
		}
	}
	return nil
}

// localStore is a store that only one process can use.
type localStore struct {
	key, scheme, what string
	users             []string // the roles that use it
}

// local lists the stores of this configuration that only one process can use.
func (l *loaded) local() []localStore {
	return slices.DeleteFunc([]localStore{
		{"storage.routes", "memory", "routes in the memory of one process", []string{"gateway", "push"}},
		{"storage.dsn", "sqlite", "messages in SQLite", []string{"state", "scheduler"}},
	}, func(s localStore) bool {
		if s.key == "storage.dsn" && l.values.Text("storage.postgres") != "" {
			return true
		}
		v := l.values.Text(s.key)
		return v != s.scheme && !strings.HasPrefix(v, s.scheme+":")
	})
}

// unshared says what each role of this node keeps for itself.
func (l *loaded) unshared() map[string]string {
	out := map[string]string{}
	for _, s := range l.local() {
		for _, r := range s.users {
			if slices.Contains(l.roles, r) {
				out[r] = s.what + " (" + s.key + ")"
			}
		}
	}
	return out
}

// split reports whether some role is not here.
func (l *loaded) split() bool { return len(l.roles) < l.allRoles }

// dataDir is the folder to use.
func (l *loaded) dataDir(getenv func(string) string) (string, error) {
	if l.top.DataDir != "" {
		return l.top.DataDir, nil
	}
	if dir := datadir.Default(getenv); dir != "" {
		return dir, nil
	}
	return "", config.Errorf("data_dir", "there is no home folder; give --data-dir")
}

// listener is an address that this process will bind.
type listener struct{ key, address string }

// listeners lists the addresses of the chosen modules and of the node itself.
func (l *loaded) listeners() []listener {
	names := []string{"ops"}
	for _, s := range l.chosen {
		names = append(names, s.Name)
	}
	var out []listener
	for _, n := range names {
		addr := l.values.Text(n + ".listen")
		if n == "peers" && addr == "" && l.split() {
			addr = peers.DefaultListen
		}
		if addr != "" {
			out = append(out, listener{n + ".listen", addr})
		}
	}
	return out
}

// localOnly refuses a key that everybody knows on an address that others can
// reach.
func (l *loaded) localOnly(why string) error {
	for _, ln := range l.listeners() {
		if !obs.Loopback(ln.address) {
			return config.Errorf(ln.key, "%s is open to other machines, but %s; use a loopback address such as 127.0.0.1:0", ln.address, why)
		}
	}
	return nil
}

// free reports the first address that is taken, before anything else starts.
func free(all []listener) error {
	for _, ln := range all {
		probe, err := net.Listen("tcp", ln.address)
		if err != nil {
			return taken(ln, err)
		}
		if err := probe.Close(); err != nil {
			return err
		}
	}
	return nil
}

func taken(ln listener, err error) *failure {
	return newFailure(exitFailed, "listen",
		fmt.Sprintf("cannot listen on %s (%s): %s", ln.address, ln.key, obs.Cause(err)),
		fmt.Sprintf("choose another address with %s or %s", strings.Replace(flagFor(ln.key), "=...", "=HOST:PORT", 1), "IMD_"+strings.ToUpper(strings.ReplaceAll(ln.key, ".", "_"))))
}

// warn prints the warnings of a load.
func (l *loaded) warn(a *app) {
	for _, w := range l.values.Warnings {
		fmt.Fprintf(a.errOut, "imd: warning: %s\n", w)
	}
}

// isTerminal reports whether standard error is watched by a person.
func isTerminal() bool { return obs.Terminal(os.Stderr) }

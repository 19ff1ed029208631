package status

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"time"

	"github.com/imdhq/imd/pkg/control"
	"github.com/imdhq/imd/pkg/im"
	"github.com/imdhq/imd/pkg/peer"
	"github.com/imdhq/imd/pkg/settings"
	"github.com/imdhq/imd/pkg/store"
	"github.com/imdhq/imd/pkg/trace"
	v1 "github.com/imdhq/imd/proto/gen/internalv1"
	"github.com/imdhq/imd/sdk/go/protocol"
)

// routeLimit bounds a look into the route store.
const routeLimit = time.Second

// RouteLookup is what the page of routes asks of the route store.
type RouteLookup interface {
	Lookup(ctx context.Context, users []im.UserID) ([]store.Route, error)
}

// Deps is what the pages of every process tell of.
type Deps struct {
	Node    im.NodeID
	Roles   []string
	Started time.Time
	Version string
	State   func() control.State
	Control *control.Handle
	// Settings are those of the process; nil = there are none.
	Settings *settings.Live
	// Routes is the route store; its error says why there is none.
	Routes func() (RouteLookup, error)
	// Trace asks all nodes what they remember of a message.
	Trace func(context.Context, trace.Query) []peer.Remembered
	// History reads conversations as the system does.
	History historian
	// Tally is what the leader last told of the whole cluster; it gives nil while
	// none has.
	Tally func() *v1.Tally
	// Guard lets requests pass that may see what is about single users.
	Guard func(http.Handler) http.Handler
}

// Mount adds the pages that every process has.
func Mount(mount func(pattern string, h http.Handler), d Deps) {
	mount("GET /statusz/{$}", Handler(d.overview))
	mount("GET /statusz/nodes", Handler(d.nodes))
	mount("GET /statusz/leaders", Handler(d.leaders))
	mount("GET /statusz/settings", Handler(d.settings))
	mount("GET /statusz/stats", Handler(d.stats))
	mount("GET /statusz/trace/{message}", d.Guard(http.HandlerFunc(d.trace)))
	mount("GET /statusz/routes/{user}", d.Guard(http.HandlerFunc(d.routes)))
}

// Overview is one process in short.
type Overview struct {
	Node     string    `json:"node"`
	Roles    []string  `json:"roles"`
	State    string    `json:"state"`
	Version  string    `json:"version"`
	Started  time.Time `json:"started"`
	Nodes    int       `json:"nodes"`             // in its view
	Revision int64     `json:"revision"`          // of the view
	Stale    bool      `json:"stale"`             // etcd cannot be reached
	Settings int64     `json:"settings_revision"` // in force; 0 = nothing was ever set
	Leads    []string  `json:"leads"`             // elections that it won
}

func (d Deps) overview(*http.Request) (any, Page) {
	v := d.Control.View()
	o := Overview{Node: string(d.Node), Roles: d.Roles, State: string(d.State()), Version: d.Version, Started: d.Started,
		Nodes: len(v.Nodes), Revision: v.Revision, Stale: v.Stale, Leads: []string{}}
	if d.Settings != nil {
		o.Settings = d.Settings.State().Applied()
	}
	for _, l := range d.Control.Leaders().All {
		if l.Node == d.Node && !l.Gone {
			o.Leads = append(o.Leads, l.Name)
		}
	}
	return o, Page{Title: "node " + o.Node, Tables: []Table{{Columns: []string{"", ""}, Rows: [][]string{
		{"roles", strings.Join(o.Roles, ", ")}, {"state", o.State}, {"version", o.Version}, {"started", when(o.Started)},
		{"nodes in view", fmt.Sprint(o.Nodes)}, {"revision of the view", number(o.Revision, o.Stale)},
		{"settings revision", fmt.Sprint(o.Settings)}, {"leads", strings.Join(o.Leads, ", ")},
	}}}}
}

// NodeStatus is a node as the process sees it.
type NodeStatus struct {
	control.Node
	Standing string `json:"standing,omitempty"`
	Cordon   string `json:"cordon,omitempty"`
}

// NodesStatus is the view of the cluster.
type NodesStatus struct {
	Revision int64        `json:"revision"`
	Stale    bool         `json:"stale"`
	Nodes    []NodeStatus `json:"nodes"`
}

func (d Deps) nodes(*http.Request) (any, Page) {
	v := d.Control.View()
	out := NodesStatus{v.Revision, v.Stale, []NodeStatus{}}
	var rows [][]string
	for _, n := range v.Nodes {
		out.Nodes = append(out.Nodes, NodeStatus{n, string(n.Standing), n.Cordon})
		rows = append(rows, []string{string(n.ID), strings.Join(n.Roles, ", "), string(n.State), string(n.Standing), n.Cordon, n.Version, n.Zone, fmt.Sprint(n.Weight), n.Public, n.Ops, n.Internal, when(n.Started)})
	}
	return out, Page{Title: "nodes, revision " + number(v.Revision, v.Stale), Tables: []Table{{Rows: rows,
		Columns: []string{"node", "roles", "state", "registry", "cordon", "version", "zone", "weight", "public", "ops", "internal", "started"}}}}
}

// LeadersStatus is the leaders as the process sees them.
type LeadersStatus struct {
	Revision int64          `json:"revision"`
	Stale    bool           `json:"stale"`
	Leaders  []LeaderStatus `json:"leaders"`
}

// LeaderStatus is one leader.
type LeaderStatus struct {
	control.Leader
	Gone bool `json:"gone,omitempty"` // it has left and nobody has followed yet
}

func (d Deps) leaders(*http.Request) (any, Page) {
	l := d.Control.Leaders()
	out := LeadersStatus{l.Revision, l.Stale, []LeaderStatus{}}
	var rows [][]string
	for _, one := range l.All {
		out.Leaders = append(out.Leaders, LeaderStatus{one, one.Gone})
		state := "leads"
		if one.Gone {
			state = "has left"
		}
		rows = append(rows, []string{one.Name, string(one.Node), state, fmt.Sprint(one.Token), when(one.Since), one.Address})
	}
	return out, Page{Title: "leaders, revision " + number(l.Revision, l.Stale), Tables: []Table{{Rows: rows,
		Columns: []string{"election", "node", "state", "token", "since", "address"}}}}
}

// SettingsStatus is the settings in force.
type SettingsStatus struct {
	Revision int64 `json:"revision"`
	// Refused is the newest revision that was refused and still stands; 0 = none.
	Refused  int64           `json:"refused_revision,omitempty"`
	Reason   string          `json:"refused_reason,omitempty"`
	Settings []SettingStatus `json:"settings"`
}

// SettingStatus is one setting that somebody set.
type SettingStatus struct {
	Key   string `json:"key"`
	Value string `json:"value"`
	Scope string `json:"scope"`
}

func (d Deps) settings(*http.Request) (any, Page) {
	out := SettingsStatus{Settings: []SettingStatus{}}
	var rows [][]string
	if d.Settings != nil {
		s, now := d.Settings.State(), d.Settings.Current()
		out.Revision = s.Applied()
		out.Refused, out.Reason = s.Refused()
		for _, key := range d.Settings.Registry().Keys() {
			if e, ok := now.Get(key); ok {
				out.Settings = append(out.Settings, SettingStatus{key, e.Text, fmt.Sprint(e.Scope)})
				rows = append(rows, []string{key, e.Text, fmt.Sprint(e.Scope)})
			}
		}
	}
	p := Page{Title: fmt.Sprintf("settings, revision %d", out.Revision), Tables: []Table{{Columns: []string{"setting", "value", "set for"}, Rows: rows}}}
	if out.Refused > 0 {
		p.Tables = append(p.Tables, Table{"refused", []string{"revision", "why"}, [][]string{{fmt.Sprint(out.Refused), out.Reason}}})
	}
	return out, p
}

// RoutesStatus is where a user is.
type RoutesStatus struct {
	User   string        `json:"user_id"`
	Routes []RouteStatus `json:"routes"`
}

// RouteStatus is one session of the user.
type RouteStatus struct {
	Session string    `json:"session_id"`
	Login   string    `json:"login_id"`
	Device  string    `json:"device_id"`
	Class   string    `json:"class"`
	Node    string    `json:"node_id"`
	Epoch   uint64    `json:"route_epoch,string"`
	Since   time.Time `json:"since"`
}

func (d Deps) routes(w http.ResponseWriter, r *http.Request) {
	out := RoutesStatus{User: r.PathValue("user"), Routes: []RouteStatus{}}
	if !protocol.ValidID(out.User) {
		http.Error(w, "a user id is 1 to 64 of A-Z a-z 0-9 . _ - @ +", http.StatusBadRequest)
		return
	}
	routes, err := d.Routes()
	if err != nil {
		http.Error(w, "this process has no route store; ask one with the role gateway or push", http.StatusNotFound)
		return
	}
	ctx, cancel := context.WithTimeout(r.Context(), routeLimit)
	defer cancel()
	found, err := routes.Lookup(ctx, []im.UserID{im.UserID(out.User)})
	if err != nil {
		http.Error(w, "the route store does not answer", http.StatusServiceUnavailable)
		return
	}
	var rows [][]string
	for _, f := range found {
		out.Routes = append(out.Routes, RouteStatus{string(f.Session), string(f.Login), string(f.Device), string(f.Class), string(f.Node), f.Epoch, f.Since})
		rows = append(rows, []string{string(f.Session), string(f.Login), string(f.Device), string(f.Class), string(f.Node), fmt.Sprint(f.Epoch), when(f.Since)})
	}
	Handler(func(*http.Request) (any, Page) {
		return out, Page{Title: "routes of " + out.User, Tables: []Table{{Rows: rows, Columns: []string{"session", "login", "device", "class", "node", "route epoch", "since"}}}}
	}).ServeHTTP(w, r)
}

// when is a time as pages show it; "" for none.
func when(t time.Time) string {
	if t.IsZero() {
		return ""
	}
	return t.UTC().Format(time.RFC3339)
}

// number is a revision, and whether it may be old.
func number(rev int64, stale bool) string {
	if stale {
		return fmt.Sprintf("%d (may be old: etcd cannot be reached)", rev)
	}
	return fmt.Sprint(rev)
}

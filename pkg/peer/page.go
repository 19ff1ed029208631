package peer

import (
	"bytes"
	"encoding/json"
	"fmt"
	"html/template"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/imdhq/imd/pkg/balance"
	"github.com/imdhq/imd/pkg/ring"
	"github.com/imdhq/imd/pkg/status/look"
)

// Report is what this process knows of the others.
type Report struct {
	Node    string         `json:"node"`
	Peers   []PeerReport   `json:"peers"`
	Roles   []RoleReport   `json:"roles"`
	Methods []MethodReport `json:"methods"`
}

// PeerReport is another process.
type PeerReport struct {
	ID       string   `json:"id"`
	BootID   string   `json:"boot_id"`
	Address  string   `json:"address"`
	Roles    []string `json:"roles"`
	State    string   `json:"state"`
	Zone     string   `json:"zone,omitempty"`
	Version  string   `json:"version,omitempty"`
	InFlight int64    `json:"in_flight"`
	Open     int64    `json:"open_connections"`
	Trouble  string   `json:"trouble,omitempty"` // why the last call or probe failed
}

// RoleReport is the nodes that get the calls of a role.
type RoleReport struct {
	Role     string      `json:"role"`
	Budget   float64     `json:"budget_tokens"`
	Ejected  uint64      `json:"ejections"`
	Returned uint64      `json:"returns"`
	Spared   uint64      `json:"ejections_forbidden"` // half of the nodes were out already
	Nodes    []RolePlace `json:"nodes"`
}

// RolePlace is one node of a role.
type RolePlace struct {
	ID        string           `json:"id"`
	Self      bool             `json:"self,omitempty"` // this process
	Weight    int              `json:"weight"`
	Standing  balance.Standing `json:"standing"`
	LatencyMS float64          `json:"latency_ms"` // usual; 0 = not known
}

// MethodReport is how a method is called now.
type MethodReport struct {
	Name   string `json:"name"`
	Picker string `json:"picker"` // "node" = the caller names it
	By     string `json:"by"`     // what the key is, for pickers that have one
	Repeat string `json:"repeat"`
	Class  string `json:"criticality"`
}

// Report tells what this process knows of the others.
func (s *Set) Report() Report {
	r := Report{Node: string(s.node), Peers: []PeerReport{}}
	if p := s.others.Load(); p != nil {
		for _, o := range *p {
			n := o.node
			r.Peers = append(r.Peers, PeerReport{
				ID: o.id(), BootID: n.BootID, Address: n.Internal, Roles: n.Roles, State: string(n.State), Zone: n.Zone, Version: n.Version,
				InFlight: o.remote.inFlight.Load(), Open: o.remote.open.Load(), Trouble: o.remote.ails(),
			})
		}
	}
	slices.SortFunc(r.Peers, func(a, b PeerReport) int { return strings.Compare(a.ID, b.ID) })
	names := map[string]string{}
	for _, g := range s.groups() {
		r.Roles = append(r.Roles, g.tell(names))
	}
	for _, m := range Methods() {
		picker := m.Picker()
		switch {
		case names[m.Name] != "" && picker != "":
			picker = names[m.Name]
		case picker == "":
			picker = "node"
		}
		r.Methods = append(r.Methods, MethodReport{m.Name, picker, word(m.Pick.String(), "PICK_"), word(m.Repeat.String(), "REPEAT_"), m.Class.String()})
	}
	return r
}

// tell tells of the group; names gets the pickers in use.
func (g *group) tell(names map[string]string) RoleReport {
	g.mu.Lock()
	defer g.mu.Unlock()
	for m, n := range g.names {
		names[m] = n
	}
	c := g.eject.Count
	r := RoleReport{Role: g.role, Budget: g.budget.Tokens(time.Now()), Ejected: c.Ejected, Returned: c.Returned, Spared: c.Spared, Nodes: []RolePlace{}}
	for _, p := range g.places {
		x := RolePlace{ID: p.id(), Self: p.remote == nil, Weight: max(p.node.Weight, 1), Standing: g.eject.Standing(p.id())}
		if e := g.latency[p.id()]; e != nil {
			x.LatencyMS = float64(e.Value(time.Now())) / 1e6
		}
		r.Nodes = append(r.Nodes, x)
	}
	return r
}

// word is an enum value as people read it.
func word(value, prefix string) string {
	return strings.ReplaceAll(strings.ToLower(strings.TrimPrefix(value, prefix)), "_", " ")
}

// RingReport is the ring of a role as this process sees it.
type RingReport struct {
	Role   string     `json:"role"`
	Points int        `json:"points"`
	Nodes  []RingNode `json:"nodes"`
	Key    *RingKey   `json:"key,omitempty"`
}

// RingNode is a node on a ring.
type RingNode struct {
	ID     string  `json:"id"`
	Weight int     `json:"weight"`
	Share  float64 `json:"share"` // of all keys, 0 to 1
}

// RingKey is where a key lies.
type RingKey struct {
	Key   string   `json:"key"`
	Hash  string   `json:"hash"`
	Shard int      `json:"shard"`
	Order []string `json:"order"` // the node that has it, then who would follow
}

// Ring tells the ring of a role, and where key lies; "" = no key. Only state and
// push have rings; false = another role.
func (s *Set) Ring(role, key string) (RingReport, bool) {
	for _, g := range s.groups() {
		if g.role != role || role == roleGateway {
			continue
		}
		now := g.ring.Load()
		r, shares := RingReport{Role: role, Points: now.Points(), Nodes: []RingNode{}}, now.Shares()
		for _, n := range now.Nodes() {
			r.Nodes = append(r.Nodes, RingNode{n.ID, n.Weight, shares[n.ID]})
		}
		if key != "" {
			r.Key = &RingKey{Key: key, Hash: fmt.Sprintf("%016x", ring.Hash(key)), Shard: ring.Shard(key), Order: slices.Collect(now.Walk(key))}
		}
		return r, true
	}
	return RingReport{}, false
}

// ServePeers answers with the Report, as JSON or, for browsers, as a page.
func (s *Set) ServePeers(w http.ResponseWriter, r *http.Request) { serve(w, r, "peers", s.Report()) }

// ServeRing answers with the ring of the parameter role, which is state if it is
// missing, and with where the parameter key lies.
func (s *Set) ServeRing(w http.ResponseWriter, r *http.Request) {
	role := r.URL.Query().Get("role")
	if role == "" {
		role = roleState
	}
	rep, ok := s.Ring(role, r.URL.Query().Get("key"))
	if !ok {
		http.Error(w, "only state and push have rings", http.StatusNotFound)
		return
	}
	serve(w, r, "ring", rep)
}

func serve(w http.ResponseWriter, r *http.Request, page string, v any) {
	var b bytes.Buffer
	var err error
	kind := "application/json"
	if strings.Contains(r.Header.Get("Accept"), "text/html") {
		kind = "text/html; charset=utf-8"
		err = pages.ExecuteTemplate(&b, page, struct {
			Head  look.Head
			Value any
		}{look.HeadOf(r, page), v})
	} else {
		err = json.NewEncoder(&b).Encode(v)
	}
	if err != nil {
		http.Error(w, "the page cannot be made", http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", kind)
	look.Secure(w.Header())
	_, _ = w.Write(b.Bytes()) // fails only if the client is gone
}

var pages = template.Must(look.New().Funcs(template.FuncMap{
	"percent": func(f float64) string { return fmt.Sprintf("%.1f %%", f*100) },
	"ms":      func(f float64) string { return fmt.Sprintf("%.2f", f) },
	"words":   func(s []string) string { return strings.Join(s, ", ") },
}).Parse(`
{{define "peers"}}{{template "head" .Head}}{{with .Value}}<h1>peers of {{.Node}}</h1>
<table><tr><th>node<th>address<th>roles<th>state<th>zone<th>in flight<th>connections<th>trouble
{{range .Peers}}<tr><td>{{.ID}}<td>{{.Address}}<td>{{words .Roles}}<td>{{.State}}<td>{{.Zone}}<td>{{.InFlight}}<td>{{.Open}}<td>{{.Trouble}}{{else}}<tr><td colspan="8">none{{end}}</table>
{{range .Roles}}<h2>{{.Role}}</h2><p>budget {{ms .Budget}}, ejections {{.Ejected}}, returns {{.Returned}}, forbidden {{.Spared}}</p>
<table><tr><th>node<th>weight<th>standing<th>latency (ms)
{{range .Nodes}}<tr><td>{{.ID}}{{if .Self}} (this one){{end}}<td>{{.Weight}}<td>{{.Standing}}<td>{{ms .LatencyMS}}{{else}}<tr><td colspan="4">none{{end}}</table>{{end}}
<h2>Methods</h2><table><tr><th>method<th>picker<th>repeated<th>criticality
{{range .Methods}}<tr><td>{{.Name}}<td>{{.Picker}}<td>{{.Repeat}}<td>{{.Class}}{{end}}</table>{{end}}</html>{{end}}
{{define "ring"}}{{template "head" .Head}}{{with .Value}}<h1>ring of {{.Role}}</h1><p>{{.Points}} points; see that of <a href="/statusz/ring?role=state">state</a> or <a href="/statusz/ring?role=push">push</a></p>
<table><tr><th>node<th>weight<th>share{{range .Nodes}}<tr><td>{{.ID}}<td>{{.Weight}}<td>{{percent .Share}}{{else}}<tr><td colspan="3">none{{end}}</table>
{{with .Key}}<p>{{.Key}}: hash {{.Hash}}, shard {{.Shard}}, nodes in order: {{words .Order}}</p>{{end}}
<form><input type="hidden" name="role" value="{{.Role}}"><input name="key" placeholder="conversation or user"> <button>explain</button></form>{{end}}</html>{{end}}
`))

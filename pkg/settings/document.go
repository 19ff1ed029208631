package settings

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"time"
)

// MaxDocument is how many bytes a document may have.
const MaxDocument = 64 << 10

// Scope is for whom a value holds. The zero value is the whole cluster.
type Scope struct {
	Kind ScopeKind
	Name string // of the zone, role or node; "" for the cluster
}

// ScopeKind is the width of a scope, widest first.
type ScopeKind uint8

// The scopes. A narrower one wins over a wider one.
const (
	All ScopeKind = iota
	Zone
	Role
	Node
)

var scopeWords = [...]string{"all", "zone", "role", "node"}

// String is "all", "zone eu", "role gateway" or "node a1".
func (s Scope) String() string {
	if s.Kind == All {
		return "all"
	}
	return scopeWords[s.Kind] + " " + s.Name
}

// Document is the values of one section. Values are canonical text.
type Document struct {
	All    map[string]string            `json:"all,omitempty"`
	Zones  map[string]map[string]string `json:"zones,omitempty"`
	Roles  map[string]map[string]string `json:"roles,omitempty"`
	Nodes  map[string]map[string]string `json:"nodes,omitempty"`
	Change Change                       `json:"change"`
}

// Change says who made a document out of its predecessor.
type Change struct {
	Number   int       `json:"number"` // of the document within its section, from 1; 0 = not known
	At       time.Time `json:"at,omitzero"`
	By       string    `json:"by,omitempty"`
	Reason   string    `json:"reason,omitempty"`
	Rollback int       `json:"rollback,omitempty"` // number of the older document that came back; 0 = none
}

// decode reads a document strictly.
func decode(raw []byte) (Document, error) {
	var d Document
	if len(raw) > MaxDocument {
		return d, fmt.Errorf("has %d bytes; at most %d are allowed", len(raw), MaxDocument)
	}
	dec := json.NewDecoder(bytes.NewReader(raw))
	dec.DisallowUnknownFields()
	if err := dec.Decode(&d); err != nil {
		return d, fmt.Errorf("is no document of settings: %w", err)
	}
	if _, err := dec.Token(); err != io.EOF {
		return d, fmt.Errorf("is no document of settings: there is more behind it")
	}
	return d, nil
}

// Encode is the document as it is stored.
func (d Document) Encode() []byte {
	raw, err := json.Marshal(d)
	if err != nil { // strings, numbers and a time: only a year beyond 9999 can fail
		panic(err)
	}
	return raw
}

// values are those of one scope; nil = none.
func (d Document) values(s Scope) map[string]string {
	switch s.Kind {
	case Zone:
		return d.Zones[s.Name]
	case Role:
		return d.Roles[s.Name]
	case Node:
		return d.Nodes[s.Name]
	}
	return d.All
}

// scopes lists the scopes that hold values, widest first, then by name.
func (d Document) scopes() []Scope {
	var out []Scope
	if len(d.All) > 0 {
		out = append(out, Scope{})
	}
	for _, k := range []struct {
		kind ScopeKind
		m    map[string]map[string]string
	}{{Zone, d.Zones}, {Role, d.Roles}, {Node, d.Nodes}} {
		for _, name := range slices.Sorted(maps.Keys(k.m)) {
			if len(k.m[name]) > 0 {
				out = append(out, Scope{k.kind, name})
			}
		}
	}
	return out
}

// with is the document with one value set, or taken away if value is "".
func (d Document) with(s Scope, key, value string) Document {
	put := func(m map[string]string) map[string]string {
		m = maps.Clone(m)
		if m == nil {
			m = map[string]string{}
		}
		if value == "" {
			delete(m, key)
		} else {
			m[key] = value
		}
		return m
	}
	named := func(m map[string]map[string]string) map[string]map[string]string {
		m = maps.Clone(m)
		if m == nil {
			m = map[string]map[string]string{}
		}
		if m[s.Name] = put(m[s.Name]); len(m[s.Name]) == 0 {
			delete(m, s.Name)
		}
		return m
	}
	switch s.Kind {
	case All:
		d.All = put(d.All)
	case Zone:
		d.Zones = named(d.Zones)
	case Role:
		d.Roles = named(d.Roles)
	case Node:
		d.Nodes = named(d.Nodes)
	}
	return d
}

// Difference is one value that two documents do not share.
type Difference struct {
	Key   string `json:"key"`
	Scope string `json:"scope"`
	Old   string `json:"old"` // "" = not set
	New   string `json:"new"`
}

// Diff lists what changes from a to b, by key and then by scope.
func Diff(a, b Document) []Difference {
	var out []Difference
	seen := map[Scope]bool{}
	for _, s := range append(a.scopes(), b.scopes()...) {
		if seen[s] {
			continue
		}
		seen[s] = true
		old, now := a.values(s), b.values(s)
		keys := maps.Clone(old)
		if keys == nil {
			keys = map[string]string{}
		}
		maps.Copy(keys, now)
		for k := range keys {
			if old[k] != now[k] {
				out = append(out, Difference{Key: k, Scope: s.String(), Old: old[k], New: now[k]})
			}
		}
	}
	slices.SortFunc(out, func(x, y Difference) int {
		if c := strings.Compare(x.Key, y.Key); c != 0 {
			return c
		}
		return strings.Compare(x.Scope, y.Scope)
	})
	return out
}

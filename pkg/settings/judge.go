package settings

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
)

// How many zones and nodes one document may set values for; rules are judged for
// all of their combinations.
const (
	maxZones = 64
	maxNodes = 256
)

// docs are the documents by section.
type docs map[string]Document

// check judges one document by itself: known keys of its section, values of the
// right type and range, in canonical form, and scopes that can exist.
func (r *Registry) check(section string, d Document) error {
	var bad []string
	note := func(s Scope, format string, args ...any) {
		text := fmt.Sprintf(format, args...)
		if s.Kind != All {
			text = s.String() + ": " + text
		}
		bad = append(bad, text)
	}
	if len(d.Zones) > maxZones || len(d.Nodes) > maxNodes {
		return fmt.Errorf("sets values for %d zones and %d nodes; at most %d and %d are allowed", len(d.Zones), len(d.Nodes), maxZones, maxNodes)
	}
	for _, s := range d.scopes() {
		if err := r.checkScope(s); err != nil {
			note(Scope{}, "%v", err)
		}
		for _, key := range slices.Sorted(maps.Keys(d.values(s))) {
			text := d.values(s)[key]
			dec, err := r.Find(key)
			switch {
			case err != nil:
				note(s, "%v", err)
			case dec.Section() != section:
				note(s, "%s does not belong to the section %s", key, section)
			default:
				if _, err := dec.Canonical(text); err != nil {
					note(s, "%s: %v", key, err)
				}
			}
		}
	}
	if bad == nil {
		return nil
	}
	return errors.New(strings.Join(bad, "; "))
}

// checkScope judges the name of a scope.
func (r *Registry) checkScope(s Scope) error {
	if s.Kind == All {
		return nil
	}
	if s.Name == "" || len(s.Name) > 64 || strings.Trim(s.Name, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-") != "" {
		return fmt.Errorf("%.80q is not the name of a %s: 1 to 64 of a-z A-Z 0-9 . _ -", s.Name, scopeWords[s.Kind])
	}
	if s.Kind == Role && !slices.Contains(r.roles, s.Name) {
		return fmt.Errorf("there is no role %s; roles are %s", s.Name, strings.Join(r.roles, ", "))
	}
	return nil
}

// checkRules judges what several settings together must keep, for all nodes
// that there could be.
func (r *Registry) checkRules(all docs) error {
	for _, rule := range r.rules {
		var zones, roles, nodes []string // that set a key of the rule; "" = one that sets none
		for _, d := range rule.keys {
			doc := all[d.Section()]
			zones = append(zones, holders(doc.Zones, d.Key)...)
			roles = append(roles, holders(doc.Roles, d.Key)...)
			nodes = append(nodes, holders(doc.Nodes, d.Key)...)
		}
		for _, who := range combine(zones, roles, nodes) {
			err := rule.hold(func(d *Declaration) any {
				if e, ok := resolve(d, all[d.Section()], who); ok {
					return e.value
				}
				return d.def
			})
			if err != nil {
				return fmt.Errorf("%w%s", err, who.where())
			}
		}
	}
	return nil
}

func holders(m map[string]map[string]string, key string) []string {
	var out []string
	for name, values := range m {
		if _, ok := values[key]; ok {
			out = append(out, name)
		}
	}
	return out
}

// combine lists every kind of node that the names can make. Roles are few, so
// that all sets of them can be tried.
func combine(zones, roles, nodes []string) []Identity {
	unique := func(s []string) []string { return slices.Compact(slices.Sorted(slices.Values(s))) }
	sets := [][]string{nil}
	for _, r := range unique(roles) {
		for _, s := range sets[:len(sets):len(sets)] {
			sets = append(sets, append(slices.Clone(s), r))
		}
	}
	var out []Identity
	for _, z := range unique(append(zones, "")) {
		for _, n := range unique(append(nodes, "")) {
			for _, s := range sets {
				out = append(out, Identity{Zone: z, Roles: s, Node: n})
			}
		}
	}
	return out
}

// where says for whom a rule does not hold.
func (i Identity) where() string {
	var parts []string
	if i.Zone != "" {
		parts = append(parts, "zone "+i.Zone)
	}
	if len(i.Roles) > 0 {
		parts = append(parts, "role "+strings.Join(i.Roles, " and "))
	}
	if i.Node != "" {
		parts = append(parts, "node "+i.Node)
	}
	if parts == nil {
		return ""
	}
	return " (" + strings.Join(parts, ", ") + ")"
}

// checkStep judges by how much values shrink from one document to the next. A
// rollback may go back as far as it wants.
func (r *Registry) checkStep(was, now Document) error {
	if now.Change.Rollback != 0 {
		return nil
	}
	for _, s := range append(was.scopes(), now.scopes()...) {
		for _, d := range r.all {
			if d.Shrink == 0 {
				continue
			}
			old, next := d.at(was, s), d.at(now, s)
			if d.size(next)*d.Shrink < d.size(old) {
				return fmt.Errorf("%s may shrink at most %g times in one change, but %s would follow %s (%s)",
					d.Key, d.Shrink, d.text(next), d.text(old), s)
			}
		}
	}
	return nil
}

// at is what a document means for a scope, without anything narrower.
func (d *Declaration) at(doc Document, s Scope) any {
	for _, m := range []map[string]string{doc.values(s), doc.All} {
		if text, ok := m[d.Key]; ok {
			if v, err := d.parse(text); err == nil {
				return v
			}
		}
	}
	return d.def
}

// judge says whether next may take the place of was. steps = judge also how
// far values move.
func (r *Registry) judge(was, next docs, steps bool) error {
	for _, section := range slices.Sorted(maps.Keys(next)) {
		if err := r.check(section, next[section]); err != nil {
			return fmt.Errorf("section %s: %w", section, err)
		}
	}
	if err := r.checkRules(next); err != nil || !steps {
		return err
	}
	for _, section := range slices.Sorted(maps.Keys(next)) {
		if err := r.checkStep(was[section], next[section]); err != nil {
			return err
		}
	}
	for section, d := range was {
		if _, kept := next[section]; !kept {
			if err := r.checkStep(d, Document{}); err != nil {
				return err
			}
		}
	}
	return nil
}

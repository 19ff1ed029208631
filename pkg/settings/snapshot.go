package settings

import "slices"

// Identity is what decides which values hold for a node.
type Identity struct {
	Node  string
	Zone  string
	Roles []string
}

// Effective is a value that somebody set and that holds for this node.
type Effective struct {
	Text  string
	Scope Scope // the narrowest that sets it

	value any
}

// Snapshot is the settings of one node at one revision. It is immutable. A nil
// snapshot is one in which nothing is set.
type Snapshot struct {
	Revision int64 // of the newest change in it; 0 = nothing was ever set

	values map[string]Effective
}

// Get is the value of a key, if one was set.
func (s *Snapshot) Get(key string) (Effective, bool) {
	if s == nil {
		return Effective{}, false
	}
	e, ok := s.values[key]
	return e, ok
}

// Changes lists the keys whose values differ between two snapshots, with their
// old and new text; "" = not set.
func (s *Snapshot) Changes(next *Snapshot) []Difference {
	var out []Difference
	keys := map[string]bool{}
	for _, snap := range []*Snapshot{s, next} {
		if snap != nil {
			for k := range snap.values {
				keys[k] = true
			}
		}
	}
	for k := range keys {
		old, _ := s.Get(k)
		now, _ := next.Get(k)
		if old.Text != now.Text {
			out = append(out, Difference{Key: k, Scope: now.Scope.String(), Old: old.Text, New: now.Text})
		}
	}
	slices.SortFunc(out, func(a, b Difference) int {
		if a.Key < b.Key {
			return -1
		}
		return 1
	})
	return out
}

// snapshot resolves the documents for one node.
func (r *Registry) snapshot(rev int64, all docs, who Identity) *Snapshot {
	s := &Snapshot{Revision: rev, values: map[string]Effective{}}
	for _, d := range r.all {
		if e, ok := resolve(d, all[d.Section()], who); ok {
			s.values[d.Key] = e
		}
	}
	return s
}

// resolve finds the narrowest value of a setting. If several roles of a node
// set it, the one that the section is named after wins, then the first by name.
func resolve(d *Declaration, doc Document, who Identity) (Effective, bool) {
	try := []Scope{{Node, who.Node}}
	roles := slices.Sorted(slices.Values(who.Roles))
	if slices.Contains(roles, d.Section()) {
		try = append(try, Scope{Role, d.Section()})
	}
	for _, r := range roles {
		try = append(try, Scope{Role, r})
	}
	try = append(try, Scope{Zone, who.Zone}, Scope{})
	for _, s := range try {
		text, ok := doc.values(s)[d.Key]
		if !ok {
			continue
		}
		if v, err := d.parse(text); err == nil {
			return Effective{Text: d.text(v), Scope: s, value: v}, true
		}
	}
	return Effective{}, false
}

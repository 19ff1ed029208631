package settings

import (
	"errors"
	"fmt"
	"slices"
)

// Edit sets one value, or takes it away.
type Edit struct {
	Key   string
	Scope Scope
	Value string // "" = not set any more
}

// Plan is a change that was judged and not made yet.
type Plan struct {
	Writes []Write      // nil = nothing would change
	Diff   []Difference // what would
	Base   int64        // revision of the newest document that would be replaced; 0 = none
}

// Plan judges edits against what is in force. What was refused before is not
// part of it: the new documents take its place. The error says what is wrong
// in words for people.
func (s State) Plan(edits []Edit, c Change) (Plan, error) {
	next := contents(s.taken)
	var touched []string
	for _, e := range edits {
		d, err := s.reg.Find(e.Key)
		if err != nil {
			return Plan{}, err
		}
		if err := s.reg.checkScope(e.Scope); err != nil {
			return Plan{}, err
		}
		if e.Value != "" {
			if e.Value, err = d.Canonical(e.Value); err != nil {
				return Plan{}, fmt.Errorf("%s: %w", e.Key, err)
			}
		}
		next[d.Section()] = next[d.Section()].with(e.Scope, e.Key, e.Value)
		touched = append(touched, d.Section())
	}
	return s.plan(touched, next, c)
}

// Rollback judges the return of an older document of a section.
func (s State) Rollback(section string, old Past, c Change) (Plan, error) {
	next := contents(s.taken)
	next[section] = old.Document
	c.Rollback = old.Number
	return s.plan([]string{section}, next, c)
}

func (s State) plan(touched []string, next docs, c Change) (Plan, error) {
	if s.known == nil {
		return Plan{}, errors.New("the settings were not read yet")
	}
	var p Plan
	was := contents(s.taken)
	for _, section := range slices.Compact(slices.Sorted(slices.Values(touched))) {
		p.Base = max(p.Base, s.known[section].mod)
		d := Diff(was[section], next[section])
		_, refused := s.refused[section]
		if len(d) == 0 && !refused {
			continue
		}
		doc := next[section]
		doc.Change = c
		next[section] = doc
		if n := len(doc.Encode()); n > MaxDocument-256 {
			return Plan{}, fmt.Errorf("section %s: the document would have %d bytes; at most %d are allowed", section, n, MaxDocument-256)
		}
		p.Diff = append(p.Diff, d...)
		p.Writes = append(p.Writes, Write{Section: section, Mod: s.known[section].mod, Doc: doc})
	}
	return p, s.reg.judge(was, next, true)
}

// Overrides lists where a key is set, widest scope first.
func (s State) Overrides(d *Declaration) []Effective {
	var out []Effective
	doc := s.taken[d.Section()].doc
	for _, scope := range doc.scopes() {
		if text, ok := doc.values(scope)[d.Key]; ok {
			out = append(out, Effective{Text: text, Scope: scope})
		}
	}
	return out
}

// LastChange is who changed a section last, of what is in force.
func (s State) LastChange(section string) (c Change, revision int64) {
	h := s.taken[section]
	return h.doc.Change, h.mod
}

package module

import (
	"fmt"
	"slices"
	"strings"
)

// All is the word in --roles that stands for every role.
const All = "all"

// Roles lists the names that --roles may choose, in the order of specs.
func Roles(specs []Spec) []string {
	var out []string
	for _, s := range specs {
		if s.Role {
			out = append(out, s.Name)
		}
	}
	return out
}

// ChooseRoles turns the words of --roles into role names, in the order of
// specs and without repetition. The error, a ConfigError, names the roles that
// exist.
func ChooseRoles(specs []Spec, words []string) ([]string, error) {
	known := Roles(specs)
	if len(words) == 0 {
		return nil, Configf("roles: no role is chosen; the roles are %s, or all", strings.Join(known, ", "))
	}
	for _, w := range words {
		if w != All && !slices.Contains(known, w) {
			return nil, Configf("roles: there is no role %q; the roles are %s, or all", w, strings.Join(known, ", "))
		}
	}
	if slices.Contains(words, All) {
		return known, nil
	}
	return slices.DeleteFunc(known, func(r string) bool { return !slices.Contains(words, r) }), nil
}

// Order lists the chosen roles and everything they need, each module after
// what it needs, and otherwise in the order of specs. Errors: a name that no
// spec has, a name declared twice, and a circle of needs, which is named.
func Order(specs []Spec, roles []string) ([]Spec, error) {
	byName := make(map[string]Spec, len(specs))
	for _, s := range specs {
		if _, twice := byName[s.Name]; twice {
			return nil, fmt.Errorf("module %s is declared twice", s.Name)
		}
		byName[s.Name] = s
	}
	o := &orderer{specs: byName, state: map[string]visit{}}
	for _, name := range roles {
		if _, ok := byName[name]; !ok {
			return nil, fmt.Errorf("there is no module %s", name)
		}
	}
	for _, s := range specs {
		if slices.Contains(roles, s.Name) {
			if err := o.add(s.Name, nil); err != nil {
				return nil, err
			}
		}
	}
	return o.out, nil
}

// visit says how far Order is with a module.
type visit int

const (
	unseen visit = iota
	open         // its needs are being added
	done
)

type orderer struct {
	specs map[string]Spec
	state map[string]visit
	out   []Spec
}

func (o *orderer) add(name string, path []string) error {
	path = append(path, name)
	switch o.state[name] {
	case done:
		return nil
	case open:
		return fmt.Errorf("the modules need each other in a circle: %s", strings.Join(path[slices.Index(path, name):], " -> "))
	}
	s, ok := o.specs[name]
	if !ok {
		return fmt.Errorf("module %s needs %s, which does not exist", path[len(path)-2], name)
	}
	o.state[name] = open
	for _, n := range s.Needs {
		if err := o.add(n, slices.Clone(path)); err != nil {
			return err
		}
	}
	o.state[name] = done
	o.out = append(o.out, s)
	return nil
}

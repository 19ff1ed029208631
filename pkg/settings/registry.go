package settings

import (
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/imdhq/imd/pkg/config"
)

// Registry is all settings that this binary knows. It is immutable.
type Registry struct {
	all   []*Declaration // by key
	byKey map[string]*Declaration
	rules []Rule
	roles []string // that a document may name
}

// NewRegistry collects the declarations of all modules. roles are those that
// values may be overridden for. Errors: a key declared twice, or badly.
func NewRegistry(roles []string, schemas ...Schema) (*Registry, error) {
	r := &Registry{byKey: map[string]*Declaration{}, roles: slices.Sorted(slices.Values(roles))}
	for _, s := range schemas {
		for _, k := range s.Keys {
			d := k.Declaration()
			if err := checkDeclaration(d); err != nil {
				return nil, err
			}
			if r.byKey[d.Key] != nil {
				return nil, fmt.Errorf("settings: %s is declared twice", d.Key)
			}
			r.byKey[d.Key] = d
			r.all = append(r.all, d)
		}
		r.rules = append(r.rules, s.Rules...)
	}
	slices.SortFunc(r.all, func(a, b *Declaration) int { return strings.Compare(a.Key, b.Key) })
	for _, rule := range r.rules {
		for _, d := range rule.keys {
			if r.byKey[d.Key] != d {
				return nil, fmt.Errorf("settings: a rule looks at %s, which is not declared", d.Key)
			}
		}
	}
	return r, nil
}

// All lists the declarations by key. Read only.
func (r *Registry) All() []*Declaration { return r.all }

// Find is the declaration of a key. The error names the nearest known one.
func (r *Registry) Find(key string) (*Declaration, error) {
	if d := r.byKey[key]; d != nil {
		return d, nil
	}
	return nil, fmt.Errorf("there is no setting %.128q%s", key, r.nearest(key))
}

func (r *Registry) nearest(key string) string {
	if n := config.Nearest(key, r.Keys()); n != "" {
		return "; did you mean " + n + "?"
	}
	return ""
}

// Keys lists the known keys in order.
func (r *Registry) Keys() []string {
	keys := make([]string, 0, len(r.all))
	for _, d := range r.all {
		keys = append(keys, d.Key)
	}
	return keys
}

// WriteReference writes a Markdown table of all settings.
func (r *Registry) WriteReference(w io.Writer) error {
	var b strings.Builder
	b.WriteString("| setting | type | default | range | meaning |\n|---|---|---|---|---|\n")
	for _, d := range r.all {
		kind := string(d.Kind)
		if d.Unit != "" {
			kind += ", " + d.Unit
		}
		sentence := d.Sentence
		if d.Shrink != 0 {
			sentence += fmt.Sprintf(" One change may shrink it at most %g times.", d.Shrink)
		}
		fmt.Fprintf(&b, "| `%s` | %s | `%s` | %s | %s |\n", d.Key, kind, d.Default, d.Range, sentence)
	}
	_, err := io.WriteString(w, b.String())
	return err
}

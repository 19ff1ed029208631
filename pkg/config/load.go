package config

import (
	"fmt"
	"reflect"
	"slices"
	"strings"

	"github.com/go-viper/mapstructure/v2"
	"github.com/spf13/viper"
)

// Source is where a value comes from, weakest first.
type Source int

// The sources.
const (
	FromDefault Source = iota
	FromFile
	FromEnv
	FromFlag
)

// String is the source's name in documents and output.
func (s Source) String() string {
	return [...]string{"default", "file", "env", "flag"}[s]
}

// Assign is a value given by a flag.
type Assign struct {
	Key   string
	Value string
	Flag  string // as typed: "--listen"
	// Open says that the value holds nothing that others must not see, although
	// the key is a secret's: a data source name without a password.
	Open bool
}

// Inputs are what a load reads besides the defaults.
type Inputs struct {
	File    string   // "" = none
	Environ []string // as of os.Environ
	Flags   []Assign
	// Ignore lists IMD_* variables that are no configuration. A name that ends
	// in * covers all that start like it.
	Ignore []string
}

// origin says who set a leaf.
type origin struct {
	source Source
	where  string
}

// Values is a loaded configuration. It is immutable and safe for concurrent
// use.
type Values struct {
	// Warnings are what the user should hear although the load succeeded.
	Warnings []string

	schema  *Schema
	v       *viper.Viper
	origins map[string]origin
	files   map[string]Secret // values of secrets that a _file key gave
}

// Load reads all sources and checks every section. The error is an *Error with
// all problems at once.
func (s *Schema) Load(in Inputs) (*Values, error) {
	vals := &Values{schema: s, v: viper.New(), origins: map[string]origin{}, files: map[string]Secret{}}
	for _, l := range s.leaves {
		vals.v.SetDefault(l.Key, l.Default)
	}
	var problems []Problem
	if in.File != "" {
		found, warnings, bad := s.readFile(in.File)
		vals.Warnings = warnings
		problems = append(problems, bad...)
		problems = append(problems, vals.merge(found)...)
	}
	env, bad := s.readEnv(in)
	problems = append(problems, bad...)
	vals.set(env, FromEnv)
	flags, bad := s.readFlags(in.Flags)
	problems = append(problems, bad...)
	vals.set(flags, FromFlag)
	problems = append(problems, vals.readTwins(lookup(in.Environ, "CREDENTIALS_DIRECTORY"))...)
	if len(problems) == 0 {
		problems = vals.validate()
	}
	if len(problems) > 0 {
		return nil, &Error{Problems: problems}
	}
	return vals, nil
}

// merge takes the values of the file over the defaults.
func (v *Values) merge(found []setting) []Problem {
	tree := map[string]any{}
	for _, f := range found {
		at := tree
		parts := strings.Split(f.leaf.Key, ".")
		for _, p := range parts[:len(parts)-1] {
			next, ok := at[p].(map[string]any)
			if !ok {
				next = map[string]any{}
				at[p] = next
			}
			at = next
		}
		at[parts[len(parts)-1]] = f.value
		v.origins[f.leaf.Key] = origin{FromFile, f.where}
	}
	if err := v.v.MergeConfigMap(tree); err != nil {
		return []Problem{{Message: err.Error()}}
	}
	return nil
}

func (v *Values) set(found []setting, from Source) {
	for _, f := range found {
		v.v.Set(f.leaf.Key, f.value)
		v.origins[f.leaf.Key] = origin{from, f.where}
	}
}

func (s *Schema) readEnv(in Inputs) (found []setting, problems []Problem) {
	for _, kv := range in.Environ {
		name, text, _ := strings.Cut(kv, "=")
		if !strings.HasPrefix(name, EnvPrefix) || ignored(name, in.Ignore) {
			continue
		}
		leaf := s.byEnv[name]
		if leaf == nil {
			known := append(s.envs(), in.Ignore...)
			problems = append(problems, Problem{Where: name, Message: "unknown variable", Hint: didYouMean(name, known)})
			continue
		}
		val, err := fromText(leaf.typ, text)
		if err != nil {
			problems = append(problems, Problem{Where: name, Key: leaf.Key, Message: hide(leaf, err)})
			continue
		}
		found = append(found, setting{leaf, val, name})
	}
	return found, problems
}

func ignored(name string, list []string) bool {
	return slices.ContainsFunc(list, func(i string) bool {
		prefix, wild := strings.CutSuffix(i, "*")
		return name == i || wild && strings.HasPrefix(name, prefix)
	})
}

func (s *Schema) readFlags(flags []Assign) (found []setting, problems []Problem) {
	for _, f := range flags {
		leaf := s.byKey[f.Key]
		switch {
		case leaf == nil:
			problems = append(problems, Problem{Where: f.Flag, Key: f.Key, Message: "unknown key", Hint: didYouMean(f.Key, s.keys())})
			continue
		case leaf.Secret && !f.Open:
			problems = append(problems, Problem{
				Where: f.Flag, Key: f.Key, Message: "a secret on the command line can be read by every user of the machine",
				Hint: "set " + leaf.Key + "_file or " + leaf.Env,
			})
			continue
		}
		val, err := fromText(leaf.typ, f.Value)
		if err != nil {
			problems = append(problems, Problem{Where: f.Flag, Key: f.Key, Message: err.Error()})
			continue
		}
		found = append(found, setting{leaf, val, f.Flag})
	}
	return found, problems
}

// readTwins reads the files that _file keys name. A secret and its twin from
// the same source contradict each other; otherwise the stronger source wins.
func (v *Values) readTwins(credentials string) (problems []Problem) {
	for _, l := range v.schema.leaves {
		if l.Twin == "" || v.v.GetString(l.Key) == "" {
			continue
		}
		own, twin := v.origins[l.Twin], v.origins[l.Key]
		if own.source > twin.source {
			continue
		}
		if own.source == twin.source && own.source != FromDefault {
			problems = append(problems, Problem{Where: twin.where, Key: l.Key, Message: "contradicts " + l.Twin, Hint: "give only one of the two"})
			continue
		}
		secret, err := readSecret(v.v.GetString(l.Key), credentials)
		if err != nil {
			problems = append(problems, Problem{Where: twin.where, Key: l.Key, Message: err.Error()})
			continue
		}
		v.files[l.Twin] = secret
		v.origins[l.Twin] = twin
	}
	return problems
}

func lookup(environ []string, name string) string {
	for _, kv := range environ {
		if k, v, _ := strings.Cut(kv, "="); k == name {
			return v
		}
	}
	return ""
}

// validate decodes every section into its own struct, which validates it.
func (v *Values) validate() (problems []Problem) {
	for _, sec := range v.schema.sections {
		if err := v.Decode(sec.Name, sec.New()); err != nil {
			problems = append(problems, err.(*Error).Problems...)
		}
	}
	return problems
}

// Decode writes the section into a struct that holds its defaults, and
// validates it if it has Validate() error. The error is an *Error.
func (v *Values) Decode(section string, into any) error {
	dec, err := mapstructure.NewDecoder(&mapstructure.DecoderConfig{
		Result: into, ErrorUnused: true, ZeroFields: true,
		DecodeHook: mapstructure.TextUnmarshallerHookFunc(),
	})
	if err != nil {
		return Errorf(section, "%v", err)
	}
	tree, known := v.section(section)
	if !known {
		return Errorf(section, "no such section")
	}
	if err := dec.Decode(tree); err != nil {
		return Errorf(section, "%s", strings.Join(strings.Fields(err.Error()), " "))
	}
	if c, ok := into.(interface{ Validate() error }); ok {
		if err := c.Validate(); err != nil {
			return &Error{Problems: v.located(section, err)}
		}
	}
	return nil
}

// section builds the nested map of one section.
func (v *Values) section(name string) (tree map[string]any, known bool) {
	tree = map[string]any{}
	for _, l := range v.schema.leaves {
		if l.section != name || l.Twin != "" {
			continue
		}
		at := tree
		for _, p := range l.path[:len(l.path)-1] {
			next, ok := at[p].(map[string]any)
			if !ok {
				next = map[string]any{}
				at[p] = next
			}
			at = next
		}
		at[l.path[len(l.path)-1]] = v.raw(l)
	}
	known = slices.ContainsFunc(v.schema.sections, func(s Section) bool { return s.Name == name })
	return tree, known
}

func (v *Values) raw(l *Leaf) any {
	if s, ok := v.files[l.Key]; ok {
		return s
	}
	if v.origins[l.Key].source == FromDefault {
		return l.Default
	}
	return v.v.Get(l.Key)
}

// located splits what Validate returned into problems and says where each
// value came from.
func (v *Values) located(section string, err error) []Problem {
	var out []Problem
	for _, line := range strings.Split(err.Error(), "\n") {
		key, msg, ok := strings.Cut(line, ": ")
		if v.schema.byKey[key] == nil && v.schema.byKey[join(section, []string{key})] != nil {
			key = join(section, []string{key})
		}
		if !ok || v.schema.byKey[key] == nil {
			out = append(out, Problem{Key: section, Message: line})
			continue
		}
		out = append(out, Problem{Where: v.origins[key].where, Key: key, Message: msg})
	}
	return out
}

// Value is one key as `config show` prints it.
type Value struct {
	Key    string `json:"key"`
	Value  string `json:"value"` // secrets are masked
	Source string `json:"source"`
	Where  string `json:"where,omitempty"` // the line, variable or flag
	Env    string `json:"env"`
}

// All lists every key with its value and origin.
func (v *Values) All() []Value {
	out := make([]Value, 0, len(v.schema.leaves))
	for _, l := range v.schema.leaves {
		o := v.origins[l.Key]
		text := Text(v.raw(l))
		if l.Secret {
			text = Secret(reflect.ValueOf(v.raw(l)).String()).String()
		}
		out = append(out, Value{Key: l.Key, Value: text, Source: o.source.String(), Where: o.where, Env: l.Env})
	}
	return out
}

// Where is the place that set the key ("imd.yaml:12"), or "default".
func (v *Values) Where(key string) string {
	if o := v.origins[key]; o.source != FromDefault {
		return o.where
	}
	return "default"
}

// Set reports whether anything but the defaults gave the key a value.
func (v *Values) Set(key string) bool { return v.origins[key].source != FromDefault }

// Text is the key's value as text; secrets are masked. "" for unknown keys.
func (v *Values) Text(key string) string {
	l := v.schema.byKey[key]
	if l == nil {
		return ""
	}
	if l.Secret {
		return fmt.Sprint(Secret(reflect.ValueOf(v.raw(l)).String()))
	}
	return Text(v.raw(l))
}

package config

import (
	"encoding"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"time"
)

// EnvPrefix starts the name of every variable that belongs to the product.
const EnvPrefix = "IMD_"

// Section is one part of the configuration.
type Section struct {
	Name string // "gateway"; "" = keys at the top
	Doc  string // one sentence for the example file
	// New gives a pointer to the defaults, a struct whose fields carry the tags
	// mapstructure (key) and doc.
	New func() any
}

// Leaf is one key that has a value.
type Leaf struct {
	Key     string // "gateway.listen"
	Env     string // "IMD_GATEWAY_LISTEN"
	Type    string // "duration", "text", "list of text", ...
	Default any
	Doc     string
	Secret  bool
	Twin    string // of a _file key: the secret it fills; "" = an ordinary key

	section string
	path    []string // below the section
	typ     reflect.Type
}

// Schema is all keys that a node knows. It is immutable.
type Schema struct {
	sections []Section
	leaves   []*Leaf
	byKey    map[string]*Leaf
	byEnv    map[string]*Leaf
	groups   map[string]bool   // keys that have keys below them
	moved    map[string]string // removed key -> what to use instead
}

// NewSchema registers the sections. moved names keys of earlier releases and
// what took their place ("" = nothing): they give a warning and are skipped.
// Errors: a field without a mapstructure or doc tag, a type that a
// configuration cannot hold, two keys with one name or one variable.
func NewSchema(sections []Section, moved map[string]string) (*Schema, error) {
	s := &Schema{
		sections: sections, moved: moved,
		byKey: map[string]*Leaf{}, byEnv: map[string]*Leaf{}, groups: map[string]bool{},
	}
	for _, sec := range sections {
		v := reflect.ValueOf(sec.New())
		if v.Kind() != reflect.Pointer || v.Elem().Kind() != reflect.Struct {
			return nil, fmt.Errorf("config: section %q: defaults must be a pointer to a struct, not %s", sec.Name, v.Type())
		}
		if sec.Name != "" {
			if s.groups[sec.Name] {
				return nil, fmt.Errorf("config: section %q is declared twice", sec.Name)
			}
			s.groups[sec.Name] = true
		}
		if err := s.walk(sec.Name, nil, v.Elem()); err != nil {
			return nil, err
		}
	}
	return s, s.addTwins()
}

// walk adds the leaves of a struct.
func (s *Schema) walk(section string, path []string, v reflect.Value) error {
	for i := range v.NumField() {
		f := v.Type().Field(i)
		tag, opts, _ := strings.Cut(f.Tag.Get("mapstructure"), ",")
		if !f.IsExported() || tag == "-" {
			continue
		}
		where := fmt.Sprintf("config: section %q, field %s", section, f.Name)
		if opts == "squash" {
			if err := s.walk(section, path, v.Field(i)); err != nil {
				return err
			}
			continue
		}
		if tag == "" || tag != strings.ToLower(tag) {
			return fmt.Errorf("%s: wants a lower-case mapstructure tag", where)
		}
		below := append(slices.Clone(path), tag)
		if f.Type.Kind() == reflect.Struct && !isText(f.Type) {
			s.groups[join(section, below)] = true
			if err := s.walk(section, below, v.Field(i)); err != nil {
				return err
			}
			continue
		}
		name := typeName(f.Type)
		if name == "" {
			return fmt.Errorf("%s: a %s cannot be configured", where, f.Type)
		}
		doc := f.Tag.Get("doc")
		if doc == "" {
			return fmt.Errorf("%s: wants a doc tag", where)
		}
		err := s.add(&Leaf{
			Key: join(section, below), Type: name, Default: v.Field(i).Interface(), Doc: doc,
			Secret: f.Type == secretType, section: section, path: below, typ: f.Type,
		})
		if err != nil {
			return err
		}
	}
	return nil
}

func join(section string, path []string) string {
	if section == "" {
		return strings.Join(path, ".")
	}
	return section + "." + strings.Join(path, ".")
}

func (s *Schema) add(l *Leaf) error {
	l.Env = EnvPrefix + strings.ToUpper(strings.ReplaceAll(l.Key, ".", "_"))
	if _, ok := s.byKey[l.Key]; ok {
		return fmt.Errorf("config: key %s is declared twice", l.Key)
	}
	if other, ok := s.byEnv[l.Env]; ok {
		return fmt.Errorf("config: keys %s and %s share the variable %s", other.Key, l.Key, l.Env)
	}
	s.leaves = append(s.leaves, l)
	s.byKey[l.Key], s.byEnv[l.Env] = l, l
	return nil
}

// addTwins gives every secret its _file key, right behind it, unless the
// section has one of its own.
func (s *Schema) addTwins() error {
	for _, l := range slices.Clone(s.leaves) {
		if !l.Secret || s.byKey[l.Key+"_file"] != nil {
			continue
		}
		err := s.add(&Leaf{
			Key: l.Key + "_file", Type: "text", Default: "", Twin: l.Key, section: l.section, typ: reflect.TypeFor[string](),
			Doc: "File to read " + l.Key + " from. A bare name is looked up in $CREDENTIALS_DIRECTORY first. Default: none.",
		})
		if err != nil {
			return err
		}
		last := s.leaves[len(s.leaves)-1]
		at := slices.Index(s.leaves, l)
		s.leaves = slices.Insert(s.leaves[:len(s.leaves)-1], at+1, last)
	}
	return nil
}

// Leaves lists all keys in the order of their declaration. Read only.
func (s *Schema) Leaves() []*Leaf { return s.leaves }

// Leaf is the key's declaration, or nil.
func (s *Schema) Leaf(key string) *Leaf { return s.byKey[key] }

func (s *Schema) keys() []string {
	out := make([]string, 0, len(s.leaves))
	for _, l := range s.leaves {
		out = append(out, l.Key)
	}
	return out
}

func (s *Schema) envs() []string {
	out := make([]string, 0, len(s.leaves))
	for _, l := range s.leaves {
		out = append(out, l.Env)
	}
	return out
}

var (
	secretType   = reflect.TypeFor[Secret]()
	durationType = reflect.TypeFor[time.Duration]()
	textType     = reflect.TypeFor[encoding.TextUnmarshaler]()
)

// isText reports whether t reads itself from text, as netip.Prefix does.
func isText(t reflect.Type) bool { return reflect.PointerTo(t).Implements(textType) }

// typeName is the type as documents call it, or "" if a configuration cannot
// hold it.
func typeName(t reflect.Type) string {
	switch {
	case t == durationType:
		return "duration"
	case t == secretType:
		return "secret"
	case isText(t):
		return "text"
	}
	switch t.Kind() {
	case reflect.String:
		return "text"
	case reflect.Bool:
		return "true or false"
	case reflect.Int, reflect.Int8, reflect.Int16, reflect.Int32, reflect.Int64,
		reflect.Uint, reflect.Uint8, reflect.Uint16, reflect.Uint32, reflect.Uint64:
		return "whole number"
	case reflect.Float32, reflect.Float64:
		return "number"
	case reflect.Slice:
		return listName(t.Elem())
	default:
		return ""
	}
}

func listName(elem reflect.Type) string {
	if elem.Kind() == reflect.Struct && !isText(elem) {
		return "list of sections"
	}
	if name := typeName(elem); name != "" && elem.Kind() != reflect.Slice && elem.Kind() != reflect.Uint8 {
		return "list of " + name
	}
	return ""
}

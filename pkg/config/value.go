package config

import (
	"fmt"
	"reflect"
	"strconv"
	"strings"
	"time"

	"go.yaml.in/yaml/v3"
)

// fromText reads the value of a variable or a flag.
func fromText(t reflect.Type, s string) (any, error) {
	if t.Kind() == reflect.Slice && !isText(t) {
		if elem := t.Elem(); elem.Kind() == reflect.Struct && !isText(elem) || strings.HasPrefix(strings.TrimSpace(s), "[") {
			return fromYAMLText(t, s)
		}
		return splitList(t.Elem(), s)
	}
	return scalar(t, s)
}

// fromYAMLText reads a list that was written as YAML or JSON on one line;
// nothing is the empty list.
func fromYAMLText(t reflect.Type, s string) (any, error) {
	if strings.TrimSpace(s) == "" {
		s = "[]"
	}
	var doc yaml.Node
	if err := yaml.Unmarshal([]byte(s), &doc); err != nil || len(doc.Content) != 1 || doc.Content[0].Kind != yaml.SequenceNode {
		return nil, fmt.Errorf("is not a list in YAML or JSON")
	}
	v, _, err := fromNode(t, doc.Content[0])
	return v, err
}

func splitList(elem reflect.Type, s string) (any, error) {
	out := []any{}
	for part := range strings.SplitSeq(s, ",") {
		if part = strings.TrimSpace(part); part == "" {
			continue
		}
		v, err := scalar(elem, part)
		if err != nil {
			return nil, err
		}
		out = append(out, v)
	}
	return out, nil
}

// fromNode reads a value of the file. On an error it says on which line.
func fromNode(t reflect.Type, n *yaml.Node) (v any, line int, err error) {
	if n.Kind == yaml.AliasNode {
		n = n.Alias
	}
	list := t.Kind() == reflect.Slice && !isText(t)
	switch {
	case n.Kind == yaml.ScalarNode && n.Tag == "!!null":
		return nil, n.Line, fmt.Errorf("has no value")
	case n.Kind == yaml.MappingNode:
		return nil, n.Line, fmt.Errorf("is a section, but %s is wanted", article(typeName(t)))
	case n.Kind == yaml.SequenceNode && list:
		return nodeList(t.Elem(), n)
	case n.Kind == yaml.SequenceNode:
		return nil, n.Line, fmt.Errorf("is a list, but %s is wanted", article(typeName(t)))
	case list && t.Elem().Kind() == reflect.Struct && !isText(t.Elem()):
		return nil, n.Line, fmt.Errorf("%q is not a %s", n.Value, typeName(t))
	case list:
		v, err = splitList(t.Elem(), n.Value)
		return v, n.Line, err
	}
	if want := typeName(t); want == "true or false" && n.Tag == "!!int" || want != "true or false" && n.Tag == "!!bool" {
		return nil, n.Line, fmt.Errorf("%s is not %s", n.Value, article(want))
	}
	v, err = scalar(t, n.Value)
	return v, n.Line, err
}

func nodeList(elem reflect.Type, n *yaml.Node) (any, int, error) {
	out := []any{}
	for _, c := range n.Content {
		var v any
		var line int
		var err error
		if elem.Kind() == reflect.Struct && !isText(elem) {
			v, line, err = nodeStruct(elem, c)
		} else {
			v, line, err = fromNode(elem, c)
		}
		if err != nil {
			return nil, line, err
		}
		out = append(out, v)
	}
	return out, n.Line, nil
}

// nodeStruct reads one section of a list of sections.
func nodeStruct(t reflect.Type, n *yaml.Node) (any, int, error) {
	if n.Kind != yaml.MappingNode {
		return nil, n.Line, fmt.Errorf("each item must be a section of keys")
	}
	fields, known := map[string]reflect.Type{}, []string{}
	for f := range structFields(t) {
		fields[f.key] = f.typ
		known = append(known, f.key)
	}
	out := map[string]any{}
	for i := 0; i+1 < len(n.Content); i += 2 {
		key, val := n.Content[i], n.Content[i+1]
		ft, ok := fields[key.Value]
		if !ok {
			msg := fmt.Sprintf("unknown key %s", key.Value)
			if hint := didYouMean(key.Value, known); hint != "" {
				msg += "; " + hint
			}
			return nil, key.Line, fmt.Errorf("%s", msg)
		}
		if _, twice := out[key.Value]; twice {
			return nil, key.Line, fmt.Errorf("%s is given twice", key.Value)
		}
		v, line, err := fromNode(ft, val)
		if err != nil {
			return nil, line, fmt.Errorf("%s %w", key.Value, err)
		}
		out[key.Value] = v
	}
	return out, n.Line, nil
}

type structField struct {
	key string
	typ reflect.Type
}

func structFields(t reflect.Type) func(func(structField) bool) {
	return func(yield func(structField) bool) {
		for i := range t.NumField() {
			f := t.Field(i)
			tag, _, _ := strings.Cut(f.Tag.Get("mapstructure"), ",")
			if f.IsExported() && tag != "" && tag != "-" && !yield(structField{tag, f.Type}) {
				return
			}
		}
	}
}

// scalar reads one value. Secrets are never part of an error.
func scalar(t reflect.Type, s string) (any, error) {
	switch {
	case t == durationType:
		return duration(s)
	case isText(t):
		return s, nil // read and checked when the section is decoded
	}
	switch t.Kind() {
	case reflect.String:
		return s, nil
	case reflect.Bool:
		switch strings.ToLower(s) {
		case "true", "yes", "on", "1":
			return true, nil
		case "false", "no", "off", "0":
			return false, nil
		}
		return nil, fmt.Errorf("%q is not true or false", s)
	case reflect.Int, reflect.Int8, reflect.Int16, reflect.Int32, reflect.Int64:
		n, err := strconv.ParseInt(s, 10, t.Bits())
		if err != nil {
			return nil, fmt.Errorf("%q is not a whole number of at most %d bits", s, t.Bits())
		}
		return n, nil
	case reflect.Uint, reflect.Uint8, reflect.Uint16, reflect.Uint32, reflect.Uint64:
		n, err := strconv.ParseUint(s, 10, t.Bits())
		if err != nil {
			return nil, fmt.Errorf("%q is not a whole number of at most %d bits and not below 0", s, t.Bits())
		}
		return n, nil
	case reflect.Float32, reflect.Float64:
		f, err := strconv.ParseFloat(s, 64)
		if err != nil {
			return nil, fmt.Errorf("%q is not a number", s)
		}
		return f, nil
	default:
		return nil, fmt.Errorf("a %s cannot be configured", t)
	}
}

func duration(s string) (any, error) {
	d, err := time.ParseDuration(s)
	if err == nil {
		return d, nil
	}
	if _, nerr := strconv.ParseFloat(s, 64); nerr == nil {
		return nil, fmt.Errorf("%s has no unit; write %ss, %sms or %sm", s, s, s, s)
	}
	return nil, fmt.Errorf("%q is not a duration such as 30s, 500ms or 1h30m", s)
}

func article(noun string) string {
	if noun == "true or false" || strings.HasPrefix(noun, "text") {
		return noun
	}
	return "a " + noun
}

// Text is a value as the file, a variable or a flag would hold it; secrets are
// masked.
func Text(v any) string {
	switch v := v.(type) {
	case time.Duration:
		return durationText(v)
	case Secret:
		return v.String()
	case fmt.Stringer:
		return v.String()
	}
	rv := reflect.ValueOf(v)
	if rv.Kind() == reflect.Slice {
		parts := make([]string, rv.Len())
		for i := range parts {
			parts[i] = Text(rv.Index(i).Interface())
		}
		return "[" + strings.Join(parts, ", ") + "]"
	}
	return fmt.Sprint(v)
}

// durationText leaves out the zero parts: 24h, not 24h0m0s.
func durationText(d time.Duration) string {
	s := d.String()
	if strings.HasSuffix(s, "m0s") {
		s = strings.TrimSuffix(s, "0s")
	}
	if strings.HasSuffix(s, "h0m") {
		s = strings.TrimSuffix(s, "0m")
	}
	return s
}

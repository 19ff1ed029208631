package config

import (
	"fmt"
	"io"
	"reflect"
	"strings"
	"time"
)

// WriteExample writes a file that holds every key with its default.
func (s *Schema) WriteExample(w io.Writer) error {
	var b strings.Builder
	b.WriteString("# imd: every key with its default. Made by `imd config docs --example`; do not edit.\n" +
		"# Order of strength: this file, then IMD_* variables, then flags.\n")
	for _, sec := range s.sections {
		s.exampleSection(&b, sec)
	}
	_, err := io.WriteString(w, b.String())
	return err
}

func (s *Schema) exampleSection(b *strings.Builder, sec Section) {
	b.WriteString("\n")
	if sec.Doc != "" {
		comment(b, "", sec.Doc)
	}
	if sec.Name != "" {
		b.WriteString(sec.Name + ":\n")
	}
	var open []string // groups that are written already
	for _, l := range s.leaves {
		if l.section != sec.Name {
			continue
		}
		parts := strings.Split(strings.TrimPrefix(l.Key, sec.Name+"."), ".")
		depth := 0
		if sec.Name != "" {
			depth = 1
		}
		for i, p := range parts[:len(parts)-1] {
			if i >= len(open) || open[i] != p {
				open = append(open[:min(i, len(open))], p)
				b.WriteString(strings.Repeat("  ", depth+i) + p + ":\n")
			}
		}
		open = open[:len(parts)-1]
		indent := strings.Repeat("  ", depth+len(open))
		comment(b, indent, l.Doc)
		fmt.Fprintf(b, "%s%s: %s\n", indent, parts[len(parts)-1], yamlText(l.Default))
	}
}

// comment writes text as comment lines of at most 100 columns.
func comment(b *strings.Builder, indent, text string) {
	line := indent + "#"
	for word := range strings.FieldsSeq(text) {
		if len(line)+1+len(word) > 100 && line != indent+"#" {
			b.WriteString(line + "\n")
			line = indent + "#"
		}
		line += " " + word
	}
	b.WriteString(line + "\n")
}

// yamlText is a default as YAML.
func yamlText(v any) string {
	switch v := v.(type) {
	case time.Duration:
		return durationText(v)
	case Secret:
		return `""`
	}
	rv := reflect.ValueOf(v)
	switch {
	case rv.Kind() == reflect.Slice:
		parts := make([]string, rv.Len())
		for i := range parts {
			parts[i] = yamlText(rv.Index(i).Interface())
		}
		return "[" + strings.Join(parts, ", ") + "]"
	case rv.Kind() == reflect.String || isText(rv.Type()):
		return quoteYAML(Text(v))
	}
	return Text(v)
}

// quoteYAML quotes text that YAML would read as something else.
func quoteYAML(s string) string {
	plain := s != "" && !strings.ContainsAny(s, "#{}[],&*!|>'\"%@`?\\\n") && !strings.Contains(s, ": ") && strings.TrimSpace(s) == s &&
		!strings.HasPrefix(s, "-") && !strings.HasSuffix(s, ":")
	switch strings.ToLower(s) {
	case "true", "false", "yes", "no", "on", "off", "null", "~":
		plain = false
	}
	if plain && strings.Trim(s, "0123456789.+-_eExX") != "" {
		return s
	}
	return fmt.Sprintf("%q", s)
}

// WriteReference writes a Markdown table of all keys.
func (s *Schema) WriteReference(w io.Writer) error {
	var b strings.Builder
	b.WriteString("| key | type | default | variable | meaning |\n|---|---|---|---|---|\n")
	for _, l := range s.leaves {
		def := "`" + yamlText(l.Default) + "`"
		fmt.Fprintf(&b, "| `%s` | %s | %s | `%s` | %s |\n", l.Key, l.Type, def, l.Env, strings.ReplaceAll(l.Doc, "|", `\|`))
	}
	_, err := io.WriteString(w, b.String())
	return err
}

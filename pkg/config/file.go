package config

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"

	"go.yaml.in/yaml/v3"
)

// maxFile bounds the size of a configuration file and of a secret's file.
const maxFile = 1 << 20

// setting is one value from one source.
type setting struct {
	leaf  *Leaf
	value any
	where string // as in Problem
}

// readFile reads the keys of a YAML file.
func (s *Schema) readFile(path string) (found []setting, warnings []string, problems []Problem) {
	data, err := readBounded(path)
	if err != nil {
		return nil, nil, []Problem{{Where: path, Message: err.Error(), Hint: "give the file with --config or IMD_CONFIG"}}
	}
	w := &walker{schema: s, path: path}
	dec := yaml.NewDecoder(strings.NewReader(string(data)))
	var doc yaml.Node
	switch err := dec.Decode(&doc); {
	case errors.Is(err, io.EOF):
		return nil, nil, nil
	case err != nil:
		return nil, nil, []Problem{syntaxProblem(path, err)}
	}
	if err := dec.Decode(new(yaml.Node)); !errors.Is(err, io.EOF) {
		return nil, nil, []Problem{{Where: path, Message: "holds more than one YAML document"}}
	}
	w.mapping("", doc.Content[0])
	return w.found, w.warnings, w.problems
}

var yamlLine = regexp.MustCompile(`^yaml: (?:line (\d+): )?(.*)$`)

func syntaxProblem(path string, err error) Problem {
	m := yamlLine.FindStringSubmatch(strings.SplitN(err.Error(), "\n", 2)[0])
	if m == nil {
		return Problem{Where: path, Message: err.Error()}
	}
	if m[1] != "" {
		path += ":" + m[1]
	}
	return Problem{Where: path, Message: "is not YAML: " + m[2], Hint: "check the indentation"}
}

// walker turns YAML nodes into settings.
type walker struct {
	schema   *Schema
	path     string
	found    []setting
	warnings []string
	problems []Problem
}

func (w *walker) bad(line int, key, msg, hint string) {
	w.problems = append(w.problems, Problem{Where: fmt.Sprintf("%s:%d", w.path, line), Key: key, Message: msg, Hint: hint})
}

// mapping reads the keys below prefix.
func (w *walker) mapping(prefix string, n *yaml.Node) {
	if n.Kind == yaml.AliasNode {
		n = n.Alias
	}
	if n.Kind == yaml.ScalarNode && n.Tag == "!!null" {
		return // an empty section means its defaults
	}
	if n.Kind != yaml.MappingNode {
		w.bad(n.Line, prefix, "must be a section of keys", "")
		return
	}
	seen := map[string]int{}
	for i := 0; i+1 < len(n.Content); i += 2 {
		k, v := n.Content[i], n.Content[i+1]
		key := k.Value
		if prefix != "" {
			key = prefix + "." + k.Value
		}
		if line, twice := seen[key]; twice {
			w.bad(k.Line, key, fmt.Sprintf("is given twice, first on line %d", line), "")
			continue
		}
		seen[key] = k.Line
		w.entry(key, k, v)
	}
}

func (w *walker) entry(key string, k, v *yaml.Node) {
	if w.schema.groups[key] {
		w.mapping(key, v)
		return
	}
	leaf := w.schema.byKey[key]
	if leaf == nil {
		w.unknown(key, k.Line)
		return
	}
	val, line, err := fromNode(leaf.typ, v)
	if err != nil {
		w.bad(line, key, hide(leaf, err), "")
		return
	}
	w.found = append(w.found, setting{leaf, val, fmt.Sprintf("%s:%d", w.path, k.Line)})
}

func (w *walker) unknown(key string, line int) {
	if instead, ok := w.schema.moved[key]; ok {
		w.warnings = append(w.warnings, fmt.Sprintf("%s:%d: %s", w.path, line, movedText(key, instead)))
		return
	}
	known := w.schema.keys()
	for g := range w.schema.groups {
		known = append(known, g)
	}
	w.bad(line, key, "unknown key", didYouMean(key, known))
}

func movedText(key, instead string) string {
	if instead == "" {
		return key + ": this key was removed and has no effect"
	}
	return key + ": this key was removed and has no effect; use " + instead
}

// hide keeps the value of a secret out of its error.
func hide(l *Leaf, err error) string {
	if l.Secret {
		return "is not text"
	}
	return err.Error()
}

// readBounded reads a small file. Its errors are clauses without the path.
func readBounded(path string) ([]byte, error) {
	f, err := os.Open(path)
	if err != nil {
		var pe *fs.PathError
		if errors.As(err, &pe) {
			err = pe.Err
		}
		if errors.Is(err, fs.ErrNotExist) {
			return nil, errors.New("there is no such file")
		}
		return nil, fmt.Errorf("cannot be read: %w", err)
	}
	defer f.Close()
	data, err := io.ReadAll(io.LimitReader(f, maxFile+1))
	if err != nil {
		var pe *fs.PathError
		if errors.As(err, &pe) {
			err = pe.Err
		}
		return nil, fmt.Errorf("cannot be read: %w", err)
	}
	if len(data) > maxFile {
		return nil, errors.New("is larger than 1 MiB")
	}
	return data, nil
}

// readSecret reads the file of a _file key; the newline at its end is not part
// of the secret.
//
// Others than the owner must not read it, but for the group if root is the owner,
// which is how secrets are handed to a process that must not change them. The
// folder of credentials is guarded as a whole.
func readSecret(path, credentials string) (Secret, error) {
	given := false
	if credentials != "" && !strings.ContainsRune(path, filepath.Separator) {
		if in := filepath.Join(credentials, path); fileExists(in) {
			path, given = in, true
		}
	}
	if info, err := os.Stat(path); err == nil && !given && readByOthers(info) {
		return "", fmt.Errorf("%s can be read by others (mode %04o); chmod 600 it", path, info.Mode().Perm())
	}
	data, err := readBounded(path)
	if err != nil {
		return "", fmt.Errorf("%s: %w", path, err)
	}
	text := strings.TrimRight(string(data), "\r\n")
	if text == "" {
		return "", fmt.Errorf("%s is empty", path)
	}
	return Secret(text), nil
}

// readByOthers reports whether more can open the file than may know a secret.
func readByOthers(info fs.FileInfo) bool {
	forbidden := fs.FileMode(0o077)
	if s, ok := info.Sys().(*syscall.Stat_t); ok && s.Uid == 0 {
		forbidden = 0o037
	}
	return info.Mode().IsRegular() && info.Mode().Perm()&forbidden != 0
}

func fileExists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}

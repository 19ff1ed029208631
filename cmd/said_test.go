package cmd

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/spf13/cobra"
)

var (
	spanRE    = regexp.MustCompile("`((?:sudo -u imd )?imd [a-z][^`\n]*)`")
	commandRE = regexp.MustCompile(`(?m)^(?:\$ )?((?:sudo -u imd )?imd [a-z].*)$`)
	blockRE   = regexp.MustCompile("(?s)\n```\\w*\n(.*?)\n```")
	wordRE    = regexp.MustCompile(`^[a-z][a-z0-9-]*$`)
)

// saidCommands are the command lines of imd that a document shows.
func saidCommands(page string) []string {
	var out []string
	for _, m := range spanRE.FindAllStringSubmatch(page, -1) {
		out = append(out, m[1])
	}
	for _, b := range blockRE.FindAllStringSubmatch(page, -1) {
		for _, m := range commandRE.FindAllStringSubmatch(strings.ReplaceAll(b[1], "\\\n", " "), -1) {
			out = append(out, m[1])
		}
	}
	return out
}

// wrongIn says what of a command line there is not: a command or a flag. "" = all is there.
func wrongIn(root *cobra.Command, line string) string {
	line, _, _ = strings.Cut(line, " # ")
	words := strings.Fields(strings.TrimPrefix(line, "sudo -u imd "))[1:]
	c := root
	for len(words) > 0 && c.HasSubCommands() && wordRE.MatchString(words[0]) {
		next, _, err := c.Find(words[:1])
		if err != nil || next == c {
			return "no command " + words[0] + " of " + c.CommandPath()
		}
		c, words = next, words[1:]
	}
	for _, w := range words {
		if w == "|" || w == ">" || w == "&&" || w == ";" {
			break
		}
		name, _, _ := strings.Cut(strings.TrimPrefix(w, "--"), "=")
		if name = strings.Trim(name, ".,;:"); strings.HasPrefix(w, "--") && wordRE.MatchString(name) &&
			c.Flag(name) == nil && c.InheritedFlags().Lookup(name) == nil && name != "help" {
			return "no flag --" + name + " of " + c.CommandPath()
		}
	}
	return ""
}

// What the documents and the examples of the help tell people to type is there: commands and their flags.
func TestDocumentedCommandsAreThere(t *testing.T) {
	root := newRoot(standInApp(nil, nil, nil))
	for line, wrong := range map[string]bool{
		"imd check ready --data-dir x": false, "imd nodes": false, "imd nodes --nope": true, "imd leader nope": true, "imd settings list --nodes": true,
	} {
		if got := wrongIn(root, line); (got != "") != wrong {
			t.Errorf("%s: %q", line, got)
		}
	}
	lines := 0
	var examples func(c *cobra.Command)
	examples = func(c *cobra.Command) {
		for line := range strings.SplitSeq(c.Example, "\n") {
			if line = strings.TrimSpace(line); strings.HasPrefix(line, "imd ") {
				if wrong := wrongIn(root, line); wrong != "" {
					t.Errorf("the help of %s: there is %s: %s", c.CommandPath(), wrong, line)
				}
			}
		}
		for _, sub := range c.Commands() {
			examples(sub)
		}
	}
	examples(root)
	for _, pattern := range []string{"../README.md", "../docs/*.md", "../docs/features/*.md", "../sdk/go/README.md"} {
		files, err := filepath.Glob(pattern)
		if err != nil || len(files) == 0 {
			t.Fatalf("%s: %v", pattern, err)
		}
		for _, file := range files {
			if filepath.Base(file) == "cli.md" { // the help itself
				continue
			}
			page, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			for _, line := range saidCommands(string(page)) {
				lines++
				if wrong := wrongIn(root, line); wrong != "" {
					t.Errorf("%s: there is %s: %s", file, wrong, line)
				}
			}
		}
	}
	if lines < 200 {
		t.Errorf("only %d command lines were found: the form of the documents has changed", lines)
	}
}

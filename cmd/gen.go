package cmd

import (
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/imdhq/imd/deploy"
	"github.com/imdhq/imd/pkg/module"
)

func newGen(a *app) *cobra.Command {
	c := &cobra.Command{Use: "gen", Short: "Print files for the programs around a server"}
	c.AddCommand(newGenSystemd(a), newGenRules(a))
	return c
}

func newGenRules(a *app) *cobra.Command {
	c := &cobra.Command{
		Use:     "prometheus-rules",
		Short:   "Print the alert rules for Prometheus",
		Long:    "Prometheus-rules prints the alerts on the metrics of this version. Each names the page that says what to do.",
		Example: "  imd gen prometheus-rules > /etc/prometheus/rules/imd.yml",
		Args:    cobra.NoArgs,
	}
	c.RunE = func(*cobra.Command, []string) error {
		return a.printFiles([]genFile{{Path: "imd.yml", Text: deploy.Alerts()}})
	}
	return c
}

// genFile is a file that gen prints or writes.
type genFile struct {
	Path string `json:"path"`
	Text string `json:"text"`
}

// printFiles prints files; more than one with their names.
func (a *app) printFiles(files []genFile) error {
	return a.printer().data(files, func(w io.Writer) {
		for i, f := range files {
			if len(files) > 1 {
				if i > 0 {
					fmt.Fprintln(w)
				}
				fmt.Fprintf(w, "# ==> %s\n", f.Path)
			}
			fmt.Fprint(w, f.Text)
		}
	})
}

// systemdFlags are the flags of gen systemd.
type systemdFlags struct {
	units       []string
	credentials []string
	unit        deploy.Unit
	root        string
	write       bool
	force       bool
}

func newGenSystemd(a *app) *cobra.Command {
	f := systemdFlags{unit: deploy.DefaultUnit()}
	c := &cobra.Command{
		Use:   "systemd",
		Short: "Print units of systemd, one process for each set of roles",
		Long: `Systemd prints the template unit imd@.service and, for each --unit NAME=ROLES,
the file with the variables of the process imd@NAME: its roles, and, from the
second process on, listeners of its own, so that several fit on one machine.
Nothing is written without --write; with it, files that are there and differ are
left alone unless --force is given, too. The configuration file has to exist and
may be empty.

A process of its own for the gateway is restarted without moving conversations.`,
		Example: "  imd gen systemd --unit main=all\n" +
			"  imd gen systemd --unit edge=gateway,push --unit core=state,scheduler --write\n" +
			"  imd gen systemd --unit core=state --credential storage.postgres_file=/etc/imd/cred/postgres",
		Args: cobra.NoArgs,
	}
	fs := c.Flags()
	fs.StringArrayVar(&f.units, "unit", nil, "NAME=ROLES of a process, such as edge=gateway,push; may be repeated (default main=all)")
	fs.StringArrayVar(&f.credentials, "credential", nil, "KEY=FILE for a secret that systemd hands to the process; KEY is one that ends in _file; may be repeated")
	fs.StringVar(&f.unit.Program, "program", f.unit.Program, "absolute path of the binary")
	fs.StringVar(&f.unit.User, "user", f.unit.User, "user that runs it")
	fs.StringVar(&f.unit.Config, "config", f.unit.Config, "absolute path of the configuration")
	fs.StringVar(&f.unit.Env, "env-dir", f.unit.Env, "absolute path of the folder for NAME.env")
	fs.BoolVar(&f.write, "write", false, "write the files and say which")
	fs.BoolVar(&f.force, "force", false, "with --write: replace files that differ")
	fs.StringVar(&f.root, "root", "/", "with --write: folder below which the files are put")
	c.RunE = func(*cobra.Command, []string) error {
		files, err := f.files(a)
		if err != nil {
			return err
		}
		if !f.write {
			return a.printFiles(files)
		}
		return a.writeFiles(files, f.root, f.force)
	}
	return c
}

// files are what systemd needs.
func (f *systemdFlags) files(a *app) ([]genFile, error) {
	u := &f.unit
	for name, path := range map[string]string{"--program": u.Program, "--config": u.Config, "--env-dir": u.Env} {
		if !filepath.IsAbs(path) || !deploy.Plain(path) {
			return nil, usagef("%s %q is no absolute path without spaces and signs that systemd reads", name, path)
		}
	}
	if !deploy.Plain(u.User) {
		return nil, usagef("--user %q is no name of a user", u.User)
	}
	if err := f.addCredentials(a); err != nil {
		return nil, err
	}
	out := []genFile{{Path: "/etc/systemd/system/imd@.service", Text: u.Text()}}
	units := f.units
	if len(units) == 0 {
		units = []string{"main=" + module.All}
	}
	var seen []string
	for i, unit := range units {
		name, words, ok := strings.Cut(unit, "=")
		if !ok || !unitName(name) {
			return nil, usagef("--unit %q is not NAME=ROLES with a name of small letters, digits and dashes", unit)
		}
		if slices.Contains(seen, name) {
			return nil, usagef("--unit %s is there twice", name)
		}
		seen = append(seen, name)
		roles, err := module.ChooseRoles(a.specs, strings.Split(words, ","))
		if err != nil {
			return nil, usagef("--unit %s: %v", name, err)
		}
		out = append(out, genFile{Path: filepath.Join(u.Env, name+".env"), Text: unitEnv(name, roles, i)})
	}
	return out, nil
}

// addCredentials takes in --credential.
func (f *systemdFlags) addCredentials(a *app) error {
	sch, err := schema(a.specs)
	if err != nil {
		return err
	}
	f.unit.Credentials = nil
	for _, c := range f.credentials {
		key, path, _ := strings.Cut(c, "=")
		leaf := sch.Leaf(key)
		if leaf == nil || leaf.Twin == "" {
			return usagef("--credential %q: %s is no key of a secret's file, such as storage.postgres_file", c, key)
		}
		if !filepath.IsAbs(path) || !deploy.Plain(path) {
			return usagef("--credential %q: %q is no absolute path without spaces and signs that systemd reads", c, path)
		}
		f.unit.Credentials = append(f.unit.Credentials, deploy.Credential{Name: leaf.Twin, Path: path, Variable: leaf.Env})
	}
	return nil
}

// unitName reports whether a name is good for an instance, a folder and a file.
func unitName(name string) bool {
	return name != "" && len(name) <= 32 && name[0] != '-' &&
		!strings.ContainsFunc(name, func(r rune) bool { return (r < 'a' || r > 'z') && (r < '0' || r > '9') && r != '-' })
}

// unitEnv are the variables of the i-th process. They win over the configuration
// file, so the first one, whose listeners are the usual ones, leaves them to it.
func unitEnv(name string, roles []string, i int) string {
	var b strings.Builder
	fmt.Fprintf(&b, "# The process imd@%s.\nIMD_ROLES=%s\n", name, strings.Join(roles, ","))
	if i == 0 {
		return b.String()
	}
	port := 8421 + 10*i
	fmt.Fprintf(&b, "# Not those of the first process; these win over the configuration file.\nIMD_OPS_LISTEN=127.0.0.1:%d\n", port)
	if slices.Contains(roles, "gateway") {
		fmt.Fprintf(&b, "IMD_GATEWAY_LISTEN=127.0.0.1:%d\n", port-1)
	}
	fmt.Fprintf(&b, "IMD_PEERS_LISTEN=127.0.0.1:%d\n", port+1)
	return b.String()
}

// writeFiles puts files below root, all or none as far as what is there decides.
func (a *app) writeFiles(files []genFile, root string, force bool) error {
	for _, f := range files {
		have, err := os.ReadFile(filepath.Join(root, f.Path))
		if err == nil && string(have) != f.Text && !force {
			return newFailure(exitConflict, "exists", filepath.Join(root, f.Path)+" is there already and differs", "compare it with what is printed without --write, or add --force")
		}
	}
	for i, f := range files {
		path := filepath.Join(root, f.Path)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			return err
		}
		if err := os.WriteFile(path, []byte(f.Text), 0o644); err != nil {
			return err
		}
		files[i].Path = path
	}
	return a.printer().data(files, func(w io.Writer) {
		for _, f := range files {
			fmt.Fprintln(w, "wrote "+f.Path)
		}
	})
}

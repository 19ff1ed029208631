// Package deploy holds what an operator puts beside the binary: the unit of
// systemd, and rules for Prometheus. The files are embedded, so that the binary
// can print those of its own version.
package deploy

import (
	"embed"
	"io/fs"
	"slices"
	"strings"
)

//go:embed systemd/imd@.service
var unit string

//go:embed alerts-*.yml
var alerts embed.FS

// Unit is a template unit of systemd. An instance is one process; its name chooses
// its data folder and the file with its variables.
type Unit struct {
	Program string // absolute path of the binary
	User    string // that runs it
	Config  string // absolute path of the configuration
	Env     string // absolute path of the folder with NAME.env for each instance NAME
	// Credentials are secrets that systemd reads as root and shows to the process
	// alone.
	Credentials []Credential
}

// Credential is a secret from a file.
type Credential struct {
	Name     string // of the credential
	Path     string // absolute
	Variable string // of the environment, that names the credential to the program
}

// The values that stand in the file as it ships.
const (
	defaultProgram = "/usr/bin/imd"
	defaultUser    = "imd"
	defaultConfig  = "/etc/imd/imd.yaml"
	defaultEnv     = "/etc/imd"
)

// DefaultUnit is the unit as it ships.
func DefaultUnit() Unit {
	return Unit{Program: defaultProgram, User: defaultUser, Config: defaultConfig, Env: defaultEnv}
}

// Text is the file imd@.service. Its values are not checked; see [Plain].
func (u Unit) Text() string {
	var secrets strings.Builder
	for _, c := range u.Credentials {
		secrets.WriteString("LoadCredential=" + c.Name + ":" + c.Path + "\nEnvironment=" + c.Variable + "=" + c.Name + "\n")
	}
	return strings.NewReplacer(
		"ExecStart="+defaultProgram+" ", "ExecStart="+u.Program+" ",
		"--config "+defaultConfig+" ", "--config "+u.Config+" ",
		"User="+defaultUser+"\n", "User="+u.User+"\n",
		"EnvironmentFile="+defaultEnv+"/%i.env\n", "EnvironmentFile="+u.Env+"/%i.env\n"+secrets.String(),
	).Replace(unit)
}

// Plain reports whether a value means itself in a unit: it has no space, quote,
// backslash, percent or dollar sign, and no control character.
func Plain(value string) bool {
	return value != "" && !strings.ContainsFunc(value, func(r rune) bool { return r <= ' ' || r == 0x7f || strings.ContainsRune(`"'\%$;#`, r) })
}

// Alerts is a file of rules for Prometheus with all groups.
func Alerts() string {
	names, _ := fs.Glob(alerts, "*.yml") // only a bad pattern fails
	slices.Sort(names)
	var b strings.Builder
	b.WriteString("# Alerts on imd, for Prometheus. Each names what to do; the pages are below docs/.\ngroups:\n")
	for _, name := range names {
		text, _ := fs.ReadFile(alerts, name) // it was listed
		_, groups, _ := strings.Cut(string(text), "groups:\n")
		b.WriteString(groups)
	}
	return b.String()
}

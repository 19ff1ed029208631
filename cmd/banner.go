package cmd

import (
	"fmt"
	"net"
	"path/filepath"
	"strings"
	"time"

	"go.uber.org/zap"

	"github.com/imdhq/imd/pkg/datadir"
)

// greet says where things are and what to do next: as a few lines on a
// terminal, as one line of log otherwise.
func (e *engine) greet() {
	e.mu.Lock()
	p := e.points
	e.mu.Unlock()
	took := time.Since(p.Started)
	if !isTerminal() {
		e.log.Info("ready",
			zap.String("version", p.Version), zap.Strings("roles", e.cfg.roles), zap.String("chat", publicURL(p)), zap.String("ops", opsURL(p)),
			zap.String("data_dir", e.dir.Path()), zap.String("next", e.next()), zap.Float64("took_ms", float64(took)/1e6), zap.Bool("dev", p.Dev))
		return
	}
	fmt.Fprint(e.app.errOut, e.banner(p, took))
}

func (e *engine) banner(p datadir.Endpoints, took time.Duration) string {
	var b strings.Builder
	line := func(name, text string) { fmt.Fprintf(&b, "  %-9s %s\n", name, text) }
	b.WriteString("\n")
	if e.demo != nil {
		line("imd "+p.Version, "development server, not for production")
	} else {
		line("imd "+p.Version, "roles "+strings.Join(e.cfg.roles, ", ")+fmt.Sprintf(", ready in %.1f s", took.Seconds()))
	}
	for i, link := range e.links(p) {
		line([]string{"chat", ""}[min(i, 1)], link)
	}
	line("ops", opsURL(p)+"readyz")
	kept := ""
	if e.demo != nil && e.demo.throwaway {
		kept = " (thrown away at the end)"
	}
	line("data", e.dir.Path()+kept)
	line("next", e.next())
	b.WriteString("\n")
	return b.String()
}

// links open the chat page, in development signed in as each demo user.
func (e *engine) links(p datadir.Endpoints) []string {
	if p.Public == "" {
		return nil
	}
	if e.demo == nil {
		return []string{publicURL(p)}
	}
	var out []string
	for _, u := range e.demo.users {
		out = append(out, publicURL(p)+"#user="+u)
	}
	return out
}

// next is the command to type next, complete.
func (e *engine) next() string {
	at := ""
	if e.dir.Path() != datadir.Default(e.app.getenv) {
		at = " --data-dir " + shellWord(e.dir.Path())
	}
	if e.demo != nil {
		return program(e.app.program) + " chat --as " + e.demo.users[0] + at
	}
	return program(e.app.program) + " token mint --user alice" + at
}

// program is how the program was called, so that the line can be typed as it
// stands: "imd" if it was found by its name, else the path.
func program(called string) string {
	if called == "" || !strings.ContainsRune(called, filepath.Separator) {
		return "imd"
	}
	return shellWord(called)
}

// shellWord quotes a word if a shell would take it apart.
func shellWord(s string) string {
	if strings.ContainsAny(s, " \t\n\"'\\$&|;<>()*?[]#~`!{}") {
		return "'" + strings.ReplaceAll(s, "'", `'\''`) + "'"
	}
	return filepath.Clean(s)
}

// publicURL is the public listener for a browser on this machine; "" = it is not
// there.
func publicURL(p datadir.Endpoints) string {
	if p.PublicTLS {
		return webURL("https://", p.Public)
	}
	return webURL("http://", p.Public)
}

// opsURL is the same of the ops listener.
func opsURL(p datadir.Endpoints) string { return webURL("http://", p.Ops) }

// webURL is an address for a browser on this machine.
func webURL(scheme, address string) string {
	host, port, err := net.SplitHostPort(address)
	if err != nil {
		return ""
	}
	if ip := net.ParseIP(host); host == "" || ip != nil && ip.IsUnspecified() {
		host = "127.0.0.1"
	}
	return scheme + net.JoinHostPort(host, port) + "/"
}

package cmd

import (
	"context"
	"io"
	"net"
	"net/http"
	"os"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/rogpeppe/go-internal/testscript"

	"github.com/imdhq/imd/pkg/datadir"
)

// TestMain also lets the test binary be the command: imd with its real
// modules, and node with stand-ins for them.
func TestMain(m *testing.M) {
	testscript.Main(m, map[string]func(){
		"imd":  func() { os.Exit(Main()) },
		"node": func() { os.Exit(standInApp(os.Stdout, os.Stderr, os.Environ()).run(context.Background(), os.Args[1:])) },
	})
}

func standInApp(out, errOut io.Writer, environ []string) *app {
	return &app{specs: standIns(), environ: environ, out: out, errOut: errOut}
}

// Each script in testdata is a session at the shell: what is typed, what is
// printed, and the exit status.
func TestScripts(t *testing.T) {
	testscript.Run(t, testscript.Params{
		Dir:                 "testdata",
		RequireExplicitExec: true,
		Setup: func(e *testscript.Env) error {
			e.Setenv("HOME", e.WorkDir+"/home")
			e.Setenv("TMPDIR", e.WorkDir+"/tmp")
			return os.Mkdir(e.WorkDir+"/tmp", 0o700)
		},
		Cmds: map[string]func(*testscript.TestScript, bool, []string){
			"status": cmdStatus, "serving": cmdServing, "fetch": cmdFetch, "occupy": cmdOccupy, "mode": cmdMode, "signal": cmdSignal, "eventually": cmdEventually, "calm": cmdCalm, "either": cmdEither,
		},
	})
}

// status N cmd args... runs a command that must end with the status.
func cmdStatus(ts *testscript.TestScript, _ bool, args []string) {
	err := ts.Exec(args[1], args[2:]...)
	got := "0"
	if ee, ok := err.(interface{ ExitCode() int }); ok {
		got = strconv.Itoa(ee.ExitCode())
	} else if err != nil {
		ts.Fatalf("%v", err)
	}
	if got != args[0] {
		ts.Fatalf("exit status %s, want %s", got, args[0])
	}
}

// serving DIR waits until the node of the data folder is ready and sets PUBLIC,
// OPS and PID.
func cmdServing(ts *testscript.TestScript, _ bool, args []string) {
	dir := ts.MkAbs(args[0])
	for deadline := time.Now().Add(20 * time.Second); time.Now().Before(deadline); time.Sleep(20 * time.Millisecond) {
		p, err := datadir.ReadEndpoints(dir)
		if err != nil || p.Public == "" {
			continue
		}
		res, err := http.Get("http://" + p.Ops + "/readyz")
		if err != nil {
			continue
		}
		res.Body.Close()
		if res.StatusCode == http.StatusOK {
			ts.Setenv("PUBLIC", p.Public)
			ts.Setenv("OPS", p.Ops)
			ts.Setenv("PID", strconv.Itoa(p.PID))
			return
		}
	}
	ts.Fatalf("no node is ready on %s", dir)
}

// fetch STATUS URL gets a page, prints it to fetched, and checks the status.
func cmdFetch(ts *testscript.TestScript, _ bool, args []string) {
	req, err := http.NewRequest("GET", args[1], nil)
	ts.Check(err)
	for _, h := range args[2:] {
		k, v, _ := strings.Cut(h, "=")
		if req.Header.Set(k, v); k == "Host" {
			req.Host = v
		}
	}
	res, err := http.DefaultClient.Do(req)
	ts.Check(err)
	defer res.Body.Close()
	body, err := io.ReadAll(res.Body)
	ts.Check(err)
	ts.Check(os.WriteFile(ts.MkAbs("fetched"), body, 0o600))
	if strconv.Itoa(res.StatusCode) != args[0] {
		ts.Fatalf("status %d, want %s: %s", res.StatusCode, args[0], body)
	}
}

// occupy NAME takes a port for the rest of the script and sets NAME to it.
func cmdOccupy(ts *testscript.TestScript, _ bool, args []string) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	ts.Check(err)
	ts.Defer(func() { _ = ln.Close() })
	ts.Setenv(args[0], ln.Addr().String())
}

// mode FILE OCTAL checks permissions.
func cmdMode(ts *testscript.TestScript, _ bool, args []string) {
	info, err := os.Stat(ts.MkAbs(args[0]))
	ts.Check(err)
	if got := info.Mode().Perm().String(); got != args[1] {
		ts.Fatalf("%s has mode %s, want %s", args[0], got, args[1])
	}
}

// signal PID NAME sends a signal.
func cmdSignal(ts *testscript.TestScript, _ bool, args []string) {
	pid, err := strconv.Atoi(args[0])
	ts.Check(err)
	ts.Check(syscall.Kill(pid, map[string]syscall.Signal{"TERM": syscall.SIGTERM, "INT": syscall.SIGINT, "HUP": syscall.SIGHUP, "KILL": syscall.SIGKILL}[args[1]]))
}

// eventually PATTERN cmd args... runs a command until its output matches: for
// what other nodes learn a moment later.
func cmdEventually(ts *testscript.TestScript, _ bool, args []string) {
	want, err := regexp.Compile("(?m)" + args[0])
	ts.Check(err)
	for deadline := time.Now().Add(10 * time.Second); time.Now().Before(deadline); time.Sleep(20 * time.Millisecond) {
		if ts.Exec(args[1], args[2:]...) == nil && want.MatchString(ts.ReadFile("stdout")) {
			return
		}
	}
	ts.Fatalf("the output never matched %s:\n%s", args[0], ts.ReadFile("stdout"))
}

// either cmd args... runs a command that may end well or not.
func cmdEither(ts *testscript.TestScript, _ bool, args []string) { _ = ts.Exec(args[0], args[1:]...) }

// calm checks that a run of bench told of no errors but those of a server, or of a
// bench, that a slow machine keeps from its work.
func cmdCalm(ts *testscript.TestScript, _ bool, _ []string) {
	for _, told := range errorLine.FindAllStringSubmatch(ts.ReadFile("stdout"), -1) {
		switch told[1] {
		case "refused: busy", "refused: behind", "refused: unavailable", "busy", "unavailable", "not begun", "unanswered":
		default:
			ts.Fatalf("bench tells of errors: %s", told[1])
		}
	}
}

// errorLine is how bench tells of errors of one kind.
var errorLine = regexp.MustCompile(`(?m)^errors: (.*) [0-9]+$`)

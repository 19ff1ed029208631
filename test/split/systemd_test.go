package split

import (
	"errors"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/imdhq/imd/pkg/testenv"
)

// exposure is the most that systemd-analyze may find in the unit, of 100: what
// is left is the network, which a server needs.
const exposure = "25"

// The unit that gen prints is one that systemd reads without a complaint, and
// leaves little of the machine open to the process.
func TestUnits(t *testing.T) {
	t.Parallel()
	if _, err := exec.LookPath("systemd-analyze"); err != nil {
		testenv.Omit(t, "systemd-analyze", "apt-get install systemd")
	}
	dir := t.TempDir()
	out, err := exec.Command(testenv.Binary(t), "gen", "systemd", "--unit", "edge=gateway,push", "--unit", "core=state,scheduler",
		"--credential", "storage.postgres_file=/etc/imd/cred/postgres", "--program", testenv.Binary(t), "--user", "daemon", "--write", "--root", dir).CombinedOutput()
	if err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	folder := filepath.Join(dir, "etc/systemd/system")
	for _, instance := range []string{"imd@edge.service", "imd@core.service"} {
		unit := filepath.Join(folder, instance)
		if err := os.Symlink("imd@.service", unit); err != nil {
			t.Fatal(err)
		}
		// Not those that are installed here: they are not ours to judge.
		if out, err := exec.Command("systemd-analyze", "verify", "--man=no", "--recursive-errors=no", unit).CombinedOutput(); err != nil || len(out) > 0 {
			t.Errorf("%s: %v\n%s", instance, err, out)
		}
		if out, err := exec.Command("systemd-analyze", "security", "--offline=yes", "--no-pager", "--threshold="+exposure, unit).CombinedOutput(); err != nil {
			t.Errorf("%s: %v\n%s", instance, err, out)
		}
	}
	// What the files say is what serve takes.
	for name, roles := range map[string]string{"edge": "push, gateway", "core": "state, scheduler"} {
		text, err := os.ReadFile(filepath.Join(dir, "etc/imd", name+".env"))
		if err != nil {
			t.Fatal(err)
		}
		check := exec.Command(testenv.Binary(t), "config", "check", "--set", "controlplane.endpoints=http://127.0.0.1:2379")
		check.Env = append(os.Environ(), strings.Split(strings.TrimSpace(string(text)), "\n")[1:]...)
		if out, err := check.CombinedOutput(); err != nil || strings.TrimSpace(string(out)) != "ok: roles "+roles {
			t.Errorf("%s: %v: %s\n%s", name, err, out, text)
		}
	}
}

// notices is what a service manager hears.
type notices struct {
	t    *testing.T
	conn *net.UnixConn
	path string
}

func listenNotices(t *testing.T) *notices {
	t.Helper()
	n := &notices{t: t, path: filepath.Join(t.TempDir(), "notify")}
	var err error
	if n.conn, err = net.ListenUnixgram("unixgram", &net.UnixAddr{Name: n.path, Net: "unixgram"}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { n.conn.Close() })
	return n
}

// until reads notices to one that holds the line.
func (n *notices) until(line string) {
	n.t.Helper()
	buf := make([]byte, 4096)
	_ = n.conn.SetReadDeadline(time.Now().Add(testenv.ReadyIn))
	for {
		got, err := n.conn.Read(buf)
		if err != nil {
			n.t.Fatalf("%s was never said: %v", line, err)
		}
		for l := range strings.SplitSeq(string(buf[:got]), "\n") {
			if l == line {
				return
			}
		}
	}
}

// none fails if the line is there already.
func (n *notices) none(line string) {
	n.t.Helper()
	buf := make([]byte, 4096)
	for {
		_ = n.conn.SetReadDeadline(time.Now().Add(time.Millisecond))
		got, err := n.conn.Read(buf)
		if errors.Is(err, os.ErrDeadlineExceeded) {
			return
		}
		if err != nil || strings.Contains("\n"+string(buf[:got])+"\n", "\n"+line+"\n") {
			n.t.Fatalf("%s: %q, %v", line, buf[:got], err)
		}
	}
}

// A service manager hears when the node serves, that it lives, and that it stops.
func TestServiceManagerIsTold(t *testing.T) {
	t.Parallel()
	heard := listenNotices(t)
	n := &testenv.Node{Dir: t.TempDir() + "/data", Layout: testenv.AllInOne, Env: []string{"NOTIFY_SOCKET=" + heard.path, "WATCHDOG_USEC=4000000"}}
	if err := n.Try(t); err != nil {
		t.Fatal(err)
	}
	heard.until("READY=1")
	if err := n.WaitReady(5 * time.Second); err != nil { // one look may take a second
		t.Error(err) // it was told too early
	}
	heard.until("WATCHDOG=1")
	heard.until("WATCHDOG=1")
	heard.none("STOPPING=1")
	n.Signal(syscall.SIGTERM)
	heard.until("STOPPING=1")
	if code := n.Wait(testenv.ReadyIn); code != 0 {
		t.Errorf("exit %d", code)
	}
}

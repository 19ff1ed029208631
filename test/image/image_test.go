package image

import (
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/imdhq/imd/pkg/datadir"
	"github.com/imdhq/imd/pkg/testenv"
)

// user is the one of the image.
const user = 65532

// inside is a shell script that enters the image's root and runs the binary
// there: $1 the root, $2 the data folder, $3 what to do with it first, the rest
// the binary's arguments.
const inside = `
root=$1 data=$2 disk=$3; shift 3
mount --bind "$root" "$root"
mount --bind "$data" "$root/data"
eval "$disk"
mount -o remount,bind,ro "$root"
exec chroot --userspec=65532:65532 "$root" /imd "$@"`

// image is an unpacked image with its volume.
type image struct{ root, data string }

func unpack(t *testing.T) image {
	t.Helper()
	if os.Geteuid() != 0 || exec.Command("unshare", "-m", "true").Run() != nil {
		testenv.Omit(t, "a root of its own for the binary", "run the tests as root, with util-linux")
	}
	im := image{root: filepath.Join(t.TempDir(), "root"), data: filepath.Join(t.TempDir(), "data")}
	for dir, mode := range map[string]os.FileMode{im.root: 0o755, filepath.Join(im.root, "data"): 0o755, im.data: 0o700} {
		if err := os.MkdirAll(dir, mode); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Chown(im.data, user, user); err != nil {
		t.Fatal(err)
	}
	program, err := os.ReadFile(testenv.Binary(t))
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(im.root, "imd"), program, 0o755); err != nil {
		t.Fatal(err)
	}
	return im
}

// command runs the binary in the image with an environment of its own.
func (im image) command(args ...string) *exec.Cmd { return im.on(":", args...) }

// on is command with a script that changes the disk below $data first.
func (im image) on(disk string, args ...string) *exec.Cmd {
	c := exec.Command("unshare", append([]string{"-m", "--propagation", "private", "sh", "-euc", inside, "sh", im.root, im.data, disk}, args...)...)
	c.Env = []string{"PATH=" + os.Getenv("PATH"), "IMD_DATA_DIR=/data", "IMD_GATEWAY_LISTEN=127.0.0.1:0", "IMD_OPS_LISTEN=127.0.0.1:0"}
	c.Stderr = os.Stderr
	return c
}

func TestImage(t *testing.T) {
	im := unpack(t)
	c := im.command("serve", "--roles=all")
	c.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- c.Wait() }()
	t.Cleanup(func() { _ = c.Process.Kill() })

	if err := ready(im.data, ended); err != nil {
		t.Fatal(err)
	}
	if out, err := im.command("check", "ready").Output(); err != nil {
		t.Errorf("the health check fails: %v %s", err, out)
	}
	if err := c.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	select {
	case err := <-ended:
		if err != nil {
			t.Errorf("serve ended with %v", err)
		}
	case <-time.After(45 * time.Second):
		t.Error("serve did not end")
	}
	if err := im.command("check", "ready").Run(); err == nil {
		t.Error("the health check passes without a server")
	}
}

// ready waits until the node of the data folder is ready.
func ready(data string, ended <-chan error) error {
	deadline := time.Now().Add(testenv.ReadyIn)
	for time.Now().Before(deadline) {
		select {
		case err := <-ended:
			return fmt.Errorf("serve ended: %v", err)
		case <-time.After(20 * time.Millisecond):
		}
		p, err := datadir.ReadEndpoints(data)
		if err != nil {
			continue
		}
		res, err := http.Get("http://" + p.Ops + "/readyz")
		if err != nil {
			continue
		}
		res.Body.Close()
		if res.StatusCode == http.StatusOK {
			return nil
		}
	}
	return fmt.Errorf("not ready after %v", testenv.ReadyIn)
}

// A disk that cannot be written ends the start with one sentence.
func TestDisk(t *testing.T) {
	const tmpfs = "mount -t tmpfs -o mode=700,uid=65532,gid=65532,size="
	tests := []struct{ name, disk, want string }{
		{"read-only", `mount -o remount,bind,ro "$root/data"`, "is on a read-only file system; choose another with --data-dir"},
		{"full", tmpfs + `16k tmpfs "$root/data"; head -c 1m /dev/zero > "$root/data/lost+found" 2>/dev/null || true`, "the disk of data folder /data is full"},
		{"full behind the keys", tmpfs + `1m tmpfs "$root/data"`, "full"},
		{"somebody else's", `chown 0:0 "$root/data"`, "may not be used by this user"},
	}
	im := unpack(t)
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			c := im.on(tt.disk, "serve", "--roles=all")
			var errOut strings.Builder
			c.Stderr = &errOut
			err := c.Run()
			lines := strings.Split(strings.TrimSpace(errOut.String()), "\n")
			last := lines[len(lines)-1]
			if c.ProcessState.ExitCode() != 1 || !strings.HasPrefix(last, "imd: ") || !strings.Contains(last, tt.want) {
				t.Errorf("serve ended with %v and said\n%s\nwant exit status 1 and %q", err, errOut.String(), tt.want)
			}
		})
	}
}

package image

import (
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/imdhq/imd/pkg/datadir"
	"github.com/imdhq/imd/pkg/testenv"
)

// user is the one of the image.
const user = 65532

// inside is a shell script that enters the image's root and runs the binary
// there: $1 the root, $2 the data folder, the rest its arguments.
const inside = `
root=$1 data=$2; shift 2
mount --bind "$root" "$root"
mount --bind "$data" "$root/data"
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
func (im image) command(args ...string) *exec.Cmd {
	c := exec.Command("unshare", append([]string{"-m", "--propagation", "private", "sh", "-euc", inside, "sh", im.root, im.data}, args...)...)
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

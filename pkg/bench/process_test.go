package bench

import (
	"net"
	"os"
	"os/exec"
	"testing"
)

// What children use counts, while they live and when they have ended.
func TestUsageCountsChildren(t *testing.T) {
	before, _, err := usage(os.Getpid())
	if err != nil {
		t.Fatal(err)
	}
	const burn = `i=0; while [ $i -lt 200000 ]; do i=$((i+1)); done; echo; read wait`
	cmd := exec.Command("sh", "-c", burn)
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	if _, err := out.Read(make([]byte, 1)); err != nil {
		t.Fatal(err)
	}
	child, err := statOf(cmd.Process.Pid)
	if err != nil || child.cpu == 0 || child.parent != os.Getpid() {
		t.Fatalf("%+v, %v", child, err)
	}
	alive, _, _ := usage(os.Getpid())
	if alive < before+child.cpu {
		t.Errorf("%.2f s with the child, %.2f s before it, which used %.2f s", alive, before, child.cpu)
	}
	_ = in.Close()
	_ = cmd.Wait() // read fails at the end of its input
	if ended, _, _ := usage(os.Getpid()); ended < alive {
		t.Errorf("%.2f s after the child has ended, %.2f s before", ended, alive)
	}
	if _, _, err := usage(cmd.Process.Pid); err == nil {
		t.Error("a process that has ended was measured")
	}
}

func TestListenerOn(t *testing.T) {
	for _, addr := range []string{"127.0.0.1:0", "[::1]:0"} {
		l, err := net.Listen("tcp", addr)
		if err != nil {
			t.Fatal(err)
		}
		port := l.Addr().(*net.TCPAddr).Port
		if pid, err := ListenerOn(port); err != nil || pid != os.Getpid() {
			t.Errorf("%s: %d, %v", addr, pid, err)
		}
		l.Close()
		if pid, err := ListenerOn(port); err == nil {
			t.Errorf("%s: %d listens, which has closed", addr, pid)
		}
	}
}

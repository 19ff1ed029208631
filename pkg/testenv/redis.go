package testenv

import (
	"bufio"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
)

// Redis is one redis-server of a test: on a free port of the loopback address,
// in a folder of its own, without persistence.
type Redis struct {
	// Addr is its host:port; the same after Start.
	Addr string
	// Args are added to its command line.
	Args []string

	t    testing.TB
	dir  string
	cmd  *exec.Cmd
	done chan struct{} // closed when the process has ended
	log  *syncBuffer
}

// StartRedis starts a redis-server that is killed at the end of the test. args
// are added to its command line, as in "--maxmemory", "1mb". The test is left
// out if the machine has none.
func StartRedis(t testing.TB, args ...string) *Redis {
	t.Helper()
	if _, err := exec.LookPath("redis-server"); err != nil {
		Omit(t, "redis-server", "apt-get install -y --no-install-recommends redis-server")
	}
	r := &Redis{Args: args, t: t, dir: t.TempDir()}
	r.Addr = FreeAddress(t, "127.0.0.1")
	if err := r.start(); err != nil {
		t.Fatal(err)
	}
	return r
}

// URL is how programs name it.
func (r *Redis) URL() string { return "redis://" + r.Addr }

func (r *Redis) start() error {
	_, port, err := net.SplitHostPort(r.Addr)
	if err != nil {
		return err
	}
	args := append([]string{
		"--bind", "127.0.0.1", "--port", port, "--dir", r.dir, "--save", "", "--appendonly", "no", "--daemonize", "no",
		"--loglevel", "warning",
	}, r.Args...)
	cmd := exec.Command("redis-server", args...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	r.log = &syncBuffer{}
	cmd.Stdout, cmd.Stderr = r.log, r.log
	if err := cmd.Start(); err != nil {
		return err
	}
	done := make(chan struct{})
	go func() {
		_ = cmd.Wait() // it is always killed
		close(done)
	}()
	r.cmd, r.done = cmd, done
	r.t.Cleanup(func() { _ = cmd.Process.Kill(); <-done })
	return r.answers()
}

// answers waits until the server answers a PING.
func (r *Redis) answers() error {
	for l := NewLimit(ReadyIn); !l.Over(); {
		select {
		case <-r.done:
			return fmt.Errorf("redis-server ended: %s", r.log)
		default:
		}
		if text, err := r.Do("PING"); err == nil || strings.HasPrefix(text, "-NOAUTH") {
			return nil
		}
		time.Sleep(5 * time.Millisecond)
	}
	return fmt.Errorf("redis-server does not answer: %s", r.log)
}

// Start starts the server again after Kill: empty, at the same address.
func (r *Redis) Start() {
	r.t.Helper()
	if err := r.start(); err != nil {
		r.t.Fatal(err)
	}
}

// Kill ends the process at once.
func (r *Redis) Kill() {
	r.t.Helper()
	r.signal(syscall.SIGKILL)
	<-r.done
}

// RestartEmpty kills the server and starts it again without what it knew.
func (r *Redis) RestartEmpty() {
	r.t.Helper()
	r.Kill()
	r.Start()
}

// Pause stops the process without ending it: connections stay and get no
// answer. The end of the test undoes it.
func (r *Redis) Pause() {
	r.t.Helper()
	r.signal(syscall.SIGSTOP)
}

// Resume lets a paused process go on.
func (r *Redis) Resume() {
	r.t.Helper()
	r.signal(syscall.SIGCONT)
}

func (r *Redis) signal(s syscall.Signal) {
	r.t.Helper()
	if err := r.cmd.Process.Signal(s); err != nil && !errors.Is(err, os.ErrProcessDone) {
		r.t.Fatal(err)
	}
}

// Do runs one command over a connection of its own and returns the first line
// of the answer, with its type mark. The error is that of the connection, or
// says that the server answered with one.
func (r *Redis) Do(args ...string) (string, error) {
	conn, err := net.DialTimeout("tcp", r.Addr, time.Second)
	if err != nil {
		return "", err
	}
	defer conn.Close()
	if err := conn.SetDeadline(time.Now().Add(Patience)); err != nil {
		return "", err
	}
	var b strings.Builder
	fmt.Fprintf(&b, "*%d\r\n", len(args))
	for _, a := range args {
		fmt.Fprintf(&b, "$%d\r\n%s\r\n", len(a), a)
	}
	if _, err := conn.Write([]byte(b.String())); err != nil {
		return "", err
	}
	line, err := bufio.NewReader(conn).ReadString('\n')
	if err != nil {
		return "", err
	}
	line = strings.TrimSuffix(line, "\r\n")
	if strings.HasPrefix(line, "-") {
		return line, errors.New(line[1:])
	}
	return line, nil
}

// MustDo is Do for commands that have to succeed.
func (r *Redis) MustDo(args ...string) string {
	r.t.Helper()
	line, err := r.Do(args...)
	if err != nil {
		r.t.Fatalf("redis %s: %v", args[0], err)
	}
	return line
}

// Endless lists the keys that begin with prefix and have no time to live, and says how
// many there are with one.
func (r *Redis) Endless(prefix string) (endless []string, ending int) {
	r.t.Helper()
	line := r.MustDo("EVAL", `local out, ending = {}, 0
for _, k in ipairs(redis.call('KEYS', ARGV[1] .. '*')) do
  if redis.call('TTL', k) == -1 then out[#out + 1] = k else ending = ending + 1 end
end
return {ok = ending .. ' ' .. table.concat(out, ' ')}`, "0", prefix)
	fields := strings.Fields(strings.TrimPrefix(line, "+"))
	ending, err := strconv.Atoi(fields[0])
	if err != nil {
		r.t.Fatalf("redis says %q", line)
	}
	return fields[1:], ending
}

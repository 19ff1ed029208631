package testenv

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
)

// Etcd is a cluster of `imd etcd` processes.
type Etcd struct {
	Members []*EtcdMember

	t testing.TB
}

// EtcdMember is one process of an Etcd.
type EtcdMember struct {
	Name string
	Dir  string   // its data
	URL  string   // for clients
	Args []string // more flags, of its next start
	// Under is a command that starts the process in its place; nil = none.
	Under []string

	t    testing.TB
	peer string
	cmd  *exec.Cmd
	done chan struct{} // closed when the process has ended
	log  *syncBuffer
}

// StartEtcd starts a cluster of n members on loopback addresses of this
// process's own, with short heartbeats, and waits until it takes writes. The
// processes are killed at the end of the test.
func StartEtcd(t testing.TB, n int) *Etcd {
	t.Helper()
	hosts, err := etcdHosts(n)
	if err != nil {
		t.Fatal(err)
	}
	c := newEtcd(t, hosts)
	c.start()
	return c
}

// newEtcd makes a cluster with one member on each host.
func newEtcd(t testing.TB, hosts []string) *Etcd {
	c := &Etcd{t: t}
	for i, h := range hosts {
		m := &EtcdMember{t: t, Name: fmt.Sprintf("m%d", i), URL: "http://" + h + ":2379", peer: "http://" + h + ":2380"}
		m.Dir = filepath.Join(t.TempDir(), "etcd")
		c.Members = append(c.Members, m)
	}
	c.configure("imd")
	return c
}

// configure makes the members form a cluster of its own under a token.
func (c *Etcd) configure(token string) {
	var all []string
	for _, m := range c.Members {
		all = append(all, m.Name+"="+m.peer)
	}
	for _, m := range c.Members {
		m.Args = []string{
			"--cluster", strings.Join(all, ","), "--cluster-token", token, "--heartbeat", "100ms", "--election", "600ms",
		}
	}
}

// start starts all members and waits for all.
func (c *Etcd) start() {
	c.t.Helper()
	for _, m := range c.Members {
		m.Start()
	}
	for _, m := range c.Members {
		m.Await(ReadyIn)
	}
}

// Kill ends all members as a power cut would.
func (c *Etcd) Kill() {
	c.t.Helper()
	for _, m := range c.Members {
		m.Kill()
	}
}

// Start starts all members again and waits until they take writes.
func (c *Etcd) Start() {
	c.t.Helper()
	c.start()
}

// URLs are those for clients.
func (c *Etcd) URLs() []string {
	var out []string
	for _, m := range c.Members {
		out = append(out, m.URL)
	}
	return out
}

// Backup keeps a copy of the data of all members, which it stops for that.
func (c *Etcd) Backup() (dir string) {
	c.t.Helper()
	dir = c.t.TempDir()
	c.Kill()
	for _, m := range c.Members {
		if err := os.CopyFS(filepath.Join(dir, m.Name), os.DirFS(m.Dir)); err != nil {
			c.t.Fatal(err)
		}
	}
	c.start()
	return dir
}

// Restore puts the copy of a Backup in place of the data: the cluster goes back
// in revision and keeps its id.
func (c *Etcd) Restore(backup string) {
	c.t.Helper()
	c.Kill()
	for _, m := range c.Members {
		m.Clear()
		if err := os.CopyFS(m.Dir, os.DirFS(filepath.Join(backup, m.Name))); err != nil {
			c.t.Fatal(err)
		}
	}
	c.start()
}

// Replace puts an empty cluster with another id in place of this one.
func (c *Etcd) Replace(token string) {
	c.t.Helper()
	c.Kill()
	for _, m := range c.Members {
		m.Clear()
	}
	c.configure(token)
	c.start()
}

// Start starts the process and does not wait.
func (m *EtcdMember) Start() {
	m.t.Helper()
	line := append([]string{}, m.Under...)
	line = append(line, Binary(m.t), "etcd", "--name", m.Name, "--data-dir", m.Dir, "--listen-client", m.URL, "--listen-peer", m.peer)
	line = append(line, m.Args...)
	m.cmd = exec.Command(line[0], line[1:]...)
	m.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	m.log = &syncBuffer{}
	m.cmd.Stderr = m.log
	if err := m.cmd.Start(); err != nil {
		m.t.Fatal(err)
	}
	cmd, log, done := m.cmd, m.log, make(chan struct{})
	m.done = done
	go func() { _ = cmd.Wait(); close(done) }() // killed ones end with an error
	m.t.Cleanup(func() {
		_ = cmd.Process.Kill()
		<-done
		if m.t.Failed() && log.String() != "" {
			m.t.Logf("log of etcd member %s:\n%s", m.Name, log)
		}
	})
}

// Signal sends a signal to the process.
func (m *EtcdMember) Signal(s syscall.Signal) {
	m.t.Helper()
	if err := m.cmd.Process.Signal(s); err != nil {
		m.t.Fatal(err)
	}
}

// Kill ends the process as a crash would. It may be dead already.
func (m *EtcdMember) Kill() {
	m.t.Helper()
	_ = m.cmd.Process.Kill() // fails only if it has ended
	<-m.done
}

// Clear removes the member's data. Its process must have ended.
func (m *EtcdMember) Clear() {
	m.t.Helper()
	if err := os.RemoveAll(m.Dir); err != nil {
		m.t.Fatal(err)
	}
}

// Await waits until the member says that it is healthy.
func (m *EtcdMember) Await(limit time.Duration) {
	m.t.Helper()
	for l := NewLimit(limit); Page(m.URL+"/health") == ""; {
		if l.Over() {
			m.t.Fatalf("etcd member %s is not healthy after %v\n%s", m.Name, limit, m.log)
		}
		time.Sleep(5 * time.Millisecond)
	}
}

// Page reads a page of a node or a member within 2 s; "" if that fails or the
// status is not 200.
func Page(url string) string {
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Second)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return ""
	}
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		return ""
	}
	defer res.Body.Close()
	body, err := io.ReadAll(res.Body)
	if err != nil || res.StatusCode != http.StatusOK {
		return ""
	}
	return string(body)
}

// Metric is one value from the member's metrics, named with its labels; -1 if
// it is not there.
func (m *EtcdMember) Metric(series string) float64 {
	for line := range strings.Lines(Page(m.URL + "/metrics")) {
		if text, ok := strings.CutPrefix(strings.TrimSpace(line), series+" "); ok {
			if v, err := strconv.ParseFloat(text, 64); err == nil {
				return v
			}
		}
	}
	return -1
}

// Requests is how many requests clients have made of the member: calls, which
// renewals are too, and what went over the streams of watches.
func (m *EtcdMember) Requests() float64 {
	sum := 0.0
	for line := range strings.Lines(Page(m.URL + "/metrics")) {
		name, value, ok := strings.Cut(strings.TrimSpace(line), "} ")
		watch := strings.Contains(name, `grpc_method="Watch"`)
		if !ok || !watch && !strings.HasPrefix(name, "grpc_server_started_total{") || watch && !strings.HasPrefix(name, "grpc_server_msg_received_total{") {
			continue
		}
		if v, err := strconv.ParseFloat(value, 64); err == nil {
			sum += v
		}
	}
	return sum
}

// Requests is the sum over all members.
func (c *Etcd) Requests() float64 {
	sum := 0.0
	for _, m := range c.Members {
		sum += m.Requests()
	}
	return sum
}

package cluster

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
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/imdhq/imd/pkg/testenv"
)

var clusters atomic.Int32

// member is one `imd etcd` process.
type member struct {
	t    testing.TB
	args []string
	url  string // for clients
	cmd  *exec.Cmd
	done chan struct{}
}

// members starts a cluster of n `imd etcd` processes on loopback addresses of
// this process's own, and waits until it takes writes.
func members(t testing.TB, n int) []*member {
	t.Helper()
	host := func(i int) string { return fmt.Sprintf("127.12.%d.%d", os.Getpid()&255, i) }
	first := int(clusters.Add(1)) * 8
	var all []string
	for i := range n {
		all = append(all, fmt.Sprintf("m%d=http://%s:2380", i, host(first+i)))
	}
	out := make([]*member, n)
	for i := range n {
		m := &member{t: t, url: "http://" + host(first+i) + ":2379"}
		m.args = []string{
			"etcd", "--name", fmt.Sprintf("m%d", i), "--data-dir", filepath.Join(t.TempDir(), "etcd"),
			"--listen-client", m.url, "--listen-peer", "http://" + host(first+i) + ":2380", "--cluster", strings.Join(all, ","),
			"--heartbeat", "100ms", "--election", "600ms",
		}
		m.start()
		out[i] = m
	}
	for _, m := range out {
		m.await(20 * time.Second)
	}
	return out
}

func (m *member) start() {
	m.t.Helper()
	m.cmd = exec.Command(testenv.Binary(m.t), m.args...)
	m.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := m.cmd.Start(); err != nil {
		m.t.Fatal(err)
	}
	cmd, done := m.cmd, make(chan struct{})
	m.done = done
	go func() { _ = cmd.Wait(); close(done) }()
	m.t.Cleanup(func() { _ = cmd.Process.Kill(); <-done })
}

func (m *member) signal(s syscall.Signal) {
	m.t.Helper()
	if err := m.cmd.Process.Signal(s); err != nil {
		m.t.Fatal(err)
	}
}

func (m *member) kill() { m.signal(syscall.SIGKILL); <-m.done }

// await waits until the member says that it is healthy.
func (m *member) await(limit time.Duration) {
	m.t.Helper()
	eventually(m.t, m.url+" is healthy", limit, func() bool { return get(m.url+"/health") != "" })
}

// get reads a page; "" if that fails.
func get(url string) string {
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

// metric reads one value from a member's metrics.
func (m *member) metric(name string) float64 {
	for line := range strings.Lines(get(m.url + "/metrics")) {
		var v float64
		if _, err := fmt.Sscanf(line, name+" %g", &v); err == nil {
			return v
		}
	}
	return -1
}

// requests is how many requests clients have made of the member: calls, which
// renewals are too, and what went over the streams of watches.
func (m *member) requests() float64 {
	sum := 0.0
	for line := range strings.Lines(get(m.url + "/metrics")) {
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

func urls(all []*member) []string {
	var out []string
	for _, m := range all {
		out = append(out, m.url)
	}
	return out
}

func eventually(t testing.TB, what string, limit time.Duration, cond func() bool) {
	t.Helper()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	end := time.NewTimer(limit)
	defer end.Stop()
	for !cond() {
		select {
		case <-tick.C:
		case <-end.C:
			t.Fatalf("waited %v in vain: %s", limit, what)
		}
	}
}

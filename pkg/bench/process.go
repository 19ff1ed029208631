package bench

import (
	"bufio"
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

// clockTicks is the kernel's unit of CPU times in /proc.
const clockTicks = 100

// stat is what /proc tells of one process.
type stat struct {
	parent int
	cpu    float64 // seconds, with that of children that have ended
	rss    int64   // bytes
}

func statOf(pid int) (s stat, err error) {
	raw, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return s, err
	}
	at := bytes.LastIndexByte(raw, ')') // the name before it may hold anything
	f := strings.Fields(string(raw[at+1:]))
	if at < 0 || len(f) < 22 {
		return s, fmt.Errorf("/proc/%d/stat has another form", pid)
	}
	s.parent, _ = strconv.Atoi(f[1])
	for _, ticks := range f[11:15] {
		n, _ := strconv.ParseFloat(ticks, 64)
		s.cpu += n / clockTicks
	}
	pages, _ := strconv.ParseInt(f[21], 10, 64)
	s.rss = pages * int64(os.Getpagesize())
	return s, nil
}

// usage reads the CPU time in seconds and the resident bytes of a process and
// of all that descend from it. Memory that children share with others counts
// once, for the process itself.
func usage(pid int) (cpu float64, rss int64, err error) {
	root, err := statOf(pid)
	if err != nil {
		return 0, 0, err
	}
	cpu, rss = root.cpu, root.rss
	for below := childrenOf(pid); len(below) > 0; below = below[1:] {
		if s, err := statOf(below[0]); err == nil { // else it has just ended
			cpu += s.cpu
			rss += max(s.rss-shared(below[0]), 0)
			below = append(below, childrenOf(below[0])...)
		}
	}
	return cpu, rss, nil
}

// childrenOf lists the children of a process, which are those of its threads. A
// kernel that does not list them (CONFIG_PROC_CHILDREN) is asked for all
// processes.
func childrenOf(pid int) (all []int) {
	lists, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/children", pid))
	for _, list := range lists {
		raw, _ := os.ReadFile(list) // the thread may have ended
		for _, f := range strings.Fields(string(raw)) {
			if child, err := strconv.Atoi(f); err == nil {
				all = append(all, child)
			}
		}
	}
	if len(lists) > 0 {
		return all
	}
	for _, child := range pids() {
		if s, err := statOf(child); err == nil && s.parent == pid {
			all = append(all, child)
		}
	}
	return all
}

func pids() (all []int) {
	entries, _ := os.ReadDir("/proc") // without it there are none
	for _, e := range entries {
		if pid, err := strconv.Atoi(e.Name()); err == nil {
			all = append(all, pid)
		}
	}
	return all
}

// shared is how many resident bytes of a process others may hold too.
func shared(pid int) int64 {
	raw, _ := os.ReadFile(fmt.Sprintf("/proc/%d/statm", pid))
	f := strings.Fields(string(raw))
	if len(f) < 3 {
		return 0
	}
	pages, _ := strconv.ParseInt(f[2], 10, 64)
	return pages * int64(os.Getpagesize())
}

// ListenerOn finds the process of this machine that listens on a TCP port; of a
// process and its children it is the process. It sees the processes of its own
// user only, or all if it runs as root.
func ListenerOn(port int) (pid int, err error) {
	sockets := map[string]bool{}
	for _, table := range []string{"/proc/net/tcp", "/proc/net/tcp6"} {
		raw, _ := os.ReadFile(table) // there may be no IPv6
		listening(raw, port, sockets)
	}
	holds := map[int]bool{}
	for _, pid := range pids() {
		fds, _ := filepath.Glob(fmt.Sprintf("/proc/%d/fd/*", pid))
		for _, fd := range fds {
			if to, err := os.Readlink(fd); err == nil && sockets[to] {
				holds[pid] = true
				break
			}
		}
	}
	for pid := range holds {
		if s, err := statOf(pid); err == nil && !holds[s.parent] {
			return pid, nil
		}
	}
	return 0, fmt.Errorf("no process that this user can see listens on port %d", port)
}

// listening adds the sockets that listen on a port, as links of /proc name them.
func listening(table []byte, port int, into map[string]bool) {
	const listen = "0A"
	want := fmt.Sprintf(":%04X", port)
	for lines := bufio.NewScanner(bytes.NewReader(table)); lines.Scan(); {
		f := strings.Fields(lines.Text())
		if len(f) > 9 && f[3] == listen && strings.HasSuffix(f[1], want) {
			into["socket:["+f[9]+"]"] = true
		}
	}
}

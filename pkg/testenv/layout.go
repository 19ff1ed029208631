package testenv

import (
	"errors"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"
)

// The layouts in which a Node runs, as IMD_TEST_LAYOUT names them.
const (
	// AllInOne is one process with all roles; the default.
	AllInOne = "all"
	// Split is gateway and push in one process, state and scheduler in another,
	// and etcd in a third.
	Split = "split"
)

// layout is that of the environment.
func layout() string {
	if l := os.Getenv("IMD_TEST_LAYOUT"); l != "" {
		return l
	}
	return AllInOne
}

// rest is the processes of a split node beside the one that clients talk to.
type rest struct {
	etcd *exec.Cmd
	url  string // of etcd
	back *Node
}

// whole reports whether the node has all its roles in its one process.
func (n *Node) whole() bool {
	if n.Layout == "" {
		n.Layout = layout()
	}
	return n.Layout != Split || n.roles != ""
}

// StoreDir is the folder in which messages are kept.
func (n *Node) StoreDir() string {
	if n.rest != nil {
		return n.rest.back.Dir
	}
	return n.Dir
}

// Back is the process with the state role of a split node; nil for others.
func (n *Node) Back() *Node {
	if n.rest == nil {
		return nil
	}
	return n.rest.back
}

// launchSplit starts what is not running of the three processes.
func (n *Node) launchSplit() error {
	if n.rest == nil {
		r, err := n.startEtcd()
		if err != nil {
			return err
		}
		r.back = &Node{Dir: n.Dir + "-state", Args: n.Args, Env: n.Env, t: n.t, roles: "state,scheduler", etcd: r.url}
		n.rest, n.etcd = r, r.url
	}
	if err := n.rest.back.launch(); err != nil {
		return err
	}
	return n.launch()
}

// startEtcd starts a server that lasts as long as the test.
func (n *Node) startEtcd() (*rest, error) {
	client, peer := freeAddress(n.t), freeAddress(n.t)
	r := &rest{url: "http://" + client}
	r.etcd = exec.Command(Binary(n.t), "etcd", "--data-dir", n.Dir+"-etcd", "--listen-client", r.url, "--listen-peer", "http://"+peer)
	r.etcd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	out := &syncBuffer{}
	r.etcd.Stdout, r.etcd.Stderr = out, out
	if err := r.etcd.Start(); err != nil {
		return nil, err
	}
	ended := make(chan struct{})
	go func() { defer close(ended); _ = r.etcd.Wait() }()
	n.t.Cleanup(func() {
		_ = r.etcd.Process.Kill()
		<-ended
	})
	for end := time.Now().Add(ReadyIn); n.get(r.url+"/health") != http.StatusOK; time.Sleep(20 * time.Millisecond) {
		if time.Now().After(end) {
			return nil, fmt.Errorf("etcd is not ready after %v\n%s", ReadyIn, out)
		}
	}
	return r, nil
}

// chosen reports whether the arguments choose roles or a control plane of their
// own.
func chosen(args []string) bool {
	return slices.ContainsFunc(args, func(a string) bool {
		return strings.HasPrefix(a, "--roles") || strings.HasPrefix(a, "controlplane.endpoints=")
	})
}

// stopBoth stops the two processes of a split node, clients first, and returns
// the first exit status that is not 0.
func (n *Node) stopBoth() int {
	status := n.stop()
	if s := n.rest.back.stop(); status == 0 {
		status = s
	}
	return status
}

// signal sends a signal to the process; one that has ended is no error.
func (n *Node) signal(s syscall.Signal) error {
	if err := n.cmd.Process.Signal(s); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return err
	}
	return nil
}

// Beside is another node of the same cluster with the roles, in a folder of its
// own; it does not run yet. Only for a split node.
func (n *Node) Beside(roles string) *Node {
	return &Node{Dir: filepath.Join(n.t.TempDir(), "data"), Args: n.Args, Env: n.Env, roles: roles, etcd: n.etcd, t: n.t}
}

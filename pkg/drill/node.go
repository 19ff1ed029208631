package drill

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"sync"
	"syscall"
	"time"

	"github.com/imdhq/imd/pkg/datadir"
	"github.com/imdhq/imd/pkg/failpoint"
	"github.com/imdhq/imd/pkg/faultproxy"
	"github.com/imdhq/imd/pkg/history"
)

// Bounds of what nodes may take.
const (
	readyLimit = 30 * time.Second // from the start of a process until it is ready
	stopLimit  = 45 * time.Second // from SIGTERM until it has ended
	revival    = 500 * ms         // before a node that ended by itself is started again
)

// node is one node of the cluster and its present process. Its methods may be
// called by several goroutines.
type node struct {
	spec     NodeSpec
	exe      string
	dir      string // the data folder
	args     []string
	env      []string
	logPath  string
	rules    string // the file of fail points
	standing string // what stands in it all the time
	spawn    func(*exec.Cmd) error
	proxy    *faultproxy.Proxy                // nil = clients do not connect here
	check    func() bool                      // reports whether it is ready; nil = it says where it listens, and is asked there
	told     func(n *node, boot, what string) // hears what becomes of its processes, as history has it; nil = nobody does

	under       []string            // what the program is started by; it becomes it
	work        string              // the folder it runs in; "" = that of this process
	credential  *syscall.Credential // the user it runs as; nil = that of this process
	deathSignal syscall.Signal      // what it gets when the drill ends; 0 = SIGKILL

	turn sync.Mutex // starting and ending, one at a time

	mu      sync.Mutex
	cmd     *exec.Cmd
	done    chan struct{} // closed when cmd has ended
	wanted  bool          // it should be running
	excused int           // faults under way that may end it
	excuse  time.Time     // until when the end of the last such fault excuses
	points  datadir.Endpoints
	revive  sync.WaitGroup
	died    func(n *node, why string, excused bool) // told when it ended by itself
	ctx     context.Context                         // of the drill
}

// begin starts the process, if none runs, and waits until it is ready.
func (n *node) begin() error {
	n.turn.Lock()
	defer n.turn.Unlock()
	if n.alive() {
		return nil
	}
	return n.beginLocked()
}

// beginAll starts nodes together: one may not be ready without another.
func beginAll(nodes []*node) error {
	errs := make([]error, len(nodes))
	var wg sync.WaitGroup
	for i, n := range nodes {
		wg.Go(func() { errs[i] = n.begin() })
	}
	wg.Wait()
	return errors.Join(errs...)
}

func (n *node) beginLocked() error {
	log, err := os.OpenFile(n.logPath, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return err
	}
	defer log.Close() // the child has its own
	line := slices.Concat(n.under, []string{n.exe}, n.args)
	cmd := exec.Command(line[0], line[1:]...)
	cmd.Env = append(os.Environ(), append([]string{failpoint.FileVar + "=" + n.rules}, n.env...)...)
	cmd.Stdout, cmd.Stderr = log, log
	cmd.Dir = n.work
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: cmp.Or(n.deathSignal, syscall.SIGKILL), Credential: n.credential}
	if err := n.spawn(cmd); err != nil {
		return fmt.Errorf("start node %s: %w", n.spec.Name, err)
	}
	done := make(chan struct{})
	n.mu.Lock()
	n.cmd, n.done, n.wanted = cmd, done, true
	n.mu.Unlock()
	n.revive.Go(func() { n.watch(cmd, done) })
	return n.ready(cmd.Process.Pid, done)
}

// watch waits for the end of a process, and has the node started again if it
// was not asked to end.
func (n *node) watch(cmd *exec.Cmd, done chan struct{}) {
	err := cmd.Wait()
	n.mu.Lock()
	wanted := n.wanted && n.cmd == cmd
	excused := n.excused > 0 || time.Now().Before(n.excuse)
	n.mu.Unlock()
	n.tell(history.Down)
	close(done)
	if !wanted || n.ctx.Err() != nil {
		return
	}
	why := "exit status 0"
	if err != nil {
		why = err.Error()
	}
	n.died(n, why, excused)
	n.revive.Go(func() { n.bringBack(cmd) })
}

// bringBack starts the node again, again and again, unless somebody else has or
// wants it down.
func (n *node) bringBack(last *exec.Cmd) {
	for hold(n.ctx, revival) {
		n.turn.Lock()
		n.mu.Lock()
		mine := n.wanted && n.cmd == last
		n.mu.Unlock()
		if !mine {
			n.turn.Unlock()
			return
		}
		err := n.beginLocked()
		n.mu.Lock()
		last = n.cmd
		n.mu.Unlock()
		n.turn.Unlock()
		if err == nil {
			return
		}
		if n.alive() { // it is slow, not dead; it will tell if it dies
			return
		}
	}
}

// ready waits until the process with this id says that it is, and sends
// clients there.
func (n *node) ready(pid int, done <-chan struct{}) error {
	deadline := time.Now().Add(readyLimit)
	for {
		if n.check != nil {
			if n.check() {
				return nil
			}
		} else if e, err := datadir.ReadEndpoints(n.dir); err == nil && e.PID == pid && answers("http://"+e.Ops+"/readyz") {
			if e, err = datadir.ReadEndpoints(n.dir); err != nil { // what was read before may lack a listener
				return err
			}
			n.mu.Lock()
			n.points = e
			n.mu.Unlock()
			if n.proxy != nil {
				n.proxy.SetTarget(e.Public)
			}
			n.tell(history.Up)
			return nil
		}
		select {
		case <-done:
			return fmt.Errorf("node %s has ended while it started%s", n.spec.Name, n.lastWords())
		case <-n.ctx.Done():
			return n.ctx.Err()
		case <-time.After(10 * ms):
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("node %s is not ready after %v; see %s", n.spec.Name, readyLimit, n.logPath)
		}
	}
}

// mostWords bounds what is read of the end of a log, in bytes.
const mostWords = 2048

// lastWords is the last line of the log, for a message about the end of the process, and
// where the log is.
func (n *node) lastWords() string {
	see := "; see " + n.logPath
	log, err := os.Open(n.logPath)
	if err != nil {
		return see
	}
	defer log.Close()
	info, err := log.Stat()
	if err != nil {
		return see
	}
	text := make([]byte, min(info.Size(), mostWords))
	if _, err := log.ReadAt(text, info.Size()-int64(len(text))); err != nil {
		return see
	}
	text = bytes.TrimSpace(text)
	if last := text[bytes.LastIndexByte(text, '\n')+1:]; len(last) > 0 {
		return fmt.Sprintf(": %s%s", last, see)
	}
	return see
}

// tell tells what becomes of the process that was ready last.
func (n *node) tell(what string) {
	if boot := n.endpoints().BootID; n.told != nil && boot != "" {
		n.told(n, boot, what)
	}
}

// pid is the id of the process; 0 = none runs.
func (n *node) pid() int {
	if cmd, _ := n.process(); cmd != nil && n.alive() {
		return cmd.Process.Pid
	}
	return 0
}

// answers reports whether a GET of the URL is answered with 200.
func answers(url string) bool {
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return false
	}
	req.Close = true
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		return false
	}
	res.Body.Close()
	return res.StatusCode == http.StatusOK
}

// process is what runs now; nil if nothing was ever started.
func (n *node) process() (*exec.Cmd, <-chan struct{}) {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.cmd, n.done
}

// alive reports whether the process has not ended.
func (n *node) alive() bool {
	cmd, done := n.process()
	if cmd == nil {
		return false
	}
	select {
	case <-done:
		return false
	default:
		return true
	}
}

// endpoints says where the node listens, or listened last.
func (n *node) endpoints() datadir.Endpoints {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.points
}

// signal sends a signal to the process, if it has not ended, and tells that it stands
// still or goes on.
func (n *node) signal(s syscall.Signal) error {
	if s == syscall.SIGSTOP && n.alive() {
		n.tell(history.Paused)
	} else if s == syscall.SIGCONT && n.alive() {
		defer n.tell(history.Resumed)
	}
	return n.send(s)
}

// send sends a signal to the process, if it has not ended.
func (n *node) send(s syscall.Signal) error {
	cmd, done := n.process()
	if cmd == nil {
		return nil
	}
	select {
	case <-done:
		return nil
	default:
	}
	if err := cmd.Process.Signal(s); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return fmt.Errorf("signal %v to node %s: %w", s, n.spec.Name, err)
	}
	return nil
}

// kill ends the process as a crash would. It stays down until begin.
func (n *node) kill() {
	n.turn.Lock()
	defer n.turn.Unlock()
	n.unwant()
	_ = n.signal(syscall.SIGKILL)
	if _, done := n.process(); done != nil {
		<-done
	}
}

// end asks the process to stop, and kills it if it does not. The error tells if
// it did not end as it should.
func (n *node) end() error {
	return n.endBy(n.terminate)
}

// terminate asks the process to stop.
func (n *node) terminate() error { return n.signal(syscall.SIGTERM) }

// endBy is end with another way of asking.
func (n *node) endBy(ask func() error) error {
	n.turn.Lock()
	defer n.turn.Unlock()
	cmd, done := n.process()
	n.unwant()
	if done == nil {
		return nil
	}
	n.tell(history.Stopping)
	if err := ask(); err != nil {
		return err
	}
	select {
	case <-done:
		if code := cmd.ProcessState.ExitCode(); code != 0 {
			return fmt.Errorf("node %s was asked to stop and ended with %v%s", n.spec.Name, cmd.ProcessState, n.lastWords())
		}
		return nil
	case <-time.After(stopLimit):
		_ = n.signal(syscall.SIGKILL)
		<-done
		return fmt.Errorf("node %s did not stop within %v; see %s", n.spec.Name, stopLimit, n.logPath)
	}
}

func (n *node) unwant() {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.wanted = false
}

// mayDie excuses the node from living on until the returned function is called,
// and for some seconds after.
func (n *node) mayDie() (over func()) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.excused++
	return func() {
		n.mu.Lock()
		defer n.mu.Unlock()
		n.excused--
		n.excuse = time.Now().Add(3 * time.Second)
	}
}

// nodeArgs is the command line of a node that listens at the host.
func nodeArgs(spec NodeSpec, host, dir string, common []string) []string {
	args := []string{"serve", "--roles=" + spec.Roles, "--node-name", spec.Name, "--data-dir", dir, "--listen", host + ":0", "--ops-listen", host + ":0"}
	for _, s := range slices.Concat(common, spec.Set) {
		args = append(args, "--set", s)
	}
	return args
}

// paths below the folder of a drill.
func nodeDir(dir, name string) string   { return filepath.Join(dir, "nodes", name) }
func logPath(dir, name string) string   { return filepath.Join(dir, name+".log") }
func rulesPath(dir, name string) string { return filepath.Join(dir, name+".points") }
func historyDir(dir string) string      { return filepath.Join(dir, "history") }

// hold waits, and reports false if ctx ends first.
func hold(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-t.C:
		return true
	}
}

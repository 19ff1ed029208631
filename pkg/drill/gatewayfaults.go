package drill

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"strconv"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/imdhq/imd/pkg/im"
)

const (
	stormPeers = 300      // that come and go beside the load
	stormEvery = 700 * ms // how often all clients are cut
	stormPause = 20 * ms  // after a connection that could not be made: nobody is there
	// filesBack is how soon a node takes connections again when it may open files
	// again.
	filesBack = 5 * time.Second
)

// storm cuts all clients of a gateway, again and again, and lets hundreds of others
// log in and vanish all the time, without pauses.
func (f *fault) storm(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, f.For)
	defer cancel()
	var wg sync.WaitGroup
	defer wg.Wait()
	for i := range stormPeers {
		user := fmt.Sprint("storm-", i) // of no conversation, so that no device of the load goes for it
		token, err := f.b.world.tokenOf(im.UserID(user), im.LoginID(user))
		if err != nil {
			return err
		}
		wg.Go(func() {
			for ctx.Err() == nil {
				come(ctx, f.n.endpoints().Public, token)
			}
		})
	}
	for {
		f.n.proxy.Reset()
		if !hold(ctx, stormEvery) {
			return nil
		}
	}
}

// come logs in as far as it is let, and vanishes at once.
func come(ctx context.Context, address, token string) {
	p, err := reach(ctx, address)
	if err != nil {
		hold(ctx, stormPause)
		return
	}
	if c, ok := p.Conn.(*net.TCPConn); ok {
		_ = c.SetLinger(0) // each port of this machine is free again at once
	}
	defer context.AfterFunc(ctx, func() { p.Close() })()
	if p.upgrade() == nil {
		_ = p.login(token, "storm") // refused or not: it goes
	}
	_ = p.Close()
}

// files lets a gateway open nothing: its limit is the lowest number that no open
// file has. Nobody new can come then, and who is there must not feel it. With the
// limit back it takes connections again.
func (f *fault) files(ctx context.Context) error {
	pid := f.n.pid()
	free, err := freeNumber(fmt.Sprintf("/proc/%d/fd", pid))
	if err != nil {
		return fmt.Errorf("the files of node %s: %w", f.n.spec.Name, err)
	}
	var was unix.Rlimit
	if err := unix.Prlimit(pid, unix.RLIMIT_NOFILE, nil, &was); err != nil {
		return fmt.Errorf("the limit of files of node %s: %w", f.n.spec.Name, err)
	}
	low := unix.Rlimit{Cur: free, Max: was.Max}
	if err := unix.Prlimit(pid, unix.RLIMIT_NOFILE, &low, nil); err != nil {
		return fmt.Errorf("lower the limit of files of node %s: %w", f.n.spec.Name, err)
	}
	entered := f.comesIn(ctx)
	hold(ctx, f.For)
	if err := unix.Prlimit(pid, unix.RLIMIT_NOFILE, &was, nil); err != nil {
		return fmt.Errorf("raise the limit of files of node %s: %w", f.n.spec.Name, err)
	}
	again, cancel := context.WithTimeout(context.WithoutCancel(ctx), filesBack)
	defer cancel()
	for began := time.Now(); !f.comesIn(again)(); {
		if again.Err() != nil {
			f.b.crashed(fmt.Sprintf("node %s takes no connections %.1f s after it may open files again; see %s", f.n.spec.Name, time.Since(began).Seconds(), f.n.logPath))
			break
		}
		hold(again, callPause)
	}
	if entered() {
		return errors.New("somebody new came in, so the limit was not reached")
	}
	return nil
}

// freeNumber is the lowest number of a file that would be opened next.
func freeNumber(dir string) (uint64, error) {
	open, err := os.ReadDir(dir)
	if err != nil {
		return 0, err
	}
	used := map[string]bool{}
	for _, f := range open {
		used[f.Name()] = true
	}
	n := uint64(0)
	for used[strconv.FormatUint(n, 10)] {
		n++
	}
	return n, nil
}

// comesIn tries to make a WebSocket to the node. What it returns waits for the
// outcome.
func (f *fault) comesIn(ctx context.Context) (entered func() bool) {
	at, done := f.n.endpoints().Public, make(chan bool, 1)
	ctx, cancel := context.WithTimeout(ctx, min(stepLimit, max(f.For/2, 500*ms)))
	go func() {
		defer cancel()
		p, err := reach(ctx, at)
		if err != nil {
			done <- false
			return
		}
		defer p.Close()
		defer context.AfterFunc(ctx, func() { p.Close() })()
		done <- p.upgrade() == nil
	}()
	return sync.OnceValue(func() bool { return <-done })
}

package cluster

import (
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/imdhq/imd/pkg/im"
	"github.com/imdhq/imd/pkg/testenv"
)

// A change of a record; until the views of 20 processes have it.
func BenchmarkChangeSeen(b *testing.B) {
	c := testenv.StartEtcd(b, 3)
	lines := followers(b, c, 20)
	probe := start(b, options{id: "probe", urls: c.URLs()})
	var took []time.Duration
	for b.Loop() {
		took = append(took, wave(b, probe, lines, 2+len(took)))
		time.Sleep(300 * time.Millisecond) // so that the next change is alone
	}
	testenv.ReportTimes(b, took)
}

// A node that says that it drains; until another gives it no work.
func BenchmarkNodeDrained(b *testing.B) {
	c := testenv.StartEtcd(b, 3)
	watcher := start(b, options{id: "w", urls: c.URLs()})
	var took []time.Duration
	for b.Loop() {
		took = append(took, drain(b, watcher, c.URLs(), fmt.Sprintf("d%d", len(took))))
	}
	testenv.ReportTimes(b, took)
}

// A node's process is killed; until it is out of the list of another. A node is
// killed every 2 s, so that one does not wait for the other.
func BenchmarkNodeKilled(b *testing.B) {
	c := testenv.StartEtcd(b, 3)
	watcher := start(b, options{id: "w", urls: c.URLs()})
	for i := range 10 { // so that those who are killed are never most
		start(b, options{id: fmt.Sprintf("keep%d", i), urls: c.URLs()})
	}
	var mu sync.Mutex
	var took []time.Duration
	var wg sync.WaitGroup
	n := 0
	for b.Loop() {
		id := im.NodeID(fmt.Sprintf("victim%d", n))
		n++
		cmd, lines := spawn(b, job{Name: string(id), URLs: c.URLs()})
		if got := <-lines; got != "ready" {
			b.Fatal(got)
		}
		eventually(b, "the victim is used", 5*time.Second, func() bool { return usable(watcher, string(id)) })
		began := time.Now()
		if err := cmd.Process.Kill(); err != nil {
			b.Fatal(err)
		}
		wg.Go(func() {
			view := watcher.handle.View()
			for {
				if _, ok := view.Node(id); !ok {
					break
				}
				if time.Since(began) > 20*time.Second {
					b.Errorf("%s is still in the list", id)
					return
				}
				view = watcher.handle.Next(b.Context(), view.Serial)
			}
			mu.Lock()
			defer mu.Unlock()
			took = append(took, time.Since(began))
		})
		time.Sleep(2 * time.Second)
	}
	wg.Wait()
	testenv.ReportTimes(b, took)
}

// What fifty nodes at rest cost etcd, in windows of a second: requests a second
// of each node. Each follows the nodes, the leaders and the settings, reports
// the settings, and holds a worker number.
func BenchmarkNodesAtRest(b *testing.B) {
	const count = 50
	c := testenv.StartEtcd(b, 3)
	var all []*process
	for i := range count {
		id := fmt.Sprintf("n%02d", i)
		p := start(b, options{id: id, urls: c.URLs()})
		if _, err := p.Lease(b.Context(), anyNumber); err != nil {
			b.Fatal(err)
		}
		all = append(all, p)
	}
	eventually(b, "all see all", 20*time.Second, func() bool {
		return !slices.ContainsFunc(all, func(p *process) bool { return len(p.handle.View().With("gateway")) != count })
	})
	time.Sleep(5 * time.Second) // the start is over
	before, began := c.Requests(), time.Now()
	for b.Loop() {
		time.Sleep(time.Second)
	}
	rate := (c.Requests() - before) / time.Since(began).Seconds() / count
	b.ReportMetric(rate, "requests/s/node")
	b.ReportMetric(0, "ns/op")
}

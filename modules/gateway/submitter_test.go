package gateway

import (
	"context"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/imdhq/imd/pkg/im"
	"github.com/imdhq/imd/pkg/run"
	v1 "github.com/imdhq/imd/proto/gen/internalv1"
	"github.com/imdhq/imd/sdk/go/gen/clientv1"
)

// stateNodes is state nodes that answer when they are let; the name of a
// conversation begins with its node's.
type stateNodes struct {
	mu   sync.Mutex
	held map[string]chan struct{}
	now  map[string]int // calls by node
	most map[string]int
	runs []int // of each call
}

func nodeOf(conv string) im.NodeID { return im.NodeID(conv[:1]) }

func (s *stateNodes) Submit(ctx context.Context, r *v1.SubmitRequest) (*v1.SubmitResponse, error) {
	node := string(nodeOf(r.Runs[0].ConversationId))
	s.mu.Lock()
	for _, x := range r.Runs {
		if string(nodeOf(x.ConversationId)) != node {
			panic("one call for two nodes")
		}
	}
	s.runs = append(s.runs, len(r.Runs))
	s.now[node]++
	s.most[node] = max(s.most[node], s.now[node])
	hold := s.held[node]
	s.mu.Unlock()
	if hold != nil {
		select {
		case <-hold:
		case <-ctx.Done():
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.now[node]--
	res := &v1.SubmitResponse{}
	for range r.Runs {
		res.Runs = append(res.Runs, &v1.RunResult{Acks: []*clientv1.SendAck{{}}})
	}
	return res, nil
}

// answers counts what its owners hear, by conversation.
type answers struct {
	mu   sync.Mutex
	good map[string]int
	bad  map[string]int
}

func (a *answers) submitted(conv string, _ run.Token, _ []*clientv1.SendAck, failed *clientv1.Error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if failed == nil {
		a.good[conv]++
	} else {
		a.bad[conv]++
	}
}

// A state node that hangs holds up its own conversations only: those of others
// leave, many in one call, and what waits too long is refused.
func TestSubmitterKeepsNodesApart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		hold := make(chan struct{})
		nodes := &stateNodes{held: map[string]chan struct{}{"a": hold}, now: map[string]int{}, most: map[string]int{}}
		got := &answers{good: map[string]int{}, bad: map[string]int{}}
		var calls sync.WaitGroup
		b := &submitter{state: nodes, home: nodeOf, m: newMetrics(prometheus.NewRegistry()), ctx: t.Context(), run: func(f func()) { calls.Go(f) }, now: time.Now}
		offer := func(conv string) {
			if !b.offer(submission{owner: got, out: run.Out{Run: &v1.Run{ConversationId: conv, Sends: []*v1.RunSend{{}}}}}) {
				t.Fatal("no room")
			}
		}
		for range 10 {
			offer("a1")
			synctest.Wait()
		}
		offer("b1")
		synctest.Wait()
		if got.good["b1"] != 1 || got.good["a1"] != 0 || nodes.most["a"] != submitCalls {
			t.Errorf("with one node hanging: %v, %d calls to it", got.good, nodes.most["a"])
		}
		time.Sleep(submitAge + time.Millisecond)
		close(hold)
		calls.Wait()
		if got.good["a1"] != submitCalls || got.bad["a1"] != 10-submitCalls {
			t.Errorf("answered %d, refused %d", got.good["a1"], got.bad["a1"])
		}
		if len(b.queues) != 0 || b.sends != 0 {
			t.Errorf("%d queues and %d sends are left", len(b.queues), b.sends)
		}
		nodes.runs = nil
		held := make(chan struct{})
		nodes.held["c"] = held
		for range 100 {
			offer("c1")
		}
		synctest.Wait()
		close(held)
		calls.Wait()
		if len(nodes.runs) > 2*submitCalls || got.good["c1"] != 100 {
			t.Errorf("100 runs left in %d calls: %v", len(nodes.runs), nodes.runs)
		}
	})
}

func TestWhoeverHasNoHomesHasOneNode(t *testing.T) {
	nodes := &stateNodes{now: map[string]int{}, most: map[string]int{}}
	got := &answers{good: map[string]int{}, bad: map[string]int{}}
	var calls sync.WaitGroup
	b := &submitter{state: nodes, m: newMetrics(prometheus.NewRegistry()), ctx: t.Context(), run: func(f func()) { calls.Go(f) }, now: time.Now}
	b.offer(submission{owner: got, out: run.Out{Run: &v1.Run{ConversationId: strings.Repeat("a", 3), Sends: []*v1.RunSend{{}}}}})
	calls.Wait()
	if got.good["aaa"] != 1 {
		t.Error("not submitted")
	}
}

// crowd is a state node whose calls with a conversation of the name hot end when
// they are let.
type crowd struct {
	mu   sync.Mutex
	let  chan struct{}
	hot  []int // runs of the calls of hot
	more int   // runs of others in them
}

func (c *crowd) Submit(_ context.Context, r *v1.SubmitRequest) (*v1.SubmitResponse, error) {
	hot := 0
	res := &v1.SubmitResponse{}
	for _, x := range r.Runs {
		if x.ConversationId == "hot" {
			hot++
		}
		res.Runs = append(res.Runs, &v1.RunResult{Acks: make([]*clientv1.SendAck, len(x.Sends))})
	}
	if hot > 0 {
		c.mu.Lock()
		c.hot = append(c.hot, hot)
		c.more += len(r.Runs) - hot
		c.mu.Unlock()
		<-c.let
	}
	return res, nil
}

// A conversation of which much waits has one call at a time, for itself, and all
// others go on.
func TestACrowdedConversationHoldsUpNobodyElse(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		node := &crowd{let: make(chan struct{})}
		got := &answers{good: map[string]int{}, bad: map[string]int{}}
		var calls sync.WaitGroup
		b := &submitter{state: node, m: newMetrics(prometheus.NewRegistry()), ctx: t.Context(), run: func(f func()) { calls.Go(f) }, now: time.Now}
		offer := func(conv string, sends int) {
			t.Helper()
			if !b.offer(submission{owner: got, out: run.Out{Run: &v1.Run{ConversationId: conv, Sends: make([]*v1.RunSend, sends)}}}) {
				t.Fatal("no room")
			}
		}
		offer("hot", crowded+1)
		synctest.Wait() // it is out
		for range 30 {
			offer("hot", 8)
			offer("cool", 1)
			synctest.Wait()
		}
		if got.good["cool"] != 30 || len(node.hot) != 1 || node.more != 0 {
			t.Errorf("%d of 30 were answered, %d calls of the crowded one with %d others", got.good["cool"], len(node.hot), node.more)
		}
		for range 6 {
			node.let <- struct{}{}
			synctest.Wait()
		}
		if got.good["hot"] != 31 || node.hot[1] != crowdedSends/8 {
			t.Errorf("%d of 31 were answered, by calls of %v runs", got.good["hot"], node.hot)
		}
		calls.Wait()
		if len(b.queues) != 0 || b.sends != 0 {
			t.Errorf("%d queues and %d sends are left", len(b.queues), b.sends)
		}
	})
}

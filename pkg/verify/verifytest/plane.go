package verifytest

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/imdhq/imd/pkg/history"
)

// Times of the control plane of the made-up run: it always is the same, but for
// small pauses. The run lasts 30 s at least.
const (
	etcdGoes, etcdReturns = 6 * second, 9 * second
	limps, limpsNoMore    = 27 * second, 28 * second
	dies, diesNot         = 15 * second, 28 * second // w3
	follows               = 11 * second              // w2 leads in place of w1
)

// observers are the nodes; each tells what it sees.
var observers = []string{"w1", "w2", "w3"}

// plane makes the records of a control plane.
func (g *generator) plane() {
	files := map[string][]history.Record{}
	add := func(file string, r history.Record) { files[file] = append(files[file], r) }
	for t, how := range map[int64]string{0: history.EtcdGood, etcdGoes: history.EtcdAway, etcdReturns: history.EtcdGood, limps: history.EtcdLimping, limpsNoMore: history.EtcdGood} {
		add("control.log", history.Record{T: t, Kind: history.Etcd, Reason: how})
	}
	for i, o := range observers {
		up := g.between(50*ms, 200*ms)
		add("node-"+o+".log", history.Record{T: up - 10*ms, Kind: history.Began, User: o, Entry: o + "-1"})
		add("control.log", history.Record{T: up, Kind: history.Node, User: o, Entry: o + "-1", Reason: history.Up})
		for _, n := range observers {
			if n != o {
				add("node-"+o+".log", history.Record{T: g.between(up, 2*second), Kind: history.Seen, User: o, Device: n, Entry: n + "-1"})
			}
		}
		if i < 2 { // they see w3 die and return
			gone := dies + g.between(8*second, 11*second)
			add("node-"+o+".log", history.Record{T: gone, Kind: history.Seen, User: o, Device: "w3", Entry: "w3-1", Stop: true})
			add("node-"+o+".log", history.Record{T: diesNot + g.between(0, 2*second), Kind: history.Seen, User: o, Device: "w3", Entry: "w3-2"})
		}
	}
	add("control.log", history.Record{T: dies, Kind: history.Node, User: "w3", Entry: "w3-1", Reason: history.Down})
	add("control.log", history.Record{T: diesNot, Kind: history.Node, User: "w3", Entry: "w3-2", Reason: history.Up})
	add("node-w3.log", history.Record{T: diesNot - 10*ms, Kind: history.Began, User: "w3", Entry: "w3-2"})
	for _, n := range observers[:2] {
		add("node-w3.log", history.Record{T: diesNot, Kind: history.Seen, User: "w3", Device: n, Entry: n + "-1"})
	}
	for i, t := 0, second; t < g.ended; i, t = i+1, t+g.between(2*second, 5*second) {
		for _, o := range observers[:2] {
			add("control.log", history.Record{T: t + g.between(0, 300*ms), Kind: history.Ring, User: o, N: int64(i + 7)})
		}
	}
	g.changes(add)
	g.terms(add)
	for i := range 50 {
		g.mid++
		add("ids.log", history.Record{T: second + int64(i)*100*ms, Kind: history.Made, User: "w1", MID: g.mid})
	}
	for _, file := range []string{"control.log", "node-w1.log", "node-w2.log", "node-w3.log", "leader.log", "ids.log"} {
		slices.SortStableFunc(files[file], func(a, b history.Record) int { return cmp.Compare(a.T, b.T) })
		for _, r := range files[file] {
			g.add(file, r)
		}
	}
}

// changes writes settings, every third of them wrong, and lets nodes take them.
func (g *generator) changes(add func(string, history.Record)) {
	wrong := false
	for n, t := int64(1), 2*second; t < g.ended-4*second; n++ {
		put := history.Record{T: t, To: t + g.between(ms, 30*ms), Kind: history.Put, N: n, Ack: history.AckOK}
		switch {
		case t > etcdGoes-100*ms && t < etcdReturns:
			put.Ack, put.To = history.AckUnknown, t+second
		case wrong:
			put.Reason = history.Bad
		}
		add("control.log", put)
		for _, o := range observers {
			if put.Ack != history.AckOK || wrong || o == "w3" && t > dies-second && t < diesNot+second {
				continue
			}
			add("node-"+o+".log", history.Record{T: put.To + g.between(0, 200*ms), Kind: history.Applied, User: o, N: n, To: n, Seq: 100 + n})
		}
		wrong = !wrong && n%3 == 0
		t += 400 * ms
	}
}

// terms lets w1 lead, then w2, and w1 not know it at first.
func (g *generator) terms(add func(string, history.Record)) {
	token, leader := int64(0), ""
	for t := 3 * second; t < g.ended-second; t += 100 * ms {
		next := observers[(t/follows)%2]
		if next != leader {
			token++
			add("leader.log", history.Record{T: t, Kind: history.Claim, Name: "job", User: next + "/b", N: token, Ack: history.AckOK})
			if leader != "" {
				add("leader.log", history.Record{T: t + ms, Kind: history.Effect, Name: "job", User: leader + "/b", N: token - 1, Ack: history.AckFail})
				add("node-"+leader+".log", history.Record{T: t + 2*ms, Kind: history.Led, Name: "job", User: leader, N: token - 1, Stop: true})
			}
			leader = next
			add("node-"+leader+".log", history.Record{T: t + 3*ms, Kind: history.Led, Name: "job", User: leader, N: token})
		}
		add("leader.log", history.Record{T: t + 10*ms, Kind: history.Effect, Name: "job", User: leader + "/b", N: token, Ack: history.AckOK})
	}
	add("leader.log", history.Record{T: second, Kind: history.Claim, Name: "lock", User: fmt.Sprint("w", 1+g.IntN(2), "/b"), N: 1, Ack: history.AckOK})
}

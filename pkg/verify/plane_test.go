package verify_test

import (
	"strings"
	"testing"

	"github.com/imdhq/imd/pkg/history"
)

// witnessed is a good book with a control plane: a and b see each other, and
// change 1 is in force on both.
func witnessed() *book {
	b := first()
	b.etcd(0, history.EtcdGood)
	for _, n := range []string{"a", "b"} {
		b.add("node-"+n+".log", history.Record{T: second, Kind: history.Began, User: n, Entry: n + "1"})
		b.node(second, n, history.Up)
	}
	b.seen(2*second, "a", "b", false)
	b.seen(2*second, "b", "a", false)
	b.put(10*second, 1, "")
	b.applied(10*second+second/2, "a", 1, 1)
	b.applied(10*second+second/2, "b", 1, 1)
	b.token(5*second, history.Claim, "a", 1, history.AckOK)
	b.token(6*second, history.Effect, "a", 1, history.AckOK)
	return b
}

func (b *book) etcd(t int64, how string) {
	b.add("control.log", history.Record{T: t, Kind: history.Etcd, Reason: how})
}

func (b *book) node(t int64, name, what string) {
	b.add("control.log", history.Record{T: t, Kind: history.Node, User: name, Entry: name + "1", Reason: what})
}

func (b *book) seen(t int64, by, name string, gone bool) {
	b.add("node-"+by+".log", history.Record{T: t, Kind: history.Seen, User: by, Device: name, Entry: name + "1", Stop: gone})
}

func (b *book) put(t, n int64, reason string) {
	b.add("control.log", history.Record{T: t, To: t + second/100, Kind: history.Put, N: n, Ack: history.AckOK, Reason: reason})
}

func (b *book) applied(t int64, name string, one, other int64) {
	b.add("node-"+name+".log", history.Record{T: t, Kind: history.Applied, User: name, N: one, To: other})
}

func (b *book) token(t int64, kind history.Kind, holder string, n int64, ack string) {
	b.add("leader.log", history.Record{T: t, Kind: kind, Name: "job", User: holder, N: n, Ack: ack})
}

func TestJudgeOfTheControlPlane(t *testing.T) {
	tests := []struct {
		name string
		edit func(*book)
		want string // the invariants that are violated
	}{
		{"a good history", func(*book) {}, ""},
		{"an effect of a deposed leader", func(b *book) {
			b.token(7*second, history.Claim, "b", 2, history.AckOK)
			b.token(8*second, history.Effect, "a", 1, history.AckOK)
		}, "I10"},
		{"an effect of a deposed leader that was refused", func(b *book) {
			b.token(7*second, history.Claim, "b", 2, history.AckOK)
			b.token(8*second, history.Effect, "a", 1, history.AckFail)
			b.token(9*second, history.Effect, "b", 2, history.AckOK)
		}, ""},
		{"the same claim answered again", func(b *book) { b.token(7*second, history.Claim, "a", 1, history.AckOK) }, ""},
		{"tokens that go back", func(b *book) {
			b.token(7*second, history.Claim, "b", 3, history.AckOK)
			b.token(8*second, history.Claim, "a", 2, history.AckOK)
		}, "I10"},
		{"a change that is late on one node", func(b *book) {
			b.put(20*second, 2, "")
			b.applied(20*second+second, "a", 2, 2)
			b.applied(23*second, "b", 2, 2)
		}, "I15"},
		{"the same while a member of etcd ails", func(b *book) {
			b.etcd(19*second, history.EtcdLimping)
			b.put(20*second, 2, "")
			b.applied(20*second+second, "a", 2, 2)
			b.applied(23*second, "b", 2, 2)
		}, ""},
		{"a change that never comes while a member of etcd ails", func(b *book) {
			b.etcd(19*second, history.EtcdLimping)
			b.put(20*second, 2, "")
			b.applied(20*second+second, "a", 2, 2)
		}, "I15"},
		{"the same while etcd is away", func(b *book) {
			b.etcd(19*second, history.EtcdAway)
			b.put(20*second, 2, "")
			b.applied(20*second+second, "a", 2, 2)
		}, ""},
		{"a change that is late after etcd went back", func(b *book) {
			b.etcd(20*second, history.EtcdAway)
			b.etcd(21*second, history.EtcdRestored)
			b.put(30*second, 2, "")
			b.applied(30*second+second, "a", 2, 2)
			b.applied(40*second, "b", 2, 2)
		}, ""},
		{"a change that is late long after etcd went back", func(b *book) {
			b.etcd(20*second, history.EtcdAway)
			b.etcd(21*second, history.EtcdRestored)
			b.put(60*second, 2, "")
			b.applied(60*second+second, "a", 2, 2)
			b.applied(70*second, "b", 2, 2)
		}, "I15"},
		{"the same on a node that stands still", func(b *book) {
			b.node(19*second, "b", history.Paused)
			b.node(22*second, "b", history.Resumed)
			b.put(20*second, 2, "")
			b.applied(20*second+second, "a", 2, 2)
		}, ""},
		{"a later change in place of it", func(b *book) {
			b.put(20*second, 2, "")
			b.put(20*second+second, 3, "")
			b.applied(21*second+second/2, "a", 3, 3)
			b.applied(21*second+second/2, "b", 3, 3)
		}, ""},
		{"a wrong change in force", func(b *book) {
			b.put(20*second, 2, history.Bad)
			b.applied(20*second+second, "a", 2, 2)
		}, "I15"},
		{"a half of a change in force", func(b *book) {
			b.put(20*second, 2, "")
			b.applied(20*second+second, "a", 1, 2)
			b.applied(20*second+second+1, "a", 2, 2)
			b.applied(20*second+second, "b", 2, 2)
		}, "I15"},
		{"a living node left out for a moment", func(b *book) {
			b.seen(30*second, "a", "b", true)
			b.seen(30*second+second/2, "a", "b", false)
		}, ""},
		{"a living node left out", func(b *book) {
			b.seen(30*second, "a", "b", true)
			b.seen(32*second, "a", "b", false)
		}, "I16"},
		{"a living node left out while etcd is away", func(b *book) {
			b.etcd(29*second, history.EtcdAway)
			b.seen(30*second, "a", "b", true)
			b.etcd(32*second, history.EtcdGood)
			b.seen(32*second, "a", "b", false)
		}, "I16"},
		{"a living node left out by one that stands still", func(b *book) {
			b.node(29*second, "a", history.Paused)
			b.seen(40*second, "a", "b", true)
			b.node(40*second, "a", history.Resumed)
			b.seen(42*second, "a", "b", false)
		}, ""},
		{"a node that stands still is left out, and returns", func(b *book) {
			b.node(30*second, "b", history.Paused)
			b.seen(41*second, "a", "b", true)
			b.node(47*second, "b", history.Resumed)
			b.seen(49*second, "a", "b", false)
		}, ""},
		{"a node that stands still is used on", func(b *book) {
			b.node(30*second, "b", history.Paused)
			b.node(47*second, "b", history.Resumed)
		}, "I16"},
		{"a dead node is used on", func(b *book) {
			b.node(30*second, "b", history.Down)
			b.seen(43*second, "a", "b", true)
		}, "I16"},
		{"the same while etcd is away", func(b *book) {
			b.node(30*second, "b", history.Down)
			b.etcd(35*second, history.EtcdAway)
			b.etcd(55*second, history.EtcdGood)
			b.seen(67*second, "a", "b", true)
		}, ""},
		{"a node that is never used", func(b *book) {
			b.drop(func(r *history.Record) bool { return r.Kind == history.Seen && r.User == "b" })
		}, "I16"},
		{"an id made twice", func(b *book) {
			for range 2 {
				b.add("ids.log", history.Record{T: second, Kind: history.Made, User: "a", MID: 5})
			}
		}, "I14"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			b := witnessed()
			tt.edit(b)
			r := b.judge(t)
			if got := strings.Join(broken(r), " "); got != tt.want {
				var text strings.Builder
				r.Text(&text)
				t.Errorf("violated %q, want %q\n%s", got, tt.want, text.String())
			}
		})
	}
}

// A history in which the control plane was not recorded is judged without it.
func TestTheControlPlaneNeedNotBeRecorded(t *testing.T) {
	r := first().judge(t)
	for _, inv := range r.Invariants {
		if inv.ID == "I10" || inv.ID == "I15" || inv.ID == "I16" {
			t.Errorf("%s was judged by nothing", inv.ID)
		}
	}
}

// Of effects of many jobs some of each are shown, however many one of them has.
func TestEachJobIsShown(t *testing.T) {
	b := witnessed()
	b.token(7*second, history.Claim, "b", 2, history.AckOK)
	for i := range 101 {
		job := "frequent"
		if i == 100 {
			job = "seldom"
		}
		b.add("leader.log", history.Record{T: 8*second + int64(i), Kind: history.Effect, Name: "job", User: "a", N: 1, Ack: history.AckOK, Reason: job})
	}
	for _, inv := range b.judge(t).Invariants {
		if inv.ID != "I10" {
			continue
		}
		shown := map[string]int{}
		for _, v := range inv.Violations {
			shown[v.Text[strings.LastIndexByte(v.Text, ' ')+1:]]++
		}
		if inv.Found != 101 || shown["frequent"] != 5 || shown["seldom"] != 1 {
			t.Errorf("%d found, shown are %v", inv.Found, shown)
		}
	}
}

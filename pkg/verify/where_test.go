package verify_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/imdhq/imd/pkg/history"
)

// located is a good book of eve, of whom one login may be in, and of calls about her.
func located() *book {
	b := first()
	b.login(second, "s1", "l1", "d1", history.AckOK)
	b.login(10*second, "s2", "l2", "d2", history.AckOK)
	b.logout(10*second+second/10, "s1", "l1", "d1", history.Replaced)
	b.sight(0, true)
	b.sight(2*second, false)
	b.call(second, history.Record{Name: history.RouteClaim, Entry: "s1", Sender: "l1", Device: "d1", Seq: 7, Hash: "|"})
	b.call(10*second, history.Record{Name: history.RouteClaim, Entry: "s2", Sender: "l2", Device: "d2", Seq: 9, Prev: 7, Hash: "|s1"})
	return b
}

func (b *book) login(t int64, session, login, device, ack string) {
	b.add("sessions.log", history.Record{T: t + second/100, To: t, Kind: history.Login, User: "eve", Device: device, Entry: session, Name: login, Ack: ack})
}

func (b *book) logout(t int64, session, login, device, why string) {
	b.add("sessions.log", history.Record{T: t, Kind: history.Logout, User: "eve", Device: device, Entry: session, Name: login, Reason: why})
}

func (b *book) sight(t int64, gone bool) {
	b.add("presence.log", history.Record{T: t, Kind: history.Sight, User: "eve", Device: "o", Stop: gone})
}

// call is one that takes 10 ms, unless it says until when.
func (b *book) call(t int64, r history.Record) {
	r.T, r.Kind, r.User = t, history.Route, "eve"
	if r.To == 0 {
		r.To = t + second/100
	}
	if r.Ack == "" {
		r.Ack = history.AckOK
	}
	b.add("routes.log", r)
}

func (b *book) fault(name string, from, to int64) {
	b.run.Healed = max(b.run.Healed, to)
	b.add("faults.log", history.Record{T: from, Kind: history.Fault, Name: name})
	b.add("faults.log", history.Record{T: to, Kind: history.Fault, Name: name, Stop: true})
}

func TestJudgeOfWhoIsWhere(t *testing.T) {
	lookup := func(at int64, found string) func(*book) {
		return func(b *book) { b.call(at, history.Record{Name: history.RouteLookup, Hash: found}) }
	}
	tests := []struct {
		name string
		edit func(*book)
		want string // the invariants that are violated
	}{
		{"a good history", func(*book) {}, ""},
		{"a route that is found", lookup(20*second, "s2"), ""},
		{"a route that is not found", lookup(20*second, ""), "I11"},
		{"a route that is found after it was replaced", lookup(20*second, "s1 s2"), "I11"},
		{"a lookup while another comes", func(b *book) {
			b.call(9*second, history.Record{Name: history.RouteLookup, Hash: "s1", To: 11 * second})
		}, ""},
		{"a route that is not found after everything was lost", func(b *book) {
			b.call(20*second, history.Record{Name: history.RouteForget})
			lookup(30*second, "")(b)
		}, ""},
		{"an epoch below an old one after everything was lost", func(b *book) {
			b.call(20*second, history.Record{Name: history.RouteForget})
			b.call(30*second, history.Record{Name: history.RouteClaim, Entry: "s3", Sender: "l3", Device: "d3", Seq: 8, Hash: "|"})
		}, "I11"},
		{"the same with a clock that has gone back", func(b *book) {
			b.call(20*second, history.Record{Name: history.RouteForget, Reason: history.ClockSlow})
			b.call(30*second, history.Record{Name: history.RouteClaim, Entry: "s3", Sender: "l3", Device: "d3", Seq: 8, Hash: "|"})
		}, ""},
		{"the same by one who had seen a higher one", func(b *book) {
			b.call(20*second, history.Record{Name: history.RouteForget, Reason: history.ClockSlow})
			b.call(30*second, history.Record{Name: history.RouteClaim, Entry: "s3", Sender: "l3", Device: "d3", Seq: 8, Prev: 9, Hash: "|"})
		}, "I11"},
		{"a claim of which nobody knows what became", func(b *book) {
			b.call(20*second, history.Record{Name: history.RouteClaim, Entry: "s3", Sender: "l3", Device: "d3", Ack: history.AckUnknown})
			lookup(30*second, "s2")(b)
			lookup(40*second, "s3")(b)
		}, ""},
		{"the same seen and gone", func(b *book) {
			b.call(20*second, history.Record{Name: history.RouteClaim, Entry: "s3", Sender: "l3", Device: "d3", Ack: history.AckUnknown})
			lookup(30*second, "s3")(b)
			lookup(40*second, "s2")(b)
		}, "I11"},
		{"a late clean-up that removes the heir", func(b *book) {
			b.call(20*second, history.Record{Name: history.RouteRelease, Entry: "s1", Sender: "l1", Device: "d1", N: 7, Dup: true})
		}, "I11"},
		{"a login that stays in beside its heir", func(b *book) {
			b.drop(func(r *history.Record) bool { return r.Kind == history.Logout })
		}, "I12"},
		{"the same for half a minute", func(b *book) {
			b.drop(func(r *history.Record) bool { return r.Kind == history.Logout })
			b.logout(40*second, "s1", "l1", "d1", history.Replaced)
		}, ""},
		{"the same for longer under a fault", func(b *book) {
			b.drop(func(r *history.Record) bool { return r.Kind == history.Logout })
			b.logout(50*second, "s1", "l1", "d1", history.Replaced)
			b.fault("1 pause", 20*second, 32*second)
		}, ""},
		{"a login that is ended for nobody", func(b *book) { b.logout(30*second, "s2", "l2", "d2", history.Replaced); b.sight(31*second, true) }, "I12"},
		{"a login that is ended by one that was refused in the end", func(b *book) {
			b.login(29*second, "s3", "l3", "d3", history.AckFail)
			b.logout(30*second, "s2", "l2", "d2", history.Replaced)
			b.sight(31*second, true)
		}, ""},
		{"one who went and is still seen", func(b *book) { b.logout(30*second, "s2", "l2", "d2", "closed") }, "I13"},
		{"the same for 40 seconds", func(b *book) {
			b.logout(30*second, "s2", "l2", "d2", "closed")
			b.sight(70*second, true)
		}, ""},
		{"the same after the process was killed", func(b *book) {
			b.logout(30*second, "s2", "l2", "d2", history.Killed)
			b.sight(70*second, true)
		}, "I13"},
		{"one who went while nobody could tell", func(b *book) {
			b.logout(30*second, "s2", "l2", "d2", "closed")
			b.add("presence.log", history.Record{T: 29 * second, Kind: history.Sight, User: "eve", Device: "o", Ack: history.AckUnknown})
		}, ""},
		{"one who is there and not seen", func(b *book) {
			b.drop(func(r *history.Record) bool { return r.Kind == history.Sight && !r.Stop })
		}, "I13"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			b := located()
			tt.edit(b)
			if got := strings.Join(broken(b.judge(t)), " "); got != tt.want {
				t.Errorf("violated: %q, want %q", got, tt.want)
			}
		})
	}
}

// What clients must not feel is judged for each class of faults by itself.
func TestAvailabilityUnderEachClass(t *testing.T) {
	for late, want := range map[int]string{10: "", 15: "I18"} {
		b := first()
		for i := range 960 { // some 250 of them under the fault
			t := 60*second + int64(i)*second/50
			took := second / 100
			if i >= 100 && i < 100+late {
				took = 3 * second
			}
			cmid, seq := fmt.Sprint("x", i), int64(i+4)
			b.invoke(t, seq, cmid, "h-"+cmid)
			b.ok(t+took, seq, cmid)
			b.row(seq, cmid)
		}
		aside := history.Record{T: 61 * second, Kind: history.Fault, Name: "7 redis-flush", Entry: history.Aside}
		b.add("faults.log", aside)
		aside.T, aside.Stop = 65*second, true
		b.add("faults.log", aside)
		b.run.Healed = 1
		r := b.judge(t)
		found := ""
		for _, id := range broken(r) {
			if id == "I18" {
				found = id
			}
		}
		if k := r.Availability.Classes[0]; k.Name != "redis-flush" || k.Faults != 1 || k.Sends < 200 || k.Sends > 300 || found != want {
			t.Errorf("%d late: %s, %d faults, %d of %d in time: %q, want %q", late, k.Name, k.Faults, k.Within, k.Sends, found, want)
		}
	}
}

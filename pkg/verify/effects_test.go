package verify_test

import (
	"strings"
	"testing"

	"github.com/imdhq/imd/pkg/history"
)

// served is a good book of what a leader did: its three messages were told, bob, who has
// no device, was notified and read the first two, a scheduled message was cancelled, and an announcement
// was shown.
func served() *book {
	b := first()
	b.effect(history.Record{T: second, Kind: history.Receiver, Name: "shop"})
	for seq := int64(1); seq <= 3; seq++ {
		b.told(seq*10*second+second/10, seq, history.AckOK)
	}
	b.effect(history.Record{T: second, Kind: history.Sleeper, User: "bob", Conv: "g"})
	b.notice(21*second, 2, history.TypePush)
	b.effect(history.Record{T: 23 * second, To: 26 * second, Kind: history.ReadUp, User: "bob", Conv: "g", Seq: 2, Ack: history.AckOK})
	b.notice(27*second, 2, history.TypeWithdraw)
	b.notice(31*second, 3, history.TypePush)
	b.effect(history.Record{T: second, To: second, Kind: history.Schedule, User: "eve", Conv: "g", CMID: "never", Hash: "h", Name: "8", N: 29 * second, Ack: history.AckOK})
	b.effect(history.Record{T: 28 * second, To: 28 * second, Kind: history.Cancel, Name: "8", Ack: history.AckOK})
	b.effect(history.Record{T: 40 * second, To: 41 * second, Kind: history.Announce, N: 5, Hash: "a", Seq: 200 * second, Ack: history.AckOK})
	b.shown(42*second, 5)
	b.effect(history.Record{T: 99 * second, Kind: history.Listener, User: "lea", Device: "p"})
	return b
}

func (b *book) effect(r history.Record) { b.add("effects.log", r) }

func (b *book) told(t, seq int64, ack string) {
	cmid := string(rune('a' + seq - 1))
	b.effect(history.Record{T: t, Kind: history.Told, Name: "shop", Reason: "message.committed", Entry: "m-" + cmid, Conv: "g", Seq: seq, MID: 100 + seq, N: seq, Hash: "h-" + cmid, Ack: ack})
}

func (b *book) notice(t, seq int64, kind string) {
	b.effect(history.Record{T: t, Kind: history.Told, Name: "phones", Reason: kind, Entry: kind + string(rune('0'+seq)), User: "bob", Conv: "g", Seq: seq, MID: 100 + seq, Ack: history.AckOK})
}

func (b *book) shown(t, n int64) {
	b.effect(history.Record{T: t, Kind: history.Notice, User: "lea", Device: "p", Name: "e", N: n, Hash: "a"})
}

// drops drops the records of a kind with a seq.
func (b *book) drops(kind history.Kind, seq int64, why string) {
	b.drop(func(r *history.Record) bool {
		return r.Kind == kind && r.Seq == seq && (why == "" || r.Reason == why)
	})
}

func TestJudgeOfEffects(t *testing.T) {
	tests := []struct {
		name string
		edit func(*book)
		want string // of the violation; "" = none
	}{
		{"a good history", func(*book) {}, ""},
		{"an event that was refused, and told again after a later one of another", func(b *book) { b.told(10*second, 1, history.AckFail) }, ""},
		{"an event told once more long after", func(b *book) { b.told(60*second, 1, history.AckOK) }, ""},
		{"an event that is only refused", func(b *book) {
			b.drops(history.Told, 1, "message.committed")
			b.told(10*second, 1, history.AckUnknown)
		}, "never took it"},
		{"a receiver that is told nothing at all", func(b *book) {
			b.drop(func(r *history.Record) bool { return r.Kind == history.Told && r.Name == "shop" })
		}, "shop was never told"},
		{"an event told too early", func(b *book) { b.told(15*second, 3, history.AckFail) }, "after a later one"},
		{"a message of which nobody without a device hears", func(b *book) { b.drops(history.Told, 3, history.TypePush) }, "never notified"},
		{"the same, read at once", func(b *book) {
			b.drops(history.Told, 3, history.TypePush)
			b.effect(history.Record{T: 33 * second, To: 34 * second, Kind: history.ReadUp, User: "bob", Conv: "g", Seq: 3, Ack: history.AckOK})
		}, ""},
		{"the same, read later", func(b *book) {
			b.drops(history.Told, 3, history.TypePush)
			b.effect(history.Record{T: 50 * second, To: 51 * second, Kind: history.ReadUp, User: "bob", Conv: "g", Seq: 3, Ack: history.AckOK})
		}, "never notified"},
		{"the same, read later, with a fault about", func(b *book) {
			b.drops(history.Told, 3, history.TypePush)
			b.effect(history.Record{T: 50 * second, To: 51 * second, Kind: history.ReadUp, User: "bob", Conv: "g", Seq: 3, Ack: history.AckOK})
			b.fault("1 leader-kill", 32*second, 33*second)
		}, ""},
		{"a notice of what was read long ago", func(b *book) { b.notice(50*second, 2, history.TypePush) }, "read 24s before"},
		{"the same with a fault in between", func(b *book) {
			b.notice(50*second, 2, history.TypePush)
			b.fault("1 leader-pause", 27*second, 44*second)
		}, ""},
		{"a notice that stays", func(b *book) { b.drops(history.Told, 2, history.TypeWithdraw) }, ""}, // a later one takes its place soon
		{"a notice that stays, with no later one", func(b *book) {
			b.drops(history.Told, 2, history.TypeWithdraw)
			b.drops(history.Told, 3, history.TypePush)
			b.notice(45*second, 3, history.TypePush)
		}, "not taken back"},
		{"a scheduled message that is not there", func(b *book) {
			b.effect(history.Record{T: second, To: second, Kind: history.Schedule, User: "eve", Conv: "g", CMID: "x", Hash: "h", Name: "9", N: 50 * second, Ack: history.AckOK})
		}, "never sent"},
		{"the same, of which nobody knows whether it is", func(b *book) {
			b.effect(history.Record{T: second, Kind: history.Schedule, User: "eve", Conv: "g", Hash: "h", N: 50 * second, Ack: history.AckUnknown})
		}, ""},
		{"the same, of which nobody knows whether it was cancelled", func(b *book) {
			b.effect(history.Record{T: second, To: second, Kind: history.Schedule, User: "eve", Conv: "g", CMID: "x", Hash: "h", Name: "9", N: 50 * second, Ack: history.AckOK})
			b.effect(history.Record{T: 49 * second, Kind: history.Cancel, Name: "9", Ack: history.AckUnknown})
		}, ""},
		{"an announcement that was not shown", func(b *book) { b.drop(func(r *history.Record) bool { return r.Kind == history.Notice }) }, "never shown"},
		{"the same, taken back", func(b *book) {
			b.drop(func(r *history.Record) bool { return r.Kind == history.Notice })
			b.effect(history.Record{T: 41 * second, To: 42 * second, Kind: history.Withdraw, N: 5, Ack: history.AckOK})
		}, ""},
		{"an announcement shown soon after it was taken back", func(b *book) {
			b.effect(history.Record{T: 41 * second, To: 41 * second, Kind: history.Withdraw, N: 5, Ack: history.AckOK})
		}, ""},
		{"the same in another data_epoch", func(b *book) {
			b.effect(history.Record{T: 60 * second, Kind: history.Notice, User: "lea", Device: "p", Name: "e2", N: 5, Hash: "a"})
		}, ""},
		{"an effect by another", func(b *book) {
			b.token(5*second, history.Claim, "c1/x", 1, history.AckOK)
			b.add("leader.log", history.Record{T: 6 * second, Kind: history.Effect, Name: "job", User: "c2", N: 1, Ack: history.AckOK, Reason: "gather"})
		}, "the token 1 of another: gather"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			b := served()
			tt.edit(b)
			var text strings.Builder
			r := b.judge(t)
			r.Text(&text)
			found := broken(r)
			switch {
			case tt.want == "" && len(found) > 0:
				t.Errorf("violated: %v\n%s", found, text.String())
			case tt.want != "" && (strings.Join(found, " ") != "I10" || !strings.Contains(text.String(), tt.want)):
				t.Errorf("violated: %v, want I10 with %q\n%s", found, tt.want, text.String())
			}
		})
	}
}

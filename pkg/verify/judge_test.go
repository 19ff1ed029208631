package verify_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/imdhq/imd/pkg/history"
	"github.com/imdhq/imd/pkg/testenv/machine"
	"github.com/imdhq/imd/pkg/verify"
	"github.com/imdhq/imd/pkg/verify/verifytest"
)

const second = int64(time.Second)

// book is a history written by hand: ann and bob talk in g, cat is a stranger.
type book struct {
	run  history.Run
	list []verifytest.Entry
}

func (b *book) add(file string, r history.Record) {
	b.list = append(b.list, verifytest.Entry{File: file, Record: r})
}

// send is a send of ann's that is answered with a seq within 10 ms.
func (b *book) send(t, n, seq int64, cmid string) {
	b.invoke(t, n, cmid, "h-"+cmid)
	b.ok(t+second/100, seq, cmid)
}

func (b *book) invoke(t, n int64, cmid, hash string) {
	b.add("1.ops", history.Record{T: t, Kind: history.Invoke, User: "ann", Device: "p", Conv: "g", CMID: cmid, N: n, Hash: hash})
}

func (b *book) ok(t, seq int64, cmid string) {
	b.add("1.ops", history.Record{T: t, Kind: history.Return, User: "ann", Device: "p", Conv: "g", CMID: cmid, Ack: history.AckOK, MID: 100 + seq, Seq: seq, Prev: seq - 1})
}

func (b *book) answer(t int64, cmid, ack, reason string) {
	b.add("1.ops", history.Record{T: t, Kind: history.Return, User: "ann", Device: "p", Conv: "g", CMID: cmid, Ack: ack, Reason: reason})
}

func (b *book) row(seq int64, cmid string) {
	b.add("db.final", history.Record{Kind: history.Row, Conv: "g", Seq: seq, Prev: seq - 1, MID: 100 + seq, Sender: "ann", CMID: cmid, Hash: "h-" + cmid, Entry: "message"})
}

func (b *book) view(t int64, user string, kind history.Kind, seq int64) {
	r := history.Record{T: t, Kind: kind, User: user, Device: "p"}
	if seq > 0 || kind == history.Have || kind == history.Open {
		r.Conv, r.Seq = "g", seq
	}
	if kind == history.Show {
		r.MID = 100 + seq
	}
	b.add("1.view", r)
}

// first is a book with three messages, all shown to both.
func first() *book {
	b := &book{run: history.Run{Allocator: "transaction", Ended: 100 * second}}
	for i, cmid := range []string{"a", "b", "c"} {
		seq := int64(i + 1)
		b.send(seq*10*second, seq, seq, cmid)
		b.row(seq, cmid)
	}
	for _, user := range []string{"ann", "bob"} {
		b.view(1*second, user, history.Connect, 0)
		for seq := int64(1); seq <= 3; seq++ {
			b.view((seq*10+1)*second, user, history.Show, seq)
		}
		b.view(50*second, user, history.Settled, 0)
		b.add("members.final", history.Record{Kind: history.Span, User: user, Conv: "g"})
	}
	return b
}

// edit changes the records that match.
func (b *book) edit(kind history.Kind, seq int64, change func(*history.Record)) {
	for i := range b.list {
		if r := &b.list[i].Record; r.Kind == kind && r.Seq == seq {
			change(r)
		}
	}
}

func (b *book) drop(match func(r *history.Record) bool) {
	b.list = slices.DeleteFunc(b.list, func(e verifytest.Entry) bool { return match(&e.Record) })
}

func (b *book) judge(t *testing.T) *verify.Report {
	t.Helper()
	made := verifytest.Made{Run: b.run, Entries: b.list}
	return verify.Judge(load(t, &made), verify.Options{})
}

func broken(r *verify.Report) []string {
	var ids []string
	for _, inv := range r.Invariants {
		if inv.Found > 0 {
			ids = append(ids, inv.ID)
		}
	}
	return ids
}

func TestJudge(t *testing.T) {
	tests := []struct {
		name string
		edit func(*book)
		want string // the invariants that are violated
	}{
		{"a good history", func(*book) {}, ""},
		{"a send that was given up, and repeated after a later one", func(b *book) {
			b.invoke(40*second, 4, "d", "h-d")
			b.answer(41*second, "d", history.AckUnknown, "")
			b.send(42*second, 5, 4, "e")
			b.invoke(43*second, 4, "d", "h-d")
			b.ok(43*second+1, 5, "d")
			b.row(4, "e")
			b.row(5, "d")
			for seq := int64(4); seq <= 5; seq++ {
				b.view((40+seq)*second, "ann", history.Show, seq)
				b.view((40+seq)*second, "bob", history.Show, seq)
			}
		}, "I18"},
		{"a send that was put off, and repeated after a later one", func(b *book) {
			b.invoke(40*second, 4, "d", "h-d")
			b.answer(40*second+1, "d", history.AckRetry, "overloaded")
			b.send(40*second+2, 5, 4, "e")
			b.invoke(41*second, 4, "d", "h-d")
			b.ok(41*second+1, 5, "d")
			b.row(4, "e")
			b.row(5, "d")
			for seq := int64(4); seq <= 5; seq++ {
				b.view((40+seq)*second, "ann", history.Show, seq)
				b.view((40+seq)*second, "bob", history.Show, seq)
			}
		}, "I6"},
		{"a lost answer, then the same message again as a duplicate", func(b *book) {
			b.invoke(40*second, 4, "d", "h-d")
			b.answer(40*second+1, "d", history.AckUnknown, "")
			b.invoke(41*second, 4, "d", "h-d")
			b.ok(41*second+1, 4, "d")
			b.row(4, "d")
			b.view(42*second, "ann", history.Show, 4)
			b.view(42*second, "bob", history.Show, 4)
		}, ""},
		{"a content that is a minute old is gone", func(b *book) {
			b.edit(history.Row, 1, func(r *history.Record) { r.Hash, r.Name = "", history.Gone })
		}, "I1"},
		{"old contents are gone, and nobody shows them", func(b *book) {
			b.run.Ended = 25 * 3600 * second
			b.edit(history.Row, 1, func(r *history.Record) { r.Hash, r.Name = "", history.Gone })
			b.drop(func(r *history.Record) bool { return r.Kind == history.Show && r.Seq == 1 && r.User == "bob" })
		}, ""},
		{"a content is gone before an older one", func(b *book) {
			b.edit(history.Row, 2, func(r *history.Record) { r.Hash, r.Name = "", history.Gone })
		}, "I1"},
		{"a key used again for another content is refused", func(b *book) {
			b.invoke(40*second, 1, "a", "h-other")
			b.answer(41*second, "a", history.AckFail, "id_reused")
		}, ""},
		{"a key used again for the same content is refused", func(b *book) {
			b.invoke(40*second, 1, "a", "h-a")
			b.answer(41*second, "a", history.AckFail, "not_member")
		}, "I3 I19"},
		{"a retry behind an answer takes nothing back", func(b *book) { b.answer(41*second, "a", history.AckRetry, "overloaded") }, ""},
		{"refused although it is stored", func(b *book) {
			b.drop(func(r *history.Record) bool { return r.Kind == history.Return && r.CMID == "c" })
			b.answer(31*second, "c", history.AckFail, "not_member")
		}, "I19"},
		{"a stored send that never got an answer", func(b *book) {
			b.drop(func(r *history.Record) bool { return r.Kind == history.Return && r.CMID == "c" })
		}, "I18 I19"},
		{"a message of a sender who was not recorded", func(b *book) {
			b.row(4, "x")
			b.edit(history.Row, 4, func(r *history.Record) { r.Sender = "backend" })
			b.view(42*second, "ann", history.Show, 4)
			b.view(42*second, "bob", history.Show, 4)
		}, ""},
		{"a message of a recorded user who never sent it", func(b *book) {
			b.row(4, "x")
			b.edit(history.Row, 4, func(r *history.Record) { r.Sender = "bob" })
			b.view(42*second, "ann", history.Show, 4)
			b.view(42*second, "bob", history.Show, 4)
		}, "I2"},
		{"a message that may have come after the device settled", func(b *book) {
			b.send(60*second, 4, 4, "d")
			b.row(4, "d")
			b.view(61*second, "ann", history.Show, 4)
		}, ""},
		{"a message that somebody had seen before the device settled", func(b *book) {
			b.send(40*second, 4, 4, "d")
			b.row(4, "d")
			b.view(41*second, "ann", history.Show, 4)
		}, "I7"},
		{"a message that nobody saw at all", func(b *book) {
			b.drop(func(r *history.Record) bool { return r.Kind == history.Show && r.Seq == 3 })
		}, "I7"},
		{"a member who left may miss what came later", func(b *book) {
			b.drop(func(r *history.Record) bool { return r.Kind == history.Show && r.Seq == 3 && r.User == "bob" })
			for i := range b.list {
				if r := &b.list[i].Record; r.Kind == history.Span && r.User == "bob" {
					r.To = 2
				}
			}
		}, ""},
		{"an offline device may miss what it did not fetch", func(b *book) {
			b.drop(func(r *history.Record) bool {
				return r.User == "bob" && (r.Kind == history.Settled || r.Kind == history.Show && r.Seq == 3)
			})
			b.view(25*second, "bob", history.Disconnect, 0)
		}, ""},
		{"an online device that never settled", func(b *book) {
			b.drop(func(r *history.Record) bool { return r.User == "bob" && r.Kind == history.Settled })
		}, "I7"},
		{"a device that settled before the faults were over and went on", func(b *book) {
			b.add("faults.log", history.Record{T: 50 * second, Kind: history.Fault, Name: "kill"})
			b.add("faults.log", history.Record{T: 59 * second, Kind: history.Fault, Name: "kill", Stop: true})
			b.run.Healed = 60 * second
			b.view(70*second, "ann", history.Settled, 0)
		}, "I7"},
		{"a conversation begun at the head", func(b *book) {
			b.drop(func(r *history.Record) bool { return r.User == "bob" && r.Kind == history.Show && r.Seq < 3 })
			b.view(25*second, "bob", history.Open, 2)
		}, ""},
		{"taking up again above what was shown hides nothing", func(b *book) {
			b.drop(func(r *history.Record) bool { return r.User == "bob" && r.Kind == history.Show && r.Seq < 3 })
			b.view(25*second, "bob", history.Have, 2)
		}, "I7"},
		{"taking up again below what was shown", func(b *book) {
			b.view(45*second, "bob", history.Connect, 0)
			b.view(46*second, "bob", history.Have, 1)
		}, "I9"},
		{"a resync lets a device show everything again", func(b *book) {
			b.view(45*second, "bob", history.Resync, 0)
			for seq := int64(1); seq <= 3; seq++ {
				b.view(46*second+seq, "bob", history.Show, seq)
			}
		}, ""},
		{"after a resync everything must be shown again", func(b *book) { b.view(45*second, "bob", history.Resync, 0) }, "I7"},
		{"a stranger", func(b *book) { b.view(45*second, "cat", history.Show, 2) }, "I17"},
		{"twice on one device", func(b *book) { b.view(31*second+1, "bob", history.Show, 3) }, "I8"},
		{"an old message on a new connection", func(b *book) {
			b.view(45*second, "bob", history.Connect, 0)
			b.view(46*second, "bob", history.Show, 2)
		}, "I8 I9"},
		{"a hole under the segment allocator", func(b *book) {
			b.run.Allocator = "segment"
			for i := range b.list {
				r := &b.list[i].Record
				if r.Seq == 3 && r.Kind != history.Span {
					r.Seq = 1001
				}
			}
		}, ""},
		{"a hole under the transaction allocator", func(b *book) {
			for i := range b.list {
				r := &b.list[i].Record
				if r.Seq == 3 && r.Kind != history.Span {
					r.Seq = 1001
				}
			}
		}, "I4"},
		{"an answer that names another predecessor", func(b *book) { b.edit(history.Return, 3, func(r *history.Record) { r.Prev = 1 }) }, "I1"},
		{"slow under a fault", func(b *book) {
			b.add("faults.log", history.Record{T: 30 * second, Kind: history.Fault, Name: "kill"})
			b.add("faults.log", history.Record{T: 31 * second, Kind: history.Fault, Name: "kill", Stop: true})
			b.run.Healed = 32 * second
			b.edit(history.Return, 3, func(r *history.Record) { r.T = 35 * second })
		}, ""},
		{"a head that no sync told of", func(b *book) {
			for t, ack := range map[int64]string{45: history.AckOK, 46: history.AckFail} {
				b.add("1.view", history.Record{T: t * second, Kind: history.Digest, User: "bob", Device: "p", Ack: ack})
			}
		}, "I20"},
		{"slow without a fault", func(b *book) { b.edit(history.Return, 3, func(r *history.Record) { r.T = 35 * second }) }, "I18"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			b := first()
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

// Whatever is missing, it is an error and never a pass.
func TestNothingToJudge(t *testing.T) {
	tests := []struct {
		name string
		edit func(*book)
		want string
	}{
		{"no sends", func(b *book) { b.drop(func(r *history.Record) bool { return r.CMID != "" && r.Kind != history.Row }) }, "no sends"},
		{"no views", func(b *book) { b.drop(func(r *history.Record) bool { return r.Device == "p" && r.CMID == "" }) }, "no views"},
		{"no log", func(b *book) { b.drop(func(r *history.Record) bool { return r.Kind == history.Row }) }, "no final log"},
		{"no members", func(b *book) { b.drop(func(r *history.Record) bool { return r.Kind == history.Span }) }, "no members"},
		{"healed of nothing", func(b *book) { b.run.Healed = second }, "no faults"},
		{"faults without an end", func(b *book) { b.add("faults.log", history.Record{Kind: history.Fault, Name: "kill"}) }, "healed"},
		{"a run without an end", func(b *book) { b.run.Ended = 0 }, "ended"},
		{"an unknown allocator", func(b *book) { b.run.Allocator = "dice" }, "dice"},
		{"an unknown kind", func(b *book) { b.add("1.view", history.Record{Kind: "glimpse", User: "ann", Device: "p"}) }, "glimpse"},
		{"an unknown answer", func(b *book) { b.answer(1, "a", "perhaps", "") }, "perhaps"},
		{"an invoke without hash", func(b *book) { b.invoke(1, 1, "z", "") }, "hash"},
		{"a row of nobody", func(b *book) {
			b.add("db.final", history.Record{Kind: history.Row, Conv: "g", Seq: 4, Entry: "message"})
		}, "sender"},
		{"an unknown file", func(b *book) { b.add("notes", history.Record{Kind: history.Row}) }, "notes"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			b := first()
			tt.edit(b)
			made := verifytest.Made{Run: b.run, Entries: b.list}
			_, err := verify.New(made.Run, made.Records())
			if !errors.Is(err, verify.ErrNothing) || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("New() = %v, want ErrNothing about %q", err, tt.want)
			}
		})
	}
	if _, err := verify.Load(t.TempDir()); !errors.Is(err, verify.ErrNothing) {
		t.Errorf("Load of an empty folder: %v", err)
	}
}

// A bad history must not be mutated: what would a caught mutant prove?
func TestOnlyGoodHistoriesAreMutated(t *testing.T) {
	b := first()
	b.view(45*second, "cat", history.Show, 2)
	made := verifytest.Made{Run: b.run, Entries: b.list}
	if _, err := verify.Mutate(load(t, &made), verify.MutateOptions{}); !errors.Is(err, verify.ErrNotGood) {
		t.Errorf("Mutate() = %v, want ErrNotGood", err)
	}
}

// A search that runs out of time is counted and said, not passed over.
func TestUndecidedWindowsAreReported(t *testing.T) {
	made := verifytest.Good(3, verifytest.Size{Messages: 2000, Conversations: 2})
	r := verify.Judge(load(t, made), verify.Options{SearchFor: time.Nanosecond})
	var b strings.Builder
	r.Text(&b)
	if r.Counts.Undecided == 0 || !strings.Contains(b.String(), "ran out of time") {
		t.Errorf("%d undecided:\n%s", r.Counts.Undecided, b.String())
	}
}

// The report says in each form what was found and which records show it.
func TestReportForms(t *testing.T) {
	b := first()
	b.view(45*second, "cat", history.Show, 2)
	r := b.judge(t)
	var text, html bytes.Buffer
	r.Text(&text)
	if err := r.HTML(&html); err != nil {
		t.Fatal(err)
	}
	raw, err := json.Marshal(r)
	if err != nil {
		t.Fatal(err)
	}
	for form, s := range map[string]string{"text": text.String(), "html": html.String(), "json": string(raw)} {
		for _, want := range []string{"I17", "shown to a stranger", "1.view", "cat"} {
			if !strings.Contains(s, want) {
				t.Errorf("the %s report lacks %q", form, want)
			}
		}
	}
	for _, outside := range []string{"http://", "https://", "src=", "@import"} {
		if strings.Contains(html.String(), outside) {
			t.Errorf("the HTML report is not self-contained: %s", outside)
		}
	}
}

// A folder is judged like the records it was written from.
func TestLoad(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "history")
	made := verifytest.Good(5, verifytest.Size{})
	if err := made.Write(dir); err != nil {
		t.Fatal(err)
	}
	h, err := verify.Load(dir)
	if err != nil {
		t.Fatal(err)
	}
	fromFolder, fromMemory := verify.Judge(h, verify.Options{}), verify.Judge(load(t, made), verify.Options{})
	a, _ := json.Marshal(fromFolder)
	b, _ := json.Marshal(fromMemory)
	if !bytes.Equal(a, b) || !fromFolder.Good {
		t.Errorf("folder %s\nmemory %s", a, b)
	}
	if err := os.WriteFile(filepath.Join(dir, "db.final"), []byte("{\"k\":\"row\"\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	if _, err := verify.Load(dir); !errors.Is(err, verify.ErrNothing) || !strings.Contains(err.Error(), "db.final:1") {
		t.Errorf("Load of a torn file: %v", err)
	}
}

// 200,000 records are judged in a few seconds also on a busy machine.
func TestManyRecords(t *testing.T) {
	made := verifytest.Good(7, verifytest.Size{Users: 100, Conversations: 50, Members: 3, Messages: 20_000, Faults: 5})
	if len(made.Entries) < 200_000 {
		t.Fatalf("only %d records", len(made.Entries))
	}
	dir := filepath.Join(t.TempDir(), "history")
	if err := made.Write(dir); err != nil {
		t.Fatal(err)
	}
	var r *verify.Report
	took := machine.Took(func() {
		h, err := verify.Load(dir)
		if err != nil {
			t.Fatal(err)
		}
		r = verify.Judge(h, verify.Options{})
	})
	if took > 30*time.Second {
		t.Errorf("%d records took %v", len(made.Entries), took)
	}
	if !r.Good {
		t.Error(r.Verdict())
	}
}

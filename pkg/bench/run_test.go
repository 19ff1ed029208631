package bench

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/imdhq/imd/pkg/history"
	"github.com/imdhq/imd/pkg/testenv/machine"
	"github.com/imdhq/imd/sdk/go/gen/clientv1"
	"github.com/imdhq/imd/sdk/go/protocol"
)

// Every scenario runs to its end in both encodings, without an error.
func TestScenarios(t *testing.T) {
	for name := range scenarios {
		for _, enc := range []protocol.Encoding{protocol.Proto, protocol.JSON} {
			t.Run(name+"/"+enc.String(), func(t *testing.T) {
				t.Parallel()
				f := newFake(t)
				o := f.options(name, 8)
				o.Encoding, o.AtOnce = enc, true
				res, err := Run(t.Context(), o)
				if err != nil {
					t.Fatal(err)
				}
				// What a slow machine did not come to begin is no error of the scenario.
				res.Failed -= res.Errors["not begun"]
				delete(res.Errors, "not begun")
				if res.Operations == 0 || res.Failed != 0 || len(res.Errors) != 0 || res.Latency[res.Primary].Count == 0 || res.Ended != "" {
					t.Errorf("%+v", res)
				}
				if raw, err := json.Marshal(res); err != nil || len(raw) == 0 {
					t.Error(err)
				}
			})
		}
	}
}

// One message after the other: each begins when all have the last one.
func TestWholeFanout(t *testing.T) {
	f := newFake(t)
	o := f.options("fanout", 6)
	o.Whole = true
	res, err := Run(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	if res.Primary != "whole" || res.Operations == 0 || res.Failed != 0 {
		t.Errorf("%+v", res)
	}
	if n := res.Deliveries - 5*res.Operations; n < -5 || n > 5 {
		t.Errorf("%d deliveries of %d messages to 5 members", res.Deliveries, res.Operations)
	}
}

// Under a rate, a server that stalls makes every message late that should have
// left meanwhile, although none could leave: the distribution tells of the
// stall, and the offered rate is kept.
func TestStallsAreNotOmitted(t *testing.T) {
	f := newFake(t)
	const stall = 600 * time.Millisecond
	f.judge = func(n int, _ *fakeConn, _ *clientv1.Send) *clientv1.SendAck {
		if n == 50 {
			time.Sleep(stall) // the whole server stands still
		}
		return nil
	}
	o := f.options("send", 2)
	o.Rate, o.Duration = 200, 1500*time.Millisecond
	var res *Result
	var err error
	began := time.Now()
	ran := machine.Took(func() { res, err = Run(t.Context(), o) })
	if err != nil {
		t.Fatal(err)
	}
	stood := time.Since(began) - ran // the machine
	l := res.Latency["ack"]
	if want := int64(300); l.Count < want-5 || l.Count > want+5 {
		t.Errorf("%d latencies, want %d", l.Count, want)
	}
	// 120 of 300 messages were due during the stall; half of them waited more
	// than half of it.
	if l.P90 < float64(stall.Milliseconds())/2 || l.P50 > 100+float64(stood.Milliseconds()) {
		t.Errorf("p50 %.0f ms, p90 %.0f ms, on a machine that did other things for %v", l.P50, l.P90, stood)
	}
}

// What could not begin, and what has no answer, is in the result.
func TestWhatHasNoAnswerCounts(t *testing.T) {
	f := newFake(t)
	f.silent = func(n int) bool { return n > 20 }
	o := f.options("send", 2)
	o.Rate, o.Duration, o.Settle = 200, time.Second, 200*time.Millisecond
	res, err := Run(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	// A slow machine begins fewer of the 200; the first 20 are answered.
	if n := res.Errors["unanswered"]; n == 0 || n > sendWindow || n+res.Errors["not begun"] < 130+sendWindow {
		t.Errorf("errors %v", res.Errors)
	}
	if l := res.Latency["ack"]; l.Count < 195 || l.P50 < 300 {
		t.Errorf("%d latencies, p50 %.0f ms", l.Count, l.P50)
	}
	if res.Achieved > 50 {
		t.Errorf("%.0f/s achieved", res.Achieved)
	}
}

// Sends whose time nobody keeps, as those of the feeder in slow, count as well.
func TestWhatHasNoAnswerCountsWithoutARecorder(t *testing.T) {
	m := &meter{clock: &loop{now: 2 * time.Second}, began: time.Second, end: 3 * time.Second, errors: map[string]int64{}}
	m.late("unanswered", nil, time.Second)
	if m.errors["unanswered"] != 1 || m.fails != 1 {
		t.Errorf("%d failed, errors %v", m.fails, m.errors)
	}
}

// After a refusal the lane goes on from the refused message, in order.
func TestRefusedSendsKeepTheirOrder(t *testing.T) {
	f := newFake(t)
	refused, order := map[string]bool{}, []string{}
	behind := ""
	f.judge = func(n int, _ *fakeConn, s *clientv1.Send) *clientv1.SendAck {
		if behind != "" && s.ClientMessageId != behind {
			return &clientv1.SendAck{Status: clientv1.Ack_ACK_RETRY, Error: protocol.NewError(protocol.ReasonBehind, "", 0)}
		}
		behind = ""
		if n%7 == 0 && !refused[s.ClientMessageId] {
			refused[s.ClientMessageId], behind = true, s.ClientMessageId
			return &clientv1.SendAck{Status: clientv1.Ack_ACK_RETRY, Error: protocol.NewError(protocol.ReasonBusy, "", 5*time.Millisecond)}
		}
		if s.Resend != (refused[s.ClientMessageId] || slices.Contains(f.sends[:n-1], s.ClientMessageId)) {
			t.Errorf("resend of %s is %v", s.ClientMessageId, s.Resend)
		}
		order = append(order, s.ClientMessageId)
		return nil
	}
	o := f.options("send", 2)
	o.Outstanding = 10
	rec, dir := recording(t)
	o.Record = rec
	res, err := Run(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if res.Errors["refused: busy"] == 0 || res.Failed != 0 || len(order) < 20 {
		t.Errorf("%d stored, errors %v", len(order), res.Errors)
	}
	h := readHistory(t, rec, dir)
	if got := h.firstInvokes(); !slices.Equal(got[:len(order)], order) {
		t.Error("messages are stored in another order than they were sent in")
	}
}

// An answer that comes after its message was found in the log is recorded: a refusal of
// what is stored is seen by whoever judges.
func TestLateAnswersAreRecorded(t *testing.T) {
	f := newFake(t)
	late := ""
	f.judge = func(n int, c *fakeConn, s *clientv1.Send) *clientv1.SendAck {
		conv := protocol.DirectID(c.user, s.GetToUser())
		if n != 5 || s.GetToUser() == "" {
			return nil
		}
		late = s.ClientMessageId
		e, _ := f.conv(conv, c.user, s.GetToUser()).append(f, c.user, s)
		for o := range f.online {
			o.write(&clientv1.ServerFrame{Kind: &clientv1.ServerFrame_Deliver{Deliver: &clientv1.Deliver{ConversationId: conv, Entries: []*clientv1.Entry{e}}}})
		}
		return &clientv1.SendAck{Status: clientv1.Ack_ACK_FAIL, Error: protocol.NewError(protocol.ReasonNotMember, "", 0)}
	}
	o := f.options("send", 2)
	rec, dir := recording(t)
	o.Record = rec
	res, err := Run(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	if res.Failed != 0 {
		t.Fatal(res.Errors)
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if got := readHistory(t, rec, dir).answers[late]; !slices.Equal(got, []string{history.AckOK, history.AckFail}) {
		t.Errorf("recorded are %v", got)
	}
}

// Devices told to come back do so, and send again, in order, what was not
// answered; everything is shown once.
func TestReconnect(t *testing.T) {
	f := newFake(t)
	f.cut = 30
	f.lose, f.heals = func(_ string, seq int64) bool { return seq%9 == 0 }, true
	o := f.options("send", 4)
	o.Outstanding, o.Reconnect, o.AtOnce = 4, true, true
	rec, dir := recording(t)
	o.Record = rec
	res, err := Run(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	if res.Errors["connection: connection_lost"] != 1 || res.Failed != 0 {
		t.Errorf("errors %v", res.Errors)
	}
	h := readHistory(t, rec, dir)
	if h.count[history.Disconnect] != 1 || h.count[history.Connect] != 5 || h.count[history.Settled] != 4 || h.unknown == 0 {
		t.Errorf("records: %v", h.count)
	}
	h.everythingIsShownOnce(t)
}

func TestServerGoesAway(t *testing.T) {
	f := newFake(t)
	away := make(chan struct{})
	f.judge = func(n int, _ *fakeConn, _ *clientv1.Send) *clientv1.SendAck {
		if n == 50 { // all are connected
			f.refuse.Store(true)
			go func() { defer close(away); f.drop() }()
		}
		return nil
	}
	o := f.options("send", 4)
	o.Duration = time.Minute
	res, err := Run(t.Context(), o)
	<-away
	if err == nil || res == nil || res.Operations == 0 || res.Ended == "" || !strings.Contains(err.Error(), "the server went away") {
		t.Errorf("%v, %+v", err, res)
	}
}

func TestNobodyListens(t *testing.T) {
	for _, scenario := range []string{"send", "connect"} {
		o := newFake(t).options(scenario, 4)
		o.Addresses = []netip.AddrPort{deadAddr(t)}
		if res, err := Run(t.Context(), o); res != nil || !errors.Is(err, errRefused) {
			t.Errorf("%s: %v, %v", scenario, res, err)
		}
	}
}

func TestInterrupted(t *testing.T) {
	f := newFake(t)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	f.judge = func(n int, _ *fakeConn, _ *clientv1.Send) *clientv1.SendAck {
		if n == 50 {
			cancel()
		}
		return nil
	}
	o := f.options("mix", 8)
	o.Duration = time.Minute
	var res *Result
	var err error
	took := machine.Took(func() { res, err = Run(ctx, o) })
	if err == nil || res == nil || res.Operations == 0 || res.Seconds > 30 {
		t.Errorf("%v, %+v", err, res)
	}
	if took > 10*time.Second {
		t.Errorf("it took %v", took)
	}
}

// A device whose token is not taken ends the run at once.
func TestLoginRefused(t *testing.T) {
	f := newFake(t)
	f.refuse.Store(true)
	o := f.options("connect", 3)
	if _, err := Run(t.Context(), o); err == nil || !strings.Contains(err.Error(), "cannot log in") {
		t.Error(err)
	}
}

func TestUnknownScenario(t *testing.T) {
	if _, err := Run(t.Context(), Options{Scenario: "nothing"}); err == nil {
		t.Error("it ran")
	}
}

// A recorded run of mix shows everything once, and strangers nothing.
func TestRecordedMix(t *testing.T) {
	f := newFake(t)
	f.lose, f.heals = func(_ string, seq int64) bool { return seq%7 == 3 }, true
	o := f.options("mix", 24)
	o.Users = 12
	rec, dir := recording(t)
	o.Record = rec
	res, err := Run(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	if res.Latency["refusal"].Count == 0 || res.Failed != 0 {
		t.Errorf("errors %v", res.Errors)
	}
	h := readHistory(t, rec, dir)
	h.everythingIsShownOnce(t)
	if h.count[history.Settled] != 24 {
		t.Errorf("records: %v", h.count)
	}
}

// story is what the tests look at in a history.
type story struct {
	answers map[string][]string // to each send
	count   map[history.Kind]int
	unknown int
	invokes []string
	rows    map[string][]history.Record
	spans   map[string][]string // users by conversation
	shown   map[[3]string][]history.Record
	devices map[string][]string
}

func recording(t *testing.T) (*history.Recorder, string) {
	dir := t.TempDir() + "/history"
	rec, err := history.NewRecorder(dir)
	if err != nil {
		t.Fatal(err)
	}
	return rec, dir
}

func readHistory(t *testing.T, rec *history.Recorder, dir string) *story {
	t.Helper()
	if err := rec.Close(history.Run{}); err != nil {
		t.Fatal(err)
	}
	h := &story{count: map[history.Kind]int{}, answers: map[string][]string{}, rows: map[string][]history.Record{}, spans: map[string][]string{}, shown: map[[3]string][]history.Record{}, devices: map[string][]string{}}
	last := map[string]int64{}
	_, err := history.Read(dir, func(file string, r *history.Record) error {
		h.count[r.Kind]++
		switch r.Kind {
		case history.Invoke:
			h.invokes = append(h.invokes, r.CMID)
		case history.Return:
			if r.Ack == history.AckUnknown {
				h.unknown++
			}
			h.answers[r.CMID] = append(h.answers[r.CMID], r.Ack)
		case history.Row:
			h.rows[r.Conv] = append(h.rows[r.Conv], *r)
		case history.Span:
			h.spans[r.Conv] = append(h.spans[r.Conv], r.User)
		case history.Show:
			k := [3]string{r.User, r.Device, r.Conv}
			h.shown[k] = append(h.shown[k], *r)
		case history.Settled:
			h.devices[r.User] = append(h.devices[r.User], r.Device)
		}
		if r.T < last[file] {
			return fmt.Errorf("time goes back from %d to %d", last[file], r.T)
		}
		last[file] = r.T
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return h
}

// firstInvokes are the client message ids in the order in which they were first
// sent.
func (h *story) firstInvokes() (ids []string) {
	seen := map[string]bool{}
	for _, id := range h.invokes {
		if !seen[id] {
			seen[id] = true
			ids = append(ids, id)
		}
	}
	return ids
}

// everythingIsShownOnce compares what each device of a direct conversation
// showed with its log.
func (h *story) everythingIsShownOnce(t *testing.T) {
	t.Helper()
	for conv, rows := range h.rows {
		for _, user := range h.spans[conv] {
			for _, dev := range h.devices[user] {
				shown := h.shown[[3]string{user, dev, conv}]
				same := slices.EqualFunc(rows, shown, func(a, b history.Record) bool { return a.Seq == b.Seq && a.MID == b.MID && a.Hash == b.Hash })
				if !same {
					t.Errorf("%s on %s showed %d of the %d entries of %s", user, dev, len(shown), len(rows), conv)
				}
			}
		}
	}
}

func TestCompareAndReport(t *testing.T) {
	f := newFake(t)
	o := f.options("send", 4)
	o.Duration = time.Minute
	o.Rate = 300
	told := 0
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	o.Progress = func(Progress) {
		if told++; told == 4 {
			cancel()
		}
	}
	a, err := Run(ctx, o)
	if a == nil || len(a.Series) < 3 || told < 4 || a.Ended == "" {
		t.Fatalf("%v, %+v", err, a)
	}
	a.Ended = ""
	raw, _ := json.Marshal(a)
	var b Result
	if err := json.Unmarshal(raw, &b); err != nil {
		t.Fatal(err)
	}
	raw, _ = json.Marshal(a)
	var a2 Result
	_ = json.Unmarshal(raw, &a2)
	if c := Compare(&a2, &b); len(c.Notes) != 0 || len(c.Rows) < 4 || c.Rows[0].Ratio != 1 {
		t.Errorf("the same run differs: %+v", c)
	}
	b.Machine.CPUs, b.Options["rate"], b.Achieved, b.Ended = 99, 5.0, 2*a.Achieved, "early"
	if c := Compare(&a2, &b); len(c.Notes) != 3 || c.Rows[0].Ratio < 1.99 || c.Rows[0].Ratio > 2.01 {
		t.Errorf("%+v", c)
	}
	var page bytes.Buffer
	if err := a.HTML(&page); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"imd bench send", "<svg", "Latency by percentile", "prefers-color-scheme:dark", "</html>"} {
		if !strings.Contains(page.String(), want) {
			t.Errorf("the report has no %q", want)
		}
	}
	for _, bad := range []string{"%!", "NaN", "<script", "http:", "https:"} {
		if strings.Contains(page.String(), bad) {
			t.Errorf("the report has %q", bad)
		}
	}
	for _, plot := range []string{a.OverTime(60, 10), a.Distribution(60, 10)} {
		if strings.Count(plot, "\n") != 13 || strings.Contains(plot, "NaN") {
			t.Errorf("plot:\n%s", plot)
		}
	}
}

func TestMedian(t *testing.T) {
	of := func(v ...float64) float64 {
		var p []OverheadPair
		for _, r := range v {
			p = append(p, OverheadPair{Ratio: r})
		}
		return median(p)
	}
	if of(3, 1, 2) != 2 || of(1, 4, 2, 3) != 2.5 {
		t.Error("not the median")
	}
}

// Spans follow the entries that add and remove members.
func TestSpans(t *testing.T) {
	change := func(seq int64, a clientv1.MemberAction, start int64, users ...string) *clientv1.Entry {
		return &clientv1.Entry{Seq: seq, Kind: clientv1.EntryKind_ENTRY_KIND_MEMBER_CHANGE, MemberChange: &clientv1.MemberChange{Action: a, UserIds: users, Start: start}}
	}
	s := spans{open: map[string]int64{}}
	s.take(change(1, clientv1.MemberAction_MEMBER_ACTION_ADDED, 0, "a", "b"))
	s.take(change(5, clientv1.MemberAction_MEMBER_ACTION_ADDED, 4, "c", "a"))
	s.take(change(9, clientv1.MemberAction_MEMBER_ACTION_REMOVED, 0, "b"))
	s.take(change(12, clientv1.MemberAction_MEMBER_ACTION_ADDED, 11, "b"))
	s.take(change(14, clientv1.MemberAction_MEMBER_ACTION_LEFT, 0, "c"))
	want := []span{{"a", 0, 0}, {"b", 0, 9}, {"b", 11, 0}, {"c", 4, 14}}
	if got := s.all(); !slices.Equal(got, want) {
		t.Errorf("%v, want %v", got, want)
	}
}

// Pairs take turns, and each recording has a folder of its own.
func TestMeasureOverhead(t *testing.T) {
	f := newFake(t)
	o := f.options("send", 4)
	o.Processes = map[string]int{"imd": os.Getpid()}
	o.Duration = 300 * time.Millisecond
	folders, removed := 0, 0
	all, err := MeasureOverhead(t.Context(), o, 2, func() (string, func(), error) {
		folders++
		return fmt.Sprintf("%s/%d", t.TempDir(), folders), func() { removed++ }, nil
	})
	if err != nil || len(all.Pairs) != 2 || all.Median <= 0 || folders != 2 || removed != 2 {
		t.Errorf("%+v, %v, %d folders", all, err, folders)
	}
	o.Processes = nil
	if _, err := MeasureOverhead(t.Context(), o, 1, nil); err == nil {
		t.Error("measured without a server process")
	}
}

package lane

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/imdhq/imd/pkg/im"
	"github.com/imdhq/imd/pkg/store"
	"github.com/imdhq/imd/sdk/go/gen/clientv1"
)

// bench drives one lane by hand.
type bench struct {
	t       *testing.T
	l       *Lane
	now     time.Time
	out     *Work
	commits []Committed
	wake    time.Duration
	seq     im.Seq
	ids     im.MessageID
}

func newBench(t *testing.T) *bench {
	return &bench{t: t, l: New(), now: time.UnixMilli(1_800_000_000_000)}
}

// benchRun is a run with its answers.
type benchRun struct {
	*Run
	got []string // by send: "ok", "dup", or the reason
}

func (b *bench) step(ev Event) {
	b.t.Helper()
	fx := b.l.Step(b.now, ev)
	for _, a := range fx.Answers {
		a.Run.Reply(a.At, a.Verdict)
	}
	for _, s := range fx.Settled {
		s.Run.Settled(s.Result, s.Err)
	}
	for _, ch := range fx.Probed {
		close(ch)
	}
	b.commits = append(b.commits, fx.Committed...)
	b.wake = fx.Wake
	if fx.Work != nil {
		if b.out != nil {
			b.t.Fatal("a second call while one is out")
		}
		b.out = fx.Work
	}
}

// run makes a run of sends; an id is a letter and means one message.
func (b *bench) run(conv string, ids string, size int) *benchRun {
	r := &benchRun{Run: &Run{Conv: im.ConversationID(conv)}, got: make([]string, len(ids))}
	for _, id := range ids {
		b.ids++
		r.Sends = append(r.Sends, Send{Size: size, Row: store.AppendRow{
			Conversation: r.Conv, Sender: "alice", ClientMessageID: im.ClientMessageID(id), MessageID: b.ids,
		}})
	}
	r.Reply = func(at int, v Verdict) {
		if r.got[at] != "" {
			b.t.Fatalf("send %d answered twice: %s, then %v", at, r.got[at], v)
		}
		switch {
		case v.Err != nil:
			r.got[at] = im.ReasonName(v.Err.Reason)
		case v.Duplicate:
			r.got[at] = "dup"
		default:
			r.got[at] = "ok"
		}
	}
	return r
}

func (b *bench) submit(conv, ids string) *benchRun {
	b.t.Helper()
	r := b.run(conv, ids, 100)
	b.step(Submit{r.Run})
	return r
}

// many submits a run of n sends.
func (b *bench) many(conv string, n, size int) *benchRun {
	b.t.Helper()
	ids := make([]rune, n)
	for i := range ids {
		ids[i] = rune(0x1000 + i)
	}
	r := b.run(conv, string(ids), size)
	r.got = make([]string, n)
	b.step(Submit{r.Run})
	return r
}

// done ends the call that is out.
func (b *bench) done(err error) {
	b.t.Helper()
	w := b.out
	b.out = nil
	ev := Result{Err: err, Took: time.Millisecond}
	if err == nil && w.Change == nil {
		for _, r := range w.rows {
			b.seq++
			ev.Results = append(ev.Results, store.AppendResult{MessageID: r.Row.MessageID, Seq: b.seq})
		}
	}
	b.step(ev)
}

// outIDs is what the call that is out carries.
func (b *bench) outIDs() string {
	if b.out == nil {
		return ""
	}
	s := ""
	for _, r := range b.out.rows {
		s += string(r.Row.ClientMessageID)
	}
	return s
}

func (b *bench) wantOut(want string) {
	b.t.Helper()
	if got := b.outIDs(); got != want {
		b.t.Fatalf("out: %q, want %q", got, want)
	}
}

func (r *benchRun) want(t *testing.T, want ...string) {
	t.Helper()
	if fmt.Sprint(r.got) != fmt.Sprint(want) {
		t.Fatalf("answers %q, want %q", r.got, want)
	}
}

func TestLaneGathersWhileABatchIsOut(t *testing.T) {
	b := newBench(t)
	first := b.submit("g_1", "a")
	b.wantOut("a")
	second, third := b.submit("g_2", "bc"), b.submit("g_1", "d")
	first.want(t, "")
	b.done(nil)
	first.want(t, "ok")
	b.wantOut("bcd")
	b.done(nil)
	second.want(t, "ok", "ok")
	third.want(t, "ok")
	if !b.l.Idle() || len(b.l.pending) != 0 || len(b.commits) != 4 {
		t.Fatalf("idle %v, pending %d, commits %d", b.l.Idle(), len(b.l.pending), len(b.commits))
	}
}

func TestLaneCutsARunAndKeepsItsTailFirst(t *testing.T) {
	b := newBench(t)
	b.submit("g_0", "x")
	long := b.many("g_1", maxShare+10, 10)
	b.submit("g_2", "y")
	b.done(nil)
	if got := len(b.out.rows); got != maxShare+1 || b.out.rows[maxShare].Row.Conversation != "g_2" {
		t.Fatalf("batch of %d rows, want the share of the long run and the other conversation", got)
	}
	later := b.submit("g_1", "z")
	b.now = b.now.Add(maxRest) // the first batch of the long run took no time
	b.done(nil)
	b.step(Tick{})
	b.now = b.now.Add(maxRest)
	b.step(Tick{})
	if got := len(b.out.rows); got != 11 || b.out.rows[10].Row.ClientMessageID != "z" {
		t.Fatalf("batch of %d rows", got)
	}
	b.done(nil)
	later.want(t, "ok")
	for i, g := range long.got {
		if g != "ok" {
			t.Fatalf("send %d: %q", i, g)
		}
	}
	for i := 1; i < len(b.commits); i++ {
		if b.commits[i].Result.Seq <= b.commits[i-1].Result.Seq {
			t.Fatal("commits out of order")
		}
	}
}

// A conversation that is written to as fast as it goes leaves the lane to others
// for a while after each of its batches.
func TestAHotConversationRests(t *testing.T) {
	b := newBench(t)
	took := func(d time.Duration) {
		t.Helper()
		w := b.out
		b.out, b.now = nil, b.now.Add(d)
		ev := Result{Took: d}
		for _, r := range w.rows {
			b.seq++
			ev.Results = append(ev.Results, store.AppendResult{MessageID: r.Row.MessageID, Seq: b.seq})
		}
		b.step(ev)
	}
	hot := b.many("g_hot", 3*maxShare, 10)
	if got := len(b.out.rows); got != maxShare {
		t.Fatalf("%d rows in a batch, want the share of one conversation", got)
	}
	took(4 * time.Millisecond)
	if b.out != nil || b.wake != restTimes*4*time.Millisecond {
		t.Fatalf("out %v, wake after %v", b.out, b.wake)
	}
	for range 3 { // others go at once
		b.submit("g_1", "a")
		b.wantOut("a")
		took(time.Millisecond)
	}
	change := &Run{Conv: "g_hot", Change: &store.Change{}, Settled: func(store.ChangeResult, error) {}}
	b.step(Submit{change}) // stays behind what waits
	if b.out != nil {
		t.Fatal("a change overtook the sends of its conversation")
	}
	b.now = b.now.Add(b.wake)
	b.step(Tick{})
	if got := len(b.out.rows); got != maxShare {
		t.Fatalf("%d rows after the rest", got)
	}
	took(100 * time.Millisecond)
	if b.wake != maxRest {
		t.Fatalf("a rest of %v", b.wake)
	}
	b.now = b.now.Add(b.wake)
	b.step(Tick{})
	took(time.Millisecond)
	b.now = b.now.Add(b.wake)
	b.step(Tick{})
	if b.out == nil || b.out.Change != change {
		t.Fatal("the change does not follow")
	}
	took(0)
	if !b.l.Idle() || slices.Contains(hot.got, "") {
		t.Fatalf("idle %v, answers %q", b.l.Idle(), hot.got)
	}
	b.many("g_cool", hotRows-1, 10)
	took(time.Millisecond)
	b.submit("g_cool", "x")
	b.wantOut("x")
}

func TestLaneEndsABatchByBytes(t *testing.T) {
	b := newBench(t)
	b.submit("g_0", "x")
	b.many("g_1", 30, 16<<10)
	b.done(nil)
	if got := len(b.out.rows); got != 16 {
		t.Fatalf("batch of %d rows of 16 KiB, want 16", got)
	}
}

func TestLaneRefusesWhatDoesNotFit(t *testing.T) {
	b := newBench(t)
	b.submit("g_0", "x")
	r := b.many("g_1", maxQueueRows+3, 1)
	if r.got[maxQueueRows-1] != "" || r.got[maxQueueRows] != "busy" || r.got[maxQueueRows+1] != "behind" || r.got[maxQueueRows+2] != "behind" {
		t.Fatalf("answers %q", r.got[maxQueueRows-1:])
	}
	b = newBench(t)
	b.submit("g_0", "x")
	r = b.many("g_1", 5, 1<<20)
	r.want(t, "", "", "", "", "busy")
}

func TestLaneHintFollowsTheRate(t *testing.T) {
	b := newBench(t)
	if got := b.l.hint(); got != 200*time.Millisecond {
		t.Fatalf("hint without a rate: %v", got)
	}
	b.l.rate, b.l.rows = 1000, 500
	if got := b.l.hint(); got != 500*time.Millisecond {
		t.Fatalf("hint: %v", got)
	}
	b.l.rows = 1
	if got := b.l.hint(); got != minHint {
		t.Fatalf("hint: %v", got)
	}
	b.l.rows = 1_000_000
	if got := b.l.hint(); got != maxHint {
		t.Fatalf("hint: %v", got)
	}
}

// Each refusal says when to come again: by itself, or by the table of errors.
func TestLaneRefusesWithATimeToWait(t *testing.T) {
	waits := func(b *bench, cause func(r *benchRun)) {
		t.Helper()
		r := b.run("g_1", "ab", 100)
		answers := 0
		r.Reply = func(_ int, v Verdict) {
			answers++
			if w := im.Wire(v.Err); !w.Retryable || w.RetryAfterMs == 0 || w.Reason == "" {
				t.Errorf("refused with %v", w)
			}
		}
		cause(r)
		if answers != 2 {
			t.Errorf("%d answers", answers)
		}
	}
	b := newBench(t) // the store is away
	waits(b, func(r *benchRun) {
		b.step(Submit{r.Run})
		b.done(im.Errorf(clientv1.Reason_REASON_UNAVAILABLE, "store", ""))
	})
	b = newBench(t) // a fault of the store at one row
	waits(b, func(r *benchRun) {
		b.step(Submit{r.Run})
		b.done(errors.New("fault"))
		b.done(errors.New("fault"))
	})
	b = newBench(t) // the caller's patience
	waits(b, func(r *benchRun) { b.step(Submit{r.Run}); b.step(Expire{r.Run}) })
	b = newBench(t) // too old
	waits(b, func(r *benchRun) {
		b.submit("g_0", "x")
		b.step(Submit{r.Run})
		b.now = b.now.Add(maxQueueAge + 1)
		b.done(nil)
	})
	b = newBench(t) // no room
	waits(b, func(r *benchRun) {
		b.submit("g_0", "x")
		b.many("g_2", maxQueueRows, 1)
		b.step(Submit{r.Run})
	})
	b = newBench(t) // held by somebody else
	waits(b, func(r *benchRun) { b.step(Submit{r.Run}); b.done(held("g_1")) })
	b = newBench(t) // refused by the store row by row
	waits(b, func(r *benchRun) {
		b.step(Submit{r.Run})
		b.out = nil
		b.step(Result{Results: []store.AppendResult{{Err: im.Errorf(clientv1.Reason_REASON_UNAVAILABLE, "store", "")}, {}}})
	})
	b = newBench(t) // leaving
	waits(b, func(r *benchRun) { b.step(Drain{}); b.step(Submit{r.Run}) })
	b = newBench(t)
	waits(b, func(r *benchRun) { b.step(Submit{r.Run}); b.step(Stop{}) })
}

func TestLaneRefusesWhatIsTooOld(t *testing.T) {
	b := newBench(t)
	b.submit("g_0", "x")
	old := b.submit("g_1", "ab")
	b.now = b.now.Add(300 * time.Millisecond)
	young := b.submit("g_2", "c")
	b.now = b.now.Add(101 * time.Millisecond)
	b.done(nil)
	old.want(t, "busy", "behind")
	b.wantOut("c")
	b.done(nil)
	young.want(t, "ok")
}

func TestLaneRunsAnUnknownOutcomeAgainInItsPlace(t *testing.T) {
	b := newBench(t)
	r := b.submit("g_1", "ab")
	later := b.submit("g_1", "c")
	for i, want := range []time.Duration{10, 20, 40, 80, 160, 320, 500, 500} {
		b.done(fmt.Errorf("reset: %w", store.ErrUnknownOutcome))
		if b.outIDs() != "ab" || b.out.After != want*time.Millisecond {
			t.Fatalf("try %d: %q after %v", i, b.outIDs(), b.out.After)
		}
	}
	b.done(context.DeadlineExceeded) // unknown too
	b.step(Expire{r.Run})
	r.want(t, "unavailable", "behind")
	again := b.submit("g_1", "abd") // waits for the rows that are out
	// The first try had stored the rows.
	w := b.out
	b.out = nil
	b.step(Result{Results: []store.AppendResult{
		{MessageID: w.rows[0].Row.MessageID, Seq: 1, Duplicate: true},
		{MessageID: 999, Seq: 2, Duplicate: true}, // another node's
	}})
	again.want(t, "dup", "dup", "")
	if len(b.commits) != 2 || !b.commits[0].Own || b.commits[1].Own {
		t.Fatalf("commits %+v", b.commits)
	}
	b.wantOut("cd")
	b.done(nil)
	later.want(t, "ok")
	again.want(t, "dup", "dup", "ok")
}

func TestLaneAnswersOKForRowsFoundStoredByItsOwnRerun(t *testing.T) {
	b := newBench(t)
	r := b.submit("g_1", "a")
	b.done(store.ErrUnknownOutcome)
	w := b.out
	b.out = nil
	b.step(Result{Results: []store.AppendResult{{MessageID: w.rows[0].Row.MessageID, Seq: 7, Duplicate: true}}})
	r.want(t, "ok")
}

// Another node owns the conversation: whatever earlier tries did is done, so
// there is nothing to run again, and the lane goes on.
func TestLaneEndsAnUnknownOutcomeWhenAnotherOwns(t *testing.T) {
	b := newBench(t)
	b.submit("g_0", "_")
	lost, mine := b.submit("g_1", "ab"), b.submit("g_2", "c")
	b.done(nil)
	b.done(store.ErrUnknownOutcome)
	b.done(store.ErrUnknownOutcome)
	notOwner := &im.Error{Reason: clientv1.Reason_REASON_UNAVAILABLE, Err: store.ErrNotOwner}
	w := b.out
	b.out = nil
	ev := Result{}
	for _, row := range w.rows {
		if row.Row.Conversation == "g_1" {
			ev.Results = append(ev.Results, store.AppendResult{Err: notOwner})
		} else {
			ev.Results = append(ev.Results, store.AppendResult{MessageID: row.Row.MessageID, Seq: 7})
		}
	}
	b.step(ev)
	lost.want(t, "unavailable", "behind")
	mine.want(t, "ok")
	if b.out != nil {
		t.Errorf("it runs again: %q", b.outIDs())
	}
	_, changed := change(b, "g_1")
	b.done(store.ErrUnknownOutcome)
	b.done(notOwner)
	if (*changed)[0] != "unavailable" || b.out != nil {
		t.Errorf("a change: %q", *changed)
	}
}

func TestLaneFindsThePoisonousRow(t *testing.T) {
	for name, tt := range map[string]struct {
		err  error
		want string
		rest string
	}{
		"definite, about the row": {im.Errorf(clientv1.Reason_REASON_BAD_REQUEST, "store", "encoding"), "bad_request", "ok"},
		"without a reason":        {errors.New("constraint"), "unavailable", "behind"},
	} {
		t.Run(name, func(t *testing.T) {
			b := newBench(t)
			b.submit("g_0", "_")
			before, spoilt, other := b.submit("g_1", "ab"), b.submit("g_2", "cxd"), b.submit("g_3", "e")
			b.done(nil)
			for calls := 0; b.out != nil; calls++ {
				if calls > 10 {
					t.Fatal("the search does not end")
				}
				bad := false
				for _, r := range b.out.rows {
					bad = bad || r.Row.ClientMessageID == "x"
				}
				if bad {
					b.done(tt.err)
				} else {
					b.done(nil)
				}
			}
			before.want(t, "ok", "ok")
			spoilt.want(t, "ok", tt.want, tt.rest)
			other.want(t, "ok")
		})
	}
}

func TestLaneDoesNotSearchLongInAStoreThatIsAway(t *testing.T) {
	b := newBench(t)
	b.submit("g_0", "x")
	r := b.many("g_1", 200, 10)
	b.done(nil)
	calls := 0
	for ; b.out != nil; calls++ {
		b.done(errors.New("disk"))
	}
	if calls > searchFailures+1 {
		t.Fatalf("%d calls", calls)
	}
	for i, g := range r.got {
		if g != "unavailable" && g != "behind" {
			t.Fatalf("send %d: %q", i, g)
		}
	}
}

func TestLaneRefusesAWholeBatchWhenTheStoreIsAway(t *testing.T) {
	b := newBench(t)
	b.submit("g_0", "x")
	one, two := b.many("g_1", 120, 10), b.submit("g_2", "b")
	b.done(nil)
	b.submit("g_3", "c")
	b.done(im.Errorf(clientv1.Reason_REASON_UNAVAILABLE, "store", "no connection"))
	two.want(t, "unavailable")
	if one.got[0] != "unavailable" || one.got[maxShare-1] != "unavailable" || one.got[119] != "behind" {
		t.Fatalf("answers %q", one.got)
	}
	b.wantOut("c")
}

func TestLaneSearchesAgainWhenTheStoreKeepsRefusing(t *testing.T) {
	b := newBench(t)
	for round, want := range []string{"unavailable", "ok"} {
		b.submit("g_0", "_")
		spoilt, other := b.submit("g_1", "x"), b.submit("g_2", fmt.Sprint(round))
		b.done(nil)
		b.l.aways = round // the first batch of the round went well
		for b.out != nil {
			if strings.Contains(b.outIDs(), "x") {
				b.done(im.Errorf(clientv1.Reason_REASON_UNAVAILABLE, "store", "it says"))
			} else {
				b.done(nil)
			}
		}
		spoilt.want(t, "unavailable")
		other.want(t, want)
	}
}

func TestLaneRefusesBehindARetryableRow(t *testing.T) {
	b := newBench(t)
	b.submit("g_0", "x")
	r := b.many("g_1", maxShare+1, 10)
	b.done(nil)
	res := make([]store.AppendResult, maxShare)
	for i := range res {
		res[i].Seq = im.Seq(i)
	}
	res[3].Err = im.Errorf(clientv1.Reason_REASON_UNAVAILABLE, "store", "locked")
	res[2].Err = im.Errorf(clientv1.Reason_REASON_NOT_MEMBER, "store", "")
	b.out = nil
	b.step(Result{Results: res})
	if r.got[1] != "ok" || r.got[2] != "not_member" || r.got[3] != "unavailable" || r.got[4] != "behind" || r.got[maxShare] != "behind" {
		t.Fatalf("answers %q", r.got)
	}
	if b.out != nil || !b.l.Idle() {
		t.Fatal("a refused tail went to the store")
	}
}

func TestLaneJoinsAResendOfARowOnItsWay(t *testing.T) {
	b := newBench(t)
	b.submit("g_0", "x")
	first := b.submit("g_1", "ab") // queued
	second := b.submit("g_1", "abc")
	b.done(nil)
	b.wantOut("ab") // c waits until it is known what becomes of a and b
	third := b.submit("g_1", "bd")
	b.done(nil)
	first.want(t, "ok", "ok")
	second.want(t, "dup", "dup", "")
	third.want(t, "dup", "")
	b.wantOut("cd")
	b.done(nil)
	if len(b.commits) != 5 {
		t.Fatalf("%d commits, want 5: a row goes out once however many wait", len(b.commits))
	}
}

// Who was told to try again may take the message back, and has to hear of the
// entry like everybody.
func TestLaneTellsASessionThatWasRefused(t *testing.T) {
	b := newBench(t)
	r := b.run("g_1", "ab", 100)
	r.Sends[0].Session, r.Sends[1].Session = "s1", "s1"
	b.step(Submit{r.Run})
	b.step(Expire{r.Run})
	b.done(nil)
	other := b.run("g_1", "c", 100)
	other.Sends[0].Session = "s2"
	b.step(Submit{other.Run})
	b.done(nil)
	for i, want := range []im.SessionID{"", "", "s2"} {
		if got := b.commits[i].Send.Session; got != want {
			t.Errorf("commit %d is kept from %q, want %q", i, got, want)
		}
	}
}

// A row that is refused because its session was displaced says nothing to another
// session that waits for the same row: it may send the message again.
func TestLaneRefusesADisplacedSessionAlone(t *testing.T) {
	b := newBench(t)
	b.submit("g_0", "x")
	old, same, newer := b.run("g_1", "ab", 100), b.run("g_1", "a", 100), b.run("g_1", "ab", 100)
	for run, epoch := range map[*benchRun]uint64{old: 1, same: 1, newer: 2} {
		for i := range run.Sends {
			run.Sends[i].Row.Proof = &store.SessionProof{Login: "l", Device: "d", Epoch: epoch}
		}
	}
	for _, r := range []*benchRun{old, same, newer} {
		b.step(Submit{r.Run})
	}
	b.done(nil)
	b.wantOut("ab")
	refused := store.AppendResult{Err: im.Errorf(clientv1.Reason_REASON_SUPERSEDED, "store", "")}
	b.out = nil
	b.step(Result{Results: []store.AppendResult{refused, refused}})
	old.want(t, "superseded", "superseded")
	same.want(t, "superseded")
	newer.want(t, "unavailable", "behind")
	if !b.l.Idle() {
		t.Error("something is left")
	}
}

func TestLaneKeepsARowForWhoStillWaits(t *testing.T) {
	b := newBench(t)
	b.submit("g_0", "x")
	first := b.submit("g_1", "ab")
	second := b.submit("g_1", "a")
	b.step(Expire{first.Run})
	first.want(t, "unavailable", "behind")
	b.done(nil)
	b.wantOut("a") // b is wanted by nobody
	b.done(nil)
	second.want(t, "dup")
	if !b.l.Idle() || b.l.rows != 0 || b.l.bytes != 0 || len(b.l.pending) != 0 {
		t.Fatalf("left: rows %d, bytes %d, pending %d", b.l.rows, b.l.bytes, len(b.l.pending))
	}
}

func TestLaneBoundsTheWaitersOfARow(t *testing.T) {
	b := newBench(t)
	b.submit("g_1", "a")
	for range maxWaiters - 1 {
		b.submit("g_1", "a").want(t, "")
	}
	b.submit("g_1", "ab").want(t, "busy", "behind")
}

func TestLaneDoesNotJoinOtherContent(t *testing.T) {
	b := newBench(t)
	b.submit("g_1", "a")
	r := b.run("g_1", "a", 100)
	r.Sends[0].Row.BodyHash[0] = 1
	b.step(Submit{r.Run})
	b.done(nil)
	b.wantOut("a") // the store tells that the id was reused
}

func change(b *bench, conv string) (r *Run, answers *[]string) {
	answers = &[]string{}
	r = &Run{Conv: im.ConversationID(conv), Change: &store.Change{MessageID: 77}, Settled: func(_ store.ChangeResult, err error) {
		*answers = append(*answers, im.ReasonName(im.ReasonOf(err)))
	}}
	b.step(Submit{r})
	return r, answers
}

func TestLaneRunsAChangeAloneAndInOrder(t *testing.T) {
	b := newBench(t)
	b.submit("g_0", "x")
	b.submit("g_1", "a")
	_, answers := change(b, "g_1")
	b.submit("g_1", "b")
	b.submit("g_2", "c")
	b.done(nil)
	b.wantOut("ac")
	b.done(nil)
	if b.out.Change == nil {
		t.Fatal("the change is not next")
	}
	b.done(store.ErrUnknownOutcome)
	if b.out.Change == nil || b.out.After != FirstRerun {
		t.Fatal("the change does not run again in its place")
	}
	b.done(nil)
	b.wantOut("b")
	if len(*answers) != 1 || (*answers)[0] != im.ReasonName(0) {
		t.Fatalf("answers %q", *answers)
	}
}

func TestLaneExpiresAChange(t *testing.T) {
	b := newBench(t)
	b.submit("g_0", "x")
	r, answers := change(b, "g_1")
	b.step(Expire{r})
	b.step(Expire{r})
	if len(*answers) != 1 || (*answers)[0] != "unavailable" || b.l.head != nil || b.l.rows != 0 {
		t.Fatalf("answers %q", *answers)
	}
	_, answers = change(b, "g_1")
	b.now = b.now.Add(time.Second)
	b.done(nil)
	if len(*answers) != 1 || (*answers)[0] != "busy" {
		t.Fatalf("answers %q", *answers)
	}
}

func TestLaneProbeWaitsForTheCallThatIsOut(t *testing.T) {
	b := newBench(t)
	closed := func(ch chan struct{}) bool {
		select {
		case <-ch:
			return true
		default:
			return false
		}
	}
	idle, busy := make(chan struct{}), make(chan struct{})
	b.step(Probe{idle})
	b.submit("g_1", "a")
	b.step(Probe{busy})
	if !closed(idle) || closed(busy) {
		t.Fatal("an idle lane answers at once, a busy one later")
	}
	b.done(store.ErrUnknownOutcome)
	if closed(busy) {
		t.Fatal("answered before the outcome is known")
	}
	b.done(nil)
	if !closed(busy) {
		t.Fatal("not answered")
	}
}

func TestLaneDrainsAndStops(t *testing.T) {
	b := newBench(t)
	out, queued := b.submit("g_0", "x"), b.submit("g_1", "ab")
	joined := b.submit("g_1", "abc")
	_, changed := change(b, "g_2")
	b.step(Drain{})
	b.submit("g_1", "d").want(t, "unavailable")
	_, refused := change(b, "g_2")
	if (*refused)[0] != "unavailable" {
		t.Fatalf("change: %q", *refused)
	}
	queued.want(t, "", "")
	b.step(Stop{})
	out.want(t, "unavailable")
	queued.want(t, "unavailable", "behind")
	joined.want(t, "unavailable", "behind", "behind")
	if (*changed)[0] != "unavailable" || b.l.head != nil || b.l.rows != 0 {
		t.Fatalf("change %q, rows %d", *changed, b.l.rows)
	}
}

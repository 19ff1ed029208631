package idgen

import (
	"testing"
	"time"

	"github.com/sony/sonyflake/v2"

	"github.com/imdhq/imd/pkg/im"
)

// lib is the library on a clock of the test. It must never sleep longer than to
// the next millisecond, and never be asked while the clock is behind it.
type lib struct {
	t       testingT
	clock   func() int64
	worker  int
	elapsed int64
	seq     int
}

type testingT interface {
	Fatalf(format string, args ...any)
	Helper()
}

func (l *lib) NextID() (int64, error) {
	now := l.clock()
	if now < l.elapsed {
		l.t.Fatalf("the library is asked at %d, behind its own %d", now, l.elapsed)
	}
	if l.elapsed < now {
		l.elapsed, l.seq = now, 0
	} else if l.seq = (l.seq + 1) & maxSequence; l.seq == 0 {
		l.t.Fatalf("the library would sleep")
	}
	return compose(l.elapsed, l.seq, l.worker), nil
}

const noon = 1_800_000_000_000 // ms since 1970

func testGuard(t testingT, now *int64) *guard {
	g, err := newGuard(7, noon-1, noon+10_000, func(w int) (source, error) {
		return &lib{t: t, clock: func() int64 { return *now }, worker: w}, nil
	})
	if err != nil {
		t.Fatalf("%v", err)
	}
	return g
}

func TestDecide(t *testing.T) {
	tests := []struct {
		name     string
		now      int64 // since noon, where the last id was made
		used     bool  // the last millisecond is used up
		dead     bool
		want     move
		wantWait time.Duration
	}{
		{name: "a later millisecond is fresh", now: 1, want: moveFresh},
		{name: "the same millisecond goes on", want: moveSame},
		{name: "a used up millisecond is waited for", used: true, want: moveWait, wantWait: 500 * time.Microsecond},
		{name: "a little back is waited for", now: -50, want: moveWait, wantWait: 50 * time.Millisecond},
		{name: "back by more is ridden out", now: -51, want: moveRide},
		{name: "while ids last", now: -51, used: true, want: moveRefuse, wantWait: 51 * time.Millisecond},
		{name: "back by 5 s is ridden out", now: -5000, want: moveRide},
		{name: "back by more than 5 s ends the number", now: -5001, want: moveRetire},
		{name: "at the mark ids are made", now: 10_000, want: moveFresh},
		{name: "beyond the mark they wait for it", now: 10_001, want: moveRefuse, wantWait: waitBack},
		{name: "however far", now: 1 << 40, want: moveRefuse, wantWait: waitBack},
		{name: "a retired number stays retired", now: 1, dead: true, want: moveRetire},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			now := int64(noon)
			g := testGuard(t, &now)
			g.dead = tt.dead
			g.last = compose(noon, 5, 7)
			if tt.used {
				g.last = compose(noon, maxSequence, 7)
			}
			if m, wait := g.decide(noon + tt.now); m != tt.want || wait != tt.wantWait {
				t.Errorf("decide = %v, %v; want %v, %v", m, wait, tt.want, tt.wantWait)
			}
		})
	}
}

func TestRideEndsWithTheSequence(t *testing.T) {
	now := int64(noon)
	g := testGuard(t, &now)
	last, _, _ := g.next(now)
	now -= 1000
	for i := range maxSequence {
		id, m, _ := g.next(now)
		if m != moveRide || id <= last || msOf(id) != noon {
			t.Fatalf("id %d while the clock is behind: %d, %v", i, id, m)
		}
		last = id
	}
	if _, m, wait := g.next(now); m != moveRefuse || wait != time.Second {
		t.Errorf("after the last of them: %v, %v", m, wait)
	}
	now += 1001
	if id, m, _ := g.next(now); m != moveFresh || msOf(id) != noon+1 {
		t.Errorf("when the clock is back: %d, %v", id, m)
	}
}

func TestSameMillisecondAfterARide(t *testing.T) {
	now := int64(noon)
	g := testGuard(t, &now)
	seen := map[int64]bool{}
	for _, step := range []int64{0, 0, -100, 0, 100, 0, 0, 1, 0} {
		now += step
		id, m, _ := g.next(now)
		if m > moveRide || seen[id] {
			t.Fatalf("at %+d: %d, %v, seen before: %v", step, id, m, seen[id])
		}
		seen[id] = true
	}
}

func TestClockJumpsBetweenTheTwoLooks(t *testing.T) {
	now, skew := int64(noon), int64(0)
	g, err := newGuard(7, noon-1, noon+10_000, func(w int) (source, error) {
		return &lib{t: t, clock: func() int64 { return now + skew }, worker: w}, nil
	})
	if err != nil {
		t.Fatal(err)
	}
	last, _, _ := g.next(now)
	skew = 60_000 // beyond the mark
	now++
	if _, m, _ := g.next(now); m != moveWait {
		t.Errorf("an id beyond the mark was not thrown away: %v", m)
	}
	skew = 0
	id, m, _ := g.next(now)
	if m != moveFresh || id <= last || msOf(id) != now {
		t.Errorf("after the jump: %d, %v", id, m)
	}
}

func TestLayoutIsThatOfTheLibrary(t *testing.T) {
	sf, err := newSource(777)
	if err != nil {
		t.Fatal(err)
	}
	before := time.Now().UnixMilli()
	id, err := sf.NextID()
	if err != nil {
		t.Fatal(err)
	}
	if Worker(im.MessageID(id)) != 777 {
		t.Errorf("Worker = %d", Worker(im.MessageID(id)))
	}
	if at := Time(im.MessageID(id)); at.UnixMilli() < before || at.After(time.Now()) || !at.Equal(sf.(*sonyflake.Sonyflake).ToTime(id)) {
		t.Errorf("Time = %v", at)
	}
	parts := sf.(*sonyflake.Sonyflake).Decompose(id)
	if int(parts["sequence"]) != sequenceOf(id) || parts["time"]+epochMs != msOf(id) || compose(msOf(id), sequenceOf(id), 777) != id {
		t.Errorf("%d is %v", id, parts)
	}
}

func TestLeapt(t *testing.T) {
	tests := []struct {
		name          string
		beyond        int64 // ms beyond the mark
		clock, passed time.Duration
		want          bool
	}{
		{name: "the store was away", beyond: 60_000, clock: 3 * time.Second, passed: 3 * time.Second},
		{name: "the clock jumped", beyond: 60_000, clock: time.Minute, passed: 3 * time.Second, want: true},
		{name: "it jumped, and the mark is far ahead", beyond: -200_000, clock: time.Minute, passed: 3 * time.Second, want: true},
		{name: "it jumped a little beyond", beyond: 1000, clock: 7 * time.Second, passed: 3 * time.Second},
		{name: "it jumped a little, but not beyond", beyond: -1, clock: 7 * time.Second, passed: 3 * time.Second},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			now := int64(noon)
			g := testGuard(t, &now)
			g.mark = noon - tt.beyond
			if got := g.leapt(noon, tt.clock, tt.passed); got != tt.want {
				t.Errorf("leapt = %v", got)
			}
		})
	}
}

func TestExtend(t *testing.T) {
	tests := []struct {
		name   string
		left   int64 // ms until the mark
		issued bool
		want   int64 // ms ahead; 0 = not due
	}{
		{name: "a mark that reaches beyond the next look stays", left: 7000, issued: true},
		{name: "while ids are made it goes 10 s ahead", left: 6999, issued: true, want: 10_000},
		{name: "while none are made it goes far ahead", left: 6999, want: 300_000},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			now := int64(noon)
			g := testGuard(t, &now)
			g.mark, g.issued = noon+tt.left, tt.issued
			if mark, due := g.extend(noon); due != (tt.want > 0) || due && mark != noon+tt.want {
				t.Errorf("extend = %d, %v", mark-noon, due)
			}
		})
	}
}

package rate

import (
	"sync"
	"testing"
	"time"
)

var t0 = time.Unix(1_800_000_000, 0)

func TestBucketLetsTheBurstThroughAndThenTheRate(t *testing.T) {
	l := Limit{PerSecond: 10, Burst: 5}
	var b Bucket
	now := t0
	for i := range 5 {
		if ok, _ := b.Take(now, l); !ok {
			t.Fatalf("token %d of the burst was refused", i)
		}
	}
	ok, wait := b.Take(now, l)
	if ok || wait != 100*time.Millisecond {
		t.Fatalf("Take after the burst = %v, %v; want false, 100ms", ok, wait)
	}
	if ok, _ := b.Take(now.Add(wait), l); !ok {
		t.Error("refused after the time it named")
	}
	passed := 0
	for i := range 1000 { // ten seconds, a hundred tries a second
		if ok, _ := b.Take(now.Add(wait+time.Duration(i)*10*time.Millisecond), l); ok {
			passed++
		}
	}
	if passed < 98 || passed > 101 {
		t.Errorf("%d passed in 10 s at 10/s", passed)
	}
}

func TestBucketIgnoresAClockThatGoesBack(t *testing.T) {
	l := Limit{PerSecond: 1, Burst: 1}
	var b Bucket
	b.Take(t0, l)
	if ok, _ := b.Take(t0.Add(-time.Hour), l); ok {
		t.Error("an earlier time refilled the bucket")
	}
	if ok, _ := b.Take(t0.Add(-time.Hour+time.Second), l); !ok {
		t.Error("the bucket is stuck after the clock went back")
	}
}

func TestZeroLimitLetsNothingThrough(t *testing.T) {
	var b Bucket
	if ok, wait := b.Take(t0, Limit{}); ok || wait <= 0 {
		t.Errorf("Take = %v, %v", ok, wait)
	}
}

func TestGivenTokenCanBeTakenAgain(t *testing.T) {
	k, l := NewKeyed[string](10), Limit{PerSecond: 0.001, Burst: 1}
	k.Take(t0, "a", l)
	k.Give("a")
	k.Give("unknown")
	if ok, _ := k.Take(t0, "a", l); !ok {
		t.Error("the token that was given back is gone")
	}
}

func TestKeysHaveTheirOwnBuckets(t *testing.T) {
	k, l := NewKeyed[string](10), Limit{PerSecond: 1, Burst: 1}
	k.Take(t0, "a", l)
	if ok, _ := k.Take(t0, "a", l); ok {
		t.Error("a second token of a")
	}
	if ok, _ := k.Take(t0, "b", l); !ok {
		t.Error("b pays for a")
	}
}

func TestKeyedStaysBounded(t *testing.T) {
	k, l := NewKeyed[int](100), Limit{PerSecond: 1, Burst: 2}
	for i := range 10_000 {
		k.Take(t0, i, l)
	}
	if n := k.Len(); n > 100 {
		t.Errorf("%d buckets, want at most 100", n)
	}
	later := t0.Add(time.Minute)
	for i := range 1000 {
		k.Take(later.Add(time.Duration(i)*time.Minute), -i, l)
	}
	if n := k.Len(); n > 10 {
		t.Errorf("%d buckets after a quiet time, want full ones forgotten", n)
	}
}

func TestStrikesBlockAndForgive(t *testing.T) {
	s := NewStrikes[string](3, time.Minute, time.Minute, 100)
	s.Fail(t0, "a")
	s.Fail(t0, "a")
	if d := s.Blocked(t0, "a"); d != 0 {
		t.Fatalf("blocked for %v after two", d)
	}
	s.Fail(t0.Add(time.Second), "a")
	if d := s.Blocked(t0.Add(time.Second), "a"); d != time.Minute {
		t.Fatalf("blocked for %v, want 1m", d)
	}
	if d := s.Blocked(t0, "b"); d != 0 {
		t.Errorf("b is blocked for a")
	}
	if d := s.Blocked(t0.Add(62*time.Second), "a"); d != 0 {
		t.Errorf("still blocked for %v", d)
	}
}

func TestStrikesOfDifferentWindowsDoNotAddUp(t *testing.T) {
	s := NewStrikes[string](3, time.Minute, time.Minute, 100)
	for i := range 10 {
		s.Fail(t0.Add(time.Duration(i)*40*time.Second), "a")
	}
	if d := s.Blocked(t0.Add(400*time.Second), "a"); d != 0 {
		t.Errorf("blocked at two failures a minute")
	}
}

func TestStrikesStayBounded(t *testing.T) {
	s := NewStrikes[int](3, time.Minute, time.Minute, 50)
	for i := range 5000 {
		s.Fail(t0, i)
	}
	if n := s.Len(); n > 50 {
		t.Errorf("%d keys, want at most 50", n)
	}
}

func TestKeyedUnderConcurrency(t *testing.T) {
	k, l := NewKeyed[int](1000), Limit{PerSecond: 0, Burst: 100}
	var wg sync.WaitGroup
	var mu sync.Mutex
	passed := 0
	for range 8 {
		wg.Go(func() {
			for range 100 {
				if ok, _ := k.Take(t0, 1, l); ok {
					mu.Lock()
					passed++
					mu.Unlock()
				}
			}
		})
	}
	wg.Wait()
	if passed != 100 {
		t.Errorf("%d passed, want 100", passed)
	}
}

// Who comes above the rate waits for its token; nobody waits longer than it may.
func TestLineTellsEachItsTurn(t *testing.T) {
	var r Line
	l, most := Limit{PerSecond: 10, Burst: 2}, 350*time.Millisecond
	for i, want := range []time.Duration{0, 0, 100 * time.Millisecond, 200 * time.Millisecond, 300 * time.Millisecond} {
		if wait, ok := r.Join(t0, l, most); !ok || wait != want {
			t.Errorf("number %d: %v, %v; want %v", i, wait, ok, want)
		}
	}
	if _, ok := r.Join(t0, l, most); ok {
		t.Error("one stands in the line for longer than it may")
	}
	if wait, ok := r.Join(t0.Add(100*time.Millisecond), l, most); !ok || wait != 300*time.Millisecond {
		t.Errorf("after a token's time: %v, %v", wait, ok)
	}
}

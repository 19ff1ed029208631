package delivery

import (
	"fmt"
	"strings"
	"testing"
	"time"
)

var t0 = time.Unix(1_800_000_000, 0)

func TestRedeliveryFollowsTheSchedule(t *testing.T) {
	p := Pending{First: 3 * time.Second, Jitter: func() float64 { return 1 }}
	p.Add(t0, "c", 7, []byte("seven"))
	var at []time.Duration
	for now := t0; now.Before(t0.Add(2 * time.Minute)); now = now.Add(100 * time.Millisecond) {
		p.Due(now, false, func(conv string, d *Delivery) {
			if conv != "c" || d.Seq != 7 || string(d.Data) != "seven" {
				t.Fatalf("redelivered %s %d %q", conv, d.Seq, d.Data)
			}
			at = append(at, now.Sub(t0))
		})
	}
	want := "[3s 9s 21s 33s 45s]"
	if got := fmt.Sprint(at); got != want {
		t.Errorf("redelivered at %s, want %s", got, want)
	}
	if p.n != 0 || p.bytes != 0 || len(p.convs) != 0 {
		t.Errorf("%d entries of %d bytes are kept after the last", p.n, p.bytes)
	}
}

func TestAnAckEndsRedeliveryOfItsRangeOnly(t *testing.T) {
	p := Pending{First: 3 * time.Second, Jitter: func() float64 { return 1 }}
	for seq := range int64(5) {
		p.Add(t0, "c", seq+1, make([]byte, 10))
	}
	p.Add(t0, "d", 1, make([]byte, 10))
	p.Ack(t0.Add(2*time.Second), "c", 1, 3)
	p.Ack(t0.Add(2*time.Second), "unknown", 0, 100)
	if p.n != 4 || p.bytes != 40 {
		t.Fatalf("%d entries of %d bytes wait, want 4 of 40", p.n, p.bytes)
	}
	var got []string
	note := func(conv string, d *Delivery) { got = append(got, fmt.Sprint(conv, d.Seq)) }
	p.Due(t0.Add(3*time.Second), false, note)
	if s := strings.Join(got, " "); s != "d1" {
		t.Errorf("after 3 s: %q, want d1: the ack of c starts its waits anew", s)
	}
	got = nil
	p.Due(t0.Add(5*time.Second), false, note)
	if s := strings.Join(got, " "); s != "c1 c4 c5" {
		t.Errorf("after 5 s: %q, want c1 c4 c5", s)
	}
	p.Ack(t0.Add(6*time.Second), "c", 0, 9)
	p.Ack(t0.Add(6*time.Second), "d", 0, 9)
	if p.n != 0 || p.bytes != 0 || len(p.convs) != 0 {
		t.Errorf("%d entries are left", p.n)
	}
}

// A connection that owes nothing is not woken for redeliveries.
func TestNothingIsDueOnceAllIsAcknowledged(t *testing.T) {
	p := Pending{First: 3 * time.Second, Jitter: func() float64 { return 1 }}
	p.Add(t0, "c", 1, nil)
	p.Ack(t0.Add(time.Second), "c", 0, 1)
	if at := p.Next(); !at.IsZero() {
		t.Errorf("due %v after the delivery", at.Sub(t0))
	}
}

func TestABusyClientIsNotGivenMore(t *testing.T) {
	p := Pending{First: time.Second, Jitter: func() float64 { return 1 }}
	p.Add(t0, "c", 1, nil)
	n := 0
	count := func(string, *Delivery) { n++ }
	for i := range 60 {
		p.Due(t0.Add(time.Duration(i)*time.Second), true, count)
	}
	if n != 0 || p.n != 1 {
		t.Fatalf("%d redeliveries while busy, %d entries wait", n, p.n)
	}
	p.Due(t0.Add(time.Hour), false, count)
	if n != 1 {
		t.Errorf("%d redeliveries after that, want 1", n)
	}
}

func TestSeen(t *testing.T) {
	var s Seen
	if !s.Delivered("c", 5) || s.Delivered("c", 5) || s.Delivered("c", 4) || !s.Delivered("c", 9) {
		t.Error("delivers do not rise")
	}
	if s.Knows("c", 9) || !s.Knows("c", 12) {
		t.Error("a head that is covered counts, or one that is not does not")
	}
	if !s.Delivered("c", 10) {
		t.Error("an own ack or a head above hides a deliver")
	}
	for i := range 10 * seenGeneration {
		s.Delivered(fmt.Sprint(i), 1)
	}
	if n := len(s.young) + len(s.old); n > 2*seenGeneration {
		t.Errorf("%d conversations are remembered", n)
	}
}

// Lowering the count ends redeliveries that are beyond it.
func TestTheCountMayChange(t *testing.T) {
	now := time.Unix(0, 0)
	p := Pending{First: time.Second, Most: 5, Jitter: func() float64 { return 1 }}
	p.Add(now, "c", 1, []byte("x"))
	times := 0
	step := func(d time.Duration) {
		now = now.Add(d)
		p.Due(now, false, func(string, *Delivery) { times++ })
	}
	step(time.Second)
	step(2 * time.Second)
	if times != 2 || p.n != 1 {
		t.Fatalf("%d times, %d wait", times, p.n)
	}
	p.Most = 2
	step(4 * time.Second)
	if times != 2 || p.n != 0 || p.bytes != 0 {
		t.Errorf("%d times, %d wait", times, p.n)
	}
	p.Most, times = 8, 0 // more than the schedule has: the last wait repeats
	p.Add(now, "c", 2, []byte("x"))
	for range 60 {
		step(time.Second)
	}
	if times != 8 {
		t.Errorf("%d times, want 8", times)
	}
}

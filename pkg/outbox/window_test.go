package outbox

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/imdhq/imd/pkg/backoff"
	"github.com/imdhq/imd/pkg/store"
	"github.com/imdhq/imd/pkg/webhook"
)

var began = time.Unix(1_700_000_000, 0)

// steady is limits without chance.
func steady() Limits {
	l := DefaultLimits()
	half := func() float64 { return 0.999 }
	l.Event.Rand, l.Receiver.Rand = half, half
	return l
}

// event is the event at a position, of one of n keys.
func event(pos int64, keys int) store.Event {
	return store.Event{Position: pos, Kind: 1, Key: pos%int64(keys) + 1, At: began}
}

func events(from, to int64, keys int) (out []store.Event) {
	for p := from; p <= to; p++ {
		out = append(out, event(p, keys))
	}
	return out
}

func all(store.EventKind) bool { return true }

var (
	taken   = webhook.Result{Outcome: webhook.Taken}
	failed  = webhook.Result{Outcome: webhook.Failed, Reason: "status 500"}
	refused = webhook.Result{Outcome: webhook.Refused, Reason: "status 400"}
)

// Events of one conversation go one after the other, those of others meanwhile.
func TestOrderWithinAKey(t *testing.T) {
	w := NewWindow(steady(), store.Receiver{Name: "r"})
	w.Add(events(1, 6, 2), all)
	if got := w.Next(began); !slices.Equal(got, []int64{1, 2}) {
		t.Fatalf("first %v", got)
	}
	if got := w.Next(began); got != nil {
		t.Fatalf("both keys are busy, and %v goes", got)
	}
	w.Done(2, taken, began)
	w.Done(1, failed, began)
	if got := w.Next(began); !slices.Equal(got, []int64{4}) {
		t.Fatalf("then %v", got)
	}
	w.Done(4, taken, began)
	w.Done(w.Next(began)[0], taken, began) // 6
	if d := w.Wait(began); d < 500*time.Millisecond || d > time.Second {
		t.Errorf("the failed one is due in %v", d)
	}
	if got := w.Next(began.Add(time.Second)); !slices.Equal(got, []int64{1}) {
		t.Fatalf("after the pause %v", got)
	}
	r, _ := w.Stand()
	if r.Cursor != 6 || !slices.Equal(r.Open, []store.Open{{Position: 1, Tries: 1}, {Position: 3}, {Position: 5}}) {
		t.Errorf("stands at %+v", r)
	}
}

// An event that is refused, or fails while others are taken, becomes a dead letter
// and lets the rest of its conversation go.
func TestDeadLetters(t *testing.T) {
	for name, tt := range map[string]struct {
		result webhook.Result
		tries  int
	}{"refused": {refused, 5}, "failed": {failed, 10}} {
		w := NewWindow(steady(), store.Receiver{Name: "r"})
		w.Add([]store.Event{{Position: 1, Key: 1, At: began}, {Position: 2, Key: 1, At: began}}, all)
		now, pos := began, int64(100)
		for try := 1; ; try++ {
			w.Add([]store.Event{{Position: pos, Key: pos, At: now}}, all) // another conversation, that is taken
			for _, p := range w.Next(now) {
				if p == 1 {
					w.Done(p, tt.result, now)
				} else if p >= 100 {
					w.Done(p, taken, now)
				} else {
					t.Fatalf("%s: %d was tried before 1 was settled", name, p)
				}
			}
			pos++
			if _, s := w.Stand(); len(s.Dead) > 0 {
				if d := s.Dead[0]; d.Position != 1 || d.Tries != tt.tries || d.Reason != tt.result.Reason || try < tt.tries {
					t.Errorf("%s: %+v after %d rounds", name, d, try)
				}
				w.Saved(s)
				break
			}
			now = now.Add(5 * time.Minute)
		}
		if got := w.Next(now); !slices.Equal(got, []int64{2}) {
			t.Errorf("%s: then %v", name, got)
		}
		if _, s := w.Stand(); len(s.Dead) != 0 {
			t.Errorf("%s: told twice: %+v", name, s.Dead)
		}
	}
}

// A receiver that takes nothing gets one try at a time, gives nothing up before
// its time, and gets everything at once when it is back.
func TestReceiverThatIsDown(t *testing.T) {
	lim := steady()
	w := NewWindow(lim, store.Receiver{Name: "r"})
	w.Add(events(1, 100, 50), all)
	now := began
	for _, p := range w.Next(now) {
		w.Done(p, failed, now)
	}
	if !w.Down() {
		t.Fatal("16 failures in a row, and the receiver is not down")
	}
	tries := 0
	for end := began.Add(23 * time.Hour); now.Before(end); {
		next := w.Next(now)
		if len(next) > 1 {
			t.Fatalf("%d tries at once", len(next))
		}
		for _, p := range next {
			tries++
			w.Done(p, failed, now)
		}
		d := w.Wait(now)
		if d < 0 {
			t.Fatal("nothing is ever tried again")
		}
		now = now.Add(max(d, time.Millisecond))
	}
	if _, s := w.Stand(); len(s.Dead) != 0 || tries < 1000 || tries > 3000 {
		t.Errorf("%d dead letters and %d tries in 23 h", len(s.Dead), tries)
	}
	now = now.Add(10 * time.Minute)
	w.Done(w.Next(now)[0], taken, now)
	if w.Down() {
		t.Fatal("it took one and is down")
	}
	if n := len(w.Next(now)); n != lim.Concurrency {
		t.Errorf("back, and %d are tried", n)
	}
}

// When all room is taken by what fails again and again, that makes room; while the
// receiver is down, nothing more is taken up.
func TestRoom(t *testing.T) {
	lim := steady()
	lim.Open = 40
	w := NewWindow(lim, store.Receiver{Name: "r"})
	now, pos := began, int64(0)
	add := func(key int64) {
		pos++
		w.Add([]store.Event{{Position: pos, Key: key, At: began}}, all)
	}
	for range 30 {
		add(1)
	}
	for range hopeless {
		add(int64(100 + pos))
		for _, p := range w.Next(now) {
			if w.items[p].key == 1 {
				w.Done(p, failed, now)
			} else {
				w.Done(p, taken, now)
			}
		}
		now = now.Add(time.Hour)
	}
	for w.Room() > 0 {
		add(1)
	}
	w.Next(now.Add(-time.Hour))
	if _, s := w.Stand(); len(s.Dead) != 1 || s.Dead[0].Tries != hopeless || w.Room() != 1 {
		t.Errorf("dead %+v, room %d", s.Dead, w.Room())
	}
}

// What was a dead letter goes before newer events, and is revived once it is taken.
func TestDeadLettersAgain(t *testing.T) {
	w := NewWindow(steady(), store.Receiver{Name: "r", Cursor: 10, Reached: 12, Generation: 3})
	w.Resume(event(4, 1), 0, true)
	w.Resume(event(7, 1), 2, false)
	w.Resume(event(7, 1), 2, false)
	w.Add(events(9, 11, 1), all)
	for _, want := range []int64{4, 7, 11} {
		next := w.Next(began)
		if !slices.Equal(next, []int64{want}) {
			t.Fatalf("%v, want %d", next, want)
		}
		if w.Told(want) != (want <= 12) {
			t.Errorf("%d may have been told: %v", want, w.Told(want))
		}
		w.Done(want, taken, began)
	}
	r, s := w.Stand()
	if r.Cursor != 11 || len(r.Open) != 0 || r.Generation != 3 || !slices.Equal(s.Revived, []int64{4}) {
		t.Errorf("%+v, %+v", r, s)
	}
	if w.Saved(s); w.Changed() {
		t.Error("something is left to store")
	}
}

func TestUnwantedEventsAreSettled(t *testing.T) {
	w := NewWindow(steady(), store.Receiver{Name: "r"})
	w.Add([]store.Event{{Position: 1, Kind: 1, Key: 1}, {Position: 2, Kind: 2, Key: 1}, {Position: 3, Kind: store.UserOnline, Key: -4}}, Wanted([]string{"member.changed"}))
	if got := w.Next(began); !slices.Equal(got, []int64{2}) || w.Cursor() != 3 {
		t.Errorf("%v, cursor %d", got, w.Cursor())
	}
}

// run plays a receiver of many moods, leaders that die at any moment, and operators,
// by seed: nothing is lost, nothing is out of order, and what is told twice is only
// what was told after the last save.
func TestWindowBySeed(t *testing.T) {
	for seed := range uint64(60) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) { played(t, rand.New(rand.NewPCG(seed, 8))) })
	}
}

func played(t *testing.T, rnd *rand.Rand) {
	const last = 400
	keys := 1 + rnd.IntN(60)
	lim := DefaultLimits()
	lim.Concurrency, lim.Open = 1+rnd.IntN(8), 20+rnd.IntN(200)
	lim.Event = backoff.Policy{Base: time.Second, Max: 20 * time.Second, Rand: rnd.Float64}
	lim.Receiver = lim.Event
	now := began
	row, dead := store.Receiver{Name: "r", Generation: 1}, map[int64]bool{}
	told, since := map[int64]int{}, map[int64]bool{} // how often; since the last save
	highest := map[int64]int64{}                     // of each key, settled and stored
	w := NewWindow(lim, row)
	mood := 0.1 // chance of a failure
	busy := map[int64]bool{}
	for steps := 0; ; steps++ {
		if steps > 200_000 {
			t.Fatalf("no end: %d open, cursor %d", w.Open(), w.Cursor())
		}
		if rnd.IntN(200) == 0 {
			mood = []float64{0, 0.1, 0.5, 1}[rnd.IntN(4)]
			if steps > 20_000 {
				mood = 0
			}
		}
		if w.Cursor() < last && w.Room() > 0 && rnd.IntN(3) == 0 {
			w.Add(events(w.Cursor()+1, min(w.Cursor()+int64(rnd.IntN(20)), last, w.Cursor()+int64(w.Room())), keys), all)
		}
		for _, p := range w.Next(now) {
			busy[p] = true
			k := event(p, keys).Key
			if p < highest[k] && !dead[p] {
				t.Fatalf("%d is tried after %d of its key was settled", p, highest[k])
			}
		}
		if len(busy) > lim.Concurrency {
			t.Fatalf("%d tries at once", len(busy))
		}
		for p := range busy {
			if rnd.IntN(3) == 0 {
				continue
			}
			delete(busy, p)
			switch r := rnd.Float64(); {
			case r < mood:
				w.Done(p, failed, now)
			case r < mood+0.02:
				w.Done(p, refused, now)
			default:
				if told[p]++; told[p] > 1 && !since[p] && !dead[p] {
					t.Fatalf("%d was told and stored, and is told again", p)
				}
				since[p] = true
				w.Done(p, taken, now)
			}
		}
		if w.Changed() && rnd.IntN(4) == 0 { // the next leader knows of what is stored here
			r, s := w.Stand()
			if row.Cursor > r.Cursor {
				t.Fatalf("the cursor goes back from %d to %d", row.Cursor, r.Cursor)
			}
			for _, d := range s.Dead {
				dead[d.Position] = true
			}
			row = r
			w.Saved(s)
			open := map[int64]bool{}
			for _, o := range r.Open {
				open[o.Position] = true
			}
			for p := int64(1); p <= r.Cursor; p++ {
				if k := event(p, keys).Key; !open[p] {
					delete(since, p)
					if told[p] == 0 && !dead[p] {
						t.Fatalf("%d is settled, and nobody was told", p)
					}
					highest[k] = max(highest[k], p)
				}
			}
			if r.Cursor == last && len(r.Open) == 0 {
				return
			}
		}
		if rnd.IntN(300) == 0 { // a leader dies
			w = NewWindow(lim, row)
			for _, o := range row.Open {
				w.Resume(event(o.Position, keys), o.Tries, false)
			}
			clear(busy)
		}
		now = now.Add(time.Duration(rnd.IntN(800)) * time.Millisecond)
	}
}

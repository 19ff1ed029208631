package bench

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/imdhq/imd/pkg/history"
	"github.com/imdhq/imd/sdk/go/gen/clientv1"
	"github.com/imdhq/imd/sdk/go/protocol"
)

// What the server does not deliver, or only hints at, is read: every message
// arrives once, recorded or not.
func TestWhatIsMissingIsRead(t *testing.T) {
	for _, enc := range []protocol.Encoding{protocol.Proto, protocol.JSON} {
		f := newFake(t)
		f.lose = func(_ string, seq int64) bool { return seq%10 == 3 }
		f.hint = func(_ string, seq int64) bool { return seq%10 > 6 }
		o := f.options("send", 4)
		o.Encoding, o.Outstanding = enc, 3
		rec, dir := recording(t)
		for _, o.Record = range []*history.Recorder{nil, rec} {
			o.Prefix = fmt.Sprintf("u%t", o.Record != nil)
			res, err := Run(t.Context(), o)
			if err != nil {
				t.Fatal(err)
			}
			// The newest entry may be one of the lost, which nobody tells of
			// unless the device knows it from elsewhere.
			if d, n := res.Latency["deliver"].Count, res.Latency["ack"].Count; d < n-2 || d > n || n < 20 {
				t.Errorf("%v, recorded %v: %d of %d arrived; errors %v", enc, o.Record != nil, d, n, res.Errors)
			}
			if o.Record == nil {
				f.mu.Lock()
				clear(f.convs)
				f.mu.Unlock()
			}
		}
		h := readHistory(t, rec, dir)
		if h.count[history.Show] == 0 {
			t.Error("nothing was shown")
		}
	}
}

// A device that is told to move has its new connection before the old one ends;
// nothing is lost and no connection counts as lost.
func TestDrain(t *testing.T) {
	f := newFake(t)
	f.drain = 10
	o := f.options("send", 2)
	o.Outstanding, o.Reconnect = 4, true
	rec, dir := recording(t)
	o.Record = rec
	res, err := Run(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	if len(res.Errors) != 0 {
		t.Errorf("errors %v", res.Errors)
	}
	h := readHistory(t, rec, dir)
	if h.count[history.Connect] != 3 || h.count[history.Disconnect] != 1 {
		t.Errorf("records %v", h.count)
	}
	h.everythingIsShownOnce(t)
}

// closeAfter is when a device that does not move is sent away, in milliseconds.
const closeAfter = 5000

// A node that stops: its devices are elsewhere in the end, what was written
// meanwhile is shown once, and a message that is lost or repeated is counted.
func TestHandover(t *testing.T) {
	for _, c := range []struct {
		name  string
		spoil func(f *fake)
		want  func(h *Handover) bool
	}{
		{"nothing is lost", func(*fake) {}, func(h *Handover) bool { return h.Lost == 0 && h.Repeated == 0 }},
		{"a message is lost", func(f *fake) {
			f.page = func(e *clientv1.Entry) bool { return e.Seq != 7 }
			f.lose = func(_ string, seq int64) bool { return seq == 7 }
		}, func(h *Handover) bool { return h.Lost > 0 && h.Repeated == 0 }},
		{"a message is stored twice", func(f *fake) { f.twice = 20 }, func(h *Handover) bool { return h.Lost == 0 && h.Repeated == 1 }},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			f := newFake(t)
			c.spoil(f)
			o := f.options("drain", 8)
			if f.lose != nil {
				o.Settle = time.Second // it is waited for in vain
			}
			res, err := Run(t.Context(), o)
			if err != nil {
				t.Fatal(err)
			}
			h := res.Handover
			if h == nil || !c.want(h) || h.Messages == 0 || h.Seconds <= 0 || res.Operations != 6 || res.Latency["gap"].Count != 6 || res.Latency["gap"].Max > closeAfter {
				t.Errorf("%+v %+v", h, res)
			}
		})
	}
}

// A run lasts as long as it is to, also if that is more than a node may take. If not
// all have moved, what was on its way is waited for all the same; a run that is stopped
// tells of no losses.
func TestHandoverThatFails(t *testing.T) {
	for _, c := range []struct {
		name   string
		limit  time.Duration
		drain  func(o *Options, stop context.CancelFunc) // nil = as it is to be
		err    string
		result bool
	}{
		{"longer than a node may take", 50 * time.Millisecond, nil, "", true},
		{"nobody moves", 50 * time.Millisecond, func(o *Options, _ context.CancelFunc) {
			o.Drain = func(context.Context) error { return nil }
		}, "0 of 6 devices have moved after 1.4s", true},
		{"it is stopped", 0, func(o *Options, stop context.CancelFunc) {
			o.Drain = func(context.Context) error { stop(); return nil }
		}, "context canceled", false},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			f := newFake(t)
			o := f.options("drain", 8)
			o.drainLimit = c.limit
			ctx, stop := context.WithCancel(t.Context())
			defer stop()
			if c.drain != nil {
				c.drain(&o, stop)
			}
			res, err := Run(ctx, o)
			if (err == nil) != (c.err == "") || err != nil && !strings.Contains(err.Error(), c.err) || res == nil {
				t.Fatalf("%v, %+v", err, res)
			}
			if h := res.Handover; (h != nil) != c.result || h != nil && (h.Lost != 0 || h.Messages == 0) {
				t.Errorf("%+v", h)
			}
		})
	}
}

// A message that is shown twice makes up for none that is lost, and one that is late is
// not lost.
func TestRepeatsHideNoLoss(t *testing.T) {
	h := &handover{devices: make([]handed, 2)}
	h.devices[0].stored = 5
	for _, made := range []time.Duration{1, 2, 2, 4, 3, 4} { // 5 is lost
		if !h.devices[1].show(made) {
			h.repeated++
		}
	}
	if got := h.result(); got.Lost != 1 || got.Repeated != 2 {
		t.Errorf("%+v", got)
	}
}

// A device that comes back to a server with another history begins anew and
// says so.
func TestResync(t *testing.T) {
	f := newFake(t)
	f.cut = 20
	f.epochs = func(n int) string {
		if n > 2 {
			return "e2"
		}
		return "e1"
	}
	o := f.options("send", 2)
	o.Reconnect, o.AtOnce = true, true
	rec, dir := recording(t)
	o.Record = rec
	if _, err := Run(t.Context(), o); err != nil {
		t.Fatal(err)
	}
	if h := readHistory(t, rec, dir); h.count[history.Resync] != 1 || h.count[history.Open] < 3 {
		t.Errorf("records %v", h.count)
	}
}

func TestTokensAreRefreshed(t *testing.T) {
	f := newFake(t)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	f.life = 200 * time.Millisecond
	f.refreshed = func() {
		if f.refreshes == 6 {
			cancel()
		}
	}
	o := f.options("connect", 3)
	o.Duration = time.Minute
	if _, err := Run(ctx, o); !errors.Is(err, context.Canceled) {
		t.Errorf("%v, after %d refreshes by 3 devices", err, f.refreshes)
	}
}

// The members of a large group read at different times because of one hint, each at
// its own; those of a small one read at once.
func TestAHintIsReadOverTime(t *testing.T) {
	l, err := newLoop()
	if err != nil {
		t.Fatal(err)
	}
	defer l.close()
	h := &host{l: l}
	hint := &clientv1.Head{ConversationId: "g_1", Seq: 7}
	const devices = 100
	var waits [10]int // by tenths of the spread
	for i := range devices {
		d := h.newDevice(i, "u", "d", "", netip.Addr{})
		d.in.joined(5000)
		d.in.head(hint)
		if cv := d.in.convs["g_1"]; cv.gapSet != (d.in.wait() > 0) || cv.head != 7 {
			t.Fatalf("device %d does not wait, and knows of %d entries", i, cv.head)
		}
		waits[10*d.in.wait()/(5000*protocol.PullSpread)]++
	}
	for i, n := range waits {
		if n < devices/20 || n > devices/5 {
			t.Errorf("%d of %d devices read in the tenth %d: %v", n, devices, i, waits)
		}
	}
	d := h.newDevice(devices, "u", "d", "", netip.Addr{})
	if d.in.joined(protocol.LargeGroup); d.in.wait() != 0 {
		t.Errorf("a member of a small group waits for %v", d.in.wait())
	}
	if d.in.joined(1_000_000); d.in.wait() > protocol.MaxPullSpread {
		t.Errorf("a member of a very large group waits for %v", d.in.wait())
	}
}

// A server may take a hello after its device has given it up, and then ends the
// device's next session with superseded. The device comes back: once for each such
// hello, and for two minutes.
func TestALateHello(t *testing.T) {
	superseded := protocol.NewBye(protocol.ReasonSuperseded, "", 0)
	for _, c := range []struct {
		name    string
		play    func(d *device)
		excused int // how many superseded the device still survives then
	}{
		{"nothing was given up", func(*device) {}, 0},
		{"one was", func(d *device) { d.tryInVain(true, nil) }, 1},
		{"two were", func(d *device) { d.tryInVain(true, nil); d.tryInVain(true, nil) }, 2},
		{"many were", func(d *device) {
			for range maxGaveUp + 3 {
				d.tryInVain(true, nil)
			}
		}, maxGaveUp},
		{"the hello was taken before the next welcome", func(d *device) {
			d.tryInVain(true, nil)
			d.tryInVain(true, superseded)
		}, 0},
		{"not quite too long ago", func(d *device) { d.tryInVain(true, nil); d.h.l.now += protocol.LateHello }, 1},
		{"too long ago", func(d *device) { d.tryInVain(true, nil); d.h.l.now += protocol.LateHello + 1 }, 0},
		{"the hello was refused", func(d *device) { d.tryInVain(true, protocol.NewBye(protocol.ReasonBusy, "", 0)) }, 0},
		{"no hello was written", func(d *device) { d.tryInVain(false, nil) }, 0},
		{"it was to move", func(d *device) {
			d.cur = d.begin()
			d.tryInVain(true, nil)
			d.cur.bye = superseded
			d.lost(d.cur, 0, nil)
		}, 0},
		{"the session from which it moves ended first", func(d *device) {
			d.cur, d.next = d.begin(), d.begin()
			next := d.next
			next.hello()
			d.cur.bye = superseded
			d.lost(d.cur, 0, nil)
			d.lost(next, 0, nil)
		}, 0},
	} {
		l := &loop{}
		d := (&host{l: l, rng: rand.New(rand.NewPCG(1, 1))}).newDevice(0, "u", "d", "", netip.Addr{})
		d.comesBack = true
		c.play(d)
		for n := range c.excused + 1 {
			if d.ended {
				t.Fatalf("%s: before superseded %d it has ended", c.name, n)
			}
			d.cur = d.begin()
			d.cur.bye = superseded
			d.lost(d.cur, 0, nil)
			if !d.ended && !d.waiting {
				t.Errorf("%s: it does not come back", c.name)
			}
		}
		if !d.ended {
			t.Errorf("%s: it has survived one superseded too many", c.name)
		}
	}
}

// begin is a connection of the device that leads nowhere.
func (d *device) begin() *session {
	d.waiting = false
	return &session{d: d, c: &conn{}}
}

// tryInVain makes an attempt that fails, with the server's reason or without.
func (d *device) tryInVain(hello bool, bye *clientv1.Bye) {
	s := d.begin()
	d.next = s
	if hello {
		s.hello()
	}
	s.bye = bye
	d.lost(s, 0, nil)
}

package bench

import (
	"fmt"
	"testing"
	"time"

	"github.com/imdhq/imd/pkg/history"
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
		o.Encoding, o.Outstanding, o.Settle = enc, 3, 4*time.Second
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
	f.life = 200 * time.Millisecond
	o := f.options("connect", 3)
	o.Duration = 700 * time.Millisecond
	if _, err := Run(t.Context(), o); err != nil {
		t.Fatal(err)
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.refreshes < 6 {
		t.Errorf("%d refreshes by 3 devices", f.refreshes)
	}
}

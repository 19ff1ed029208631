package hostile

import (
	"fmt"
	"net/http"
	"testing"
	"time"

	"github.com/imdhq/imd/pkg/testenv"
	"github.com/imdhq/imd/sdk/go/gen/clientv1"
	"github.com/imdhq/imd/sdk/go/protocol"
)

// Each rate is a setting that holds from one moment to the next: sends above one
// are to be repeated later, and connections above one are refused before the
// upgrade, with a time.
func TestRatesAreSettings(t *testing.T) {
	n := testenv.Start(t, "--set", "gateway.limits.loopback_exempt=false")
	c := testenv.Login(t, n.URL(), protocol.JSON, n.Token("ann"), "d")
	set := func(pairs ...string) {
		t.Helper()
		if out, msg, status := n.Command(append([]string{"settings", "set", "--wait"}, pairs...)...); status != 0 {
			t.Fatalf("imd settings set: %d %s%s", status, out, msg)
		}
	}
	eventually := func(what string, ok func() bool) {
		t.Helper()
		for end := time.Now().Add(10 * time.Second); !ok(); time.Sleep(20 * time.Millisecond) {
			if time.Now().After(end) {
				t.Fatalf("%s: it does not happen", what)
			}
		}
	}
	const low, high = "0.001", "1000000"
	// Each try is a conversation of its own: what follows a refusal in one waits for it.
	tries := 0
	above := func() (refused bool) {
		t.Helper()
		tries++
		for range 3 {
			ack := c.Send(testenv.ToUser(fmt.Sprint("bob", tries), "x"))
			if ack.Status == clientv1.Ack_ACK_RETRY && ack.GetError().GetReason() == "rate_limited" && ack.GetError().GetRetryAfterMs() > 0 {
				return true
			}
			if ack.Status != clientv1.Ack_ACK_OK {
				t.Fatalf("a send is answered with %v", ack)
			}
		}
		return false
	}
	for _, what := range []string{"user", "conversation", "connection"} {
		rate, burst := "gateway.limits."+what+"_rate=", "gateway.limits."+what+"_burst="
		set(rate+low, burst+"1")
		eventually("a send above the rate of a "+what, above)
		set(rate+high, burst+high)
		eventually("a send below the rate of a "+what, func() bool { return !above() })
	}
	for _, x := range []struct {
		what   string
		status int
	}{{"address", http.StatusTooManyRequests}, {"accept", http.StatusServiceUnavailable}} {
		rate, burst := "gateway.limits."+x.what+"_rate=", "gateway.limits."+x.what+"_burst="
		set(rate+low, burst+"1")
		eventually("a connection above the rate "+x.what, func() bool {
			o, res, err := testenv.TryDial(t, n.URL(), protocol.JSON, testenv.DialOptions{})
			if err == nil {
				o.Cut()
				return false
			}
			return res != nil && res.StatusCode == x.status && res.Header.Get("Retry-After") != ""
		})
		set(rate+high, burst+high)
		eventually("a connection below the rate "+x.what, func() bool {
			o, _, err := testenv.TryDial(t, n.URL(), protocol.JSON, testenv.DialOptions{})
			if err == nil {
				o.Cut()
			}
			return err == nil
		})
	}
	if c.Closed() {
		t.Error("one who waits as told was closed")
	}
}

// A node that has no more than its memory limit takes nobody, and says when to
// come back.
func TestWithoutMemoryNobodyIsTaken(t *testing.T) {
	n := testenv.Start(t, "--set", "gateway.memory_limit=8388608") // less than an idle node has
	for end := time.Now().Add(10 * time.Second); ; time.Sleep(20 * time.Millisecond) {
		c, res, err := testenv.TryDial(t, n.URL(), protocol.JSON, testenv.DialOptions{})
		if err != nil && res != nil && res.StatusCode == http.StatusServiceUnavailable && res.Header.Get("Retry-After") != "" {
			break
		}
		if err == nil {
			c.Cut()
		}
		if time.Now().After(end) {
			t.Fatalf("a newcomer is answered %v, %v", res, err)
		}
	}
	n.AwaitLog("the memory limit is near")
	if n.Metric(`imd_gateway_handshakes_total{result="no_memory"}`) == 0 {
		t.Error("it is not counted")
	}
}

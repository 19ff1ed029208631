package conformance

import (
	"context"
	"crypto/tls"
	"fmt"
	"iter"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/imdhq/imd/pkg/testenv"
	imd "github.com/imdhq/imd/sdk/go"
)

// The certificate of the public listener is renewed while people talk: those who
// are here notice nothing, newcomers see the new one, and a bad one changes nothing
// but a metric.
func TestRenewedCertificate(t *testing.T) {
	t.Parallel()
	ca, dir := testenv.NewAuthority(t), t.TempDir()
	first := ca.Serve(t, dir, time.Now().Add(time.Hour))
	n := testenv.Start(t, set("gateway.tls.cert_file="+filepath.Join(dir, "cert.pem"), "gateway.tls.key_file="+filepath.Join(dir, "key.pem"))...)
	if !strings.HasPrefix(n.URL(), "https://") {
		t.Fatalf("the node is at %s", n.URL())
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	tr := &http.Transport{TLSClientConfig: &tls.Config{RootCAs: ca.Pool()}}
	defer tr.CloseIdleConnections()
	var states atomic.Int32
	join := func(user string) *imd.Client {
		t.Helper()
		c, err := imd.Connect(ctx, strings.Replace(n.URL(), "https", "wss", 1), imd.Options{Token: n.Token(user), Device: "d", HTTPClient: &http.Client{Transport: tr},
			OnState: func(imd.StateChange) { states.Add(1) }})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { c.Close() })
		return c
	}
	ann, ben := join("ann"), join("ben")
	events, done := iter.Pull2(ben.Direct("ann").Events(ctx, imd.After(0)))
	defer done()
	said := 0
	talk := func() {
		t.Helper()
		said++
		text := fmt.Sprint("number ", said)
		if _, err := ann.Direct("ben").Send(imd.Text(text)).Acked(ctx); err != nil {
			t.Fatal(err)
		}
		for {
			e, err, _ := events()
			if err != nil {
				t.Fatal(err)
			}
			if entry, ok := e.(*imd.EntryEvent); ok && entry.Text() == text {
				return
			}
		}
	}
	shown := func() string {
		t.Helper()
		c, err := tls.Dial("tcp", n.Endpoints().Public, &tls.Config{RootCAs: ca.Pool()})
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		return c.ConnectionState().PeerCertificates[0].SerialNumber.String()
	}
	eventually := func(what string, ok func() bool) {
		t.Helper()
		for l := testenv.NewLimit(testenv.Patience); !ok(); time.Sleep(50 * time.Millisecond) {
			if l.Over() {
				t.Fatalf("%s: it does not happen\n%s", what, n.Log())
			}
		}
	}
	talk()
	if got := shown(); got != first.String() {
		t.Fatalf("the certificate shown is %s", got)
	}
	calm := states.Load()
	ends := time.Now().Add(90 * 24 * time.Hour)
	second := ca.Serve(t, dir, ends)
	eventually("newcomers see the new one", func() bool { return shown() == second.String() })
	eventually("the metric says when it ends", func() bool { return int64(n.Metric("imd_gateway_certificate_expiry_seconds")) == ends.Unix() })
	talk()
	if err := os.WriteFile(filepath.Join(dir, "key.pem"), []byte("no key"), 0o600); err != nil {
		t.Fatal(err)
	}
	eventually("a bad one is told", func() bool { return n.Metric("imd_gateway_certificate_bad") == 1 })
	if got := shown(); got != second.String() {
		t.Errorf("with bad files %s is shown", got)
	}
	n.AwaitLog("the last good one stays in force")
	talk()
	if got := states.Load(); got != calm {
		t.Error("a client had to come back")
	}
	if out, msg, status := n.Command("send", "--as", "cat", "--to", "ben", "hello"); status != 0 {
		t.Errorf("imd send to the node of the data folder: %d %s %s", status, out, msg)
	}
}

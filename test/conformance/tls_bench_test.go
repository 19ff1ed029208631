package conformance

import (
	"crypto/tls"
	"fmt"
	"net/http"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/imdhq/imd/pkg/testenv"
	"github.com/imdhq/imd/sdk/go/protocol"
)

// What TLS costs a node: processor time of a login, and memory of a session that is
// quiet.
func BenchmarkTLS(b *testing.B) {
	ca, dir := testenv.NewAuthority(b), b.TempDir()
	ca.Serve(b, dir, time.Now().Add(time.Hour))
	files := []string{"gateway.tls.cert_file=" + filepath.Join(dir, "cert.pem"), "gateway.tls.key_file=" + filepath.Join(dir, "key.pem"),
		"gateway.limits.tls_burst=1000000"}
	for _, way := range []struct {
		name   string
		args   []string
		client *tls.Config
	}{
		{"without", nil, nil},
		{"ECDSA P-256", files, &tls.Config{RootCAs: ca.Pool()}},
		{"resumed", files, &tls.Config{RootCAs: ca.Pool(), ClientSessionCache: tls.NewLRUClientSessionCache(8)}},
	} {
		b.Run(way.name, func(b *testing.B) {
			const sessions, workers = 2000, 4
			n := testenv.Start(b, set(append(way.args, "log.level=error")...)...)
			tr := &http.Transport{TLSClientConfig: way.client}
			defer tr.CloseIdleConnections()
			tokens := make([]string, sessions+1)
			for i := range tokens {
				tokens[i] = n.Token(fmt.Sprint("u", i))
			}
			come := func(i int) {
				c, _, err := testenv.TryDial(b, n.URL(), protocol.Proto, testenv.DialOptions{HTTP: &http.Client{Transport: tr}})
				if err != nil {
					b.Error(err)
					return
				}
				if f := c.Request(helloFrame(0, hello(tokens[i]))); f.GetWelcome() == nil {
					b.Errorf("hello is answered with %v", f)
				}
			}
			come(sessions) // and what a first one brings into being
			cpu, memory := n.Metric("process_cpu_seconds_total"), n.Resident()
			var wg sync.WaitGroup
			for w := range workers {
				wg.Go(func() {
					for i := w; i < sessions; i += workers {
						come(i)
					}
				})
			}
			wg.Wait()
			if b.Failed() {
				return
			}
			b.ReportMetric((n.Metric("process_cpu_seconds_total")-cpu)/sessions*1e6, "us/login")
			for end := time.Now().Add(time.Minute); n.Metric("imd_gateway_connections_parked") < sessions; {
				if time.Now().After(end) {
					b.Fatal("not all sessions are quiet after a minute")
				}
				time.Sleep(200 * time.Millisecond)
			}
			time.Sleep(3 * time.Second) // until what the wave has left is given back
			b.ReportMetric(float64(n.Resident()-memory)/sessions/1024, "KiB/session")
			b.ReportMetric(0, "ns/op")
		})
	}
}

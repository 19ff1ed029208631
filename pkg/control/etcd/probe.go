package etcd

import (
	"context"
	"crypto/tls"
	"net"
	"net/http"
	"time"

	"github.com/imdhq/imd/pkg/backoff"
	"github.com/imdhq/imd/pkg/control"
)

const (
	probeLimit = 300 * time.Millisecond
	probeGap   = 200 * time.Millisecond
	probeTries = 2
)

// alive reports whether the process of the record n answers. Another process
// at its address that names another boot id does not count. An address that
// cannot be asked from here, such as 0.0.0.0, counts as alive: its lease will
// tell.
func alive(ctx context.Context, n control.Node) bool {
	for i := range probeTries {
		if i > 0 && backoff.Sleep(ctx, probeGap) != nil {
			return true
		}
		if answers(ctx, n) {
			return true
		}
	}
	return ctx.Err() != nil
}

// answers asks every address once. The ops listener may be known by a loopback
// address, so the public one is asked as well.
func answers(ctx context.Context, n control.Node) bool {
	public := "http://"
	if n.PublicTLS {
		public = "https://"
	}
	for _, at := range []struct{ scheme, address string }{{"http://", n.Ops}, {public, n.Public}} {
		if at.address != "" && (everywhere(at.address) || answersHTTP(ctx, at.scheme+at.address, n.BootID)) {
			return true
		}
	}
	if n.Ops != "" || n.Public != "" || n.Internal == "" {
		return false
	}
	return everywhere(n.Internal) || answersTCP(ctx, n.Internal)
}

// answersHTTP asks /livez. An answer without the boot id that is looked for
// comes from another process; whose certificate it shows does not matter, as
// nothing is told or believed but that.
func answersHTTP(ctx context.Context, base, boot string) bool {
	ctx, cancel := context.WithTimeout(ctx, probeLimit)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, base+"/livez", nil)
	if err != nil {
		return false
	}
	tr := &http.Transport{DisableKeepAlives: true, TLSClientConfig: &tls.Config{InsecureSkipVerify: true}} // no Proxy: variables of the environment are ignored
	defer tr.CloseIdleConnections()
	client := &http.Client{Transport: tr, CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
	resp, err := client.Do(req)
	if err != nil {
		return false
	}
	defer resp.Body.Close()
	return resp.Header.Get(control.BootHeader) == boot
}

func answersTCP(ctx context.Context, address string) bool {
	ctx, cancel := context.WithTimeout(ctx, probeLimit)
	defer cancel()
	var d net.Dialer
	c, err := d.DialContext(ctx, "tcp", address)
	if err != nil {
		return false
	}
	_ = c.Close()
	return true
}

// everywhere reports whether address names all interfaces of its host and so
// cannot be reached from another one.
func everywhere(address string) bool {
	host, _, err := net.SplitHostPort(address)
	if err != nil {
		return false
	}
	ip := net.ParseIP(host)
	return host == "" || ip != nil && ip.IsUnspecified()
}

// sameAddress reports whether two records name a listener in common. Only one
// process can have it.
func sameAddress(a, b control.Node) bool {
	return a.Ops != "" && a.Ops == b.Ops || a.Public != "" && a.Public == b.Public ||
		a.Internal != "" && a.Internal == b.Internal
}

// addresses shows where a node listens, for people.
func addresses(n control.Node) string {
	for _, a := range []string{n.Ops, n.Public, n.Internal} {
		if a != "" {
			return a
		}
	}
	return "no address"
}

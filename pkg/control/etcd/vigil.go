package etcd

import (
	"context"
	"errors"
	"net"
	"net/http"
	"net/url"
	"os"
	"strings"
	"syscall"
	"time"

	"github.com/imdhq/imd/pkg/backoff"
	"github.com/imdhq/imd/pkg/control"
)

const (
	pollLimit  = control.AwaitLimit + 3*time.Second // of one long poll
	redialGap  = 100 * time.Millisecond
	redialTry  = 300 * time.Millisecond // of one dial
	redials    = 2
	quickReply = 100 * time.Millisecond
)

// pollPauses are after answers that came at once, and failures that prove
// nothing. The first is short: a leader answers at once before it acts, and the
// sockets of a dying process do not close all in one moment.
var pollPauses = backoff.Policy{Base: 50 * time.Millisecond, Max: time.Second}

// vigil waits at the process of a leader for its death: a long poll that the
// kernel breaks when the process ends, and then two refused connections.
type vigil struct {
	cancel context.CancelFunc
	done   chan struct{}
}

func (v *vigil) stop() {
	v.cancel()
	<-v.done
}

func newVigilClient() *http.Client {
	return &http.Client{
		Transport:     &http.Transport{DisableKeepAlives: true, DialContext: (&net.Dialer{Timeout: time.Second}).DialContext}, // no Proxy
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
}

// vigilAt begins a vigil; dead is called once if the process is gone. Nil if
// the leader's address means nothing here.
func (e *elector) vigilAt(l control.Leader, dead func()) *vigil {
	if l.Address == "" || everywhere(l.Address) || loopback(l.Address) && (l.Host == "" || l.Host != e.host) {
		return nil
	}
	ctx, cancel := context.WithCancel(context.Background())
	v := &vigil{cancel: cancel, done: make(chan struct{})}
	e.wg.Go(func() {
		defer close(v.done)
		defer cancel()
		if e.outlive(ctx, l) {
			dead()
		}
	})
	return v
}

// outlive returns true when the process of l is gone, false when ctx is done.
func (e *elector) outlive(ctx context.Context, l control.Leader) bool {
	for attempt := 0; ctx.Err() == nil; attempt++ {
		began := time.Now()
		boot, err := e.poll(ctx, l)
		switch {
		case ctx.Err() != nil:
			return false
		case err == nil && boot == l.BootID && time.Since(began) > quickReply:
			attempt = -1
			continue
		case err == nil && boot == l.BootID:
		case err == nil && boot != "": // another process has the port
			return true
		case err != nil && refuses(ctx, l.Address):
			return true
		}
		_ = pollPauses.Sleep(ctx, attempt) // the loop looks at ctx
	}
	return false
}

// poll waits for the end of the term at the leader and returns the boot id of
// the process that answered.
func (e *elector) poll(ctx context.Context, l control.Leader) (boot string, err error) {
	ctx, cancel := context.WithTimeout(ctx, pollLimit)
	defer cancel()
	u := url.URL{Scheme: "http", Host: l.Address, Path: control.AwaitPath + l.Name}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, u.String(), nil)
	if err != nil {
		return "", err
	}
	resp, err := e.http.Do(req)
	if err != nil {
		return "", err
	}
	return resp.Header.Get(control.BootHeader), resp.Body.Close()
}

// refuses reports whether the address refuses connections, every time. A
// connection that comes about, or that times out, proves no death.
func refuses(ctx context.Context, address string) bool {
	for i := range redials {
		if i > 0 && backoff.Sleep(ctx, redialGap) != nil {
			return false
		}
		d := net.Dialer{Timeout: redialTry}
		c, err := d.DialContext(ctx, "tcp", address)
		if err == nil {
			_ = c.Close()
			return false
		}
		if !errors.Is(err, syscall.ECONNREFUSED) {
			return false
		}
	}
	return true
}

// loopback reports whether an address means another process on each host.
func loopback(address string) bool {
	host, _, err := net.SplitHostPort(address)
	if err != nil {
		return true
	}
	ip := net.ParseIP(host)
	return ip == nil && host == "localhost" || ip != nil && ip.IsLoopback()
}

// hostName tells whether two processes have the same loopback: the boot of the
// kernel and the network namespace. "" = it cannot be told.
func hostName() string {
	boot, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return ""
	}
	ns, err := os.Readlink("/proc/self/ns/net")
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(boot)) + " " + ns
}

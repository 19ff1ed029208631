package webhook

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// Outcome is what a receiver made of a message.
type Outcome int

// The outcomes.
const (
	Taken   Outcome = iota // it has the message
	Failed                 // it, or the way to it, cannot take any now: the same later
	Refused                // it answered that it does not want this one
)

// Message is one request.
type Message struct {
	ID     string // the same at every try
	Body   []byte // JSON
	Replay bool   // it may have been told before, because an operator asked for it again
}

// Result is how one try ended.
type Result struct {
	Outcome Outcome
	Status  int           // of the answer; 0 = there was none
	Reason  string        // why it was not taken, for people; without secrets
	After   time.Duration // how long the receiver asks to wait; 0 = it does not
}

// Limits of one request.
const (
	// maxAnswer is how much of an answer is read, so that its connection can be used
	// again.
	maxAnswer = 16 << 10
	// maxHeader bounds the headers of an answer.
	maxHeader = 16 << 10
	// maxAfter is the longest wait that a receiver may ask for.
	maxAfter = 5 * time.Minute
	// dialTime bounds connecting.
	dialTime = 3 * time.Second
	// idleTime is how long a connection that is not used is kept.
	idleTime = 30 * time.Second
)

// Target is who is told, and how.
type Target struct {
	URL         string
	Timeout     time.Duration // of one request
	Connections int           // at most, at once
	// PublicOnly refuses addresses of private networks and of this machine,
	// whatever the name leads to.
	PublicOnly bool
	// Keys are asked at each request, the newest first; none = it is not sent.
	Keys func() []Key
	// Agent is what the requests say they come from.
	Agent string
}

// CheckURL says what is wrong with the address of a receiver: it is http or https,
// and without TLS only with plain, or on this machine.
func CheckURL(raw string, plain bool) error {
	u, err := url.Parse(raw)
	switch {
	case err != nil:
		return errors.New("it is no URL")
	case u.Scheme != "http" && u.Scheme != "https":
		return errors.New("it is neither http nor https")
	case u.Host == "" || u.Hostname() == "":
		return errors.New("it names no host")
	case u.User != nil:
		return errors.New("it has a user or a password in it; requests are signed instead")
	case u.Fragment != "":
		return errors.New("it has a fragment")
	}
	if ip, err := netip.ParseAddr(u.Hostname()); u.Scheme == "http" && !plain && u.Hostname() != "localhost" && (err != nil || !ip.IsLoopback()) {
		return errors.New("it is not https, and not on this machine; allow_plaintext: true allows that")
	}
	return nil
}

// Sender sends to one target. Safe for concurrent use.
type Sender struct {
	t      Target
	client *http.Client
}

var errRedirect = errors.New("redirects are not followed")

// New makes a sender; it connects when it sends. Close frees what it keeps.
func New(t Target) *Sender {
	d := &net.Dialer{Timeout: dialTime, KeepAlive: idleTime}
	if t.PublicOnly {
		d.Control = public
	}
	return &Sender{t: t, client: &http.Client{
		Transport: &http.Transport{
			DialContext: d.DialContext, MaxConnsPerHost: t.Connections, MaxIdleConns: t.Connections, MaxIdleConnsPerHost: t.Connections,
			IdleConnTimeout: idleTime, TLSHandshakeTimeout: dialTime, MaxResponseHeaderBytes: maxHeader, DisableCompression: true,
		},
		CheckRedirect: func(*http.Request, []*http.Request) error { return errRedirect },
	}}
}

// Close ends the connections that are idle.
func (s *Sender) Close() { s.client.CloseIdleConnections() }

// Send makes one try. It returns within the timeout of the target.
func (s *Sender) Send(ctx context.Context, m Message) Result {
	keys := s.t.Keys()
	if len(keys) == 0 {
		return Result{Outcome: Failed, Reason: "there is no key to sign with"}
	}
	ctx, cancel := context.WithTimeout(ctx, s.t.Timeout)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, s.t.URL, bytes.NewReader(m.Body))
	if err != nil {
		return Result{Outcome: Failed, Reason: "the request cannot be made"}
	}
	now := time.Now()
	h := req.Header
	h.Set("Content-Type", "application/json")
	h.Set("User-Agent", s.t.Agent)
	h.Set(HeaderID, m.ID)
	h.Set(HeaderTimestamp, strconv.FormatInt(now.Unix(), 10))
	h.Set(HeaderSignature, Sign(keys, m.ID, now, m.Body))
	if m.Replay {
		h.Set("Imd-Replay", "true")
	}
	res, err := s.client.Do(req)
	if err != nil {
		return Result{Outcome: Failed, Reason: cause(ctx, err)}
	}
	defer res.Body.Close()                                          // whatever is left goes with the connection
	_, _ = io.Copy(io.Discard, io.LimitReader(res.Body, maxAnswer)) // the status has said it all
	return judge(res)
}

// judge reads an answer.
func judge(res *http.Response) Result {
	r := Result{Status: res.StatusCode, Reason: "status " + strconv.Itoa(res.StatusCode)}
	switch code := res.StatusCode; {
	case code >= 200 && code < 300:
		return Result{Outcome: Taken, Status: code}
	case code == http.StatusRequestTimeout, code == http.StatusTooEarly, code == http.StatusTooManyRequests, code >= 500:
		r.Outcome = Failed
		if s, err := strconv.Atoi(res.Header.Get("Retry-After")); err == nil && s > 0 {
			r.After = min(time.Duration(s)*time.Second, maxAfter)
		}
	case code >= 300 && code < 400:
		r.Outcome, r.Reason = Failed, r.Reason+": "+errRedirect.Error()
	default:
		r.Outcome = Refused
	}
	return r
}

// cause is why there is no answer, without the address, which may hold a secret.
func cause(ctx context.Context, err error) string {
	switch {
	case errors.Is(err, errRedirect):
		return errRedirect.Error()
	case errors.Is(err, errPrivate):
		return errPrivate.Error()
	case errors.Is(ctx.Err(), context.DeadlineExceeded):
		return "no answer in time"
	case errors.Is(err, syscall.ECONNREFUSED):
		return "the connection is refused"
	}
	if u := (*url.Error)(nil); errors.As(err, &u) {
		err = u.Err
	}
	text := err.Error()
	if len(text) > 150 {
		text = text[:150]
	}
	return strings.ToValidUTF8(text, "")
}

var (
	errPrivate = errors.New("the address is in a private network, which is not allowed")
	shared     = netip.MustParsePrefix("100.64.0.0/10") // between providers and their customers
)

// public refuses addresses that are not on the open internet.
func public(_, address string, _ syscall.RawConn) error {
	ap, err := netip.ParseAddrPort(address)
	if err != nil {
		return fmt.Errorf("%s: %w", address, errPrivate)
	}
	if ip := ap.Addr().Unmap(); !ip.IsGlobalUnicast() || ip.IsPrivate() || shared.Contains(ip) {
		return errPrivate
	}
	return nil
}

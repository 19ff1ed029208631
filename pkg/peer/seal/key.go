package seal

import (
	"bytes"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/imdhq/imd/pkg/reload"
)

const (
	// header carries the proof of a request: version, key, milliseconds, nonce and
	// MAC.
	header = "Imd-Proof"
	// answerHeader carries the MAC of an answer.
	answerHeader = "Imd-Answer-Proof"
	// Window is how old a request may be, and how far clocks may differ.
	Window = 30 * time.Second
	// maxNonces is how many requests are remembered for one window.
	maxNonces = 1 << 20
	// MinKey is the shortest key in bytes.
	MinKey = 32
)

// Keys gives the shared keys: the first one signs, all are good. None = nothing
// can be signed, and nothing is accepted. Safe for concurrent use.
type Keys func() [][]byte

// KeyFile reads keys from a file, one a line, at most two. The file is read anew
// when it changes; a bad one leaves the last good keys in force and is reported
// to warn. Errors: it cannot be read, others can read it, or a key is short.
func KeyFile(path string, now func() time.Time, warn func(error)) (Keys, error) {
	f, err := reload.Read(reload.Source[[][]byte]{Paths: []string{path}, Now: now, Warn: warn, Load: func() ([][]byte, error) { return readKeys(path) }})
	if err != nil {
		return nil, err
	}
	return f.Get, nil
}

func readKeys(path string) ([][]byte, error) {
	info, err := os.Stat(path)
	if err != nil {
		return nil, err
	}
	if info.Mode().Perm()&0o077 != 0 {
		return nil, fmt.Errorf("%s can be read by others; chmod 600 it", path)
	}
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	var keys [][]byte
	for line := range strings.Lines(string(text)) {
		if line = strings.TrimSpace(line); line != "" && line[0] != '#' {
			keys = append(keys, []byte(line))
		}
	}
	if len(keys) == 0 || len(keys) > 2 {
		return nil, fmt.Errorf("%s has %d keys; one line is one key, and there are one or two", path, len(keys))
	}
	for _, k := range keys {
		if len(k) < MinKey {
			return nil, fmt.Errorf("%s: a key has %d characters; it needs %d", path, len(k), MinKey)
		}
	}
	return keys, nil
}

// keyName tells keys apart without giving one away.
func keyName(key []byte) string {
	sum := sha256.Sum256(append([]byte("imd key name\n"), key...))
	return hex.EncodeToString(sum[:4])
}

// mac is over what a request says: for whom, which method, when and the body.
func mac(key []byte, to, path, ms, nonce string, body []byte) []byte {
	sum := sha256.Sum256(body)
	h := hmac.New(sha256.New, key)
	fmt.Fprintf(h, "imd peer 1\n%s\n%s\n%s\n%s\n", to, path, ms, nonce)
	h.Write(sum[:])
	return h.Sum(nil)
}

// answerMAC is over an answer and the request, by its MAC, that it belongs to.
func answerMAC(key, request []byte, status int, h http.Header, body []byte) []byte {
	sum := sha256.Sum256(body)
	m := hmac.New(sha256.New, key)
	fmt.Fprintf(m, "imd answer 1\n%x\n%d\n%s\n%s\n", request, status, h.Get("Content-Type"), h.Get("Content-Encoding"))
	m.Write(sum[:])
	return m.Sum(nil)
}

// signer signs requests and checks answers.
type signer struct {
	keys      Keys
	now       func() time.Time
	maxAnswer int64
	next      http.RoundTripper
}

// Sign makes a transport that signs what it hands to next, and takes only answers
// that are signed with the same key for the same request. Bodies of both, answers
// of at most maxAnswer bytes, are read whole.
func Sign(keys Keys, now func() time.Time, maxAnswer int64, next http.RoundTripper) http.RoundTripper {
	return &signer{keys, now, maxAnswer, next}
}

// errNoKey says that the key of the cluster is not known yet.
var errNoKey = errors.New("seal: the key of the cluster is not known yet")

// answered reads an answer and checks that it was made for the request with the
// MAC.
func (s *signer) answered(res *http.Response, key, request []byte) (*http.Response, error) {
	body, err := io.ReadAll(io.LimitReader(res.Body, s.maxAnswer+1))
	if cerr := res.Body.Close(); err == nil {
		err = cerr
	}
	if err != nil {
		return nil, err
	}
	proof := res.Header.Get(answerHeader)
	got, err := hex.DecodeString(proof)
	switch {
	case int64(len(body)) > s.maxAnswer:
		return nil, ErrPeer("the answer is too large")
	case err == nil && proof != "" && hmac.Equal(got, answerMAC(key, request, res.StatusCode, res.Header, body)):
		res.Body, res.ContentLength = io.NopCloser(bytes.NewReader(body)), int64(len(body))
		return res, nil
	case proof == "" && res.StatusCode == http.StatusUnauthorized:
		return nil, ErrPeer("the node refuses this one: " + refusal(body))
	case proof == "":
		return nil, ErrPeer("what answers does not show that it belongs to the cluster")
	}
	return nil, ErrPeer("the answer is not signed with the key of this node")
}

// RoundTrip signs and sends the request, and checks the answer. Errors: ErrPeer if
// the answer proves nothing.
func (s *signer) RoundTrip(r *http.Request) (*http.Response, error) {
	var body []byte
	var err error
	if r.Body != nil {
		body, err = io.ReadAll(r.Body)
		if cerr := r.Body.Close(); err == nil {
			err = cerr
		}
		if err != nil {
			return nil, err
		}
	}
	keys := s.keys()
	if len(keys) == 0 {
		return nil, errNoKey
	}
	r = r.Clone(r.Context())
	r.Body, r.ContentLength = io.NopCloser(bytes.NewReader(body)), int64(len(body))
	r.GetBody = func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(body)), nil }
	ms, nonce := strconv.FormatInt(s.now().UnixMilli(), 10), rand.Text()
	m := mac(keys[0], r.Header.Get(toHeader), r.URL.Path, ms, nonce, body)
	r.Header.Set(header, strings.Join([]string{"1", keyName(keys[0]), ms, nonce, hex.EncodeToString(m)}, " "))
	res, err := s.next.RoundTrip(r)
	if err != nil {
		return nil, err
	}
	return s.answered(res, keys[0], m)
}

// Verifier checks signed requests. Safe for concurrent use.
type Verifier struct {
	keys    Keys
	now     func() time.Time
	maxBody int64

	mu        sync.Mutex
	seen, old map[string]struct{} // nonces of this window and of the one before
	turned    time.Time
}

// NewVerifier accepts requests signed with one of the keys, with bodies of at
// most maxBody bytes.
func NewVerifier(keys Keys, now func() time.Time, maxBody int64) *Verifier {
	return &Verifier{keys: keys, now: now, maxBody: maxBody, seen: map[string]struct{}{}, turned: now()}
}

// ErrProof is why a request is refused. Its text may be shown to the caller.
type ErrProof string

// Error is the text.
func (e ErrProof) Error() string { return string(e) }

// The reasons of refusals.
const (
	errMissing = ErrProof("the proof that the caller belongs to the cluster is missing")
	errOld     = ErrProof("the proof is too old, or the clocks of two nodes differ by more than 30s")
	errForeign = ErrProof("the proof is not made with a key of this cluster")
	errUsed    = ErrProof("the proof was used before")
	errLarge   = ErrProof("the request is too large")
)

// words name the reasons in metrics.
var words = map[ErrProof]string{
	errMissing: "missing", errOld: "old", errForeign: "key", errUsed: "used", errLarge: "large", errRoles: "roles", errNoCertificate: "missing",
}

// Word is the reason in a word, from a closed set.
func (e ErrProof) Word() string {
	if w := words[e]; w != "" {
		return w
	}
	return "other"
}

// Answer signs the answer to one request.
type Answer func(status int, h http.Header, body []byte)

// Check reads the body, checks the proof and puts the body back. What it returns
// signs the answer. Errors: an ErrProof, or the body cannot be read.
func (v *Verifier) Check(r *http.Request) (Answer, error) {
	f := strings.Fields(r.Header.Get(header))
	if len(f) != 5 || f[0] != "1" {
		return nil, errMissing
	}
	ms, err := strconv.ParseInt(f[2], 10, 64)
	now := v.now()
	if off := now.Sub(time.UnixMilli(ms)); err != nil || off > Window || off < -Window {
		return nil, errOld
	}
	key := v.keys.Named(f[1])
	if key == nil { // before the body is read: a stranger costs nothing
		return nil, errForeign
	}
	body, err := io.ReadAll(io.LimitReader(r.Body, v.maxBody+1))
	if err != nil {
		return nil, err
	}
	if int64(len(body)) > v.maxBody {
		return nil, errLarge
	}
	m := mac(key, r.Header.Get(toHeader), r.URL.Path, f[2], f[3], body)
	if got, err := hex.DecodeString(f[4]); err != nil || !hmac.Equal(got, m) {
		return nil, errForeign
	}
	if !v.fresh(f[3], now) {
		return nil, errUsed
	}
	r.Body = io.NopCloser(bytes.NewReader(body))
	return func(status int, h http.Header, body []byte) {
		h.Set(answerHeader, hex.EncodeToString(answerMAC(key, m, status, h, body)))
	}, nil
}

// fresh remembers a nonce; false if it was seen, or too many were.
func (v *Verifier) fresh(nonce string, now time.Time) bool {
	v.mu.Lock()
	defer v.mu.Unlock()
	if now.Sub(v.turned) > 2*Window { // a proof may be as far ahead as behind
		v.old, v.seen, v.turned = v.seen, map[string]struct{}{}, now
	}
	_, a := v.seen[nonce]
	_, b := v.old[nonce]
	if a || b || len(v.seen) >= maxNonces {
		return false
	}
	v.seen[nonce] = struct{}{}
	return true
}

package seal

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"log"
	"math/big"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

const (
	keyA = "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa"
	keyB = "bbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbb"
)

func fixed(keys ...string) Keys {
	return func() [][]byte {
		var out [][]byte
		for _, k := range keys {
			out = append(out, []byte(k))
		}
		return out
	}
}

// roundTrip answers with a function.
type roundTrip func(*http.Request) (*http.Response, error)

func (f roundTrip) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

// errSent says that a request left.
var errSent = errors.New("sent")

// signed is a request as it leaves a signer.
func signed(t *testing.T, keys Keys, now time.Time, body string) *http.Request {
	t.Helper()
	var out *http.Request
	rt := Sign(keys, func() time.Time { return now }, 100, roundTrip(func(r *http.Request) (*http.Response, error) {
		out = r
		return nil, errSent
	}))
	r := httptest.NewRequest(http.MethodPost, "http://x/imd.internal.v1.StateService/Submit", strings.NewReader(body))
	if _, err := rt.RoundTrip(r); !errors.Is(err, errSent) {
		t.Fatal(err)
	}
	return out
}

func TestProofs(t *testing.T) {
	now := time.Unix(1_700_000_000, 0)
	for name, tt := range map[string]struct {
		sign   Keys
		accept Keys
		at     time.Time
		change func(*http.Request)
		good   bool
	}{
		"good":        {sign: fixed(keyA), accept: fixed(keyA), at: now, good: true},
		"new key":     {sign: fixed(keyB, keyA), accept: fixed(keyA, keyB), at: now, good: true},
		"other key":   {sign: fixed(keyB), accept: fixed(keyA), at: now},
		"no key here": {sign: fixed(keyA), accept: fixed(), at: now},
		"old":         {sign: fixed(keyA), accept: fixed(keyA), at: now.Add(-31 * time.Second)},
		"early":       {sign: fixed(keyA), accept: fixed(keyA), at: now.Add(31 * time.Second)},
		"slow clock":  {sign: fixed(keyA), accept: fixed(keyA), at: now.Add(-29 * time.Second), good: true},
		"other body": {sign: fixed(keyA), accept: fixed(keyA), at: now, change: func(r *http.Request) {
			r.Body = io.NopCloser(strings.NewReader("other"))
		}},
		"other method":  {sign: fixed(keyA), accept: fixed(keyA), at: now, change: func(r *http.Request) { r.URL.Path += "2" }},
		"no proof":      {sign: fixed(keyA), accept: fixed(keyA), at: now, change: func(r *http.Request) { r.Header.Del(header) }},
		"other process": {sign: fixed(keyA), accept: fixed(keyA), at: now, change: func(r *http.Request) { r.Header.Set(toHeader, "boot-2") }},
		"other name": {sign: fixed(keyA), accept: fixed(keyA), at: now, change: func(r *http.Request) {
			f := strings.Fields(r.Header.Get(header))
			f[1] = "00000000"
			r.Header.Set(header, strings.Join(f, " "))
		}},
		"garbage": {sign: fixed(keyA), accept: fixed(keyA), at: now, change: func(r *http.Request) { r.Header.Set(header, "1 x x x zz") }},
		"too large": {sign: fixed(keyA), accept: fixed(keyA), at: now, change: func(r *http.Request) {
			r.Body = io.NopCloser(strings.NewReader(strings.Repeat("x", 101)))
		}},
	} {
		v := NewVerifier(tt.accept, func() time.Time { return now }, 100)
		r := signed(t, tt.sign, tt.at, "hello")
		if tt.change != nil {
			tt.change(r)
		}
		_, err := v.Check(r)
		var proof ErrProof
		if (err == nil) != tt.good || err != nil && !errors.As(err, &proof) {
			t.Errorf("%s: %v", name, err)
		}
		if body, _ := io.ReadAll(r.Body); tt.good && string(body) != "hello" {
			t.Errorf("%s: the body is %q afterwards", name, body)
		}
	}
}

// An answer is believed if it is signed for its request with the key of the
// caller, and as it was signed.
func TestAnswers(t *testing.T) {
	now := func() time.Time { return time.Unix(1_700_000_000, 0) }
	var before http.Header // of an answer to an earlier request
	for name, tt := range map[string]struct {
		caller, callee Keys
		change         func(*http.Response)
		want           string // of the error; "" = it is believed
	}{
		"good":         {caller: fixed(keyA), callee: fixed(keyA)},
		"changing key": {caller: fixed(keyB, keyA), callee: fixed(keyA, keyB)},
		"wrong key":    {caller: fixed(keyB), callee: fixed(keyA), want: "the node refuses this one: the proof is not made with a key of this cluster"},
		"no proof":     {caller: fixed(keyA), callee: fixed(keyA), change: func(r *http.Response) { r.Header.Del(answerHeader) }, want: "does not show"},
		"other body": {caller: fixed(keyA), callee: fixed(keyA), want: "not signed", change: func(r *http.Response) {
			r.Body = io.NopCloser(strings.NewReader("good answer!"))
		}},
		"other status": {caller: fixed(keyA), callee: fixed(keyA), want: "not signed", change: func(r *http.Response) { r.StatusCode = 503 }},
		"other kind":   {caller: fixed(keyA), callee: fixed(keyA), want: "not signed", change: func(r *http.Response) { r.Header.Set("Content-Encoding", "gzip") }},
		"of another request": {caller: fixed(keyA), callee: fixed(keyA), want: "not signed", change: func(r *http.Response) {
			r.Header.Set(answerHeader, before.Get(answerHeader))
		}},
		"too large": {caller: fixed(keyA), callee: fixed(keyA), want: "too large", change: func(r *http.Response) {
			r.Body = io.NopCloser(strings.NewReader(strings.Repeat("x", 101)))
		}},
	} {
		v := NewVerifier(tt.callee, now, 100)
		var change func(*http.Response)
		rt := Address(Sign(tt.caller, now, 100, roundTrip(func(r *http.Request) (*http.Response, error) {
			w := httptest.NewRecorder()
			if sign, err := v.Check(r); err != nil {
				w.WriteHeader(http.StatusUnauthorized)
				_, _ = w.WriteString(`{"message":"` + err.Error() + `"}`)
			} else {
				kept := NewRecorder(w, sign)
				kept.Header().Set("Content-Type", "application/proto")
				kept.WriteHeader(http.StatusAccepted)
				_, _ = io.WriteString(kept, "good ")
				_, _ = io.WriteString(kept, "answer")
				kept.Send()
			}
			res := w.Result()
			if change != nil {
				change(res)
			}
			return res, nil
		})), "boot-1")
		ask := func() (string, error) {
			res, err := rt.RoundTrip(httptest.NewRequest(http.MethodPost, "http://x/y", strings.NewReader("question")))
			if err != nil {
				return "", err
			}
			before = res.Header
			body, err := io.ReadAll(res.Body)
			return fmt.Sprint(res.StatusCode, " ", string(body)), err
		}
		if tt.want == "" || before == nil {
			if got, err := ask(); tt.want == "" && (err != nil || got != "202 good answer") {
				t.Errorf("%s: %q, %v", name, got, err)
			}
		}
		if tt.want == "" {
			continue
		}
		change = tt.change
		_, err := ask()
		var no ErrPeer
		if !errors.As(err, &no) || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// Refusals are told apart from answers, and say why.
func TestRefusals(t *testing.T) {
	refuse := false
	var at *http.Request
	rt := Address(roundTrip(func(r *http.Request) (*http.Response, error) {
		at = r
		w := httptest.NewRecorder()
		if refuse {
			Refuse(w)
		}
		_, _ = w.WriteString("{\"message\":\"not \u001b[31mhere\"}")
		return w.Result(), nil
	}), "boot-1")
	ask := func() error {
		_, err := rt.RoundTrip(httptest.NewRequest(http.MethodPost, "http://x/y", nil))
		return err
	}
	if err := ask(); err != nil {
		t.Error(err)
	}
	if Misdirected(at, "boot-1") || !Misdirected(at, "boot-2") || Misdirected(httptest.NewRequest(http.MethodPost, "/y", nil), "boot-1") {
		t.Error("who is meant is not known")
	}
	refuse = true
	var no ErrPeer
	if err := ask(); !errors.As(err, &no) || strings.Contains(err.Error(), "\x1b") {
		t.Errorf("%v", err)
	}
}

func TestAProofIsGoodOnce(t *testing.T) {
	now := time.Unix(1_700_000_000, 0)
	v := NewVerifier(fixed(keyA), func() time.Time { return now }, 100)
	r := signed(t, fixed(keyA), now, "x")
	again := r.Clone(t.Context())
	again.Body = io.NopCloser(strings.NewReader("x"))
	if _, err := v.Check(r); err != nil {
		t.Fatal(err)
	}
	for range 2 { // also when the window has turned
		if _, err := v.Check(again); err == nil {
			t.Error("a proof was good twice")
		}
		again.Body = io.NopCloser(strings.NewReader("x"))
		now = now.Add(25 * time.Second)
	}
}

func TestNothingIsSentWithoutAKey(t *testing.T) {
	rt := Sign(fixed(), time.Now, 100, roundTrip(func(*http.Request) (*http.Response, error) { return nil, errors.New("sent") }))
	if _, err := rt.RoundTrip(httptest.NewRequest(http.MethodPost, "http://x/y", nil)); !errors.Is(err, errNoKey) {
		t.Error(err)
	}
}

func write(t *testing.T, path, text string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

func TestKeyFileIsReadAnew(t *testing.T) {
	path, now, warned := filepath.Join(t.TempDir(), "keys"), time.Unix(1_700_000_000, 0), 0
	for name, text := range map[string]string{"empty": "", "short": "abc\n", "three": keyA + "\n" + keyB + "\n" + keyA + "x\n"} {
		write(t, path, text)
		if _, err := KeyFile(path, time.Now, nil); err == nil {
			t.Errorf("%s is a good file", name)
		}
	}
	write(t, path, "# keys\n"+keyA+"\n")
	keys, err := KeyFile(path, func() time.Time { return now }, func(error) { warned++ })
	if err != nil {
		t.Fatal(err)
	}
	write(t, path, keyB+"\n"+keyA+"\n")
	if len(keys()) != 1 {
		t.Error("looked at the file within a second")
	}
	now = now.Add(time.Second)
	if got := keys(); len(got) != 2 || string(got[0]) != keyB {
		t.Errorf("%q", got)
	}
	write(t, path, "bad")
	now = now.Add(time.Second)
	if got := keys(); len(got) != 2 || warned != 1 {
		t.Errorf("a bad file gives %q and %d warnings", got, warned)
	}
	if err := os.Chmod(path, 0o644); err != nil {
		t.Fatal(err)
	}
	if _, err := KeyFile(path, time.Now, nil); err == nil || !strings.Contains(err.Error(), "others") {
		t.Errorf("a file for all: %v", err)
	}
}

// authority signs certificates for tests.
type authority struct {
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
	pem  []byte
}

func newAuthority(t *testing.T) *authority {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	tmpl := &x509.Certificate{SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "ca"}, IsCA: true, BasicConstraintsValid: true,
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour), KeyUsage: x509.KeyUsageCertSign}
	der, err := x509.CreateCertificate(rand.Reader, tmpl, tmpl, &key.PublicKey, key)
	if err != nil {
		t.Fatal(err)
	}
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	return &authority{cert, key, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})}
}

// issue writes the files of a node with the roles.
func (a *authority) issue(t *testing.T, dir, cluster string, roles ...string) Files {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	var uris []*url.URL
	for _, r := range roles {
		uris = append(uris, RoleURI(cluster, r))
	}
	tmpl := &x509.Certificate{SerialNumber: big.NewInt(time.Now().UnixNano()), Subject: pkix.Name{CommonName: "node"}, URIs: uris,
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth, x509.ExtKeyUsageServerAuth}}
	der, err := x509.CreateCertificate(rand.Reader, tmpl, a.cert, &key.PublicKey, a.key)
	if err != nil {
		t.Fatal(err)
	}
	private, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	f := Files{CA: filepath.Join(dir, "ca.pem"), Cert: filepath.Join(dir, "cert.pem"), Key: filepath.Join(dir, "key.pem")}
	write(t, f.CA, string(a.pem))
	write(t, f.Cert, string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})))
	write(t, f.Key, string(pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: private})))
	return f
}

func certs(t *testing.T, f Files, now func() time.Time) *Certs {
	t.Helper()
	c, err := Load(f, "imd", now, func(err error) { t.Error(err) })
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func TestCertificatesDecideWhoMayCall(t *testing.T) {
	ca, other := newAuthority(t), newAuthority(t)
	server := certs(t, ca.issue(t, t.TempDir(), "imd", "state"), time.Now)
	srv := &http.Server{TLSConfig: server.Server(), ErrorLog: log.New(io.Discard, "", 0), Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if err := server.Allowed(r); err != nil {
			http.Error(w, err.Error(), http.StatusForbidden)
		}
	})}
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- srv.ServeTLS(ln, "", "") }()
	defer func() { _ = srv.Close(); <-ended }()
	foreign := ca.issue(t, t.TempDir(), "imd", "gateway")
	stolen := other.issue(t, t.TempDir(), "imd", "gateway")
	stolen.CA = foreign.CA // trusts us, but we do not trust it
	for name, tt := range map[string]struct {
		files  Files
		path   string
		status int
	}{
		"gateway submits":     {ca.issue(t, t.TempDir(), "imd", "gateway"), "/imd.internal.v1.StateService/Submit", 200},
		"push submits":        {ca.issue(t, t.TempDir(), "imd", "push"), "/imd.internal.v1.StateService/Submit", 403},
		"push asks members":   {ca.issue(t, t.TempDir(), "imd", "push"), "/imd.internal.v1.StateService/Members", 200},
		"two roles":           {ca.issue(t, t.TempDir(), "imd", "push", "gateway"), "/imd.internal.v1.StateService/Submit", 200},
		"unknown service":     {ca.issue(t, t.TempDir(), "imd", "gateway"), "/imd.v1.MessageService/Send", 403},
		"another authority":   {stolen, "/imd.internal.v1.StateService/Submit", 0},
		"no certificate ever": {Files{}, "/imd.internal.v1.StateService/Submit", 0},
	} {
		cfg := &tls.Config{InsecureSkipVerify: true}
		if tt.files != (Files{}) {
			cfg = certs(t, tt.files, time.Now).Client()
		}
		client := &http.Client{Transport: &http.Transport{TLSClientConfig: cfg, ForceAttemptHTTP2: true}}
		res, err := client.Post("https://"+ln.Addr().String()+tt.path, "text/plain", nil)
		status := 0
		if err == nil {
			status = res.StatusCode
			res.Body.Close()
		}
		client.CloseIdleConnections()
		if status != tt.status {
			t.Errorf("%s: %d, %v", name, status, err)
		}
	}
}

func TestCertificatesAreReadAnew(t *testing.T) {
	ca, dir, now := newAuthority(t), t.TempDir(), time.Now()
	c := certs(t, ca.issue(t, dir, "imd", "state"), func() time.Time { return now })
	before := c.files.Get().cert.Certificate[0]
	f := ca.issue(t, dir, "imd", "state", "push")
	if err := os.Chtimes(f.Cert, now, now.Add(time.Hour)); err != nil { // times tell files apart
		t.Fatal(err)
	}
	now = now.Add(2 * time.Second)
	if bytes.Equal(before, c.files.Get().cert.Certificate[0]) || len(c.Roles()) != 2 {
		t.Error("the old certificate is in force")
	}
	if _, err := Load(ca.issue(t, t.TempDir(), "imd", "state"), "imd2", time.Now, nil); err == nil {
		t.Error("a certificate of another cluster is good")
	}
}

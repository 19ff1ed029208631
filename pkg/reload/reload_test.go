package reload

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"math/big"
	"os"
	"path/filepath"
	"sync/atomic"
	"testing"
	"time"
)

// What changes is in force a second later; what is bad is told once and leaves the
// last good value.
func TestValue(t *testing.T) {
	path, now, told := filepath.Join(t.TempDir(), "f"), time.Now(), 0
	put := func(text string) {
		t.Helper()
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Chtimes(path, now, now); err != nil { // times tell files apart
			t.Fatal(err)
		}
	}
	source := Source[string]{Paths: []string{path}, Now: func() time.Time { return now }, Warn: func(error) { told++ }, Load: func() (string, error) {
		text, err := os.ReadFile(path)
		if string(text) == "bad" {
			err = errors.New("it is bad")
		}
		return string(text), err
	}}
	if _, err := Read(source); err == nil {
		t.Fatal("a file that is not there was read")
	}
	put("one")
	v, err := Read(source)
	if err != nil {
		t.Fatal(err)
	}
	step := func(after time.Duration, want string, wantBad bool, wantTold int) {
		t.Helper()
		now = now.Add(after)
		if got, bad := v.Look(); got != want || bad != wantBad || told != wantTold {
			t.Errorf("%q, bad %v, told %d times; want %q, %v, %d", got, bad, told, want, wantBad, wantTold)
		}
	}
	put("two!")
	step(recheck/2, "one", false, 0)
	step(recheck, "two!", false, 0)
	put("bad")
	step(recheck, "two!", true, 1)
	step(recheck, "two!", true, 1)
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	step(recheck, "two!", true, 2)
	put("three")
	step(recheck, "three", false, 2)
	if v.Get() != "three" {
		t.Error("Get and Look differ")
	}
}

// What could not be read for a passing reason is read again, though the files have not
// changed since; each reason is told once.
func TestWhatFailedIsTriedAgain(t *testing.T) {
	now, told, why, loads := time.Now(), []string{}, error(nil), 0
	path := filepath.Join(t.TempDir(), "f")
	v, err := Read(Source[int]{Paths: []string{path}, Now: func() time.Time { return now },
		Warn: func(err error) { told = append(told, err.Error()) },
		Load: func() (int, error) { loads++; return loads, why }})
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	denied := errors.New("permission denied")
	for i, step := range []struct {
		after time.Duration
		why   error
		want  int
		told  int
	}{{recheck, denied, 1, 1}, {recheck, denied, 1, 1}, {recheck, errors.New("too many open files"), 1, 2}, {recheck, denied, 1, 3},
		{recheck / 2, nil, 1, 3}, {recheck / 2, nil, 6, 3}, {recheck, nil, 6, 3}} {
		now, why = now.Add(step.after), step.why
		if got, bad := v.Look(); got != step.want || bad != (step.want == 1) || len(told) != step.told {
			t.Errorf("step %d: %d, bad %v, told %q; want %d, told %d", i, got, bad, told, step.want, step.told)
		}
	}
}

// While one reads files that do not come, the others get what was read last.
func TestALoadThatHangsHoldsUpNobodyElse(t *testing.T) {
	path := filepath.Join(t.TempDir(), "f")
	put := func(text string) {
		t.Helper()
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	put("one")
	var clock atomic.Int64
	reading, free := make(chan struct{}), make(chan struct{})
	var loads atomic.Int64
	v, err := Read(Source[string]{Paths: []string{path}, Now: func() time.Time { return time.Unix(clock.Load(), 0) }, Warn: func(err error) { t.Error(err) },
		Load: func() (string, error) {
			if loads.Add(1) > 1 {
				reading <- struct{}{}
				<-free
			}
			text, err := os.ReadFile(path)
			return string(text), err
		}})
	if err != nil {
		t.Fatal(err)
	}
	put("another")
	clock.Add(10)
	first := make(chan string)
	go func() { first <- v.Get() }()
	<-reading
	for range 3 {
		clock.Add(10)
		other := make(chan string, 1)
		go func() { other <- v.Get() }()
		select {
		case got := <-other:
			if got != "one" {
				t.Errorf("meanwhile it is %q", got)
			}
		case <-time.After(10 * time.Second):
			t.Fatal("another one waits for the files")
		}
	}
	close(free)
	if got := <-first; got != "another" || v.Get() != "another" || loads.Load() != 2 {
		t.Errorf("%q after %d loads", got, loads.Load())
	}
}

// issue writes a certificate that ends at the time and is signed by the other, or
// by itself.
func issue(t *testing.T, ends time.Time, by *tls.Certificate) (cert, key string, pair *tls.Certificate) {
	t.Helper()
	private, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	c := &x509.Certificate{SerialNumber: big.NewInt(1), NotBefore: ends.Add(-time.Hour), NotAfter: ends, IsCA: by == nil, BasicConstraintsValid: true}
	parent, signer := c, any(private)
	var chain [][]byte
	if by != nil {
		parent, signer, chain = by.Leaf, by.PrivateKey, by.Certificate
	}
	der, err := x509.CreateCertificate(rand.Reader, c, parent, private.Public(), signer)
	if err != nil {
		t.Fatal(err)
	}
	var text []byte
	for _, block := range append([][]byte{der}, chain...) {
		text = append(text, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: block})...)
	}
	secret, err := x509.MarshalECPrivateKey(private)
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	cert, key = filepath.Join(dir, "cert.pem"), filepath.Join(dir, "key.pem")
	if err := errors.Join(os.WriteFile(cert, text, 0o644),
		os.WriteFile(key, pem.EncodeToMemory(&pem.Block{Type: "EC PRIVATE KEY", Bytes: secret}), 0o600)); err != nil {
		t.Fatal(err)
	}
	if pair, err = Certificate(cert, key, 0o077); err != nil {
		t.Fatal(err)
	}
	return cert, key, pair
}

func TestCertificate(t *testing.T) {
	soon, later := time.Now().Add(time.Hour).Truncate(time.Second), time.Now().Add(48*time.Hour).Truncate(time.Second)
	_, _, root := issue(t, soon, nil)
	cert, key, leaf := issue(t, later, root)
	if len(leaf.Certificate) != 2 || !Ends(leaf).Equal(soon) {
		t.Errorf("a chain of %d ends %v, want %v", len(leaf.Certificate), Ends(leaf), soon)
	}
	otherCert, otherKey, other := issue(t, later, nil)
	if !Ends(other).Equal(later) {
		t.Errorf("it ends %v, want %v", Ends(other), later)
	}
	for _, pair := range [][2]string{{cert, otherKey}, {otherCert, key}, {key, cert}, {cert, cert + "x"}, {cert + "x", key}} {
		if _, err := Certificate(pair[0], pair[1], 0o007); err == nil {
			t.Errorf("%v is a pair", pair)
		}
	}
	for _, x := range []struct {
		mode, others os.FileMode
		good         bool
	}{{0o640, 0o007, true}, {0o640, 0o077, false}, {0o644, 0o007, false}} {
		if err := os.Chmod(key, x.mode); err != nil {
			t.Fatal(err)
		}
		if _, err := Certificate(cert, key, x.others); (err == nil) != x.good {
			t.Errorf("a key of mode %o, without %o: %v", x.mode, x.others, err)
		}
	}
}

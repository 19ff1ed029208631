package redis

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"
	"go.uber.org/zap"

	"github.com/imdhq/imd/pkg/dedup"
	"github.com/imdhq/imd/pkg/dedup/deduptest"
	"github.com/imdhq/imd/pkg/im"
	"github.com/imdhq/imd/pkg/redis"
	"github.com/imdhq/imd/pkg/testenv"
)

// The library's cluster client leaves a timer behind that ends by itself within
// a second.
func TestMain(m *testing.M) {
	goleak.VerifyTestMain(m, goleak.IgnoreAnyFunction("github.com/redis/rueidis.(*call).DelayDo.func1"))
}

const (
	patience = 10 * time.Second
	// closeTime is how long closing may take.
	closeTime = 2 * time.Second
)

// open opens a cache and waits until it answers.
func open(t *testing.T, url string, o dedup.Options) *Cache {
	t.Helper()
	c, err := Open(Config{Config: redis.Config{URL: url}, Options: o}, zap.NewNop())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := c.Close(); err != nil {
			t.Error(err)
		}
	})
	c.awaits(t, true)
	return c
}

// awaits waits until the cache answers, or is known not to.
func (c *Cache) awaits(t *testing.T, answers bool) {
	t.Helper()
	for deadline := time.Now().Add(patience); c.Open() == answers; time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("the circuit is open: %v", c.Open())
		}
	}
}

// try asks for one key until there is an answer.
func (c *Cache) try(t *testing.T, owner string, k dedup.Key) dedup.Found {
	t.Helper()
	for deadline := time.Now().Add(patience); ; time.Sleep(time.Millisecond) {
		found, err := c.Try(t.Context(), owner, []dedup.Key{k})
		if err == nil {
			return found[0]
		}
		if time.Now().After(deadline) {
			t.Fatal(err)
		}
	}
}

func (c *Cache) confirm(t *testing.T, k dedup.Key, a dedup.Answer) {
	t.Helper()
	for deadline := time.Now().Add(patience); ; time.Sleep(time.Millisecond) {
		err := c.Confirm(t.Context(), []dedup.Confirmed{{Key: k, Answer: a}})
		if err == nil {
			return
		}
		if time.Now().After(deadline) {
			t.Fatal(err)
		}
	}
}

func key(id string) dedup.Key {
	return dedup.Key{DataEpoch: "e1", Conversation: "g_1", Sender: "alice", ClientMessageID: im.ClientMessageID(id)}
}

func answer() dedup.Answer {
	return dedup.Answer{MessageID: 5, Seq: 2, PrevSeq: 1, ServerTime: time.UnixMilli(1_800_000_000_000), MemberVersion: 1}
}

func TestConformance(t *testing.T) {
	r := testenv.StartRedis(t)
	deduptest.Run(t, func(t *testing.T, o dedup.Options) dedup.Cache { return open(t, r.URL(), o) })
}

func TestClusterConformance(t *testing.T) {
	r := testenv.StartRedis(t, "--cluster-enabled", "yes")
	r.MustDo("CLUSTER", "ADDSLOTSRANGE", "0", "16383")
	for deadline := time.Now().Add(patience); ; time.Sleep(5 * time.Millisecond) {
		if _, err := r.Do("SET", "x", "y"); err == nil {
			break
		} else if time.Now().After(deadline) {
			t.Fatal(err)
		}
	}
	deduptest.Run(t, func(t *testing.T, o dedup.Options) dedup.Cache { return open(t, r.URL(), o) })
}

func TestWhatIsNotOursIsUnreadable(t *testing.T) {
	r := testenv.StartRedis(t)
	c := open(t, r.URL(), dedup.Options{})
	r.MustDo("LPUSH", key("list").String(), "C1")
	r.MustDo("SET", key("text").String(), "hello")
	r.MustDo("SET", key("large").String(), "C1:"+strings.Repeat("1", 100_000))
	r.MustDo("SET", key("cut").String(), answer().Value()[:40])
	for _, id := range []string{"list", "text", "large", "cut"} {
		if f := c.try(t, "n1", key(id)); f.State != dedup.Unreadable {
			t.Errorf("%s: %+v", id, f)
		}
	}
	if f := c.try(t, "n1", key("new")); f.State != dedup.Claimed {
		t.Errorf("a key beside them: %+v", f)
	}
	for _, id := range []string{"list", "text"} { // the store's answer replaces them
		c.confirm(t, key(id), answer())
		if f := c.try(t, "n1", key(id)); f.State != dedup.Known || f.Answer != answer() {
			t.Errorf("%s after a confirm: %+v", id, f)
		}
	}
	r.MustDo("LPUSH", key("other").String(), "C1")
	if err := c.Cancel(t.Context(), "n1", []dedup.Key{key("other")}); dedup.ClassOf(err) != dedup.WrongType {
		t.Errorf("cancel of a list: %v", err)
	}
	if c.Open() {
		t.Error("answers opened the circuit")
	}
}

func TestAFlushedCacheKnowsNothing(t *testing.T) {
	r := testenv.StartRedis(t)
	c := open(t, r.URL(), dedup.Options{})
	c.confirm(t, key("a"), answer())
	r.MustDo("FLUSHALL")
	if f := c.try(t, "n1", key("a")); f.State != dedup.Claimed {
		t.Fatalf("found %+v", f)
	}
}

// A server that hangs costs a few calls a few milliseconds each, then nothing
// until it answers again.
func TestAHungServerCostsLittleAndThenNothing(t *testing.T) {
	r := testenv.StartRedis(t)
	c := open(t, r.URL(), dedup.Options{})
	c.confirm(t, key("a"), answer())
	r.Pause()
	for i := 0; !c.Open(); i++ {
		took := testenv.Took(func() {
			if _, err := c.Try(t.Context(), "n1", []dedup.Key{key("a")}); err == nil {
				t.Fatal("a paused server answered")
			}
		})
		if took > 40*tryTime { // the machine may be busy
			t.Errorf("a call took %v", took)
		}
		if i == 5 {
			t.Fatal("the circuit stays closed")
		}
	}
	took := testenv.Took(func() {
		for range 10_000 {
			if _, err := c.Try(t.Context(), "n1", []dedup.Key{key("a")}); dedup.ClassOf(err) != dedup.Open {
				t.Fatalf("error %v", err)
			}
		}
	})
	if took > time.Second {
		t.Errorf("10,000 calls that are not made took %v", took)
	}
	if err := c.Confirm(t.Context(), []dedup.Confirmed{{Key: key("a"), Answer: answer()}}); dedup.ClassOf(err) != dedup.Open {
		t.Errorf("confirm: %v", err)
	}
	r.Resume()
	c.awaits(t, true)
	if f := c.try(t, "n1", key("a")); f.State != dedup.Known || f.Answer != answer() {
		t.Errorf("found %+v", f)
	}
}

func TestCloseDoesNotWaitForAHungServer(t *testing.T) {
	r := testenv.StartRedis(t)
	c, err := Open(Config{Config: redis.Config{URL: r.URL()}}, zap.NewNop())
	if err != nil {
		t.Fatal(err)
	}
	c.awaits(t, true)
	r.Pause()
	for range 5 {
		c.Try(t.Context(), "n1", []dedup.Key{key("a")})
	}
	began := time.Now()
	took := testenv.Took(func() { err = c.Close() })
	wall := time.Since(began)
	// Only a machine that stands still makes it give up.
	if err != nil && (wall < closeTime || took > closeTime/2) || took > 2*closeTime {
		t.Errorf("it took %v, %v by the wall: %v", took, wall, err)
	}
}

func TestADeadServerIsFoundAgain(t *testing.T) {
	r := testenv.StartRedis(t)
	c := open(t, r.URL(), dedup.Options{})
	c.confirm(t, key("a"), answer())
	for range 3 {
		r.Kill()
		for i := 0; !c.Open(); i++ {
			if _, err := c.Try(t.Context(), "n1", []dedup.Key{key("a")}); err == nil || !dedup.ClassOf(err).Silent() && dedup.ClassOf(err) != dedup.Open {
				t.Fatalf("error %v", err)
			}
			if i == 5 {
				t.Fatal("the circuit stays closed")
			}
		}
		r.Start()
		c.awaits(t, true)
		if f := c.try(t, "n1", key("a")); f.State != dedup.Claimed {
			t.Fatalf("an empty server knows %+v", f)
		}
	}
}

func TestAServerThatComesLater(t *testing.T) {
	r := testenv.StartRedis(t)
	r.Kill()
	c, err := Open(Config{Config: redis.Config{URL: r.URL()}}, zap.NewNop())
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if _, err := c.Try(t.Context(), "n1", []dedup.Key{key("a")}); dedup.ClassOf(err) != dedup.Open {
		t.Fatalf("error %v", err)
	}
	r.Start()
	c.awaits(t, true)
	if f := c.try(t, "n1", key("a")); f.State != dedup.Claimed {
		t.Fatalf("found %+v", f)
	}
}

func TestAFullServerForgetsButAnswers(t *testing.T) {
	r := testenv.StartRedis(t)
	c := open(t, r.URL(), dedup.Options{})
	c.confirm(t, key("a"), answer())
	r.MustDo("CONFIG", "SET", "maxmemory", "1")
	if f := c.try(t, "n1", key("a")); f.State != dedup.Known {
		t.Errorf("what it has: %+v", f)
	}
	if f := c.try(t, "n1", key("b")); f.State != dedup.Claimed {
		t.Errorf("what it has no room for: %+v", f)
	}
	if err := c.Confirm(t.Context(), []dedup.Confirmed{{Key: key("b"), Answer: answer()}}); dedup.ClassOf(err) != dedup.Full {
		t.Errorf("confirm: %v", err)
	}
	if c.Open() {
		t.Error("answers opened the circuit")
	}
}

func TestAReplicaIsReadOnly(t *testing.T) {
	r := testenv.StartRedis(t)
	c := open(t, r.URL(), dedup.Options{})
	c.confirm(t, key("a"), answer())
	r.MustDo("CONFIG", "SET", "replica-serve-stale-data", "yes")
	r.MustDo("REPLICAOF", "127.0.0.1", "1")
	if f := c.try(t, "n1", key("a")); f.State != dedup.Known {
		t.Errorf("found %+v", f)
	}
	if err := c.Confirm(t.Context(), []dedup.Confirmed{{Key: key("b"), Answer: answer()}}); dedup.ClassOf(err) != dedup.ReadOnly {
		t.Errorf("confirm: %v", err)
	}
}

func TestPasswords(t *testing.T) {
	r := testenv.StartRedis(t, "--requirepass", "right")
	c := open(t, "redis://:right@"+r.Addr, dedup.Options{})
	if f := c.try(t, "n1", key("a")); f.State != dedup.Claimed {
		t.Fatalf("found %+v", f)
	}
	if _, err := redis.Examine(t.Context(), redis.Config{URL: "redis://:wrong@" + r.Addr}); dedup.ClassOf(err) != dedup.Refused {
		t.Errorf("a wrong password: %v", err)
	}
}

func TestTLS(t *testing.T) {
	files, roots := certificate(t)
	r := testenv.StartRedis(t)
	_, port, _ := net.SplitHostPort(r.Addr)
	r.MustDo("CONFIG", "SET", "tls-cert-file", files[0], "tls-key-file", files[1], "tls-ca-cert-file", files[0], "tls-auth-clients", "no", "port", "0", "tls-port", port)
	c, err := Open(Config{Config: redis.Config{URL: "rediss://" + r.Addr, TLS: &tls.Config{RootCAs: roots}}}, zap.NewNop())
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	c.awaits(t, true)
	if f := c.try(t, "n1", key("a")); f.State != dedup.Claimed {
		t.Fatalf("found %+v", f)
	}
	if _, err := redis.Examine(t.Context(), redis.Config{URL: "rediss://" + r.Addr}); err == nil {
		t.Fatal("a certificate that nobody vouches for was believed")
	}
}

// certificate makes one for 127.0.0.1: the files of it and of its key, and the
// pool that trusts it.
func certificate(t *testing.T) (files [2]string, roots *x509.CertPool) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	tmpl := &x509.Certificate{
		SerialNumber: big.NewInt(1), NotAfter: time.Now().Add(time.Hour), IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageDigitalSignature | x509.KeyUsageCertSign,
	}
	cert, err := x509.CreateCertificate(rand.Reader, tmpl, tmpl, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	secret, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	for i, block := range []*pem.Block{{Type: "CERTIFICATE", Bytes: cert}, {Type: "PRIVATE KEY", Bytes: secret}} {
		files[i] = filepath.Join(t.TempDir(), "pem")
		if err := os.WriteFile(files[i], pem.EncodeToMemory(block), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	roots = x509.NewCertPool()
	parsed, err := x509.ParseCertificate(cert)
	if err != nil {
		t.Fatal(err)
	}
	roots.AddCert(parsed)
	return files, roots
}

// The caller's own time is kept too, and says nothing about the server.
func TestACallerWithoutTime(t *testing.T) {
	r := testenv.StartRedis(t)
	c := open(t, r.URL(), dedup.Options{})
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	for range 10 {
		if _, err := c.Try(ctx, "n1", []dedup.Key{key("a")}); err == nil {
			t.Fatal("a call without time succeeded")
		}
	}
	if c.Open() {
		t.Fatal("callers without time opened the circuit")
	}
}

// BenchmarkTry is one look-up of so many keys that are known.
func BenchmarkTry(b *testing.B) {
	for _, n := range []int{1, 100} {
		b.Run(strconv.Itoa(n), func(b *testing.B) {
			r := testenv.StartRedis(b)
			c, err := Open(Config{Config: redis.Config{URL: r.URL()}}, zap.NewNop())
			if err != nil {
				b.Fatal(err)
			}
			defer c.Close()
			for c.Open() {
				time.Sleep(time.Millisecond)
			}
			keys, done := make([]dedup.Key, n), make([]dedup.Confirmed, n)
			for i := range keys {
				keys[i] = dedup.Key{DataEpoch: "0123456789abcdef", Conversation: "d_abcdefghijklmnopqrstuvwxyz", Sender: "alice", ClientMessageID: im.ClientMessageID(fmt.Sprintf("00000000-0000-4000-8000-%012d", i))}
				done[i] = dedup.Confirmed{Key: keys[i], Answer: answer()}
			}
			if err := c.Confirm(b.Context(), done); err != nil {
				b.Fatal(err)
			}
			failed := 0
			for b.Loop() {
				if _, err := c.Try(b.Context(), "n1", keys); err != nil {
					failed++
				}
			}
			b.ReportMetric(float64(failed), "failed")
			b.Logf("a key takes %s bytes in Redis", r.MustDo("MEMORY", "USAGE", keys[0].String()))
		})
	}
}

package auth

import (
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"encoding/base64"
	"encoding/pem"
	"math/big"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/golang-jwt/jwt/v5"

	"github.com/imdhq/imd/pkg/im"
	"github.com/imdhq/imd/sdk/go/gen/clientv1"
	"github.com/imdhq/imd/sdk/go/protocol"
)

var (
	now    = time.UnixMilli(1_795_975_200_250)
	secret = []byte("0123456789abcdef0123456789abcdef")
	key    = Key{ID: "k1", Secret: secret}
)

func verifier(t testing.TB, change func(*Config), keys ...Key) *Verifier {
	t.Helper()
	cfg := DefaultConfig()
	if change != nil {
		change(&cfg)
	}
	if keys == nil {
		keys = []Key{key}
	}
	v, err := NewVerifier(cfg, func() []Key { return keys })
	if err != nil {
		t.Fatal(err)
	}
	return v
}

// sign makes a token of any shape.
func sign(t testing.TB, m jwt.SigningMethod, k any, header map[string]any, claims jwt.MapClaims) string {
	t.Helper()
	tok := jwt.NewWithClaims(m, claims)
	for n, v := range header {
		tok.Header[n] = v
	}
	s, err := tok.SignedString(k)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func good() jwt.MapClaims {
	return jwt.MapClaims{"sub": "alice", "sid": "l1", "aud": "imd", "iat": now.Unix(), "exp": now.Unix() + 3600}
}

func TestMintedTokenVerifies(t *testing.T) {
	v := verifier(t, func(c *Config) { c.Issuer = "me" })
	want := Claims{User: "alice", Login: "l1", Device: "d1", Class: im.Phone, Issuer: "me", IssuedAt: now, Expires: now.Add(time.Hour)}
	s, err := Mint(key, want, "imd")
	if err != nil {
		t.Fatal(err)
	}
	got, err := v.Verify(s, now)
	if err != nil {
		t.Fatal(err)
	}
	if !got.IssuedAt.Equal(want.IssuedAt) || !got.Expires.Equal(want.Expires) {
		t.Errorf("times = %v, %v; want %v, %v to the millisecond", got.IssuedAt, got.Expires, want.IssuedAt, want.Expires)
	}
	got.IssuedAt, got.Expires = want.IssuedAt, want.Expires
	if got != want {
		t.Errorf("claims = %+v, want %+v", got, want)
	}
}

func TestMintRefuses(t *testing.T) {
	ok := Claims{User: "alice", Login: "l1", IssuedAt: now, Expires: now.Add(time.Hour)}
	for name, f := range map[string]func(*Key, *Claims){
		"a short secret":   func(k *Key, _ *Claims) { k.Secret = secret[:31] },
		"no user":          func(_ *Key, c *Claims) { c.User = "" },
		"a bad user":       func(_ *Key, c *Claims) { c.User = "a b" },
		"no login":         func(_ *Key, c *Claims) { c.Login = "" },
		"a bad device":     func(_ *Key, c *Claims) { c.Device = "a/b" },
		"an unknown class": func(_ *Key, c *Claims) { c.Class = "fridge" },
		"no life":          func(_ *Key, c *Claims) { c.Expires = c.IssuedAt },
	} {
		k, c := key, ok
		f(&k, &c)
		if s, err := Mint(k, c, "imd"); err == nil {
			t.Errorf("%s: minted %s", name, s)
		}
	}
}

func TestVerifyClaims(t *testing.T) {
	tests := []struct {
		name   string
		change func(jwt.MapClaims)
		reason im.Reason // unspecified = accepted
		text   string    // part of the message
	}{
		{name: "all is well", change: func(jwt.MapClaims) {}},
		{name: "jti stands in for sid", change: func(c jwt.MapClaims) { delete(c, "sid"); c["jti"] = "j1" }},
		{name: "one of several audiences", change: func(c jwt.MapClaims) { c["aud"] = []string{"shop", "imd"} }},
		{name: "no iat", change: func(c jwt.MapClaims) { delete(c, "iat") }},
		{name: "a clock that is a little ahead", change: func(c jwt.MapClaims) { c["iat"] = now.Unix() + 29; c["nbf"] = now.Unix() + 29 }},
		{name: "the last millisecond", change: func(c jwt.MapClaims) { c["exp"] = float64(now.UnixMilli()+1) / 1000 }},
		{name: "expired", change: func(c jwt.MapClaims) { c["iat"] = now.Unix() - 3600; c["exp"] = now.Unix() - 300 },
			reason: clientv1.Reason_REASON_TOKEN_EXPIRED, text: "expired 5m0s ago"},
		{name: "expired now", change: func(c jwt.MapClaims) { c["exp"] = float64(now.UnixMilli()) / 1000 },
			reason: clientv1.Reason_REASON_TOKEN_EXPIRED, text: "expired"},
		{name: "expired and for another audience", change: func(c jwt.MapClaims) { c["exp"] = now.Unix() - 300; c["aud"] = "shop" },
			reason: clientv1.Reason_REASON_BAD_TOKEN, text: `the audience is "shop", not "imd"`},
		{name: "no sub", change: func(c jwt.MapClaims) { delete(c, "sub") }, reason: clientv1.Reason_REASON_BAD_TOKEN, text: "sub is missing"},
		{name: "SUB is not sub", change: func(c jwt.MapClaims) { delete(c, "sub"); c["SUB"] = "alice" }, reason: clientv1.Reason_REASON_BAD_TOKEN, text: "sub is missing"},
		{name: "a sub with a slash", change: func(c jwt.MapClaims) { c["sub"] = "a/b" }, reason: clientv1.Reason_REASON_BAD_TOKEN, text: "sub"},
		{name: "a number as sub", change: func(c jwt.MapClaims) { c["sub"] = 5 }, reason: clientv1.Reason_REASON_BAD_TOKEN, text: "sub is no string"},
		{name: "no aud", change: func(c jwt.MapClaims) { delete(c, "aud") }, reason: clientv1.Reason_REASON_BAD_TOKEN, text: "aud is missing"},
		{name: "an empty list of audiences", change: func(c jwt.MapClaims) { c["aud"] = []string{} }, reason: clientv1.Reason_REASON_BAD_TOKEN, text: "aud is missing"},
		{name: "no exp", change: func(c jwt.MapClaims) { delete(c, "exp") }, reason: clientv1.Reason_REASON_BAD_TOKEN, text: "exp is missing"},
		{name: "null as exp", change: func(c jwt.MapClaims) { c["exp"] = nil }, reason: clientv1.Reason_REASON_BAD_TOKEN, text: "exp is no time"},
		{name: "an exp beyond all years", change: func(c jwt.MapClaims) { c["exp"] = 1e300 }, reason: clientv1.Reason_REASON_BAD_TOKEN, text: "exp is no time"},
		{name: "no login", change: func(c jwt.MapClaims) { delete(c, "sid") }, reason: clientv1.Reason_REASON_BAD_TOKEN, text: "sid and jti"},
		{name: "a bad login", change: func(c jwt.MapClaims) { c["sid"] = "a b" }, reason: clientv1.Reason_REASON_BAD_TOKEN, text: "login"},
		{name: "a bad device", change: func(c jwt.MapClaims) { c["did"] = "a b" }, reason: clientv1.Reason_REASON_BAD_TOKEN, text: "did"},
		{name: "an unknown class", change: func(c jwt.MapClaims) { c["cls"] = "fridge" }, reason: clientv1.Reason_REASON_BAD_TOKEN, text: "cls"},
		{name: "not yet valid", change: func(c jwt.MapClaims) { c["nbf"] = now.Unix() + 120 }, reason: clientv1.Reason_REASON_BAD_TOKEN, text: "not valid for another 2m0s"},
		{name: "issued tomorrow", change: func(c jwt.MapClaims) { c["iat"] = now.Unix() + 86400; c["exp"] = now.Unix() + 90000 },
			reason: clientv1.Reason_REASON_BAD_TOKEN, text: "in the future"},
		{name: "too long a life", change: func(c jwt.MapClaims) { c["exp"] = now.Unix() + 86401 }, reason: clientv1.Reason_REASON_BAD_TOKEN, text: "lives longer than 24h"},
		{name: "too long a life without iat", change: func(c jwt.MapClaims) { delete(c, "iat"); c["exp"] = now.Unix() + 86500 },
			reason: clientv1.Reason_REASON_BAD_TOKEN, text: "lives longer than 24h"},
	}
	v := verifier(t, nil)
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			c := good()
			tt.change(c)
			s := sign(t, jwt.SigningMethodHS256, secret, map[string]any{"kid": "k1"}, c)
			_, err := v.Verify(s, now)
			want(t, err, tt.reason, tt.text)
		})
	}
}

func want(t *testing.T, err error, r im.Reason, text string) {
	t.Helper()
	if got := im.ReasonOf(err); got != r {
		t.Fatalf("reason = %v, want %v (%v)", got, r, err)
	}
	if err != nil && !strings.Contains(im.Wire(err).Message, text) {
		t.Errorf("message = %q, want %q in it", im.Wire(err).Message, text)
	}
}

func TestVerifyKeys(t *testing.T) {
	other := []byte("ffffffffffffffffffffffffffffffff")
	v := verifier(t, nil, key, Key{ID: "k0", Secret: other}, Key{ID: "weak", Secret: []byte("short")})
	hs := func(k []byte, header map[string]any) string {
		return sign(t, jwt.SigningMethodHS256, k, header, good())
	}
	valid := hs(secret, map[string]any{"kid": "k1"})
	parts := strings.Split(valid, ".")
	none := base64.RawURLEncoding.EncodeToString([]byte(`{"alg":"none","typ":"JWT"}`)) + "." + parts[1] + "."
	tests := []struct {
		name, token string
		reason      im.Reason
		text        string
	}{
		{name: "named key", token: valid},
		{name: "older key", token: hs(other, map[string]any{"kid": "k0"})},
		{name: "no key id", token: hs(other, nil)},
		{name: "the key id of another key", token: hs(other, map[string]any{"kid": "k1"}), reason: clientv1.Reason_REASON_BAD_TOKEN, text: "signature"},
		{name: "unknown key id", token: hs(secret, map[string]any{"kid": "k9"}), reason: clientv1.Reason_REASON_BAD_TOKEN, text: `key id "k9" is unknown`},
		{name: "a key id that is no string", token: hs(secret, map[string]any{"kid": 7}), reason: clientv1.Reason_REASON_BAD_TOKEN, text: "kid"},
		{name: "a weak key is no key", token: hs([]byte("short"), map[string]any{"kid": "weak"}), reason: clientv1.Reason_REASON_BAD_TOKEN, text: "unknown"},
		{name: "an unknown key", token: hs([]byte("eeeeeeeeeeeeeeeeeeeeeeeeeeeeeeee"), nil), reason: clientv1.Reason_REASON_BAD_TOKEN, text: "signature"},
		{name: "unsigned", token: none, reason: clientv1.Reason_REASON_BAD_TOKEN, text: `"none" is not allowed`},
		{name: "an algorithm nobody asked for", token: sign(t, jwt.SigningMethodHS512, secret, map[string]any{"kid": "k1"}, good()),
			reason: clientv1.Reason_REASON_BAD_TOKEN, text: `"HS512" is not allowed`},
		{name: "critical extensions", token: hs(secret, map[string]any{"crit": []string{"x"}}), reason: clientv1.Reason_REASON_BAD_TOKEN, text: "crit"},
		{name: "a changed payload", token: parts[0] + "." + base64.RawURLEncoding.EncodeToString([]byte(`{"sub":"bob"}`)) + "." + parts[2],
			reason: clientv1.Reason_REASON_BAD_TOKEN, text: "signature"},
		{name: "no token", token: "", reason: clientv1.Reason_REASON_BAD_TOKEN, text: "no token"},
		{name: "a line break", token: valid + "\n", reason: clientv1.Reason_REASON_BAD_TOKEN, text: "malformed"},
		{name: "a word", token: "word", reason: clientv1.Reason_REASON_BAD_TOKEN, text: "malformed"},
		{name: "two parts", token: parts[0] + "." + parts[1], reason: clientv1.Reason_REASON_BAD_TOKEN, text: "malformed"},
		{name: "endless", token: strings.Repeat("a", MaxToken+1), reason: clientv1.Reason_REASON_BAD_TOKEN, text: "longer"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			_, err := v.Verify(tt.token, now)
			want(t, err, tt.reason, tt.text)
		})
	}
}

func TestIssuerIsRequiredWhenConfigured(t *testing.T) {
	v := verifier(t, func(c *Config) { c.Issuer = "https://id.example" })
	c := good()
	_, err := v.Verify(sign(t, jwt.SigningMethodHS256, secret, nil, c), now)
	want(t, err, clientv1.Reason_REASON_BAD_TOKEN, "issuer")
	c["iss"] = "https://id.example"
	_, err = v.Verify(sign(t, jwt.SigningMethodHS256, secret, nil, c), now)
	want(t, err, 0, "")
}

func TestPublicKeys(t *testing.T) {
	dir := t.TempDir()
	rsaKey, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		t.Fatal(err)
	}
	ecKey, _ := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	_, edKey, _ := ed25519.GenerateKey(rand.Reader)
	cfg := func(c *Config) {
		c.Keys = []string{
			"r:RS256:" + writePublic(t, dir, "r", rsaKey.Public()),
			"e:ES256:" + writePublic(t, dir, "e", ecKey.Public()),
			"d:EdDSA:" + writePublic(t, dir, "d", edKey.Public()),
		}
	}
	v := verifier(t, cfg)
	for name, s := range map[string]string{
		"RS256": sign(t, jwt.SigningMethodRS256, rsaKey, map[string]any{"kid": "r"}, good()),
		"ES256": sign(t, jwt.SigningMethodES256, ecKey, map[string]any{"kid": "e"}, good()),
		"EdDSA": sign(t, jwt.SigningMethodEdDSA, edKey, nil, good()),
		"HS256": sign(t, jwt.SigningMethodHS256, secret, nil, good()),
	} {
		if _, err := v.Verify(s, now); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	pub, err := os.ReadFile(filepath.Join(dir, "r"))
	if err != nil {
		t.Fatal(err)
	}
	confused := sign(t, jwt.SigningMethodHS256, pub, map[string]any{"kid": "r"}, good())
	_, err = v.Verify(confused, now)
	want(t, err, clientv1.Reason_REASON_BAD_TOKEN, `"HS256" is not allowed`)
	crossed := sign(t, jwt.SigningMethodES256, ecKey, map[string]any{"kid": "r"}, good())
	_, err = v.Verify(crossed, now)
	want(t, err, clientv1.Reason_REASON_BAD_TOKEN, `"ES256" is not allowed`)
}

func writePublic(t *testing.T, dir, name string, pub any) string {
	t.Helper()
	der, err := x509.MarshalPKIXPublicKey(pub)
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(dir, name)
	if err := os.WriteFile(path, pem.EncodeToMemory(&pem.Block{Type: "PUBLIC KEY", Bytes: der}), 0o644); err != nil {
		t.Fatal(err)
	}
	return path
}

func TestKeyFiles(t *testing.T) {
	dir := t.TempDir()
	small := &rsa.PublicKey{N: new(big.Int).SetBit(big.NewInt(1), 1023, 1), E: 65537}
	ec384, _ := ecdsa.GenerateKey(elliptic.P384(), rand.Reader)
	file := func(name, text string, mode os.FileMode) string {
		p := filepath.Join(dir, name)
		if err := os.WriteFile(p, []byte(text), mode); err != nil {
			t.Fatal(err)
		}
		return p
	}
	for name, tt := range map[string]struct{ key, text string }{
		"missing":       {"a:RS256:" + filepath.Join(dir, "nothing"), "no such file"},
		"no PEM":        {"a:RS256:" + file("nopem", "hello", 0o644), "no PEM block"},
		"private key":   {"a:RS256:" + file("priv", "-----BEGIN PRIVATE KEY-----\nAAAA\n-----END PRIVATE KEY-----\n", 0o600), "public key is wanted"},
		"small RSA":     {"a:RS256:" + writePublic(t, dir, "small", small), "1024 bits"},
		"wrong curve":   {"a:ES256:" + writePublic(t, dir, "p384", ec384.Public()), "does not fit ES256"},
		"wrong kind":    {"a:EdDSA:" + writePublic(t, dir, "p384b", ec384.Public()), "does not fit EdDSA"},
		"short secret":  {"a:HS256:" + file("short", "short\n", 0o600), "5 bytes"},
		"open secret":   {"a:HS256:" + file("open", string(secret), 0o644), "chmod 600"},
		"huge":          {"a:RS256:" + file("huge", strings.Repeat("x", maxKeyFile+1), 0o600), "64 KiB"},
		"no algorithm":  {"a:none:" + file("x", "", 0o600), "none of HS256"},
		"missing parts": {"a:HS256", "not id:algorithm:file"},
	} {
		cfg := DefaultConfig()
		cfg.Keys = []string{tt.key}
		if _, err := NewVerifier(cfg, nil); err == nil || !strings.Contains(err.Error(), tt.text) {
			t.Errorf("%s: %v, want %q in it", name, err, tt.text)
		}
	}
	cfg := DefaultConfig()
	cfg.Keys = []string{"backend:HS256:" + file("secret", string(secret)+"\n", 0o600)}
	v, err := NewVerifier(cfg, nil)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := v.Verify(sign(t, jwt.SigningMethodHS256, secret, map[string]any{"kid": "backend"}, good()), now); err != nil {
		t.Error(err)
	}
}

func TestConfigNamesEveryProblem(t *testing.T) {
	err := Config{Leeway: time.Hour, MaxLife: time.Second, Keys: []string{"x", "a:HS256:f", "a:HS256:g"}}.Validate()
	for _, s := range []string{"auth.audience", "auth.leeway", "auth.max_life", "auth.keys", "twice"} {
		if err == nil || !strings.Contains(err.Error(), s) {
			t.Errorf("%v does not name %s", err, s)
		}
	}
	if err := DefaultConfig().Validate(); err != nil {
		t.Error(err)
	}
}

func TestExplain(t *testing.T) {
	v := verifier(t, nil)
	c := good()
	c["exp"] = now.Unix() - 60
	e := v.Explain(sign(t, jwt.SigningMethodHS256, secret, map[string]any{"kid": "k1"}, c), now)
	if e.Valid || !e.Readable || e.Reason() != clientv1.Reason_REASON_TOKEN_EXPIRED || e.KeyID != "k1" || e.Algorithm != "HS256" ||
		e.Claims.User != "alice" || len(e.Audience) != 1 {
		t.Errorf("expired: %+v", e)
	}
	if e := v.Explain("rubbish", now); e.Valid || e.Readable || e.Problem == nil {
		t.Errorf("rubbish: %+v", e)
	}
	if e := v.Explain(sign(t, jwt.SigningMethodHS256, secret, nil, good()), now); !e.Valid || e.Problem != nil {
		t.Errorf("valid: %+v", e)
	}
}

func FuzzVerify(f *testing.F) {
	v := verifier(f, nil)
	valid := sign(f, jwt.SigningMethodHS256, secret, map[string]any{"kid": "k1"}, good())
	f.Add(valid)
	f.Add("a.b.c")
	f.Add("eyJhbGciOiJub25lIn0.e30.")
	f.Add(strings.Replace(valid, ".", "..", 1))
	f.Fuzz(func(t *testing.T, s string) {
		c, err := v.Verify(s, now)
		if e := v.Explain(s, now); e.Valid != (err == nil) {
			t.Fatalf("Explain says %v, Verify says %v", e.Valid, err)
		}
		if err == nil && s != valid {
			t.Fatalf("a forged token passed: %q for %+v", s, c)
		}
		if r := im.ReasonOf(err); err != nil && r != clientv1.Reason_REASON_BAD_TOKEN {
			t.Fatalf("reason %v", r)
		}
	})
}

// FuzzClaims signs whatever claims the fuzzer makes: no shape of them may
// panic, and what passes has valid names.
func FuzzClaims(f *testing.F) {
	v := verifier(f, nil)
	f.Add(`{"sub":"alice","sid":"l1","aud":"imd","exp":1795978800}`)
	f.Add(`{"sub":null,"aud":[1],"exp":"x"}`)
	f.Add(`[]`)
	f.Fuzz(func(t *testing.T, claims string) {
		head := base64.RawURLEncoding.EncodeToString([]byte(`{"alg":"HS256"}`)) + "." + base64.RawURLEncoding.EncodeToString([]byte(claims))
		sig, err := jwt.SigningMethodHS256.Sign(head, secret)
		if err != nil {
			t.Fatal(err)
		}
		c, err := v.Verify(head+"."+base64.RawURLEncoding.EncodeToString(sig), now)
		if err == nil && (!protocol.ValidID(string(c.User)) || !protocol.ValidID(string(c.Login)) || !c.Expires.After(now)) {
			t.Fatalf("%q passed as %+v", claims, c)
		}
	})
}

package auth

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/golang-jwt/jwt/v5"

	"github.com/imdhq/imd/pkg/im"
	"github.com/imdhq/imd/sdk/go/gen/clientv1"
	"github.com/imdhq/imd/sdk/go/protocol"
)

// MaxToken is the longest token that is looked at, in bytes.
const MaxToken = 8192

const opVerify = "auth.Verify"

// Verifier checks tokens. Safe for concurrent use.
type Verifier struct {
	cfg    Config
	static []pinned
	keys   func() []Key
	parser *jwt.Parser
	known  memory
}

// NewVerifier reads the configured key files. keys gives the shared secrets
// that may change while the node runs; it is called for each token and must
// not block; nil = none. Secrets shorter than MinSecret are never used.
func NewVerifier(cfg Config, keys func() []Key) (*Verifier, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	if keys == nil {
		keys = func() []Key { return nil }
	}
	v := &Verifier{
		cfg: cfg, keys: keys,
		parser: jwt.NewParser(jwt.WithValidMethods(algorithms), jwt.WithoutClaimsValidation(), jwt.WithStrictDecoding()),
	}
	for _, s := range cfg.Keys {
		ref, err := parseKeyRef(s)
		if err != nil {
			return nil, err
		}
		k, err := loadKey(ref)
		if err != nil {
			return nil, err
		}
		v.static = append(v.static, k)
	}
	return v, nil
}

// Audience is what a token must name, and what a minted one names.
func (v *Verifier) Audience() string { return v.cfg.Audience }

// Issuer is what a token's iss must be; "" = not checked.
func (v *Verifier) Issuer() string { return v.cfg.Issuer }

// MaxLife is the longest life of a token.
func (v *Verifier) MaxLife() time.Duration { return v.cfg.MaxLife }

// Leeway is how far the clocks of issuers may be ahead.
func (v *Verifier) Leeway() time.Duration { return v.cfg.Leeway }

// Verify checks the signature and the claims of a token at the given time. The
// error is an *im.Error: token_expired if nothing but the expiry is wrong (get
// a new token), else bad_token; its message may be shown and never holds parts
// of the token beyond its key id, algorithm, audience and issuer.
func (v *Verifier) Verify(token string, now time.Time) (Claims, error) {
	switch {
	case token == "":
		return Claims{}, badToken("there is no token")
	case len(token) > MaxToken:
		return Claims{}, badToken("the token is longer than %d bytes", MaxToken)
	case strings.ContainsAny(token, "\r\n"): // base64 would skip them, and one token have many texts
		return Claims{}, badToken("the token is malformed")
	}
	keys, sum := v.keys(), sha256.Sum256([]byte(token))
	raw, ok := v.known.get(keys, sum)
	if !ok {
		pick := func(t *jwt.Token) (any, error) { return v.pick(t, keys) }
		if t, err := v.parser.ParseWithClaims(token, &raw, pick); err != nil {
			return Claims{}, parseError(t, err)
		}
		v.known.put(keys, sum, raw)
	}
	if err := v.check(&raw, now); err != nil {
		return Claims{}, err
	}
	return raw.claims(), nil
}

// pick finds the keys that may have signed the token: those pinned to its
// algorithm and, if it names one, with its key id.
func (v *Verifier) pick(t *jwt.Token, keys []Key) (any, error) {
	if _, ok := t.Header["crit"]; ok {
		return nil, badToken("the token asks for extensions (crit) that are not known here")
	}
	kid, named := "", false
	if h, ok := t.Header["kid"]; ok {
		if kid, named = h.(string); !named {
			return nil, badToken("the key id (kid) is no string")
		}
	}
	alg := t.Method.Alg()
	var set jwt.VerificationKeySet
	known := false
	for _, k := range v.all(keys) {
		if named && k.id != kid {
			continue
		}
		known = true
		if k.alg == alg {
			set.Keys = append(set.Keys, k.key)
		}
	}
	switch {
	case named && !known:
		return nil, badToken("the key id %s is unknown", quote(kid))
	case len(set.Keys) == 0:
		return nil, badToken("the algorithm %s is not allowed here", quote(alg))
	}
	return set, nil
}

func (v *Verifier) all(keys []Key) []pinned {
	all := slices.Clone(v.static)
	for _, k := range keys {
		if len(k.Secret) >= MinSecret {
			all = append(all, pinned{id: k.ID, alg: algHS256, key: k.Secret})
		}
	}
	return all
}

// check applies the rules to claims whose signature is good. The expiry comes
// last, so that token_expired means: all else is right.
func (v *Verifier) check(c *rawClaims, now time.Time) error {
	for _, rule := range []func(*rawClaims, time.Time) error{v.checkOrigin, v.checkNames, v.checkTimes} {
		if err := rule(c, now); err != nil {
			return err
		}
	}
	if !now.Before(c.exp) {
		return im.Errorf(clientv1.Reason_REASON_TOKEN_EXPIRED, opVerify, "the token expired %s ago", span(now.Sub(c.exp)))
	}
	return nil
}

func (v *Verifier) checkOrigin(c *rawClaims, _ time.Time) error {
	switch {
	case len(c.aud) == 0:
		return badToken("the claim aud is missing")
	case !slices.Contains(c.aud, v.cfg.Audience):
		return badToken("the audience is %s, not %s", quote(c.aud[0]), quote(v.cfg.Audience))
	case v.cfg.Issuer != "" && c.iss != v.cfg.Issuer:
		return badToken("the issuer is %s, not %s", quote(c.iss), quote(v.cfg.Issuer))
	}
	return nil
}

func (v *Verifier) checkNames(c *rawClaims, _ time.Time) error {
	who := c.claims()
	switch {
	case c.sub == "":
		return badToken("the claim sub is missing")
	case !protocol.ValidID(c.sub):
		return badToken("the claim sub is no valid user id")
	case who.Login == "":
		return badToken("neither of the claims sid and jti is there")
	case !protocol.ValidID(string(who.Login)):
		return badToken("the claim sid (or jti) is no valid login id")
	case c.did != "" && !protocol.ValidID(c.did):
		return badToken("the claim did is no valid device id")
	case c.cls != "" && !who.Class.Valid():
		return badToken("the claim cls is none of phone, tablet, web, desktop, bot")
	}
	return nil
}

func (v *Verifier) checkTimes(c *rawClaims, now time.Time) error {
	life, most := c.exp.Sub(c.iat), v.cfg.MaxLife
	if c.iat.IsZero() {
		life, most = c.exp.Sub(now), v.cfg.MaxLife+v.cfg.Leeway
	}
	switch {
	case c.exp.IsZero():
		return badToken("the claim exp is missing")
	case c.nbf.Sub(now) > v.cfg.Leeway:
		return badToken("the token is not valid for another %s", span(c.nbf.Sub(now)))
	case c.iat.Sub(now) > v.cfg.Leeway:
		return badToken("the token was issued %s in the future", span(c.iat.Sub(now)))
	case life > most:
		return badToken("the token lives longer than %v", v.cfg.MaxLife)
	}
	return nil
}

// parseError says what the parser did not like, without repeating the token.
func parseError(t *jwt.Token, err error) error {
	var e *im.Error
	if errors.As(err, &e) {
		return e
	}
	e = badToken("the token is malformed")
	e.Err = err
	if t == nil || t.Header == nil {
		return e
	}
	alg, ok := t.Header["alg"].(string)
	var bad *claimError
	switch {
	case errors.As(err, &bad):
		e.Msg = bad.text
	case !ok:
		e.Msg = "the token names no algorithm"
	case !knownAlgorithm(alg):
		e.Msg = "the algorithm " + quote(alg) + " is not allowed here"
	case errors.Is(err, jwt.ErrTokenSignatureInvalid):
		e.Msg = "the signature does not fit"
	}
	return e
}

func badToken(format string, args ...any) *im.Error {
	return im.Errorf(clientv1.Reason_REASON_BAD_TOKEN, opVerify, format, args...)
}

// quote shows a value of somebody else's making, at most 64 bytes of it.
func quote(s string) string {
	if len(s) > 64 {
		s = s[:64]
	}
	return fmt.Sprintf("%q", s)
}

func span(d time.Duration) time.Duration {
	if d < time.Second {
		return d.Round(time.Millisecond)
	}
	return d.Round(time.Second)
}

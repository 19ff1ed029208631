package conformance

import (
	"testing"
	"time"

	"github.com/golang-jwt/jwt/v5"
	"github.com/google/uuid"

	"github.com/imdhq/imd/pkg/datadir"
)

type badToken struct {
	text   string
	code   int
	reason string
}

// badTokens are tokens of every kind that must not be accepted.
func (s *suite) badTokens(t *testing.T) map[string]badToken {
	t.Helper()
	keys, err := datadir.ReadTokenKeys(s.Dir)
	if err != nil {
		t.Fatal(err)
	}
	now := time.Now()
	claims := func(change func(jwt.MapClaims)) jwt.MapClaims {
		c := jwt.MapClaims{"sub": s.user("ann"), "aud": "imd", "exp": now.Add(time.Hour).Unix(), "iat": now.Unix(), "sid": uuid.NewString()}
		if change != nil {
			change(c)
		}
		return c
	}
	sign := func(m jwt.SigningMethod, key any, c jwt.MapClaims) string {
		tok := jwt.NewWithClaims(m, c)
		tok.Header["kid"] = keys[0].ID
		text, err := tok.SignedString(key)
		if err != nil {
			t.Fatal(err)
		}
		return text
	}
	good, bad := keys[0].Secret, func(text string) badToken { return badToken{text, 4501, "bad_token"} }
	hs := jwt.SigningMethodHS256
	return map[string]badToken{
		"no token":         bad("x.y.z"),
		"unsigned":         bad(sign(jwt.SigningMethodNone, jwt.UnsafeAllowNoneSignatureType, claims(nil))),
		"another key":      bad(sign(hs, []byte("0123456789abcdef0123456789abcdef"), claims(nil))),
		"another alg":      bad(sign(jwt.SigningMethodHS512, good, claims(nil))),
		"not yet valid":    bad(sign(hs, good, claims(func(c jwt.MapClaims) { c["nbf"] = now.Add(time.Hour).Unix() }))),
		"another audience": bad(sign(hs, good, claims(func(c jwt.MapClaims) { c["aud"] = "other" }))),
		"no audience":      bad(sign(hs, good, claims(func(c jwt.MapClaims) { delete(c, "aud") }))),
		"no user":          bad(sign(hs, good, claims(func(c jwt.MapClaims) { delete(c, "sub") }))),
		"a user with /":    bad(sign(hs, good, claims(func(c jwt.MapClaims) { c["sub"] = "a/b" }))),
		"no expiry":        bad(sign(hs, good, claims(func(c jwt.MapClaims) { delete(c, "exp") }))),
		"expired": {sign(hs, good, claims(func(c jwt.MapClaims) {
			c["exp"], c["iat"] = now.Add(-time.Hour).Unix(), now.Add(-2*time.Hour).Unix()
		})), 4005, "token_expired"},
	}
}

package auth

import (
	"time"

	"github.com/golang-jwt/jwt/v5"

	"github.com/imdhq/imd/pkg/im"
)

// Explanation is what can be read from a token, believed or not.
type Explanation struct {
	Valid     bool      // everything is right
	Problem   error     // what Verify said; nil = valid
	Readable  bool      // the fields below could be read; they are not proven unless Valid
	Algorithm string    // header alg
	KeyID     string    // header kid; "" = none
	Audience  []string  // claim aud
	NotBefore time.Time // claim nbf; zero = none
	Claims    Claims
}

// Reason is the stable reason of the problem; unspecified if there is none.
func (e Explanation) Reason() im.Reason { return im.ReasonOf(e.Problem) }

// Explain verifies a token and reads what it says even if it is not valid, for
// people who look for what is wrong. Nobody may be let in on its word: only
// Valid counts.
func (v *Verifier) Explain(token string, now time.Time) Explanation {
	_, err := v.Verify(token, now)
	e := Explanation{Valid: err == nil, Problem: err}
	if len(token) > MaxToken {
		return e
	}
	var raw rawClaims
	t, _, err := jwt.NewParser().ParseUnverified(token, &raw)
	if t == nil || (err != nil && raw.sub == "") {
		return e
	}
	e.Readable = true
	e.Algorithm, _ = t.Header["alg"].(string)
	e.KeyID, _ = t.Header["kid"].(string)
	e.Audience, e.NotBefore, e.Claims = raw.aud, raw.nbf, raw.claims()
	return e
}

package auth

import (
	"encoding/json"
	"errors"
	"math"
	"time"

	"github.com/golang-jwt/jwt/v5"

	"github.com/imdhq/imd/pkg/im"
)

// Claims are what a token says about its bearer.
type Claims struct {
	User     im.UserID
	Login    im.LoginID  // claim sid, else jti
	Device   im.DeviceID // claim did; "" = the client names it
	Class    im.Class    // claim cls; "" = the client names it
	Issuer   string      // claim iss; "" = none
	IssuedAt time.Time   // milliseconds; zero = not told
	Expires  time.Time   // milliseconds
}

// rawClaims are the claims as they stand in the token. Names are matched
// exactly; encoding/json would take SUB for sub.
type rawClaims struct {
	sub, iss, sid, jti, did, cls string
	aud                          []string
	exp, iat, nbf                time.Time // zero = absent
}

// claimError is a claim of the wrong shape; its text may be shown.
type claimError struct{ text string }

// Error is the text.
func (e *claimError) Error() string { return e.text }

// UnmarshalJSON reads the claims that matter and refuses wrong types.
func (c *rawClaims) UnmarshalJSON(data []byte) error {
	var m map[string]json.RawMessage
	if err := json.Unmarshal(data, &m); err != nil || m == nil {
		return &claimError{"the claims are no JSON object"}
	}
	for name, to := range map[string]*string{"sub": &c.sub, "iss": &c.iss, "sid": &c.sid, "jti": &c.jti, "did": &c.did, "cls": &c.cls} {
		if v, ok := m[name]; ok && json.Unmarshal(v, to) != nil {
			return &claimError{"the claim " + name + " is no string"}
		}
	}
	for name, to := range map[string]*time.Time{"exp": &c.exp, "iat": &c.iat, "nbf": &c.nbf} {
		v, ok := m[name]
		if !ok {
			continue
		}
		t, err := numericDate(v)
		if err != nil {
			return &claimError{"the claim " + name + " is no time in seconds"}
		}
		*to = t
	}
	if v, ok := m["aud"]; ok {
		var one string
		if json.Unmarshal(v, &one) == nil {
			c.aud = []string{one}
		} else if json.Unmarshal(v, &c.aud) != nil {
			return &claimError{"the claim aud is neither a string nor a list of strings"}
		}
	}
	return nil
}

// lastDate is the end of the year 9999, in seconds.
const lastDate = 253402300799

// numericDate reads seconds since 1970, which may have a fraction. A login may
// be revoked and made again within one second, so milliseconds are kept.
func numericDate(raw []byte) (time.Time, error) {
	var f *float64
	if err := json.Unmarshal(raw, &f); err != nil || f == nil || *f < 1 || *f > lastDate {
		return time.Time{}, errors.New("no date")
	}
	return time.UnixMilli(int64(math.Round(*f * 1000))), nil
}

// The methods of jwt.Claims. Nothing calls them, because the rules are checked
// here, with texts that say what is wrong.

// GetExpirationTime gives exp.
func (c *rawClaims) GetExpirationTime() (*jwt.NumericDate, error) { return date(c.exp), nil }

// GetIssuedAt gives iat.
func (c *rawClaims) GetIssuedAt() (*jwt.NumericDate, error) { return date(c.iat), nil }

// GetNotBefore gives nbf.
func (c *rawClaims) GetNotBefore() (*jwt.NumericDate, error) { return date(c.nbf), nil }

// GetIssuer gives iss.
func (c *rawClaims) GetIssuer() (string, error) { return c.iss, nil }

// GetSubject gives sub.
func (c *rawClaims) GetSubject() (string, error) { return c.sub, nil }

// GetAudience gives aud.
func (c *rawClaims) GetAudience() (jwt.ClaimStrings, error) { return c.aud, nil }

func date(t time.Time) *jwt.NumericDate {
	if t.IsZero() {
		return nil
	}
	return jwt.NewNumericDate(t)
}

// claims gives the meaning of the raw claims, whatever they are worth.
func (c *rawClaims) claims() Claims {
	login := c.sid
	if login == "" {
		login = c.jti
	}
	return Claims{
		User: im.UserID(c.sub), Login: im.LoginID(login), Device: im.DeviceID(c.did), Class: im.Class(c.cls),
		Issuer: c.iss, IssuedAt: c.iat, Expires: c.exp,
	}
}

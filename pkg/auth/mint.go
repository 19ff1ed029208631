package auth

import (
	"errors"
	"fmt"
	"time"

	"github.com/golang-jwt/jwt/v5"

	"github.com/imdhq/imd/sdk/go/protocol"
)

// Mint signs a token with HS256 for the claims, which it checks first: user,
// login and a life above zero are required. A zero IssuedAt stays out. Times
// are cut to milliseconds.
func Mint(key Key, c Claims, audience string) (string, error) {
	if len(key.Secret) < MinSecret {
		return "", fmt.Errorf("auth: the secret of key %q is shorter than %d bytes", key.ID, MinSecret)
	}
	if err := mintable(c); err != nil {
		return "", err
	}
	m := jwt.MapClaims{"sub": string(c.User), "sid": string(c.Login), "aud": audience, "exp": seconds(c.Expires)}
	if !c.IssuedAt.IsZero() {
		m["iat"] = seconds(c.IssuedAt)
	}
	for name, v := range map[string]string{"iss": c.Issuer, "did": string(c.Device), "cls": string(c.Class)} {
		if v != "" {
			m[name] = v
		}
	}
	t := jwt.NewWithClaims(jwt.SigningMethodHS256, m)
	if key.ID != "" {
		t.Header["kid"] = key.ID
	}
	return t.SignedString(key.Secret)
}

func mintable(c Claims) error {
	switch {
	case !protocol.ValidID(string(c.User)):
		return errors.New("auth: the user id is not valid")
	case !protocol.ValidID(string(c.Login)):
		return errors.New("auth: the login id is not valid")
	case c.Device != "" && !protocol.ValidID(string(c.Device)):
		return errors.New("auth: the device id is not valid")
	case c.Class != "" && !c.Class.Valid():
		return errors.New("auth: the class is not known")
	case !c.Expires.After(c.IssuedAt):
		return errors.New("auth: the token would expire before it is issued")
	}
	return nil
}

// seconds is a JSON number with milliseconds as its fraction, if any.
func seconds(t time.Time) any {
	ms := t.UnixMilli()
	if ms%1000 == 0 {
		return ms / 1000
	}
	return float64(ms) / 1000
}

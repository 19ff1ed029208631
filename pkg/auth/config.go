package auth

import (
	"errors"
	"fmt"
	"strings"
	"time"
)

// Config is the section "auth". It is read once, at start.
type Config struct {
	// Audience is what the claim aud must name.
	Audience string `mapstructure:"audience" doc:"What the claim aud of a token must name; default imd."`
	// Issuer is what the claim iss must be; "" = any, and then it may be absent.
	Issuer string `mapstructure:"issuer" doc:"What the claim iss of a token must be; empty = not checked."`
	// Leeway is how far the clocks of issuers may be ahead. 0 to 5 min.
	Leeway time.Duration `mapstructure:"leeway" doc:"How far the clock of an issuer may be ahead (claims nbf and iat); 0s to 5m, default 30s."`
	// MaxLife is the longest time from issue to expiry. 1 min to 366 days.
	MaxLife time.Duration `mapstructure:"max_life" doc:"Longest life of a token; 1m to 8784h, default 24h."`
	// Keys are keys beside those of the data folder, each "id:algorithm:file".
	Keys []string `mapstructure:"keys" doc:"Further keys as id:algorithm:file; HS256 reads a secret of at least 32 bytes, RS256, ES256 and EdDSA a public key in PEM."`
}

// DefaultConfig is what an empty file means.
func DefaultConfig() Config {
	return Config{Audience: "imd", Leeway: 30 * time.Second, MaxLife: 24 * time.Hour}
}

// Validate reports every problem at once, each with its key. It opens no file.
func (c Config) Validate() error {
	var errs []error
	bad := func(key, format string, args ...any) {
		errs = append(errs, fmt.Errorf("auth.%s: %s", key, fmt.Sprintf(format, args...)))
	}
	if c.Audience == "" {
		bad("audience", "must be set")
	}
	if c.Leeway < 0 || c.Leeway > 5*time.Minute {
		bad("leeway", "%v is not within 0s and 5m", c.Leeway)
	}
	if c.MaxLife < time.Minute || c.MaxLife > 366*24*time.Hour {
		bad("max_life", "%v is not within 1m and 8784h", c.MaxLife)
	}
	seen := map[string]bool{}
	for _, s := range c.Keys {
		k, err := parseKeyRef(s)
		if err != nil {
			bad("keys", "%v", err)
			continue
		}
		if seen[k.id] {
			bad("keys", "the id %q is there twice", k.id)
		}
		seen[k.id] = true
	}
	return errors.Join(errs...)
}

// keyRef is one element of Config.Keys.
type keyRef struct{ id, alg, file string }

func parseKeyRef(s string) (keyRef, error) {
	part := strings.SplitN(s, ":", 3)
	if len(part) != 3 || part[0] == "" || part[2] == "" {
		return keyRef{}, fmt.Errorf("%q is not id:algorithm:file", s)
	}
	k := keyRef{id: part[0], alg: part[1], file: part[2]}
	if !knownAlgorithm(k.alg) {
		return keyRef{}, fmt.Errorf("%q: the algorithm is none of %s", s, strings.Join(algorithms, ", "))
	}
	return k, nil
}

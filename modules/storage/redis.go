package storage

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net/url"
	"os"
	"strings"

	"github.com/imdhq/imd/pkg/config"
	"github.com/imdhq/imd/pkg/module"
)

// RedisConfig is the section "redis": what all that is kept in Redis shares.
type RedisConfig struct {
	// URL names the server or servers; it may hold a password.
	URL config.Secret `mapstructure:"url" doc:"Redis, as redis://user:password@host:6379/0, or rediss:// for TLS, or unix:///path. More servers of a cluster, or Sentinels, follow as ?addr=host:port; Sentinels with &master_set=NAME. Default none."`
	// TLS is for rediss.
	TLS RedisTLS `mapstructure:"tls"`
}

// RedisTLS names the files for rediss URLs.
type RedisTLS struct {
	CAFile   string `mapstructure:"ca_file" doc:"PEM file with the certificates that sign those of Redis; default those of the system."`
	CertFile string `mapstructure:"cert_file" doc:"PEM file with the certificate of this node for Redis; default none."`
	KeyFile  string `mapstructure:"key_file" doc:"PEM file with the key of that certificate; default none."`
}

// DefaultRedisConfig is what an empty section means: no Redis.
func DefaultRedisConfig() RedisConfig { return RedisConfig{} }

// Validate reports every problem at once, each with its key. The URL is not
// repeated.
func (c RedisConfig) Validate() error {
	var errs []error
	secure := false
	if c.URL != "" {
		u, err := url.Parse(c.URL.Reveal())
		switch {
		case err != nil:
			errs = append(errs, errors.New("redis.url: not of the form redis://host:6379/0"))
		case u.Scheme == "rediss":
			secure = true
			fallthrough
		case u.Scheme == "redis":
			if u.Hostname() == "" {
				errs = append(errs, errors.New("redis.url: names no host"))
			}
			if db := strings.TrimPrefix(u.Path, "/"); strings.Trim(db, "0123456789") != "" {
				errs = append(errs, errors.New("redis.url: what follows the host is no number of a database"))
			}
		case u.Scheme == "unix":
			if u.Path == "" {
				errs = append(errs, errors.New("redis.url: names no socket"))
			}
		default:
			errs = append(errs, errors.New("redis.url: does not begin with redis://, rediss:// or unix://"))
		}
	}
	if (c.TLS.CertFile == "") != (c.TLS.KeyFile == "") {
		errs = append(errs, errors.New("redis.tls.cert_file: must be set together with key_file"))
	}
	if !secure && c.TLS != (RedisTLS{}) {
		errs = append(errs, errors.New("redis.tls: is given, but redis.url is not rediss"))
	}
	return errors.Join(errs...)
}

// TLSConfig reads the files; nil if none is named. An error is one of the
// configuration.
func (c RedisConfig) TLSConfig() (*tls.Config, error) {
	if c.TLS == (RedisTLS{}) {
		return nil, nil
	}
	t := &tls.Config{MinVersion: tls.VersionTLS12}
	if c.TLS.CAFile != "" {
		pem, err := os.ReadFile(c.TLS.CAFile)
		if err != nil {
			return nil, &module.ConfigError{Err: fmt.Errorf("redis.tls.ca_file: %w", err)}
		}
		t.RootCAs = x509.NewCertPool()
		if !t.RootCAs.AppendCertsFromPEM(pem) {
			return nil, &module.ConfigError{Err: fmt.Errorf("redis.tls.ca_file: no certificate in %s", c.TLS.CAFile)}
		}
	}
	if c.TLS.CertFile != "" {
		cert, err := tls.LoadX509KeyPair(c.TLS.CertFile, c.TLS.KeyFile)
		if err != nil {
			return nil, &module.ConfigError{Err: fmt.Errorf("redis.tls.cert_file: %w", err)}
		}
		t.Certificates = []tls.Certificate{cert}
	}
	return t, nil
}

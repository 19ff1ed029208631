package storage

import (
	"errors"
	"fmt"
	"net/url"
)

// Config is read once, at start.
type Config struct {
	// DSN names the message store. "sqlite:" alone is the file imd.db in the data
	// folder; a relative path is below the data folder too.
	DSN string `mapstructure:"dsn" doc:"Message store. sqlite: (the file imd.db in the data folder) or sqlite:PATH."`
	// Routes names the route store, as a scheme alone or a full name.
	Routes string `mapstructure:"routes" doc:"Route store. memory (one process only)."`
}

// DefaultConfig is what an empty file means.
func DefaultConfig() Config { return Config{DSN: "sqlite:", Routes: "memory"} }

// Validate reports every problem at once, each with its key. The values may
// hold passwords and are not repeated.
func (c Config) Validate() error {
	var errs []error
	if u, err := url.Parse(c.DSN); err != nil || u.Scheme == "" {
		errs = append(errs, errors.New("storage.dsn: not of the form scheme:address, as in sqlite:"))
	}
	if u, err := url.Parse(c.Routes); err != nil || u.Scheme == "" && u.Path == "" {
		errs = append(errs, fmt.Errorf("storage.routes: neither a scheme, as in memory, nor of the form scheme:address"))
	}
	return errors.Join(errs...)
}

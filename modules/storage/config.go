package storage

import (
	"errors"
	"fmt"
	"net/url"
	"strings"
	"time"

	"github.com/imdhq/imd/pkg/config"
	"github.com/imdhq/imd/pkg/dedup"
)

// Config is read once, at start.
type Config struct {
	// DSN names the message store. "sqlite:" alone is the file imd.db in the data
	// folder; a relative path is below the data folder too.
	DSN string `mapstructure:"dsn" doc:"Message store of one process. sqlite: (the file imd.db in the data folder) or sqlite:PATH. Not used with storage.postgres."`
	// Postgres, if set, names the message store in the place of DSN.
	Postgres config.Secret `mapstructure:"postgres" doc:"Message store that nodes share: postgres://USER:PASSWORD@HOST/DATABASE?sslmode=verify-full&sslrootcert=FILE. Default: none."`
	// Routes names the route store.
	Routes string `mapstructure:"routes" doc:"Where the table of live sessions is: memory (one process that has both gateway and push), redis (all nodes together; needs redis.url) or etcd (all nodes together, 10,000 sessions at most; needs controlplane.endpoints). Default memory."`
	// Dedup names what answers repeated sends without the message store.
	Dedup string `mapstructure:"dedup" doc:"What remembers acknowledged sends, so that repeats are answered without the message store: memory (each process for itself) or redis (all nodes together; needs redis.url). Losing it costs speed only. Default memory."`
	// DedupTTL is how long it remembers.
	DedupTTL time.Duration `mapstructure:"dedup_ttl" doc:"How long an acknowledged send is remembered there. 1m to 24h; default 10m."`
}

// DefaultConfig is what an empty file means.
func DefaultConfig() Config {
	return Config{DSN: "sqlite:", Routes: "memory", Dedup: "memory", DedupTTL: dedup.DefaultTTL}
}

// Validate reports every problem at once, each with its key. The values may
// hold passwords and are not repeated.
func (c Config) Validate() error {
	var errs []error
	if u, err := url.Parse(c.DSN); err != nil || u.Scheme == "" {
		errs = append(errs, errors.New("storage.dsn: not of the form scheme:address, as in sqlite:"))
	}
	if strings.HasPrefix(c.DSN, "postgres") {
		errs = append(errs, errors.New("storage.dsn: the name of a Postgres may hold a password; give it as storage.postgres or storage.postgres_file"))
	}
	if u, err := url.Parse(c.Postgres.Reveal()); c.Postgres != "" && (err != nil || u.Scheme != "postgres" && u.Scheme != "postgresql") {
		errs = append(errs, errors.New("storage.postgres: not of the form postgres://USER:PASSWORD@HOST/DATABASE"))
	}
	if c.Routes != "memory" && c.Routes != "redis" && c.Routes != "etcd" {
		errs = append(errs, fmt.Errorf("storage.routes: %q is none of memory, redis and etcd", c.Routes))
	}
	if c.Dedup != "memory" && c.Dedup != "redis" {
		errs = append(errs, fmt.Errorf("storage.dedup: %q is neither memory nor redis", c.Dedup))
	}
	if c.DedupTTL < time.Minute || c.DedupTTL > 24*time.Hour {
		errs = append(errs, fmt.Errorf("storage.dedup_ttl: %v is not within 1m and 24h", c.DedupTTL))
	}
	return errors.Join(errs...)
}

// Messages names the message store of a node with this data folder, and says
// what key does.
func (c Config) Messages(dataDir string) (dsn, key string) {
	if c.Postgres != "" {
		return c.Postgres.Reveal(), "storage.postgres"
	}
	return place(c.DSN, dataDir), "storage.dsn"
}

package storage

import (
	"errors"
	"fmt"
	"net/url"
	"strings"

	"github.com/imdhq/imd/pkg/segment"
	"github.com/imdhq/imd/pkg/store"
)

// SeqConfig is the section "seq": how entries get their numbers.
type SeqConfig struct {
	// Allocator is who gives out numbers.
	Allocator string `mapstructure:"allocator" doc:"Who numbers the entries of a conversation: transaction (the message store, as it stores; no holes) or segment (the node that owns the conversation, from memory; only with storage.postgres). The store records it at the first start and refuses nodes with another. Default transaction."`
	// Step is how many numbers a segment has.
	Step int `mapstructure:"step" doc:"Numbers that a node reserves for a conversation at a time under segment. 10 to 100000; default 1000."`
}

// DefaultSeqConfig is what an empty section means.
func DefaultSeqConfig() SeqConfig {
	return SeqConfig{Allocator: store.Transaction, Step: segment.DefaultStep}
}

// Validate reports every problem at once, each with its key.
func (c SeqConfig) Validate() error {
	var errs []error
	if c.Allocator != store.Transaction && c.Allocator != store.Segment {
		errs = append(errs, fmt.Errorf("seq.allocator: %q is neither transaction nor segment", c.Allocator))
	}
	if c.Step < store.MinStep || c.Step > store.MaxStep {
		errs = append(errs, fmt.Errorf("seq.step: %d is not within %d and %d", c.Step, store.MinStep, store.MaxStep))
	}
	return errors.Join(errs...)
}

// numbered adds the allocator to the name of a message store. Errors:
// store.ErrAllocator if the store cannot have it.
func (c SeqConfig) numbered(dsn string) (string, error) {
	if !strings.HasPrefix(dsn, "postgres") {
		if c.Allocator == store.Segment {
			return "", fmt.Errorf("seq.allocator: segment needs a Postgres; give storage.postgres, or set seq.allocator to transaction: %w", store.ErrAllocator)
		}
		return dsn, nil
	}
	u, err := url.Parse(dsn)
	if err != nil {
		return dsn, nil // the driver says what is wrong
	}
	q := u.Query()
	store.Numbering{Allocator: c.Allocator, Step: c.Step}.Put(q)
	u.RawQuery = q.Encode()
	return u.String(), nil
}

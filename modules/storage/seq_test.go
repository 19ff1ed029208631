package storage

import (
	"errors"
	"strings"
	"testing"

	"github.com/imdhq/imd/pkg/module"
	"github.com/imdhq/imd/pkg/store"
)

func TestSeqValidate(t *testing.T) {
	if err := DefaultSeqConfig().Validate(); err != nil {
		t.Error(err)
	}
	err := SeqConfig{Allocator: "dice", Step: 5}.Validate()
	if err == nil || !strings.Contains(err.Error(), "seq.allocator") || !strings.Contains(err.Error(), "seq.step") {
		t.Errorf("validate: %v", err)
	}
}

func TestSeqNumbered(t *testing.T) {
	c := SeqConfig{Allocator: store.Segment, Step: 50}
	if got, err := c.numbered("postgres://u:p@h/db?sslmode=disable"); err != nil || got != "postgres://u:p@h/db?imd_allocator=segment&imd_step=50&sslmode=disable" {
		t.Errorf("%s, %v", got, err)
	}
	if got, err := DefaultSeqConfig().numbered("sqlite:x.db"); err != nil || got != "sqlite:x.db" {
		t.Errorf("%s, %v", got, err)
	}
}

// Segments need a store that nodes share.
func TestSegmentsNeedPostgres(t *testing.T) {
	r := newRig(t, DefaultConfig())
	r.deps.Seq = SeqConfig{Allocator: store.Segment, Step: 50}
	err := r.Start(t.Context())
	if ce := (*module.ConfigError)(nil); !errors.As(err, &ce) || !errors.Is(err, store.ErrAllocator) || !strings.Contains(err.Error(), "seq.allocator") {
		t.Errorf("start: %v", err)
	}
}

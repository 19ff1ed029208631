package ledger

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/imdhq/imd/pkg/history"
	"github.com/imdhq/imd/pkg/store"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// counting is a store whose newest claim holds the fence; what a test does not
// need panics.
type counting struct {
	store.Workers

	mu    sync.Mutex
	fence store.Fence
}

func (c *counting) ClaimFence(_ context.Context, claim store.FenceClaim) (store.Fence, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if claim.Revision <= c.fence.Revision {
		return c.fence, fmt.Errorf("claim: %w", store.ErrFenced)
	}
	c.fence = store.Fence{Name: claim.Name, Token: c.fence.Token + 1, Holder: claim.Holder, Revision: claim.Revision}
	return c.fence, nil
}

func (c *counting) Fence(context.Context, string) (store.Fence, error) {
	return store.Fence{}, store.ErrNotFound
}

func (c *counting) Expire(_ context.Context, p store.Proof, _ time.Time) (int, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if p != c.fence.Proof() {
		return 0, fmt.Errorf("effect: %w", store.ErrFenced)
	}
	return 1, nil
}

// What the store decides reaches the caller as it was and is recorded in order,
// also if an effect was held back meanwhile.
func TestDecisions(t *testing.T) {
	var records []history.Record
	s, err := Listen(&counting{}, func(r history.Record) { records = append(records, r) })
	if err != nil {
		t.Fatal(err)
	}
	c := NewClient(s.Address())
	defer func() { c.Close(); s.Close() }()
	ctx := t.Context()
	first, err := c.ClaimFence(ctx, store.FenceClaim{Name: "job", Holder: "a/1", Revision: 5})
	if err != nil || first.Token != 1 {
		t.Fatalf("claimed %+v, %v", first, err)
	}
	if _, err := c.Expire(ctx, first.Proof(), time.Now()); err != nil {
		t.Fatal(err)
	}
	came, release := s.Hold("a/1")
	late := make(chan error, 1)
	go func() {
		_, err := c.Expire(ctx, first.Proof(), time.Now())
		late <- err
	}()
	<-came
	second, err := c.ClaimFence(ctx, store.FenceClaim{Name: "job", Holder: "b/1", Revision: 6})
	if err != nil || second.Token != 2 {
		t.Fatalf("claimed %+v, %v", second, err)
	}
	release()
	if err := <-late; !errors.Is(err, store.ErrFenced) {
		t.Errorf("the effect of a deposed holder: %v", err)
	}
	if f, err := c.ClaimFence(ctx, store.FenceClaim{Name: "job", Holder: "a/1", Revision: 5}); !errors.Is(err, store.ErrFenced) || f.Token != 2 {
		t.Errorf("a late claim: %+v, %v", f, err)
	}
	if _, err := c.Fence(ctx, "other"); !errors.Is(err, store.ErrNotFound) {
		t.Errorf("an unknown fence: %v", err)
	}
	want := []history.Record{
		{Kind: history.Claim, Name: "job", User: "a/1", N: 1, Ack: history.AckOK},
		{Kind: history.Effect, Name: "job", User: "a/1", N: 1, Ack: history.AckOK},
		{Kind: history.Claim, Name: "job", User: "b/1", N: 2, Ack: history.AckOK},
		{Kind: history.Effect, Name: "job", User: "a/1", N: 1, Ack: history.AckFail},
		{Kind: history.Claim, Name: "job", User: "a/1", N: 2, Ack: history.AckFail},
	}
	if !slices.Equal(records, want) {
		t.Errorf("recorded %+v", records)
	}
}

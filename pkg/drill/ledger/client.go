package ledger

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"time"

	"github.com/imdhq/imd/pkg/store"
)

// Client is the store that a Server lends. Safe for concurrent use.
type Client struct {
	address string
	http    *http.Client
}

var _ Store = (*Client)(nil)

// NewClient makes a client of the server at an address; it makes no call.
func NewClient(address string) *Client {
	return &Client{address: address, http: &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 4, IdleConnTimeout: 10 * time.Second}}}
}

// Close lets go of connections.
func (c *Client) Close() { c.http.CloseIdleConnections() }

func (c *Client) call(ctx context.Context, q request) (answer, error) {
	var a answer
	body, err := json.Marshal(q)
	if err != nil {
		return a, err
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, c.address, bytes.NewReader(body))
	if err != nil {
		return a, err
	}
	res, err := c.http.Do(req)
	if err != nil {
		return a, err
	}
	defer res.Body.Close()
	if err := json.NewDecoder(res.Body).Decode(&a); err != nil {
		return a, fmt.Errorf("ledger: %w", err)
	}
	switch known, ok := kinds[a.Kind]; {
	case ok:
		return a, fmt.Errorf("%s: %w", a.Error, known)
	case a.Error != "":
		return a, fmt.Errorf("ledger: %s", a.Error)
	}
	return a, nil
}

// ClaimFence is store.Fences'.
func (c *Client) ClaimFence(ctx context.Context, claim store.FenceClaim) (store.Fence, error) {
	a, err := c.call(ctx, request{Op: opClaim, Claim: claim})
	return a.Fence, err
}

// Fence is store.Fences'.
func (c *Client) Fence(ctx context.Context, name string) (store.Fence, error) {
	a, err := c.call(ctx, request{Op: opFence, Name: name})
	return a.Fence, err
}

// Expire is Store's.
func (c *Client) Expire(ctx context.Context, p store.Proof, _ time.Time) (int, error) {
	_, err := c.call(ctx, request{Op: opEffect, Proof: p})
	return 0, err
}

// WorkerMark is store.Workers'.
func (c *Client) WorkerMark(ctx context.Context, worker int) (time.Time, error) {
	a, err := c.call(ctx, request{Op: opMark, Worker: worker})
	return a.Time, err
}

// MoveWorkerMark is store.Workers'.
func (c *Client) MoveWorkerMark(ctx context.Context, worker int, from, to time.Time) (bool, error) {
	a, err := c.call(ctx, request{Op: opMove, Worker: worker, From: from, To: to})
	return a.OK, err
}

// TakeWorker is store.Workers'.
func (c *Client) TakeWorker(ctx context.Context, worker int, holder string, ttl time.Duration) (bool, error) {
	a, err := c.call(ctx, request{Op: opTake, Worker: worker, Holder: holder, TTL: ttl})
	return a.OK, err
}

// RenewWorker is store.Workers'.
func (c *Client) RenewWorker(ctx context.Context, worker int, holder string, ttl time.Duration) (bool, error) {
	a, err := c.call(ctx, request{Op: opRenew, Worker: worker, Holder: holder, TTL: ttl})
	return a.OK, err
}

// FreeWorker is store.Workers'.
func (c *Client) FreeWorker(ctx context.Context, worker int, holder string) error {
	_, err := c.call(ctx, request{Op: opFree, Worker: worker, Holder: holder})
	return err
}

package state

import (
	"context"
	"errors"
	"time"

	"github.com/imdhq/imd/pkg/store"
	v1 "github.com/imdhq/imd/proto/gen/internalv1"
)

// PutKey stores or revokes an API key; see DirectoryService.
func (d Directory) PutKey(ctx context.Context, req *v1.PutKeyRequest) (*v1.PutKeyResponse, error) {
	const op = "directory.PutKey"
	k := req.Key
	if k.GetKeyId() == "" || len(k.GetSecretHash()) != 32 {
		return nil, badRequest(op, "the key has no id, or its secret_hash is not 32 bytes")
	}
	c, err := d.s.serving()
	if err != nil {
		return nil, err
	}
	row := store.Key{ID: k.KeyId, Name: k.Name, Scopes: append([]string(nil), k.Scopes...), Created: fromMilli(k.CreatedMs), Revoked: fromMilli(k.RevokedMs)}
	copy(row.SecretHash[:], k.SecretHash)
	if row.Created.IsZero() {
		row.Created = time.Now()
	}
	err = settleCall(ctx, func() error { return c.store.PutKey(ctx, row) })
	c.keys.forget(k.KeyId)
	if err != nil {
		return nil, storeErr(op, err)
	}
	return &v1.PutKeyResponse{}, nil
}

// Keys lists API keys, or finds one; see DirectoryService. One key may be told
// as it was up to 10 s ago.
func (d Directory) Keys(ctx context.Context, req *v1.KeysRequest) (*v1.KeysResponse, error) {
	const op = "directory.Keys"
	c, err := d.s.serving()
	if err != nil {
		return nil, err
	}
	if req.KeyId == "" {
		all, err := c.store.Keys(ctx)
		if err != nil {
			return nil, storeErr(op, err)
		}
		return wireKeys(all), nil
	}
	now := time.Now()
	if keys, ok := c.keys.get(req.KeyId, now); ok {
		return wireKeys(keys), nil
	}
	k, err := c.store.Key(ctx, req.KeyId)
	var keys []store.Key
	switch {
	case err == nil:
		keys = []store.Key{k}
	case !errors.Is(err, store.ErrNotFound):
		return nil, storeErr(op, err)
	}
	c.keys.put(req.KeyId, keys, now)
	return wireKeys(keys), nil
}

func wireKeys(keys []store.Key) *v1.KeysResponse {
	res := &v1.KeysResponse{Keys: make([]*v1.ApiKey, len(keys))}
	for i, k := range keys {
		res.Keys[i] = wireKey(k)
	}
	return res
}

func wireKey(k store.Key) *v1.ApiKey {
	return &v1.ApiKey{
		KeyId: k.ID, Name: k.Name, Scopes: append([]string(nil), k.Scopes...), SecretHash: append([]byte(nil), k.SecretHash[:]...),
		CreatedMs: toMilli(k.Created), RevokedMs: toMilli(k.Revoked),
	}
}

// fromMilli and toMilli turn times into milliseconds and back; 0 is the zero
// time.
func fromMilli(ms int64) time.Time {
	if ms == 0 {
		return time.Time{}
	}
	return time.UnixMilli(ms)
}

func toMilli(t time.Time) int64 {
	if t.IsZero() {
		return 0
	}
	return t.UnixMilli()
}

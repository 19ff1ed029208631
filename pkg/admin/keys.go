package admin

import (
	"context"
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"

	"go.uber.org/zap"

	"github.com/imdhq/imd/pkg/auth"
	"github.com/imdhq/imd/pkg/im"
	"github.com/imdhq/imd/proto/gen/adminv1"
	v1 "github.com/imdhq/imd/proto/gen/internalv1"
	"github.com/imdhq/imd/sdk/go/gen/clientv1"
)

const maxKeyName = 128 // bytes

// keys is the KeyService.
type keys struct{ a *Admin }

// CreateKey makes a key and shows its secret for the only time.
func (k keys) CreateKey(ctx context.Context, r *adminv1.CreateKeyRequest) (*adminv1.CreateKeyResponse, error) {
	if len(r.Name) > maxKeyName || !utf8.ValidString(r.Name) || strings.ContainsFunc(r.Name, unicode.IsControl) {
		return nil, badRequest("name is longer than %d bytes or has control characters", maxKeyName)
	}
	scopes, err := readScopes(r.Scopes)
	if err != nil {
		return nil, err
	}
	key := auth.NewAPIKey()
	stored := &v1.ApiKey{KeyId: key.ID, Name: r.Name, Scopes: scopes, SecretHash: key.Hash(), CreatedMs: k.a.Now().UnixMilli()}
	if _, err := k.a.Directory.PutKey(ctx, &v1.PutKeyRequest{Key: stored}); err != nil {
		return nil, err
	}
	k.a.Log.Info("API key made", zap.String("key", key.ID), zap.Strings("scopes", scopes))
	return &adminv1.CreateKeyResponse{Key: keyMessage(stored), Secret: key.Text()}, nil
}

// readScopes checks scopes and sorts them; none means all.
func readScopes(in []string) ([]string, error) {
	if len(in) == 0 {
		return auth.Scopes(), nil
	}
	for _, s := range in {
		if !slices.Contains(auth.Scopes(), s) {
			return nil, badRequest("the scope %.64q is none of %s", s, strings.Join(auth.Scopes(), ", "))
		}
	}
	return slices.Compact(slices.Sorted(slices.Values(in))), nil
}

// ListKeys lists all keys, without secrets and hashes.
func (k keys) ListKeys(ctx context.Context, _ *adminv1.ListKeysRequest) (*adminv1.ListKeysResponse, error) {
	res, err := k.a.Directory.Keys(ctx, &v1.KeysRequest{})
	if err != nil {
		return nil, err
	}
	out := &adminv1.ListKeysResponse{}
	for _, key := range res.Keys {
		out.Keys = append(out.Keys, keyMessage(key))
	}
	return out, nil
}

// RevokeKey ends a key; one that has ended stays as it is.
func (k keys) RevokeKey(ctx context.Context, r *adminv1.RevokeKeyRequest) (*adminv1.RevokeKeyResponse, error) {
	if r.KeyId == "" || len(r.KeyId) > 64 {
		return nil, badRequest("key_id is missing or too long")
	}
	res, err := k.a.Directory.Keys(ctx, &v1.KeysRequest{KeyId: r.KeyId})
	if err != nil {
		return nil, err
	}
	i := slices.IndexFunc(res.Keys, func(key *v1.ApiKey) bool { return key.KeyId == r.KeyId })
	if i < 0 {
		return nil, im.Errorf(clientv1.Reason_REASON_NOT_FOUND, "admin.RevokeKey", "there is no API key %q", r.KeyId)
	}
	old := res.Keys[i]
	if old.RevokedMs != 0 {
		return &adminv1.RevokeKeyResponse{}, nil
	}
	ended := &v1.ApiKey{
		KeyId: old.KeyId, Name: old.Name, Scopes: old.Scopes, SecretHash: old.SecretHash,
		CreatedMs: old.CreatedMs, RevokedMs: k.a.Now().UnixMilli(),
	}
	if _, err := k.a.Directory.PutKey(ctx, &v1.PutKeyRequest{Key: ended}); err != nil {
		return nil, err
	}
	k.a.Log.Info("API key revoked", zap.String("key", old.KeyId))
	return &adminv1.RevokeKeyResponse{}, nil
}

func keyMessage(k *v1.ApiKey) *adminv1.ApiKey {
	return &adminv1.ApiKey{KeyId: k.KeyId, Name: k.Name, Scopes: k.Scopes, CreatedMs: k.CreatedMs, RevokedMs: k.RevokedMs}
}

func badRequest(format string, args ...any) error {
	return im.Errorf(clientv1.Reason_REASON_BAD_REQUEST, "admin", format, args...)
}

package auth

import (
	"crypto/rand"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/base32"
	"strings"

	"github.com/imdhq/imd/pkg/im"
	"github.com/imdhq/imd/sdk/go/gen/clientv1"
)

// Scopes of an API key.
const (
	ScopeUsers         = "users"         // UserService
	ScopeTokens        = "tokens"        // TokenService
	ScopeConversations = "conversations" // ConversationService
	ScopeMessages      = "messages"      // MessageService
)

// Scopes lists all scopes of an API key.
func Scopes() []string {
	return []string{ScopeUsers, ScopeTokens, ScopeConversations, ScopeMessages}
}

const (
	apiKeyPrefix = "imd_"
	keyIDBytes   = 10 // 16 characters
	secretBytes  = 32 // 52 characters
	keyIDLength  = 16
	secretLength = 52
	apiKeyLength = len(apiKeyPrefix) + keyIDLength + 1 + secretLength
)

// keyEncoding has lower-case letters and digits only: no underscore, nothing
// that an URL or a shell changes, one word for a double click.
var keyEncoding = base32.NewEncoding("abcdefghijklmnopqrstuvwxyz234567").WithPadding(base32.NoPadding)

// APIKey is a key of the customer's backend: imd_<id>_<secret>. Only Text shows
// the secret; printing the value does not.
type APIKey struct {
	ID     string // 16 characters, no secret
	secret string // 256 bits
}

// NewAPIKey makes a random key.
func NewAPIKey() APIKey {
	return APIKey{ID: random(keyIDBytes), secret: random(secretBytes)}
}

func random(n int) string {
	b := make([]byte, n)
	_, _ = rand.Read(b) // never fails: the program ends if the system has no randomness
	return keyEncoding.EncodeToString(b)
}

// IsAPIKey reports whether a bearer token is meant as an API key, well formed
// or not.
func IsAPIKey(bearer string) bool { return strings.HasPrefix(bearer, apiKeyPrefix) }

// ParseAPIKey takes a key apart. The error is an *im.Error with bad_token; it
// does not repeat the text.
func ParseAPIKey(text string) (APIKey, error) {
	id, secret, ok := strings.Cut(strings.TrimPrefix(text, apiKeyPrefix), "_")
	if !IsAPIKey(text) || len(text) != apiKeyLength || !ok || !canonical(id, keyIDLength) || !canonical(secret, secretLength) {
		return APIKey{}, im.Errorf(clientv1.Reason_REASON_BAD_TOKEN, "auth.ParseAPIKey", "the API key is malformed")
	}
	return APIKey{ID: id, secret: secret}, nil
}

// canonical reports whether s is the one encoding of some bytes, so that a key
// has one text only.
func canonical(s string, length int) bool {
	if len(s) != length {
		return false
	}
	b, err := keyEncoding.DecodeString(s)
	return err == nil && keyEncoding.EncodeToString(b) == s
}

// Text is the whole key, secret included: shown once, when it is made.
func (k APIKey) Text() string { return apiKeyPrefix + k.ID + "_" + k.secret }

// String hides the secret.
func (k APIKey) String() string { return apiKeyPrefix + k.ID + "_..." }

// GoString hides the secret.
func (k APIKey) GoString() string { return k.String() }

// Hash is the SHA-256 of the secret, which is what is stored. The secret is
// random and long, so a slow hash would add nothing.
func (k APIKey) Hash() []byte {
	h := sha256.Sum256([]byte(k.secret))
	return h[:]
}

// Matches reports whether hash is that of this key, in constant time.
func (k APIKey) Matches(hash []byte) bool {
	return len(hash) == sha256.Size && subtle.ConstantTimeCompare(k.Hash(), hash) == 1
}

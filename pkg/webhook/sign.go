package webhook

import (
	"bytes"
	"crypto/hmac"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/base64"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"
)

// The headers of a request.
const (
	HeaderID        = "Webhook-Id"        // the same at every try of a message
	HeaderTimestamp = "Webhook-Timestamp" // of this try, seconds since 1970
	HeaderSignature = "Webhook-Signature" // "v1,BASE64", one for each key, with spaces between
)

// Leeway is how far the time of a request may be away from the receiver's clock.
const Leeway = 5 * time.Minute

// minKey is the least length of a key, in bytes.
const minKey = 32

// ErrSignature says that a request is not from who has the key, was changed, or is
// old.
var ErrSignature = errors.New("webhook: the signature does not hold")

// Key is a secret that sender and receiver share.
type Key []byte

// ParseKeys reads keys, one a line, at most two; the first is the new one.
func ParseKeys(text []byte) ([]Key, error) {
	var keys []Key
	for line := range bytes.Lines(text) {
		if line = bytes.TrimSpace(line); len(line) == 0 {
			continue
		}
		if len(line) < minKey {
			return nil, fmt.Errorf("a key has %d characters, and %d are needed", len(line), minKey)
		}
		keys = append(keys, bytes.Clone(line))
	}
	if n := len(keys); n == 0 || n > 2 {
		return nil, fmt.Errorf("%d keys, and one or two are wanted", n)
	}
	return keys, nil
}

// ReadKeys reads the file of keys.
func ReadKeys(path string) ([]Key, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	keys, err := ParseKeys(text)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return keys, nil
}

// Sign is the value of HeaderSignature: one signature for each key.
func Sign(keys []Key, id string, at time.Time, body []byte) string {
	parts := make([]string, len(keys))
	for i, k := range keys {
		parts[i] = "v1," + base64.StdEncoding.EncodeToString(sum(k, id, strconv.FormatInt(at.Unix(), 10), body))
	}
	return strings.Join(parts, " ")
}

func sum(key Key, id, timestamp string, body []byte) []byte {
	h := hmac.New(sha256.New, key)
	h.Write([]byte(id + "." + timestamp + "."))
	h.Write(body)
	return h.Sum(nil)
}

// Verify checks a request with the values of its headers, as a receiver does. Any
// of the signatures may hold with any of the keys. Errors: ErrSignature.
func Verify(keys []Key, id, timestamp, signature string, body []byte, now time.Time) error {
	sent, err := strconv.ParseInt(timestamp, 10, 64)
	if age := now.Sub(time.Unix(sent, 0)); err != nil || age > Leeway || age < -Leeway {
		return ErrSignature
	}
	good := 0
	for part := range strings.FieldsSeq(signature) {
		text, ok := strings.CutPrefix(part, "v1,")
		if !ok {
			continue
		}
		have, err := base64.StdEncoding.DecodeString(text)
		if err != nil {
			continue
		}
		for _, k := range keys {
			good |= subtle.ConstantTimeCompare(have, sum(k, id, timestamp, body))
		}
	}
	if good == 0 {
		return ErrSignature
	}
	return nil
}

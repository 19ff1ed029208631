// Package webhook shows how a backend believes what imd posts to it, with the
// standard library alone.
package webhook

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"errors"
	"io"
	"net/http"
	"strconv"
	"strings"
	"time"
)

// Verify reads a request and returns its body if it was signed with the key within
// five minutes of now.
func Verify(r *http.Request, key []byte, now time.Time) ([]byte, error) {
	body, err := io.ReadAll(io.LimitReader(r.Body, 1<<20))
	if err != nil {
		return nil, err
	}
	id, stamp := r.Header.Get("Webhook-Id"), r.Header.Get("Webhook-Timestamp")
	sent, err := strconv.ParseInt(stamp, 10, 64)
	if age := now.Sub(time.Unix(sent, 0)); err != nil || age.Abs() > 5*time.Minute {
		return nil, errors.New("the request is old, or has no time")
	}
	h := hmac.New(sha256.New, key)
	h.Write([]byte(id + "." + stamp + "."))
	h.Write(body)
	want := h.Sum(nil)
	for _, part := range strings.Fields(r.Header.Get("Webhook-Signature")) {
		text, ok := strings.CutPrefix(part, "v1,")
		have, err := base64.StdEncoding.DecodeString(text)
		if ok && err == nil && hmac.Equal(have, want) {
			return body, nil
		}
	}
	return nil, errors.New("the signature does not hold")
}

package api

import (
	"encoding/base64"
	"strings"
)

// maxPageToken is the longest page token that is looked at, in bytes.
const maxPageToken = 1024

// A page token is opaque to callers: what it is for, and where the next page
// begins. It grants nothing: each page is authorised anew.
const (
	membersPage = "m1:" // then the last user id
	listPage    = "c1:" // then a sync token
	laterPage   = "s1:" // then time and id of the last scheduled message
	mutesPage   = "u1:" // then the last conversation id
)

// pageToken makes the token of a next page.
func pageToken(kind, at string) string {
	return base64.RawURLEncoding.EncodeToString([]byte(kind + at))
}

// readPageToken gives back where the page begins; "" for the first page.
func readPageToken(kind, token string) (at string, err error) {
	if token == "" {
		return "", nil
	}
	if len(token) <= maxPageToken {
		if b, derr := base64.RawURLEncoding.Strict().DecodeString(token); derr == nil {
			if at, ok := strings.CutPrefix(string(b), kind); ok && at != "" && pageToken(kind, at) == token {
				return at, nil
			}
		}
	}
	return "", badRequest("page_token is not from the page before")
}

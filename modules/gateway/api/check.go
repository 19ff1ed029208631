package api

import (
	"strings"
	"unicode/utf8"

	"github.com/imdhq/imd/pkg/im"
	"github.com/imdhq/imd/sdk/go/gen/clientv1"
	"github.com/imdhq/imd/sdk/go/protocol"
)

const op = "api"

func badRequest(format string, args ...any) error {
	return im.Errorf(clientv1.Reason_REASON_BAD_REQUEST, op, format, args...)
}

func badToken(text string) error { return im.Errorf(clientv1.Reason_REASON_BAD_TOKEN, op, "%s", text) }

func forbidden(text string) error {
	return im.Errorf(clientv1.Reason_REASON_FORBIDDEN, op, "%s", text)
}

func tooLarge(format string, args ...any) error {
	return im.Errorf(clientv1.Reason_REASON_TOO_LARGE, op, format, args...)
}

func invalidID(field string) error {
	return im.Errorf(clientv1.Reason_REASON_INVALID_ID, op, "%s is no valid id: 1 to 64 bytes of A-Z a-z 0-9 . _ - @ +", field)
}

// first gives the first error.
func first(errs ...error) error {
	for _, err := range errs {
		if err != nil {
			return err
		}
	}
	return nil
}

func checkID(field, id string) error {
	if !protocol.ValidID(id) {
		return invalidID(field)
	}
	return nil
}

func checkIDs(field string, ids []string) error {
	for _, id := range ids {
		if err := checkID(field, id); err != nil {
			return err
		}
	}
	return nil
}

func checkUUID(field, id string) error {
	if !protocol.ValidUUID(id) {
		return badRequest("%s is no UUID of version 4 or 7 in lower case", field)
	}
	return nil
}

func checkName(name string) error {
	switch {
	case name == "":
		return badRequest("name is empty")
	case len(name) > protocol.MaxGroupName:
		return tooLarge("name is longer than %d bytes", protocol.MaxGroupName)
	case !utf8.ValidString(name) || strings.IndexByte(name, 0) >= 0:
		return badRequest("name is no clean UTF-8 text")
	}
	return nil
}

func notNegative(field string, n int64) error {
	if n < 0 {
		return badRequest("%s is negative", field)
	}
	return nil
}

// pageLimit gives the number of things on a page.
func pageLimit(n int32) int32 {
	if n == 0 {
		return protocol.HistoryLimit
	}
	return min(n, protocol.MaxHistoryLimit)
}

// distinct checks user ids and gives each once, in order, without skip.
func distinct(ids []string, skip string) ([]string, error) {
	most := min(len(ids), protocol.MaxAddMembers)
	seen, out := make(map[string]bool, most+1), make([]string, 0, most)
	seen[skip] = true
	for _, id := range ids {
		if err := checkID("user_ids", id); err != nil {
			return nil, err
		}
		if !seen[id] {
			seen[id] = true
			out = append(out, id)
		}
	}
	if len(out) > protocol.MaxAddMembers {
		return nil, tooLarge("user_ids has more than %d users", protocol.MaxAddMembers)
	}
	return out, nil
}

// some is distinct for lists that must not be empty.
func some(ids []string) ([]string, error) {
	if len(ids) == 0 {
		return nil, badRequest("user_ids is empty")
	}
	return distinct(ids, "")
}

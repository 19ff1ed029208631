package rules

import (
	"encoding/binary"
	"errors"
	"hash/fnv"

	"github.com/imdhq/imd/pkg/im"
	"github.com/imdhq/imd/pkg/store"
)

// EventKey is what events have in common that must be told in order: the number
// of their conversation or, of those without one, a negative number that the user
// has.
func EventKey(conv int64, user im.UserID) int64 {
	if conv != 0 {
		return conv
	}
	h := fnv.New64a()
	_, _ = h.Write([]byte(user)) // never fails
	return -1 - int64(h.Sum64()>>2)
}

// EncodeOpen packs what is not settled for a column: the distance from one to the
// next, and the tries. It is never nil.
func EncodeOpen(list []store.Open) []byte {
	out, last := []byte{}, int64(0)
	for _, o := range list {
		out = binary.AppendUvarint(out, uint64(o.Position-last))
		out = binary.AppendUvarint(out, uint64(o.Tries))
		last = o.Position
	}
	return out
}

// DecodeOpen is the reverse of EncodeOpen; none = nil. An error means that the
// column is damaged.
func DecodeOpen(b []byte) ([]store.Open, error) {
	var out []store.Open
	last := int64(0)
	for len(b) > 0 {
		far, n := binary.Uvarint(b)
		if n <= 0 {
			return nil, errors.New("bad list of open events")
		}
		tries, m := binary.Uvarint(b[n:])
		if m <= 0 {
			return nil, errors.New("bad list of open events")
		}
		last += int64(far)
		out = append(out, store.Open{Position: last, Tries: int(tries)})
		b = b[n+m:]
	}
	return out, nil
}

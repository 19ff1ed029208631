package postgres

import (
	"encoding/hex"
	"slices"

	"github.com/imdhq/imd/pkg/im"
)

// uuidDashes are where a UUID has dashes.
var uuidDashes = [...]int{8, 13, 18, 23}

// keySize is how long the key of a UUID is, and only that.
const keySize = 16

// key is how a client message id is stored: the 16 bytes of a UUID in its
// canonical form, else the text, with a zero byte behind it if it could be
// taken for a key of another one. Different ids have different keys.
func key(id im.ClientMessageID) []byte {
	if b := uuid(string(id)); b != nil {
		return b
	}
	b := []byte(id)
	if n := len(b); n == keySize || n > keySize && b[n-1] == 0 {
		b = append(b, 0)
	}
	return b
}

// uuid are the bytes of a UUID in its canonical form; nil of anything else.
func uuid(s string) []byte {
	if len(s) != 36 {
		return nil
	}
	digits := make([]byte, 0, 2*keySize)
	for i := range len(s) {
		switch c := s[i]; {
		case slices.Contains(uuidDashes[:], i):
			if c != '-' {
				return nil
			}
		case c >= 'A' && c <= 'F': // not canonical
			return nil
		default:
			digits = append(digits, c)
		}
	}
	b := make([]byte, keySize)
	if _, err := hex.Decode(b, digits); err != nil {
		return nil
	}
	return b
}

// unkey is the reverse of key.
func unkey(b []byte) im.ClientMessageID {
	n := len(b)
	switch {
	case n > keySize && b[n-1] == 0:
		return im.ClientMessageID(b[:n-1])
	case n != keySize:
		return im.ClientMessageID(b)
	}
	out := make([]byte, 0, 36)
	for i, c := range b {
		if i == 4 || i == 6 || i == 8 || i == 10 {
			out = append(out, '-')
		}
		out = hex.AppendEncode(out, []byte{c})
	}
	return im.ClientMessageID(out)
}

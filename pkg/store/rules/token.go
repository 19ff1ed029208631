package rules

import (
	"encoding/base64"
	"encoding/binary"

	"github.com/imdhq/imd/pkg/im"
)

// Tokens is the mark of one driver's tokens, their first byte. No two drivers
// have the same: a store that was copied to another keeps its data_epoch, but
// its tokens mean nothing there.
type Tokens byte

// Token is the place of a user in the walk over what changed: everything that
// changed since Since, in order of conversation ids, beyond After. The walk began
// at Upto; the next one starts there. What the two count is the driver's: commits
// or transactions.
type Token struct {
	Epoch string // the data_epoch; at most 255 bytes
	Since int64  // 0 = the walk lists everything
	Upto  int64  // 0 = not begun
	After im.ConversationID
}

// Format is the form of t that clients keep.
func (k Tokens) Format(t Token) string {
	b := append(make([]byte, 0, 64), byte(k), byte(len(t.Epoch)))
	b = append(b, t.Epoch...)
	b = binary.AppendUvarint(b, uint64(t.Since))
	b = binary.AppendUvarint(b, uint64(t.Upto))
	b = append(b, t.After...)
	return base64.RawURLEncoding.EncodeToString(b)
}

// Parse reads a token; false if it is not one of this driver.
func (k Tokens) Parse(s string) (Token, bool) {
	b, err := base64.RawURLEncoding.Strict().DecodeString(s)
	if err != nil || len(b) < 2 || b[0] != byte(k) || len(b) < 2+int(b[1]) {
		return Token{}, false
	}
	t := Token{Epoch: string(b[2 : 2+int(b[1])])}
	b = b[2+int(b[1]):]
	for _, p := range []*int64{&t.Since, &t.Upto} {
		v, n := binary.Uvarint(b)
		if n <= 0 || v > 1<<62 {
			return Token{}, false
		}
		*p, b = int64(v), b[n:]
	}
	t.After = im.ConversationID(b)
	return t, true
}

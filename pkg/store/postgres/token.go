package postgres

import (
	"encoding/base64"
	"encoding/binary"

	"github.com/imdhq/imd/pkg/im"
)

// tokenVersion is the first byte of a token. No other driver has the same: a
// store that was copied here keeps its data_epoch, but its tokens mean nothing.
const tokenVersion = 2

// token is the place of a user in the walk over what changed: everything
// changed by transaction since or a later one, in order of conversation ids,
// beyond after. When the walk began, upto was the oldest transaction under way;
// the next walk starts there.
type token struct {
	epoch string
	since int64 // 0 = the walk lists everything
	upto  int64 // 0 = not begun
	after im.ConversationID
}

// String is the form that clients keep.
func (t token) String() string {
	b := append(make([]byte, 0, 64), tokenVersion, byte(len(t.epoch)))
	b = append(b, t.epoch...)
	b = binary.AppendUvarint(b, uint64(t.since))
	b = binary.AppendUvarint(b, uint64(t.upto))
	b = append(b, t.after...)
	return base64.RawURLEncoding.EncodeToString(b)
}

// parseToken reads a token; false if it is not one of ours.
func parseToken(s string) (token, bool) {
	b, err := base64.RawURLEncoding.Strict().DecodeString(s)
	if err != nil || len(b) < 2 || b[0] != tokenVersion || len(b) < 2+int(b[1]) {
		return token{}, false
	}
	t := token{epoch: string(b[2 : 2+b[1]])}
	b = b[2+int(b[1]):]
	for _, p := range []*int64{&t.since, &t.upto} {
		v, n := binary.Uvarint(b)
		if n <= 0 || v > 1<<62 {
			return token{}, false
		}
		*p, b = int64(v), b[n:]
	}
	t.after = im.ConversationID(b)
	return t, true
}

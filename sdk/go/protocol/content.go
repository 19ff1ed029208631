package protocol

import (
	"crypto/sha256"
	"encoding/base32"
	"encoding/binary"
	"maps"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/imdhq/imd/sdk/go/gen/clientv1"
)

// ValidID reports whether s can be a user, device, group or login id: 1 to 64
// bytes of A-Z a-z 0-9 . _ - @ +
func ValidID(s string) bool {
	if len(s) == 0 || len(s) > MaxID {
		return false
	}
	for i := range len(s) {
		c := s[i]
		switch {
		case c >= 'a' && c <= 'z', c >= 'A' && c <= 'Z', c >= '0' && c <= '9':
		case c == '.', c == '_', c == '-', c == '@', c == '+':
		default:
			return false
		}
	}
	return true
}

// ValidUUID reports whether s is a UUID of version 4 or 7 in lower case, as
// client message ids and request ids must be.
func ValidUUID(s string) bool {
	if len(s) != 36 || s[14] != '4' && s[14] != '7' || strings.IndexByte("89ab", s[19]) < 0 {
		return false
	}
	for i := range len(s) {
		c := s[i]
		switch i {
		case 8, 13, 18, 23:
			if c != '-' {
				return false
			}
		default:
			if (c < '0' || c > '9') && (c < 'a' || c > 'f') {
				return false
			}
		}
	}
	return true
}

var directEncoding = base32.StdEncoding.WithPadding(base32.NoPadding)

// DirectID returns the id of the direct conversation of two users; the order
// does not matter. It is "d_" and the base32 form, in lower case and without
// padding, of the first 128 bits of SHA-256 over both ids in ascending order,
// each preceded by its length in one byte. Both must be valid ids.
func DirectID(a, b string) string {
	if b < a {
		a, b = b, a
	}
	buf := make([]byte, 0, 2*(MaxID+1))
	buf = append(append(buf, byte(len(a))), a...)
	buf = append(append(buf, byte(len(b))), b...)
	sum := sha256.Sum256(buf)
	return "d_" + strings.ToLower(directEncoding.EncodeToString(sum[:16]))
}

// DefaultContentType is what an empty content type stands for.
const DefaultContentType = "text"

// The value of a content, as BodyHash counts it.
const (
	hashNoContent = iota
	hashNoValue
	hashText
	hashData
)

// BodyHash returns the identity of what a send wants stored: SHA-256 over its
// kind, target and content, each of variable length preceded by it. Two sends
// with the same hash are the same whatever their encoding was: an unspecified
// kind is MESSAGE, an empty type is "text", attributes are sorted by key.
func BodyHash(kind clientv1.EntryKind, targetSeq int64, content *clientv1.Content) [32]byte {
	if kind == clientv1.EntryKind_ENTRY_KIND_UNSPECIFIED {
		kind = clientv1.EntryKind_ENTRY_KIND_MESSAGE
	}
	buf := binary.AppendUvarint(make([]byte, 0, 512), uint64(uint32(kind)))
	buf = binary.BigEndian.AppendUint64(buf, uint64(targetSeq))
	if content == nil {
		return sha256.Sum256(append(buf, hashNoContent))
	}
	switch v := content.Value.(type) {
	case *clientv1.Content_Text:
		buf = appendSized(append(buf, hashText), v.Text)
	case *clientv1.Content_Data:
		buf = appendSized(append(buf, hashData), string(v.Data))
	default:
		buf = append(buf, hashNoValue)
	}
	typ := content.Type
	if typ == "" {
		typ = DefaultContentType
	}
	buf = appendSized(buf, typ)
	buf = binary.AppendUvarint(buf, uint64(len(content.Attributes)))
	for _, k := range slices.Sorted(maps.Keys(content.Attributes)) {
		buf = appendSized(appendSized(buf, k), content.Attributes[k])
	}
	return sha256.Sum256(buf)
}

func appendSized(dst []byte, s string) []byte {
	return append(binary.AppendUvarint(dst, uint64(len(s))), s...)
}

// ContentSize returns the size of a content as it is limited: type, text or
// data, attribute keys and values, in bytes.
func ContentSize(c *clientv1.Content) int {
	n := len(c.GetType()) + len(c.GetText()) + len(c.GetData())
	for k, v := range c.GetAttributes() {
		n += len(k) + len(v)
	}
	return n
}

// CheckContent returns the reason why a content cannot be stored, or "".
// too_large: above MaxContent in sum. bad_request: absent or empty, a type above
// MaxContentType, more than MaxAttributes attributes, U+0000 in the text, or a
// string that is not UTF-8.
func CheckContent(c *clientv1.Content) (reason string) {
	switch {
	case c == nil || c.Value == nil && c.Type == "" && len(c.Attributes) == 0:
		return "bad_request"
	case ContentSize(c) > MaxContent:
		return "too_large"
	case len(c.Type) > MaxContentType, len(c.Attributes) > MaxAttributes:
		return "bad_request"
	case strings.IndexByte(c.GetText(), 0) >= 0:
		return "bad_request"
	case !utf8.ValidString(c.Type), !utf8.ValidString(c.GetText()):
		return "bad_request"
	}
	for k, v := range c.Attributes {
		if !utf8.ValidString(k) || !utf8.ValidString(v) {
			return "bad_request"
		}
	}
	return ""
}

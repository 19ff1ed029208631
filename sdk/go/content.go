package imd

import (
	"crypto/rand"
	"encoding/binary"
	"encoding/hex"
	"time"

	"github.com/imdhq/imd/sdk/go/gen/clientv1"
)

// Content is what people write; see Text and Data.
type Content = clientv1.Content

// Text returns a content of plain text.
func Text(s string) *Content {
	return &Content{Value: &clientv1.Content_Text{Text: s}}
}

// Data returns a content of a type of the application's own, which the server
// does not look into.
func Data(typ string, data []byte) *Content {
	return &Content{Type: typ, Value: &clientv1.Content_Data{Data: data}}
}

// NewID returns a new UUID of version 7, as client message ids and request ids
// are: 48 bits of the time in milliseconds, then 74 random ones. Ids of one
// millisecond have no order. It may be called from any goroutine.
func NewID() string {
	var b [16]byte
	binary.BigEndian.PutUint64(b[:], uint64(time.Now().UnixMilli())<<16)
	_, _ = rand.Read(b[6:]) // never fails
	b[6] = b[6]&0x0f | 0x70
	b[8] = b[8]&0x3f | 0x80
	var out [36]byte
	hex.Encode(out[:8], b[:4])
	hex.Encode(out[9:13], b[4:6])
	hex.Encode(out[14:18], b[6:8])
	hex.Encode(out[19:23], b[8:10])
	hex.Encode(out[24:], b[10:])
	out[8], out[13], out[18], out[23] = '-', '-', '-', '-'
	return string(out[:])
}

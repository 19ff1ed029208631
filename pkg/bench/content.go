package bench

import (
	"encoding/binary"
	"encoding/hex"
	"math/bits"
	"math/rand/v2"
	"strconv"
	"time"

	"github.com/imdhq/imd/sdk/go/gen/clientv1"
	"github.com/imdhq/imd/sdk/go/protocol"
)

// Texts begin with the time at which they should have left, in nanoseconds of
// the loop's clock and 16 hexadecimal digits, so that the receiver knows how
// long they took. Filler follows, another stretch of it for each message.
const stampLen = 16

const hexDigits = "0123456789abcdef"

// filler is what texts are filled with: readable, and different at each place.
var filler = func() []byte {
	rng := rand.New(rand.NewPCG(1, 2))
	b := make([]byte, 1<<16)
	for i := range b {
		b[i] = "abcdefghijklmnopqrstuvwxyz      "[rng.IntN(32)]
	}
	return b
}()

// fillerPlaces is how many stretches there are for the longest text.
const fillerPlaces = 1<<16 - protocol.MaxContent

// appendBody appends the text of n bytes, at least stampLen, that a message has
// which should leave at the stamp; place tells the stretch of filler. The same
// arguments give the same text.
func appendBody(b []byte, stamp time.Duration, place uint32, n int) []byte {
	v := uint64(stamp)
	for shift := 60; shift >= 0; shift -= 4 {
		b = append(b, hexDigits[v>>shift&15])
	}
	at := place % fillerPlaces
	return append(b, filler[at:int(at)+max(n-stampLen, 0)]...)
}

// stampOf reads the time of a text; false if there is none.
func stampOf(text []byte) (time.Duration, bool) {
	if len(text) < stampLen {
		return 0, false
	}
	var ns uint64
	for _, b := range text[:stampLen] {
		switch {
		case b >= '0' && b <= '9':
			ns = ns<<4 | uint64(b-'0')
		case b >= 'a' && b <= 'f':
			ns = ns<<4 | uint64(b-'a'+10)
		default:
			return 0, false
		}
	}
	return time.Duration(ns), true
}

// uuids makes UUIDs of version 7: 48 bits of the time in milliseconds, then
// random ones.
type uuids struct {
	rng *rand.ChaCha8
	now func() time.Time
}

func (u *uuids) next() (out [36]byte) {
	var b [16]byte
	binary.BigEndian.PutUint64(b[:], uint64(u.now().UnixMilli())<<16|u.rng.Uint64()&0xffff)
	binary.BigEndian.PutUint64(b[8:], u.rng.Uint64())
	b[6], b[8] = b[6]&0x0f|0x70, b[8]&0x3f|0x80
	hex.Encode(out[:8], b[:4])
	hex.Encode(out[9:13], b[4:6])
	hex.Encode(out[14:18], b[6:8])
	hex.Encode(out[19:23], b[8:10])
	hex.Encode(out[24:], b[10:])
	out[8], out[13], out[18], out[23] = '-', '-', '-', '-'
	return out
}

// hashText identifies a content that is nothing but this text, in 16
// hexadecimal digits. It is made for telling contents apart, not against an
// adversary.
func hashText(text []byte) string {
	const k0, k1 = 0xa0761d6478bd642f, 0xe7037ed1a0b428db
	h := uint64(len(text)) ^ k0
	for ; len(text) >= 8; text = text[8:] {
		h = fold(h^binary.LittleEndian.Uint64(text), k1)
	}
	var last [8]byte
	copy(last[:], text)
	h = fold(fold(h^binary.LittleEndian.Uint64(last[:]), k1), k0^h)
	var out [16]byte
	for i := range out {
		out[i] = hexDigits[h>>(60-4*i)&15]
	}
	return string(out[:])
}

func fold(a, b uint64) uint64 {
	hi, lo := bits.Mul64(a, b)
	return hi ^ lo
}

// EntryHash identifies the content of a message as the records of a load test do.
func EntryHash(e *clientv1.Entry) string {
	return hashOf(e.GetKind(), e.GetTargetSeq(), e.GetContent())
}

// hashOf identifies the content of an entry: as hashText if it is nothing but a
// text, else by all that was sent.
func hashOf(kind clientv1.EntryKind, target int64, c *clientv1.Content) string {
	if v, ok := c.GetValue().(*clientv1.Content_Text); ok && plainType(c.Type) && len(c.Attributes) == 0 && target == 0 && kind == clientv1.EntryKind_ENTRY_KIND_MESSAGE {
		return hashText([]byte(v.Text))
	}
	h := protocol.BodyHash(kind, target, c)
	return "x" + strconv.FormatUint(binary.BigEndian.Uint64(h[:]), 16)
}

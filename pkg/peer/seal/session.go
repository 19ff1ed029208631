package seal

import (
	"bytes"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/binary"
	"hash"
	"slices"
)

const (
	// NonceSize is how many random bytes each side brings to a session.
	NonceSize = 16
	// TagSize is how many bytes Tag adds.
	TagSize = 16
)

// First is the key that signs, and its name; nil = the key of the cluster is not
// known yet.
func (k Keys) First() (name string, key []byte) {
	if keys := k(); len(keys) > 0 {
		return keyName(keys[0]), keys[0]
	}
	return "", nil
}

// Named is the good key of a name; nil = there is none.
func (k Keys) Named(name string) []byte {
	for _, key := range k() {
		if keyName(key) == name {
			return key
		}
	}
	return nil
}

// Good reports whether a key is good still.
func (k Keys) Good(key []byte) bool {
	return slices.ContainsFunc(k(), func(x []byte) bool { return bytes.Equal(x, key) })
}

// Session derives from a shared key what proves the messages of one connection,
// for each direction. Both sides bring a nonce, so no session is like another,
// and what was recorded of one is nothing in the next. about is bound to it.
func Session(key, caller, callee []byte, about string) (toCallee, toCaller *Stream) {
	h := hmac.New(sha256.New, key)
	h.Write([]byte("imd session 1\n"))
	h.Write(caller)
	h.Write(callee)
	h.Write([]byte(about))
	master := h.Sum(nil)
	return newStream(master, "to callee"), newStream(master, "to caller")
}

// Stream proves messages of one direction in their order: none can be changed,
// left out, repeated or moved. Not safe for concurrent use.
type Stream struct {
	mac hash.Hash
	n   uint64 // messages so far
	sum []byte
}

func newStream(master []byte, way string) *Stream {
	h := hmac.New(sha256.New, master)
	h.Write([]byte(way))
	return &Stream{mac: hmac.New(sha256.New, h.Sum(nil)), sum: make([]byte, 0, sha256.Size)}
}

// Tag appends the proof of the next message to dst.
func (s *Stream) Tag(dst, message []byte) []byte { return append(dst, s.next(message)...) }

// Check takes the next message; false = it is not from the other side, or not the
// next one.
func (s *Stream) Check(tag, message []byte) bool { return hmac.Equal(tag, s.next(message)) }

func (s *Stream) next(message []byte) []byte {
	var n [8]byte
	binary.BigEndian.PutUint64(n[:], s.n)
	s.n++
	s.mac.Reset()
	s.mac.Write(n[:])
	s.mac.Write(message)
	s.sum = s.mac.Sum(s.sum[:0])
	return s.sum[:TagSize]
}

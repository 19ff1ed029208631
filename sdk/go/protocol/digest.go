package protocol

import (
	"crypto/sha256"
	"encoding/binary"
	"strconv"
)

// DigestTerm is what one conversation, of which the user is a member, adds to
// the digest of its heads: the first 8 bytes, big-endian, of the SHA-256 of the
// conversation id, ":" and the head as a decimal number. A digest is the sum of
// these modulo 2^64, in any order, so that one that has moved is put right by
// taking its former term away and adding the new one.
func DigestTerm(conversationID string, head int64) uint64 {
	var room [96]byte
	b := append(room[:0], conversationID...)
	b = append(b, ':')
	sum := sha256.Sum256(strconv.AppendInt(b, head, 10))
	return binary.BigEndian.Uint64(sum[:])
}

package auth

import (
	"bytes"
	"crypto/sha256"
	"sync"
)

// rememberedTokens is how many verified tokens are remembered.
const rememberedTokens = 16_384

// memory knows what tokens say whose signatures were good, so that a wave of
// clients who come back costs no second reading of the same tokens. It forgets
// everything when a key changes. Safe for concurrent use.
type memory struct {
	mu   sync.Mutex
	keys []Key // under which the signatures were good
	all  map[[sha256.Size]byte]rawClaims
}

// get finds what a token says, if it was good under the same keys.
func (m *memory) get(keys []Key, sum [sha256.Size]byte) (rawClaims, bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if !sameKeys(m.keys, keys) {
		return rawClaims{}, false
	}
	c, ok := m.all[sum]
	return c, ok
}

// put remembers a token that was good under the keys. Of too many any makes room.
func (m *memory) put(keys []Key, sum [sha256.Size]byte, c rawClaims) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.all == nil || !sameKeys(m.keys, keys) {
		m.keys, m.all = keys, map[[sha256.Size]byte]rawClaims{}
	}
	for old := range m.all {
		if len(m.all) < rememberedTokens {
			break
		}
		delete(m.all, old)
	}
	m.all[sum] = c
}

func sameKeys(a, b []Key) bool {
	if len(a) != len(b) {
		return false
	}
	for i := range a {
		if a[i].ID != b[i].ID || !bytes.Equal(a[i].Secret, b[i].Secret) {
			return false
		}
	}
	return true
}

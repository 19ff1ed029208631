package postgres

import (
	"strings"
	"sync"
)

// knownMax bounds the conversations in memory, roughly 100 bytes each.
const knownMax = 100_000

// known remembers conversations that exist, so that most batches need not look
// for some to be made. It may forget, and it may be wrong: the server says so.
// The zero value is ready; safe for concurrent use.
type known struct {
	mu  sync.Mutex
	ids map[string]struct{}
}

// news reports whether a row of the batch may make a conversation that is not
// known to exist.
func (k *known) news(b *batch) bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	for i, m := range b.mayMake {
		if m == mayMake {
			if _, ok := k.ids[b.ids[b.ci[i]-1]]; !ok {
				return true
			}
		}
	}
	return false
}

// add notes the direct conversations that rows of the batch are stored in.
func (k *known) add(b *batch) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.ids == nil || len(k.ids) > knownMax {
		k.ids = map[string]struct{}{}
	}
	for i, m := range b.mayMake {
		if m == mayMake && b.out[b.place[i]].Err == nil {
			if id := b.ids[b.ci[i]-1]; !k.has(id) {
				k.ids[strings.Clone(id)] = struct{}{}
			}
		}
	}
}

func (k *known) has(id string) bool {
	_, ok := k.ids[id]
	return ok
}

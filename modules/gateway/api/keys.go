package api

import (
	"context"
	"sync"
	"time"

	"golang.org/x/time/rate"

	"github.com/imdhq/imd/pkg/im"
	v1 "github.com/imdhq/imd/proto/gen/internalv1"
	"github.com/imdhq/imd/sdk/go/gen/clientv1"
)

const (
	keyFresh   = 5 * time.Second  // a key found is believed this long
	keyStale   = 10 * time.Second // and this long if the directory is away
	keysMost   = 4096             // keys remembered
	strangers  = 50               // ids a second that are looked up though nobody knows them
	strangersB = 200
)

// directory is the part of the directory that knows keys.
type directory interface {
	Keys(context.Context, *v1.KeysRequest) (*v1.KeysResponse, error)
}

// keyCache remembers API keys, so that a call does not cost a look-up. Ids that
// nobody knows are looked up at a bounded rate: whoever makes them up does not
// load the store.
type keyCache struct {
	dir     directory
	now     func() time.Time
	unknown *rate.Limiter

	mu   sync.Mutex
	keys map[string]keyEntry
}

type keyEntry struct {
	key  *v1.ApiKey // read only
	read time.Time  // when the directory was asked
	busy bool       // somebody is asking again
}

func newKeyCache(d directory, now func() time.Time) *keyCache {
	return &keyCache{dir: d, now: now, unknown: rate.NewLimiter(strangers, strangersB), keys: map[string]keyEntry{}}
}

// find gives the key with the id, nil if there is none. It is read only.
// Errors: rate_limited, unavailable.
func (k *keyCache) find(ctx context.Context, id string) (*v1.ApiKey, error) {
	begin := k.now()
	old, known := k.claim(id, begin)
	if known && (old.busy || begin.Sub(old.read) < keyFresh) {
		return old.key, nil
	}
	if !known && !k.unknown.AllowN(begin, 1) {
		return nil, im.Errorf(clientv1.Reason_REASON_RATE_LIMITED, "api.keys", "too many unknown API keys")
	}
	res, err := k.dir.Keys(ctx, &v1.KeysRequest{KeyId: id})
	return k.settle(id, begin, res, err)
}

// claim looks the id up. If its entry is old, the caller is marked as the one
// who asks again; others use the old one meanwhile. Entries too old to be used
// are not known.
func (k *keyCache) claim(id string, now time.Time) (keyEntry, bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	e, ok := k.keys[id]
	if !ok {
		return keyEntry{}, false
	}
	age := now.Sub(e.read)
	if age >= keyStale {
		e.busy = false // whoever asks does it for itself
		return e, true
	}
	if age >= keyFresh && !e.busy {
		marked := e
		marked.busy = true
		k.keys[id] = marked
	}
	return e, true
}

// settle takes the directory's answer in.
func (k *keyCache) settle(id string, begin time.Time, res *v1.KeysResponse, err error) (*v1.ApiKey, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if err != nil {
		e, ok := k.keys[id]
		if !ok || k.now().Sub(e.read) >= keyStale {
			return nil, err
		}
		e.busy = false
		k.keys[id] = e
		return e.key, nil
	}
	for _, key := range res.Keys {
		if key.KeyId == id {
			k.makeRoom()
			k.keys[id] = keyEntry{key: key, read: begin}
			return key, nil
		}
	}
	delete(k.keys, id)
	return nil, nil
}

// makeRoom keeps the bound; which key is forgotten does not matter.
func (k *keyCache) makeRoom() {
	for id := range k.keys {
		if len(k.keys) < keysMost {
			return
		}
		delete(k.keys, id)
	}
}

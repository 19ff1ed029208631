package api

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/imdhq/imd/pkg/im"
	v1 "github.com/imdhq/imd/proto/gen/internalv1"
	"github.com/imdhq/imd/sdk/go/gen/clientv1"
)

// keyBook is a directory of keys that counts and may be away.
type keyBook struct {
	mu    sync.Mutex
	keys  map[string]*v1.ApiKey
	asked int
	away  bool
}

func (b *keyBook) Keys(_ context.Context, r *v1.KeysRequest) (*v1.KeysResponse, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.asked++
	if b.away {
		return nil, errors.New("away")
	}
	out := &v1.KeysResponse{}
	if k := b.keys[r.KeyId]; k != nil {
		out.Keys = append(out.Keys, k)
	}
	return out, nil
}

func TestKeyCache(t *testing.T) {
	now := epoch
	book := &keyBook{keys: map[string]*v1.ApiKey{"a": {KeyId: "a"}}}
	c := newKeyCache(book, func() time.Time { return now })
	step := func(name string, after time.Duration, wantAsked int, wantFound bool) {
		t.Helper()
		now = now.Add(after)
		k, err := c.find(t.Context(), "a")
		if (k != nil && err == nil) != wantFound || book.asked != wantAsked {
			t.Errorf("%s: %v, %v, asked %d times, want %d", name, k, err, book.asked, wantAsked)
		}
	}
	step("first", 0, 1, true)
	step("remembered", 4*time.Second, 1, true)
	step("asked again", time.Second, 2, true)
	book.away = true
	step("old but good", 6*time.Second, 3, true)
	step("asked at once again", time.Second, 4, true)
	step("too old", 4*time.Second, 5, false)
	book.away = false
	step("back", 0, 6, true)
	delete(book.keys, "a")
	step("gone", 6*time.Second, 7, false)
}

func TestARevokedKeyEndsWithinTenSeconds(t *testing.T) {
	now := epoch
	book := &keyBook{keys: map[string]*v1.ApiKey{"a": {KeyId: "a"}}}
	c := newKeyCache(book, func() time.Time { return now })
	if k, err := c.find(t.Context(), "a"); k == nil || err != nil {
		t.Fatal(k, err)
	}
	book.keys["a"] = &v1.ApiKey{KeyId: "a", RevokedMs: 1}
	now = now.Add(keyFresh)
	if k, err := c.find(t.Context(), "a"); err != nil || k.RevokedMs == 0 {
		t.Errorf("%v, %v", k, err)
	}
}

func TestMadeUpKeysAreLookedUpAtABoundedRate(t *testing.T) {
	book := &keyBook{}
	c := newKeyCache(book, func() time.Time { return epoch })
	var limited bool
	for i := range 1000 {
		_, err := c.find(t.Context(), fmt.Sprint("x", i))
		limited = limited || im.ReasonOf(err) == clientv1.Reason_REASON_RATE_LIMITED
	}
	if !limited || book.asked > strangersB {
		t.Errorf("limited %v, asked %d", limited, book.asked)
	}
	if len(c.keys) != 0 {
		t.Errorf("%d keys that nobody has are kept", len(c.keys))
	}
}

func TestKeyCacheIsBounded(t *testing.T) {
	now := epoch
	book := &keyBook{keys: map[string]*v1.ApiKey{}}
	c := newKeyCache(book, func() time.Time { now = now.Add(time.Second / strangers); return now })
	for i := range keysMost + 50 {
		id := fmt.Sprint("k", i)
		book.keys[id] = &v1.ApiKey{KeyId: id}
		if k, err := c.find(t.Context(), id); k == nil || err != nil {
			t.Fatal(k, err)
		}
	}
	if len(c.keys) > keysMost {
		t.Errorf("%d keys", len(c.keys))
	}
}

func TestKeyCacheTogether(t *testing.T) {
	book := &keyBook{keys: map[string]*v1.ApiKey{"a": {KeyId: "a"}}}
	c := newKeyCache(book, time.Now)
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			for range 200 {
				if k, err := c.find(context.Background(), "a"); k == nil || err != nil {
					t.Error(k, err)
				}
			}
		})
	}
	wg.Wait()
}

package storetest

import (
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/imdhq/imd/pkg/store"
	"github.com/imdhq/imd/sdk/go/gen/clientv1"
)

// fence claims a fence that must be given. The holder is named after the
// revision.
func (k *kit) fence(name string, rev int64) store.Fence {
	k.Helper()
	f, err := k.s.ClaimFence(k.ctx(), claim(name, rev))
	k.must(err)
	return f
}

func claim(name string, rev int64) store.FenceClaim {
	return store.FenceClaim{Name: name, Holder: fmt.Sprintf("n%d/b", rev), Cluster: "c1", Revision: rev}
}

// fenced makes a claim that must be refused, and returns the fence as it stands.
func (k *kit) fenced(c store.FenceClaim) store.Fence {
	k.Helper()
	f, err := k.s.ClaimFence(k.ctx(), c)
	if !errors.Is(err, store.ErrFenced) {
		k.Errorf("claim %+v: %+v, %v", c, f, err)
	}
	return f
}

func fenceTokens(k *kit) {
	if _, err := k.s.Fence(k.ctx(), "x"); !errors.Is(err, store.ErrNotFound) {
		k.Errorf("a fence that was never claimed: %v", err)
	}
	first := k.fence("x", 10)
	if first.Token != 1 || first.Holder != "n10/b" || time.Since(first.Claimed) > time.Minute {
		k.Errorf("the first claim: %+v", first)
	}
	if again := k.fence("x", 10); again.Token != 1 {
		k.Errorf("the same claim again: %+v", again)
	}
	if second := k.fence("x", 11); second.Token != 2 {
		k.Errorf("a newer claim: %+v", second)
	}
	if other := k.fence("y", 5); other.Token != 1 {
		k.Errorf("another name: %+v", other)
	}
	k.s = k.d.Reopen(k.T, k.s)
	got, err := k.s.Fence(k.ctx(), "x")
	k.must(err)
	if got.Token != 2 || got.Cluster != "c1" || got.Revision != 11 || got.Holder != "n11/b" {
		k.Errorf("after reopening: %+v", got)
	}
	for _, c := range []store.FenceClaim{{Holder: "h"}, {Name: "x"}} {
		if _, err := k.s.ClaimFence(k.ctx(), c); err == nil {
			k.Errorf("claim %+v is accepted", c)
		}
	}
}

func fenceStale(k *kit) {
	k.fence("x", 10)
	if f := k.fenced(claim("x", 9)); f.Token != 1 || f.Holder != "n10/b" {
		k.Errorf("a refused claim shows %+v", f)
	}
	same := claim("x", 10)
	same.Holder = "another/b"
	k.fenced(same)
	over := claim("x", 9)
	over.Over = 7
	k.fenced(over)
	if f := k.fence("x", 12); f.Token != 2 {
		k.Errorf("refused claims took tokens: %+v", f)
	}
}

func fenceRewound(k *kit) {
	k.fence("x", 1000)
	c := claim("x", 3) // etcd was restored: the cluster is the same, its revisions are not
	c.Over = k.fenced(c).Token
	f, err := k.s.ClaimFence(k.ctx(), c)
	k.must(err)
	if f.Token != 2 || f.Revision != 3 {
		k.Errorf("a claim over the present token: %+v", f)
	}
	if f, err := k.s.ClaimFence(k.ctx(), c); err != nil || f.Token != 2 {
		k.Errorf("the same once more: %+v, %v", f, err)
	}
	c.Cluster, c.Revision, c.Over = "c2", 1, 0
	if f, err = k.s.ClaimFence(k.ctx(), c); err != nil || f.Token != 3 {
		k.Errorf("a claim of a new cluster: %+v, %v", f, err)
	}
}

func fenceRace(k *kit) {
	var mu sync.Mutex
	tokens := map[int64]bool{}
	var wg sync.WaitGroup
	for i := range 16 {
		wg.Go(func() {
			f, err := k.s.ClaimFence(k.ctx(), claim("x", int64(i)+1))
			if errors.Is(err, store.ErrFenced) {
				return
			}
			mu.Lock()
			defer mu.Unlock()
			if err != nil || tokens[f.Token] {
				k.Errorf("%+v, %v", f, err)
			}
			tokens[f.Token] = true
		})
	}
	wg.Wait()
	if f, err := k.s.Fence(k.ctx(), "x"); err != nil || f.Revision != 16 || f.Token != int64(len(tokens)) {
		k.Errorf("after %d accepted claims: %+v, %v", len(tokens), f, err)
	}
}

func fenceGuards(k *kit) {
	now := time.Now()
	k.must(k.s.RevokeLogin(k.ctx(), store.Revocation{User: "a", Login: "l", Reason: clientv1.Reason_REASON_KICKED, Until: now.Add(-time.Hour)}))
	old := k.fence("x", 1)
	other := old
	other.Holder = "somebody"
	unknown := k.fence("y", 1)
	unknown.Name = "z"
	k.fence("x", 2)
	for _, p := range []store.Proof{old.Proof(), other.Proof(), unknown.Proof(), {}} {
		if n, err := k.s.Expire(k.ctx(), p, now); !errors.Is(err, store.ErrFenced) || n != 0 {
			k.Errorf("proof %+v: %d, %v", p, n, err)
		}
	}
	f, err := k.s.Fence(k.ctx(), "x")
	k.must(err)
	if n, err := k.s.Expire(k.ctx(), f.Proof(), now); err != nil || n != 1 {
		k.Errorf("the newest proof: %d, %v", n, err)
	}
}

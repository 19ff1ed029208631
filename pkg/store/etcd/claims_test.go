package etcd

import (
	"context"
	"sync"
	"sync/atomic"
	"testing"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/imdhq/imd/pkg/im"
	"github.com/imdhq/imd/pkg/store"
	"github.com/imdhq/imd/sdk/go/gen/clientv1"
)

// committing makes a transaction.
type committing = func() (*clientv3.TxnResponse, error)

// tampered is etcd with something that happens around each transaction that writes.
type tampered struct {
	clientv3.KV
	mu   sync.Mutex
	n    int
	does func(n int, commit committing) (*clientv3.TxnResponse, error) // n from 1
}

func (k *tampered) Txn(ctx context.Context) clientv3.Txn {
	return &tamperedTxn{k.KV.Txn(ctx), k, false}
}

type tamperedTxn struct {
	clientv3.Txn
	k      *tampered
	writes bool
}

func (t *tamperedTxn) If(c ...clientv3.Cmp) clientv3.Txn {
	return &tamperedTxn{t.Txn.If(c...), t.k, true}
}

func (t *tamperedTxn) Then(o ...clientv3.Op) clientv3.Txn {
	return &tamperedTxn{t.Txn.Then(o...), t.k, t.writes}
}

func (t *tamperedTxn) Commit() (*clientv3.TxnResponse, error) {
	if !t.writes {
		return t.Txn.Commit()
	}
	t.k.mu.Lock()
	t.k.n++
	n := t.k.n
	t.k.mu.Unlock()
	return t.k.does(n, t.Txn.Commit)
}

// shares are how many sessions have a share of a lease, by both books.
func shares(t *testing.T, r *Routes) int {
	t.Helper()
	r.leases.mu.Lock()
	defer r.leases.mu.Unlock()
	n := 0
	for _, l := range r.leases.list {
		n += l.users
	}
	if n != len(r.leases.of) {
		t.Errorf("%d sessions have a lease, and leases have %d", len(r.leases.of), n)
	}
	return n
}

// tamperedRoutes are a store whose transactions that write go through does.
func tamperedRoutes(t *testing.T, client *clientv3.Client, prefix string, does func(int, committing) (*clientv3.TxnResponse, error)) *Routes {
	t.Helper()
	own := &clientv3.Client{KV: &tampered{KV: client.KV, does: does}, Lease: client.Lease, Watcher: client.Watcher}
	return closing(t, open(t, own, prefix))
}

// The error of one transaction is that of its claims; those of another are answered.
func TestATransactionOfManyFails(t *testing.T) {
	r := tamperedRoutes(t, begin(t), "/imd/a/routes/", func(n int, commit committing) (*clientv3.TxnResponse, error) {
		if n == 2 {
			return nil, context.DeadlineExceeded
		}
		return commit()
	})
	list := make([]store.Claiming, store.MaxClaims)
	for i := range list {
		list[i].Route = routeOf(i)
	}
	out, err := r.ClaimMany(t.Context(), list)
	if err != nil {
		t.Fatal(err)
	}
	for i, c := range out {
		have, err := r.Lookup(t.Context(), []im.UserID{list[i].Route.User})
		if err != nil {
			t.Fatal(err)
		}
		if there := i < maxOps/2; there != (c.Err == nil) || there != (len(have) == 1) || !there && im.ReasonOf(c.Err) != clientv1.Reason_REASON_UNAVAILABLE {
			t.Errorf("claim %d: %+v, and there are %v", i, c, have)
		}
	}
}

// A session that does not come in leaves no share of a lease behind; one that may have
// come in has its share until it is released.
func TestSharesOfClaims(t *testing.T) {
	client := begin(t)
	other := closing(t, open(t, client, "/imd/a/routes/"))
	does := func(commit committing) (*clientv3.TxnResponse, error) { return commit() }
	r := tamperedRoutes(t, client, "/imd/a/routes/", func(_ int, commit committing) (*clientv3.TxnResponse, error) {
		return does(commit)
	})
	n := 0
	faster := func(commit committing) (*clientv3.TxnResponse, error) { // another login comes first
		x := routeOf(n)
		x.Session, x.Login = im.SessionID("rival of "+x.Session), "rival"
		if _, err := other.Claim(t.Context(), x, store.Policy{Mode: store.KickOld}); err != nil {
			t.Error(err)
		}
		return commit()
	}
	lost := func(commit committing) (*clientv3.TxnResponse, error) { // the answer
		if _, err := commit(); err != nil {
			t.Error(err)
		}
		return nil, context.DeadlineExceeded
	}
	plain := does
	for _, tt := range []struct {
		name  string
		does  func(committing) (*clientv3.TxnResponse, error)
		epoch uint64
		mode  store.PolicyMode
		want  int // shares more than before
		ok    func(store.Claim, error) bool
	}{
		{"granted", plain, 0, store.RejectNew, 1, func(_ store.Claim, err error) bool { return err == nil }},
		{"refused", faster, 0, store.RejectNew, 0, func(_ store.Claim, err error) bool { return im.ReasonOf(err) == clientv1.Reason_REASON_LOGIN_REFUSED }},
		{"outranked", faster, 1, store.KickOld, 0, func(c store.Claim, err error) bool { return err == nil && c.Standing == store.Replaced }},
		{"unknown", lost, 0, store.RejectNew, 1, func(_ store.Claim, err error) bool { return im.ReasonOf(err) == clientv1.Reason_REASON_UNAVAILABLE }},
	} {
		for how, claim := range map[string]func(store.Route, store.Policy) (store.Claim, error){
			"alone": func(x store.Route, p store.Policy) (store.Claim, error) { return r.Claim(t.Context(), x, p) },
			"of many": func(x store.Route, p store.Policy) (store.Claim, error) {
				out, err := r.ClaimMany(t.Context(), []store.Claiming{{Route: x, Policy: p}})
				if err != nil {
					return store.Claim{}, err
				}
				return out[0].Claim, out[0].Err
			},
		} {
			t.Run(tt.name+" "+how, func(t *testing.T) {
				n++
				x, before := routeOf(n), shares(t, r)
				x.Epoch = tt.epoch
				does = tt.does
				c, err := claim(x, store.Policy{Mode: tt.mode})
				does = plain
				if !tt.ok(c, err) {
					t.Errorf("%+v, %v", c, err)
				}
				if got := shares(t, r) - before; got != tt.want {
					t.Errorf("%d shares more, want %d", got, tt.want)
				}
				epoch := c.Epoch
				if list, err := r.Lookup(t.Context(), []im.UserID{x.User}); err != nil {
					t.Error(err)
				} else if len(list) == 1 && list[0].Session == x.Session { // also where the claim's outcome is not known
					epoch = list[0].Epoch
				}
				if _, err := r.Release(t.Context(), x.User, x.Session, epoch); err != nil {
					t.Error(err)
				}
				if got := shares(t, r); got != before {
					t.Errorf("%d shares after the release, before the claim it were %d", got, before)
				}
			})
		}
	}
}

// Who releases a route with another route epoch than its own changes nothing: the
// session has its route, and its share of the lease with it.
func TestReleaseOfAnotherEpoch(t *testing.T) {
	r := closing(t, open(t, begin(t), "/imd/other/routes/"))
	x := routeOf(1)
	c, err := r.Claim(t.Context(), x, store.Policy{Mode: store.KickOld})
	if err != nil {
		t.Fatal(err)
	}
	for _, epoch := range []uint64{c.Epoch - 1, c.Epoch + 1} {
		if was, err := r.Release(t.Context(), x.User, x.Session, epoch); err != nil || was {
			t.Errorf("released at %d: %v, %v", epoch, was, err)
		}
	}
	if n := shares(t, r); n != 1 {
		t.Errorf("%d shares of a session with a route", n)
	}
	if list, err := r.Lookup(t.Context(), []im.UserID{x.User}); err != nil || len(list) != 1 {
		t.Errorf("routes %v, %v", list, err)
	}
	for _, want := range []bool{true, false} { // the second time there is none
		if was, err := r.Release(t.Context(), x.User, x.Session, c.Epoch); err != nil || was != want {
			t.Errorf("released: %v, %v", was, err)
		}
	}
	if n := shares(t, r); n != 0 {
		t.Errorf("%d shares without a route", n)
	}
}

// What a claim keeps is kept although another of the same session gave it back.
func TestAShareThatTwoClaimsHave(t *testing.T) {
	r := &Routes{}
	r.leases.of = map[im.SessionID]share{}
	r.leases.add(1)
	id := r.leases.take("s")
	r.leases.giveBack("s")
	if n := shares(t, r); n != 0 {
		t.Errorf("%d shares of a claim that failed", n)
	}
	r.leases.keep("s", id)
	r.leases.giveBack("s")
	if n := shares(t, r); n != 1 {
		t.Errorf("%d shares of a session with a route", n)
	}
}

// Claims of one user do not get in each other's way: each is one transaction, in order.
func TestManyOfOneUser(t *testing.T) {
	var made atomic.Int32
	r := tamperedRoutes(t, begin(t), "/imd/a/routes/", func(_ int, commit committing) (*clientv3.TxnResponse, error) {
		made.Add(1)
		return commit()
	})
	list := make([]store.Claiming, 60)
	for i := range list {
		list[i].Route = routeOf(i)
		list[i].Route.User, list[i].Route.Device = "u", im.DeviceID(list[i].Route.Session)
	}
	out, err := r.ClaimMany(t.Context(), list)
	if err != nil {
		t.Fatal(err)
	}
	for i, c := range out {
		if c.Err != nil || i > 0 && c.Claim.Epoch <= out[i-1].Claim.Epoch {
			t.Errorf("claim %d: %+v", i, c)
		}
	}
	if n := int(made.Load()); n != len(list) {
		t.Errorf("%d transactions for %d claims", n, len(list))
	}
}

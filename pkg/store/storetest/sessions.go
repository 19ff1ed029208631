package storetest

import (
	"fmt"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/imdhq/imd/pkg/im"
	"github.com/imdhq/imd/pkg/store"
	"github.com/imdhq/imd/sdk/go/gen/clientv1"
)

const (
	superseded = clientv1.Reason_REASON_SUPERSEDED
	replaced   = clientv1.Reason_REASON_REPLACED
)

// prove notes a claim of user's login on a device and returns the epoch.
func (k *kit) prove(user im.UserID, p store.SessionProof, replaces ...store.SessionProof) uint64 {
	k.Helper()
	epoch, err := k.s.ProveSession(k.ctx(), store.SessionClaim{User: user, Session: p, Replaced: replaces, Until: time.Now().Add(time.Hour)})
	if err != nil {
		k.Fatalf("prove %+v: %v", p, err)
	}
	return epoch
}

// by is a row of a session.
func by(r store.AppendRow, p store.SessionProof) store.AppendRow {
	r.Proof = &p
	return r
}

func displacedSession(k *kit) {
	k.sent(to("ann", "bob", "makes it"))
	old, now := store.SessionProof{Login: "l", Device: "d", Epoch: 10}, store.SessionProof{Login: "l", Device: "d", Epoch: 20}
	elsewhere := store.SessionProof{Login: "l", Device: "d2", Epoch: 11}
	other := store.SessionProof{Login: "l2", Device: "d", Epoch: 12}
	for _, p := range []store.SessionProof{old, elsewhere, other} {
		same(k, "epoch", k.prove("ann", p), p.Epoch)
	}
	early := by(to("ann", "bob", "before"), old)
	first := k.append(early)[0]
	if first.Err != nil {
		k.Fatal(first.Err)
	}
	same(k, "the newer", k.prove("ann", now), 20)
	same(k, "again", k.prove("ann", now), 20)
	same(k, "the older", k.prove("ann", old), 20)
	k.refusedRow(superseded, by(to("ann", "bob", "late"), old))
	changed := early
	changed.BodyHash[0]++
	k.refusedRow(clientv1.Reason_REASON_ID_REUSED, changed)
	// Of a batch only the rows of displaced sessions are left out, whatever else is
	// in it, and what is stored answers first.
	late := by(to("ann", "bob", "late"), old)
	twice := by(late, now)
	for i, r := range k.append(early, late, by(to("ann", "bob", "now"), now), twice, by(to("ann", "bob", "there"), elsewhere),
		by(to("ann", "bob", "beside"), other), to("ann", "bob", "of nobody"), by(to("ann", "carl", "late"), old)) {
		switch i {
		case 0:
			if r.Err != nil || !r.Duplicate || r.Seq != first.Seq || r.PrevSeq != first.PrevSeq || r.MessageID != first.MessageID || !r.ServerTime.Equal(first.ServerTime) {
				k.Errorf("what is stored: %+v, want %+v", r, first)
			}
		case 1, 7:
			if im.ReasonOf(asError(r.Err)) != superseded {
				k.Errorf("row %d of the old session: %+v", i, r)
			}
		default:
			if r.Err != nil || r.Duplicate {
				k.Errorf("row %d: %+v", i, r)
			}
		}
	}
	// Another login that is replaced, on whatever device, stays so.
	k.prove("ann", store.SessionProof{Login: "l3", Device: "d3", Epoch: 30}, other, elsewhere)
	k.refusedRow(replaced, by(to("ann", "bob", "replaced"), other))
	k.refusedRow(replaced, by(to("ann", "bob", "replaced"), elsewhere))
	k.sent(by(to("ann", "bob", "stays"), now))
	k.sent(by(to("bob", "ann", "another user"), old))
	k.prove("ann", store.SessionProof{Login: "l4", Device: "d4", Epoch: 5}, now) // late, so it replaces nobody
	k.sent(by(to("ann", "bob", "stays"), now))
	k.reopen()
	k.refusedRow(superseded, by(to("ann", "bob", "after a restart"), old))
	k.refusedRow(replaced, by(to("ann", "bob", "after a restart"), other))
	k.sent(by(to("ann", "bob", "after a restart"), now))
}

func asError(e *im.Error) error {
	if e == nil {
		return nil
	}
	return e
}

func (k *kit) reopen() {
	k.Helper()
	k.s = k.d.Reopen(k, k.s)
}

func sessionRanks(k *kit) {
	rank := func(login im.LoginID, least uint64) uint64 {
		k.Helper()
		epoch, err := k.s.ProveSession(k.ctx(), store.SessionClaim{User: "ann", Rank: true, Until: time.Now().Add(time.Hour),
			Session: store.SessionProof{Login: login, Device: "d", Epoch: least}})
		if err != nil {
			k.Fatal(err)
		}
		return epoch
	}
	same(k, "the first", rank("l", 100), 100)
	same(k, "a clock that is behind", rank("l", 50), 101)
	same(k, "later", rank("l", 200), 200)
	same(k, "another login", rank("l2", 50), 50)
	k.prove("ann", store.SessionProof{Login: "l2", Device: "d", Epoch: 60}, store.SessionProof{Login: "l", Device: "d"})
	same(k, "no lower", rank("l", 10), 201)
	// Notes go when no session can live any more.
	f, err := k.s.ClaimFence(k.ctx(), store.FenceClaim{Name: "expiry", Holder: "h", Cluster: "c", Revision: 1})
	if err != nil {
		k.Fatal(err)
	}
	if n, err := k.s.Expire(k.ctx(), f.Proof(), time.Now().Add(2*time.Hour)); err != nil || n != 2 {
		k.Errorf("expire: %d, %v", n, err)
	}
	same(k, "after the notes went", rank("l", 10), 10)
}

// sessionRace lets a session send as fast as it goes while others take its place
// again and again: once a claim has returned, what an older one has sent is in the
// log or never will be.
func sessionRace(k *kit) {
	k.sent(to("ann", "bob", "0"))
	of := func(epoch uint64) store.AppendRow {
		return by(to("ann", "bob", fmt.Sprint(epoch)), store.SessionProof{Login: "l", Device: "d", Epoch: epoch})
	}
	var proved atomic.Uint64
	proved.Store(k.prove("ann", store.SessionProof{Login: "l", Device: "d", Epoch: 1}))
	var wg sync.WaitGroup
	stop := make(chan struct{})
	var refused atomic.Int64
	for range 3 {
		wg.Go(func() {
			for {
				select {
				case <-stop:
					return
				default:
				}
				epoch := proved.Load()
				for i, r := range k.append(of(epoch), of(epoch-1)) {
					switch {
					case i == 1 && r.Err == nil:
						k.Errorf("epoch %d stored after %d was proved", epoch-1, epoch)
					case r.Err != nil && r.Err.Reason != superseded:
						k.Errorf("row %d: %v", i, r.Err)
					case r.Err != nil:
						refused.Add(1)
					}
				}
			}
		})
	}
	heads := map[im.Seq]uint64{} // what was the newest entry when a claim had returned
	for n := uint64(2); n <= 30; n++ {
		proved.Store(k.prove("ann", store.SessionProof{Login: "l", Device: "d", Epoch: n}))
		p := k.history(store.HistoryQuery{Reader: "ann", Conversation: direct("ann", "bob"), Limit: 1, Backward: true})
		heads[p.Entries[0].Seq] = n
	}
	close(stop)
	wg.Wait()
	if refused.Load() == 0 {
		k.Error("nothing was refused")
	}
	least := uint64(0)
	for after, end := im.Seq(0), false; !end; {
		p := k.history(store.HistoryQuery{Reader: "ann", Conversation: direct("ann", "bob"), After: after})
		for _, e := range p.Entries {
			if epoch, err := strconv.ParseUint(string(e.Content), 10, 64); err != nil || epoch < least {
				k.Fatalf("entry %d has epoch %s behind the claim of %d", e.Seq, e.Content, least)
			}
			least = max(least, heads[e.Seq])
		}
		after, end = p.CompleteTo, p.End
	}
}
